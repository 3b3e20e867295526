//! Claims: by several processes at once, and an answer that a worker is given twice.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use steadfast::{Client, Cx, Queue, Result, Steadfast, Timestamp, TokioEnv};
use steadfast_store::op::{DEFAULT_QUEUE, Dequeue};
use steadfast_store::{Error, Op, OpenStore, Reply, Store, StoreExt as _};
use steadfast_testkit::db::TestDb;
use tokio::sync::Semaphore;

/// A store that gives the answer to its first claim twice.
struct Forgetful {
    inner: OpenStore,
    given: Mutex<Option<Reply>>,
    again: Semaphore,
}

impl Store for Forgetful {
    fn call(&self, op: Op) -> BoxFuture<'_, std::result::Result<Reply, Error>> {
        Box::pin(async move {
            let is_ours = matches!(&op, Op::Dequeue(op) if op.queue == "work");
            if is_ours && let Some(reply) = self.given.lock().unwrap().take() {
                self.again.add_permits(1);
                return Ok(reply);
            }
            let reply = self.inner.call(op).await?;
            let found = matches!(&reply, Reply::Dequeue(claimed) if !claimed.runs.is_empty());
            if is_ours && found {
                *self.given.lock().unwrap() = Some(reply.clone());
            }
            Ok(reply)
        })
    }
}

static BEGUN: AtomicUsize = AtomicUsize::new(0);
static OPEN: Semaphore = Semaphore::const_new(0);

async fn charge(n: usize) -> Result<usize> {
    let times = BEGUN.fetch_add(1, Ordering::SeqCst) + 1;
    OPEN.acquire().await.unwrap().forget();
    Ok(n + times)
}

async fn order(cx: Cx, n: usize) -> Result<usize> {
    cx.step(charge, n).await
}

/// R91: two executions under one lease could not be told apart by the database.
#[tokio::test]
async fn r091_an_answer_to_a_claim_that_comes_twice_begins_one_execution() {
    let inner = steadfast_store::open("sqlite::memory:").await.unwrap();
    let store = Forgetful { inner, given: Mutex::default(), again: Semaphore::new(0) };
    let store = Arc::new(store);
    let fabric = Steadfast::open("").store(store.clone()).workflow(order);
    let fabric = fabric.queue(Queue::new("work")).start().await.unwrap();
    let run = fabric.start(order, 41).queue("work").await.unwrap();
    store.again.acquire().await.unwrap().forget();
    // Whoever was launched by then has begun, or will before the first is let through.
    OPEN.add_permits(2);
    assert_eq!(run.result().await.unwrap(), 42);
    fabric.shutdown().await;
    assert_eq!(BEGUN.load(Ordering::SeqCst), 1, "the step was begun once");
}

/// Claims for one process until all runs are somebody's; gives what it got.
async fn claim(store: OpenStore, worker: &str, taken: Arc<AtomicUsize>) -> Vec<String> {
    let (mut ids, give_up) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while taken.load(Ordering::SeqCst) < RUNS {
        assert!(Instant::now() < give_up, "{worker}: runs are left that nobody gets");
        let now = Timestamp::from_micros(i64::MAX / 4);
        let dequeue = Dequeue {
            workspace: "default".to_owned(),
            queue: DEFAULT_QUEUE.to_owned(),
            worker: worker.to_owned(),
            app_version: String::new(),
            workflows: vec!["order".to_owned()],
            limit: 3,
            worker_has: Vec::new(),
            after_partition: String::new(),
            behind: None,
            lease_until: now.after(Duration::from_secs(60)),
            now,
        };
        let claimed = store.ask(dequeue).await.unwrap().runs;
        taken.fetch_add(claimed.len(), Ordering::SeqCst);
        assert!(claimed.iter().all(|run| run.worker == worker));
        ids.extend(claimed.into_iter().map(|run| run.run_id));
    }
    ids
}

/// Runs that the processes share.
const RUNS: usize = 90;

/// R95: a run is claimed by one of several processes, on every database: by locked rows that are
/// skipped, or by one writer at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r095_processes_that_claim_at_once_never_get_the_same_run() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let client = Client::over(Arc::new(TokioEnv::current()), store, "default").unwrap();
        for n in 0..RUNS {
            client.start(order, n).await.unwrap();
        }
        let taken = Arc::new(AtomicUsize::new(0));
        let mut claims = Vec::new();
        for worker in ["w1", "w2", "w3"] {
            // A store of its own, as a process has.
            let store = steadfast_store::open(&db.url).await.unwrap();
            let taken = taken.clone();
            claims.push(tokio::spawn(async move { claim(store, worker, taken).await }));
        }
        let mut all = Vec::new();
        for claim in claims {
            all.extend(claim.await.unwrap());
        }
        let different: BTreeSet<_> = all.iter().collect();
        assert_eq!((all.len(), different.len()), (RUNS, RUNS), "{:?}: each once", db.kind());
    }
}
