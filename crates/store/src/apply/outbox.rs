//! Sinks: who sends, what there is to send, and what became of it.
//!
//! Invariants: every taking raises the sink's epoch, and only who took last may settle, so a sender
//! that was thought dead cannot move the cursor or bring back what is done; a cursor never goes
//! back; an event is parked or passed over by the cursor in one commit.

use std::collections::HashSet;

use steadfast_core::{Timestamp, limits};

use super::{event, publish, rows};
use crate::error::Error;
use crate::gate::{Row, Tx, Value, first, params};
use crate::op::{
    Batch, DeadLetter, DeadLetters, Fate, ListDead, ListSinks, Outbox, OutboxSettled, Outgoing,
    PutSink, Redrive, Redriven, Sent, SetSink, SettleOutbox, SinkFrom, SinkPut, SinkReport,
    SinkRow, SinkSet, SinkState, Sinks, TakeOutbox,
};

pub(super) fn sink(mut row: Row) -> Result<SinkRow, Error> {
    let r = &mut row;
    let (sink, kind, place, state) = (r.text()?, r.text()?, r.text()?, r.text()?);
    let state = SinkState::parse(&state)
        .ok_or_else(|| Error::Incompatible(format!("there is no state {state} of a sink")))?;
    Ok(SinkRow {
        sink,
        kind,
        place,
        state,
        reason: r.text()?,
        cursor: r.int()?,
        owner: r.text()?,
        epoch: r.int()?,
        lease_until: r.time()?,
        created_at: r.time()?,
    })
}

pub(super) async fn put(tx: &mut impl Tx, op: &PutSink) -> Result<SinkPut, Error> {
    let at = params! { workspace: &op.workspace, sink: &op.sink };
    let kept = first(tx, "sink_get", at).await?.map(sink).transpose()?;
    if let Some(kept) = kept {
        if kept.kind != op.kind || kept.place != op.place {
            let anew = params! {
                workspace: &op.workspace, sink: &op.sink, kind: &op.kind, place: &op.place,
            };
            tx.execute("sink_describe", anew).await?;
        }
        return Ok(SinkPut { created: false });
    }
    let head = publish::head(tx, &op.workspace).await?;
    let cursor = match op.from {
        SinkFrom::Beginning => 0,
        SinkFrom::Now => head.map_or(0, |head| head.seq),
    };
    let new = params! {
        workspace: &op.workspace, sink: &op.sink, kind: &op.kind, place: &op.place,
        cursor_seq: cursor, now: op.now,
    };
    // On MySQL a row that is kept counts as none or as two.
    Ok(SinkPut { created: tx.execute("sink_insert", new).await? == 1 })
}

pub(super) async fn set(tx: &mut impl Tx, op: &SetSink) -> Result<SinkSet, Error> {
    let at = params! { workspace: &op.workspace, sink: &op.sink };
    let Some(row) = first(tx, "sink_lock", at).await?.map(sink).transpose()? else {
        return Ok(SinkSet::NotFound);
    };
    if row.state == op.state {
        return Ok(SinkSet::Unchanged);
    }
    change(tx, op, row.epoch).await?;
    Ok(SinkSet::Done)
}

/// Changes a sink's state and tells who did it, and why.
async fn change(tx: &mut impl Tx, op: &SetSink, epoch: i64) -> Result<(), Error> {
    let to = params! {
        workspace: &op.workspace, sink: &op.sink, state: op.state.as_str(), reason: &op.reason,
    };
    tx.execute("sink_set", to).await?;
    let event_type = match op.state {
        SinkState::Active => "sink.enabled",
        SinkState::Disabled => "sink.disabled",
    };
    let payload = serde_json::json!({ "sink": op.sink, "reason": op.reason });
    let id = format!("evt_sink_{}@{epoch:08}", op.sink);
    publish::audit(tx, &op.workspace, id, event_type, &payload, &op.actor, op.now).await
}

pub(super) async fn take(tx: &mut impl Tx, op: &TakeOutbox) -> Result<Outbox, Error> {
    let ws = op.workspace.as_str();
    let at = params! { workspace: ws, sink: &op.sink };
    let Some(row) = first(tx, "sink_lock", at).await?.map(sink).transpose()? else {
        return Ok(Outbox::NotFound);
    };
    if row.state == SinkState::Disabled {
        return Ok(Outbox::Disabled);
    }
    if !row.owner.is_empty() && row.owner != op.owner && row.lease_until > op.now {
        return Ok(Outbox::Held);
    }
    let mine = params! {
        workspace: ws, sink: &op.sink, owner: &op.owner, epoch: row.epoch,
        lease_until: op.lease_until,
    };
    if tx.execute("sink_take", mine).await? != 1 {
        return Ok(Outbox::Held);
    }
    let limit = op.limit;
    let (due, parked) = due(tx, op, limit).await?;
    let room = if parked.len() < limits::PARKED_EVENTS { limit - due.len() } else { 0 };
    let mut fresh = Vec::new();
    if room > 0 {
        let behind = params! { workspace: ws, after: row.cursor, limit: room };
        for row in tx.query("outbox_fresh", behind).await? {
            fresh.push(outgoing(row)?);
        }
    }
    let these = params! { workspace: ws, sink: &op.sink, limit: limits::PAGE_ROWS };
    let mut marks = Vec::new();
    for mut row in tx.query("mark_list", these).await? {
        marks.push((row.text()?, row.time()?));
    }
    let (epoch, cursor) = (row.epoch + 1, row.cursor);
    Ok(Outbox::Taken(Box::new(Batch { epoch, cursor, due, fresh, parked, marks })))
}

type Due = (Vec<(Outgoing, u32)>, Vec<(i64, String)>);

/// Parked events whose time has come and that nothing of their key is before; and all there are.
async fn due(tx: &mut impl Tx, op: &TakeOutbox, limit: usize) -> Result<Due, Error> {
    let at = params! { workspace: &op.workspace, sink: &op.sink };
    let (mut held, mut attempts, mut parked) = (HashSet::new(), Vec::new(), Vec::new());
    for mut row in tx.query("parked_list", at).await? {
        let (seq, event_id, key) = (row.int()?, row.text()?, row.text()?);
        let (attempt, next_at) = (row.int()?, row.time()?);
        parked.push((seq, key.clone()));
        if held.contains(&key) {
            continue;
        }
        if next_at > op.now || attempts.len() == limit {
            held.insert(key);
        } else {
            attempts.push((event_id, u32::try_from(attempt).unwrap_or(u32::MAX)));
        }
    }
    if attempts.is_empty() {
        return Ok((Vec::new(), parked));
    }
    let ids: Vec<&str> = attempts.iter().map(|(id, _)| id.as_str()).collect();
    let these = params! { workspace: &op.workspace, event_ids: ids };
    let mut due = Vec::new();
    for row in tx.query("outbox_these", these).await? {
        let event = outgoing(row)?;
        let attempt = attempts.iter().find(|(id, _)| *id == event.event.event_id);
        due.push((event, attempt.map_or(0, |(_, attempt)| *attempt)));
    }
    Ok((due, parked))
}

fn outgoing(mut row: Row) -> Result<Outgoing, Error> {
    let seq = row.int()?;
    let event = rows::event_of(&mut row)?;
    Ok(Outgoing { seq, event, context: row.opt_text()? })
}

pub(super) async fn settle(tx: &mut impl Tx, op: &SettleOutbox) -> Result<OutboxSettled, Error> {
    let ws = op.workspace.as_str();
    let right = params! {
        workspace: ws, sink: &op.sink, owner: &op.owner, epoch: op.epoch, cursor_seq: op.cursor,
    };
    if tx.execute("sink_settle", right).await? != 1 {
        return Ok(OutboxSettled::Fenced);
    }
    for sent in &op.sent {
        note(tx, op, sent).await?;
    }
    if !op.marks.is_empty() {
        let old = params! { workspace: ws, sink: &op.sink, before: op.forget_before };
        tx.execute("mark_forget", old).await?;
    }
    for (mark, at) in &op.marks {
        let old = params! { workspace: ws, sink: &op.sink, mark: mark };
        tx.execute("mark_delete", old).await?;
        let new = params! { workspace: ws, sink: &op.sink, mark: mark, marked_at: *at };
        tx.execute("mark_insert", new).await?;
    }
    if let Some(reason) = &op.gone {
        let stop = SetSink {
            workspace: op.workspace.clone(),
            sink: op.sink.clone(),
            state: SinkState::Disabled,
            reason: reason.clone(),
            actor: "system:relay".to_owned(),
            now: op.now,
        };
        change(tx, &stop, op.epoch).await?;
    }
    Ok(OutboxSettled::Done)
}

async fn note(tx: &mut impl Tx, op: &SettleOutbox, sent: &Sent) -> Result<(), Error> {
    let (ws, sink) = (op.workspace.as_str(), op.sink.as_str());
    let old = params! { workspace: ws, sink: sink, seq: sent.seq };
    tx.execute("parked_delete", old).await?;
    let (state, attempt, next_at, error) = match &sent.fate {
        Fate::Done => return Ok(()),
        Fate::Parked { attempt, next_at, error } => ("parked", *attempt, *next_at, error),
        Fate::Dead { attempt, error } => ("dead", *attempt, Timestamp::NEVER, error),
    };
    let new = params! {
        workspace: ws, sink: sink, seq: sent.seq, event_id: &sent.event_id, event_key: &sent.key,
        state: state, attempt: i64::from(attempt), next_at: next_at, error: error, now: op.now,
    };
    tx.execute("parked_insert", new).await?;
    Ok(())
}

pub(super) async fn list(tx: &mut impl Tx, op: &ListSinks) -> Result<Sinks, Error> {
    let ws = op.workspace.as_str();
    let head = publish::head(tx, ws).await?.map_or(0, |head| head.seq);
    let one = params! { workspace: ws, limit: 1usize };
    let unsealed = first(tx, "event_unsealed", one).await?.is_some();
    let mut sinks = Vec::new();
    for row in tx.query("sink_list", params! { workspace: ws }).await? {
        sinks.push(SinkReport { row: sink(row)?, parked: 0, due_at: None, dead: 0 });
    }
    let states: &[&str] = match (sinks.is_empty(), op.count_dead) {
        (true, _) => &[],
        (false, false) => &["parked"],
        (false, true) => &["parked", "dead"],
    };
    for state in states {
        let these = params! { workspace: ws, state: *state };
        for mut row in tx.query("parked_count", these).await? {
            let (name, count, due_at) = (row.text()?, row.int()?, row.time()?);
            let Some(report) = sinks.iter_mut().find(|report| report.row.sink == name) else {
                continue;
            };
            if *state == "dead" {
                report.dead = count;
            } else {
                (report.parked, report.due_at) = (count, Some(due_at));
            }
        }
    }
    Ok(Sinks { head, unsealed, sinks })
}

pub(super) async fn dead(tx: &mut impl Tx, op: &ListDead) -> Result<DeadLetters, Error> {
    let mut texts = vec!["1 = 1"];
    let mut given: Vec<(&'static str, Value<'_>)> =
        vec![("workspace", Value::from(&op.workspace)), ("limit", Value::from(op.limit))];
    if let Some(sink) = &op.sink {
        texts.push("sink = :sink");
        given.push(("sink", Value::from(sink)));
    }
    if let Some((sink, seq)) = &op.after {
        texts.push("(sink > :after_sink OR (sink = :after_sink AND seq > :after_seq))");
        given.push(("after_sink", Value::from(sink)));
        given.push(("after_seq", Value::from(*seq)));
    }
    let mut letters = Vec::new();
    for mut row in tx.query_where("parked_dead", &texts.join(" AND "), &given).await? {
        let r = &mut row;
        letters.push(DeadLetter {
            sink: r.text()?,
            seq: r.int()?,
            event_id: r.text()?,
            key: r.text()?,
            attempt: r.int()?,
            error: r.text()?,
            died_at: r.time()?,
        });
    }
    Ok(DeadLetters(letters))
}

pub(super) async fn redrive(tx: &mut impl Tx, op: &Redrive) -> Result<Redriven, Error> {
    let (ws, sink) = (op.workspace.as_str(), op.sink.as_str());
    let id = op.told_as();
    if let Some((actor, said)) = event::said(tx, ws, &id).await?
        && actor == op.actor
    {
        return Ok(Redriven(said["count"].as_u64().unwrap_or(0)));
    }
    let changed = match &op.event_id {
        None => {
            let all = params! { workspace: ws, sink: sink, now: op.now };
            tx.execute("parked_redrive", all).await?
        }
        Some(id) => {
            let one = params! { workspace: ws, sink: sink, event_id: id, now: op.now };
            tx.execute("parked_redrive_one", one).await?
        }
    };
    if changed > 0 {
        let told = op.told(changed);
        publish::audit(tx, ws, id, "sink.redriven", &told, &op.actor, op.now).await?;
    }
    Ok(Redriven(changed))
}
