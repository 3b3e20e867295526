//! The model: every store operation as a plain function over sorted maps. It is the specification
//! that the databases are held against.
//!
//! Invariants: no clock, no randomness, no async; the same operations in the same order give the
//! same replies; a reply that says "nothing was written" (fenced, refused, no such step) and an
//! error leave no trace. Deliberately absent: speed. Where a database needs an index or a lock,
//! the model scans.

mod approval;
mod claim;
mod command;
mod crash;
mod debounce;
mod dependency;
mod govern;
mod lookup;
mod outbox;
mod own;
mod publish;
mod queue;
mod read;
mod request;
mod saga;
mod settle;
mod start;
mod steer;
mod table;
mod trigger;
mod worker;

use std::sync::Mutex;

use futures::future::BoxFuture;
use steadfast_core::driver::Record;
use steadfast_core::{RunStatus, Timestamp};
use steadfast_store::op::{
    ActivityRow, Debounced, Duplicate, EffectRow, EventRow, Fork, Forked, InvocationRow, Lease,
    Parent, QueueRow, RunRow, SlotRow, Suspended, TaskRow, TriggerRow, Written,
};
use steadfast_store::{Error, Op, Reply, Store};

pub use crash::Forgotten;
pub(crate) use read::matches;
use table::Table;

/// Workspace and run, or workspace and another name.
type Key = (String, String);
/// Workspace, run and a number in the run (of a step or a signal).
type Numbered = (String, String, i64);

/// The state of a store, and the operations on it.
#[derive(Debug, Clone, Default)]
pub struct Model {
    runs: Table<Key, RunRow>,
    steps: Table<Numbered, Step>,
    signals: Table<Numbered, Sent>,
    /// By workspace, run and key, the versions of a value. The last one is the value.
    values: Table<(String, String, String), Vec<Told<String>>>,
    /// By workspace, run, stream and position. `None` is the end of the stream.
    items: Table<(String, String, String, i64), Told<Option<String>>>,
    /// What was asked for by those who made forks.
    forks: Table<Key, Fork>,
    queues: Table<Key, QueueRow>,
    /// As code last defined them.
    definitions: Table<Key, QueueRow>,
    /// Starts that count against a rate, by workspace, queue, partition and a running number.
    starts: Table<(String, String, String, u64), Timestamp>,
    slots: Table<Numbered, Slot>,
    /// By workspace, queue and deduplication id.
    dedupes: Table<(String, String, String), Dedupe>,
    /// By workspace, workflow and debounce key.
    debounces: Table<(String, String, String), debounce::Quiet>,
    workers: Table<Key, worker::Reported>,
    commands: Table<Key, command::Command>,
    /// By workspace, child and parent.
    dependencies: Table<(String, String, String), Parent>,
    duplicates: Table<Numbered, Duplicate>,
    events: Table<Key, EventRow>,
    triggers: Table<Key, TriggerRow>,
    /// By workspace, trigger and nominal time.
    trigger_slots: Table<Numbered, SlotRow>,
    activities: Table<Key, ActivityRow>,
    tasks: Table<Key, TaskRow>,
    effects: Table<Key, EffectRow>,
    invocations: Table<Key, InvocationRow>,
    approvals: Table<Key, approval::Approval>,
    /// An amount and a moment, by workspace and name.
    meters: Table<Key, (i64, i64)>,
    outward: publish::Outward,
    started: u64,
    log: crash::Log,
}

/// A record, and the epoch that wrote it.
#[derive(Debug, Clone)]
struct Step {
    record: Record,
    epoch: i64,
}

/// What a run has told the world, and by which step of which generation.
#[derive(Debug, Clone)]
struct Told<T> {
    what: T,
    generation: i64,
    step: i64,
}

impl<T> Told<T> {
    /// Whether a fork of a run has it too.
    fn is_before(&self, generation: i64, step: i64) -> bool {
        self.generation < generation || self.step < step
    }
}

#[derive(Debug, Clone)]
struct Sent {
    signal_id: String,
    name: String,
    payload: String,
    consumed: bool,
}

#[derive(Debug, Clone)]
struct Slot {
    queue: String,
    partition: String,
    worker: String,
    epoch: i64,
    until: Timestamp,
}

#[derive(Debug, Clone)]
struct Dedupe {
    run_id: String,
}

fn key(workspace: &str, name: &str) -> Key {
    (workspace.to_owned(), name.to_owned())
}

fn numbered(workspace: &str, run_id: &str, number: i64) -> Numbered {
    (workspace.to_owned(), run_id.to_owned(), number)
}

/// Every number of a run.
fn all_of(workspace: &str, run_id: &str) -> std::ops::RangeInclusive<Numbered> {
    numbered(workspace, run_id, i64::MIN)..=numbered(workspace, run_id, i64::MAX)
}

/// A database column is signed; a number beyond it is held at the end of its range.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Model {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Carries out one operation.
    pub fn apply(&mut self, op: &Op) -> Result<Reply, Error> {
        let reply = request::check(op).and_then(|()| self.dispatch(op));
        let mut changes = 0;
        match &reply {
            Ok(reply) if !takes_back(reply) => self.each(&mut |t| changes += t.keep()),
            _ => self.each(&mut |t| t.take_back()),
        }
        self.log.commit(op, changes);
        reply
    }

    /// The leases that are good now.
    pub fn leases(&self, workspace: &str) -> Vec<Lease> {
        let owned = self.runs_of(workspace).filter(|run| !run.worker.is_empty());
        owned
            .map(|run| Lease {
                workspace: workspace.to_owned(),
                run_id: run.run_id.clone(),
                worker: run.worker.clone(),
                epoch: run.epoch,
            })
            .collect()
    }

    fn dispatch(&mut self, op: &Op) -> Result<Reply, Error> {
        Ok(match op {
            Op::Start(op) => Reply::Start(self.start(op)),
            Op::Debounce(op) => Reply::Debounce(self.debounce(op)),
            Op::Dequeue(op) => Reply::Dequeue(self.dequeue(op)),
            Op::Wake(op) => Reply::Wake(self.wake(op)),
            Op::TakeOver(op) => Reply::TakeOver(self.take_over(op)),
            Op::Heartbeat(op) => Reply::Heartbeat(self.heartbeat(op)),
            Op::EndLeases(op) => Reply::EndLeases(self.end_leases(op)),
            Op::Record(op) => Reply::Record(self.record(op)?),
            Op::Finish(op) => Reply::Finish(self.finish(op)?),
            Op::Suspend(op) => Reply::Suspend(self.suspend(op)?),
            Op::Release(op) => Reply::Release(self.release(op)),
            Op::ContinueAsNew(op) => Reply::ContinueAsNew(self.continue_as_new(op)),
            Op::Cancel(op) => Reply::Cancel(self.cancel(op)),
            Op::TimeOut(op) => Reply::TimeOut(self.time_out(op)),
            Op::Resume(op) => Reply::Resume(self.resume(op)),
            Op::Fork(op) => Reply::Fork(self.fork(op)),
            Op::Signal(op) => Reply::Signal(self.signal(op)),
            Op::TakeSlot(op) => Reply::TakeSlot(self.take_slot(op)),
            Op::FreeSlot(op) => Reply::FreeSlot(self.free_slot(op)),
            Op::PutQueue(op) => Reply::PutQueue(self.put_queue(op)),
            Op::DefineQueue(op) => Reply::DefineQueue(self.define_queue(op)),
            Op::Purge(op) => Reply::Purge(self.purge(op)),
            Op::Submit(op) => Reply::Submit(self.submit(op)),
            Op::CancelCommand(op) => Reply::CancelCommand(self.cancel_command(op)),
            Op::SettleCommands(op) => Reply::SettleCommands(self.settle(op)),
            Op::Depend(op) => Reply::Depend(self.depend(op)),
            Op::Spend(op) => Reply::Spend(self.spend(op)),
            Op::SweepMeters(op) => Reply::SweepMeters(self.sweep_meters(op)),
            Op::EnterCalls(op) => Reply::EnterCalls(self.enter_calls(op)),
            Op::Decide(op) => Reply::Decide(self.answer(op)),
            Op::SettleApprovals(op) => Reply::SettleApprovals(self.settle_approvals(op)),
            Op::Tell(op) => Reply::Tell(self.tell_of_none(op)),
            Op::Supply(op) => Reply::Supply(self.supply(op)),
            Op::TakeBack(op) => Reply::TakeBack(self.take_back(op)),
            Op::Resolve(op) => Reply::Resolve(self.resolve(op)),
            Op::PutTrigger(op) => Reply::PutTrigger(self.put_trigger(op)),
            Op::Advance(op) => Reply::Advance(self.advance(op)),
            Op::Backfill(op) => Reply::Backfill(self.backfill(op)),
            Op::LogActivity(op) => Reply::LogActivity(self.log_activity(op)),
            Op::Seal(op) => Reply::Seal(self.seal(op)),
            Op::Retain(op) => Reply::Retain(self.retain(op)),
            Op::PutSink(op) => Reply::PutSink(self.put_sink(op)),
            Op::SetSink(op) => Reply::SetSink(self.set_sink(op)),
            Op::TakeOutbox(op) => Reply::TakeOutbox(self.take_outbox(op)),
            Op::SettleOutbox(op) => Reply::SettleOutbox(self.settle_outbox(op)),
            Op::Redrive(op) => Reply::Redrive(self.redrive(op)),
            reads => return self.look(reads),
        })
    }

    /// What only looks.
    fn look(&self, op: &Op) -> Result<Reply, Error> {
        Ok(match op {
            Op::ListEffects(op) => Reply::ListEffects(self.list_effects(op)),
            Op::ListBudgets(op) => Reply::ListBudgets(self.list_budgets(op)),
            Op::ListInvocations(op) => Reply::ListInvocations(self.list_invocations(op)),
            Op::ListApprovals(op) => Reply::ListApprovals(self.list_approvals(op)),
            Op::ReadChain(op) => Reply::ReadChain(self.read_chain(op)),
            Op::ListSinks(op) => Reply::ListSinks(self.list_sinks(op)),
            Op::ListDead(op) => Reply::ListDead(self.list_dead(op)),
            Op::GetCommand(op) => Reply::GetCommand(self.get_command(op)),
            Op::ListCommands(op) => Reply::ListCommands(self.list_commands(op)),
            Op::ListEvents(op) => Reply::ListEvents(self.list_events(op)),
            Op::ListTriggers(op) => Reply::ListTriggers(self.list_triggers(op)),
            Op::DueTriggers(op) => Reply::DueTriggers(self.due_triggers(op)),
            Op::ListSlots(op) => Reply::ListSlots(self.list_slots(op)),
            Op::ListActivities(op) => Reply::ListActivities(self.list_activities(op)),
            Op::GetRun(op) => Reply::GetRun(self.get_run(op)),
            Op::ListRuns(op) => Reply::ListRuns(self.list_runs(op)),
            Op::ListSteps(op) => Reply::ListSteps(self.list_steps(op)),
            Op::Load(op) => Reply::Load(self.load(op)),
            Op::GetValue(op) => Reply::GetValue(self.get_value(op)),
            Op::ReadStream(op) => Reply::ReadStream(self.read_stream(op)),
            Op::GetEnds(op) => Reply::GetEnds(self.get_ends(op)),
            Op::ListQueues(op) => Reply::ListQueues(self.list_queues(op)),
            Op::InspectQueue(op) => Reply::InspectQueue(self.inspect_queue(op)),
            Op::ListWorkers(op) => Reply::ListWorkers(self.list_workers(op)),
            Op::ListPeers(op) => Reply::ListPeers(self.list_peers(op)),
            writes => unreachable!("invariant: {} is carried out above", writes.name()),
        })
    }

    fn each(&mut self, end: &mut dyn FnMut(&mut dyn Undo)) {
        end(&mut self.runs);
        end(&mut self.steps);
        end(&mut self.signals);
        end(&mut self.values);
        end(&mut self.items);
        end(&mut self.queues);
        end(&mut self.definitions);
        end(&mut self.starts);
        end(&mut self.slots);
        end(&mut self.forks);
        end(&mut self.dedupes);
        end(&mut self.debounces);
        end(&mut self.workers);
        end(&mut self.commands);
        end(&mut self.dependencies);
        end(&mut self.duplicates);
        end(&mut self.events);
        end(&mut self.triggers);
        end(&mut self.trigger_slots);
        end(&mut self.activities);
        end(&mut self.tasks);
        end(&mut self.effects);
        end(&mut self.invocations);
        end(&mut self.approvals);
        end(&mut self.meters);
        self.outward.each(end);
    }

    fn run(&self, workspace: &str, run_id: &str) -> Option<&RunRow> {
        self.runs.get(&key(workspace, run_id))
    }

    /// Runs of a workspace, by id.
    fn runs_of(&self, workspace: &str) -> impl Iterator<Item = &RunRow> {
        let from = key(workspace, "");
        let workspace = workspace.to_owned();
        self.runs.range(from..).take_while(move |((ws, _), _)| *ws == workspace).map(|(_, run)| run)
    }

    /// Runs that wait on a queue, in no promised order.
    fn waiting(&self, workspace: &str, queue: &str) -> impl Iterator<Item = &RunRow> {
        let queue = queue.to_owned();
        self.runs_of(workspace)
            .filter(move |run| run.status == RunStatus::Enqueued && run.queue == queue)
    }
}

/// What all tables have in common at the end of an operation.
trait Undo {
    /// How many changes stay.
    fn keep(&mut self) -> usize;
    fn take_back(&mut self);
}

impl<K: Ord + Clone, V: Clone> Undo for Table<K, V> {
    fn keep(&mut self) -> usize {
        Table::keep(self)
    }
    fn take_back(&mut self) {
        Table::take_back(self);
    }
}

/// Whether a reply promises that nothing was written.
fn takes_back(reply: &Reply) -> bool {
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

/// The model as a store: for simulations and for running the suites against the specification.
#[derive(Debug, Default)]
pub struct ModelStore(Mutex<Model>);

impl ModelStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// A store that goes on from a state.
    pub fn from_model(model: Model) -> Self {
        Self(Mutex::new(model))
    }

    /// The state as it is now.
    pub fn snapshot(&self) -> Model {
        self.0.lock().unwrap().clone()
    }
}

impl Store for ModelStore {
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        // Applied when polled, not when asked: a dropped future did nothing, as with a database.
        Box::pin(async move { self.0.lock().unwrap().apply(&op) })
    }
}
