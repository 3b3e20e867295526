//! What is written together with a governed record: the ledger, events, questions.
//!
//! Invariants: all of it commits with the record or not at all; a repeated request changes nothing,
//! because ids are derived from the record and moves take arrows.

use steadfast_core::{CommandEvent, CommandStatus};

use super::command::{self, Move};
use super::{approval, effect, meter};
use crate::error::Error;
use crate::gate::{Tx, params};
use crate::op::{Govern, Lease, NewEvent};

/// Writes it; gives the reason if that cannot be.
pub(super) async fn write(
    tx: &mut impl Tx,
    lease: &Lease,
    function_id: i64,
    what: &Govern,
) -> Result<Option<String>, Error> {
    let (ws, run_id) = (lease.workspace.as_str(), lease.run_id.as_str());
    if let Some(seq) = what.consume {
        let at = params! { workspace: ws, run_id: run_id, seq: seq, function_id: function_id };
        tx.execute("signal_consume", at).await?;
    }
    let mut moved = false;
    if let Some(change) = &what.effect {
        match effect::change(tx, ws, run_id, what, change).await? {
            Ok(done) => moved = done,
            Err(refusal) => return Ok(Some(refusal)),
        }
    }
    let mut new = true;
    for call in &what.invocations {
        new = effect::called(tx, ws, call).await?;
    }
    if let Some(asked) = &what.approval {
        approval::ask(tx, ws, &what.command_id, run_id, asked, what.now).await?;
    }
    if what.invocations.is_empty() && !what.charges.is_empty() {
        new = meter::once(tx, ws, &what.charged_as, what.now).await?;
    }
    if let Some(health) = what.health.as_ref().filter(|_| new) {
        meter::report(tx, ws, health, what.now).await?;
    }
    if new {
        meter::charge(tx, ws, &what.charges).await?;
    }
    if let Some(effect_id) = &what.undone {
        let at = params! { workspace: ws, effect_id: effect_id, now: what.now };
        tx.execute("effect_undone", at).await?;
    }
    // Somebody may have said meanwhile what became of it.
    if what.blocks && moved {
        moves(tx, ws, what, CommandEvent::Block).await?;
    } else if what.consume.is_some() {
        // What was waited for has been said.
        moves(tx, ws, what, CommandEvent::Run).await?;
    }
    for new in &what.events {
        event(tx, ws, what, new).await?;
    }
    Ok(None)
}

/// Blocks a command that runs, or lets one that is blocked run.
async fn moves(
    tx: &mut impl Tx,
    ws: &str,
    what: &Govern,
    event: CommandEvent,
) -> Result<(), Error> {
    let from = match event {
        CommandEvent::Block => CommandStatus::Running,
        _ => CommandStatus::Blocked,
    };
    let held = command::lock(tx, ws, &what.command_id).await?;
    if let Some(held) = held.filter(|held| held.status == from) {
        let moved = Move {
            ws,
            command_id: &what.command_id,
            event,
            result: None,
            error: None,
            actor: &what.actor,
            until: None,
            now: what.now,
        };
        moved.take(tx, &held).await?;
    }
    Ok(())
}

async fn event(tx: &mut impl Tx, ws: &str, what: &Govern, new: &NewEvent) -> Result<(), Error> {
    let row = params! {
        workspace: ws, event_id: &new.event_id, command_id: &what.command_id,
        purpose: new.purpose, event_type: &new.event_type, payload: &new.payload,
        actor: &what.actor, trace_id: &what.trace_id, now: what.now,
    };
    tx.execute("event_insert", row).await?;
    Ok(())
}
