//! The strip of nights, as whoever looks in the morning sees it.

use std::time::Duration;

use steadfast::{Client, parse_moment};
use steadfast_sync::simulator::Answer;
use steadfast_sync::status::{Mark, Night, nights};
use steadfast_sync::{Report, job};

use super::world::{VENDOR, World, fires_at};

async fn seen(world: &World, until: &str) -> Vec<Night> {
    let client = Client::connect_to(&world.config.store.url, "default").await.unwrap();
    let (from, until) = (parse_moment("2026-06-01").unwrap(), parse_moment(until).unwrap());
    let vendor = &world.config.vendors[0];
    nights(&client, &world.config, vendor, (from, until)).await.unwrap()
}

/// R54, R62: a night that nobody fired is seen before somebody starts a scheduler again.
#[tokio::test(flavor = "multi_thread")]
async fn r062_a_night_that_nobody_fired_is_seen_at_once() {
    let world = World::with("").await;
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

/// R54, X8: every end has its mark: in time, late, stale, failed, stopped, under way, compressed.
#[tokio::test(flavor = "multi_thread")]
async fn r054_the_strip_tells_how_each_night_ended() {
    let world = World::with("[schedule]\nmisfire = \"compress\"").await;
    world.night("2026-06-01").await;
    world.vendor.on("2026-06-02", [Answer::Status(503); 3]);
    world.night("2026-06-02").await;
    world.vendor.stale("2026-06-03", "2026-06-02");
    world.night("2026-06-03").await;
    world.vendor.on("2026-06-04", [Answer::Status(422)]);
    world.night("2026-06-04").await;
    world.vendor.on("2026-06-05", [Answer::Held]);
    let id = world.fire("2026-06-05").await;
    world.asked("2026-06-05", 1).await;
    world.fabric.command::<Report>(&id).cancel("not tonight", "user:operator").await.unwrap();
    world.vendor.release();
    world.end(&id).await;
    world.fabric.shutdown().await;
    // Nobody is there for two nights: the newest stands for both.
    world.clock.leap_to(fires_at("2026-06-07").after(Duration::from_secs(3600)));
    let back = world.worker(|builder| job::install(builder, &world.config)).await;
    let key = job::key(&world.config, VENDOR, "2026-06-07");
    world
        .until("the newest is made up", async || back.command_by_key(&key).await.unwrap().is_some())
        .await;
    let id = back.command_by_key(&key).await.unwrap().unwrap().command.command_id;
    world.clock.see_through(&back, &id).await.unwrap();
    world.vendor.on("2026-06-08", [Answer::Held]);
    world.clock.leap_to(fires_at("2026-06-08").after(Duration::from_millis(5)));
    world.asked("2026-06-08", 1).await;
    let strip = seen(&world, "2026-06-09T12:00:00Z").await;
    let marks: Vec<_> = strip.iter().map(|night| night.mark).collect();
    let wanted = [
        Mark::Loaded,
        Mark::Late,
        Mark::Stale,
        Mark::Failed,
        Mark::Cancelled,
        Mark::Compressed,
        Mark::Late,
        Mark::Running,
    ];
    assert_eq!(marks, wanted, "{strip:?}");
    assert_eq!(world.held("2026-06-06").await.0, 0, "a partition is one day's");
    world.vendor.release();
    back.shutdown().await;
}

/// R63: with `misfire = "catchup"` nights that nobody fired are made up, each for its own day.
#[tokio::test(flavor = "multi_thread")]
async fn r063_missed_nights_are_made_up_where_the_file_says_so() {
    let world = World::with("[schedule]\nmisfire = \"catchup\"").await;
    world.fabric.shutdown().await;
    world.clock.leap_to(fires_at("2026-06-03").after(Duration::from_secs(3600)));
    let back = world.worker(|builder| job::install(builder, &world.config)).await;
    for date in ["2026-06-01", "2026-06-02", "2026-06-03"] {
        let key = job::key(&world.config, VENDOR, date);
        world.until(date, async || back.command_by_key(&key).await.unwrap().is_some()).await;
        let id = back.command_by_key(&key).await.unwrap().unwrap().command.command_id;
        world.clock.see_through(&back, &id).await.unwrap();
        assert_eq!(world.held(date).await, world.has(date));
    }
    assert_eq!(world.writes().await, 3);
    back.shutdown().await;
}
