//! Taking back: a command that failed or was cancelled with effects that have a way back gets a run
//! that goes it.
//!
//! Invariants: the run is started in the commit that ends the command's own; it is known by its
//! context and its number, and its end is the command's; a command has one such run at a time.

use steadfast_core::command::{CancellationMode, Context, Undoing};
use steadfast_core::{
    CommandEvent, CommandStatus, Error as Failure, ErrorClass, RunEvent, Timestamp,
};

use super::command::{self, Locked, Move};
use super::{dependency, event, follow, rows, start, steer};
use crate::error::Error;
use crate::gate::{Tx, first, params};
use crate::op::{
    COMPENSATE, CommandRef, CommandRow, RunRow, Start, Started, TakeBack, TakenBack, undo_run_id,
    undo_run_ids,
};

/// Who takes back.
const ACTOR: &str = "system:saga";

/// Begins to take back what a command has done, if there is anything. The command must be in a
/// status from which that is an arrow.
pub(super) async fn begin(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
    why: Undoing,
    now: Timestamp,
) -> Result<bool, Error> {
    Ok(begin_by(tx, ws, command_id, why, ACTOR, now).await?.is_some())
}

/// Whether there is something to take back.
pub(super) async fn is_called_for(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
) -> Result<bool, Error> {
    let of = params! { workspace: ws, command_id: command_id };
    Ok(first(tx, "effect_to_undo", of).await?.is_some())
}

/// The run that takes back, if there is anything.
async fn begin_by(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
    why: Undoing,
    actor: &str,
    now: Timestamp,
) -> Result<Option<String>, Error> {
    if !is_called_for(tx, ws, command_id).await? {
        return Ok(None);
    }
    let found = command::find(tx, ws, &CommandRef::Id(command_id.to_owned())).await?;
    let (Some(row), Some(held)) = (found, command::lock(tx, ws, command_id).await?) else {
        return Ok(None);
    };
    let cause = match held.status {
        CommandStatus::Failed => first_cause(tx, ws, &row).await?,
        _ => row.error.clone(),
    };
    let moved = Move {
        ws,
        command_id,
        event: CommandEvent::Compensate,
        result: None,
        error: cause.as_ref(),
        actor,
        until: None,
        now,
    };
    if !moved.take(tx, &held).await? {
        return Ok(None);
    }
    let mut run = undo_run(tx, ws, &row, &held, why, now).await?;
    if start::start(tx, &run).await? == Started::NoQueue {
        // What must be undone does not wait for a queue that is gone.
        crate::op::DEFAULT_QUEUE.clone_into(&mut run.queue);
        run.partition.clear();
        start::start(tx, &run).await?;
    }
    Ok(Some(run.run_id))
}

/// Somebody wants a failed command taken back: one whose taking back has halted goes on with what
/// is left.
pub(super) async fn again(tx: &mut impl Tx, op: &TakeBack) -> Result<TakenBack, Error> {
    let ws = op.workspace.as_str();
    let at = params! { workspace: ws, command_id: &op.command_id };
    let Some(mut row) = first(tx, "command_peek", at).await? else {
        return Ok(TakenBack::NotFound);
    };
    let (_, workflow_id, events) = (row.text()?, row.text()?, row.int()?);
    let last = latest(tx, ws, &workflow_id, events - 1).await?;
    // Neither goes on meanwhile. Runs first, as everybody does.
    steer::lock(tx, ws, &workflow_id).await?;
    if let Some(last) = &last {
        steer::lock(tx, ws, &last.run_id).await?;
    }
    let Some(held) = command::lock(tx, ws, &op.command_id).await? else {
        return Ok(TakenBack::NotFound);
    };
    if let Some((actor, said)) = event::said(tx, ws, &op.told_as()).await?
        && actor == op.actor
    {
        // Our own earlier success, whose answer was lost.
        return Ok(TakenBack::Begun(said["run_id"].as_str().unwrap_or_default().to_owned()));
    }
    if held.status != CommandStatus::Failed {
        return Ok(TakenBack::NotFailed(held.status));
    }
    if held.events != events {
        return Err(Error::Transient("the command moved since".to_owned()));
    }
    let context = last.and_then(|last| Context::parse(last.context.as_deref()?).ok());
    let why = context.and_then(|context| context.undo).unwrap_or(Undoing::Failure);
    let begun = begin_by(tx, ws, &op.command_id, why, &op.actor, op.now).await?;
    if let Some(run_id) = &begun {
        // It halted, was repaired and deployed: whoever is there now goes on with it.
        let at = params! { workspace: ws, run_id: run_id, app_version: "" };
        tx.execute("run_set_version", at).await?;
        let told = event::Told {
            ws,
            command_id: &op.command_id,
            context: &held.context,
            event_id: op.told_as(),
            event_type: "command.take_back",
            payload: serde_json::json!({ "run_id": run_id }),
            actor: &op.actor,
            now: op.now,
        };
        event::audit(tx, told).await?;
    }
    Ok(begun.map_or(TakenBack::Nothing, TakenBack::Begun))
}

/// The run that takes back: where the command's own run was, by the same version.
async fn undo_run(
    tx: &mut impl Tx,
    ws: &str,
    command: &CommandRow,
    held: &Locked,
    why: Undoing,
    now: Timestamp,
) -> Result<Start, Error> {
    let at = params! { workspace: ws, run_id: &command.workflow_id };
    let run = first(tx, "run_get", at).await?.map(rows::run).transpose()?;
    let context = Context::parse(&command.context);
    let context = context.map_err(|e| Error::Incompatible(e.to_string()))?;
    let context = Context { undo: Some(why), ..context };
    let of = |field: fn(&crate::op::RunRow) -> String| run.as_ref().map(field);
    Ok(Start {
        workspace: ws.to_owned(),
        // The move to `compensating` has added one event.
        run_id: undo_run_id(&command.workflow_id, held.events + 1),
        workflow: COMPENSATE.to_owned(),
        input: serde_json::json!({ "command_id": command.command_id }).to_string(),
        queue: of(|r| r.queue.clone()).unwrap_or_else(|| crate::op::DEFAULT_QUEUE.to_owned()),
        partition: of(|r| r.partition.clone()).unwrap_or_default(),
        priority: run.as_ref().map_or(0, |r| r.priority),
        dedupe_id: String::new(),
        app_version: of(|r| r.app_version.clone()).unwrap_or_default(),
        max_attempts: run.as_ref().map_or(100, |r| r.max_attempts),
        ready_at: now,
        timeout: None,
        deadline_at: None,
        parent: String::new(),
        detached: false,
        seed: held.nonce(),
        context: Some(context.to_text()),
        claim: None,
        rest: None,
        now,
    })
}

/// The run that is taking a command back, if one is. Nothing is locked.
pub(super) async fn undoing(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
) -> Result<Option<String>, Error> {
    let at = params! { workspace: ws, command_id: command_id };
    let Some(mut row) = first(tx, "command_peek", at).await? else {
        return Ok(None);
    };
    let (status, workflow_id, events) = (row.text()?, row.text()?, row.int()?);
    if status != CommandStatus::Compensating.as_str() {
        return Ok(None);
    }
    Ok(latest(tx, ws, &workflow_id, events).await?.map(|run| run.run_id))
}

/// The last run that took a command back, of those that it can be with so many events.
pub(super) async fn latest(
    tx: &mut impl Tx,
    ws: &str,
    workflow_id: &str,
    events: i64,
) -> Result<Option<RunRow>, Error> {
    for run_id in undo_run_ids(workflow_id, events) {
        let at = params! { workspace: ws, run_id: &run_id };
        if let Some(row) = first(tx, "run_get", at).await? {
            return rows::run(row).map(Some);
        }
    }
    Ok(None)
}

/// The run that takes back has ended, or goes on after it was stopped.
pub(super) async fn ended(
    tx: &mut impl Tx,
    end: &follow::End<'_>,
    command_id: &str,
    held: &Locked,
    why: Undoing,
) -> Result<(), Error> {
    let cause = cause(tx, end, command_id).await?;
    let halted = end.error.map(|error| {
        let first = cause.as_ref().map_or("stopped", Failure::message);
        let text =
            format!("{first}; and what it had done was not all taken back: {}", error.message());
        Failure::new(ErrorClass::Application, "SF-0831", text).permanent()
    });
    let (event, error) = match end.event {
        RunEvent::Succeed => (CommandEvent::Succeed, cause.as_ref()),
        RunEvent::Resume => (CommandEvent::Compensate, cause.as_ref()),
        RunEvent::Claim => return Ok(()),
        RunEvent::Fail | RunEvent::Exhaust | RunEvent::Cancel => {
            (CommandEvent::Fail, halted.as_ref())
        }
    };
    let moved = Move {
        ws: end.ws,
        command_id,
        event,
        result: None,
        error,
        actor: ACTOR,
        until: None,
        now: end.now,
    };
    if !moved.take(tx, held).await? || event == CommandEvent::Compensate {
        return Ok(());
    }
    if event == CommandEvent::Succeed
        && why == Undoing::Cancel
        && let Some(held) = command::lock(tx, end.ws, command_id).await?
    {
        Move { event: CommandEvent::Cancel, ..moved }.take(tx, &held).await?;
    }
    dependency::release(tx, end.ws, command_id, end.now).await
}

/// Why the command is taken back. One that halted says so in its error; its run still says why.
async fn cause(
    tx: &mut impl Tx,
    end: &follow::End<'_>,
    command_id: &str,
) -> Result<Option<Failure>, Error> {
    let found = command::find(tx, end.ws, &CommandRef::Id(command_id.to_owned())).await?;
    let Some(row) = found else { return Ok(None) };
    if end.event != RunEvent::Resume {
        return Ok(row.error);
    }
    first_cause(tx, end.ws, &row).await
}

async fn first_cause(
    tx: &mut impl Tx,
    ws: &str,
    row: &CommandRow,
) -> Result<Option<Failure>, Error> {
    let at = params! { workspace: ws, run_id: &row.workflow_id };
    let run = first(tx, "run_get", at).await?.map(rows::run).transpose()?;
    Ok(run.and_then(|run| run.error).or_else(|| row.error.clone()))
}

/// Whether a cancel of this command takes back.
pub(super) fn takes_back(command: &CommandRow) -> bool {
    command.cancellation_mode == CancellationMode::CompensateThenStop.as_str()
}
