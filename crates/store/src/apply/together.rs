//! Many simple operations of different runs, as a few statements for all of them.
//!
//! Invariants: what comes of an operation is what it would have come to alone. What is not simple
//! (a lost lease, a taken id, a record with companions) is left open, untouched, for the
//! operation's own function. The runs are all different, so the order does not matter, but for
//! records and what closes their runs. One worker's operations are taken; a process has one.
//!
//! Two ways, since the databases differ in what a statement can take and tell: `fenced` for
//! Postgres, `locked` for MySQL and MariaDB.

#[cfg(feature = "postgres")]
mod fenced;
#[cfg(feature = "mysql")]
pub(crate) mod locked;

#[cfg(feature = "postgres")]
mod single;

#[cfg(feature = "postgres")]
pub(crate) use fenced::together;
#[cfg(feature = "postgres")]
pub(crate) use single::Single;

use steadfast_core::Timestamp;

use super::start::{self, Place};
use crate::error::Error;
use crate::gate::Tx;
use crate::op::{Entry, Lease, Op, Reply, Start, Started};

/// What came of operations, by their places in the batch.
type Done = Vec<(usize, Reply)>;

/// The simple operations of a batch, with their places in it.
struct Crowd<'a> {
    ws: &'a str,
    worker: &'a str,
    starts: Vec<(usize, &'a Start)>,
    /// What an owner writes, by run: statements of one sort lock in this order, so that those who
    /// write at the same time seldom wait in a circle.
    owned: Vec<(usize, &'a Op)>,
}

impl<'a> Crowd<'a> {
    /// Those that are simple, of one workspace and worker; `None` if none is.
    fn of(ops: &[&'a Op]) -> Option<Self> {
        let ws = ops.iter().find_map(|op| workspace(op))?;
        let (mut starts, mut owned) = (Vec::new(), Vec::new());
        for (place, op) in ops.iter().enumerate().filter(|(_, op)| workspace(op) == Some(ws)) {
            match op {
                Op::Start(op) => starts.push((place, op)),
                op => owned.push((place, *op)),
            }
        }
        let worker = owned.iter().find_map(|(_, op)| lease(op)).map_or("", |(of, _)| &of.worker);
        owned.retain(|(_, op)| lease(op).is_some_and(|(lease, _)| lease.worker == worker));
        owned.sort_unstable_by_key(|(_, op)| lease(op).map(|(lease, _)| &lease.run_id));
        Some(Self { ws, worker, starts, owned })
    }
}

/// The workspace of an operation that is simple.
fn workspace(op: &Op) -> Option<&str> {
    let plain = |entries: &[Entry]| entries.iter().all(|e| e.with.is_none() && !e.replaces);
    match op {
        Op::Start(op) => op.dedupe_id.is_empty().then_some(&op.workspace),
        // It writes nothing, and so would not be fenced.
        Op::Record(op) if op.entries.is_empty() => None,
        op => lease(op).filter(|(_, entries)| plain(entries)).map(|(lease, _)| &*lease.workspace),
    }
}

/// The lease of an owner's write, and its records.
fn lease(op: &Op) -> Option<(&Lease, &[Entry])> {
    match op {
        Op::Record(op) => Some((&op.lease, &op.entries)),
        Op::Finish(op) => Some((&op.lease, &op.entries)),
        Op::Suspend(op) => Some((&op.lease, &op.entries)),
        _ => None,
    }
}

/// The latest time of owners' writes: a fence that compares one deadline with it refuses at most a
/// write that is a moment early, which is then decided alone.
fn latest(owned: &[(usize, &Op)]) -> Timestamp {
    let time = |op: &Op| match op {
        Op::Record(op) => Some(op.now),
        Op::Finish(op) => Some(op.now),
        Op::Suspend(op) => Some(op.now),
        _ => None,
    };
    owned.iter().filter_map(|(_, op)| time(op)).max().unwrap_or_default()
}

/// Starts with where on their queues they go, and the replies to those that have none.
async fn placed<'a>(
    tx: &mut impl Tx,
    starts: &[(usize, &'a Start)],
) -> Result<(Done, Vec<(usize, &'a Start, Place)>), Error> {
    let (mut done, mut placed) = (Done::new(), Vec::new());
    for (at, op) in starts {
        match start::place(tx, op).await? {
            Some(on_queue) => placed.push((*at, *op, on_queue)),
            None => done.push((*at, Reply::Start(Started::NoQueue))),
        }
    }
    Ok((done, placed))
}

/// The replies by their places; what is not among them was left open.
fn in_place(count: usize, done: impl IntoIterator<Item = (usize, Reply)>) -> Vec<Option<Reply>> {
    let mut replies = vec![None; count];
    for (place, reply) in done {
        replies[place] = Some(reply);
    }
    replies
}
