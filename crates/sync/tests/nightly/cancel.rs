//! Cancelled while something is under way: what has begun ends, nothing else begins.

use steadfast::{Client, CommandStatus};
use steadfast_sync::Report;
use steadfast_sync::simulator::Answer;

use super::world::{Held, World, everywhere, everywhere_slow};

async fn cancel(client: &Client, id: &str) -> CommandStatus {
    client.command::<Report>(id).cancel("not tonight", "user:operator").await.unwrap()
}

/// R34, R35, R36, R38: cancelled while fetching: the answer is discarded, nothing is written.
#[tokio::test(flavor = "multi_thread")]
async fn r036_a_cancel_while_fetching_writes_nothing() {
    everywhere(async |world: World| {
        let date = "2026-06-01";
        world.vendor.on(date, [Answer::Held]);
        let id = world.fire(date).await;
        world.asked(date, 1).await;
        assert_eq!(cancel(&world.fabric, &id).await, CommandStatus::Cancelling);
        world.vendor.release();
        let info = world.end(&id).await;
        assert_eq!(info.command.status, CommandStatus::Cancelled);
        assert_eq!(world.requests(date).len(), 1, "no second page");
        assert_eq!(world.writes().await, 0);
        let events = world.events(&id).await;
        let place = |name: &str| events.iter().position(|event| event == name);
        assert!(place("command.cancelling") < place("command.cancelled"));
        assert!(place("command.cancelling").is_some());
        assert_eq!(place("warehouse.upsert.started"), None);
        world.fabric.shutdown().await;
    })
    .await;
}

/// R37: cancelled while loading: the load ends, the partition is valid, and then it is cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn r037_a_cancel_while_loading_leaves_a_whole_partition() {
    everywhere_slow(async |world: World, load: Held| {
        let date = "2026-06-01";
        let id = world.fire(date).await;
        load.begun().await;
        assert_eq!(cancel(&world.fabric, &id).await, CommandStatus::Cancelling);
        load.release();
        let info = world.end(&id).await;
        assert_eq!(info.command.status, CommandStatus::Cancelled);
        assert_eq!(world.held(date).await, world.has(date));
        assert_eq!(world.writes().await, 1);
        // What is known of the partition is known all the same.
        assert_eq!(world.table("vendor_sync_state", serde_json::json!({})).await.len(), 1);
        world.fabric.shutdown().await;
    })
    .await;
}

/// R34: cancelled between two attempts: nothing is under way, so it is over at once.
#[tokio::test(flavor = "multi_thread")]
async fn r034_a_cancel_while_waiting_ends_at_once() {
    let world = World::with("").await;
    let date = "2026-06-01";
    world.vendor.on(date, [Answer::Status(503)]);
    let id = world.fire(date).await;
    world.asked(date, 1).await;
    let retried = async {
        while !world.events(&id).await.contains(&"vendor.fetch.retried".to_owned()) {
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), retried).await.unwrap();
    cancel(&world.fabric, &id).await;
    assert_eq!(world.end(&id).await.command.status, CommandStatus::Cancelled);
    assert_eq!(world.requests(date).len(), 1);
    assert_eq!(world.writes().await, 0);
    world.fabric.shutdown().await;
}
