//! A start is carried through, whatever becomes of whoever asked for it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use steadfast::{Cx, Result, Steadfast};
use steadfast_store::{Error, Op, OpenStore, Reply, Store};
use tokio::sync::Semaphore;

/// Holds starts back until they are let through.
struct Held {
    inner: OpenStore,
    met: Semaphore,
    open: Semaphore,
}

impl Store for Held {
    fn call(&self, op: Op) -> BoxFuture<'_, std::result::Result<Reply, Error>> {
        Box::pin(async move {
            if matches!(op, Op::Start(_)) {
                self.met.add_permits(1);
                self.open.acquire().await.unwrap().forget();
            }
            self.inner.call(op).await
        })
    }
}

async fn double(n: u32) -> Result<u32> {
    Ok(n * 2)
}

async fn doubled(cx: Cx, n: u32) -> Result<u32> {
    cx.step(double, n).await
}

async fn held() -> (Arc<Held>, Steadfast) {
    let inner = steadfast_store::open("sqlite::memory:").await.unwrap();
    let store = Arc::new(Held { inner, met: Semaphore::new(0), open: Semaphore::new(0) });
    let fabric = Steadfast::open("").store(store.clone()).workflow(doubled).start().await.unwrap();
    (store, fabric)
}

/// Asks for a start and goes away while it is held back.
async fn leave_in_the_middle(store: &Held, fabric: &Steadfast) {
    let mut start = Box::pin(fabric.start(doubled, 21).id("r").into_future());
    assert!(start.as_mut().now_or_never().is_none(), "it is held back");
    store.met.acquire().await.unwrap().forget();
}

/// R74: it would otherwise wait for its lease to run out, and be recovered.
#[tokio::test]
async fn a_run_whose_caller_went_away_is_executed_at_once() {
    let (store, fabric) = held().await;
    leave_in_the_middle(&store, &fabric).await;
    store.open.add_permits(1);
    let found = loop {
        match fabric.get("r").await {
            Ok(row) if row.status.is_terminal() => break row,
            _ => tokio::task::yield_now().await,
        }
    };
    assert_eq!((found.status.as_str(), found.output.as_deref()), ("SUCCESS", Some("42")));
    assert_eq!(found.attempts, 1, "nobody had to recover it");
    fabric.shutdown().await;
}

/// R92: what a worker has claimed it gives back before it is gone.
#[tokio::test]
async fn a_shutdown_waits_for_a_start_whose_caller_went_away() {
    let (store, fabric) = held().await;
    leave_in_the_middle(&store, &fabric).await;
    let mut shutdown = Box::pin(fabric.shutdown());
    let early = tokio::time::timeout(Duration::from_millis(500), &mut shutdown).await;
    assert!(early.is_err(), "a start is under way");
    store.open.add_permits(1);
    shutdown.await;
    let row = fabric.get("r").await.unwrap();
    assert_eq!(row.worker, "", "nobody holds it: {row:?}");
}
