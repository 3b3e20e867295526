//! What a command's payload lacked is given: it is judged again, and goes on from there.
//!
//! Invariants: only a command that waits for it takes it; the payload, what policies made of it and
//! where that leads are one commit.

use steadfast_core::{CommandEvent, CommandStatus};

use super::command::{self, Move};
use super::{approval, dependency, event};
use crate::error::Error;
use crate::gate::{Tx, params};
use crate::op::{Hold, Supplied, Supply};

pub(super) async fn supply(tx: &mut impl Tx, op: &Supply) -> Result<Supplied, Error> {
    let (ws, id) = (op.workspace.as_str(), op.command_id.as_str());
    let Some(held) = command::lock(tx, ws, id).await? else {
        return Ok(Supplied::NotFound);
    };
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
    if let Some(judgement) = &op.judgement {
        let told = event::Told {
            ws,
            command_id: id,
            context: &held.context,
            event_id: format!("evt_{id}_{:06}p", held.events),
            event_type: "policy.evaluated",
            payload: serde_json::from_str(judgement).unwrap_or_default(),
            actor: &op.actor,
            now: op.now,
        };
        event::audit(tx, told).await?;
    }
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
