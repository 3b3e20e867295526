//! The strip of nights, as whoever looks in the morning sees it.

use steadfast::{Client, parse_moment};
use steadfast_sync::job;
use steadfast_sync::simulator::Answer;
use steadfast_sync::status::{Mark, Night, nights};

use super::world::{VENDOR, World};

async fn seen(world: &World, until: &str) -> Vec<Night> {
    let client = Client::connect_to(&world.config.store.url, "default").await.unwrap();
    let (from, until) = (parse_moment("2026-06-01").unwrap(), parse_moment(until).unwrap());
    let vendor = &world.config.vendors[0];
    nights(&client, &world.config, vendor, (from, until)).await.unwrap()
}

/// R54, R62: a night that nobody fired is seen before somebody starts a scheduler again.
#[tokio::test(flavor = "multi_thread")]
async fn r062_a_night_that_nobody_fired_is_seen_at_once() {
    let world = World::small("", |vendor| vendor).await;
    world.night("2026-06-01").await;
    world.vendor.on_page("2026-06-02", 1, Answer::Status(400));
    world.night("2026-06-02").await;
    world.fabric.schedule(job::schedule_id(VENDOR)).pause("audit").await.unwrap();
    world.fabric.shutdown().await;
    let strip: Vec<_> = seen(&world, "2026-06-03T12:00:00Z").await;
    let marks: Vec<_> = strip.iter().map(|night| night.mark).collect();
    assert_eq!(marks, [Mark::Loaded, Mark::Failed], "{strip:?}");
    // Two more nights pass, and nothing runs.
    let strip = seen(&world, "2026-06-05T12:00:00Z").await;
    let marks: Vec<_> = strip.iter().map(|night| night.mark).collect();
    assert_eq!(marks, [Mark::Loaded, Mark::Failed, Mark::Missed, Mark::Missed], "{strip:?}");
    assert_eq!(strip[3].target_date, "2026-06-04");
    assert_eq!(strip[3].reason, "paused: audit");
}
