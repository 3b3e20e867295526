//! What was committed, in order, and whether it was allowed: a second opinion on every reply.
//!
//! Invariants: it sits between the faults and the store, so it sees what really reached the store
//! and what was answered; a write is judged by the claims seen before it; the first thing that was
//! not allowed is kept.
//! Deliberately absent: the store's own rules. Only what an owner, a client and a queue were
//! promised is looked at, so a store that lies is found out.

mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use steadfast_core::Timestamp;
use steadfast_core::driver::Record;
use steadfast_store::op::{self, QueueRow};
use steadfast_store::{Error, Op, Reply, Store, StoreExt as _};

use super::site::Ticks;
use crate::faults::Server;
use crate::model::ModelStore;

/// The workspace of all scenarios.
pub const WORKSPACE: &str = "w";

/// Who has a run, as far as replies said.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// The newest epoch.
    pub epoch: i64,
    /// The owner; empty when nobody has it.
    pub worker: String,
    /// End of the lease, or of the wait.
    pub until: Timestamp,
    /// Whether it waits on its queue.
    pub enqueued: bool,
    /// Whether it is suspended.
    pub parked: bool,
    /// Whether it is over.
    pub over: bool,
    /// Claims that were no wake-ups.
    pub attempts: i64,
    /// Recoveries allowed.
    pub max_attempts: i64,
    /// How often it continued as new.
    pub generation: i64,
    /// Who started it.
    pub parent: String,
    /// Whether it began with another run's steps.
    pub forked: bool,
    /// When it has to end, if it has to.
    pub deadline: Option<Timestamp>,
}

/// A claim of a run.
#[derive(Debug, Clone)]
pub struct ClaimSeen {
    /// The run.
    pub run: String,
    /// Its queue.
    pub queue: String,
    /// The new owner.
    pub worker: String,
    /// The new epoch.
    pub epoch: i64,
    /// Its position in the order of all things.
    pub tick: u64,
    /// The time that the claimer gave.
    pub now: Timestamp,
    /// Whether it was taken from a queue, and not woken or recovered.
    pub dequeued: bool,
    /// Whether its owner had lost it, and not put it to rest.
    pub recovered: bool,
    /// What was known of the run before.
    pub before: Held,
    /// When a crash of the store's server undid it, if one did.
    pub forgotten: Option<Timestamp>,
}

/// A record that became final.
#[derive(Debug, Clone)]
pub struct Settled {
    /// Where in the order of all things.
    pub tick: u64,
    /// The record.
    pub record: Record,
}

/// All that is known from replies.
#[derive(Debug, Default)]
pub struct Known {
    /// Runs.
    pub runs: BTreeMap<String, Held>,
    /// Claims, in order.
    pub claims: Vec<ClaimSeen>,
    /// Final records by run, generation and step.
    pub settled: BTreeMap<(String, i64, u64), Settled>,
    /// Signals accepted, by run and id.
    pub accepted: BTreeSet<(String, String)>,
    /// Signals consumed, by run and number.
    pub consumed: BTreeSet<(String, i64)>,
    /// When a run was stopped from outside.
    pub stopped: BTreeMap<String, (u64, Timestamp)>,
    /// Queues.
    pub queues: BTreeMap<String, QueueRow>,
    /// The latest time that anybody gave: requests arrive out of order.
    latest: Timestamp,
    broken: Option<String>,
}

/// A store that keeps the books on another.
pub struct Journal {
    inner: Arc<dyn Store>,
    truth: Arc<ModelStore>,
    ticks: Arc<Ticks>,
    nodes: usize,
    known: Mutex<Known>,
    open: AtomicUsize,
    broken: AtomicBool,
}

impl Journal {
    /// Over a store whose state is `truth`, for so many workers.
    pub fn new(
        inner: Arc<dyn Store>,
        truth: Arc<ModelStore>,
        ticks: Arc<Ticks>,
        nodes: usize,
    ) -> Self {
        Self {
            inner,
            truth,
            ticks,
            nodes,
            known: Mutex::default(),
            open: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }

    /// What is known.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap()
    }

    /// What was not allowed, if anything was.
    pub fn broken(&self) -> Option<String> {
        if !self.broken.load(Ordering::Relaxed) {
            return None;
        }
        self.known().broken.clone()
    }

    /// Runs that are not over.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Asks the model itself, at once.
    pub fn peek<O: op::Operation + Send + 'static>(&self, op: O) -> O::Reply {
        let reply = self.truth.ask(op).now_or_never();
        reply.expect("invariant: the model answers at once").expect("invariant: a read succeeds")
    }

    fn observe(&self, op: &Op, reply: &Result<Reply, Error>) {
        let tick = self.ticks.next();
        let mut known = self.known();
        let judged = match reply {
            Ok(reply) => known.judge(tick, op, reply),
            // Every other error passes, or says that the owner wrote what it may not write.
            Err(Error::Refused(why)) => Err(format!("{} was refused: {why}", op.name())),
            Err(_) => Ok(()),
        };
        let judged = judged.and_then(|()| self.look_at_limits(&mut known, op));
        let judged = judged.and_then(|()| match self.nodes < 2 && ends_from_outside(op) {
            true => Err(format!("{} needs a second node, which may act on it", op.name())),
            false => Ok(()),
        });
        let open = known.runs.values().filter(|run| !run.over).count();
        self.open.store(open, Ordering::Relaxed);
        drop(known);
        if let Err(why) = judged {
            self.fail(why);
        }
    }

    /// Keeps the first thing that was not allowed.
    pub fn fail(&self, why: String) {
        self.known().broken.get_or_insert(why);
        self.broken.store(true, Ordering::Relaxed);
    }

    /// R85: after every commit that may start something, the store itself is counted.
    fn look_at_limits(&self, known: &mut Known, op: &Op) -> Result<(), String> {
        let (queue, now) = match op {
            Op::Dequeue(op) => (&op.queue, op.now),
            Op::TakeSlot(op) => (&op.queue, op.now),
            _ => return Ok(()),
        };
        // A slot that ran out for a later request must not count for one that was under way longer.
        known.latest = known.latest.max(now);
        let Some(limit) = known.queues.get(queue).and_then(|queue| queue.concurrency) else {
            return Ok(());
        };
        let inspect = op::InspectQueue {
            workspace: WORKSPACE.to_owned(),
            queue: queue.clone(),
            partition: String::new(),
            now: known.latest,
        };
        let held = self.peek(inspect).held;
        match held > limit {
            true => Err(format!("queue {queue} holds {held} of {limit}")),
            false => Ok(()),
        }
    }
}

/// Whether somebody other than its owner may end the run, or revive it, because of this: an owner
/// that stood still meanwhile can do harm only where there is another.
fn ends_from_outside(op: &Op) -> bool {
    let is_limited = |start: &op::Start| start.deadline_at.is_some() || start.timeout.is_some();
    match op {
        Op::Cancel(_) | Op::CancelCommand(_) | Op::Resume(_) | Op::TimeOut(_) => true,
        Op::Start(start) => is_limited(start),
        Op::Debounce(debounce) => is_limited(&debounce.start),
        Op::Fork(fork) => fork.timeout.is_some(),
        _ => false,
    }
}

impl Server for Journal {
    fn has_unflushed(&self) -> bool {
        self.truth.has_unflushed()
    }

    fn crash(&self, now: Timestamp) {
        let forgotten = self.truth.crash();
        self.known().forget(&forgotten, now);
    }
}

impl Store for Journal {
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move {
            let reply = self.inner.call(op.clone()).await;
            if !op.is_read() {
                self.observe(&op, &reply);
            }
            reply
        })
    }

    fn clock_offset_us(&self) -> i64 {
        self.inner.clock_offset_us()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        self.inner.changed()
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        self.inner.ended()
    }

    fn announce(&self) {
        self.inner.announce();
    }
}
