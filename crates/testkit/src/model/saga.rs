//! Taking back: what failed or was cancelled gets a run that undoes it, and ends as that run does.

use steadfast_core::command::{Context, Undoing};
use steadfast_core::{CommandEvent, EffectStatus, Error, ErrorClass, RunEvent, Timestamp};
use steadfast_store::op::{COMPENSATE, CommandRow, EffectRow, RunRow, Start, Started, undo_run_id};

use super::command::Step;
use super::{Model, key};

/// Who takes back.
const ACTOR: &str = "system:saga";

/// Whether an effect is done, has a way back and has not gone it.
pub(super) fn is_to_undo(effect: &EffectRow) -> bool {
    effect.status == EffectStatus::Succeeded
        && effect.compensation.is_some()
        && effect.compensates.is_none()
        && effect.compensated_at.is_none()
}

/// Whether a cancel of this command takes back.
pub(super) fn takes_back(command: &CommandRow) -> bool {
    command.cancellation_mode == "compensate_then_stop"
}

impl Model {
    /// Begins to take back what a command has done; false if there is nothing.
    pub(super) fn undo(&mut self, ws: &str, id: &str, why: Undoing, now: Timestamp) -> bool {
        let to_undo = self.effects_of(ws).any(|e| e.command_id == id && is_to_undo(e));
        let Some(command) = self.commands.get(&key(ws, id)).cloned().filter(|_| to_undo) else {
            return false;
        };
        let step = Step::new(CommandEvent::Compensate, ACTOR, now);
        if !self.step(ws, id, &Step { error: command.row.error.as_ref(), ..step }) {
            return false;
        }
        let run = self.run(ws, &command.row.workflow_id).cloned();
        let context = Context::parse(&command.row.context).unwrap_or_default();
        let of = |field: fn(&RunRow) -> String| run.as_ref().map(field).unwrap_or_default();
        let queue = of(|run| run.queue.clone());
        let mut start = Start {
            workspace: ws.to_owned(),
            run_id: undo_run_id(&command.row.workflow_id),
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

    /// The run that takes back has ended.
    pub(super) fn undoing_ended(
        &mut self,
        ws: &str,
        run: &RunRow,
        event: RunEvent,
        error: Option<&Error>,
        now: Timestamp,
    ) {
        let context = run.context.as_deref().and_then(|text| Context::parse(text).ok());
        let Some((context, why)) = context.and_then(|c| Some((c.clone(), c.undo?))) else {
            return;
        };
        let id = context.command_id.as_str();
        let Some(row) = self.commands.get(&key(ws, id)).map(|command| command.row.clone()) else {
            return;
        };
        if undo_run_id(&row.workflow_id) != run.run_id {
            return;
        }
        let cause = row.error;
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
            RunEvent::Claim | RunEvent::Resume => return,
            RunEvent::Fail | RunEvent::Exhaust | RunEvent::Cancel => {
                (CommandEvent::Fail, halted.as_ref())
            }
        };
        let step = Step { error, ..Step::new(event, ACTOR, now) };
        if !self.step(ws, id, &step) {
            return;
        }
        if event == CommandEvent::Succeed && why == Undoing::Cancel {
            self.step(ws, id, &Step { event: CommandEvent::Cancel, ..step });
        }
        self.release_if_over(ws, id, now);
    }
}
