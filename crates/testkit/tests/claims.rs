//! What a worker does with a claim that it is given twice.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use steadfast::{Cx, Queue, Result, Steadfast};
use steadfast_store::{Error, Op, OpenStore, Reply, Store};
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
