//! A store that takes its time: what is asked at once is carried out in every order.
//!
//! Invariants: an operation happens whole, between two pauses whose length is drawn from a seed, so
//! that whoever is dropped meanwhile died before it or after it. Deliberately absent: the offset of
//! the database's clock. Here all clocks are the one that the test moves.

use std::sync::Mutex;

use futures::future::BoxFuture;
use steadfast_store::{Error, Op, OpenStore, Reply, Store};

use crate::dice::Dice;

/// The longest pause, in turns of the executor.
const PAUSE: u64 = 2;

/// A store with pauses.
pub(crate) struct Unsteady {
    inner: OpenStore,
    dice: Mutex<Dice>,
}

impl Unsteady {
    pub(crate) fn new(inner: OpenStore, seed: u64) -> Self {
        Self { inner, dice: Mutex::new(Dice::new(seed)) }
    }

    async fn pause(&self) {
        let turns = self.dice.lock().unwrap().between(0, PAUSE);
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    }
}

impl Store for Unsteady {
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            self.pause().await;
            let reply = self.inner.call(op).await;
            self.pause().await;
            reply
        })
    }
}
