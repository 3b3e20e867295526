//! Taking back: what failed or was cancelled gets a run that undoes it, and ends as that run does.

use steadfast_core::command::{Context, Undoing};
use steadfast_core::{
    CommandEvent, CommandStatus, EffectStatus, Error, ErrorClass, RunEvent, Timestamp,
};
use steadfast_store::op::{
    COMPENSATE, CommandRow, EffectRow, Resumed, RunRow, Start, Started, TakeBack, TakenBack,
    undo_run_id, undo_run_ids,
};

use super::command::Step;
use super::{Model, key};

/// Who takes back.
const ACTOR: &str = "system:saga";

/// Whether an effect is done or may be, has a way back and has not gone it.
fn has_way_back(effect: &EffectRow) -> bool {
    let ended = matches!(effect.status, EffectStatus::Planned | EffectStatus::Failed);
    !ended && effect.compensation.is_some() && is_forward(effect)
}

fn is_forward(effect: &EffectRow) -> bool {
    effect.compensates.is_none() && effect.compensated_at.is_none()
}

/// What is undone, or settled before that.
pub(super) fn is_to_undo(effect: &EffectRow) -> bool {
    has_way_back(effect) || effect.status == EffectStatus::Executing && is_forward(effect)
}

/// Whether a cancel of this command takes back.
pub(super) fn takes_back(command: &CommandRow) -> bool {
    command.cancellation_mode == "compensate_then_stop"
}

impl Model {
    /// Begins to take back what a command has done; false if there is nothing.
    pub(super) fn undo(&mut self, ws: &str, id: &str, why: Undoing, now: Timestamp) -> bool {
        self.undo_by(ws, id, why, ACTOR, now)
    }

    /// Takes a failed command back, once more.
    pub(super) fn take_back(&mut self, op: &TakeBack) -> TakenBack {
        let (ws, id) = (op.workspace.as_str(), op.command_id.as_str());
        let Some(command) = self.commands.get(&key(ws, id)).cloned() else {
            return TakenBack::NotFound;
        };
        if let Some(told) = self.events.get(&key(ws, &op.told_as()))
            && told.actor == op.actor
        {
            let said: serde_json::Value = serde_json::from_str(&told.payload).unwrap();
            return TakenBack::Begun(said["run_id"].as_str().unwrap().to_owned());
        }
        if command.row.status != CommandStatus::Failed {
            return TakenBack::NotFailed(command.row.status);
        }
        let last = self.last_undo(ws, &command.row.workflow_id, command.events - 1);
        let last = last.and_then(|run_id| self.run(ws, &run_id).cloned());
        let context = last.and_then(|run| Context::parse(run.context.as_deref()?).ok());
        let why = context.and_then(|context| context.undo).unwrap_or(Undoing::Failure);
        if !self.undo_by(ws, id, why, &op.actor, op.now) {
            return TakenBack::Nothing;
        }
        let begun = self.undoing(ws, id).expect("invariant: it has begun");
        self.runs.edit(&key(ws, &begun), |run| run.app_version.clear());
        let (payload, kind) = (serde_json::json!({ "run_id": begun }), "command.take_back");
        let context = &command.row.context;
        self.audit(ws, id, context, op.told_as(), kind, &payload, &op.actor, op.now);
        TakenBack::Begun(begun)
    }

    fn undo_by(&mut self, ws: &str, id: &str, why: Undoing, actor: &str, now: Timestamp) -> bool {
        let to_undo = self.effects_of(ws).any(|e| e.command_id == id && has_way_back(e));
        let Some(command) = self.commands.get(&key(ws, id)).cloned().filter(|_| to_undo) else {
            return false;
        };
        let step = Step::new(CommandEvent::Compensate, actor, now);
        let own = self.run(ws, &command.row.workflow_id).and_then(|run| run.error.clone());
        let cause = match command.row.status {
            CommandStatus::Failed => own.or_else(|| command.row.error.clone()),
            _ => command.row.error.clone(),
        };
        if !self.step(ws, id, &Step { error: cause.as_ref(), ..step }) {
            return false;
        }
        let number = self.commands.get(&key(ws, id)).map_or(0, |command| command.events);
        let run = self.run(ws, &command.row.workflow_id).cloned();
        let context = Context::parse(&command.row.context).unwrap_or_default();
        let of = |field: fn(&RunRow) -> String| run.as_ref().map(field).unwrap_or_default();
        let queue = of(|run| run.queue.clone());
        let mut start = Start {
            workspace: ws.to_owned(),
            run_id: undo_run_id(&command.row.workflow_id, number),
            workflow: COMPENSATE.to_owned(),
            input: serde_json::json!({ "command_id": id }).to_string(),
            queue: if queue.is_empty() { "default".to_owned() } else { queue },
            partition: of(|run| run.partition.clone()),
            priority: run.as_ref().map_or(0, |run| run.priority),
            dedupe_id: String::new(),
            app_version: of(|run| run.app_version.clone()),
            max_attempts: run.as_ref().map_or(100, |run| run.max_attempts),
            ready_at: now,
            timeout: None,
            deadline_at: None,
            parent: String::new(),
            detached: false,
            seed: command.start.seed,
            context: Some(Context { undo: Some(why), ..context }.to_text()),
            claim: None,
            rest: None,
            now,
        };
        if self.start(&start) == Started::NoQueue {
            "default".clone_into(&mut start.queue);
            start.partition.clear();
            self.start(&start);
        }
        true
    }

    /// A run that nobody executes was stopped: its command is over, or takes back.
    pub(super) fn stopped(&mut self, ws: &str, row: &CommandRow, step: &Step<'_>) {
        let id = row.command_id.as_str();
        self.cancel_approvals(ws, id, step.actor, step.now);
        let by = |event| Step { event, ..*step };
        if takes_back(row) && self.step(ws, id, &by(CommandEvent::Stop)) {
            if self.undo(ws, id, Undoing::Cancel, step.now) {
                return;
            }
            self.step(ws, id, &by(CommandEvent::Cancel));
        } else if !self.step(ws, id, step) {
            return;
        }
        self.release_if_over(ws, id, step.now);
    }

    /// The run that is taking a command back, if one is.
    pub(super) fn undoing(&self, ws: &str, id: &str) -> Option<String> {
        let command = self.commands.get(&key(ws, id))?;
        let compensating = command.row.status == CommandStatus::Compensating;
        self.last_undo(ws, &command.row.workflow_id, command.events).filter(|_| compensating)
    }

    fn last_undo(&self, ws: &str, workflow_id: &str, events: i64) -> Option<String> {
        undo_run_ids(workflow_id, events).find(|id| self.run(ws, id).is_some())
    }

    /// The command that a run takes back, or took back until it halted, and why.
    fn undone_by(&self, ws: &str, run: &RunRow) -> Option<(CommandRow, i64, Undoing)> {
        let context = Context::parse(run.context.as_deref()?).ok()?;
        let why = context.undo?;
        let command = self.commands.get(&key(ws, &context.command_id))?;
        let events = match command.row.status {
            CommandStatus::Compensating => command.events,
            CommandStatus::Failed => command.events - 1,
            _ => return None,
        };
        let mut ids = undo_run_ids(&command.row.workflow_id, events);
        ids.any(|id| id == run.run_id).then(|| (command.row.clone(), events, why))
    }

    /// Why a stopped run cannot go on, as its command has it.
    pub(super) fn forbids(&self, ws: &str, run: &RunRow) -> Option<Resumed> {
        let stays = Some(Resumed::NotStopped(run.status));
        if let Some(row) = self.command_of(ws, run) {
            let open =
                |e: &EffectRow| !matches!(e.status, EffectStatus::Planned | EffectStatus::Failed);
            let undone =
                |e: &EffectRow| e.compensated_at.is_some() || e.compensates.is_some() && open(e);
            if self.effects_of(ws).any(|e| e.command_id == row.command_id && undone(e)) {
                return Some(Resumed::TakenBack);
            }
            return if row.status.on(CommandEvent::Queue).is_err() { stays } else { None };
        }
        if run.workflow != COMPENSATE {
            return None;
        }
        let last = self.undone_by(ws, run).and_then(|(row, events, _)| {
            let halted = row.status == CommandStatus::Failed;
            self.last_undo(ws, &row.workflow_id, events).filter(|_| halted)
        });
        if last.as_ref() == Some(&run.run_id) { None } else { stays }
    }

    /// The run that takes back has ended, or goes on after it was stopped.
    pub(super) fn undoing_ended(
        &mut self,
        ws: &str,
        run: &RunRow,
        event: RunEvent,
        error: Option<&Error>,
        now: Timestamp,
    ) {
        let Some((row, _, why)) = self.undone_by(ws, run) else { return };
        let id = row.command_id.as_str();
        let own = self.run(ws, &row.workflow_id).and_then(|run| run.error.clone());
        let cause = match event {
            RunEvent::Resume => own.or(row.error),
            _ => row.error,
        };
        let halted = error.map(|error| {
            let first = cause.as_ref().map_or("stopped", Error::message);
            let text = format!(
                "{first}; and what it had done was not all taken back: {}",
                error.message()
            );
            Error::new(ErrorClass::Application, "SF-0831", text).permanent()
        });
        let (event, error) = match event {
            RunEvent::Succeed => (CommandEvent::Succeed, cause.as_ref()),
            RunEvent::Resume => (CommandEvent::Compensate, cause.as_ref()),
            RunEvent::Claim => return,
            RunEvent::Fail | RunEvent::Exhaust | RunEvent::Cancel => {
                (CommandEvent::Fail, halted.as_ref())
            }
        };
        let step = Step { error, ..Step::new(event, ACTOR, now) };
        if !self.step(ws, id, &step) || event == CommandEvent::Compensate {
            return;
        }
        if event == CommandEvent::Succeed && why == Undoing::Cancel {
            self.step(ws, id, &Step { event: CommandEvent::Cancel, ..step });
        }
        self.release_if_over(ws, id, now);
    }
}
