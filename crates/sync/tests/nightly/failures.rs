//! The bad ends, and what comes of passing troubles.

use std::time::Duration;

use steadfast::ErrorClass;
use steadfast_sync::Outcome;
use steadfast_sync::simulator::Answer;

use super::world::{World, everywhere, failed, report, took};

/// R49: one request, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn r049_a_bad_request_is_not_tried_again() {
    let world = World::with("").await;
    for (date, status, class) in [
        ("2026-06-01", 400, ErrorClass::ValidationError),
        ("2026-06-02", 422, ErrorClass::ValidationError),
        ("2026-06-03", 404, ErrorClass::PermanentConnectorError),
        ("2026-06-04", 409, ErrorClass::PermanentConnectorError),
    ] {
        world.vendor.on(date, [Answer::Status(status)]);
        assert_eq!(failed(&world.night(date).await), class, "{status}");
        assert_eq!(world.statuses(date), [status]);
        assert_eq!(world.held(date).await.0, 0);
    }
    assert_eq!(world.writes().await, 0);
    world.fabric.shutdown().await;
}

/// R43, R50: 503, 503, 200: exactly three requests, with waits of exactly 30 s and 120 s.
#[tokio::test(flavor = "multi_thread")]
async fn r050_a_vendor_that_is_down_for_a_while_is_asked_again() {
    everywhere(async |world: World| {
        let date = "2026-06-01";
        world.vendor.on(date, [Answer::Status(503), Answer::Status(503)]);
        let info = world.night(date).await;
        assert_eq!(report(&info).outcome, Outcome::Loaded);
        assert_eq!(world.statuses(date), [503, 503, 200, 200], "two pages at last");
        assert_eq!(waits(&world, &info.command.command_id).await, [30, 120]);
        let took = took(&info, date);
        assert!(took >= Duration::from_secs(150) && took < Duration::from_secs(300), "{took:?}");
        assert_eq!(world.held(date).await, world.has(date));
        world.fabric.shutdown().await;
    })
    .await;
}

/// The waits that the events tell of, in whole seconds.
async fn waits(world: &World, id: &str) -> Vec<u64> {
    let events = world.fabric.command::<serde_json::Value>(id).events().await.unwrap();
    let retried = events.iter().filter(|event| event.event_type == "vendor.fetch.retried");
    retried
        .map(|event| {
            let about: serde_json::Value = serde_json::from_str(&event.payload).unwrap();
            let next = steadfast::parse_moment(about["next_at"].as_str().unwrap()).unwrap();
            let failed_at = event.created_at;
            // The event is written a moment after the failure that it tells of.
            let wait = failed_at.until(next);
            wait.as_millis().div_ceil(1000).try_into().unwrap()
        })
        .collect()
}

/// R51: four requests, then none; the command fails and the cap is audited.
#[tokio::test(flavor = "multi_thread")]
async fn r051_a_vendor_that_stays_down_is_asked_four_times() {
    let world = World::with("").await;
    let date = "2026-06-01";
    world.vendor.on(date, std::iter::repeat_n(Answer::Status(500), 9));
    let info = world.night(date).await;
    assert_eq!(failed(&info), ErrorClass::TransientConnectorError);
    assert_eq!(world.statuses(date), [500; 4]);
    assert_eq!(waits(&world, &info.command.command_id).await, [30, 120, 600]);
    let events = world.events(&info.command.command_id).await;
    assert!(events.contains(&"cost.cap_reached".to_owned()), "{events:?}");
    assert_eq!(world.writes().await, 0);
    world.fabric.shutdown().await;
}

/// R45, R46: the one 4xx that passes says when; cuts and silence pass too.
#[tokio::test(flavor = "multi_thread")]
async fn r045_too_many_requests_are_made_again_not_before_they_may_be() {
    let world = World::with("").await;
    world.vendor.on("2026-06-01", [Answer::Later(45)]);
    let info = world.night("2026-06-01").await;
    assert_eq!(world.statuses("2026-06-01"), [429, 200, 200]);
    assert_eq!(waits(&world, &info.command.command_id).await, [45]);
    world.vendor.on("2026-06-02", [Answer::Hangup]);
    world.vendor.on_page("2026-06-02", 2, Answer::Status(502));
    report(&world.night("2026-06-02").await);
    assert_eq!(world.statuses("2026-06-02"), [0, 200, 502, 200]);
    assert_eq!(world.held("2026-06-02").await, world.has("2026-06-02"));
    world.fabric.shutdown().await;
}

/// A vendor whose own totals do not agree is not believed; a snapshot that changes between two
/// pages is fetched anew.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_two_snapshots_are_never_mixed() {
    let world = World::with("").await;
    world.vendor.revise_after("2026-06-01", 1);
    let info = world.night("2026-06-01").await;
    assert_eq!(report(&info).outcome, Outcome::Loaded);
    assert_eq!(world.statuses("2026-06-01"), [200; 4], "both pages twice");
    assert_eq!(world.held("2026-06-01").await, world.has("2026-06-01"));
    world.vendor.lie("2026-06-02");
    let info = world.night("2026-06-02").await;
    assert_eq!(failed(&info), ErrorClass::ValidationError);
    assert_eq!(info.command.error.unwrap().code(), "SF-1003");
    assert_eq!(world.held("2026-06-02").await.0, 0);
    world.fabric.shutdown().await;
}

/// Pages that are lost between fetch and load are fetched again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_page_is_fetched_again() {
    let world = World::with("").await;
    let date = "2026-06-01";
    // The second page is held: by then the first one lies in the spool.
    world.vendor.on_page(date, 2, Answer::Held);
    let id = world.fire(date).await;
    world.asked(date, 2).await;
    std::fs::remove_dir_all(&world.config.store.spool).unwrap();
    world.vendor.release();
    assert_eq!(report(&world.end(&id).await).outcome, Outcome::Loaded);
    assert_eq!(world.statuses(date), [200; 4]);
    assert_eq!(world.held(date).await, world.has(date));
    assert_eq!(world.writes().await, 1);
    // The vendor may have moved on meanwhile.
    let date = "2026-06-02";
    world.vendor.on_page(date, 2, Answer::Held);
    world.vendor.revise_after(date, 2);
    let id = world.fire(date).await;
    world.asked(date, 2).await;
    std::fs::remove_dir_all(&world.config.store.spool).unwrap();
    world.vendor.release();
    assert_eq!(report(&world.end(&id).await).outcome, Outcome::Loaded);
    assert_eq!(world.held(date).await, world.has(date));
    world.fabric.shutdown().await;
}
