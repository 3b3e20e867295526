//! The operations, written once over the gate.
//!
//! Invariants: each function is the body of one transaction; it may be run again from the start
//! after a failure; it writes nothing unless its answer says so. Deliberately absent: BEGIN and
//! COMMIT, which belong to the backends, and any choice of database.

mod approval;
mod claim;
mod command;
mod debounce;
mod define;
mod dependency;
mod effect;
mod event;
mod follow;
mod govern;
mod input;
mod meter;
mod outbox;
mod own;
mod publish;
mod queue;
mod read;
mod rows;
mod saga;
mod settle;
mod signal;
mod start;
mod steer;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod together;
mod trigger;
mod worker;

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use own::{Due, due};
#[cfg(all(test, feature = "sqlite"))]
pub(crate) use read::CHILDREN_OF;
pub(crate) use start::start;
#[cfg(feature = "mysql")]
pub(crate) use together::locked;
#[cfg(feature = "postgres")]
pub(crate) use together::{Single, together};

use crate::error::Error;
use crate::gate::Tx;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::op::Written;
use crate::op::{Op, Reply};

/// Carries out one operation inside an open transaction.
pub(crate) async fn apply(tx: &mut impl Tx, op: &Op) -> Result<Reply, Error> {
    Ok(match op {
        Op::Start(op) => Reply::Start(start::start(tx, op).await?),
        Op::Debounce(op) => Reply::Debounce(debounce::debounce(tx, op).await?),
        Op::Dequeue(op) => Reply::Dequeue(claim::dequeue(tx, op).await?),
        Op::Wake(op) => Reply::Wake(claim::wake(tx, op).await?),
        Op::TakeOver(op) => Reply::TakeOver(worker::take_over(tx, op).await?),
        Op::Heartbeat(op) => Reply::Heartbeat(worker::heartbeat(tx, op).await?),
        Op::EndLeases(op) => Reply::EndLeases(worker::end_leases(tx, op).await?),
        Op::Record(op) => Reply::Record(own::record(tx, op).await?),
        Op::Finish(op) => Reply::Finish(own::finish(tx, op).await?),
        Op::Suspend(op) => Reply::Suspend(own::suspend(tx, op).await?),
        Op::Release(op) => Reply::Release(own::release(tx, op).await?),
        Op::ContinueAsNew(op) => Reply::ContinueAsNew(own::continue_as_new(tx, op).await?),
        Op::Cancel(op) => Reply::Cancel(steer::cancel(tx, op).await?),
        Op::TimeOut(op) => Reply::TimeOut(own::time_out(tx, op).await?),
        Op::Resume(op) => Reply::Resume(steer::resume(tx, op).await?),
        Op::Fork(op) => Reply::Fork(steer::fork(tx, op).await?),
        Op::Signal(op) => Reply::Signal(signal::signal(tx, op).await?),
        Op::TakeSlot(op) => Reply::TakeSlot(queue::take_slot(tx, op).await?),
        Op::FreeSlot(op) => Reply::FreeSlot(queue::free_slot(tx, op).await?),
        Op::PutQueue(op) => Reply::PutQueue(define::put(tx, op).await?),
        Op::DefineQueue(op) => Reply::DefineQueue(define::define(tx, op).await?),
        Op::Purge(op) => Reply::Purge(steer::purge(tx, op).await?),
        Op::Submit(op) => Reply::Submit(command::submit(tx, op).await?),
        Op::CancelCommand(op) => Reply::CancelCommand(command::cancel(tx, op).await?),
        Op::SettleCommands(op) => Reply::SettleCommands(settle::settle(tx, op).await?),
        Op::Tell(op) => Reply::Tell(event::tell(tx, op).await?),
        Op::Supply(op) => Reply::Supply(input::supply(tx, op).await?),
        Op::TakeBack(op) => Reply::TakeBack(saga::again(tx, op).await?),
        Op::Depend(op) => Reply::Depend(dependency::depend(tx, op).await?),
        Op::Spend(op) => Reply::Spend(meter::spend(tx, op).await?),
        Op::SweepMeters(op) => Reply::SweepMeters(meter::sweep(tx, op).await?),
        Op::EnterCalls(op) => Reply::EnterCalls(effect::enter_calls(tx, op).await?),
        Op::Decide(op) => Reply::Decide(approval::decide(tx, op).await?),
        Op::SettleApprovals(op) => Reply::SettleApprovals(approval::settle(tx, op).await?),
        Op::Resolve(op) => Reply::Resolve(effect::resolve(tx, op).await?),
        Op::PutTrigger(op) => Reply::PutTrigger(trigger::put(tx, op).await?),
        Op::Advance(op) => Reply::Advance(trigger::advance(tx, op).await?),
        Op::Backfill(op) => Reply::Backfill(trigger::backfill(tx, op).await?),
        Op::LogActivity(op) => Reply::LogActivity(trigger::log_activity(tx, op).await?),
        Op::Seal(op) => Reply::Seal(publish::seal(tx, op).await?),
        Op::Retain(op) => Reply::Retain(publish::retain(tx, op).await?),
        Op::PutSink(op) => Reply::PutSink(outbox::put(tx, op).await?),
        Op::SetSink(op) => Reply::SetSink(outbox::set(tx, op).await?),
        Op::TakeOutbox(op) => Reply::TakeOutbox(outbox::take(tx, op).await?),
        Op::SettleOutbox(op) => Reply::SettleOutbox(outbox::settle(tx, op).await?),
        Op::Redrive(op) => Reply::Redrive(outbox::redrive(tx, op).await?),
        reads => return look(tx, reads).await,
    })
}

/// What only looks.
async fn look(tx: &mut impl Tx, op: &Op) -> Result<Reply, Error> {
    Ok(match op {
        Op::ListEffects(op) => Reply::ListEffects(effect::list(tx, op).await?),
        Op::ListBudgets(op) => Reply::ListBudgets(meter::budgets(tx, op).await?),
        Op::ListInvocations(op) => Reply::ListInvocations(effect::invocations(tx, op).await?),
        Op::ListApprovals(op) => Reply::ListApprovals(approval::list(tx, op).await?),
        Op::ReadChain(op) => Reply::ReadChain(publish::read_chain(tx, op).await?),
        Op::ListSinks(op) => Reply::ListSinks(outbox::list(tx, op).await?),
        Op::ListDead(op) => Reply::ListDead(outbox::dead(tx, op).await?),
        Op::GetCommand(op) => Reply::GetCommand(read::get_command(tx, op).await?),
        Op::ListCommands(op) => Reply::ListCommands(read::list_commands(tx, op).await?),
        Op::ListEvents(op) => Reply::ListEvents(event::list(tx, op).await?),
        Op::ListTriggers(op) => Reply::ListTriggers(trigger::list(tx, op).await?),
        Op::DueTriggers(op) => Reply::DueTriggers(trigger::due(tx, op).await?),
        Op::ListSlots(op) => Reply::ListSlots(trigger::slots(tx, op).await?),
        Op::ListActivities(op) => Reply::ListActivities(trigger::activities(tx, op).await?),
        Op::GetRun(op) => Reply::GetRun(read::get_run(tx, op).await?),
        Op::GetEnds(op) => Reply::GetEnds(read::get_ends(tx, op).await?),
        Op::ListRuns(op) => Reply::ListRuns(read::list_runs(tx, op).await?),
        Op::ListSteps(op) => Reply::ListSteps(read::list_steps(tx, op).await?),
        Op::Load(op) => Reply::Load(read::load(tx, op).await?),
        Op::GetValue(op) => Reply::GetValue(read::get_value(tx, op).await?),
        Op::ReadStream(op) => Reply::ReadStream(read::read_stream(tx, op).await?),
        Op::ListQueues(op) => Reply::ListQueues(queue::list(tx, op).await?),
        Op::InspectQueue(op) => Reply::InspectQueue(queue::inspect(tx, op).await?),
        Op::ListWorkers(op) => Reply::ListWorkers(worker::list(tx, op).await?),
        Op::ListPeers(op) => Reply::ListPeers(worker::peers(tx, op).await?),
        writes => unreachable!("invariant: {} is carried out above", writes.name()),
    })
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
/// Carries an operation out as one statement, which is its own commit, if there is one for it and
/// it finds what it expects. Otherwise nothing was written.
pub(crate) async fn at_once(tx: &mut impl Tx, op: &Op) -> Result<Option<Reply>, Error> {
    Ok(match op {
        Op::Record(op) => own::record_held(tx, op).await?.then_some(Reply::Record(Written::Done)),
        Op::Start(op) => start::at_once(tx, op).await?.map(Reply::Start),
        Op::Wake(op) => claim::nothing_to_wake(tx, op).await?.map(Reply::Wake),
        _ => None,
    })
}

#[cfg(feature = "postgres")]
/// The same for the end of a run, and for claims from a queue.
pub(crate) async fn move_at_once(tx: &mut impl Tx, op: &Op) -> Result<Option<Reply>, Error> {
    Ok(match op {
        Op::Finish(op) => own::finish_held(tx, op).await?.then_some(Reply::Finish(Written::Done)),
        Op::Dequeue(op) => claim::dequeue_at_once(tx, op).await?.map(Reply::Dequeue),
        _ => None,
    })
}

/// Whether a batch must not carry on after this reply as if the operation had succeeded: the
/// operation's own writes are taken back, its batch-mates' stay.
pub(crate) fn takes_back(reply: &Reply) -> bool {
    use crate::op::{Debounced, Forked, Suspended, Written};
    matches!(
        reply,
        Reply::Record(Written::Refused(_) | Written::Fenced)
            | Reply::Finish(Written::Refused(_) | Written::Fenced)
            | Reply::Suspend(Suspended::Refused(_) | Suspended::Fenced)
            | Reply::Fork(Forked::NoSuchStep(_))
            | Reply::Debounce(
                Debounced::Conflict(_) | Debounced::Duplicate(_) | Debounced::NoQueue
            )
    )
}
