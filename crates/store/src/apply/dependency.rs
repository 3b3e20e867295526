//! Commands that wait for commands.
//!
//! Invariants: nobody waits in a circle; a command begins when all it waits for is there, and is
//! told at once when something it waits for can no longer come.

use steadfast_core::{CommandEvent, CommandStatus, Error as Failure, ErrorClass, Timestamp};

use super::command::{self, Launch, Move};
use super::{rows, start};
use crate::error::Error;
use crate::gate::{Tx, params};
use crate::op::{CommandRef, Depend, Depended, Parent, Started};

/// Where a command stands with what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Everything is there.
    Met,
    /// Something is still to come.
    Waiting,
    /// Something can no longer come.
    Lost { parent: String, propagate: bool },
}

impl Standing {
    fn with(self, parent: &Parent, status: CommandStatus) -> Self {
        let met = match parent.required {
            Some(required) => status == required,
            None => status.is_terminal(),
        };
        match self {
            lost @ Self::Lost { .. } => lost,
            standing if met => standing,
            _ if status.is_terminal() => {
                Self::Lost { parent: parent.command_id.clone(), propagate: parent.propagate }
            }
            _ => Self::Waiting,
        }
    }
}

/// Why a command was not begun.
pub(super) fn lost(parent: &str) -> Failure {
    let text = format!("command \"{parent}\", which this one waits for, did not end as required");
    Failure::new(ErrorClass::Cancelled, "SF-0507", text)
}

/// Where a new command stands; or the id of a command that is not there.
pub(super) async fn standing(
    tx: &mut impl Tx,
    ws: &str,
    after: &[Parent],
) -> Result<Result<Standing, String>, Error> {
    let mut standing = Standing::Met;
    for parent in after {
        // Locked, so that its end either is seen here or sees the new command.
        let Some(held) = command::lock(tx, ws, &parent.command_id).await? else {
            return Ok(Err(parent.command_id.clone()));
        };
        standing = standing.with(parent, held.status);
    }
    Ok(Ok(standing))
}

pub(super) async fn add(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
    parent: &Parent,
) -> Result<(), Error> {
    let new = params! {
        workspace: ws, command_id: command_id, parent: &parent.command_id,
        required_status: parent.required.map_or("ended", CommandStatus::as_str),
        propagate: parent.propagate,
    };
    tx.execute("dependency_insert", new).await?;
    Ok(())
}

/// What a command waits for, with the status of each.
pub(super) async fn parents(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
) -> Result<Vec<(Parent, CommandStatus)>, Error> {
    let at = params! { workspace: ws, command_id: command_id };
    let mut parents = Vec::new();
    for mut row in tx.query("dependency_parents", at).await? {
        let (command_id, required) = (row.text()?, row.text()?);
        let required = match required.as_str() {
            "ended" => None,
            status => Some(rows::command_status(status)?),
        };
        let parent = Parent { command_id, required, propagate: row.flag()? };
        parents.push((parent, rows::command_status(&row.text()?)?));
    }
    Ok(parents)
}

/// A command ended: those that wait for it begin, or learn that they never will.
pub(super) async fn release(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let mut ended = vec![command_id.to_owned()];
    while let Some(id) = ended.pop() {
        let at = params! { workspace: ws, command_id: &id };
        for mut row in tx.query("dependency_children", at).await? {
            let child = row.text()?;
            if release_one(tx, ws, &child, now).await? {
                ended.push(child);
            }
        }
    }
    Ok(())
}

/// Begins or ends one command that waited; true if it ended.
pub(super) async fn release_one(
    tx: &mut impl Tx,
    ws: &str,
    child: &str,
    now: Timestamp,
) -> Result<bool, Error> {
    let Some(held) = command::lock(tx, ws, child).await? else {
        return Ok(false);
    };
    // Somebody may have stopped it between the look and the lock.
    if !matches!(held.status, CommandStatus::Validated | CommandStatus::Approved) {
        return Ok(false);
    }
    let mut standing = Standing::Met;
    for (parent, status) in parents(tx, ws, child).await? {
        standing = standing.with(&parent, status);
    }
    let move_by = |event| Move {
        ws,
        command_id: child,
        event,
        result: None,
        error: None,
        actor: "system:dependency",
        until: None,
        now,
    };
    match standing {
        Standing::Waiting => Ok(false),
        Standing::Lost { parent, propagate } => {
            let cancels = propagate || held.status == CommandStatus::Approved;
            let event = if cancels { CommandEvent::Cancel } else { CommandEvent::Fail };
            let reason = lost(&parent);
            Move { error: Some(&reason), ..move_by(event) }.take(tx, &held).await
        }
        Standing::Met => {
            let found = command::find(tx, ws, &CommandRef::Id(child.to_owned())).await?;
            let (Some(row), Some(launch)) = (found, &held.launch) else {
                return Ok(false);
            };
            let run = Launch::start(launch, ws, row, held.nonce(), now)?;
            match start::start(tx, &run).await? {
                Started::New(_) => move_by(CommandEvent::Queue).take(tx, &held).await?,
                _ => {
                    let reason = Failure::new(
                        ErrorClass::Conflict,
                        "SF-0508",
                        "the command's run cannot be started: its id or its queue is not free",
                    );
                    let event = match held.status {
                        CommandStatus::Approved => CommandEvent::Cancel,
                        _ => CommandEvent::Fail,
                    };
                    Move { error: Some(&reason), ..move_by(event) }.take(tx, &held).await?;
                    return Ok(true);
                }
            };
            Ok(false)
        }
    }
}

pub(super) async fn depend(tx: &mut impl Tx, op: &Depend) -> Result<Depended, Error> {
    let ws = op.workspace.as_str();
    // The parent first, as a submission does.
    let Some(parent) = command::lock(tx, ws, &op.parent.command_id).await? else {
        return Ok(Depended::NotFound(op.parent.command_id.clone()));
    };
    let Some(child) = command::lock(tx, ws, &op.command_id).await? else {
        return Ok(Depended::NotFound(op.command_id.clone()));
    };
    if let Some(way) = way_up(tx, ws, &op.parent.command_id, &op.command_id).await? {
        return Ok(Depended::Cycle(way));
    }
    if child.status != CommandStatus::Validated {
        return Ok(Depended::TooLate(child.status));
    }
    let standing = Standing::Met.with(&op.parent, parent.status);
    add(tx, ws, &op.command_id, &op.parent).await?;
    if let Standing::Lost { .. } = standing {
        release_one(tx, ws, &op.command_id, op.now).await?;
        release(tx, ws, &op.command_id, op.now).await?;
    }
    Ok(Depended::Done)
}

/// The way from a command to one of its ancestors, if that is one: breadth first.
async fn way_up(
    tx: &mut impl Tx,
    ws: &str,
    from: &str,
    to: &str,
) -> Result<Option<Vec<String>>, Error> {
    let mut ways = vec![vec![from.to_owned()]];
    let mut seen = std::collections::BTreeSet::from([from.to_owned()]);
    let mut next = 0;
    while let Some(way) = ways.get(next).cloned() {
        next += 1;
        let at = way.last().cloned().unwrap_or_default();
        if at == to {
            return Ok(Some(way));
        }
        // Locked, so that two who close a circle from both sides meet.
        command::lock(tx, ws, &at).await?;
        for (parent, _) in parents(tx, ws, &at).await? {
            if seen.insert(parent.command_id.clone()) {
                let mut longer = way.clone();
                longer.push(parent.command_id);
                ways.push(longer);
            }
        }
    }
    Ok(None)
}
