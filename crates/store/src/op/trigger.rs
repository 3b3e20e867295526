//! Triggers: definitions that make commands, the slots of their schedules, and activities.

use steadfast_core::schedule::{Overlap, SlotStatus};
use steadfast_core::{CommandStatus, Error as Failure, RunStatus, Timestamp};

use super::command::{Submit, Submitted};

/// Whether a trigger may fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TriggerState {
    /// It may.
    Active,
    /// Somebody asked it not to, for a while.
    Paused,
    /// Its definition says no.
    Disabled,
    /// Its definition is gone; what it did is kept.
    Removed,
}

impl TriggerState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Active, Self::Paused, Self::Disabled, Self::Removed];

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
            Self::Removed => "removed",
        }
    }

    /// Reads the spelling.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// A trigger, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerRow {
    /// Its id, unique in the workspace.
    pub trigger_id: String,
    /// `cron` or `event`.
    pub kind: String,
    /// The definition, as JSON.
    pub spec: String,
    /// Counts changes of the definition, from 1.
    pub revision: i64,
    /// Who defines it: a sync removes only what its own source no longer has.
    pub source: String,
    /// Whether it may fire.
    pub state: TriggerState,
    /// Why not, while it may not.
    pub reason: String,
    /// When it last was not to fire; until `NEVER` while it still is not.
    pub absent_from: Timestamp,
    /// See `absent_from`.
    pub absent_until: Timestamp,
    /// Every slot up to here is decided.
    pub cursor_at: Timestamp,
    /// A gap that is being worked off, as JSON; empty for none.
    pub gap: String,
    /// When its next slot is due; `NEVER` while nothing is.
    pub due_at: Timestamp,
    /// Raised by every change: who writes must have read the last one.
    pub version: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// Creates a trigger, or replaces it as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct PutTrigger {
    /// The workspace.
    pub workspace: String,
    /// The row. Its version is that of the row it replaces; 0 for a new one.
    pub trigger: TriggerRow,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriggerPut {
    /// It is written.
    Done,
    /// Somebody else wrote first: read it again.
    Stale,
}

/// What became of one nominal time.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotRow {
    /// The nominal time.
    pub nominal_at: Timestamp,
    /// What became of it.
    pub status: SlotStatus,
    /// Why.
    pub reason: String,
    /// How long after its nominal time that was decided.
    pub lag_us: i64,
    /// The command; empty for none.
    pub command_id: String,
    /// The slot that covers this one.
    pub into_at: Option<Timestamp>,
    /// The first nominal time that its command covers, if it covers more than this one.
    pub window_from: Option<Timestamp>,
    /// The definition's revision by which it was decided.
    pub revision: i64,
    /// When it was decided.
    pub decided_at: Timestamp,
}

/// A slot to be written, and what it fires.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSlot {
    /// As it stands if nothing is in the way.
    pub slot: SlotRow,
    /// The command it makes.
    pub fire: Option<Box<Submit>>,
    /// Whether it makes up for what was missed. Where the schedule leaves a slot out while an
    /// earlier one is not over, this one waits instead: nobody would make up for it again.
    pub makes_up: bool,
}

/// Writes the verdicts on some slots of a trigger, with the commands they make.
#[derive(Debug, Clone, PartialEq)]
pub struct Advance {
    /// The workspace.
    pub workspace: String,
    /// The trigger.
    pub trigger_id: String,
    /// Its version, as it was read.
    pub version: i64,
    /// What happens when the command of an earlier slot is not over.
    pub overlap: Overlap,
    /// The slots, oldest first.
    pub slots: Vec<NewSlot>,
    /// How far the trigger gets. One that is not active may be advanced too, but is not due.
    pub cursor_at: Timestamp,
    /// The gap that is left, as JSON; empty for none.
    pub gap: String,
    /// When the next slot is due.
    pub due_at: Timestamp,
    /// The time.
    pub now: Timestamp,
}

/// What became of the slots.
#[derive(Debug, Clone, PartialEq)]
pub enum Advanced {
    /// They are written, as they came out.
    Done(Vec<SlotRow>),
    /// Somebody else was first: read the trigger again.
    Stale,
}

/// Makes the command of one slot, whatever became of the slot at its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Backfill {
    /// The trigger.
    pub trigger_id: String,
    /// The slot, as it stands when the command is made.
    pub slot: SlotRow,
    /// The command.
    pub fire: Box<Submit>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Backfilled {
    /// What became of the command.
    pub submitted: Submitted,
    /// The slot's status afterwards; none if it has no row because no command was made.
    pub status: Option<SlotStatus>,
}

/// Asks for one trigger or for all.
#[derive(Debug, Clone, PartialEq)]
pub struct ListTriggers {
    /// The workspace.
    pub workspace: String,
    /// Only this one.
    pub trigger_id: Option<String>,
    /// Only those of a kind.
    pub kind: Option<String>,
}

impl ListTriggers {
    /// Every trigger.
    pub fn all(workspace: impl Into<String>) -> Self {
        Self { workspace: workspace.into(), trigger_id: None, kind: None }
    }

    /// The one with this id.
    pub fn one(workspace: impl Into<String>, trigger_id: impl Into<String>) -> Self {
        Self { trigger_id: Some(trigger_id.into()), ..Self::all(workspace) }
    }
}

/// Asks for triggers that are due, longest due first.
#[derive(Debug, Clone, PartialEq)]
pub struct DueTriggers {
    /// The workspace.
    pub workspace: String,
    /// Where the last page ended: due time and id.
    pub after: Option<(Timestamp, String)>,
    /// Most triggers.
    pub limit: usize,
    /// The time.
    pub now: Timestamp,
}

/// Triggers, by id; those that are due by their time.
#[derive(Debug, Clone, PartialEq)]
pub struct Triggers(pub Vec<TriggerRow>);

/// Asks for slots of a trigger, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct ListSlots {
    /// The workspace.
    pub workspace: String,
    /// The trigger.
    pub trigger_id: String,
    /// From this nominal time on.
    pub from: Timestamp,
    /// Up to this one.
    pub until: Timestamp,
    /// Whether the last ones are wanted, where there are more than `limit`.
    pub latest: bool,
    /// Most rows.
    pub limit: usize,
}

/// Slots.
#[derive(Debug, Clone, PartialEq)]
pub struct Slots(pub Vec<SlotRow>);

/// One execution of an activity.
#[derive(Debug, Clone, PartialEq)]
pub struct ActivityRow {
    /// A UUID that follows from `workflow_id`.
    pub run_id: String,
    /// The activity.
    pub activity_id: String,
    /// Its definition's version.
    pub definition_version: i64,
    /// The run.
    pub workflow_id: String,
    /// `cron` or `event`.
    pub trigger_type: String,
    /// The nominal time, or the event's id.
    pub trigger_key: String,
    /// What its tasks were given, as JSON.
    pub context_snapshot: String,
    /// How many tasks it started.
    pub tasks_spawned: i64,
    /// The nominal time, if a schedule fired it.
    pub scheduled_for: Option<Timestamp>,
    /// When its command was made. Read from the command: what is given is kept only without one.
    pub fired_at: Timestamp,
    /// The first and the last nominal time that it covers, if it covers several.
    pub window: Option<(Timestamp, Timestamp)>,
    /// `succeeded` or `failed`.
    pub status: CommandStatus,
    /// Why not all of its tasks were started.
    pub error: Option<Failure>,
    /// When it began.
    pub started_at: Timestamp,
    /// When it had started the last of its tasks.
    pub finished_at: Timestamp,
}

/// A task that an activity started.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRow {
    /// `task-{run_id}:{task_type}:{index}`.
    pub id: String,
    /// The activity's run.
    pub run_id: String,
    /// What kind of task.
    pub task_type: String,
    /// Which one of that kind.
    pub idx: i64,
    /// What it was given, as JSON.
    pub params: String,
    /// What its run is now. Read from the run; it is not noted.
    pub status: Option<RunStatus>,
    /// When it was started.
    pub created_at: Timestamp,
}

/// Notes an activity's execution and its tasks; what is there already is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct LogActivity {
    /// The workspace.
    pub workspace: String,
    /// The execution.
    pub run: ActivityRow,
    /// Its tasks.
    pub tasks: Vec<TaskRow>,
}

/// How many rows were new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged(pub u64);

/// Asks for executions of an activity, by id.
#[derive(Debug, Clone, PartialEq)]
pub struct ListActivities {
    /// The workspace.
    pub workspace: String,
    /// The activity.
    pub activity_id: String,
    /// Most executions.
    pub limit: usize,
}

/// Executions with their tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct Activities(pub Vec<(ActivityRow, Vec<TaskRow>)>);
