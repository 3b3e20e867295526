//! Workers whose files differ.

use std::time::Duration;

use steadfast::{ErrorClass, Steadfast};
use steadfast_sync::simulator::Answer;
use steadfast_sync::{Config, Outcome, Report, job};

use super::world::{VENDOR, World, everywhere, failed, report};

/// A worker whose file has another vendor, and no schedule.
async fn stranger(world: &World) -> Steadfast {
    let mut config = world.config.clone();
    config.vendors[0].name = "other_sales".to_owned().try_into().unwrap();
    world.worker(|builder| job::install_by_hand(builder, &config)).await
}

/// A worker with the same file as the first.
async fn twin(world: &World, config: &Config) -> Steadfast {
    world.worker(|builder| job::install_by_hand(builder, config)).await
}

/// Asks a worker for a day of a vendor that may be none of its own.
async fn asked(world: &World, fabric: &Steadfast, date: &str) -> String {
    let order = job::order(&world.config.vendors[0], date);
    let call = fabric.submit_named::<Report>(job::COMMAND, &order);
    call.requested_by("user:operator").await.unwrap().id().to_owned()
}

async fn tells(world: &World, fabric: &Steadfast, id: &str, event: &str) {
    let told = async || {
        let events = fabric.command::<Report>(id).events().await.unwrap();
        events.iter().any(|seen| seen.event_type == event)
    };
    world.until(event, told).await;
}

/// R54: a night that comes to a worker without its vendor is not lost: it waits for the right one.
#[tokio::test(flavor = "multi_thread")]
async fn r054_a_night_waits_for_a_worker_that_has_its_vendor() {
    everywhere(async |world: World| {
        world.fabric.shutdown().await;
        let stranger = stranger(&world).await;
        let date = "2026-06-01";
        let id = asked(&world, &stranger, date).await;
        tells(&world, &stranger, &id, "vendor.awaited").await;
        // Looked at again and again by the wrong one: it is still there.
        let steps = async || {
            let info = stranger.command::<Report>(&id).info().await.unwrap();
            if let Some(until) = world.clock.waits_until(&stranger, &info).await {
                world.clock.leap_to(until);
            }
            stranger.steps(&info.command.workflow_id).await.unwrap().len() > 8
        };
        world.until("some looks", steps).await;
        assert!(world.requests(date).is_empty());
        let right = twin(&world, &world.config).await;
        let info = world.clock.see_through(&right, &id).await.unwrap();
        assert_eq!(report(&info).outcome, Outcome::Loaded);
        assert_eq!(world.held(date).await, world.has(date));
        assert_eq!(world.writes().await, 1);
        right.shutdown().await;
        stranger.shutdown().await;
    })
    .await;
}

/// R28: half way a worker without the vendor takes over: begun anew by the next one, written once.
#[tokio::test(flavor = "multi_thread")]
async fn r028_a_night_that_is_taken_over_by_the_wrong_worker_is_begun_anew() {
    let world = World::with("").await;
    let date = "2026-06-01";
    world.vendor.on_page(date, 2, Answer::Status(503));
    let id = asked(&world, &world.fabric, date).await;
    tells(&world, &world.fabric, &id, "vendor.fetch.retried").await;
    world.fabric.shutdown().await;
    let stranger = stranger(&world).await;
    world.clock.leap_to(steadfast::Env::now(&*world.clock).after(Duration::from_secs(31)));
    tells(&world, &stranger, &id, "vendor.awaited").await;
    let right = twin(&world, &world.config).await;
    let info = world.clock.see_through(&right, &id).await.unwrap();
    assert_eq!(report(&info).outcome, Outcome::Loaded);
    assert_eq!(world.statuses(date), [200, 503, 200, 200]);
    assert_eq!(world.held(date).await, world.has(date));
    assert_eq!(world.writes().await, 1);
    right.shutdown().await;
    stranger.shutdown().await;
}

/// Nobody has it, or it is somewhere else now: after a day that is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_vendor_that_nobody_has_is_given_up_after_a_day() {
    let world = World::with("").await;
    let mut order = job::order(&world.config.vendors[0], "2026-06-01");
    order.vendor_base_url = "https://elsewhere.example".to_owned();
    let call = world.fabric.submit_named::<Report>(job::COMMAND, &order);
    let command = call.requested_by("user:operator").await.unwrap();
    let info = world.end(command.id()).await;
    assert_eq!(failed(&info), ErrorClass::ValidationError);
    let error = info.command.error.unwrap();
    assert_eq!(error.code(), "SF-1002");
    assert!(error.message().contains(VENDOR), "{error}");
    let waited = info.command.created_at.until(info.command.completed_at.unwrap());
    assert!((86_400..87_000).contains(&waited.as_secs()), "{waited:?}");
    assert!(world.vendor.log().is_empty(), "nobody is asked in its name");
    world.fabric.shutdown().await;
}

/// X9: a worker with another file and another group leaves the schedules of the first alone; one of
/// the same group removes what its file no longer has.
#[tokio::test(flavor = "multi_thread")]
async fn x9_groups_of_workers_keep_their_schedules() {
    let world = World::with("").await;
    let mut config = world.config.clone();
    config.vendors[0].name = "other_sales".to_owned().try_into().unwrap();
    let scheduled = async |fabric: &Steadfast| {
        let all = fabric.triggers().await.unwrap();
        all.into_iter().map(|row| row.trigger_id).collect::<Vec<_>>()
    };
    let first = scheduled(&world.fabric).await;
    config.store.group = "others".to_owned().try_into().unwrap();
    let other = world.worker(|builder| job::install(builder, &config)).await;
    let both = scheduled(&other).await;
    assert!(both.len() == 2 && both.contains(&first[0]), "{both:?}");
    other.shutdown().await;
    config.store.group = world.config.store.group.clone();
    config.vendors[0].name = "third_sales".to_owned().try_into().unwrap();
    let heir = world.worker(|builder| job::install(builder, &config)).await;
    let left = scheduled(&heir).await;
    assert!(left.len() == 2 && !left.contains(&first[0]), "{left:?}");
    heir.shutdown().await;
    world.fabric.shutdown().await;
}
