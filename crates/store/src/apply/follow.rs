//! A command follows its run: claimed, ended, stopped.
//!
//! Invariants: the run is locked by who calls; the command moves in the same commit, and what waits
//! for it is looked at when it is over.

use steadfast_core::command::{Context, Undoing};
use steadfast_core::{
    CommandEvent, CommandStatus, Error as Failure, ErrorClass, RunEvent, Timestamp,
};

use super::command::{Locked, Move, arrow, expiry, find, lock};
use super::{approval, dependency, saga, steer};
use crate::error::Error;
use crate::gate::{Tx, first, params};
use crate::op::{COMPENSATE, CommandRef, Resumed, RunRow, undo_run_ids};

/// A run was claimed: its command, if it waited for that, is running.
pub(super) async fn claimed(
    tx: &mut impl Tx,
    ws: &str,
    runs: &[RunRow],
    worker: &str,
    now: Timestamp,
) -> Result<(), Error> {
    for run in runs {
        let Some((id, held)) = of_run(tx, ws, &run.run_id, run.context.as_deref()).await? else {
            continue;
        };
        if held.status == CommandStatus::Queued {
            let moved = Move {
                ws,
                command_id: &id,
                event: CommandEvent::Run,
                result: None,
                error: None,
                actor: worker,
                until: None,
                now,
            };
            moved.take(tx, &held).await?;
        }
    }
    Ok(())
}

/// Ends those of some locked runs whose commands expired before they began. Whether there were any.
pub(super) async fn expire(
    tx: &mut impl Tx,
    ws: &str,
    runs: &[RunRow],
    now: Timestamp,
) -> Result<bool, Error> {
    let mut any = false;
    for run in runs {
        let held = of_run(tx, ws, &run.run_id, run.context.as_deref()).await?;
        let expired = held
            .is_some_and(|(_, held)| held.status == CommandStatus::Queued && held.due_at <= now);
        if expired {
            steer::cancel_run(tx, ws, &run.run_id, &expiry(), "system:expiry", now).await?;
            any = true;
        }
    }
    Ok(any)
}

/// Why a stopped run cannot go on, as its command has it: it ended for good, or what the run has on
/// record was taken back.
pub(super) async fn forbids(
    tx: &mut impl Tx,
    ws: &str,
    run: &RunRow,
) -> Result<Option<Resumed>, Error> {
    let context = run.context.as_deref();
    if let Some((id, held)) = of_run(tx, ws, &run.run_id, context).await? {
        let of = params! { workspace: ws, command_id: &id };
        if first(tx, "effect_undone_any", of).await?.is_some() {
            return Ok(Some(Resumed::TakenBack));
        }
        let is_final = held.status.on(CommandEvent::Queue).is_err();
        return Ok(is_final.then_some(Resumed::NotStopped(run.status)));
    }
    if run.workflow != COMPENSATE {
        return Ok(None);
    }
    // Only the last that took the command back goes on with it, and only where it halted.
    let last = match undone_by(tx, ws, &run.run_id, context).await? {
        Some((_, held, _)) if held.status == CommandStatus::Failed => {
            saga::latest(tx, ws, &held.workflow_id, held.events - 1).await?
        }
        _ => None,
    };
    let goes_on = last.is_some_and(|last| last.run_id == run.run_id);
    Ok((!goes_on).then_some(Resumed::NotStopped(run.status)))
}

/// The command that a run carries out, locked; none for its children and for plain runs.
async fn of_run(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
    context: Option<&str>,
) -> Result<Option<(String, Locked)>, Error> {
    let Some(text) = context else { return Ok(None) };
    let context = Context::parse(text).map_err(|e| Error::Incompatible(e.to_string()))?;
    if context.command_id.is_empty() {
        return Ok(None);
    }
    let held = lock(tx, ws, &context.command_id).await?;
    let carries = held.filter(|held| context.undo.is_none() && held.workflow_id == run_id);
    Ok(carries.map(|held| (context.command_id, held)))
}

/// The command whose effects a run takes back, locked, and why; none for other runs.
async fn undone_by(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
    context: Option<&str>,
) -> Result<Option<(String, Locked, Undoing)>, Error> {
    let Some(text) = context else { return Ok(None) };
    let context = Context::parse(text).map_err(|e| Error::Incompatible(e.to_string()))?;
    let Some(why) = context.undo else { return Ok(None) };
    let Some(held) = lock(tx, ws, &context.command_id).await? else { return Ok(None) };
    // A child of such a run has its context, but not its id.
    let events = match held.status {
        CommandStatus::Compensating => held.events,
        CommandStatus::Failed => held.events - 1,
        _ => return Ok(None),
    };
    let carries = undo_run_ids(&held.workflow_id, events).any(|id| id == run_id);
    Ok(carries.then_some((context.command_id, held, why)))
}

/// How a run ended, for its command.
pub(super) struct End<'a> {
    pub(super) ws: &'a str,
    pub(super) run_id: &'a str,
    pub(super) context: Option<&'a str>,
    pub(super) event: RunEvent,
    pub(super) result: Option<&'a str>,
    pub(super) error: Option<&'a Failure>,
    pub(super) actor: &'a str,
    /// Whose worker is still at it: the end of its lease.
    pub(super) lease_until: Option<Timestamp>,
    pub(super) now: Timestamp,
}

/// A run ended or was stopped: so does its command, and what waits for it is looked at.
pub(super) async fn ended(tx: &mut impl Tx, end: &End<'_>) -> Result<(), Error> {
    // Before the command, as everybody does.
    let children = match end.event {
        RunEvent::Fail | RunEvent::Exhaust => to_stop(tx, end).await?,
        _ => None,
    };
    let Some((id, held)) = of_run(tx, end.ws, end.run_id, end.context).await? else {
        if let Some((id, held, why)) = undone_by(tx, end.ws, end.run_id, end.context).await? {
            saga::ended(tx, end, &id, &held, why).await?;
        }
        return Ok(());
    };
    let event = match end.event {
        RunEvent::Succeed => CommandEvent::Succeed,
        RunEvent::Cancel if end.lease_until.is_some() => CommandEvent::Stop,
        RunEvent::Cancel => return stopped(tx, end, &id, &held).await,
        RunEvent::Resume => CommandEvent::Queue,
        RunEvent::Fail | RunEvent::Exhaust | RunEvent::Claim => CommandEvent::Fail,
    };
    if !end.moves(&id, event).take(tx, &held).await? || !arrow(held.status, event)?.is_terminal() {
        return Ok(());
    }
    if event == CommandEvent::Fail {
        approval::cancel_all(tx, end.ws, &id, end.actor, end.now).await?;
        if saga::begin(tx, end.ws, &id, Undoing::Failure, end.now).await? {
            let Some(children) = children else {
                // A child has begun something meanwhile: its run must be locked before the command.
                return Err(Error::Transient("the command did more since".to_owned()));
            };
            // What is taken back does nothing more.
            return steer::stop_all(tx, end.ws, &children, &taken_back(), end.now).await;
        }
    }
    dependency::release(tx, end.ws, &id, end.now).await
}

/// The descendants of a failing run that are stopped with it, locked: those of a command's own run,
/// if there is something to take back.
async fn to_stop(tx: &mut impl Tx, end: &End<'_>) -> Result<Option<Vec<RunRow>>, Error> {
    let Some(text) = end.context else { return Ok(None) };
    let context = Context::parse(text).map_err(|e| Error::Incompatible(e.to_string()))?;
    if context.undo.is_some() || context.command_id.is_empty() {
        return Ok(None);
    }
    let at = params! { workspace: end.ws, command_id: &context.command_id };
    let Some(mut row) = first(tx, "command_peek", at).await? else { return Ok(None) };
    let (_, workflow_id) = (row.text()?, row.text()?);
    if workflow_id != end.run_id || !saga::is_called_for(tx, end.ws, &context.command_id).await? {
        return Ok(None);
    }
    steer::attached(tx, end.ws, end.run_id).await.map(Some)
}

fn taken_back() -> Failure {
    let text = "the command that it belongs to has failed and is taken back";
    Failure::new(ErrorClass::Cancelled, "SF-0836", text)
}

/// A run that nobody executes was stopped: its command is over, or takes back.
async fn stopped(tx: &mut impl Tx, end: &End<'_>, id: &str, held: &Locked) -> Result<(), Error> {
    approval::cancel_all(tx, end.ws, id, end.actor, end.now).await?;
    let row = find(tx, end.ws, &CommandRef::Id(id.to_owned())).await?;
    if row.as_ref().is_some_and(saga::takes_back)
        && end.moves(id, CommandEvent::Stop).take(tx, held).await?
    {
        if saga::begin(tx, end.ws, id, Undoing::Cancel, end.now).await? {
            return Ok(());
        }
        let Some(held) = lock(tx, end.ws, id).await? else { return Ok(()) };
        end.moves(id, CommandEvent::Cancel).take(tx, &held).await?;
    } else if !end.moves(id, CommandEvent::Cancel).take(tx, held).await? {
        return Ok(());
    }
    dependency::release(tx, end.ws, id, end.now).await
}

impl End<'_> {
    fn moves<'a>(&'a self, command_id: &'a str, event: CommandEvent) -> Move<'a> {
        Move {
            ws: self.ws,
            command_id,
            event,
            result: self.result,
            error: self.error,
            actor: self.actor,
            until: self.lease_until,
            now: self.now,
        }
    }
}
