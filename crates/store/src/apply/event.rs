//! Events: written in the commit of what they tell of.
//!
//! Invariants: a command's events are numbered from 0 in their order, and their ids follow from
//! that; nothing changes one but its sealing, and retention alone removes one.

use std::fmt::Write as _;

use serde::Serialize;
use steadfast_core::command::Context;
use steadfast_core::{CommandStatus, Error as Failure, Timestamp};

use super::rows;
use crate::error::Error;
use crate::gate::{Tx, Value, first, params};
use crate::op::{EventPage, EventRow, ListEvents, SlotRow, Submit, Tell, ToldOf};

/// A move of a command, as its event tells it.
pub(super) struct Happening<'a> {
    pub(super) ws: &'a str,
    pub(super) command_id: &'a str,
    pub(super) number: i64,
    pub(super) from: CommandStatus,
    pub(super) to: CommandStatus,
    pub(super) error: Option<&'a Failure>,
    pub(super) actor: &'a str,
    pub(super) context: &'a str,
    pub(super) now: Timestamp,
}

pub(super) fn event_id(command_id: &str, number: i64) -> String {
    // Three for every command: grown step by step, each costs three allocations.
    let mut id = String::with_capacity(command_id.len() + 16);
    let _ = write!(id, "evt_{command_id}_{number:06}");
    id
}

/// Who told an event, and what it says, if it is there.
pub(super) async fn said(
    tx: &mut impl Tx,
    ws: &str,
    event_id: &str,
) -> Result<Option<(String, serde_json::Value)>, Error> {
    let at = params! { workspace: ws, event_id: event_id };
    let Some(mut row) = first(tx, "event_said", at).await? else {
        return Ok(None);
    };
    let (actor, payload) = (row.text()?, row.text()?);
    Ok(Some((actor, serde_json::from_str(&payload).unwrap_or_default())))
}

pub(super) async fn moved(tx: &mut impl Tx, what: &Happening<'_>) -> Result<(), Error> {
    let trace = Context::parse(what.context).map(|c| c.trace_id).unwrap_or_default();
    let mut payload = serde_json::json!({ "from": what.from.as_str() });
    if let Some(error) = what.error {
        payload["error"] = serde_json::to_value(error).unwrap_or_default();
    }
    let new = params! {
        workspace: what.ws, event_id: event_id(what.command_id, what.number),
        command_id: what.command_id, purpose: "event",
        event_type: what.to.as_event(), payload: payload.to_string(),
        actor: what.actor, trace_id: trace, now: what.now,
    };
    tx.execute("event_insert", new).await?;
    Ok(())
}

/// What the first event of a command tells.
#[derive(Serialize)]
struct Birth<'a> {
    command_type: &'a str,
    idempotency_key: Option<&'a str>,
    ingress: &'a str,
    requested_by: &'a str,
}

/// The events of a new command, one for each status it has passed.
pub(super) async fn path(
    tx: &mut impl Tx,
    op: &Submit,
    path: &[CommandStatus],
) -> Result<(), Error> {
    let payload = Birth {
        command_type: &op.command_type,
        idempotency_key: op.idempotency_key.as_deref(),
        ingress: &op.ingress,
        requested_by: &op.requested_by,
    };
    let payload = serde_json::to_string(&payload).expect("invariant: texts are plain data");
    let id = |place: usize| match path.get(place) {
        Some(_) => event_id(&op.command_id, i64::try_from(place).unwrap_or(i64::MAX)),
        None => String::new(),
    };
    let of = |place: usize| path.get(place).map_or("", |status| status.as_event());
    // A command that waits has passed two; the statement for three would make one too many.
    let statement = match path.len() {
        4 => "event_path_4",
        3 => "event_path_3",
        _ => "event_path_2",
    };
    let new = params! {
        workspace: &op.start.workspace, command_id: &op.command_id, payload: payload,
        actor: &op.requested_by, trace_id: &op.trace_id, now: op.start.now,
        event_id_0: id(0), event_id_1: id(1), event_id_2: id(2), event_id_3: id(3),
        event_type_0: of(0), event_type_1: of(1), event_type_2: of(2), event_type_3: of(3),
    };
    tx.execute(statement, new).await?;
    Ok(())
}

/// An audit event of a command.
pub(super) struct Told<'a> {
    pub(super) ws: &'a str,
    pub(super) command_id: &'a str,
    pub(super) context: &'a str,
    pub(super) event_id: String,
    pub(super) event_type: &'a str,
    pub(super) payload: serde_json::Value,
    pub(super) actor: &'a str,
    pub(super) now: Timestamp,
}

pub(super) async fn audit(tx: &mut impl Tx, told: Told<'_>) -> Result<(), Error> {
    let trace = Context::parse(told.context).map(|c| c.trace_id).unwrap_or_default();
    let new = params! {
        workspace: told.ws, event_id: told.event_id, command_id: told.command_id,
        purpose: "audit", event_type: told.event_type, payload: told.payload.to_string(),
        actor: told.actor, trace_id: trace, now: told.now,
    };
    tx.execute("event_insert", new).await?;
    Ok(())
}

/// What the policies decided of a new command: between its validation and what follows.
pub(super) async fn judged(tx: &mut impl Tx, op: &Submit, judgement: &str) -> Result<(), Error> {
    let new = params! {
        workspace: &op.start.workspace, event_id: format!("{}p", event_id(&op.command_id, 1)),
        command_id: &op.command_id, purpose: "audit", event_type: "policy.evaluated",
        payload: judgement, actor: &op.requested_by, trace_id: &op.trace_id, now: op.start.now,
    };
    tx.execute("event_insert", new).await?;
    Ok(())
}

/// What no other operation writes, for auditors.
pub(super) async fn tell(tx: &mut impl Tx, op: &Tell) -> Result<ToldOf, Error> {
    let new = params! {
        workspace: &op.workspace, event_id: &op.event_id, command_id: &op.command_id,
        purpose: "audit", event_type: &op.event_type, payload: &op.payload, actor: &op.actor,
        trace_id: &op.trace_id, now: op.now,
    };
    Ok(ToldOf(tx.execute("event_insert", new).await? == 1))
}

/// Tells that a slot was missed: an alarm must not depend on somebody looking.
pub(super) async fn missed(
    tx: &mut impl Tx,
    ws: &str,
    trigger_id: &str,
    slot: &SlotRow,
) -> Result<(), Error> {
    let payload = serde_json::json!({
        "trigger_id": trigger_id,
        "scheduled_for": slot.nominal_at.iso(),
        "reason": slot.reason,
    });
    let new = params! {
        workspace: ws, event_id: format!("evt_{trigger_id}@{:016x}", slot.nominal_at.as_micros()),
        command_id: "", purpose: "event", event_type: "schedule.missed",
        payload: payload.to_string(), actor: "system:scheduler", trace_id: "",
        now: slot.decided_at,
    };
    tx.execute("event_insert", new).await?;
    Ok(())
}

/// Writes an event, unless it is there.
pub(super) async fn insert(tx: &mut impl Tx, ws: &str, event: &EventRow) -> Result<(), Error> {
    let new = params! {
        workspace: ws, event_id: &event.event_id, command_id: &event.command_id,
        purpose: &event.purpose, event_type: &event.event_type, payload: &event.payload,
        actor: &event.actor, trace_id: &event.trace_id, now: event.created_at,
    };
    tx.execute("event_insert", new).await?;
    Ok(())
}

pub(super) async fn list(tx: &mut impl Tx, op: &ListEvents) -> Result<EventPage, Error> {
    let mut texts = vec!["1 = 1"];
    let mut given: Vec<(&'static str, Value<'_>)> =
        vec![("workspace", Value::from(&op.workspace)), ("limit", Value::from(op.limit))];
    if let Some(id) = &op.command_id {
        // By the ids, which begin with the command's.
        texts.push("command_id = :command_id AND event_id >= :first AND event_id < :last");
        given.push(("command_id", Value::from(id)));
        given.push(("first", Value::from(format!("evt_{id}_"))));
        given.push(("last", Value::from(format!("evt_{id}`"))));
    }
    if let Some(event_type) = &op.event_type {
        texts.push("event_type = :event_type");
        given.push(("event_type", Value::from(event_type)));
    }
    if let Some(prefix) = &op.type_prefix {
        texts.push("event_type >= :type_from AND event_type < :type_to");
        given.push(("type_from", Value::from(prefix)));
        // Types are of lower-case letters, dots and underscores: all before this.
        given.push(("type_to", Value::from(format!("{prefix}~"))));
    }
    if let Some(purpose) = &op.purpose {
        texts.push("purpose = :purpose");
        given.push(("purpose", Value::from(purpose)));
    }
    if let Some(since) = &op.since {
        texts.push("created_at >= :since");
        given.push(("since", Value::from(*since)));
    }
    if let Some(until) = &op.until {
        texts.push("created_at < :until");
        given.push(("until", Value::from(*until)));
    }
    if let Some((at, id)) = &op.after {
        texts.push("(created_at > :after_at OR (created_at = :after_at AND event_id > :after_id))");
        given.push(("after_at", Value::from(*at)));
        given.push(("after_id", Value::from(id)));
    }
    let mut events = Vec::new();
    for row in tx.query_where("event_list", &texts.join(" AND "), &given).await? {
        events.push(rows::event(row)?);
    }
    Ok(EventPage(events))
}

impl EventRow {
    /// Where a page that ends with this one goes on.
    pub fn cursor(&self) -> (Timestamp, String) {
        (self.created_at, self.event_id.clone())
    }
}
