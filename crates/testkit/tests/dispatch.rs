//! The dispatch loops of a worker, on every database: one queue that fails, and a shutdown.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use steadfast::{Cx, Queue, Result, RunStatus, Steadfast};
use steadfast_store::{Error, Op, OpenStore, Reply, Store};
use steadfast_testkit::db::TestDb;

/// How long anything may take that should happen soon: generous, because machines are busy.
const SOON: Duration = Duration::from_secs(60);

/// A store whose claims from the queue `bad` fail for as long as it is broken; counts all claims.
struct Failing {
    inner: OpenStore,
    is_broken: AtomicBool,
    failed: AtomicUsize,
    claims: AtomicUsize,
}

impl Failing {
    async fn on(db: &TestDb) -> Arc<Self> {
        let inner = steadfast_store::open(&db.url).await.unwrap();
        let is_broken = AtomicBool::new(true);
        Arc::new(Self {
            inner,
            is_broken,
            failed: AtomicUsize::new(0),
            claims: AtomicUsize::new(0),
        })
    }
}

impl Store for Failing {
    fn call(&self, op: Op) -> BoxFuture<'_, std::result::Result<Reply, Error>> {
        if let Op::Dequeue(claim) = &op {
            self.claims.fetch_add(1, Ordering::SeqCst);
            if claim.queue == "bad" && self.is_broken.load(Ordering::SeqCst) {
                self.failed.fetch_add(1, Ordering::SeqCst);
                let failure = Error::Refused("the queue is damaged".to_owned());
                return Box::pin(std::future::ready(Err(failure)));
            }
        }
        self.inner.call(op)
    }
    fn clock_offset_us(&self) -> i64 {
        self.inner.clock_offset_us()
    }
    fn announce(&self) {
        self.inner.announce();
    }
    fn ended(&self) -> BoxFuture<'_, ()> {
        self.inner.ended()
    }
    fn changed(&self) -> BoxFuture<'_, ()> {
        self.inner.changed()
    }
}

async fn double(_: Cx, n: u32) -> Result<u32> {
    Ok(n * 2)
}

/// With limits, so that runs wait on the queue and are not claimed as they are started.
fn limited(name: &str) -> Queue {
    Queue::new(name).concurrency(2)
}

/// R89: claims from one queue fail, again and again; other queues are served meanwhile, and the
/// queue itself is as soon as it can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r089_a_failing_queue_does_not_stop_the_others() {
    for db in TestDb::all() {
        let store = Failing::on(&db).await;
        let built = Steadfast::open("given").store(store.clone()).workflow(double);
        let built = built.queue(limited("bad")).queue(limited("good"));
        let pace = (Duration::from_millis(5), Duration::from_millis(50));
        let fabric = built.poll(pace.0, pace.1).start().await.unwrap();
        let mut waiting = Vec::new();
        for n in 0..3 {
            waiting.push(fabric.start(double, n).queue("bad").await.unwrap());
        }
        for n in 0..20 {
            let run = fabric.start(double, n).queue("good").await.unwrap();
            assert_eq!(run.result_within(SOON).await.unwrap(), n * 2, "{:?}", db.kind());
        }
        let give_up = Instant::now() + SOON;
        while store.failed.load(Ordering::SeqCst) < 5 {
            assert!(Instant::now() < give_up, "{:?}: the loop of the queue has ended", db.kind());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for run in &waiting {
            assert_eq!(run.status().await.unwrap(), RunStatus::Enqueued, "{:?}", db.kind());
        }
        store.is_broken.store(false, Ordering::SeqCst);
        for (n, run) in (0..).zip(&waiting) {
            assert_eq!(run.result_within(SOON).await.unwrap(), n * 2, "{:?}", db.kind());
        }
        fabric.shutdown().await;
    }
}

/// R89: a loop that would next look in ten minutes, because nothing is there or because the last
/// claim failed, ends at once with the worker, and claims nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r089_a_shutdown_interrupts_every_dispatch_loop() {
    const RARELY: Duration = Duration::from_secs(600);
    for db in TestDb::all() {
        let store = Failing::on(&db).await;
        let built = Steadfast::open("given").store(store.clone()).workflow(double);
        let built = built.queue(limited("bad")).queue(limited("good"));
        let fabric = built.poll(RARELY, RARELY).drain(SOON).start().await.unwrap();
        let give_up = Instant::now() + SOON;
        while store.failed.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < give_up, "{:?}: nothing was claimed", db.kind());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let begun = Instant::now();
        fabric.shutdown().await;
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(10), "{:?}: the shutdown took {took:?}", db.kind());
        let claims = store.claims.load(Ordering::SeqCst);
        let run = fabric.start(double, 1).queue("good").await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(store.claims.load(Ordering::SeqCst), claims, "{:?}: a claim", db.kind());
        assert_eq!(run.status().await.unwrap(), RunStatus::Enqueued, "{:?}", db.kind());
    }
}
