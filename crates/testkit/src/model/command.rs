//! Commands: one for each key, moved by what happens to their runs, each move with its event.
//!
//! Invariants: a command has the status its run gives it, by the arrows of the lifecycle alone;
//! what waits for a command is looked at when the command ends.

use steadfast_core::command::{Context, Undoing};
use steadfast_core::{
    CommandEvent, CommandStatus, Error, ErrorClass, RunEvent, RunStatus, Timestamp,
};
use steadfast_store::op::{
    Cancel, CancelCommand, CommandCancelled, CommandRef, CommandRow, Duplicate, EventRow, Hold,
    Lease, RunRow, SlotRow, Start, Started, Submit, Submitted,
};

use super::dependency::{Standing, lost, standing};
use super::{Model, key};

/// A command, and what is kept beside it.
#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) row: CommandRow,
    pub(super) due_at: Timestamp,
    pub(super) events: i64,
    pub(super) start: Start,
}

/// A move of a command: what happened, with what, by whom.
pub(super) struct Step<'a> {
    pub(super) event: CommandEvent,
    pub(super) result: Option<&'a str>,
    pub(super) error: Option<&'a Error>,
    pub(super) actor: &'a str,
    pub(super) until: Option<Timestamp>,
    pub(super) now: Timestamp,
}

impl<'a> Step<'a> {
    pub(super) fn new(event: CommandEvent, actor: &'a str, now: Timestamp) -> Self {
        Self { event, result: None, error: None, actor, until: None, now }
    }
}

impl Model {
    pub(super) fn submit(&mut self, op: &Submit) -> Submitted {
        let ws = op.start.workspace.as_str();
        if let Some(found) = self.same_command(op) {
            return self.submitted_again(op, &found);
        }
        let Some(queue) = self.queue_or_default(ws, &op.start.queue) else {
            return Submitted::NoQueue;
        };
        let statuses: Vec<_> = op.after.iter().map(|p| self.status_of(ws, &p.command_id)).collect();
        if let Some(at) = statuses.iter().position(Option::is_none) {
            return Submitted::NoParent(op.after[at].command_id.clone());
        }
        if self.run(ws, &op.start.run_id).is_some() {
            return Submitted::RunTaken;
        }
        let standing = standing(op.after.iter().zip(statuses.into_iter().flatten()));
        let expired = op.expires_at.is_some_and(|at| at <= op.start.now);
        let claim = op.start.claim.clone().filter(|_| !expired && !op.by_queue);
        let run = Start { claim, ..(*op.start).clone() };
        let claimed = run.claim.is_some() && super::start::has_no_limits(&queue);
        let path = match (&op.hold, &standing) {
            (Some(Hold::Denied(_)), _) => vec![CommandEvent::Fail],
            (Some(Hold::Approval(_)), _) => vec![CommandEvent::AskApproval],
            (Some(Hold::Input(_)), _) => vec![CommandEvent::AskInput],
            (None, Standing::Met) if claimed => vec![CommandEvent::Queue, CommandEvent::Run],
            (None, Standing::Met) => vec![CommandEvent::Queue],
            (None, Standing::Waiting) => vec![],
            (None, Standing::Lost { propagate: true, .. }) => vec![CommandEvent::Cancel],
            (None, Standing::Lost { propagate: false, .. }) => vec![CommandEvent::Fail],
        };
        self.commands.put(
            key(ws, &op.command_id),
            Command {
                row: new_row(op),
                due_at: op.expires_at.unwrap_or(Timestamp::NEVER),
                events: 0,
                start: (*op.start).clone(),
            },
        );
        for parent in &op.after {
            let at = (ws.to_owned(), op.command_id.clone(), parent.command_id.clone());
            if !self.dependencies.has(&at) {
                self.dependencies.put(at, parent.clone());
            }
        }
        self.born(op, &path, &standing);
        let status = self.status_of(ws, &op.command_id).expect("invariant: just written");
        if let Some(Hold::Approval(asked)) = &op.hold {
            self.ask(ws, &op.command_id, "", asked, op.start.now);
        }
        if standing != Standing::Met || op.hold.is_some() {
            return Submitted::New(status, None);
        }
        match self.start(&run) {
            Started::New(lease) => Submitted::New(status, lease),
            other => unreachable!("invariant: the run is new: {other:?}"),
        }
    }

    /// The first events of a command, and where they lead.
    fn born(&mut self, op: &Submit, path: &[CommandEvent], standing: &Standing) {
        let ws = op.start.workspace.clone();
        let at = key(&ws, &op.command_id);
        let mut status = CommandStatus::Created;
        let created = serde_json::json!({
            "command_type": op.command_type,
            "idempotency_key": op.idempotency_key,
            "ingress": op.ingress,
            "requested_by": op.requested_by,
        });
        let mut payload = created.to_string();
        let moves = [None].into_iter().chain([Some(CommandEvent::Validate)]);
        for event in moves.chain(path.iter().copied().map(Some)) {
            if let Some(event) = event {
                status = status.on(event).expect("invariant: a legal path").to();
            }
            let (actor, trace) = (op.requested_by.clone(), op.trace_id.clone());
            self.tell(&ws, &op.command_id, status, payload, actor, trace, op.start.now);
            payload = "{}".to_owned();
        }
        let error = match (&op.hold, standing) {
            (Some(Hold::Denied(error)), _) => Some(error.clone()),
            (Some(_), _) => None,
            (None, Standing::Lost { parent, .. }) => Some(lost(parent)),
            (None, Standing::Met | Standing::Waiting) => None,
        };
        if let Some(judgement) = &op.judgement {
            let event_id = format!("evt_{}_000001p", op.command_id);
            self.put_event(
                &ws,
                EventRow {
                    event_id,
                    command_id: op.command_id.clone(),
                    purpose: "audit".to_owned(),
                    event_type: "policy.evaluated".to_owned(),
                    payload: judgement.clone(),
                    actor: op.requested_by.clone(),
                    trace_id: op.trace_id.clone(),
                    created_at: op.start.now,
                },
            );
        }
        self.commands.edit(&at, |command| {
            command.row.status = status;
            command.row.error = error;
            let begins = matches!(
                status,
                CommandStatus::Validated
                    | CommandStatus::Queued
                    | CommandStatus::WaitingForApproval
                    | CommandStatus::WaitingForInput
            );
            if !begins {
                command.due_at = Timestamp::NEVER;
            }
            command.row.completed_at = status.is_terminal().then_some(op.start.now);
        });
    }

    #[allow(clippy::too_many_arguments, reason = "the columns of an event")]
    fn tell(
        &mut self,
        ws: &str,
        command_id: &str,
        status: CommandStatus,
        payload: String,
        actor: String,
        trace_id: String,
        now: Timestamp,
    ) {
        let mut number = 0;
        self.commands.edit(&key(ws, command_id), |command| {
            number = command.events;
            command.events += 1;
        });
        let event_id = format!("evt_{command_id}_{number:06}");
        self.events.put(
            key(ws, &event_id),
            EventRow {
                event_id: event_id.clone(),
                command_id: command_id.to_owned(),
                purpose: "event".to_owned(),
                event_type: format!("command.{status}"),
                payload,
                actor,
                trace_id,
                created_at: now,
            },
        );
    }

    pub(super) fn status_of(&self, ws: &str, command_id: &str) -> Option<CommandStatus> {
        self.commands.get(&key(ws, command_id)).map(|command| command.row.status)
    }

    pub(super) fn commands_of(&self, ws: &str) -> impl DoubleEndedIterator<Item = &Command> {
        let all = self.commands.iter().filter(move |((of, _), _)| of == ws);
        all.map(|(_, command)| command).collect::<Vec<_>>().into_iter()
    }

    fn same_command(&self, op: &Submit) -> Option<CommandRow> {
        let ws = op.start.workspace.as_str();
        let keyed = op.idempotency_key.clone().map(CommandRef::Key);
        let ways = [
            keyed,
            Some(CommandRef::Run(op.start.run_id.clone())),
            Some(CommandRef::Id(op.command_id.clone())),
        ];
        ways.into_iter().flatten().find_map(|way| self.find_command(ws, &way))
    }

    pub(super) fn find_command(&self, ws: &str, which: &CommandRef) -> Option<CommandRow> {
        let is = |row: &CommandRow| match which {
            CommandRef::Id(id) => row.command_id == *id,
            CommandRef::Key(key) => row.idempotency_key.as_ref() == Some(key),
            CommandRef::Run(id) => row.workflow_id == *id,
        };
        self.commands_of(ws).map(|command| &command.row).find(|row| is(row)).cloned()
    }

    fn submitted_again(&mut self, op: &Submit, found: &CommandRow) -> Submitted {
        let (ws, id) = (op.start.workspace.as_str(), found.command_id.clone());
        let seed = self.commands.get(&key(ws, &id)).map(|command| command.start.seed);
        if found.command_id == op.command_id && seed == Some(op.start.seed) {
            return Submitted::New(found.status, self.lease_of_submission(op));
        }
        if found.command_type != op.command_type {
            return Submitted::Conflict(id, "command_type");
        }
        if found.payload != op.start.input {
            return Submitted::Conflict(id, "payload");
        }
        let at = (ws.to_owned(), id.clone(), op.start.seed);
        let listed = found.collapsed >= 100;
        if !listed && !self.duplicates.has(&at) {
            self.duplicates.put(
                at,
                Duplicate {
                    requested_by: op.requested_by.clone(),
                    ingress: op.ingress.clone(),
                    at: op.start.now,
                },
            );
            self.commands.edit(&key(ws, &id), |command| command.row.collapsed += 1);
        } else if listed {
            self.commands.edit(&key(ws, &id), |command| command.row.collapsed += 1);
        }
        Submitted::Existing(id, found.status)
    }

    fn lease_of_submission(&self, op: &Submit) -> Option<Lease> {
        let run = self.run(&op.start.workspace, &op.start.run_id)?;
        let (worker, _) = op.start.claim.as_ref()?;
        let mine = run.status == RunStatus::Pending && run.worker == *worker && run.epoch == 1;
        mine.then(|| super::start::first_lease(&op.start, worker))
    }

    /// Takes an arrow; false if there is none.
    pub(super) fn step(&mut self, ws: &str, command_id: &str, step: &Step<'_>) -> bool {
        let at = key(ws, command_id);
        let Some(command) = self.commands.get(&at) else { return false };
        let Ok(arrow) = command.row.status.on(step.event) else { return false };
        let trace = Context::parse(&command.row.context).map(|c| c.trace_id).unwrap_or_default();
        let mut payload = serde_json::json!({ "from": arrow.from().as_str() });
        if let Some(error) = step.error {
            payload["error"] = serde_json::to_value(error).unwrap();
        }
        self.commands.edit(&at, |command| {
            let to = arrow.to();
            command.row.status = to;
            command.row.result = step.result.map(str::to_owned);
            command.row.error = step.error.cloned();
            command.row.updated_at = step.now;
            command.row.completed_at = to.is_terminal().then_some(step.now);
            let waited = matches!(arrow.from(), CommandStatus::Validated | CommandStatus::Approved);
            let due = match to {
                CommandStatus::Queued if waited => Some(command.due_at),
                CommandStatus::Queued => None,
                _ => step.until,
            };
            command.due_at = due.unwrap_or(Timestamp::NEVER);
        });
        let (text, actor) = (payload.to_string(), step.actor.to_owned());
        self.tell(ws, command_id, arrow.to(), text, actor, trace, step.now);
        true
    }

    /// The command that a run carries out.
    pub(super) fn command_of(&self, ws: &str, run: &RunRow) -> Option<CommandRow> {
        let context = Context::parse(run.context.as_deref()?).ok()?;
        let command = self.commands.get(&key(ws, &context.command_id))?;
        let carries = context.undo.is_none() && command.row.workflow_id == run.run_id;
        carries.then(|| command.row.clone())
    }

    pub(super) fn command_claimed(&mut self, ws: &str, run: &RunRow, worker: &str, now: Timestamp) {
        if let Some(row) = self.command_of(ws, run).filter(|c| c.status == CommandStatus::Queued) {
            self.step(ws, &row.command_id, &Step::new(CommandEvent::Run, worker, now));
        }
    }

    /// Something ended a run, or put it back: its command follows. `run` is as it was before.
    pub(super) fn command_follows(
        &mut self,
        ws: &str,
        run: &RunRow,
        event: RunEvent,
        (result, error): (Option<&str>, Option<&Error>),
        actor: &str,
        now: Timestamp,
    ) {
        let Some(row) = self.command_of(ws, run) else {
            return self.undoing_ended(ws, run, event, error, now);
        };
        let outside = !matches!(event, RunEvent::Succeed | RunEvent::Fail);
        let until = (outside && !run.worker.is_empty()).then_some(run.wake_at);
        let event = match event {
            RunEvent::Succeed => CommandEvent::Succeed,
            RunEvent::Cancel if until.is_some() => CommandEvent::Stop,
            RunEvent::Cancel => CommandEvent::Cancel,
            RunEvent::Resume => CommandEvent::Queue,
            RunEvent::Fail | RunEvent::Exhaust | RunEvent::Claim => CommandEvent::Fail,
        };
        let step = Step { event, result, error, actor, until, now };
        if event == CommandEvent::Cancel {
            return self.stopped(ws, &row, &step);
        }
        if !self.step(ws, &row.command_id, &step) {
            return;
        }
        if event == CommandEvent::Fail {
            self.cancel_approvals(ws, &row.command_id, actor, now);
            if self.undo(ws, &row.command_id, Undoing::Failure, now) {
                let text = "the command that it belongs to has failed and is taken back";
                let reason = Error::new(ErrorClass::Cancelled, "SF-0836", text);
                self.stop_attached(ws, &run.run_id, &reason, now);
            }
        }
        self.release_if_over(ws, &row.command_id, now);
    }

    pub(super) fn cancel_command(&mut self, op: &CancelCommand) -> CommandCancelled {
        let ws = op.workspace.as_str();
        let Some(before) = self.find_command(ws, &CommandRef::Id(op.command_id.clone())) else {
            return CommandCancelled::NotFound;
        };
        self.cancel_run(ws, &before.workflow_id, &op.reason, &op.actor, op.now);
        let status = self.status_of(ws, &op.command_id).expect("invariant: it was there");
        let moved = before.status != status;
        let stopped = matches!(status, CommandStatus::Cancelled | CommandStatus::Compensating);
        if status == CommandStatus::Cancelling || stopped && moved {
            self.cancel_approvals(ws, &op.command_id, &op.actor, op.now);
            return CommandCancelled::Done(status);
        }
        if status.is_terminal() || status == CommandStatus::Compensating {
            let mine = status == CommandStatus::Cancelled
                && before.error.as_ref() == Some(&op.reason)
                && before.updated_at == op.now;
            return match mine {
                true => CommandCancelled::Done(status),
                false => CommandCancelled::AlreadyOver(status),
            };
        }
        let cancel = Step::new(CommandEvent::Cancel, &op.actor, op.now);
        self.step(ws, &op.command_id, &Step { error: Some(&op.reason), ..cancel });
        self.release_if_over(ws, &op.command_id, op.now);
        self.cancel_approvals(ws, &op.command_id, &op.actor, op.now);
        CommandCancelled::Done(CommandStatus::Cancelled)
    }

    pub(super) fn cancel(&mut self, op: &Cancel) -> steadfast_store::op::Cancelled {
        self.cancel_run(&op.workspace, &op.run_id, &op.reason, "system:cancel", op.now)
    }

    /// Ends a run whose command expired before it began, and the command.
    pub(super) fn expire(&mut self, ws: &str, run_id: &str, now: Timestamp) {
        let Some(run) = self.run(ws, run_id).cloned() else { return };
        let Some(row) = self.command_of(ws, &run) else { return };
        let due = self.commands.get(&key(ws, &row.command_id)).map(|command| command.due_at);
        let expired = row.status == CommandStatus::Queued && due.is_some_and(|due| due <= now);
        if expired {
            self.cancel_run(ws, run_id, &expiry(), "system:expiry", now);
        }
    }

    pub(super) fn tell_missed(&mut self, ws: &str, trigger_id: &str, slot: &SlotRow) {
        let event_id = format!("evt_{trigger_id}@{:016x}", slot.nominal_at.as_micros());
        if self.events.has(&key(ws, &event_id)) {
            return;
        }
        let payload = serde_json::json!({
            "trigger_id": trigger_id,
            "scheduled_for": slot.nominal_at.iso(),
            "reason": slot.reason,
        });
        self.events.put(
            key(ws, &event_id),
            EventRow {
                event_id,
                command_id: String::new(),
                purpose: "event".to_owned(),
                event_type: "schedule.missed".to_owned(),
                payload: payload.to_string(),
                actor: "system:scheduler".to_owned(),
                trace_id: String::new(),
                created_at: slot.decided_at,
            },
        );
    }

    pub(super) fn is_over(&self, ws: &str, command_id: &str) -> bool {
        let command = self.commands.get(&key(ws, command_id));
        command.is_none_or(|command| command.row.completed_at.is_some())
    }
}

pub(super) fn expiry() -> Error {
    let text = "the command expired before it began; nothing was done";
    Error::new(ErrorClass::Cancelled, "SF-0510", text)
}

fn new_row(op: &Submit) -> CommandRow {
    CommandRow {
        command_id: op.command_id.clone(),
        command_type: op.command_type.clone(),
        requested_by: op.requested_by.clone(),
        ingress: op.ingress.clone(),
        payload: op.start.input.clone(),
        context: op.start.context.clone().unwrap_or_else(|| "{}".to_owned()),
        status: CommandStatus::Created,
        cancellation_mode: op.cancellation_mode.clone(),
        idempotency_key: op.idempotency_key.clone(),
        workflow_id: op.start.run_id.clone(),
        result: None,
        error: None,
        collapsed: 0,
        created_at: op.start.now,
        updated_at: op.start.now,
        completed_at: None,
        expires_at: op.expires_at,
    }
}
