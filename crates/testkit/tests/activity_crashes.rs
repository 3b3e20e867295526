//! An activity on every database, whose worker dies before or after any of its writes.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use steadfast::{
    Activity, Builder, Cx, Envelope, EventMatch, Ingress, Result, RunFilter, RunStatus, Steadfast,
};
use steadfast_store::{Error, Op, OpenStore, Reply, Store};
use steadfast_testkit::db::{DbKind, TestDb};

const ACTIVITY: &str = "orders";
/// How long anything may take that should happen soon: generous, because machines are busy.
const SOON: Duration = Duration::from_secs(60);

/// Where a worker dies: at which of its writes, and whether that one is still carried out.
#[derive(Debug, Clone, Copy)]
struct Death {
    write: usize,
    after: bool,
}

/// The store of a worker that dies: from then on nothing is answered any more.
struct Dying {
    inner: OpenStore,
    death: Death,
    writes: AtomicUsize,
}

/// What writes for a run or starts one; what comes by the clock is not counted.
fn counts(op: &Op) -> bool {
    match op {
        Op::Dequeue(_) | Op::Wake(_) | Op::Heartbeat(_) | Op::TakeOver(_) | Op::PutTrigger(_) => {
            false
        }
        op => !op.is_read(),
    }
}

impl Store for Dying {
    fn call(&self, op: Op) -> BoxFuture<'_, std::result::Result<Reply, Error>> {
        Box::pin(async move {
            let number = match counts(&op) {
                true => self.writes.fetch_add(1, Ordering::SeqCst) + 1,
                false => self.writes.load(Ordering::SeqCst),
            };
            if number < self.death.write {
                return self.inner.call(op).await;
            }
            if number == self.death.write && self.death.after && counts(&op) {
                // Carried out, whether or not whoever asked is still there.
                drop(self.inner.call(op).await);
            }
            std::future::pending().await
        })
    }
    fn clock_offset_us(&self) -> i64 {
        self.inner.clock_offset_us()
    }
}

async fn remind(_: Cx, input: Value) -> Result<Value> {
    Ok(input)
}

fn fabric(store: OpenStore, workspace: &str) -> Builder {
    let paid = EventMatch { event_type: "order.paid".to_owned(), filter: None };
    let activity = Activity::on_event(ACTIVITY, paid)
        .task("mail", "remind", json!({ "to": "customer" }))
        .task("mail", "remind", json!({ "to": "desk" }))
        .task("call", "remind", json!({ "to": "desk" }));
    Steadfast::open("given")
        .store(store)
        .workspace(workspace)
        // A worker of the same name goes on at once.
        .worker_name("worker")
        .poll(Duration::from_millis(5), Duration::from_millis(50))
        .workflow(remind)
        .activity(activity)
}

async fn deliver(fabric: &Steadfast) -> Result<()> {
    let event = json!({
        "event_id": "evt_1", "type": "order.paid", "source": "shop", "subject": "order/1",
        "occurred_at": "2026-06-01T12:00:00Z", "trace_id": "t", "payload": {},
    });
    let event = Envelope::read(&event)?;
    fabric.deliver(&event, Ingress::SystemEvent).await.map(drop)
}

/// Whether the execution and its tasks are over.
async fn is_over(fabric: &Steadfast) -> bool {
    let noted = fabric.activity_runs(ACTIVITY, 10).await.unwrap();
    let done = |status| status == Some(RunStatus::Success);
    let [(_, tasks)] = &noted[..] else { return false };
    let runs = fabric.list(RunFilter::default(), 100).await.unwrap().runs;
    let ended = runs.iter().all(|run| run.status == RunStatus::Success);
    ended && tasks.iter().all(|task| done(task.status))
}

async fn until_over(fabric: &Steadfast, what: &str) {
    let give_up = Instant::now() + SOON;
    while !is_over(fabric).await {
        assert!(Instant::now() < give_up, "{what}: the tasks do not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Lets a worker die there, lets another one go on, and sees what was started. False if the first
/// one came to the end before.
async fn dies(store: OpenStore, workspace: String, death: Death) -> bool {
    let dying = Dying { inner: store.clone(), death, writes: AtomicUsize::new(0) };
    let (dying, theirs) = (Arc::new(dying), workspace.clone());
    let first = dying.clone();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build();
    let runtime = runtime.unwrap();
    let worker = runtime.spawn(async move {
        let fabric = fabric(first, &theirs).start().await.unwrap();
        deliver(&fabric).await.unwrap();
        until_over(&fabric, "without a death").await;
    });
    let dead = async {
        while dying.writes.load(Ordering::SeqCst) < death.write {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // Whatever is under way has been carried out or will never be.
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let ended = tokio::select! {
        ended = worker => ended.map(|()| true).unwrap(),
        () = dead => false,
    };
    runtime.shutdown_background();
    if ended {
        return false;
    }
    let what = format!("{workspace} {death:?}");
    let second = fabric(store, &workspace).start().await.unwrap();
    deliver(&second).await.unwrap();
    until_over(&second, &what).await;
    let noted = second.activity_runs(ACTIVITY, 10).await.unwrap();
    let [(run, tasks)] = &noted[..] else { panic!("{what}: {} executions", noted.len()) };
    let ids: Vec<_> = tasks.iter().map(|task| task.id.clone()).collect();
    let wanted = ["call:0", "mail:0", "mail:1"].map(|rest| format!("task-{}:{rest}", run.run_id));
    assert_eq!(ids, wanted, "{what}");
    // The activity's own run and its tasks, each once: what was started is what is noted.
    let runs = second.list(RunFilter::default(), 100).await.unwrap().runs;
    let mut started: Vec<_> = runs.into_iter().map(|run| run.run_id).collect();
    started.sort_unstable();
    let mut wanted: Vec<_> = ids.into_iter().chain([run.workflow_id.clone()]).collect();
    wanted.sort_unstable();
    assert_eq!(started, wanted, "{what}");
    second.shutdown().await;
    true
}

/// R70: crash and replay start no task again that was started, wherever the worker died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r070_a_recovered_activity_starts_none_of_its_tasks_again() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        // Every write of the worker on a file; of servers, which are slower, every other.
        let step = if db.kind() == DbKind::Sqlite { 1 } else { 2 };
        let points = (1..40)
            .step_by(step)
            .flat_map(|write| [false, true].map(|after| Death { write, after }));
        let deaths = futures::stream::iter(points).map(|death| {
            let workspace = format!("dies-{}-{}", death.write, death.after);
            let store = store.clone();
            tokio::spawn(async move { (death, dies(store, workspace, death).await) })
                .map(|done| done.unwrap())
        });
        let died: Vec<_> = deaths.buffer_unordered(8).collect().await;
        let last = died.iter().filter(|(_, died)| *died).map(|(death, _)| death.write).max();
        let last = last.unwrap_or(0);
        assert!((5..38).contains(&last), "{:?}: {last} writes to die at", db.kind());
    }
}
