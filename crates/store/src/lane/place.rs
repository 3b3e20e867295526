//! By which lane an operation goes.
//!
//! Invariants: as the lanes have them. Of one run, only its start and what its owner writes, each
//! after the answer to the one before, may leave the lane that is the run's.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::LANES;
use crate::op::Op;

/// The lane of an operation. Reads have sessions of their own; here they would merely wait.
pub(super) fn place(op: &Op, joins_queues: bool, is_drained: impl FnOnce() -> bool) -> usize {
    if is_claim(op) {
        return LANES;
    }
    let joins = joins_queues
        && match op {
            Op::Start(op) => op.claim.is_none(),
            Op::Record(_) | Op::Finish(_) | Op::Suspend(_) => is_drained(),
            _ => false,
        };
    let Some(key) = concern(op).filter(|_| !joins) else { return 0 };
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::try_from(hasher.finish() % LANES as u64).unwrap_or(0)
}

pub(super) fn is_claim(op: &Op) -> bool {
    matches!(op, Op::Dequeue(_) | Op::Wake(_))
}

/// The order of claims in a batch: by queue, so that who has several, and somebody else who has the
/// same, lock their rows in one order.
pub(super) fn order(op: &Op) -> Option<(&String, &String)> {
    match op {
        Op::Dequeue(op) => Some((&op.workspace, &op.queue)),
        _ => None,
    }
}

/// What decides on an operation's lane: the run it concerns, else its queue or workspace.
fn concern(op: &Op) -> Option<(&String, &String)> {
    Some(match op {
        Op::Start(op) => (&op.workspace, &op.run_id),
        Op::Debounce(op) => (&op.start.workspace, &op.start.run_id),
        Op::Record(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::Finish(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::Suspend(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::Release(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::ContinueAsNew(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::TakeSlot(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::FreeSlot(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::Cancel(op) => (&op.workspace, &op.run_id),
        Op::Resume(op) => (&op.workspace, &op.run_id),
        Op::Signal(op) => (&op.workspace, &op.run_id),
        Op::Fork(op) => (&op.workspace, &op.run_id),
        Op::Submit(op) => (&op.start.workspace, &op.start.run_id),
        Op::CancelCommand(op) => (&op.workspace, &op.command_id),
        Op::Tell(op) => (&op.workspace, &op.event_id),
        Op::Supply(op) => (&op.workspace, &op.command_id),
        Op::TakeBack(op) => (&op.workspace, &op.command_id),
        Op::Depend(op) => (&op.workspace, &op.command_id),
        Op::SettleCommands(op) => (&op.workspace, &op.workspace),
        Op::SettleApprovals(op) => (&op.workspace, &op.workspace),
        Op::Spend(op) => (&op.workspace, &op.workspace),
        Op::SweepMeters(op) => (&op.workspace, &op.workspace),
        Op::EnterCalls(op) => (&op.lease.workspace, &op.lease.workspace),
        Op::TimeOut(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::Decide(op) => (&op.workspace, &op.approval_id),
        Op::Resolve(op) => (&op.workspace, &op.effect_id),
        Op::PutTrigger(op) => (&op.workspace, &op.trigger.trigger_id),
        Op::Advance(op) => (&op.workspace, &op.trigger_id),
        Op::Backfill(op) => (&op.fire.start.workspace, &op.trigger_id),
        Op::LogActivity(op) => (&op.workspace, &op.run.run_id),
        Op::PutQueue(op) => (&op.workspace, &op.queue.name),
        Op::DefineQueue(op) => (&op.workspace, &op.queue.name),
        Op::TakeOver(op) => (&op.workspace, &op.workspace),
        Op::Heartbeat(op) => (&op.workspace, &op.workspace),
        Op::EndLeases(op) => (&op.workspace, &op.workspace),
        Op::Purge(op) => (&op.workspace, &op.workspace),
        Op::Seal(op) => (&op.workspace, &op.workspace),
        Op::Retain(op) => (&op.workspace, &op.workspace),
        Op::PutSink(op) => (&op.workspace, &op.sink),
        Op::SetSink(op) => (&op.workspace, &op.sink),
        Op::TakeOutbox(op) => (&op.workspace, &op.sink),
        Op::SettleOutbox(op) => (&op.workspace, &op.sink),
        Op::Redrive(op) => (&op.workspace, &op.sink),
        // Claims, and what only reads.
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;

    use super::*;
    use crate::op::{Lease, Record, Release, Released};

    #[test]
    fn owners_share_a_lane_while_a_queue_is_drained_and_others_stay_where_they_are() {
        let lease = |n: usize| Lease {
            workspace: "w".into(),
            run_id: format!("r{n}"),
            worker: "me".into(),
            epoch: 1,
        };
        let now = Timestamp::default();
        let record = |n| Op::Record(Record { lease: lease(n), entries: Vec::new(), now });
        let release = |n| Op::Release(Release { lease: lease(n), what: Released::Run, now });
        let on = |op: &Op, joins, drained| place(op, joins, || drained);
        let lanes: Vec<usize> = (0..50).map(|n| on(&record(n), true, false)).collect();
        assert!((0..LANES).all(|lane| lanes.contains(&lane)), "{lanes:?}");
        for (n, lane) in lanes.into_iter().enumerate() {
            assert_eq!(on(&record(n), true, true), 0);
            assert_eq!(on(&record(n), false, true), lane);
            assert_eq!(on(&release(n), true, true), lane);
        }
    }
}
