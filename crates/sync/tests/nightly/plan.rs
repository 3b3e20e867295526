//! The good ends: loaded and stale, and what is on record of them.

use serde_json::{Value, json};
use steadfast::{EffectStatus, ListEffects, ListEvents, ListInvocations, StepState};
use steadfast_sync::config::Name;
use steadfast_sync::{Order, Outcome, Report, job};

use super::world::{VENDOR, World, everywhere, report};

/// R1, R3, R4, R7, R8, R9, R19, R21, R24, R25, R27, R29, R31, R47: a night on every database.
#[tokio::test(flavor = "multi_thread")]
async fn r047_a_fresh_snapshot_is_in_the_warehouse_in_the_morning() {
    everywhere(async |world: World| {
        let info = world.night("2026-06-01").await;
        let told = report(&info);
        assert_eq!((told.outcome, told.pages), (Outcome::Loaded, 2));
        assert_eq!(world.held("2026-06-01").await, world.has("2026-06-01"));
        let row = &info.command;
        assert_eq!(row.idempotency_key.as_deref(), Some("sync_vendor_sales:acme_sales:2026-06-01"));
        assert_eq!(row.requested_by, "system:scheduler");
        assert_eq!(row.ingress, "scheduled_trigger");
        assert_eq!(row.cancellation_mode, "graceful");
        assert!(!row.workflow_id.is_empty());
        let payload: Value = serde_json::from_str(&row.payload).unwrap();
        let base = world.config.vendors[0].base_url.as_str();
        let wanted = json!({
            "vendor_name": VENDOR, "target_date": "2026-06-01", "vendor_base_url": base,
        });
        assert_eq!(payload, wanted);
        let context: Value = serde_json::from_str(&row.context).unwrap();
        assert!(context["workspace_id"].is_null());
        assert_eq!(context["trace_id"].as_str().map(str::len), Some(32));
        plan_as_written(&world, &row.workflow_id).await;
        one_effect(&world, &row.command_id).await;
        told_in_order(&world, &row.command_id).await;
        let state = world.table("vendor_sync_state", json!({})).await;
        assert_eq!(state.len(), 1);
        assert_eq!(state[0]["content_hash"].as_str(), Some(told.hash.as_str()));
        world.fabric.shutdown().await;
    })
    .await;
}

/// R19
async fn plan_as_written(world: &World, run_id: &str) {
    let steps = world.fabric.steps(run_id).await.unwrap();
    assert!(steps.iter().all(|step| step.state == StepState::Done));
    let mut names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    names.retain(|name| !name.contains('.')); // events
    let wanted = [
        "fetch_vendor_snapshot",
        "fetch_vendor_snapshot", // the second page
        "compute_snapshot_hash",
        "load_last_hash",
        "upsert_warehouse_partition",
        "record_hash",
    ];
    assert_eq!(names, wanted);
}

/// R25, R26, R29
async fn one_effect(world: &World, id: &str) {
    let which = ListEffects { command_id: Some(id.to_owned()), limit: 10, ..Default::default() };
    let effects = world.fabric.effects(which).await.unwrap();
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!(effects[0].effect_type, "warehouse_partition.write");
    assert_eq!(effects[0].idempotency_key, "sync_vendor_sales:acme_sales:2026-06-01");
    assert_eq!(effects[0].status, EffectStatus::Succeeded);
    assert_eq!(world.writes().await, 1);
    let which =
        ListInvocations { command_id: Some(id.to_owned()), limit: 50, ..Default::default() };
    let calls = world.fabric.invocations(which).await.unwrap();
    let asked: Vec<_> = calls.iter().map(|call| call.connector.as_str()).collect();
    assert_eq!(asked, [VENDOR, VENDOR, "warehouse", "warehouse", "warehouse"]);
    assert!(world.fabric.pending_approvals().await.unwrap().is_empty());
}

/// R9, R26, R31, R33: by command and by time.
async fn told_in_order(world: &World, id: &str) {
    let events = world.fabric.command::<Report>(id).events().await.unwrap();
    let of = |name: &str| {
        let found = events.iter().position(|event| event.event_type == name);
        found.unwrap_or_else(|| panic!("no {name} in {:?}", types(&events)))
    };
    let order = [
        "command.created",
        "command.validated",
        "command.queued",
        "command.running",
        "vendor.fetch.started",
        "vendor.fetch.succeeded",
        "snapshot.hashed",
        "snapshot.fresh_detected",
        "warehouse.upsert.started",
        "effect.executing",
        "effect.succeeded",
        "warehouse.upsert.succeeded",
        "command.succeeded",
    ];
    let places: Vec<_> = order.iter().map(|name| of(name)).collect();
    assert!(places.is_sorted(), "{:?}", types(&events));
    for never in ["command.compensated", "command.expired", "snapshot.stale_detected"] {
        assert!(!types(&events).contains(&never.to_owned()));
    }
    for event in &events {
        let audit = ["snapshot.", "warehouse.", "policy."];
        let wanted =
            if audit.iter().any(|p| event.event_type.starts_with(p)) { "audit" } else { "event" };
        if event.event_type.starts_with("vendor.") || wanted == "audit" {
            assert_eq!(event.purpose, wanted, "{}", event.event_type);
        }
        assert!(["event", "audit", "agent_step"].contains(&event.purpose.as_str()));
    }
    let which = ListEvents { limit: 1000, ..Default::default() };
    let by_time = world.fabric.events(which).await.unwrap();
    assert!(by_time.is_sorted_by_key(|event| event.created_at));
    assert!(by_time.len() >= events.len());
}

fn types(events: &[steadfast::EventRow]) -> Vec<String> {
    events.iter().map(|event| event.event_type.clone()).collect()
}

/// R20, R48: nothing new, nothing written, and that is on record.
#[tokio::test(flavor = "multi_thread")]
async fn r048_a_stale_snapshot_is_not_written() {
    everywhere(async |world: World| {
        world.vendor.stale("2026-06-02", "2026-06-01");
        report(&world.night("2026-06-01").await);
        let info = world.night("2026-06-02").await;
        assert_eq!(report(&info).outcome, Outcome::Stale);
        assert_eq!(world.held("2026-06-02").await.0, 0);
        assert_eq!(world.writes().await, 1, "one load in two nights");
        assert_eq!(world.table("vendor_sync_state", json!({})).await.len(), 1);
        let events = world.fabric.command::<Report>(&info.command.command_id).events().await;
        let events = events.unwrap();
        let stale: Vec<_> =
            events.iter().filter(|e| e.event_type == "snapshot.stale_detected").collect();
        assert_eq!(stale.len(), 1);
        assert_eq!(stale[0].purpose, "audit");
        assert!(
            !types(&events).iter().any(|t| t.starts_with("warehouse.") || t.starts_with("effect."))
        );
        // The vendor goes on: so does the sync.
        assert_eq!(report(&world.night("2026-06-03").await).outcome, Outcome::Loaded);
        assert_eq!(world.held("2026-06-03").await, world.has("2026-06-03"));
        world.fabric.shutdown().await;
    })
    .await;
}

/// R57: the same name for other rows is found by the second signal.
#[tokio::test(flavor = "multi_thread")]
async fn r057_rows_that_change_under_the_same_name_are_fresh() {
    let world = World::with("").await;
    report(&world.night("2026-06-01").await);
    world.vendor.forget_names();
    world.vendor.revise("2026-06-01");
    let info = again(&world, "2026-06-01", 2).await;
    assert_eq!(report(&info).outcome, Outcome::Loaded);
    assert_eq!(world.held("2026-06-01").await, world.has("2026-06-01"));
    world.fabric.shutdown().await;
}

/// X18: a change on the last page alone is seen, where every row counts.
#[tokio::test(flavor = "multi_thread")]
async fn x18_every_page_counts() {
    let world = World::with_vendor("staleness = \"content\"").await;
    report(&world.night("2026-06-01").await);
    assert_eq!(report(&again(&world, "2026-06-01", 2).await).outcome, Outcome::Stale);
    world.vendor.swap("2026-06-01");
    assert_eq!(report(&again(&world, "2026-06-01", 3).await).outcome, Outcome::Loaded);
    let rows = world.table("sales_daily", json!({ "region": "elsewhere" })).await;
    assert_eq!(rows.len(), 1);
    // What was loaded is no longer on its way.
    let left = std::fs::read_dir(&world.config.store.spool).unwrap().count();
    assert!(left <= 2, "pages of the stale snapshot at most: {left}");
    world.fabric.shutdown().await;
}

/// An operator insists: it is loaded although nothing has changed, and that is on record.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_not_changed_is_loaded_where_somebody_insists() {
    let world = World::with("").await;
    let date = "2026-06-01";
    report(&world.night(date).await);
    assert_eq!(report(&again(&world, date, 2).await).outcome, Outcome::Stale);
    assert_eq!(world.writes().await, 1);
    let order = Order { force: true, ..job::order(&world.config.vendors[0], date) };
    let info = revised(&world, order, 3).await;
    assert_eq!(report(&info).outcome, Outcome::Loaded);
    assert_eq!(world.writes().await, 2);
    assert_eq!(world.held(date).await, world.has(date));
    let events = world.events(&info.command.command_id).await;
    assert!(events.contains(&"snapshot.load_forced".to_owned()), "{events:?}");
    assert!(!events.contains(&"snapshot.fresh_detected".to_owned()), "{events:?}");
    world.fabric.shutdown().await;
}

/// R57: the same rows in other columns are not the same: a changed mapping is loaded.
#[tokio::test(flavor = "multi_thread")]
async fn r057_a_changed_mapping_is_not_stale() {
    for staleness in ["snapshot_id", "totals", "content"] {
        let world = World::with_vendor(&format!("staleness = \"{staleness}\"")).await;
        let date = "2026-06-01";
        report(&world.night(date).await);
        world.fabric.shutdown().await;
        // Two columns are filled from each other's field from now on.
        let mut config = world.config.clone();
        for (column, from) in [("region", "sku"), ("sku", "region")] {
            let column: Name = column.to_owned().try_into().unwrap();
            let field = config.vendors[0].fields.get_mut(&column).unwrap();
            field.from = Some(from.to_owned().try_into().unwrap());
        }
        let fabric = world.worker(|builder| job::install_by_hand(builder, &config)).await;
        for (number, outcome) in [(2, Outcome::Loaded), (3, Outcome::Stale)] {
            let call =
                fabric.submit_named::<Report>(job::COMMAND, &job::order(&config.vendors[0], date));
            let key = job::revision(&job::key(&config, VENDOR, date), number);
            let command = call.requested_by("user:operator").key(key).await.unwrap();
            let info = world.clock.see_through(&fabric, command.id()).await.unwrap();
            assert_eq!(report(&info).outcome, outcome, "{staleness}, {number}");
        }
        let rows = world.table("sales_daily", json!({ "target_date": date })).await;
        let sku = |row: &Value| row["region"].as_str().unwrap().starts_with("sku-");
        assert!(!rows.is_empty() && rows.iter().all(sku), "{rows:?}");
        fabric.shutdown().await;
    }
}

/// An explicit new revision of a day.
pub(crate) async fn again(world: &World, date: &str, number: u32) -> steadfast::CommandInfo {
    revised(world, job::order(&world.config.vendors[0], date), number).await
}

async fn revised(world: &World, order: Order, number: u32) -> steadfast::CommandInfo {
    let date = &order.target_date;
    let key = job::revision(&job::key(&world.config, VENDOR, date), number);
    let call = world.fabric.submit_named::<Report>(job::COMMAND, &order);
    let command = call.requested_by("user:operator").key(key).await.unwrap();
    world.end(command.id()).await
}

/// R27: rows that the vendor has taken back are gone; the rest is as it was.
#[tokio::test(flavor = "multi_thread")]
async fn r027_a_new_revision_replaces_the_partition() {
    everywhere(async |world: World| {
        report(&world.night("2026-06-01").await);
        report(&world.night("2026-06-02").await);
        let other = world.held("2026-06-02").await;
        world.vendor.shrink("2026-06-01", 7);
        assert_eq!(report(&again(&world, "2026-06-01", 2).await).outcome, Outcome::Loaded);
        assert_eq!(world.held("2026-06-01").await, world.has("2026-06-01"));
        assert_eq!(world.held("2026-06-01").await.0, 7);
        // The same again is stale: nothing to write.
        assert_eq!(report(&again(&world, "2026-06-01", 3).await).outcome, Outcome::Stale);
        assert_eq!(world.held("2026-06-02").await, other, "another day is not touched");
        assert_eq!(world.writes().await, 3);
        world.fabric.shutdown().await;
    })
    .await;
}

/// R5, R55: a missed day by hand, by the same key; again it is a no-op.
#[tokio::test(flavor = "multi_thread")]
async fn r055_a_missed_day_is_filled_by_hand_once() {
    let world = World::with("").await;
    let order = job::order(&world.config.vendors[0], "2026-05-20");
    let submit = async || {
        let call = world.fabric.submit_named::<Report>(job::COMMAND, &order);
        call.requested_by("user:operator").await.unwrap()
    };
    let (one, two) = tokio::join!(submit(), submit());
    assert_eq!(one.id(), two.id());
    assert!(one.is_new() != two.is_new());
    let info = world.end(one.id()).await;
    assert_eq!(
        info.command.idempotency_key.as_deref(),
        Some("sync_vendor_sales:acme_sales:2026-05-20")
    );
    assert_eq!(report(&info).outcome, Outcome::Loaded);
    assert!(!submit().await.is_new());
    assert_eq!(world.requests("2026-05-20").len(), 2, "two pages, once");
    assert_eq!(world.writes().await, 1);
    world.fabric.shutdown().await;
}
