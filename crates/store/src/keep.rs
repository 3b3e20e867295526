//! Keeps the store's own tasks and threads at work: one that panics is reported and begun anew.
//!
//! Invariants: a panic ends one round of the work. What that round had in hand is dropped, so that
//! its callers are told ([`Error::Panicked`]); the state that all rounds share stays.

use std::any::Any;
use std::sync::Arc;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use futures::future::BoxFuture;
use steadfast_core::caught::{self, Code};
use steadfast_core::limits;
use tokio::task::JoinError;

use crate::error::Error;
use crate::fault;
#[cfg(feature = "sqlite")]
use crate::sabotage;
use crate::tally::Counters;

/// Keeps one task or thread.
pub(crate) struct Keeper {
    name: &'static str,
    /// The database, as faults know it.
    database: String,
    counters: Arc<Counters>,
}

impl Keeper {
    pub(crate) fn new(name: &'static str, database: &str, counters: &Arc<Counters>) -> Self {
        Self { name, database: database.to_owned(), counters: counters.clone() }
    }

    /// Runs a task until a round of it ends by itself.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) async fn task<S: Send>(
        self,
        mut state: S,
        work: impl for<'a> Fn(&'a mut S) -> BoxFuture<'a, ()> + Send,
    ) {
        let keeper = &self;
        loop {
            let round = caught::future(Code("task", self.name), || {
                let mut round = work(&mut state);
                Box::pin(std::future::poll_fn(move |context| {
                    keeper.point();
                    round.as_mut().poll(context)
                }))
            });
            match round.await {
                Ok(()) => return,
                Err(panic) => self.counters.panicked(&panic),
            }
            tokio::time::sleep(limits::RESTART).await;
        }
    }

    /// Starts a thread that runs until a round of it ends by itself. Each round is given this, to
    /// pass places where faults may be.
    #[cfg(feature = "sqlite")]
    pub(crate) fn thread(self, mut work: impl FnMut(&Self) + Send + 'static) -> Result<(), Error> {
        let name = self.name;
        let rounds = move || {
            while let Err(panic) = caught::call(Code("thread", self.name), || work(&self)) {
                self.counters.panicked(&panic);
                std::thread::sleep(limits::RESTART);
            }
        };
        let thread = std::thread::Builder::new().name(format!("steadfast-{name}"));
        let started = thread.spawn(sabotage::inherited(rounds)).map(drop);
        started.map_err(|e| Error::Refused(format!("cannot start the thread of the {name}: {e}")))
    }

    /// A place where a fault may be.
    pub(crate) fn point(&self) {
        fault::point(self.name, || self.database.clone());
    }
}

/// The error of whoever waits for a task that ended without an answer.
pub(crate) fn lost(counters: &Counters, ended: JoinError) -> Error {
    match ended.try_into_panic() {
        Ok(payload) => panicked(counters, payload),
        Err(_) => Error::Closed,
    }
}

/// The error of an operation that panicked.
pub(crate) fn panicked(counters: &Counters, payload: Box<dyn Any + Send>) -> Error {
    let panic = caught::panicked(Code("an operation", ""), payload);
    counters.panicked(&panic);
    Error::Panicked(panic.message().to_owned())
}

/// The error of an operation whose writer panicked.
pub(crate) fn unanswered() -> Error {
    Error::Panicked("its writer panicked before it answered, and was begun anew".to_owned())
}
