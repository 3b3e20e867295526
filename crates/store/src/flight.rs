//! Flights: which operations of a batch may be under way together on one connection, or be carried
//! out in any order.
//!
//! Invariants: operations under way together are in one transaction, so no lock keeps them apart;
//! they may therefore concern different runs only, and count nothing. Each of their statements is
//! atomic, and what one may do to another's run (the end of a child arriving at its parent) is one
//! statement that means the same before, between and after the other's.
//! Deliberately absent: claims, slots and everything with a deduplication id, which read first and
//! act on it; signals and starts that a record carries along, which concern a second run; and what
//! is read of a ledger or a meter that others write.

use std::collections::HashSet;

use crate::op::{EffectChange, Entry, Op, With};

/// Cuts a batch, in its order, into parts whose operations may be under way together.
pub(crate) fn flights<'a>(ops: &'a [&'a Op]) -> Vec<&'a [&'a Op]> {
    let mut flights = Vec::new();
    let (mut begin, mut runs) = (0, HashSet::new());
    for (at, op) in ops.iter().enumerate() {
        let joins = run(op).is_some_and(|run| runs.insert(run));
        if joins {
            continue;
        }
        if begin < at {
            flights.push(&ops[begin..at]);
        }
        runs.clear();
        begin = at;
        match run(op) {
            Some(run) => drop(runs.insert(run)),
            None => {
                flights.push(&ops[at..=at]);
                begin = at + 1;
            }
        }
    }
    if begin < ops.len() {
        flights.push(&ops[begin..]);
    }
    flights
}

/// The only run that an operation concerns, if it concerns one.
fn run(op: &Op) -> Option<(&str, &str)> {
    let own = |entries: &[Entry]| !entries.iter().any(concerns_others);
    let lease = match op {
        Op::Start(op) if op.dedupe_id.is_empty() => return Some((&op.workspace, &op.run_id)),
        Op::Signal(op) => return Some((&op.workspace, &op.run_id)),
        Op::Record(op) if own(&op.entries) => &op.lease,
        Op::Finish(op) if own(&op.entries) => &op.lease,
        Op::Suspend(op) if own(&op.entries) => &op.lease,
        Op::Release(op) => &op.lease,
        _ => return None,
    };
    Some((&lease.workspace, &lease.run_id))
}

/// Whether what comes with a record reads or counts what others do at the same time: a second run,
/// a meter, the effects of a command that has several runs, or those of a key.
fn concerns_others(entry: &Entry) -> bool {
    match &entry.with {
        None | Some(With::Consume(_) | With::Publish { .. } | With::Append { .. }) => false,
        Some(With::Send(_) | With::Spawn(_)) => true,
        Some(With::Govern(what)) => {
            let once = matches!(&what.effect, Some(EffectChange::Begin(new)) if new.once);
            once || what.child || what.health.is_some() || !what.charges.is_empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;

    use super::*;
    use crate::op::{Lease, ListQueues, Release, Released};

    fn release(run_id: &str) -> Op {
        let lease =
            Lease { workspace: "w".into(), run_id: run_id.into(), worker: "me".into(), epoch: 1 };
        Op::Release(Release { lease, what: Released::Run, now: Timestamp::default() })
    }

    #[test]
    fn a_run_is_once_in_a_flight_and_others_fly_alone() {
        let other = Op::ListQueues(ListQueues { workspace: "w".into() });
        let (a, b, c) = (release("a"), release("b"), release("c"));
        let ops = [&a, &b, &a, &c, &other, &other, &b];
        let lengths: Vec<usize> = flights(&ops).iter().map(|flight| flight.len()).collect();
        assert_eq!(lengths, [2, 2, 1, 1, 1]);
        assert!(flights(&[]).is_empty());
        assert_eq!(flights(&[&other]).len(), 1);
    }
}
