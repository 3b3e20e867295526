//! Which kinds of replies a run of the test has met: a test that never met a refusal proves
//! nothing about refusals.
//!
//! Invariants: every kind of reply that an operation can give is in [`KINDS`]; a kind that is
//! named by [`kind`] and missing there fails the test.

use std::collections::BTreeMap;

use steadfast_core::CommandStatus;
use steadfast_store::op::{
    Advanced, Cancelled, CommandCancelled, Debounced, Decided, Depended, Forked, LeasesEnded,
    Outbox, OutboxSettled, QueueChange, ResolvedEffect, Resumed, Retained, Sealed, Signalled,
    SinkSet, SlotTaken, Spent, Started, Submitted, Supplied, Suspended, TakenBack, TimedOut,
    TriggerPut, Written,
};
use steadfast_store::{Error, Reply};

/// How often each kind of reply was met.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    met: BTreeMap<&'static str, u64>,
    /// Operations compared.
    pub operations: u64,
}

impl Coverage {
    pub(super) fn note(&mut self, reply: &Result<Reply, Error>) {
        *self.met.entry(kind(reply)).or_default() += 1;
        self.operations += 1;
    }

    /// Adds what another run has met.
    pub fn merge(&mut self, other: &Coverage) {
        for (kind, count) in &other.met {
            *self.met.entry(kind).or_default() += count;
        }
        self.operations += other.operations;
    }

    /// The kinds of replies that were never met.
    pub fn missing(&self) -> Vec<&'static str> {
        KINDS.iter().filter(|kind| !self.met.contains_key(*kind)).copied().collect()
    }

    /// How often each kind was met, by name.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.met.iter().map(|(kind, count)| (*kind, *count))
    }
}

/// Every kind of reply.
pub const KINDS: &[&str] = &[
    "error",
    "start new",
    "start claimed",
    "start existing",
    "start conflict",
    "start duplicate",
    "start no queue",
    "debounce new",
    "debounce replaced",
    "debounce duplicate",
    "debounce conflict",
    "debounce no queue",
    "dequeue some",
    "dequeue none",
    "wake some",
    "wake exhausted",
    "wake overdue",
    "wake none",
    "take over some",
    "take over none",
    "heartbeat kept",
    "heartbeat lost",
    "heartbeat superseded",
    "end no lease",
    "end leases",
    "end leases of one that reports",
    "peers",
    "record done",
    "record fenced",
    "record refused",
    "finish done",
    "finish fenced",
    "finish refused",
    "suspend done",
    "suspend arrived",
    "suspend fenced",
    "suspend refused",
    "release done",
    "release fenced",
    "continue done",
    "continue fenced",
    "cancel done",
    "cancel with children",
    "cancel too late",
    "cancel nobody",
    "time out done",
    "time out not due",
    "time out fenced",
    "resume done",
    "resume not stopped",
    "resume taken back",
    "resume nobody",
    "fork done",
    "fork existing",
    "fork conflict",
    "fork no such step",
    "fork nobody",
    "signal accepted",
    "signal duplicate",
    "signal over",
    "signal nobody",
    "slot taken",
    "slot full",
    "slot fenced",
    "slot no queue",
    "free yes",
    "free no",
    "queue created",
    "queue changed",
    "queue defined",
    "queue redefined",
    "queue kept",
    "purge some",
    "purge none",
    "get some",
    "get none",
    "ends some",
    "ends none",
    "list last",
    "list more",
    "steps",
    "load",
    "value some",
    "value none",
    "stream open",
    "stream closed",
    "queues",
    "inspect",
    "workers",
    "tell",
    "tell again",
    "supply",
    "supply nothing that is waited for",
    "supply nobody",
    "take nothing back",
    "take back too soon",
    "take nobody back",
    "submit queued",
    "submit claimed",
    "submit waiting",
    "submit ended",
    "submit existing",
    "submit conflict",
    "submit no queue",
    "submit no parent",
    "submit run taken",
    "submit held",
    "spend done",
    "spend short",
    "sweep some",
    "sweep none",
    "enter some",
    "enter none",
    "decide counted",
    "decide settled",
    "decide again",
    "decide late",
    "decide own",
    "decide not asked",
    "decide nobody",
    "approvals settled",
    "approvals not settled",
    "resolve done",
    "resolve known",
    "resolve nobody",
    "effects",
    "budgets",
    "calls",
    "approvals",
    "stop command",
    "stopping command",
    "stop command too late",
    "stop no command",
    "settle some",
    "settle none",
    "depend done",
    "depend cycle",
    "depend too late",
    "depend nobody",
    "trigger put",
    "trigger stale",
    "advance done",
    "advance stale",
    "backfill",
    "activity new",
    "activity known",
    "command some",
    "command none",
    "commands last",
    "commands more",
    "events",
    "triggers",
    "due triggers",
    "slots",
    "activities",
    "seal some",
    "seal none",
    "retain some",
    "retain none",
    "retain too young",
    "sink created",
    "sink known",
    "sink set",
    "sink unchanged",
    "sink nobody",
    "outbox with parked",
    "outbox with new",
    "outbox empty",
    "outbox held",
    "outbox disabled",
    "outbox nobody",
    "outbox settled",
    "outbox fenced",
    "redrive some",
    "redrive none",
    "chain",
    "sinks",
    "dead some",
    "dead none",
];

fn kind(reply: &Result<Reply, Error>) -> &'static str {
    let Ok(reply) = reply else { return "error" };
    let either = |yes, some, none| if yes { some } else { none };
    match reply {
        Reply::Start(reply) => started(reply),
        Reply::Debounce(reply) => debounced(reply),
        Reply::Dequeue(claimed) => either(claimed.runs.is_empty(), "dequeue none", "dequeue some"),
        Reply::Wake(claimed) if !claimed.exhausted.is_empty() => "wake exhausted",
        Reply::Wake(claimed) if !claimed.overdue.is_empty() => "wake overdue",
        Reply::Wake(claimed) => either(claimed.runs.is_empty(), "wake none", "wake some"),
        Reply::TakeOver(over) => either(over.runs > 0, "take over some", "take over none"),
        Reply::Heartbeat(beaten) if beaten.superseded_by.is_some() => "heartbeat superseded",
        Reply::EndLeases(LeasesEnded::Done(0)) => "end no lease",
        Reply::EndLeases(LeasesEnded::Done(_)) => "end leases",
        Reply::EndLeases(LeasesEnded::Reports) => "end leases of one that reports",
        Reply::ListPeers(_) => "peers",
        Reply::Heartbeat(beaten) => {
            either(beaten.lost.is_empty(), "heartbeat kept", "heartbeat lost")
        }
        Reply::Record(w) => written(w, ["record done", "record fenced", "record refused"]),
        Reply::Finish(w) => written(w, ["finish done", "finish fenced", "finish refused"]),
        Reply::Suspend(reply) => suspended(reply),
        Reply::Release(w) => written(w, ["release done", "release fenced", "?"]),
        Reply::ContinueAsNew(w) => written(w, ["continue done", "continue fenced", "?"]),
        Reply::Cancel(reply) => cancelled(reply),
        Reply::TimeOut(TimedOut::Done(_)) => "time out done",
        Reply::TimeOut(TimedOut::NotDue(_)) => "time out not due",
        Reply::TimeOut(TimedOut::Fenced) => "time out fenced",
        Reply::Resume(Resumed::Done) => "resume done",
        Reply::Resume(Resumed::NotStopped(_)) => "resume not stopped",
        Reply::Resume(Resumed::TakenBack) => "resume taken back",
        Reply::Resume(Resumed::NotFound) => "resume nobody",
        Reply::Fork(Forked::Done) => "fork done",
        Reply::Fork(Forked::Existing) => "fork existing",
        Reply::Fork(Forked::Conflict(_)) => "fork conflict",
        Reply::Fork(Forked::NoSuchStep(_)) => "fork no such step",
        Reply::Fork(Forked::NotFound) => "fork nobody",
        Reply::Signal(Signalled::Accepted) => "signal accepted",
        Reply::Signal(Signalled::Duplicate) => "signal duplicate",
        Reply::Signal(Signalled::Over) => "signal over",
        Reply::Signal(Signalled::NotFound) => "signal nobody",
        Reply::TakeSlot(SlotTaken::Done) => "slot taken",
        Reply::TakeSlot(SlotTaken::Full { .. }) => "slot full",
        Reply::TakeSlot(SlotTaken::Fenced) => "slot fenced",
        Reply::TakeSlot(SlotTaken::NoQueue) => "slot no queue",
        Reply::FreeSlot(freed) => either(freed.0, "free yes", "free no"),
        Reply::DefineQueue(defined) => match defined.change {
            QueueChange::Created => "queue defined",
            QueueChange::Redefined => "queue redefined",
            QueueChange::Kept => "queue kept",
        },
        Reply::PutQueue(put) => either(put.created, "queue created", "queue changed"),
        Reply::Purge(purged) => either(purged.0 > 0, "purge some", "purge none"),
        Reply::GetRun(found) => either(found.0.is_some(), "get some", "get none"),
        Reply::GetEnds(ends) => either(ends.0.is_empty(), "ends none", "ends some"),
        Reply::ListRuns(page) => either(page.next.is_some(), "list more", "list last"),
        Reply::ListSteps(_) => "steps",
        Reply::Load(_) => "load",
        Reply::GetValue(found) => either(found.0.is_some(), "value some", "value none"),
        Reply::ReadStream(page) => either(page.closed, "stream closed", "stream open"),
        Reply::ListQueues(_) => "queues",
        Reply::InspectQueue(_) => "inspect",
        Reply::ListWorkers(_) => "workers",
        reply => upper(reply),
    }
}

/// Of commands and triggers.
fn upper(reply: &Reply) -> &'static str {
    let either = |yes, some, none| if yes { some } else { none };
    match reply {
        Reply::Submit(reply) => submitted(reply),
        Reply::CancelCommand(CommandCancelled::Done(CommandStatus::Cancelled)) => "stop command",
        Reply::CancelCommand(CommandCancelled::Done(_)) => "stopping command",
        Reply::CancelCommand(CommandCancelled::AlreadyOver(_)) => "stop command too late",
        Reply::CancelCommand(CommandCancelled::NotFound) => "stop no command",
        Reply::SettleCommands(settled) => {
            either(settled.0.is_empty(), "settle none", "settle some")
        }
        Reply::Tell(told) => either(told.0, "tell", "tell again"),
        Reply::Supply(Supplied::Done(_)) => "supply",
        Reply::Supply(Supplied::NotWaiting(_)) => "supply nothing that is waited for",
        Reply::Supply(Supplied::NotFound) => "supply nobody",
        Reply::TakeBack(TakenBack::Begun(_)) => "take back",
        Reply::TakeBack(TakenBack::Nothing) => "take nothing back",
        Reply::TakeBack(TakenBack::NotFailed(_)) => "take back too soon",
        Reply::TakeBack(TakenBack::NotFound) => "take nobody back",
        Reply::Depend(Depended::Done) => "depend done",
        Reply::Depend(Depended::Cycle(_)) => "depend cycle",
        Reply::Depend(Depended::TooLate(_)) => "depend too late",
        Reply::Depend(Depended::NotFound(_)) => "depend nobody",
        Reply::Spend(spent) => either(*spent == Spent::Done, "spend done", "spend short"),
        Reply::SweepMeters(swept) => either(swept.0 > 0, "sweep some", "sweep none"),
        Reply::EnterCalls(entered) => either(entered.0 > 0, "enter some", "enter none"),
        Reply::Decide(decided) => answered(decided),
        Reply::SettleApprovals(settled) => {
            either(settled.0.is_empty(), "approvals not settled", "approvals settled")
        }
        Reply::Resolve(ResolvedEffect::Done) => "resolve done",
        Reply::Resolve(ResolvedEffect::Known(_)) => "resolve known",
        Reply::Resolve(ResolvedEffect::NotFound) => "resolve nobody",
        Reply::ListEffects(_) => "effects",
        Reply::ListBudgets(_) => "budgets",
        Reply::ListInvocations(_) => "calls",
        Reply::ListApprovals(_) => "approvals",
        Reply::PutTrigger(put) => either(*put == TriggerPut::Done, "trigger put", "trigger stale"),
        Reply::Advance(Advanced::Done(_)) => "advance done",
        Reply::Advance(Advanced::Stale) => "advance stale",
        Reply::Backfill(_) => "backfill",
        Reply::LogActivity(logged) => either(logged.0 > 0, "activity new", "activity known"),
        Reply::GetCommand(found) => either(found.0.is_some(), "command some", "command none"),
        Reply::ListCommands(page) => either(page.next.is_some(), "commands more", "commands last"),
        Reply::ListEvents(_) => "events",
        Reply::ListTriggers(_) => "triggers",
        Reply::DueTriggers(_) => "due triggers",
        Reply::ListSlots(_) => "slots",
        Reply::ListActivities(_) => "activities",
        reply => outward(reply),
    }
}

/// Of events that go out.
fn outward(reply: &Reply) -> &'static str {
    let either = |yes, some, none| if yes { some } else { none };
    match reply {
        Reply::Seal(Sealed::Done(0, _)) => "seal none",
        Reply::Seal(Sealed::Done(..)) => "seal some",
        Reply::Seal(Sealed::Busy) => "?",
        Reply::Retain(Retained::Done(0)) => "retain none",
        Reply::Retain(Retained::Done(_)) => "retain some",
        Reply::Retain(Retained::TooYoung) => "retain too young",
        Reply::PutSink(put) => either(put.created, "sink created", "sink known"),
        Reply::SetSink(SinkSet::Done) => "sink set",
        Reply::SetSink(SinkSet::Unchanged) => "sink unchanged",
        Reply::SetSink(SinkSet::NotFound) => "sink nobody",
        Reply::TakeOutbox(Outbox::Taken(batch)) if !batch.due.is_empty() => "outbox with parked",
        Reply::TakeOutbox(Outbox::Taken(batch)) => {
            either(batch.fresh.is_empty(), "outbox empty", "outbox with new")
        }
        Reply::TakeOutbox(Outbox::Held) => "outbox held",
        Reply::TakeOutbox(Outbox::Disabled) => "outbox disabled",
        Reply::TakeOutbox(Outbox::NotFound) => "outbox nobody",
        Reply::SettleOutbox(OutboxSettled::Done) => "outbox settled",
        Reply::SettleOutbox(OutboxSettled::Fenced) => "outbox fenced",
        Reply::Redrive(redriven) => either(redriven.0 > 0, "redrive some", "redrive none"),
        Reply::ReadChain(_) => "chain",
        Reply::ListSinks(_) => "sinks",
        Reply::ListDead(letters) => either(letters.0.is_empty(), "dead none", "dead some"),
        other => unreachable!("invariant: {other:?} is named above"),
    }
}

fn answered(decided: &Decided) -> &'static str {
    match decided {
        Decided::Counted(_) => "decide counted",
        Decided::Settled(_) => "decide settled",
        Decided::Again(_) => "decide again",
        Decided::Late(_) => "decide late",
        Decided::Own => "decide own",
        Decided::NotAsked => "decide not asked",
        Decided::NotFound => "decide nobody",
    }
}

fn submitted(reply: &Submitted) -> &'static str {
    match reply {
        Submitted::New(CommandStatus::WaitingForApproval | CommandStatus::WaitingForInput, _) => {
            "submit held"
        }
        Submitted::New(_, Some(_)) => "submit claimed",
        Submitted::New(CommandStatus::Validated, _) => "submit waiting",
        Submitted::New(CommandStatus::Cancelled | CommandStatus::Failed, _) => "submit ended",
        Submitted::New(..) => "submit queued",
        Submitted::Existing(..) => "submit existing",
        Submitted::Conflict(..) => "submit conflict",
        Submitted::NoQueue => "submit no queue",
        Submitted::NoParent(_) => "submit no parent",
        Submitted::RunTaken => "submit run taken",
    }
}

fn written(reply: &Written, [done, fenced, refused]: [&'static str; 3]) -> &'static str {
    match reply {
        Written::Done => done,
        Written::Fenced => fenced,
        Written::Refused(_) => refused,
    }
}

fn started(reply: &Started) -> &'static str {
    match reply {
        Started::New(None) => "start new",
        Started::New(Some(_)) => "start claimed",
        Started::Existing(_) => "start existing",
        Started::Conflict(_) => "start conflict",
        Started::Duplicate(_) => "start duplicate",
        Started::NoQueue => "start no queue",
    }
}

fn debounced(reply: &Debounced) -> &'static str {
    match reply {
        Debounced::New => "debounce new",
        Debounced::Replaced(_) => "debounce replaced",
        Debounced::Duplicate(_) => "debounce duplicate",
        Debounced::Conflict(_) => "debounce conflict",
        Debounced::NoQueue => "debounce no queue",
    }
}

fn suspended(reply: &Suspended) -> &'static str {
    match reply {
        Suspended::Done => "suspend done",
        Suspended::Arrived => "suspend arrived",
        Suspended::Fenced => "suspend fenced",
        Suspended::Refused(_) => "suspend refused",
    }
}

fn cancelled(reply: &Cancelled) -> &'static str {
    match reply {
        Cancelled::Done(children) if children.is_empty() => "cancel done",
        Cancelled::Done(_) => "cancel with children",
        Cancelled::AlreadyOver(_) => "cancel too late",
        Cancelled::NotFound => "cancel nobody",
    }
}
