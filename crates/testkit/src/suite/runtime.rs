//! What a runtime must do, seen from outside: started, steered and observed as its users do.
//!
//! Invariants: a case uses the SDK alone and judges by results, rows and side effects; it has a
//! workspace of its own, so that cases share a store without meeting.
//! Deliberately absent: faults. Those are placed by the simulation and by the kill harness.

mod activities;
mod answers;
mod approvals;
mod bypass;
mod clock;
mod commands;
mod costs;
mod effects;
mod events;
mod handover;
mod history;
mod ledger;
mod messages;
mod panics;
mod policy;
mod publish;
mod queues;
mod runs;
mod saga;
mod schedules;
mod shared;
mod steering;
mod stub;
mod trials;
mod values;
mod versions;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::LocalBoxFuture;
use steadfast::{Builder, Client, Steadfast, TokioEnv};
use steadfast_store::OpenStore;

/// What a case gets: a store, and a workspace in it that is its own.
#[derive(Clone)]
pub struct Fixture {
    store: OpenStore,
    workspace: String,
}

/// One case.
pub type Case = fn(Fixture) -> LocalBoxFuture<'static, ()>;

/// Every case, by name.
pub fn cases() -> Vec<(&'static str, Case)> {
    [
        runs::CASES,
        versions::CASES,
        history::CASES,
        steering::CASES,
        handover::CASES,
        answers::CASES,
        messages::CASES,
        queues::CASES,
        workers::CASES,
        commands::CASES,
        schedules::CASES,
        shared::CASES,
        events::CASES,
        activities::CASES,
        policy::CASES,
        trials::CASES,
        bypass::CASES,
        costs::CASES,
        effects::CASES,
        ledger::CASES,
        saga::CASES,
        approvals::CASES,
        publish::CASES,
        values::CASES,
        &panics::cases(),
    ]
    .concat()
}

/// Names a case function and boxes its future.
macro_rules! case_table {
    ($($name:ident),* $(,)?) => {
        pub(super) const CASES: &[(&str, super::Case)] =
            &[$((stringify!($name), |fixture| Box::pin($name(fixture)))),*];
    };
}
pub(super) use case_table;

/// How long anything may take that should happen soon: generous, because machines are busy.
const SOON: Duration = Duration::from_secs(60);

impl Fixture {
    /// A fixture over a store, in a workspace named after the case.
    pub fn new(store: OpenStore, case: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let short: String = case.chars().take(48).collect();
        Self { store, workspace: format!("{short}-{n}") }
    }

    /// A fabric with quick polls and a short lease.
    fn fabric(&self) -> Builder {
        Steadfast::open("given")
            .store(self.store.clone())
            .workspace(self.workspace.clone())
            .lease(Duration::from_secs(2))
            .poll(Duration::from_millis(10), Duration::from_millis(200))
    }

    /// One whose steps wait for the test: on a machine that is busy a short lease may be lost, and
    /// then the second attempt would wait for what the first was given.
    fn patient(&self) -> Builder {
        self.fabric().lease(Duration::from_secs(60))
    }

    /// A client that runs nothing.
    fn client(&self) -> Client {
        let env = Arc::new(TokioEnv::current());
        Client::over(env, self.store.clone(), &self.workspace).unwrap()
    }
}

/// Worlds whose time is set by hand, or is wrong.
pub use clock::{Clock, Offset};

/// A process that dies drops nothing. Dropped, a program gives its runs back.
fn dies(program: Steadfast) {
    std::mem::forget(program);
}

/// Does something in a process that then dies: a runtime of its own, which is dropped.
async fn doomed<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build();
    let runtime = runtime.unwrap();
    let done = runtime.spawn(work).await.unwrap();
    runtime.shutdown_background();
    done
}

/// Waits until a condition holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = tokio::time::Instant::now() + SOON;
    while !holds().await {
        assert!(tokio::time::Instant::now() < give_up, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
