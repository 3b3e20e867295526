//! Commands: submitted with their run, moved by what happens to it, and with an event for every
//! move.
//!
//! Invariants: a key belongs to one command for ever; a command and its run change in one commit;
//! runs are locked before commands, so that nobody waits in a circle; every move takes an arrow of
//! the lifecycle and writes its event.

use steadfast_core::{
    CommandEvent, CommandStatus, Error as Failure, ErrorClass, RunStatus, Timestamp,
};

use super::dependency::{self, Standing};
use super::event::{self, Happening};
use super::{approval, rows, start, steer};
use crate::error::Error;
use crate::gate::{Tx, first, params};
use crate::op::{
    CancelCommand, CommandCancelled, CommandRef, CommandRow, Hold, Lease, Start, Submit, Submitted,
};

/// Who else wanted a command is listed up to here; beyond it, only counted.
pub(super) const DUPLICATES: i64 = 100;

pub(super) async fn submit(tx: &mut impl Tx, op: &Submit) -> Result<Submitted, Error> {
    let ws = op.start.workspace.as_str();
    let Some(place) = start::place(tx, &op.start).await? else {
        return refused(tx, op, Submitted::NoQueue).await;
    };
    let standing = match dependency::standing(tx, ws, &op.after).await? {
        Ok(standing) => standing,
        Err(missing) => return refused(tx, op, Submitted::NoParent(missing)).await,
    };
    // What has expired already is not begun; whoever takes it from its queue ends it.
    let expired = op.expires_at.is_some_and(|at| at <= op.start.now);
    let run = match expired || op.by_queue {
        true => &Start { claim: None, ..(*op.start).clone() },
        false => &*op.start,
    };
    let claimed = run.claim.is_some() && place.is_open();
    let path = path(&standing, claimed, op.hold.as_ref())?;
    // Written first: most commands are new, and the keys themselves tell those that are not.
    if !insert(tx, op, &path, &standing).await? {
        let gone = || Error::Transient("the command was removed meanwhile".to_owned());
        let found = existing(tx, op).await?.ok_or_else(gone)?;
        return met_again(tx, op, &found).await;
    }
    let lease = match standing {
        _ if op.hold.is_some() && is_taken(tx, op).await? => return without_run(tx, op).await,
        _ if op.hold.is_some() => None,
        Standing::Met if start::insert(tx, run, &place).await? => start::first_lease(run, &place),
        Standing::Met => return without_run(tx, op).await,
        _ if is_taken(tx, op).await? => return without_run(tx, op).await,
        _ => None,
    };
    for parent in &op.after {
        dependency::add(tx, ws, &op.command_id, parent).await?;
    }
    event::path(tx, op, &path).await?;
    if let Some(judgement) = &op.judgement {
        event::judged(tx, op, judgement).await?;
    }
    if let Some(Hold::Approval(asked)) = &op.hold {
        approval::ask(tx, ws, &op.command_id, "", asked, op.start.now).await?;
    }
    let status = path.last().copied().unwrap_or(CommandStatus::Created);
    Ok(Submitted::New(status, lease))
}

/// A refusal, unless the command is there already: then it was not refused before.
async fn refused(tx: &mut impl Tx, op: &Submit, refusal: Submitted) -> Result<Submitted, Error> {
    match existing(tx, op).await? {
        Some(found) => met_again(tx, op, &found).await,
        None => Ok(refusal),
    }
}

async fn is_taken(tx: &mut impl Tx, op: &Submit) -> Result<bool, Error> {
    let at = params! { workspace: &op.start.workspace, run_id: &op.start.run_id };
    Ok(first(tx, "run_get", at).await?.is_some())
}

/// Takes a new command back: a run that belongs to no command has its run's id.
async fn without_run(tx: &mut impl Tx, op: &Submit) -> Result<Submitted, Error> {
    let at = params! { workspace: &op.start.workspace, command_id: &op.command_id };
    tx.execute("command_delete", at).await?;
    Ok(Submitted::RunTaken)
}

/// The statuses that a new command passes, in order.
fn path(
    standing: &Standing,
    claimed: bool,
    hold: Option<&Hold>,
) -> Result<Vec<CommandStatus>, Error> {
    let mut events = vec![CommandEvent::Validate];
    match (hold, standing) {
        (Some(Hold::Denied(_)), _) => events.push(CommandEvent::Fail),
        (Some(Hold::Approval(_)), _) => events.push(CommandEvent::AskApproval),
        (Some(Hold::Input(_)), _) => events.push(CommandEvent::AskInput),
        (None, Standing::Met) if claimed => events.extend([CommandEvent::Queue, CommandEvent::Run]),
        (None, Standing::Met) => events.push(CommandEvent::Queue),
        (None, Standing::Waiting) => {}
        (None, Standing::Lost { propagate: true, .. }) => events.push(CommandEvent::Cancel),
        (None, Standing::Lost { propagate: false, .. }) => events.push(CommandEvent::Fail),
    }
    let mut path = vec![CommandStatus::Created];
    for event in events {
        let from = path[path.len() - 1];
        path.push(arrow(from, event)?);
    }
    Ok(path)
}

pub(super) fn arrow(from: CommandStatus, event: CommandEvent) -> Result<CommandStatus, Error> {
    let taken = from.on(event).map_err(|refused| Error::Incompatible(refused.to_string()))?;
    Ok(taken.to())
}

async fn insert(
    tx: &mut impl Tx,
    op: &Submit,
    path: &[CommandStatus],
    standing: &Standing,
) -> Result<bool, Error> {
    let [.., before, status] = path else {
        return Err(Error::Incompatible("a command is born validated".to_owned()));
    };
    let waits = matches!(
        status,
        CommandStatus::Validated
            | CommandStatus::WaitingForApproval
            | CommandStatus::WaitingForInput
    );
    let begins = waits || *status == CommandStatus::Queued;
    let due = op.expires_at.filter(|_| begins).unwrap_or(Timestamp::NEVER);
    let launch = waits.then(|| Launch::of(&op.start).to_text());
    let error = match (standing, &op.hold) {
        (_, Some(Hold::Denied(error))) => Some(rows::error_text(error)),
        (_, Some(_)) => None,
        (Standing::Lost { parent, .. }, _) => Some(rows::error_text(&dependency::lost(parent))),
        (Standing::Met | Standing::Waiting, _) => None,
    };
    let new = params! {
        workspace: &op.start.workspace, command_id: &op.command_id,
        command_type: &op.command_type, requested_by: &op.requested_by, ingress: &op.ingress,
        payload: &op.start.input, context: op.start.context.as_deref().unwrap_or("{}"),
        status: status.as_str(),
        prev_status: before.as_str(), cancellation_mode: &op.cancellation_mode,
        idempotency_key: op.idempotency_key.as_deref(), workflow_id: &op.start.run_id,
        expires_at: op.expires_at, due_at: due, events: path.len(), nonce: op.start.seed,
        launch: launch, error: error,
        completed_at: status.is_terminal().then_some(op.start.now),
        now: op.start.now,
    };
    Ok(tx.execute("command_insert", new).await? == 1)
}

/// The command that has the key, the run or the id of this one.
async fn existing(tx: &mut impl Tx, op: &Submit) -> Result<Option<CommandRow>, Error> {
    let ws = op.start.workspace.as_str();
    if let Some(key) = &op.idempotency_key {
        let found = find(tx, ws, &CommandRef::Key(key.clone())).await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    let found = find(tx, ws, &CommandRef::Run(op.start.run_id.clone())).await?;
    if found.is_some() {
        return Ok(found);
    }
    find(tx, ws, &CommandRef::Id(op.command_id.clone())).await
}

pub(super) async fn find(
    tx: &mut impl Tx,
    ws: &str,
    which: &CommandRef,
) -> Result<Option<CommandRow>, Error> {
    let row = match which {
        CommandRef::Id(id) => {
            first(tx, "command_get", params! { workspace: ws, command_id: id }).await?
        }
        CommandRef::Key(key) => {
            first(tx, "command_by_key", params! { workspace: ws, idempotency_key: key }).await?
        }
        CommandRef::Run(id) => {
            first(tx, "command_by_run", params! { workspace: ws, workflow_id: id }).await?
        }
    };
    row.map(rows::command).transpose()
}

/// The same again is counted; something else under the same name is a conflict.
async fn met_again(tx: &mut impl Tx, op: &Submit, found: &CommandRow) -> Result<Submitted, Error> {
    let (ws, id) = (op.start.workspace.as_str(), found.command_id.as_str());
    let locked = lock(tx, ws, id).await?;
    if found.command_id == op.command_id
        && locked.as_ref().is_some_and(|c| c.nonce == op.start.seed)
    {
        // Our own earlier success, whose answer was lost.
        return Ok(Submitted::New(found.status, first_lease(tx, op).await?));
    }
    if found.command_type != op.command_type {
        return Ok(Submitted::Conflict(id.to_owned(), "command_type"));
    }
    if found.payload != op.start.input {
        return Ok(Submitted::Conflict(id.to_owned(), "payload"));
    }
    let seen = params! {
        workspace: ws, command_id: id, nonce: op.start.seed, requested_by: &op.requested_by,
        ingress: &op.ingress, now: op.start.now,
    };
    if found.collapsed >= DUPLICATES || tx.execute("duplicate_insert", seen).await? == 1 {
        tx.execute("command_collapse", seen).await?;
    }
    Ok(Submitted::Existing(id.to_owned(), found.status))
}

/// The lease of a run that this very submission claimed, if nothing has happened to it since.
async fn first_lease(tx: &mut impl Tx, op: &Submit) -> Result<Option<Lease>, Error> {
    let at = params! { workspace: &op.start.workspace, run_id: &op.start.run_id };
    let run = first(tx, "run_get", at).await?.map(rows::run).transpose()?;
    let mine = run.zip(op.start.claim.as_ref()).is_some_and(|(run, (worker, _))| {
        run.status == RunStatus::Pending && run.worker == *worker && run.epoch == 1
    });
    let claim = op.start.claim.as_ref().filter(|_| mine);
    Ok(claim.map(|(worker, _)| start::lease(&op.start, worker)))
}

/// What is needed to move a command.
pub(super) struct Locked {
    pub(super) status: CommandStatus,
    pub(super) workflow_id: String,
    pub(super) context: String,
    pub(super) events: i64,
    nonce: i64,
    pub(super) launch: Option<String>,
    pub(super) due_at: Timestamp,
}

pub(super) async fn lock(tx: &mut impl Tx, ws: &str, id: &str) -> Result<Option<Locked>, Error> {
    let Some(mut r) = first(tx, "command_lock", params! { workspace: ws, command_id: id }).await?
    else {
        return Ok(None);
    };
    let (status, workflow_id, context) = (rows::command_status(&r.text()?)?, r.text()?, r.text()?);
    let (events, nonce, launch, due_at) = (r.int()?, r.int()?, r.opt_text()?, r.time()?);
    Ok(Some(Locked { status, workflow_id, context, events, nonce, launch, due_at }))
}

/// A move of a locked command.
pub(super) struct Move<'a> {
    pub(super) ws: &'a str,
    pub(super) command_id: &'a str,
    pub(super) event: CommandEvent,
    pub(super) result: Option<&'a str>,
    pub(super) error: Option<&'a Failure>,
    pub(super) actor: &'a str,
    /// For a cancel that waits for a worker: until when.
    pub(super) until: Option<Timestamp>,
    pub(super) now: Timestamp,
}

impl Move<'_> {
    /// Takes the arrow, writes its event. False if there is no such arrow.
    pub(super) async fn take(&self, tx: &mut impl Tx, held: &Locked) -> Result<bool, Error> {
        let Ok(arrow) = held.status.on(self.event) else {
            return Ok(false);
        };
        let to = arrow.to();
        // Only what has not begun expires: a command that is resumed has.
        let waited = matches!(arrow.from(), CommandStatus::Validated | CommandStatus::Approved);
        let due = match to {
            CommandStatus::Queued if waited => Some(held.due_at),
            CommandStatus::Queued => None,
            _ => self.until,
        };
        let set = params! {
            workspace: self.ws, command_id: self.command_id, from: arrow.from().as_str(),
            to: to.as_str(), result: self.result, error: self.error.map(rows::error_text),
            completed_at: to.is_terminal().then_some(self.now),
            due_at: due.unwrap_or(Timestamp::NEVER), now: self.now,
        };
        tx.execute("command_move", set).await?;
        let happening = Happening {
            ws: self.ws,
            command_id: self.command_id,
            number: held.events,
            from: arrow.from(),
            to,
            error: self.error,
            actor: self.actor,
            context: &held.context,
            now: self.now,
        };
        event::moved(tx, &happening).await?;
        Ok(true)
    }
}

pub(super) fn expiry() -> Failure {
    let text = "the command expired before it began; nothing was done";
    Failure::new(ErrorClass::Cancelled, "SF-0510", text)
}

pub(super) async fn cancel(
    tx: &mut impl Tx,
    op: &CancelCommand,
) -> Result<CommandCancelled, Error> {
    let ws = op.workspace.as_str();
    let at = CommandRef::Id(op.command_id.clone());
    let Some(command) = find(tx, ws, &at).await? else {
        return Ok(CommandCancelled::NotFound);
    };
    // The run first: whoever ends it locks in the same order.
    steer::cancel_run(tx, ws, &command.workflow_id, &op.reason, &op.actor, op.now).await?;
    let Some(held) = lock(tx, ws, &op.command_id).await? else {
        return Ok(CommandCancelled::NotFound);
    };
    if stopped_now(&command, held.status) {
        approval::cancel_all(tx, ws, &op.command_id, &op.actor, op.now).await?;
        return Ok(CommandCancelled::Done(held.status));
    }
    if held.status.is_terminal() || held.status == CommandStatus::Compensating {
        // Our own earlier success, whose answer was lost.
        let mine = held.status == CommandStatus::Cancelled
            && command.error.as_ref() == Some(&op.reason)
            && command.updated_at == op.now;
        return Ok(match mine {
            true => CommandCancelled::Done(held.status),
            false => CommandCancelled::AlreadyOver(held.status),
        });
    }
    if held.status != command.status {
        // It began between the look at its run and this one.
        return Err(Error::Transient("the command has moved meanwhile".to_owned()));
    }
    end_waiting(tx, ws, &op.command_id, &held, CommandEvent::Cancel, &op.reason, &op.actor, op.now)
        .await?;
    approval::cancel_all(tx, ws, &op.command_id, &op.actor, op.now).await?;
    Ok(CommandCancelled::Done(CommandStatus::Cancelled))
}

/// Whether the cancel of the run has just cancelled the command.
fn stopped_now(before: &CommandRow, status: CommandStatus) -> bool {
    match status {
        CommandStatus::Cancelling => true,
        CommandStatus::Cancelled | CommandStatus::Compensating => before.status != status,
        _ => false,
    }
}

/// Ends a command that has no run, or whose run is over.
#[allow(clippy::too_many_arguments, reason = "each is a fact about one move")]
pub(super) async fn end_waiting(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
    held: &Locked,
    event: CommandEvent,
    reason: &Failure,
    actor: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let error = Some(reason);
    let moved = Move { ws, command_id, event, result: None, error, actor, until: None, now };
    if moved.take(tx, held).await? {
        dependency::release(tx, ws, command_id, now).await?;
    }
    Ok(())
}

/// The run of a command that waits, as it will be started.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Launch {
    workflow: String,
    queue: String,
    partition: String,
    priority: i64,
    app_version: String,
    max_attempts: i64,
    timeout: Option<std::time::Duration>,
    deadline_at: Option<Timestamp>,
}

impl Launch {
    fn of(start: &Start) -> Self {
        Self {
            workflow: start.workflow.clone(),
            queue: start.queue.clone(),
            partition: start.partition.clone(),
            priority: start.priority,
            app_version: start.app_version.clone(),
            max_attempts: start.max_attempts,
            timeout: start.timeout,
            deadline_at: start.deadline_at,
        }
    }

    fn to_text(&self) -> String {
        serde_json::to_string(self).expect("invariant: a launch is plain data")
    }

    /// The start of a command's run, now that it may begin.
    pub(super) fn start(
        text: &str,
        ws: &str,
        command: CommandRow,
        nonce: i64,
        now: Timestamp,
    ) -> Result<Start, Error> {
        let launch: Self = serde_json::from_str(text)
            .map_err(|e| Error::Incompatible(format!("a stored launch is damaged: {e}")))?;
        Ok(Start {
            workspace: ws.to_owned(),
            run_id: command.workflow_id,
            workflow: launch.workflow,
            input: command.payload,
            queue: launch.queue,
            partition: launch.partition,
            priority: launch.priority,
            dedupe_id: String::new(),
            app_version: launch.app_version,
            max_attempts: launch.max_attempts,
            ready_at: now,
            timeout: launch.timeout,
            deadline_at: launch.deadline_at,
            parent: String::new(),
            detached: false,
            seed: nonce,
            context: Some(command.context),
            claim: None,
            rest: None,
            now,
        })
    }
}

impl Locked {
    pub(super) fn nonce(&self) -> i64 {
        self.nonce
    }

    /// When its time is up, if there is such a time.
    pub(super) fn due(&self) -> Option<Timestamp> {
        (self.due_at != Timestamp::NEVER).then_some(self.due_at)
    }
}
