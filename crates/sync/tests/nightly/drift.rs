//! The vendor's rows change their form: what the file says is what happens.

use serde_json::{Value, json};
use steadfast::{ErrorClass, EventRow};
use steadfast_sync::simulator::Change;
use steadfast_sync::{Outcome, Report};

use super::plan::again;
use super::world::{World, failed, report};

const DRIFTED: &str = "vendor.schema_drift";

/// A world in which every change of the rows is met in the same way.
async fn world(reaction: &str) -> World {
    let all = ["new", "missing", "retyped"].map(|what| format!("{what} = \"{reaction}\""));
    World::with_vendor(&format!("drift = {{ {} }}", all.join(", "))).await
}

/// Each change, with its day and what is said of it. The column is `quantity`, the field `qty`.
fn changes() -> [(&'static str, Change, &'static str); 3] {
    [
        ("2026-06-01", Change::Added("discount".to_owned()), "new field discount"),
        ("2026-06-02", Change::Dropped("qty".to_owned()), "missing field quantity"),
        ("2026-06-03", Change::Retyped("qty".to_owned()), "field quantity is no integer"),
    ]
}

/// What was told of changed rows.
async fn told(world: &World, id: &str) -> Vec<EventRow> {
    let events = world.fabric.command::<Report>(id).events().await.unwrap();
    events.into_iter().filter(|event| event.event_type == DRIFTED).collect()
}

/// The day is loaded, and only the column that changed is empty.
async fn loaded_without(world: &World, date: &str, change: &Change) {
    assert_eq!(world.held(date).await, world.has(date), "{change:?}");
    let rows = world.table("sales_daily", json!({ "target_date": date })).await;
    let empty = !matches!(change, Change::Added(_));
    let as_wanted = |row: &Value| row["quantity"].is_null() == empty;
    assert!(!rows.is_empty() && rows.iter().all(as_wanted), "{change:?}: {:?}", rows[0]);
}

/// What is ignored is loaded without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_ignored_is_loaded() {
    let world = world("ignore").await;
    for (date, change, _) in changes() {
        world.vendor.drift(date, change.clone());
        let info = world.night(date).await;
        assert_eq!(report(&info).outcome, Outcome::Loaded, "{change:?}");
        loaded_without(&world, date, &change).await;
        assert!(told(&world, &info.command.command_id).await.is_empty(), "{change:?}");
    }
    world.fabric.shutdown().await;
}

/// What is warned of is loaded, and the audit has it once, with what differs.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_warned_of_is_loaded_and_told() {
    let world = world("warn").await;
    for (date, change, said) in changes() {
        world.vendor.drift(date, change.clone());
        let info = world.night(date).await;
        assert_eq!(report(&info).outcome, Outcome::Loaded, "{change:?}");
        loaded_without(&world, date, &change).await;
        let told = told(&world, &info.command.command_id).await;
        assert_eq!(told.len(), 1, "two pages, one event: {told:?}");
        assert_eq!(told[0].purpose, "audit");
        let about: Value = serde_json::from_str(&told[0].payload).unwrap();
        assert_eq!(about["differs"], json!([said]));
        assert_eq!(about["target_date"], json!(date));
    }
    world.fabric.shutdown().await;
}

/// What must not be fails the command after one request, and the partition is what it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_must_not_be_leaves_the_old_partition() {
    let world = world("fail").await;
    for (date, change, said) in changes() {
        report(&world.night(date).await);
        let before = world.table("sales_daily", json!({ "target_date": date })).await;
        let (asked, writes) = (world.requests(date).len(), world.writes().await);
        world.vendor.revise(date);
        world.vendor.drift(date, change.clone());
        let info = again(&world, date, 2).await;
        assert_eq!(failed(&info), ErrorClass::ValidationError, "{change:?}");
        let error = info.command.error.unwrap();
        assert_eq!(error.code(), "SF-1001", "{error}");
        assert!(error.message().contains(said), "{error}");
        assert_eq!(world.requests(date).len(), asked + 1, "asked once: {change:?}");
        assert_eq!(world.writes().await, writes);
        let after = world.table("sales_daily", json!({ "target_date": date })).await;
        assert!(before == after && !after.is_empty(), "{change:?}");
        assert!(told(&world, &info.command.command_id).await.is_empty());
    }
    world.fabric.shutdown().await;
}

/// Rows without their key, or without the value that is summed, are never loaded.
#[tokio::test(flavor = "multi_thread")]
async fn keys_and_sums_are_not_ignored() {
    let world = world("ignore").await;
    for (date, field) in [("2026-06-01", "sku"), ("2026-06-02", "revenue")] {
        world.vendor.drift(date, Change::Dropped(field.to_owned()));
        let info = world.night(date).await;
        assert_eq!(failed(&info), ErrorClass::ValidationError, "{field}");
        let error = info.command.error.unwrap();
        assert!(error.message().contains(field), "{error}");
        assert_eq!(world.statuses(date), [200]);
        assert_eq!(world.held(date).await.0, 0);
    }
    world.fabric.shutdown().await;
}
