//! Taking back: a command that failed or was cancelled with effects that have a way back gets a run
//! that goes it.
//!
//! Invariants: the run is started in the commit that ends the command's own; it is known by its
//! context, and its end is the command's.

use steadfast_core::command::{CancellationMode, Context, Undoing};
use steadfast_core::{CommandEvent, Error as Failure, ErrorClass, RunEvent, Timestamp};

use super::command::{self, Locked, Move};
use super::{dependency, follow, rows, start};
use crate::error::Error;
use crate::gate::{Tx, first, params};
use crate::op::{COMPENSATE, CommandRef, CommandRow, Start, Started, undo_run_id};

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
    let of = params! { workspace: ws, command_id: command_id };
    if first(tx, "effect_to_undo", of).await?.is_none() {
        return Ok(false);
    }
    let found = command::find(tx, ws, &CommandRef::Id(command_id.to_owned())).await?;
    let (Some(row), Some(held)) = (found, command::lock(tx, ws, command_id).await?) else {
        return Ok(false);
    };
    let moved = Move {
        ws,
        command_id,
        event: CommandEvent::Compensate,
        result: None,
        error: row.error.as_ref(),
        actor: ACTOR,
        until: None,
        now,
    };
    if !moved.take(tx, &held).await? {
        return Ok(false);
    }
    let mut run = undo_run(tx, ws, &row, &held, why, now).await?;
    if start::start(tx, &run).await? == Started::NoQueue {
        // What must be undone does not wait for a queue that is gone.
        crate::op::DEFAULT_QUEUE.clone_into(&mut run.queue);
        run.partition.clear();
        start::start(tx, &run).await?;
    }
    Ok(true)
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
        run_id: undo_run_id(&command.workflow_id),
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
        now,
    })
}

/// The run that takes back has ended.
pub(super) async fn ended(
    tx: &mut impl Tx,
    end: &follow::End<'_>,
    command_id: &str,
    held: &Locked,
    why: Undoing,
) -> Result<(), Error> {
    let found = command::find(tx, end.ws, &CommandRef::Id(command_id.to_owned())).await?;
    let cause = found.and_then(|row| row.error);
    let halted = end.error.map(|error| {
        let first = cause.as_ref().map_or("stopped", Failure::message);
        let text =
            format!("{first}; and what it had done was not all taken back: {}", error.message());
        Failure::new(ErrorClass::Application, "SF-0831", text).permanent()
    });
    let (event, error) = match end.event {
        RunEvent::Succeed => (CommandEvent::Succeed, cause.as_ref()),
        RunEvent::Claim | RunEvent::Resume => return Ok(()),
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
    if !moved.take(tx, held).await? {
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

/// Whether a cancel of this command takes back.
pub(super) fn takes_back(command: &CommandRow) -> bool {
    command.cancellation_mode == CancellationMode::CompensateThenStop.as_str()
}
