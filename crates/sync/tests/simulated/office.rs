//! Our side: the fabric on a node, the nights one after another, and the judgement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use steadfast::{CommandStatus, Env, Queue, Retry, Steadfast};
use steadfast_store::{Store, StoreExt as _, op};
use steadfast_sync::job::{self, COMMAND, Jobs};
use steadfast_sync::{Config, Outcome, Report, sync_vendor_sales};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sim::SimEnv;

use super::vendor::{Seen, Vendor};
use super::warehouse::Warehouse;

const CONFIG: &str = r#"
[store]
url = "given"
[warehouse]
url = "sqlite://warehouse.db"
[[vendor]]
name = "acme_sales"
base_url = "http://vendor.example"
pagination = { style = "cursor", param = "cursor", next = "next" }
[vendor.fields]
sku = { key = true }
revenue = { type = "decimal" }
[vendor.totals]
column = "revenue"
"#;

fn config() -> Config {
    Config::parse(CONFIG, "simulated.toml").unwrap()
}

/// A node: the fabric, and every night that is not over, one after another. Sets `over` after the
/// last.
pub(crate) async fn boot(
    env: Arc<SimEnv>,
    store: Arc<dyn Store>,
    vendor: Vendor,
    at: Warehouse,
    over: Arc<AtomicBool>,
) {
    let config = config();
    let dates = vendor.dates();
    let fabric = Steadfast::open("given")
        .store(store)
        .env(env.clone())
        .worker_name("worker")
        // A night waits for ten minutes at a time, and nobody else brings work.
        .poll(Duration::from_millis(50), Duration::from_secs(30))
        .state(Jobs::new(&config))
        .command(sync_vendor_sales, job::contract(&config))
        .govern(job::governance(&config))
        .queue(Queue::new("connector_calls"))
        .queue(Queue::new("scheduled_maintenance"))
        .connector(vendor)
        .connector(at)
        .start()
        .await;
    let Ok(fabric) = fabric else { return };
    for date in dates {
        let order = job::order(&config.vendors[0], &date);
        // Two fires each night: one command.
        for _ in 0..2 {
            loop {
                let call = fabric.submit_named::<Report>(COMMAND, &order);
                let Ok(command) = call.requested_by("system:scheduler").await else {
                    env.sleep(Duration::from_secs(1)).await;
                    continue;
                };
                if command.ended().await.is_ok() {
                    break;
                }
            }
        }
    }
    over.store(true, Ordering::Relaxed);
}

fn commands(model: &ModelStore) -> BTreeMap<String, op::CommandRow> {
    let list =
        op::ListCommands { workspace: "default".to_owned(), limit: 1000, ..Default::default() };
    let found = model.ask(list).now_or_never().unwrap().unwrap().commands;
    let dated = found.into_iter().map(|row| {
        let key = row.idempotency_key.clone().unwrap();
        (key.rsplit(':').next().unwrap().to_owned(), row)
    });
    dated.collect()
}

/// What must be true of the world outside, whatever crashed.
pub(crate) fn judge(model: &ModelStore, vendor: &Vendor, at: &Warehouse) -> Result<(), String> {
    let commands = commands(model);
    let mut faults_before = 0;
    for date in vendor.dates() {
        let Some(row) = commands.get(&date).filter(|row| row.completed_at.is_some()) else {
            return Err(format!("{date}: no command of it has ended"));
        };
        let seen = vendor.seen(&date);
        let wrong = |why: &str| Err(format!("{date}: {why}: {:?} {seen:?}", row.error));
        requests(&seen, faults_before).or_else(|why| wrong(&why))?;
        faults_before = seen.last().map_or(faults_before, |seen| seen.faults);
        let last = seen.last().map_or(0, |seen| seen.status);
        if row.status == CommandStatus::Failed {
            if last == 200 || at.commits(&date) > 0 {
                return wrong("failed without a reason");
            }
            continue;
        }
        if row.status != CommandStatus::Succeeded {
            return wrong(&format!("ended as {}", row.status));
        }
        let report: Report = serde_json::from_str(row.result.as_deref().unwrap()).unwrap();
        let (_, rows, total) = vendor.day(&date);
        match report.outcome {
            Outcome::Stale if at.commits(&date) > 0 => return wrong("stale, and written"),
            Outcome::Stale => {}
            Outcome::Loaded if at.commits(&date) != 1 => {
                return wrong(&format!("written {} times", at.commits(&date)));
            }
            Outcome::Loaded if at.partition(&date) != Some((rows, total.to_string())) => {
                return wrong("the partition is not the vendor's");
            }
            Outcome::Loaded if at.known(&date).is_none() => return wrong("nothing is known of it"),
            Outcome::Loaded => {}
        }
    }
    Ok(())
}

/// No 4xx is tried again, and no 5xx is given up early. In a night with faults of our own an answer
/// may never have been heard: then the request is made again.
fn requests(seen: &[Seen], faults_before: u64) -> Result<(), String> {
    let attempts = Retry::listed([Duration::ZERO; 3]).max_attempts();
    for (at, request) in seen.iter().enumerate() {
        let after = seen.get(at + 1);
        let refused = (400..500).contains(&request.status) && request.status != 429;
        if refused && after.is_some_and(|next| next.faults == faults_before) {
            return Err(format!("{} was tried again", request.status));
        }
        let passing = !refused && request.status != 200;
        let before = seen[..at].iter().filter(|s| s.page == request.page).count();
        if passing && after.is_none() && before + 1 < attempts as usize {
            return Err(format!("{} was given up after {}", request.status, before + 1));
        }
    }
    Ok(())
}
