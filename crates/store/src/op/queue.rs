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

/// Creates or changes a queue.
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
