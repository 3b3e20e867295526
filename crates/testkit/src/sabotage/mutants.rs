//! The list of ways to be wrong, by what they break.
//!
//! Invariants: a name says what the store does not do, and is used nowhere else.

use steadfast_core::Timestamp;
use steadfast_core::driver::{Kind, RecordState};
use steadfast_store::op::{
    Cancel, Cancelled, Debounced, Entry, Freed, Lease, LeasesEnded, Signalled, SlotTaken, Started,
    Suspended, TakenOver, TimeOut, TimedOut, With, Written,
};
use steadfast_store::{Op, Reply};

use super::{Bent, Memory, Mutant};

const fn passes(_: &Memory, op: Op) -> Bent {
    Bent::Do(op)
}

fn honest(_: &Memory, _: &Op, reply: Reply) -> Reply {
    reply
}

/// A store that is not wrong yet.
const fn none(name: &'static str) -> Mutant {
    Mutant { name, bend: passes, twist: honest, reads_inbox: false, reuses_epochs: false }
}

/// A mutant that changes what is asked.
const fn bends(name: &'static str, bend: fn(&Memory, Op) -> Bent) -> Mutant {
    Mutant { bend, ..none(name) }
}

/// A mutant that changes what is answered.
const fn twists(name: &'static str, twist: fn(&Memory, &Op, Reply) -> Reply) -> Mutant {
    Mutant { twist, ..none(name) }
}

/// Changes one kind of operation in place.
macro_rules! change {
    ($name:literal, $op:ident, |$it:ident| $change:expr) => {
        bends($name, |_, op| match op {
            Op::$op(mut $it) => {
                $change;
                Bent::Do(Op::$op($it))
            }
            other => Bent::Do(other),
        })
    };
}

/// Answers one kind of operation without carrying it out.
macro_rules! say {
    ($name:literal, $op:ident, $reply:expr) => {
        bends($name, |_, op| match op {
            Op::$op(_) => Bent::Say(Reply::$op($reply)),
            other => Bent::Do(other),
        })
    };
}

/// Changes one kind of reply in place.
macro_rules! answer {
    ($name:literal, $op:ident, |$it:ident| $change:expr) => {
        twists($name, |_, _, reply| match reply {
            Reply::$op(mut $it) => {
                $change;
                Reply::$op($it)
            }
            other => other,
        })
    };
}

/// Lets a write pass as the newest owner's.
macro_rules! unfenced {
    ($name:literal, $op:ident) => {
        bends($name, |memory, op| match op {
            Op::$op(mut it) => {
                it.lease = memory.owner(&it.lease);
                Bent::Do(Op::$op(it))
            }
            other => Bent::Do(other),
        })
    };
}

/// Every mutant.
pub const MUTANTS: &[Mutant] = &[
    // Fences.
    unfenced!("record_unfenced", Record),
    unfenced!("finish_unfenced", Finish),
    unfenced!("suspend_unfenced", Suspend),
    unfenced!("release_unfenced", Release),
    unfenced!("time_out_unfenced", TimeOut),
    Mutant { bend: cancels, twist: told_timed_out, ..none("time_out_as_a_cancel") },
    Mutant { reuses_epochs: true, ..none("epoch_not_raised_after_a_crash") },
    twists("claim_after_a_crash_gives_the_old_row", gives_the_old_row),
    answer!("heartbeat_ignores_loss", Heartbeat, |it| it.lost.clear()),
    answer!("successor_not_named", Heartbeat, |it| it.superseded_by = None),
    say!("take_over_takes_nothing", TakeOver, TakenOver { runs: 0, former: Vec::new() }),
    say!("silent_worker_keeps_its_leases", EndLeases, LeasesEnded::Done(0)),
    twists("two_claimers_same_run", claims_again),
    bends("lease_never_expires", |_, op| Bent::Do(leased_until(op, Timestamp::NEVER))),
    bends("lease_expires_at_once", |_, op| Bent::Do(leased_until(op, Timestamp::default()))),
    // Durability.
    say!("ack_before_commit", Record, Written::Done),
    say!("finish_dropped", Finish, Written::Done),
    say!("suspend_dropped", Suspend, Suspended::Done),
    say!("release_dropped", Release, Written::Done),
    say!("start_dropped", Start, Started::New(None)),
    bends("last_record_dropped", |_, op| Bent::Do(each(op, |entries| drop(entries.pop())))),
    // Identity.
    change!("start_key_without_workspace", Start, |it| it.workspace = "any".to_owned()),
    change!("key_case_folded", Start, |it| it.run_id = it.run_id.to_lowercase()),
    twists("payload_mismatch_accepted", |_, _, reply| accepts(reply, "input")),
    twists("workflow_mismatch_accepted", |_, _, reply| accepts(reply, "workflow")),
    change!("dedupe_dropped", Start, |it| it.dedupe_id.clear()),
    say!("debounce_forgotten", Debounce, Debounced::New),
    change!("debounce_without_limit", Debounce, |it| it.max_wait = None),
    change!("version_ignored", Start, |it| it.app_version.clear()),
    // Claims and time.
    change!("claim_limit_ignored", Dequeue, |it| it.limit = 256),
    change!("wake_ups_lost", Suspend, |it| it.wake_at = Timestamp::NEVER),
    change!("wake_too_early", Suspend, |it| it.wake_at = it.now),
    change!("started_too_early", Start, |it| it.ready_at = it.now),
    change!("timeout_ignored", Start, |it| it.timeout = None),
    change!("exhausted_ignored", Start, |it| it.max_attempts = 1_000_000),
    change!("exhausted_too_early", Start, |it| it.max_attempts = 0),
    // Signals.
    say!("signal_dropped", Signal, Signalled::Accepted),
    bends("signal_not_recognised", |memory, op| match op {
        Op::Signal(mut it) => {
            it.signal_id = format!("{}-{}", it.signal_id, memory.next());
            Bent::Do(Op::Signal(it))
        }
        other => Bent::Do(other),
    }),
    bends("signal_consumed_twice", |_, op| {
        Bent::Do(without(op, |w| matches!(w, With::Consume(_))))
    }),
    Mutant { reads_inbox: true, ..none("suspend_ignores_inbox") },
    bends("send_dropped", |_, op| Bent::Do(without(op, |w| matches!(w, With::Send(_))))),
    // Steering.
    say!("time_out_reported_but_not_done", TimeOut, TimedOut::Done(Vec::new())),
    answer!("overdue_not_reported", Wake, |it| it.overdue.clear()),
    say!("cancel_reported_but_not_done", Cancel, Cancelled::Done(Vec::new())),
    answer!("cancel_hides_children", Cancel, |it| {
        if let Cancelled::Done(others) = &mut it {
            others.clear();
        }
    }),
    change!("fork_copies_one_too_many", Fork, |it| it.from_step += 1),
    change!("fork_copies_nothing", Fork, |it| it.from_step = 0),
    // Queues.
    change!("queue_limit_ignored", PutQueue, |it| it.queue.concurrency = None),
    change!("worker_limit_ignored", PutQueue, |it| it.queue.worker_concurrency = None),
    change!("worker_limit_ignored_by_wakes", Wake, |it| it.worker_has.clear()),
    change!("rate_ignored", PutQueue, |it| it.queue.rate = None),
    change!("priority_ignored", PutQueue, |it| it.queue.priorities = false),
    change!("pause_ignored", PutQueue, |it| it.queue.paused = false),
    change!("definition_loses_a_limit", DefineQueue, |it| it.queue.concurrency = None),
    change!("partitions_ignored", PutQueue, |it| it.queue.partitioned = false),
    say!("slot_limit_ignored", TakeSlot, SlotTaken::Done),
    say!("slot_never_freed", FreeSlot, Freed(true)),
    // Records and what belongs to them.
    bends("executing_record_dropped", |_, op| {
        Bent::Do(each(op, |entries| drop_unfinished(entries, Kind::Effect)))
    }),
    bends("retry_record_dropped", |_, op| {
        Bent::Do(each(op, |entries| drop_unfinished(entries, Kind::Step)))
    }),
    bends("stream_item_dropped", |_, op| {
        Bent::Do(without(op, |w| matches!(w, With::Append { .. })))
    }),
    bends("stream_item_doubled", |_, op| Bent::Do(each(op, double_items))),
    bends("publish_dropped", |_, op| Bent::Do(without(op, |w| matches!(w, With::Publish { .. })))),
    bends("spawn_dropped", |_, op| Bent::Do(without(op, |w| matches!(w, With::Spawn(_))))),
    bends("child_started_twice", |_, op| Bent::Do(each(op, double_children))),
    say!("continue_keeps_steps", ContinueAsNew, Written::Done),
    // Reads.
    answer!("load_misses_signals", Load, |it| it.signals.clear()),
    answer!("page_misses_last_step", ListSteps, |it| drop(it.0.pop())),
    change!("page_cut_short", ListSteps, |it| it.limit = it.limit.min(2)),
    answer!("load_misses_children", Load, |it| it.over.clear()),
    answer!("page_reorders_seq", ListSteps, |it| {
        let mut seqs: Vec<_> = it.0.iter().map(|step| step.seq).collect();
        seqs.reverse();
        it.0.iter_mut().zip(seqs).for_each(|(step, seq)| step.seq = seq);
    }),
    answer!("load_hides_inbox", Load, |it| it.inbox = 0),
];

/// A wake-up that finds nothing hands out what was claimed last.
fn claims_again(memory: &Memory, op: &Op, reply: Reply) -> Reply {
    let (Op::Wake(op), Reply::Wake(mut claimed)) = (op, reply.clone()) else {
        return reply;
    };
    if let Some(mut run) = memory.last().filter(|_| claimed.runs.is_empty()) {
        run.worker.clone_from(&op.worker);
        claimed.runs.push(run);
    }
    Reply::Wake(claimed)
}

/// An owner ends its run by an operator's request: nothing asks for its lease, or compares the
/// deadline that it believes in.
fn cancels(_: &Memory, op: Op) -> Bent {
    match op {
        Op::TimeOut(TimeOut { lease: Lease { workspace, run_id, .. }, now }) => {
            let reason = steadfast_core::run::overdue(now);
            Bent::Do(Op::Cancel(Cancel { workspace, run_id, reason, now }))
        }
        other => Bent::Do(other),
    }
}

fn told_timed_out(_: &Memory, op: &Op, reply: Reply) -> Reply {
    match (op, reply) {
        (Op::TimeOut(_), Reply::Cancel(Cancelled::Done(others))) => {
            Reply::TimeOut(TimedOut::Done(others))
        }
        (Op::TimeOut(_), Reply::Cancel(_)) => Reply::TimeOut(TimedOut::Fenced),
        (_, reply) => reply,
    }
}

/// A run that is claimed for the first time again gets the input and the beginning of the claim
/// that was forgotten: an execution that goes on with what it had in memory.
fn gives_the_old_row(memory: &Memory, op: &Op, reply: Reply) -> Reply {
    let (Op::Dequeue(op), Reply::Dequeue(mut claimed)) = (op, reply.clone()) else {
        return reply;
    };
    for run in claimed.runs.iter_mut().filter(|run| run.attempts == 1) {
        if let Some(first) = memory.first(&op.workspace, &run.run_id) {
            (run.input, run.started_at, run.inbox) = (first.input, first.started_at, first.inbox);
        }
    }
    Reply::Dequeue(claimed)
}

fn leased_until(mut op: Op, until: Timestamp) -> Op {
    match &mut op {
        Op::Dequeue(op) => op.lease_until = until,
        Op::Wake(op) => op.lease_until = until,
        Op::Heartbeat(op) => op.lease_until = until,
        Op::Start(op) => {
            if let Some((_, at)) = &mut op.claim {
                *at = until;
            }
        }
        _ => {}
    }
    op
}

fn accepts(reply: Reply, field: &str) -> Reply {
    match reply {
        Reply::Start(Started::Conflict(other)) if other == field => {
            Reply::Start(Started::Existing(steadfast_core::RunStatus::Pending))
        }
        other => other,
    }
}

/// Changes the entries of an owner's write.
fn each(mut op: Op, change: fn(&mut Vec<Entry>)) -> Op {
    match &mut op {
        Op::Record(op) => change(&mut op.entries),
        Op::Finish(op) => change(&mut op.entries),
        Op::Suspend(op) => change(&mut op.entries),
        _ => {}
    }
    op
}

/// Leaves out what belongs to a record, but not the record.
fn without(mut op: Op, gone: fn(&With) -> bool) -> Op {
    let strip = |entries: &mut Vec<Entry>| {
        for entry in entries {
            entry.with = entry.with.take().filter(|with| !gone(with));
        }
    };
    match &mut op {
        Op::Record(op) => strip(&mut op.entries),
        Op::Finish(op) => strip(&mut op.entries),
        Op::Suspend(op) => strip(&mut op.entries),
        _ => {}
    }
    op
}

fn drop_unfinished(entries: &mut Vec<Entry>, kind: Kind) {
    entries.retain(|entry| entry.record.kind != kind || entry.record.state == RecordState::Done);
    for entry in entries.iter_mut().filter(|entry| entry.record.kind == kind) {
        entry.replaces = false;
    }
}

/// A second entry at a place that no code asks for.
fn beside(entry: &Entry) -> Entry {
    let mut second = entry.clone();
    second.record.id += 50_000;
    second
}

fn double_items(entries: &mut Vec<Entry>) {
    let items = entries.iter().filter(|entry| matches!(entry.with, Some(With::Append { .. })));
    let doubled: Vec<_> = items.map(beside).collect();
    entries.extend(doubled);
}

fn double_children(entries: &mut Vec<Entry>) {
    let doubled: Vec<_> = entries
        .iter()
        .filter_map(|entry| {
            let mut second = beside(entry);
            let Some(With::Spawn(child)) = &mut second.with else {
                return None;
            };
            child.run_id.push_str("-again");
            Some(second)
        })
        .collect();
    entries.extend(doubled);
}
