//! How a queue comes to its limits: by an operator, or by the definition that a program brings.
//!
//! Invariants: a definition that was applied before changes nothing; another one changes what
//! differs between the two, and nothing that an operator has set otherwise.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast_core::limits;

use super::rows;
use crate::error::Error;
use crate::gate::{Row, Tx, first, params};
use crate::op::{DefineQueue, PutQueue, QueueChange, QueueDefined, QueuePut, QueueRow};
use steadfast_core::Timestamp;

/// A queue, and the definition of it that was applied last.
type Defined = (QueueRow, Option<QueueRow>);

pub(super) async fn put(tx: &mut impl Tx, op: &PutQueue) -> Result<QueuePut, Error> {
    let change = |found: Option<Defined>| {
        let defined = found.and_then(|(_, defined)| defined);
        Some((op.queue.clone(), defined))
    };
    let before = write(tx, &op.workspace, &op.queue, None, op.now, change).await?;
    Ok(QueuePut { created: before.is_none() })
}

pub(super) async fn define(tx: &mut impl Tx, op: &DefineQueue) -> Result<QueueDefined, Error> {
    let mut done = QueueDefined { change: QueueChange::Created, queue: op.queue.clone() };
    let change = |found: Option<Defined>| {
        let Some((now, last)) = found else {
            return Some((op.queue.clone(), Some(op.queue.clone())));
        };
        let is_same = last.as_ref() == Some(&op.queue);
        done.change = if is_same { QueueChange::Kept } else { QueueChange::Redefined };
        done.queue =
            if is_same { now } else { redefined(now, &last.unwrap_or_default(), &op.queue) };
        (!is_same).then(|| (done.queue.clone(), Some(op.queue.clone())))
    };
    write(tx, &op.workspace, &op.queue, Some(&op.queue), op.now, change).await?;
    Ok(done)
}

/// The queue after its definition has changed from one to another.
fn redefined(now: QueueRow, last: &QueueRow, next: &QueueRow) -> QueueRow {
    fn pick<T: PartialEq>(now: T, last: &T, next: T) -> T {
        if *last == next { now } else { next }
    }
    QueueRow {
        name: now.name,
        concurrency: pick(now.concurrency, &last.concurrency, next.concurrency),
        worker_concurrency: pick(
            now.worker_concurrency,
            &last.worker_concurrency,
            next.worker_concurrency,
        ),
        rate: pick(now.rate, &last.rate, next.rate),
        priorities: pick(now.priorities, &last.priorities, next.priorities),
        partitioned: pick(now.partitioned, &last.partitioned, next.partitioned),
        paused: pick(now.paused, &last.paused, next.paused),
    }
}

/// Makes the queue, or changes it under its lock to what is made of how it was found; gives that.
async fn write(
    tx: &mut impl Tx,
    ws: &str,
    asked: &QueueRow,
    definition: Option<&QueueRow>,
    now: Timestamp,
    change: impl FnOnce(Option<Defined>) -> Option<Defined>,
) -> Result<Option<QueueRow>, Error> {
    if let Some(memo) = tx.memo() {
        memo.clear();
    }
    if tx.execute("queue_insert", &fields(ws, asked, definition, now)).await? == 1 {
        change(None);
        // The default queue is there before it is made.
        order(tx, ws, asked, &QueueRow::default()).await?;
        return Ok(None);
    }
    let named = params! { workspace: ws, name: &asked.name };
    let Some(row) = first(tx, "queue_lock_defined", named).await? else {
        return Err(Error::Transient("the queue was removed meanwhile".to_owned()));
    };
    let found = defined(row)?;
    let before = found.0.clone();
    if let Some((queue, definition)) = change(Some(found)) {
        tx.execute("queue_update", &fields(ws, &queue, definition.as_ref(), now)).await?;
        order(tx, ws, &queue, &before).await?;
    }
    Ok(Some(before))
}

fn fields<'a>(
    ws: &'a str,
    queue: &'a QueueRow,
    definition: Option<&QueueRow>,
    now: Timestamp,
) -> crate::gate::Fields<'a> {
    crate::gate::fields! {
        workspace: ws, name: &queue.name, concurrency: queue.concurrency,
        worker_concurrency: queue.worker_concurrency,
        rate_limit: queue.rate.map(|(limit, _)| limit),
        rate_period_us: queue.rate.map(|(_, period)| period), priorities: queue.priorities,
        partitioned: queue.partitioned, paused: queue.paused, now: now,
        definition: definition.map(text),
    }
}

/// What already waits follows the new order. Much may wait, and most changes change no order. A
/// start that has read the queue before and commits after stands where it would have stood before.
async fn order(
    tx: &mut impl Tx,
    ws: &str,
    queue: &QueueRow,
    before: &QueueRow,
) -> Result<(), Error> {
    let on = params! {
        workspace: ws, queue: &queue.name, priorities: queue.priorities,
        background: limits::BACKGROUND_PRIORITY,
    };
    if before.priorities != queue.priorities {
        tx.execute("run_set_rank", on).await?;
    }
    if !queue.partitioned {
        tx.execute("run_clear_partition", on).await?;
    }
    Ok(())
}

/// A queue and its definition, as they are stored.
pub(super) fn defined(mut row: Row) -> Result<Defined, Error> {
    let queue = rows::queue_of(&mut row)?;
    let definition = row.opt_text()?.map(|text| read(&queue.name, &text)).transpose()?;
    Ok((queue, definition))
}

fn text(queue: &QueueRow) -> String {
    json!({
        "concurrency": queue.concurrency, "worker_concurrency": queue.worker_concurrency,
        "rate": queue.rate.map(|(limit, _)| limit),
        "period_us": queue.rate.map(|(_, period)| steadfast_core::time::micros(period)),
        "priorities": queue.priorities, "partitioned": queue.partitioned, "paused": queue.paused,
    })
    .to_string()
}

fn read(name: &str, text: &str) -> Result<QueueRow, Error> {
    let bad = |why: &dyn std::fmt::Display| {
        Error::Incompatible(format!("the definition of queue \"{name}\" cannot be read: {why}"))
    };
    let stored: Value = serde_json::from_str(text).map_err(|error| bad(&error))?;
    let number = |field: &str| stored[field].as_i64();
    let flag = |field: &str| stored[field].as_bool().ok_or_else(|| bad(&field));
    let period = number("period_us").map(|us| u64::try_from(us).map(Duration::from_micros));
    let period = period.transpose().map_err(|error| bad(&error))?;
    Ok(QueueRow {
        name: name.to_owned(),
        concurrency: number("concurrency"),
        worker_concurrency: number("worker_concurrency"),
        rate: number("rate").zip(period),
        priorities: flag("priorities")?,
        partitioned: flag("partitioned")?,
        paused: flag("paused")?,
    })
}
