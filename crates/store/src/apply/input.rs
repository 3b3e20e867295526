//! What a command's payload lacked is given: it is judged again, and goes on from there.
//!
//! Invariants: only a command that waits for it takes it; the payload, what policies made of it and
//! where that leads are one commit.

use steadfast_core::{CommandEvent, CommandStatus};

use super::command::{self, Locked, Move};
use super::{approval, dependency, event};
use crate::error::Error;
use crate::gate::{Tx, params};
use crate::op::{Hold, Supplied, Supply};

pub(super) async fn supply(tx: &mut impl Tx, op: &Supply) -> Result<Supplied, Error> {
    let (ws, id) = (op.workspace.as_str(), op.command_id.as_str());
    let Some(held) = command::lock(tx, ws, id).await? else {
        return Ok(Supplied::NotFound);
    };
    let said = event::said(tx, ws, &op.told_as()).await?;
    if said.is_some_and(|(actor, said)| actor == op.actor && said == op.told()) {
        // Our own earlier success, whose answer was lost.
        return Ok(Supplied::Done(held.status));
    }
    if held.status != CommandStatus::WaitingForInput {
        return Ok(Supplied::NotWaiting(held.status));
    }
    let given = params! { workspace: ws, command_id: id, payload: &op.payload };
    tx.execute("command_supply", given).await?;
    let moved = Move {
        ws,
        command_id: id,
        event: CommandEvent::Validate,
        result: None,
        error: None,
        actor: &op.actor,
        until: held.due(),
        now: op.now,
    };
    moved.take(tx, &held).await?;
    tell(tx, op, &held).await?;
    let Some(held) = command::lock(tx, ws, id).await? else {
        return Ok(Supplied::NotFound);
    };
    let over = match &op.hold {
        None => dependency::release_one(tx, ws, id, op.now).await?,
        Some(Hold::Denied(error)) => {
            let (event, error) = (CommandEvent::Fail, Some(error));
            Move { event, error, until: None, ..moved }.take(tx, &held).await?
        }
        Some(Hold::Approval(asked)) => {
            Move { event: CommandEvent::AskApproval, ..moved }.take(tx, &held).await?;
            approval::ask(tx, ws, id, "", asked, op.now).await?;
            false
        }
        Some(Hold::Input(_)) => {
            Move { event: CommandEvent::AskInput, ..moved }.take(tx, &held).await?;
            false
        }
    };
    if over {
        dependency::release(tx, ws, id, op.now).await?;
    }
    let now = command::lock(tx, ws, id).await?;
    Ok(now.map_or(Supplied::NotFound, |held| Supplied::Done(held.status)))
}

/// Tells who gave it, and what policy made of it.
async fn tell(tx: &mut impl Tx, op: &Supply, held: &Locked) -> Result<(), Error> {
    let told = |event_id, event_type, payload| event::Told {
        ws: &op.workspace,
        command_id: &op.command_id,
        context: &held.context,
        event_id,
        event_type,
        payload,
        actor: &op.actor,
        now: op.now,
    };
    event::audit(tx, told(op.told_as(), "command.supplied", op.told())).await?;
    if let Some(judgement) = &op.judgement {
        let id = format!("{}p", event::event_id(&op.command_id, held.events));
        let judged = serde_json::from_str(judgement).unwrap_or_default();
        event::audit(tx, told(id, "policy.evaluated", judged)).await?;
    }
    Ok(())
}
