//! What a run's owner writes, and what others send it.

use steadfast_core::Timestamp;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use steadfast_core::caught::Code;
use steadfast_core::driver::{Outcome, Record as StepRecord};

use super::govern::Govern;
use super::run::{Lease, Start};

/// A record, and what happens together with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The record.
    pub record: StepRecord,
    /// Whether an unfinished record of the same step exists already.
    pub replaces: bool,
    /// What is written in the same commit.
    pub with: Option<With>,
}

/// What is written together with a record.
#[derive(Debug, Clone, PartialEq)]
pub enum With {
    /// The signal of this number is consumed.
    Consume(i64),
    /// A value is published.
    Publish {
        /// The key.
        key: String,
        /// The value as JSON.
        value: String,
    },
    /// An item is appended to a stream; `None` closes it.
    Append {
        /// The stream.
        stream: String,
        /// The item as JSON.
        item: Option<String>,
    },
    /// A signal is sent. Its id is derived from the record, so it is sent once.
    Send(Signal),
    /// A child is started.
    Spawn(Box<Start>),
    /// The ledger, events and questions.
    Govern(Box<Govern>),
}

/// Writes records, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The right to.
    pub lease: Lease,
    /// The records.
    pub entries: Vec<Entry>,
    /// The time.
    pub now: Timestamp,
}

impl Record {
    /// The caller's own work that the last record is of, as errors name it.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) fn work(&self) -> Code<'_> {
        Code("transaction", self.entries.last().map_or("", |entry| &entry.record.name))
    }
}

/// Writes the last records and ends the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The right to.
    pub lease: Lease,
    /// The last records.
    pub entries: Vec<Entry>,
    /// How it ended.
    pub outcome: Outcome,
    /// The time.
    pub now: Timestamp,
}

/// Gives the run up until something happens, unless something has.
#[derive(Debug, Clone, PartialEq)]
pub struct Suspend {
    /// The right to.
    pub lease: Lease,
    /// The last records.
    pub entries: Vec<Entry>,
    /// What the owner has seen of the inbox: if more arrived, the run is not suspended.
    pub inbox: i64,
    /// When it wakes by itself.
    pub wake_at: Timestamp,
    /// What it waits for, as JSON.
    pub waits: String,
    /// The time.
    pub now: Timestamp,
}

/// Gives the run back untouched, or lets go of one that was stopped.
#[derive(Debug, Clone, PartialEq)]
pub struct Release {
    /// The right to.
    pub lease: Lease,
    /// What is given back.
    pub what: Released,
    /// The time.
    pub now: Timestamp,
}

/// What an owner gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The run: another worker may go on with it at once.
    Run,
    /// The hold on a run that was stopped under the lease: no attempt of its owner is under way any
    /// more. Once resumed, it may begin at once, and not only when the lease would have run out.
    Hold,
}

/// Starts the run over. The epoch rises by one with the generation, and so does the lease's.
#[derive(Debug, Clone, PartialEq)]
pub struct ContinueAsNew {
    /// The right to.
    pub lease: Lease,
    /// The new input as JSON.
    pub input: String,
    /// The generation that ends with this: a repeated request is recognised by it.
    pub generation: i64,
    /// The time.
    pub now: Timestamp,
}

/// What became of an owner's write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is durable.
    Done,
    /// The lease is void: another worker has claimed the run, it was cancelled or removed, or its
    /// deadline has passed. Nothing was written.
    Fenced,
    /// A record cannot be written as asked, such as a child whose id is taken. Nothing was written.
    Refused(String),
}

/// What became of a suspension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suspended {
    /// The run is parked and durable; the lease is gone.
    Done,
    /// The records are durable, but something arrived: look again. The lease stays.
    Arrived,
    /// The lease is void. Nothing was written.
    Fenced,
    /// As for [`Written::Refused`].
    Refused(String),
}

/// A signal for a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Signal {
    /// The workspace.
    pub workspace: String,
    /// The receiver.
    pub run_id: String,
    /// The name.
    pub name: String,
    /// The id: a second signal of the same id is the same signal.
    pub signal_id: String,
    /// The payload as JSON.
    pub payload: String,
    /// The time.
    pub now: Timestamp,
}

/// What became of a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signalled {
    /// It is durable and will be consumed by the run's next wait of that name.
    Accepted,
    /// It was accepted before.
    Duplicate,
    /// The run is over.
    Over,
    /// No such run.
    NotFound,
}
