//! How often a run is recovered, on every database.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::Arc;

use steadfast::{Client, Cx, Result, RunStatus, Steadfast, Timestamp, TokioEnv};
use steadfast_store::{OpenStore, StoreExt as _, op};
use steadfast_testkit::db::TestDb;

async fn ship(_: Cx, n: u32) -> Result<u32> {
    Ok(n)
}

async fn allowed(fabric: &Steadfast, store: &OpenStore, run_id: &str) -> i64 {
    let now = Timestamp::from_micros(0);
    let asked = op::GetRun { workspace: "default".to_owned(), run_id: run_id.to_owned(), now };
    let row = store.ask(asked).await.unwrap().0.unwrap();
    let info = fabric.get(run_id).await.unwrap();
    assert_eq!(info.max_attempts, row.max_attempts);
    row.max_attempts
}

/// R79: a hundred recoveries unless the workflow or the start says otherwise, however a run is
/// begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r079_a_run_may_be_recovered_a_hundred_times_unless_it_is_said_otherwise() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let built = Steadfast::open("given").store(store.clone()).workflow(ship);
        let built = built.workflow_named("rarely", 3, ship).workflow_named("often", None, ship);
        let fabric = built.start().await.unwrap();
        fabric.start(ship, 1).id("plain").await.unwrap();
        fabric.start(ship, 1).id("said").max_recoveries(7).await.unwrap();
        for name in ["rarely", "often"] {
            fabric.start_named::<u32>(name, &1u32).id(name).await.unwrap();
        }
        let mut found = Vec::new();
        for id in ["plain", "said", "rarely", "often"] {
            found.push(allowed(&fabric, &store, id).await);
        }
        assert_eq!(found, [100, 7, 3, 100], "{:?}", db.kind());
        fabric.shutdown().await;
    }
}

/// A worker that claims what is due in some hour, for half an hour.
fn wake(hour: i64, worker: &str) -> op::Wake {
    let at = |minutes: i64| Timestamp::from_micros(minutes * 60_000_000);
    op::Wake {
        workspace: "default".to_owned(),
        worker: worker.to_owned(),
        app_version: String::new(),
        workflows: vec!["ship".to_owned()],
        limit: 10,
        worker_has: Vec::new(),
        lease_until: at(hour * 60 + 30),
        now: at(hour * 60),
    }
}

/// R79: the default itself: a run is begun 101 times, and parked when its worker is lost once more.
/// A person may resume it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r079_after_a_hundred_recoveries_a_run_is_parked() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let env = Arc::new(TokioEnv::current());
        let client = Client::over(env, store.clone(), "default").unwrap();
        client.start(ship, 1).id("r").await.unwrap();
        let this_hour = client.get("r").await.unwrap().ready_at.as_micros() / 3_600_000_000 + 1;
        let op::Wake { workspace, worker, app_version, workflows, lease_until, now, .. } =
            wake(this_hour, "w0");
        let first = op::Dequeue {
            workspace,
            queue: op::DEFAULT_QUEUE.to_owned(),
            worker,
            app_version,
            workflows,
            limit: 1,
            worker_has: Vec::new(),
            after_partition: String::new(),
            behind: None,
            lease_until,
            now,
        };
        assert_eq!(store.ask(first).await.unwrap().runs.len(), 1);
        for lost in 1..=100 {
            let claimed = store.ask(wake(this_hour + lost, &format!("w{lost}"))).await.unwrap();
            let attempts: Vec<_> = claimed.runs.iter().map(|run| run.attempts).collect();
            assert_eq!(attempts, [lost + 1], "{:?}: recovery {lost}", db.kind());
        }
        let claimed = store.ask(wake(this_hour + 101, "w101")).await.unwrap();
        assert_eq!((claimed.runs.len(), claimed.exhausted), (0, vec!["r".to_owned()]));
        let run = client.get("r").await.unwrap();
        assert_eq!((run.status, run.attempts), (RunStatus::RetriesExceeded, 101));
        assert_eq!(run.error.unwrap().code(), "SF-0302", "{:?}", db.kind());
        client.resume("r").await.unwrap();
        let run = client.get("r").await.unwrap();
        assert_eq!((run.status, run.attempts), (RunStatus::Enqueued, 0), "{:?}", db.kind());
    }
}
