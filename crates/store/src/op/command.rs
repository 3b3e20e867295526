//! Commands: submitted once per key, followed to their end, cancelled, made to wait for others.

use steadfast_core::{CommandStatus, Error, Timestamp};

use super::approval::Hold;
use super::govern::Govern;
use super::run::{Lease, Start};

/// A command, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandRow {
    /// Its id, unique in the workspace.
    pub command_id: String,
    /// Its contract's name.
    pub command_type: String,
    /// Who asked.
    pub requested_by: String,
    /// By which door it came.
    pub ingress: String,
    /// The payload as canonical JSON.
    pub payload: String,
    /// What travels with it, as JSON.
    pub context: String,
    /// Where it stands.
    pub status: CommandStatus,
    /// What a cancel does.
    pub cancellation_mode: String,
    /// What makes it the same as another one.
    pub idempotency_key: Option<String>,
    /// The run that carries it out.
    pub workflow_id: String,
    /// The run's result as JSON, once it succeeded.
    pub result: Option<String>,
    /// Why it failed or was stopped.
    pub error: Option<Error>,
    /// How many further triggers wanted the same.
    pub collapsed: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// When it is given up if it has not begun.
    pub expires_at: Option<Timestamp>,
}

/// Another command to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Which.
    pub command_id: String,
    /// The status it must reach; `None` for any end.
    pub required: Option<CommandStatus>,
    /// Whether a parent that can no longer get there cancels the command; otherwise it fails.
    pub propagate: bool,
}

/// A trigger that wanted a command that was there already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// Who asked.
    pub requested_by: String,
    /// By which door.
    pub ingress: String,
    /// When.
    pub at: Timestamp,
}

/// Submits a command, and starts its run in the same commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Submit {
    /// The new command's id.
    pub command_id: String,
    /// Its contract's name.
    pub command_type: String,
    /// Who asks.
    pub requested_by: String,
    /// By which door it comes.
    pub ingress: String,
    /// The trace, as the context has it.
    pub trace_id: String,
    /// What a cancel does.
    pub cancellation_mode: String,
    /// What makes it the same as another one.
    pub idempotency_key: Option<String>,
    /// When it is given up if it has not begun.
    pub expires_at: Option<Timestamp>,
    /// Commands to wait for.
    pub after: Vec<Parent>,
    /// What its policies decided, as JSON; none where there are no policies.
    pub judgement: Option<String>,
    /// Why it does not begin, if it does not.
    pub hold: Option<Hold>,
    /// Whether it goes by its queue, even where it could begin at once.
    pub by_queue: bool,
    /// Its run: id, workflow, payload, queue, context. Started when nothing is waited for.
    pub start: Box<Start>,
}

/// What became of a submission.
#[derive(Debug, Clone, PartialEq)]
pub enum Submitted {
    /// A new command; with the lease of its run when that was claimed at once.
    New(CommandStatus, Option<Lease>),
    /// The same command was there: its id and where it stands. The repetition was counted.
    Existing(String, CommandStatus),
    /// The key or the run's id belongs to another command: its id, and which field differs.
    Conflict(String, &'static str),
    /// No such queue.
    NoQueue,
    /// There is no such command to wait for.
    NoParent(String),
    /// A run that belongs to no command has the run's id.
    RunTaken,
}

/// How to name a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandRef {
    /// By its id.
    Id(String),
    /// By its key.
    Key(String),
    /// By its run.
    Run(String),
}

/// Asks for one command.
#[derive(Debug, Clone, PartialEq)]
pub struct GetCommand {
    /// The workspace.
    pub workspace: String,
    /// Which.
    pub which: CommandRef,
}

/// A command with what belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandDetail {
    /// The command.
    pub command: CommandRow,
    /// What it waits for, by id.
    pub after: Vec<Parent>,
    /// Who else wanted it, oldest first; the first hundred.
    pub duplicates: Vec<Duplicate>,
}

/// The command, if there is one.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundCommand(pub Option<Box<CommandDetail>>);

/// Asks for commands by their ids, the last first: ids that begin with their time make that the
/// newest.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListCommands {
    /// The workspace.
    pub workspace: String,
    /// Only of this type.
    pub command_type: Option<String>,
    /// Only in one of these statuses; in any if there are none here.
    pub status: Vec<CommandStatus>,
    /// The id with which the last page ended.
    pub after: Option<String>,
    /// Most rows.
    pub limit: usize,
}

/// A page of commands.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandPage {
    /// The commands.
    pub commands: Vec<CommandRow>,
    /// Where to go on, if there is more.
    pub next: Option<String>,
}

/// Stops a command.
#[derive(Debug, Clone, PartialEq)]
pub struct CancelCommand {
    /// The workspace.
    pub workspace: String,
    /// Which.
    pub command_id: String,
    /// Why.
    pub reason: Error,
    /// Who asks.
    pub actor: String,
    /// The time.
    pub now: Timestamp,
}

/// What became of a cancel.
#[derive(Debug, Clone, PartialEq)]
pub enum CommandCancelled {
    /// It is cancelled, or will be when what is under way has ended.
    Done(CommandStatus),
    /// It had ended before.
    AlreadyOver(CommandStatus),
    /// There is none.
    NotFound,
}

/// Ends commands whose time is up: expired ones, and cancelled ones whose worker has let go.
#[derive(Debug, Clone, PartialEq)]
pub struct SettleCommands {
    /// The workspace.
    pub workspace: String,
    /// The command of a run that was stopped and whose worker speaks; only this one.
    pub left: Option<Left>,
    /// Most commands.
    pub limit: usize,
    /// The time.
    pub now: Timestamp,
}

/// What the worker of a stopped run says.
#[derive(Debug, Clone, PartialEq)]
pub struct Left {
    /// The command.
    pub command_id: String,
    /// The lease under which the worker had the run: the one that carries the command out, or one
    /// of its children. Only the last owner before the stop is believed.
    pub lease: Lease,
    /// What became of effects that were under way when the run was stopped.
    pub outcomes: Vec<Govern>,
    /// Until when to wait for what is still under way; `None` when nothing is.
    pub busy_until: Option<Timestamp>,
}

/// The commands that were ended, by id.
#[derive(Debug, Clone, PartialEq)]
pub struct Settled(pub Vec<String>);

/// Tells the audit of something that belongs to no command, such as a request that was rejected.
/// The same id again changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Tell {
    /// The workspace.
    pub workspace: String,
    /// The command it is about; empty for none. The event's id then begins with `evt_` and it.
    pub command_id: String,
    /// The event's id.
    pub event_id: String,
    /// Its type.
    pub event_type: String,
    /// What it tells, as JSON.
    pub payload: String,
    /// Who did it.
    pub actor: String,
    /// The trace it belongs to; may be empty.
    pub trace_id: String,
    /// The time.
    pub now: Timestamp,
}

/// Whether it was new.
#[derive(Debug, Clone, PartialEq)]
pub struct ToldOf(pub bool);

/// Gives a command what its payload lacked, with what policies made of it then.
#[derive(Debug, Clone, PartialEq)]
pub struct Supply {
    /// The workspace.
    pub workspace: String,
    /// Which.
    pub command_id: String,
    /// The whole payload, as canonical JSON.
    pub payload: String,
    /// What each stage decided, as JSON.
    pub judgement: Option<String>,
    /// Why it still does not begin, if so.
    pub hold: Option<Hold>,
    /// Who gives it.
    pub actor: String,
    /// The time.
    pub now: Timestamp,
}

impl Supply {
    /// The id of the event that tells of it. Who asks again because the answer was lost asks with
    /// the same time, and is known by it.
    pub fn told_as(&self) -> String {
        format!("evt_{}_i{:020}", self.command_id, self.now.as_micros())
    }

    /// What that event tells.
    pub fn told(&self) -> serde_json::Value {
        serde_json::json!({ "digest": steadfast_core::json::digest(&self.payload) })
    }
}

/// Between which ids the events are that tell who has supplied a command's payload.
pub fn supplied_between(command_id: &str) -> (String, String) {
    (format!("evt_{command_id}_i"), format!("evt_{command_id}_j"))
}

/// What became of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Supplied {
    /// It is taken; this is where the command stands.
    Done(CommandStatus),
    /// It waits for none.
    NotWaiting(CommandStatus),
    /// There is none.
    NotFound,
}

/// Takes a failed command back, after taking back has halted, or when a person has said since that
/// one of its effects was done after all.
#[derive(Debug, Clone, PartialEq)]
pub struct TakeBack {
    /// The workspace.
    pub workspace: String,
    /// Which.
    pub command_id: String,
    /// Who asks.
    pub actor: String,
    /// The time.
    pub now: Timestamp,
}

impl TakeBack {
    /// The id of the event that tells of it. Who asks again because the answer was lost asks with
    /// the same time, and is known by it.
    pub fn told_as(&self) -> String {
        format!("evt_{}_t{:020}", self.command_id, self.now.as_micros())
    }
}

/// What became of it.
#[derive(Debug, Clone, PartialEq)]
pub enum TakenBack {
    /// This run takes it back.
    Begun(String),
    /// Nothing is left to be taken back.
    Nothing,
    /// It has not failed.
    NotFailed(CommandStatus),
    /// There is none.
    NotFound,
}

/// Makes a command that has not begun wait for another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Depend {
    /// The workspace.
    pub workspace: String,
    /// The command that is to wait.
    pub command_id: String,
    /// What for.
    pub parent: Parent,
    /// The time.
    pub now: Timestamp,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Depended {
    /// It waits.
    Done,
    /// They would wait for each other, by this way.
    Cycle(Vec<String>),
    /// It has begun, or is over.
    TooLate(CommandStatus),
    /// There is no such command.
    NotFound(String),
}

/// Something that happened, as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// Unique in the workspace, in order for each command.
    pub event_id: String,
    /// The command it concerns; empty for none.
    pub command_id: String,
    /// `event`, `audit` or `agent_step`.
    pub purpose: String,
    /// What happened, such as `command.created`.
    pub event_type: String,
    /// More about it, as JSON.
    pub payload: String,
    /// Who did it.
    pub actor: String,
    /// The trace.
    pub trace_id: String,
    /// When.
    pub created_at: Timestamp,
}

/// Asks for events, oldest first.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListEvents {
    /// The workspace.
    pub workspace: String,
    /// Only of this command.
    pub command_id: Option<String>,
    /// Only of this type.
    pub event_type: Option<String>,
    /// Only of types that begin so.
    pub type_prefix: Option<String>,
    /// Only of this purpose.
    pub purpose: Option<String>,
    /// Only from this moment on.
    pub since: Option<Timestamp>,
    /// Only before then.
    pub until: Option<Timestamp>,
    /// Where the last page ended: time and id.
    pub after: Option<(Timestamp, String)>,
    /// Most rows.
    pub limit: usize,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage(pub Vec<EventRow>);
