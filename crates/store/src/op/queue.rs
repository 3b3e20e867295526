//! Queues, their slots, and the workers that serve them.

use std::time::Duration;

use steadfast_core::{Timestamp, limits};

use super::run::Lease;

/// A queue's limits. Without any, a queue only orders.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueRow {
    /// The name.
    pub name: String,
    /// Most PENDING runs and held slots over all workers (per partition, if partitioned).
    pub concurrency: Option<i64>,
    /// Most runs one worker may have (per partition, if partitioned).
    pub worker_concurrency: Option<i64>,
    /// Most starts in any period (per partition, if partitioned).
    pub rate: Option<(i64, Duration)>,
    /// Whether priorities count.
    pub priorities: bool,
    /// Whether limits and order apply per partition key.
    pub partitioned: bool,
    /// Whether new starts are held back.
    pub paused: bool,
}

impl QueueRow {
    /// Where a run of this priority stands; lower goes first. Background work stands behind all
    /// others, also where priorities do not count.
    pub fn rank(&self, priority: i64) -> i64 {
        match self.priorities {
            true => priority,
            false => i64::from(priority >= limits::BACKGROUND_PRIORITY),
        }
    }
}

/// Creates or changes a queue, for an operator. What code defines stays on record beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct PutQueue {
    /// The workspace.
    pub workspace: String,
    /// The queue.
    pub queue: QueueRow,
    /// The time.
    pub now: Timestamp,
}

/// The queue is as asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePut {
    /// Whether it is new.
    pub created: bool,
}

/// Creates a queue as code defines it. Of a queue that is there already, only what differs from
/// the last such definition is changed; without one, what differs from a queue without limits. All
/// else stays as an operator left it.
#[derive(Debug, Clone, PartialEq)]
pub struct DefineQueue {
    /// The workspace.
    pub workspace: String,
    /// The definition.
    pub queue: QueueRow,
    /// The time.
    pub now: Timestamp,
}

/// What became of a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueDefined {
    /// What was done.
    pub change: QueueChange,
    /// The queue as it holds now.
    pub queue: QueueRow,
}

/// What a definition did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueChange {
    /// The queue is new.
    Created,
    /// The definition is another one than before; what differs was applied.
    Redefined,
    /// The definition is the one that was applied last. Nothing was changed.
    Kept,
}

/// Asks for every queue.
#[derive(Debug, Clone, PartialEq)]
pub struct ListQueues {
    /// The workspace.
    pub workspace: String,
}

/// Every queue, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queues(pub Vec<QueueRow>);

/// Takes a slot for a step, if the queue has one free.
#[derive(Debug, Clone, PartialEq)]
pub struct TakeSlot {
    /// The run's lease: only an owner takes slots.
    pub lease: Lease,
    /// The step.
    pub step: i64,
    /// The queue.
    pub queue: String,
    /// The partition, empty for none.
    pub partition: String,
    /// Until when, if not renewed.
    pub lease_until: Timestamp,
    /// The time.
    pub now: Timestamp,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotTaken {
    /// The slot is held.
    Done,
    /// None is free; perhaps then.
    Full {
        /// When a limit eases by itself, if that is known.
        until: Option<Timestamp>,
    },
    /// The run's lease is void.
    Fenced,
    /// No such queue.
    NoQueue,
}

/// Gives a slot back.
#[derive(Debug, Clone, PartialEq)]
pub struct FreeSlot {
    /// The run's lease.
    pub lease: Lease,
    /// The step.
    pub step: i64,
}

/// Whether there was a slot to give back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freed(pub bool);

/// Extends leases and slots of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    /// The workspace.
    pub workspace: String,
    /// The worker.
    pub worker: String,
    /// Its application version.
    pub app_version: String,
    /// The workflows that it has.
    pub workflows: Vec<String>,
    /// How long it leases runs.
    pub lease: Duration,
    /// The leases it holds: run and epoch.
    pub leases: Vec<(String, i64)>,
    /// The new end of the leases.
    pub lease_until: Timestamp,
    /// The time.
    pub now: Timestamp,
}

/// What the worker learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beaten {
    /// Runs it no longer owns.
    pub lost: Vec<String>,
    /// The incarnation that has taken over the worker's name, if one has. Then nothing was
    /// extended, and all that the worker had is due for others.
    pub superseded_by: Option<String>,
}

/// Asks when other workers reported last, a page at a time. Workers whose leases were ended by
/// [`EndLeases`] are left out until they report again.
#[derive(Debug, Clone, PartialEq)]
pub struct ListPeers {
    /// The workspace.
    pub workspace: String,
    /// The worker that asks.
    pub worker: String,
    /// The worker after which the page begins; empty for the first.
    pub after: String,
}

/// Another worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub worker: String,
    /// When it reported last, by its own clock.
    pub seen_at: Timestamp,
    /// How long it leases runs.
    pub lease: Duration,
}

/// A page of workers by id: at most [`limits::PEERS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peers(pub Vec<Peer>);

/// Ends the leases of a worker that has not reported for the length of its lease, whatever its
/// clock had them end at: its runs are due, and its slots and sinks are free.
#[derive(Debug, Clone, PartialEq)]
pub struct EndLeases {
    /// The workspace.
    pub workspace: String,
    /// The worker that is silent.
    pub worker: String,
    /// When it reported last. If it has reported since, nothing is ended.
    pub seen_at: Timestamp,
    /// The time.
    pub now: Timestamp,
}

/// What was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeasesEnded {
    /// So many leases would have lasted longer.
    Done(u64),
    /// The worker has reported meanwhile, or is not known.
    Reports,
}

/// Asks how full a queue is.
#[derive(Debug, Clone, PartialEq)]
pub struct InspectQueue {
    /// The workspace.
    pub workspace: String,
    /// The queue.
    pub queue: String,
    /// The partition, empty for none.
    pub partition: String,
    /// The time.
    pub now: Timestamp,
}

/// A holder of a slot: a PENDING run, or a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The run.
    pub run_id: String,
    /// The step, if it is a step's slot; -1 for the run itself.
    pub step: i64,
    /// The worker; empty while suspended.
    pub worker: String,
    /// Until when.
    pub until: Timestamp,
}

/// How full a queue is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueReport {
    /// The queue's limits, if it exists.
    pub queue: Option<QueueRow>,
    /// As code last defined it; `None` if no code has.
    pub defined: Option<QueueRow>,
    /// Who holds slots (the first hundred).
    pub holders: Vec<Holder>,
    /// How many slots are held.
    pub held: i64,
    /// Starts in the current period.
    pub started: i64,
    /// When the oldest of those leaves the period.
    pub eases_at: Option<Timestamp>,
    /// Runs that wait on the queue.
    pub waiting: i64,
}
