//! The operations: what the store can be asked, as values.
//!
//! Invariants: every request carries its workspace and `now`; what an owner writes carries a
//! [`Lease`] in its type (see [`ByOwner`]); answers that are not failures (an existing run, a lost
//! lease, a full queue) are replies, not errors.
//! Deliberately absent: anything that needs two operations to be safe.

mod approval;
mod check;
mod command;
mod govern;
mod meter;
mod publish;
mod queue;
mod read;
mod right;
mod run;
mod trigger;
mod write;

use std::sync::Arc;

use futures::future::BoxFuture;
use steadfast_core::driver::Outcome;

pub use approval::*;
pub use command::*;
pub use govern::*;
pub use meter::*;
pub use publish::*;
pub use queue::*;
pub use read::*;
pub use right::*;
pub use run::*;
pub use trigger::*;
pub use write::*;

use crate::error::Error;
use crate::tally::Tally;
use right::{by_owner, right};

/// A store: one atomic operation in, its reply out.
pub trait Store: Send + Sync + 'static {
    /// Carries out one operation.
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>>;

    /// What to add to this machine's clock to get the store's, in microseconds.
    fn clock_offset_us(&self) -> i64 {
        0
    }

    /// How many commits and statements this store has cost so far; zero where nobody counts.
    fn tally(&self) -> Tally {
        Tally::default()
    }

    /// Hints to other processes that something may have become ready, where the store cannot know
    /// it by itself: the end of a run frees a place only if it came by a queue with limits.
    fn announce(&self) {}

    /// A hint that a run ended elsewhere: resolves when a notification arrives, or never.
    fn ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// A hint that something became ready elsewhere: resolves when a notification arrives, or
    /// never.
    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Runs the caller's own work on the database and writes the records in the same commit; the
    /// last record gets the work's outcome. If the work fails, its writes are taken back and the
    /// error is recorded. Which types of work a store takes is its own to say; a model takes none.
    fn transact(
        &self,
        _records: Record,
        _work: Box<dyn std::any::Any + Send + Sync>,
    ) -> BoxFuture<'_, Result<(Written, Outcome), Error>> {
        let why = "this store runs no transactions of the caller's".to_owned();
        Box::pin(std::future::ready(Err(Error::Refused(why))))
    }
}

/// One request type and its reply type.
pub trait Operation: Sized {
    /// What comes back.
    type Reply;
    /// As one of the operations.
    fn into_op(self) -> Op;
    #[doc(hidden)]
    fn from_reply(reply: Reply) -> Self::Reply;
}

/// Typed calls on any store.
pub trait StoreExt: Store {
    /// Carries out one operation and gives its own reply type.
    fn ask<O: Operation + Send + 'static>(
        &self,
        op: O,
    ) -> impl Future<Output = Result<O::Reply, Error>> + Send {
        let call = self.call(op.into_op());
        async move { Ok(O::from_reply(call.await?)) }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        (**self).call(op)
    }
    fn clock_offset_us(&self) -> i64 {
        (**self).clock_offset_us()
    }
    fn tally(&self) -> Tally {
        (**self).tally()
    }
    fn announce(&self) {
        (**self).announce();
    }
    fn ended(&self) -> BoxFuture<'_, ()> {
        (**self).ended()
    }
    fn changed(&self) -> BoxFuture<'_, ()> {
        (**self).changed()
    }
    fn transact(
        &self,
        records: Record,
        work: Box<dyn std::any::Any + Send + Sync>,
    ) -> BoxFuture<'_, Result<(Written, Outcome), Error>> {
        (**self).transact(records, work)
    }
}

macro_rules! operations {
    ($( $(#[$doc:meta])* $name:ident -> $reply:ident, $right:ident; )+) => {
        /// Every operation, as data: what a simulator intercepts and a differential test compares.
        #[derive(Debug, Clone)]
        pub enum Op { $( $(#[$doc])* $name($name), )+ }

        /// The reply to the operation of the same name.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Reply { $( $(#[$doc])* $name($reply), )+ }

        impl Op {
            /// The operation's name, for traces and fault plans.
            pub fn name(&self) -> &'static str {
                match self { $( Op::$name(_) => stringify!($name), )+ }
            }

            /// Every operation's name.
            pub const NAMES: &'static [&'static str] = &[ $( stringify!($name), )+ ];

            /// Every operation's name, with whose right it asks for: `Read`, `Owner`, `Worker` or
            /// `Caller`.
            pub const RIGHTS: &'static [(&'static str, &'static str)] =
                &[ $( (stringify!($name), stringify!($right)), )+ ];

            /// What the operation shows for its right to be carried out.
            pub fn right(&self) -> Right<'_> {
                match self { $( Op::$name(op) => right!($right, op), )+ }
            }

            /// The name of every operation that writes.
            pub fn writes() -> impl Iterator<Item = &'static str> {
                Op::RIGHTS.iter().filter(|(_, right)| *right != "Read").map(|(name, _)| *name)
            }

            /// Whether the operation only reads.
            pub fn is_read(&self) -> bool {
                matches!(self.right(), Right::Read)
            }
        }

        $(
            impl Operation for $name {
                type Reply = $reply;
                fn into_op(self) -> Op { Op::$name(self) }
                fn from_reply(reply: Reply) -> $reply {
                    match reply {
                        Reply::$name(reply) => reply,
                        other => unreachable!(
                            "invariant: {other:?} does not answer {}",
                            stringify!($name)
                        ),
                    }
                }
            }

            by_owner!($right, $name);
        )+
    };
}

operations! {
    /// Creates a run, or finds the one with its id.
    Start -> Started, Caller;
    /// Replaces the input of a run that has not started and pushes its start back; or creates it.
    Debounce -> Debounced, Caller;
    /// Takes runs that wait on a queue, within the queue's limits.
    Dequeue -> Claimed, Worker;
    /// Takes runs whose lease ran out or whose wait is over; ends overdue ones.
    Wake -> Claimed, Worker;
    /// Fences a worker's earlier incarnations off.
    TakeOver -> TakenOver, Worker;
    /// Extends leases and slots, and reports the worker as alive.
    Heartbeat -> Beaten, Worker;
    /// Ends the leases of a worker that is silent.
    EndLeases -> LeasesEnded, Worker;
    /// Writes records of a run.
    Record -> Written, Owner;
    /// Writes the last records and ends the run.
    Finish -> Written, Owner;
    /// Gives the run up until something happens.
    Suspend -> Suspended, Owner;
    /// Gives the run back untouched, without counting an attempt.
    Release -> Written, Owner;
    /// Starts the run over with a new input.
    ContinueAsNew -> Written, Owner;
    /// Stops a run and its attached children.
    Cancel -> Cancelled, Caller;
    /// Ends a run whose deadline has passed, for its owner.
    TimeOut -> TimedOut, Owner;
    /// Puts a stopped run back on its queue.
    Resume -> Resumed, Caller;
    /// Makes a new run from the first steps of another.
    Fork -> Forked, Caller;
    /// Accepts a signal for a run.
    Signal -> Signalled, Caller;
    /// Takes a slot of a queue for a step.
    TakeSlot -> SlotTaken, Owner;
    /// Gives a slot back.
    FreeSlot -> Freed, Owner;
    /// Creates or changes a queue.
    PutQueue -> QueuePut, Caller;
    /// Creates a queue, or applies what has changed in its definition.
    DefineQueue -> QueueDefined, Caller;
    /// Removes runs that ended long ago.
    Purge -> Purged, Caller;
    /// Submits a command and starts its run, or finds the one with its key.
    Submit -> Submitted, Caller;
    /// Stops a command.
    CancelCommand -> CommandCancelled, Caller;
    /// Ends commands whose time is up.
    SettleCommands -> Settled, Caller;
    /// Tells the audit of something that no other operation writes.
    Tell -> ToldOf, Caller;
    /// Gives a command what its payload lacked.
    Supply -> Supplied, Caller;
    /// Takes a failed command back.
    TakeBack -> TakenBack, Caller;
    /// Makes a command wait for another one.
    Depend -> Depended, Caller;
    /// Takes from what all workers share.
    Spend -> Spent, Caller;
    /// Removes meters that are past their time.
    SweepMeters -> Swept, Caller;
    /// Enters calls in the ledger of which no record tells.
    EnterCalls -> Entered, Owner;
    /// Takes somebody's answer to a question.
    Decide -> Decided, Caller;
    /// Ends questions whose time is up.
    SettleApprovals -> SettledApprovals, Caller;
    /// Says what became of an effect that nobody knew about.
    Resolve -> ResolvedEffect, Caller;
    /// Creates or replaces a trigger.
    PutTrigger -> TriggerPut, Caller;
    /// Writes the verdicts on slots of a trigger, with the commands they make.
    Advance -> Advanced, Caller;
    /// Makes the command of one slot.
    Backfill -> Backfilled, Caller;
    /// Notes an activity's execution and its tasks.
    LogActivity -> Logged, Caller;
    /// Gives numbers and links to new events.
    Seal -> Sealed, Caller;
    /// Removes old events.
    Retain -> Retained, Caller;
    /// Creates a sink.
    PutSink -> SinkPut, Caller;
    /// Starts or stops a sink.
    SetSink -> SinkSet, Caller;
    /// Takes the right to send to a sink, with what there is to send.
    TakeOutbox -> Outbox, Caller;
    /// Notes what became of it.
    SettleOutbox -> OutboxSettled, Caller;
    /// Has dead letters sent again.
    Redrive -> Redriven, Caller;
    /// Links of the chain of events.
    ReadChain -> ChainPage, Read;
    /// Sinks and where they stand.
    ListSinks -> Sinks, Read;
    /// Events that could not be sent.
    ListDead -> DeadLetters, Read;
    /// One command.
    GetCommand -> FoundCommand, Read;
    /// Commands, newest first.
    ListCommands -> CommandPage, Read;
    /// Effects, in the order of their commands.
    ListEffects -> Effects, Read;
    /// What is spent of budgets.
    ListBudgets -> Budgets, Read;
    /// Calls of connectors, oldest first.
    ListInvocations -> Invocations, Read;
    /// Questions to people.
    ListApprovals -> Approvals, Read;
    /// Events, oldest first.
    ListEvents -> EventPage, Read;
    /// Triggers.
    ListTriggers -> Triggers, Read;
    /// Triggers that are due.
    DueTriggers -> Triggers, Read;
    /// Slots of a trigger.
    ListSlots -> Slots, Read;
    /// Executions of an activity.
    ListActivities -> Activities, Read;
    /// One run.
    GetRun -> FoundRun, Read;
    /// Which of some runs are over.
    GetEnds -> Ends, Read;
    /// Runs by filter, newest first.
    ListRuns -> RunPage, Read;
    /// Records of a run, in call order.
    ListSteps -> StepPage, Read;
    /// What has arrived for a run.
    Load -> Loaded, Read;
    /// A published value.
    GetValue -> FoundValue, Read;
    /// Items of a stream.
    ReadStream -> StreamPage, Read;
    /// Every queue.
    ListQueues -> Queues, Read;
    /// Who holds a queue's slots, and how full its limits are.
    InspectQueue -> QueueReport, Read;
    /// Workers that reported lately.
    ListWorkers -> Workers, Read;
    /// When other workers reported last.
    ListPeers -> Peers, Read;
}
