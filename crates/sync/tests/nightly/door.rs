//! Who may ask, what may be asked, and how often.

use serde_json::json;
use steadfast::connector::{Connector, Outbound};
use steadfast::{CommandStatus, ErrorClass};
use steadfast_sync::vendor::VendorConnector;
use steadfast_sync::{Report, job};

use super::world::{Tenants, VENDOR, World, failed, report};

/// R11, R12, R13, R18: without the grants nothing runs, and the decisions are on record in order.
#[tokio::test(flavor = "multi_thread")]
async fn r012_without_the_grants_nothing_is_asked_of_anybody() {
    for missing in ["warehouse.write/*", "connector.acme_sales.read"] {
        let has = if missing.starts_with('w') { "connector.*" } else { "warehouse.write/*" };
        let more = format!("[policy.grants]\n\"system:scheduler\" = [\"{has}\"]");
        let world = World::with(&more).await;
        let info = world.night("2026-06-01").await;
        assert_eq!(failed(&info), ErrorClass::PermissionDenied, "{missing}");
        assert!(world.vendor.log().is_empty());
        assert_eq!(world.writes().await, 0);
        assert!(world.fabric.steps(&info.command.workflow_id).await.unwrap_or_default().is_empty());
        world.fabric.shutdown().await;
    }
    let world = World::with("").await;
    let info = world.night("2026-06-01").await;
    let events = world.fabric.command::<Report>(&info.command.command_id).events().await.unwrap();
    let first = events.iter().find(|event| event.event_type == "policy.evaluated").unwrap();
    let judged: serde_json::Value = serde_json::from_str(&first.payload).unwrap();
    let stages = judged["decisions"].as_array().unwrap().iter();
    let stages: Vec<_> = stages.map(|d| d["stage"].as_str().unwrap().to_owned()).collect();
    assert_eq!(stages, ["permission", "connector_scope", "rate_limit", "cost"]);
    world.fabric.shutdown().await;
}

/// R14, R15: the ways out do what they are meant for, and nothing else is ever sent.
#[tokio::test(flavor = "multi_thread")]
async fn r014_other_operations_are_not_sent() {
    let world = World::with("").await;
    let vendor = VendorConnector::new(&world.config.vendors[0], job::spool(&world.config)).unwrap();
    for operation in ["POST /sales/daily", "GET /sales", "DELETE /sales/daily"] {
        let refused = vendor.send(&Outbound::new(operation, json!({}))).await.unwrap_err();
        assert_eq!(refused.code(), "SF-0806", "{operation}");
    }
    assert!(world.vendor.log().is_empty());
    let warehouse = job::warehouse(&world.config).unwrap();
    for operation in ["load warehouse.orders", "upsert warehouse.sales_daily", "select secrets"] {
        let refused = warehouse.send(&Outbound::new(operation, json!({}))).await.unwrap_err();
        assert_eq!(refused.code(), "SF-0806", "{operation}");
    }
    world.fabric.shutdown().await;
}

/// R16: calls beyond the bucket's cap are not sent; the night goes on when it has filled.
#[tokio::test(flavor = "multi_thread")]
async fn r016_calls_beyond_the_rate_wait() {
    let world = World::with_vendor("rate = { calls = 1, per_seconds = 60 }").await;
    let info = world.night("2026-06-01").await;
    report(&info);
    assert_eq!(world.statuses("2026-06-01"), [200, 200], "two pages, two requests");
    let events = world.events(&info.command.command_id).await;
    assert!(events.contains(&"vendor.fetch.retried".to_owned()), "the second had to wait");
    world.fabric.shutdown().await;
}

/// R56: two tenants, the same vendor and day, and neither sees the other; on every database.
#[tokio::test(flavor = "multi_thread")]
async fn r056_tenants_do_not_collide() {
    World::tenants_everywhere(tenants_do_not_collide).await;
}

async fn tenants_do_not_collide(world: Tenants) {
    let order =
        |config| job::order(&steadfast_sync::Config::clone(config).vendors[0], "2026-06-01");
    let mut ids = Vec::new();
    for (fabric, config) in &world.tenants {
        let call = fabric.submit_named::<Report>(job::COMMAND, &order(config));
        let command = call.requested_by("user:operator").await.unwrap();
        let info = world.base.clock.see_through(fabric, command.id()).await.unwrap();
        assert_eq!(info.command.status, CommandStatus::Succeeded, "{:?}", info.command.error);
        let workspace = config.store.workspace.as_str();
        let key = format!("{workspace}/sync_vendor_sales:{VENDOR}:2026-06-01");
        assert_eq!(info.command.idempotency_key.as_deref(), Some(key.as_str()));
        ids.push(command.id().to_owned());
        fabric.shutdown().await;
    }
    assert_ne!(ids[0], ids[1]);
    let rows = world.base.table("sales_daily", json!({})).await;
    let of = |tenant: &str| rows.iter().filter(|row| row["workspace_id"] == tenant).count();
    let (many, _) = world.base.has("2026-06-01");
    assert_eq!((of("north"), of("south"), rows.len()), (many, many, 2 * many));
    world.base.fabric.shutdown().await;
}
