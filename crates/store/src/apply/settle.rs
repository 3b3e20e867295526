//! Commands whose time is up: those that expired, and those whose worker has let go.
//!
//! Invariants: the run is locked first, then the command, and what is decided is decided on what
//! the locks show; what the worker of a stopped run says counts only if nobody had the run since.

use steadfast_core::command::Undoing;
use steadfast_core::{CommandEvent, CommandStatus, RunStatus, Timestamp};

use super::command::{Locked, end_waiting, expiry, find, lock};
use super::{approval, effect, govern, saga, steer};
use crate::error::Error;
use crate::gate::{Tx, params};
use crate::op::{CommandRef, EffectChange, Left, SettleCommands, Settled};

pub(super) async fn settle(tx: &mut impl Tx, op: &SettleCommands) -> Result<Settled, Error> {
    let ws = op.workspace.as_str();
    if let Some(left) = &op.left {
        let settled = left_by(tx, ws, left, op.now).await?;
        return Ok(Settled(settled.then(|| left.command_id.clone()).into_iter().collect()));
    }
    let limit = op.limit;
    let which = params! { workspace: ws, now: op.now, limit: limit };
    let rows = tx.query("command_due", which).await?;
    let due: Vec<_> = rows.into_iter().map(|mut row| row.text()).collect::<Result<_, _>>()?;
    let mut settled = Vec::new();
    for command_id in due {
        if settle_one(tx, op, &command_id).await? {
            settled.push(command_id);
        }
    }
    Ok(Settled(settled))
}

/// The worker of a stopped run has let go of it, or asks for more time, and says what became of
/// what it had under way.
async fn left_by(tx: &mut impl Tx, ws: &str, left: &Left, now: Timestamp) -> Result<bool, Error> {
    let run = steer::lock(tx, ws, &left.lease.run_id).await?;
    // Another worker may have had it since: then it is for that one to say.
    if run.as_ref().is_some_and(|run| run.epoch != left.lease.epoch + 1) {
        return Ok(false);
    }
    let undoing = saga::undoing(tx, ws, &left.command_id).await?;
    if let Some(run_id) = &undoing {
        steer::lock(tx, ws, run_id).await?;
    }
    let Some(held) = lock(tx, ws, &left.command_id).await? else {
        return Ok(false);
    };
    if run.is_some_and(|run| is_stopped(run.status)) {
        came_to(tx, ws, left, undoing.as_deref(), now).await?;
    }
    if held.status != CommandStatus::Cancelling || held.workflow_id != left.lease.run_id {
        return Ok(false);
    }
    if let Some(until) = left.busy_until {
        let hold = params! { workspace: ws, command_id: &left.command_id, due_at: until };
        tx.execute("command_hold", hold).await?;
        return Ok(false);
    }
    end_cancelling(tx, ws, &left.command_id, &held, "system:worker", now).await?;
    Ok(true)
}

/// Whether a run was stopped from outside. One that ended by itself has had another owner since.
fn is_stopped(status: RunStatus) -> bool {
    matches!(status, RunStatus::Cancelled | RunStatus::RetriesExceeded)
}

/// Notes what became of effects that were under way in a stopped run, and that others still are.
async fn came_to(
    tx: &mut impl Tx,
    ws: &str,
    left: &Left,
    undoing: Option<&str>,
    now: Timestamp,
) -> Result<(), Error> {
    for what in &left.outcomes {
        let Some(EffectChange::Move { effect_id, event, .. }) = &what.effect else { continue };
        if effect::contradicts(tx, ws, what, effect_id, *event).await? {
            continue;
        }
        govern::write(tx, &left.lease, 0, what).await?;
        effect::came_to(tx, ws, undoing, effect_id, now).await?;
    }
    if left.busy_until.is_some() {
        let of = params! {
            workspace: ws, command_id: &left.command_id, run_id: &left.lease.run_id, now: now,
        };
        tx.execute("effect_busy", of).await?;
    }
    Ok(())
}

/// Ends a command that was asked to stop, for the reason it was asked with.
async fn end_cancelling(
    tx: &mut impl Tx,
    ws: &str,
    id: &str,
    held: &Locked,
    actor: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let command = find(tx, ws, &CommandRef::Id(id.to_owned())).await?;
    if command.as_ref().is_some_and(saga::takes_back)
        && saga::begin(tx, ws, id, Undoing::Cancel, now).await?
    {
        return Ok(());
    }
    let reason = command.and_then(|c| c.error).unwrap_or_else(expiry);
    end_waiting(tx, ws, id, held, CommandEvent::Cancel, &reason, actor, now).await
}

async fn settle_one(tx: &mut impl Tx, op: &SettleCommands, id: &str) -> Result<bool, Error> {
    let ws = op.workspace.as_str();
    let Some(command) = find(tx, ws, &CommandRef::Id(id.to_owned())).await? else {
        return Ok(false);
    };
    // The run first, as everybody does; then nothing moves under our hands.
    steer::lock(tx, ws, &command.workflow_id).await?;
    let Some(held) = lock(tx, ws, id).await? else {
        return Ok(false);
    };
    if held.due_at > op.now {
        return Ok(false);
    }
    let (actor, now) = ("system:expiry", op.now);
    match held.status {
        CommandStatus::Cancelling => end_cancelling(tx, ws, id, &held, actor, now).await?,
        CommandStatus::WaitingForInput | CommandStatus::WaitingForApproval => {
            let event = CommandEvent::Expire;
            end_waiting(tx, ws, id, &held, event, &expiry(), actor, now).await?;
            approval::cancel_all(tx, ws, id, actor, now).await?;
        }
        CommandStatus::Queued => {
            steer::cancel_run(tx, ws, &held.workflow_id, &expiry(), actor, now).await?;
        }
        CommandStatus::Validated | CommandStatus::Approved => {
            let event = CommandEvent::Cancel;
            end_waiting(tx, ws, id, &held, event, &expiry(), actor, now).await?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}
