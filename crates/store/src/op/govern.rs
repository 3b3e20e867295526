//! Governance: the ledger of effects and calls.

use steadfast_core::{CommandStatus, EffectEvent, EffectStatus, Error, Timestamp};

use super::run::Lease;
use super::{Charge, Health, NewApproval};

/// What is written together with a governed record.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Govern {
    /// The command; empty for a plain run.
    pub command_id: String,
    /// Who acts.
    pub actor: String,
    /// The trace.
    pub trace_id: String,
    /// What happened.
    pub events: Vec<NewEvent>,
    /// What became of an effect.
    pub effect: Option<EffectChange>,
    /// Calls of connectors, for the ledger; the charges are those of the last.
    pub invocations: Vec<InvocationRow>,
    /// People are asked.
    pub approval: Option<Box<NewApproval>>,
    /// The answer of this number is taken.
    pub consume: Option<i64>,
    /// How a connector's call went, for its breaker.
    pub health: Option<Health>,
    /// What it took of budgets, set right. With a call they are counted when its row enters the
    /// ledger, so that a repeated request does not count them again.
    pub charges: Vec<Charge>,
    /// What charges without a call are known by, so that a repeated request does not count them
    /// again.
    pub charged_as: String,
    /// An effect that was taken back.
    pub undone: Option<String>,
    /// The command cannot go on until somebody says what became of the effect, if it moved.
    pub blocks: bool,
    /// Whether a child of the command's run speaks: it may outlive the command, and begins nothing
    /// more then.
    pub child: bool,
    /// The time.
    pub now: Timestamp,
}

/// An event about to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Its id: the same one is written once.
    pub event_id: String,
    /// `event`, `audit` or `agent_step`.
    pub purpose: &'static str,
    /// What happened.
    pub event_type: String,
    /// More about it, as JSON.
    pub payload: String,
}

/// What becomes of an effect.
#[derive(Debug, Clone, PartialEq)]
pub enum EffectChange {
    /// It is decided on, not begun.
    Plan(Box<NewEffect>),
    /// It is about to be performed; entered first, if it is not there.
    Begin(Box<NewEffect>),
    /// It came to this.
    Move {
        /// Which.
        effect_id: String,
        /// What happened to it.
        event: EffectEvent,
        /// Its result as JSON.
        result: Option<String>,
        /// Why it failed.
        error: Option<Error>,
    },
}

/// An effect about to be entered in the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEffect {
    /// Its id.
    pub effect_id: String,
    /// Its type.
    pub effect_type: String,
    /// What it is done with, as JSON.
    pub payload: String,
    /// The key by which its receiver knows it.
    pub idempotency_key: String,
    /// What undoes it.
    pub compensation: Option<String>,
    /// The effect that it undoes.
    pub compensates: Option<String>,
    /// Whether its receiver has no memory for keys, so that the ledger is that memory: while
    /// another effect of this type and key is not known to have failed, it does not begin.
    pub once: bool,
}

/// An effect, as the ledger has it.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectRow {
    /// Its id.
    pub effect_id: String,
    /// The command.
    pub command_id: String,
    /// The run that performs it.
    pub run_id: String,
    /// Its place among the command's effects, from 1.
    pub ordinal: i64,
    /// Its type.
    pub effect_type: String,
    /// What it is done with, as JSON.
    pub payload: String,
    /// The key by which its receiver knows it.
    pub idempotency_key: String,
    /// Where it stands.
    pub status: EffectStatus,
    /// Its result as JSON.
    pub result: Option<String>,
    /// Why it failed.
    pub error: Option<Error>,
    /// The effect that it undoes.
    pub compensates: Option<String>,
    /// What undoes it.
    pub compensation: Option<String>,
    /// When it was undone.
    pub compensated_at: Option<Timestamp>,
    /// When it was entered.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
}

/// How the words for a question about an earlier call begin, in the ledger of calls.
pub const PROBE: &str = "probe ";

/// A connector's call, as the ledger has it.
#[derive(Debug, Clone, PartialEq)]
pub struct InvocationRow {
    /// Its id.
    pub invocation_id: String,
    /// The command; empty for none.
    pub command_id: String,
    /// The run.
    pub run_id: String,
    /// The connector.
    pub connector: String,
    /// Who it was called for.
    pub agent: String,
    /// What was asked.
    pub intended: String,
    /// What was really done; empty where nothing was.
    pub actual: String,
    /// A digest of what it was asked with.
    pub inputs: String,
    /// A line about the answer.
    pub outputs: String,
    /// Whether it belonged to an effect.
    pub side_effect: bool,
    /// The key it was sent with.
    pub idempotency_key: String,
    /// `verified`, `contradicted`, `failed` or `blocked`.
    pub verification: String,
    /// Why it failed.
    pub error: Option<Error>,
    /// How long it took, in microseconds.
    pub latency_us: i64,
    /// What it cost, in units: what the other side says, or else the price that was taken.
    pub cost_units: Option<i64>,
    /// When it ended.
    pub created_at: Timestamp,
}

/// Enters calls in the ledger of which no record will tell: whoever made them no longer waits for
/// their end.
#[derive(Debug, Clone, PartialEq)]
pub struct EnterCalls {
    /// The lease under which they were made. It is not compared: a call that was made is a fact,
    /// also after its lease is void, and its id keeps it from being entered twice.
    pub lease: Lease,
    /// The calls.
    pub calls: Vec<InvocationRow>,
    /// What they took of budgets, set right when they are entered, and only then.
    pub charges: Vec<Charge>,
}

/// So many were not there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered(pub u64);

/// Which effects.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListEffects {
    /// The workspace.
    pub workspace: String,
    /// Only of this command, in their order.
    pub command_id: Option<String>,
    /// Only of this key.
    pub key: Option<String>,
    /// Only this one.
    pub effect_id: Option<String>,
    /// Only in this status.
    pub status: Option<EffectStatus>,
    /// Only those that have a way back and have not gone it, and are done or may be; and those
    /// that are still on record as begun.
    pub to_undo: bool,
    /// The last first.
    pub last_first: bool,
    /// Most rows.
    pub limit: usize,
}

/// Effects, by command and place.
#[derive(Debug, Clone, PartialEq)]
pub struct Effects(pub Vec<EffectRow>);

/// Which calls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListInvocations {
    /// The workspace.
    pub workspace: String,
    /// Only of this command.
    pub command_id: Option<String>,
    /// Only of this connector.
    pub connector: Option<String>,
    /// Where the last page ended: time and id.
    pub after: Option<(Timestamp, String)>,
    /// Most rows.
    pub limit: usize,
}

/// Calls, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Invocations(pub Vec<InvocationRow>);

/// What a person says of an effect whose outcome nobody knows.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolve {
    /// The workspace.
    pub workspace: String,
    /// Which.
    pub effect_id: String,
    /// What is true of it.
    pub truth: Truth,
    /// Who says so.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// The time.
    pub now: Timestamp,
}

/// What is true of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Truth {
    /// It was done, with this result as JSON.
    Done(String),
    /// It was not done, and is not to be.
    NotDone,
    /// It was not done, and is to be done now.
    Again,
}

impl Truth {
    /// The one spelling.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::NotDone => "not_done",
            Self::Again => "again",
        }
    }
}

/// What became of that.
#[derive(Debug, Clone, PartialEq)]
pub enum ResolvedEffect {
    /// Its run goes on.
    Done,
    /// Its outcome is known: this.
    Known(EffectStatus),
    /// There is none.
    NotFound,
}

/// Whether nothing of a command in this status begins any more. Children may outlive a command that
/// succeeded, but not one that was stopped or is taken back.
pub fn is_stopped(status: CommandStatus) -> bool {
    match status {
        CommandStatus::Cancelling | CommandStatus::Cancelled | CommandStatus::Failed => true,
        CommandStatus::Compensating | CommandStatus::Compensated => true,
        CommandStatus::Expired => true,
        CommandStatus::Created | CommandStatus::Validated | CommandStatus::Approved => false,
        CommandStatus::WaitingForInput | CommandStatus::WaitingForApproval => false,
        CommandStatus::Queued | CommandStatus::Running | CommandStatus::Blocked => false,
        CommandStatus::Succeeded => false,
    }
}

/// What people are told when a worker says of an effect what the ledger does not.
pub fn contradiction(known: &EffectRow, told: EffectStatus) -> serde_json::Value {
    serde_json::json!({
        "effect_id": known.effect_id, "effect_type": known.effect_type,
        "ledger": known.status.as_str(), "worker": told.as_str(),
    })
}

/// How every refusal ends that is because of a stopped command.
pub const BEGINS_NO_MORE: &str = "nothing of it begins any more";

/// How every refusal ends that passes when another effect comes to its end.
pub const IS_BEING_DONE: &str = "may be doing it, or has just done it";

/// Why an effect was not begun that has the key of another one.
pub fn met(new: &NewEffect, other: &EffectRow) -> String {
    let (name, key, id) = (&new.effect_type, &new.idempotency_key, &other.effect_id);
    match new.payload == other.payload {
        true => format!("effect \"{name}\" with the key \"{key}\": {id} {IS_BEING_DONE}"),
        false => format!("effect \"{name}\" has the key \"{key}\" of {id}, with another payload"),
    }
}

/// Why something of a stopped command was not begun.
pub fn not_begun(command_id: &str, status: CommandStatus) -> String {
    format!("command \"{command_id}\" is {status}: {BEGINS_NO_MORE}")
}

/// The workflow that takes back what a command has done.
pub const COMPENSATE: &str = "steadfast.compensate";

/// The run that takes back what another has done. Its number is how many events the command had
/// when it began: a command may be resumed and taken back again.
pub fn undo_run_id(workflow_id: &str, number: i64) -> String {
    format!("undo_{}", steadfast_core::json::fingerprint(&format!("{workflow_id}\n{number}")))
}

/// The runs that may be taking a command back that has so many events, the likeliest first: each
/// time that such a run stopped and was resumed, the command had two more.
pub fn undo_run_ids(workflow_id: &str, events: i64) -> impl Iterator<Item = String> {
    let numbers = (0..=events.max(0)).rev().step_by(2);
    numbers.map(move |number| undo_run_id(workflow_id, number))
}
