//! Events on their way out: sealed into the chain, removed by retention, and read back.
//!
//! Invariants: events get their numbers after their commit, in one commit that also moves the
//! chain's head from where it was read, so that numbers have no gaps and no two meanings however
//! many processes seal; whoever reads behind a number misses nothing, because nothing gets a lower
//! one later. A removed event leaves its digest, and a removed beginning its link.

use steadfast_core::event::{self, Anchor, Link, LinkBody, Removal};
use steadfast_core::{Timestamp, limits};

use super::{event as events, outbox, rows};
use crate::error::Error;
use crate::gate::{Row, Tx, first, params};
use crate::op::{ChainPage, EventRow, ReadChain, Retain, Retained, Seal, Sealed, SinkState};

/// The chain's ends.
struct Ends {
    head: Anchor,
    base: Anchor,
}

fn ends(mut row: Row) -> Result<Ends, Error> {
    let head = Anchor { seq: row.int()?, hash: row.text()? };
    let base = Anchor { seq: row.int()?, hash: row.text()? };
    Ok(Ends { head, base })
}

pub(super) fn no_chain(ws: &str) -> Anchor {
    Anchor { seq: 0, hash: event::genesis(ws) }
}

pub(super) async fn head(tx: &mut impl Tx, ws: &str) -> Result<Option<Anchor>, Error> {
    let row = first(tx, "chain_get", params! { workspace: ws }).await?;
    Ok(row.map(ends).transpose()?.map(|ends| ends.head))
}

pub(super) async fn seal(tx: &mut impl Tx, op: &Seal) -> Result<Sealed, Error> {
    let ws = op.workspace.as_str();
    let known = head(tx, ws).await?;
    let new = unsealed(tx, ws, op.limit).await?;
    let before = known.clone().unwrap_or_else(|| no_chain(ws));
    if new.is_empty() {
        return Ok(Sealed::Done(0, before));
    }
    if known.is_none() {
        let first = params! { workspace: ws, hash: &before.hash };
        tx.execute("chain_begin", first).await?;
    }
    let (mut at, mut links) = (before.clone(), Vec::with_capacity(new.len()));
    for row in &new {
        let hash = event::link(&at.hash, &row.facts(ws).digest());
        at = Anchor { seq: at.seq + 1, hash };
        links.push(at.clone());
    }
    // First the head: who comes second writes nothing.
    let moved = params! { workspace: ws, from: before.seq, seq: at.seq, hash: at.hash.as_str() };
    if tx.execute("chain_move", moved).await? != 1 {
        return Ok(Sealed::Busy);
    }
    for (row, link) in new.iter().zip(&links) {
        let sealed = params! {
            workspace: ws, event_id: &row.event_id, seq: link.seq, hash: link.hash.as_str(),
        };
        if tx.execute("event_seal", sealed).await? != 1 {
            return Err(Error::Transient("an event was sealed by somebody else".to_owned()));
        }
    }
    Ok(Sealed::Done(new.len(), at))
}

/// Events without a number, in the order in which they get one.
async fn unsealed(tx: &mut impl Tx, ws: &str, limit: usize) -> Result<Vec<EventRow>, Error> {
    let found = tx.query("event_unsealed", params! { workspace: ws, limit: limit }).await?;
    let mut found = found.into_iter().map(rows::event).collect::<Result<Vec<_>, _>>()?;
    event::in_order(&mut found, |row| (row.command_id.clone(), row.event_id.clone()));
    if found.len() < limit {
        return Ok(found);
    }
    // Where the page was cut, an event may be in it and its predecessor not: it waits for it.
    let inside: std::collections::HashSet<_> = found.iter().map(|row| &row.event_id).collect();
    let outside: Vec<String> = found
        .iter()
        .filter(|row| !row.command_id.is_empty())
        .filter_map(|row| event::predecessor(&row.event_id))
        .filter(|id| !inside.contains(id))
        .collect();
    if outside.is_empty() {
        return Ok(found);
    }
    let early: std::collections::HashSet<String> =
        waiting(tx, ws, outside).await?.into_iter().map(|row| row.event_id).collect();
    let (mut held, first) = (std::collections::HashSet::new(), found.first().cloned());
    found.retain(|row| {
        if event::predecessor(&row.event_id).is_some_and(|id| early.contains(&id)) {
            held.insert(row.command_id.clone());
        }
        row.command_id.is_empty() || !held.contains(&row.command_id)
    });
    match first {
        Some(first) if found.is_empty() => Ok(vec![earliest(tx, ws, first).await?]),
        _ => Ok(found),
    }
}

/// Where a whole page waits, what the first of it waits for goes alone: somebody must.
async fn earliest(tx: &mut impl Tx, ws: &str, mut row: EventRow) -> Result<EventRow, Error> {
    while let Some(id) = event::predecessor(&row.event_id) {
        match waiting(tx, ws, vec![id]).await?.pop() {
            Some(before) => row = before,
            None => break,
        }
    }
    Ok(row)
}

/// Those of some events that have no number.
async fn waiting(
    tx: &mut impl Tx,
    ws: &str,
    event_ids: Vec<String>,
) -> Result<Vec<EventRow>, Error> {
    let found = tx.query("event_waits", params! { workspace: ws, event_ids: event_ids }).await?;
    found.into_iter().map(rows::event).collect()
}

pub(super) async fn read_chain(tx: &mut impl Tx, op: &ReadChain) -> Result<ChainPage, Error> {
    let ws = op.workspace.as_str();
    let limit = op.limit;
    let row = first(tx, "chain_get", params! { workspace: ws }).await?;
    let ends = match row.map(ends).transpose()? {
        Some(ends) => ends,
        None => Ends { head: no_chain(ws), base: no_chain(ws) },
    };
    let behind = params! { workspace: ws, after: op.after, limit: limit };
    let mut links = Vec::new();
    for mut row in tx.query("event_sealed", behind).await? {
        let (seq, hash) = (row.int()?, row.opt_text()?.unwrap_or_default());
        links.push(Link::kept(seq, &rows::event(row)?.facts(ws), hash));
    }
    for mut row in tx.query("tombstone_list", behind).await? {
        links.push(Link { seq: row.int()?, body: LinkBody::Removed(row.text()?) });
    }
    // Each list is complete as far as it goes, so the first of both together are.
    links.sort_by_key(|link| link.seq);
    links.truncate(limit);
    // Last, so that nothing that is found gone was told of later.
    let told = tx.query("event_unsealed_removals", params! { workspace: ws }).await?;
    let told = told.into_iter().map(|mut row| row.text()).collect::<Result<Vec<_>, _>>()?;
    let unsealed = told.iter().filter_map(|payload| Removal::parse(payload)).collect();
    Ok(ChainPage { base: ends.base, head: ends.head, links, unsealed })
}

pub(super) async fn retain(tx: &mut impl Tx, op: &Retain) -> Result<Retained, Error> {
    let ws = op.workspace.as_str();
    if is_too_young(op) {
        return Ok(Retained::TooYoung);
    }
    let Some(row) = first(tx, "chain_lock", params! { workspace: ws }).await? else {
        return Ok(Retained::Done(0));
    };
    let ends = ends(row)?;
    let lowest = first(tx, "sink_lowest", params! { workspace: ws }).await?;
    let lowest = lowest.map(|mut row| row.opt_int()).transpose()?.flatten();
    let old = params! {
        workspace: ws, before: op.before, purpose: &op.purpose, told_by: Removal::TYPE,
        upto: lowest.unwrap_or(i64::MAX), limit: op.limit,
    };
    let mut numbers = Vec::new();
    for row in tx.query("event_old", old).await? {
        let (seq, event) = numbered(row)?;
        numbers.push(remove(tx, op, seq, &event).await?);
    }
    let mut base = rebase(tx, ws, ends.base).await?;
    if op.purpose == "audit" {
        // What tells of a removal stays for as long as anything is there that it explains.
        for row in tx.query("event_old_removals", old).await? {
            let (seq, event) = numbered(row)?;
            let past = Removal::of(&event.facts(ws)).is_none_or(|told| told.is_past(&base));
            if past {
                numbers.push(remove(tx, op, seq, &event).await?);
            }
        }
        base = rebase(tx, ws, base).await?;
    }
    let removed = numbers.len();
    if removed > 0 {
        tell_retained(tx, op, &Removal::new(numbers, base)).await?;
    }
    Ok(Retained::Done(removed))
}

fn numbered(mut row: Row) -> Result<(i64, EventRow), Error> {
    let seq = row.int()?;
    Ok((seq, rows::event(row)?))
}

/// Removes an event and leaves its digest; gives its number.
async fn remove(tx: &mut impl Tx, op: &Retain, seq: i64, row: &EventRow) -> Result<i64, Error> {
    let ws = op.workspace.as_str();
    let digest = row.facts(ws).digest();
    let tombstone = params! { workspace: ws, seq: seq, digest: &digest, now: op.now };
    tx.execute("tombstone_insert", tombstone).await?;
    let gone = params! { workspace: ws, event_id: &row.event_id, seq: seq };
    tx.execute("event_delete", gone).await?;
    Ok(seq)
}

/// Whether the caller asks for audit events that everybody keeps.
fn is_too_young(op: &Retain) -> bool {
    let days = std::time::Duration::from_secs(86_400) * limits::AUDIT_DAYS;
    op.purpose == "audit" && op.before > op.now.before(days)
}

/// Retention is an act that is audited too.
async fn tell_retained(tx: &mut impl Tx, op: &Retain, removal: &Removal) -> Result<(), Error> {
    let ws = op.workspace.as_str();
    let sinks = tx.query("sink_list", params! { workspace: ws }).await?;
    let sinks = sinks.into_iter().map(outbox::sink).collect::<Result<Vec<_>, _>>()?;
    let idle = sinks.iter().filter(|sink| sink.state == SinkState::Disabled);
    let idle: Vec<(&str, i64)> = idle.map(|sink| (sink.sink.as_str(), sink.cursor)).collect();
    let payload = removal.to_json(&op.purpose, &op.before.iso(), &idle);
    let (first, last) = removal.ends();
    let id = format!("evt_retention_{}_{first}-{last}", op.purpose);
    audit(tx, ws, id, Removal::TYPE, &payload, "system:retention", op.now).await
}

/// Writes an audit event that concerns no command.
pub(super) async fn audit(
    tx: &mut impl Tx,
    ws: &str,
    event_id: String,
    event_type: &str,
    payload: &serde_json::Value,
    actor: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let event = EventRow {
        event_id,
        command_id: String::new(),
        purpose: "audit".to_owned(),
        event_type: event_type.to_owned(),
        payload: payload.to_string(),
        actor: actor.to_owned(),
        trace_id: String::new(),
        created_at: now,
    };
    events::insert(tx, ws, &event).await
}

/// Where everything from the beginning is gone, one link stands for all of it.
async fn rebase(tx: &mut impl Tx, ws: &str, base: Anchor) -> Result<Anchor, Error> {
    let behind = params! { workspace: ws, after: base.seq, limit: 2 * limits::PURGE_BATCH };
    let mut at = base.clone();
    for mut row in tx.query("tombstone_list", behind).await? {
        let (seq, digest) = (row.int()?, row.text()?);
        if seq != at.seq + 1 {
            break;
        }
        at = Anchor { seq, hash: event::link(&at.hash, &digest) };
    }
    if at.seq == base.seq {
        return Ok(base);
    }
    let moved = params! { workspace: ws, from: base.seq, seq: at.seq, hash: &at.hash };
    tx.execute("chain_rebase", moved).await?;
    tx.execute("tombstone_delete", params! { workspace: ws, upto: at.seq }).await?;
    Ok(at)
}
