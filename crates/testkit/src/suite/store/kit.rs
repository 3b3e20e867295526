//! What every case needs: a workspace of its own, short requests, and replies that are not errors.
//!
//! Invariants: time in a case is `at(seconds)`, so that a case reads like a timetable; the defaults
//! are the dullest valid values, so that a case shows only what it is about.

use std::time::Duration;

use futures::future::join_all;
use steadfast_core::command::Context;
use steadfast_core::driver::{Kind, Record};
use steadfast_core::{Error as Failure, RunStatus, Timestamp};
use steadfast_store::op::{
    Cancel, Cancelled, Claimed, DEFAULT_QUEUE, Dequeue, Entry, Finish, GetRun, Lease, ListSteps,
    Load, Loaded, Operation, PutQueue, QueueRow, Record as Write, Release, Released, RunRow,
    Signal, Signalled, Start, Started, Submit, Suspend, Suspended, Wake, With, Written,
};
use steadfast_store::{Store, StoreExt};

/// Long enough not to run out in a case by itself.
pub(super) const LEASE_SECS: i64 = 60;

/// A moment of a case, in seconds.
pub(super) fn at(secs: i64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + secs * 1_000_000)
}

pub(super) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A plain done record.
pub(super) fn done(id: u64, name: &str, value: &str) -> Record {
    let mut record = Record::done(id, id, name, Kind::Step, Ok(value.to_owned()));
    (record.started_at, record.completed_at) = (at(1), at(2));
    record
}

/// A record on its own.
pub(super) fn entry(record: Record) -> Entry {
    Entry { record, replaces: false, with: None }
}

/// A record and what happens with it.
pub(super) fn with(record: Record, with: With) -> Entry {
    Entry { record, replaces: false, with: Some(with) }
}

pub(super) fn ids(runs: &[RunRow]) -> Vec<&str> {
    runs.iter().map(|run| run.run_id.as_str()).collect()
}

/// The workflows of the cases' workers.
pub(super) fn workflows() -> Vec<String> {
    ["ship_order", "refund", "steadfast.compensate"].map(str::to_owned).to_vec()
}

/// A queue without limits.
pub(super) fn plain(name: &str) -> QueueRow {
    QueueRow { name: name.to_owned(), ..QueueRow::default() }
}

/// A case's view of the store.
pub(super) struct Kit<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) ws: String,
}

impl<'a> Kit<'a> {
    pub(super) fn new(store: &'a dyn Store) -> Self {
        Self { store, ws: format!("case-{}", uuid::Uuid::now_v7().simple()) }
    }

    /// The answer to an operation that the store must be able to carry out.
    pub(super) async fn ask<O>(&self, op: O) -> O::Reply
    where
        O: Operation + Send + 'static,
    {
        self.store.ask(op).await.unwrap_or_else(|error| panic!("the store failed: {error}"))
    }

    /// The answers to operations asked at the same time.
    pub(super) async fn ask_all<O>(&self, ops: Vec<O>) -> Vec<O::Reply>
    where
        O: Operation + Send + 'static,
    {
        join_all(ops.into_iter().map(|op| self.ask(op))).await
    }

    /// A start on the default queue at second 0. Its seed is a digest of its id.
    pub(super) fn start(&self, run_id: &str) -> Start {
        Start {
            workspace: self.ws.clone(),
            run_id: run_id.to_owned(),
            workflow: "ship_order".to_owned(),
            input: "{\"order\":1}".to_owned(),
            queue: DEFAULT_QUEUE.to_owned(),
            partition: String::new(),
            priority: 0,
            dedupe_id: String::new(),
            app_version: String::new(),
            max_attempts: 100,
            ready_at: at(0),
            timeout: None,
            deadline_at: None,
            parent: String::new(),
            detached: false,
            seed: run_id.bytes().fold(7, |sum, byte| (sum * 31 + i64::from(byte)) % 1_000_003),
            context: None,
            claim: None,
            rest: None,
            now: at(0),
        }
    }

    /// A start on a queue.
    pub(super) fn on(&self, queue: &str, run_id: &str) -> Start {
        Start { queue: queue.to_owned(), ..self.start(run_id) }
    }

    /// A command without a key and without policies, whose run is `run-` and its id.
    pub(super) fn submit(&self, command_id: &str, now: Timestamp) -> Submit {
        let run = Start { now, ready_at: now, ..self.start(&format!("run-{command_id}")) };
        let context = Context { command_id: command_id.to_owned(), ..Context::default() };
        Submit {
            command_id: command_id.to_owned(),
            command_type: "ship".to_owned(),
            requested_by: "user:1".to_owned(),
            ingress: "api_request".to_owned(),
            trace_id: String::new(),
            cancellation_mode: "graceful".to_owned(),
            idempotency_key: None,
            expires_at: None,
            after: Vec::new(),
            judgement: None,
            hold: None,
            by_queue: false,
            start: Box::new(Start { context: Some(context.to_text()), ..run }),
        }
    }

    /// Starts a run, which must be new.
    pub(super) async fn started(&self, start: Start) {
        let reply = self.ask(start).await;
        assert!(matches!(reply, Started::New(_)), "a new run was expected, not {reply:?}");
    }

    /// Starts a run and claims it in the same commit.
    pub(super) async fn owned(&self, run_id: &str) -> Lease {
        self.owned_by(self.start(run_id), "w1").await
    }

    /// Starts a run as given and claims it in the same commit.
    pub(super) async fn owned_by(&self, start: Start, worker: &str) -> Lease {
        let claim = Some((worker.to_owned(), at(LEASE_SECS)));
        match self.ask(Start { claim, ..start }).await {
            Started::New(Some(lease)) => lease,
            other => panic!("a lease was expected, not {other:?}"),
        }
    }

    pub(super) async fn put(&self, queue: QueueRow) {
        self.ask(PutQueue { workspace: self.ws.clone(), queue, now: at(0) }).await;
    }

    pub(super) fn dequeue(&self, queue: &str, worker: &str, now: i64) -> Dequeue {
        Dequeue {
            workspace: self.ws.clone(),
            queue: queue.to_owned(),
            worker: worker.to_owned(),
            app_version: "v1".to_owned(),
            workflows: workflows(),
            limit: 10,
            worker_has: Vec::new(),
            after_partition: String::new(),
            behind: None,
            lease_until: at(now + LEASE_SECS),
            now: at(now),
        }
    }

    pub(super) fn wake(&self, worker: &str, now: i64) -> Wake {
        Wake {
            workspace: self.ws.clone(),
            worker: worker.to_owned(),
            app_version: "v1".to_owned(),
            workflows: workflows(),
            limit: 10,
            worker_has: Vec::new(),
            lease_until: at(now + LEASE_SECS),
            now: at(now),
        }
    }

    /// Lets somebody else recover the only due run.
    pub(super) async fn recovered(&self, worker: &str, now: i64) -> Lease {
        let claimed = self.ask(self.wake(worker, now)).await;
        self.lease_of(&claimed)
    }

    /// The lease of the only run that was claimed.
    pub(super) fn lease_of(&self, claimed: &Claimed) -> Lease {
        let [run] = claimed.runs.as_slice() else { panic!("one run expected: {claimed:?}") };
        Lease {
            workspace: self.ws.clone(),
            run_id: run.run_id.clone(),
            worker: run.worker.clone(),
            epoch: run.epoch,
        }
    }

    pub(super) async fn find(&self, run_id: &str) -> Option<RunRow> {
        self.find_at(run_id, at(0)).await
    }

    /// A run as it is shown at some time.
    pub(super) async fn find_at(&self, run_id: &str, now: Timestamp) -> Option<RunRow> {
        let asked = GetRun { workspace: self.ws.clone(), run_id: run_id.to_owned(), now };
        self.ask(asked).await.0.map(|run| *run)
    }

    /// A run that must be there.
    pub(super) async fn get(&self, run_id: &str) -> RunRow {
        let found = self.find(run_id).await;
        found.unwrap_or_else(|| panic!("there is no run {run_id}"))
    }

    pub(super) async fn status(&self, run_id: &str) -> RunStatus {
        self.get(run_id).await.status
    }

    pub(super) async fn steps(&self, run_id: &str) -> Vec<Record> {
        let asked = ListSteps {
            workspace: self.ws.clone(),
            run_id: run_id.to_owned(),
            from: 0,
            limit: 1000,
        };
        self.ask(asked).await.0
    }

    pub(super) async fn load(&self, run_id: &str) -> Loaded {
        let (workspace, run_id) = (self.ws.clone(), run_id.to_owned());
        let (children, names) = (Vec::new(), Vec::new());
        self.ask(Load { workspace, run_id, children, names, now: at(0) }).await
    }

    pub(super) async fn record(&self, lease: &Lease, entries: Vec<Entry>) -> Written {
        self.ask(Write { lease: lease.clone(), entries, now: at(3) }).await
    }

    pub(super) fn finish_op(&self, lease: &Lease, value: &str) -> Finish {
        let outcome = Ok(value.to_owned());
        Finish { lease: lease.clone(), entries: Vec::new(), outcome, now: at(5) }
    }

    pub(super) async fn finish(&self, lease: &Lease) -> Written {
        self.ask(self.finish_op(lease, "true")).await
    }

    pub(super) async fn fail(&self, lease: &Lease) -> Written {
        let outcome = Err(Failure::app("no stock"));
        let (lease, entries) = (lease.clone(), Vec::new());
        self.ask(Finish { lease, entries, outcome, now: at(5) }).await
    }

    pub(super) fn suspend_op(&self, lease: &Lease, inbox: i64) -> Suspend {
        Suspend {
            lease: lease.clone(),
            entries: Vec::new(),
            inbox,
            wake_at: at(1000),
            waits: "[\"paid\"]".to_owned(),
            now: at(4),
        }
    }

    pub(super) async fn suspend(&self, lease: &Lease, inbox: i64) -> Suspended {
        self.ask(self.suspend_op(lease, inbox)).await
    }

    pub(super) fn cancel_op(&self, run_id: &str) -> Cancel {
        Cancel {
            workspace: self.ws.clone(),
            run_id: run_id.to_owned(),
            reason: Failure::new(steadfast_core::ErrorClass::Cancelled, "SF-0303", "not wanted"),
            now: at(6),
        }
    }

    pub(super) async fn cancel(&self, run_id: &str) -> Cancelled {
        self.ask(self.cancel_op(run_id)).await
    }

    /// Says that nothing of a stopped run is under way any more.
    pub(super) async fn let_go(&self, lease: &Lease, now: i64) -> Written {
        let (lease, what) = (lease.clone(), Released::Hold);
        self.ask(Release { lease, what, now: at(now) }).await
    }

    pub(super) fn signal_op(&self, run_id: &str, name: &str, signal_id: &str) -> Signal {
        Signal {
            workspace: self.ws.clone(),
            run_id: run_id.to_owned(),
            name: name.to_owned(),
            signal_id: signal_id.to_owned(),
            payload: format!("\"{signal_id}\""),
            now: at(3),
        }
    }

    pub(super) async fn signal(&self, run_id: &str, name: &str, signal_id: &str) -> Signalled {
        self.ask(self.signal_op(run_id, name, signal_id)).await
    }
}
