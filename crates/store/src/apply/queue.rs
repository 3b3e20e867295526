//! Queues: limits, slots, rate windows, deduplication.
//!
//! Invariants: whoever counts against a limit holds the queue's row lock until the commit that acts
//! on the count, so two workers never both see the last free slot.

use steadfast_core::Timestamp;

use super::{define, own, rows};
use crate::error::Error;
use crate::gate::{Tx, first, params};
use crate::op::{
    DEFAULT_QUEUE, FreeSlot, Freed, Holder, InspectQueue, ListQueues, QueueReport, QueueRow,
    Queues, RunRow, SlotTaken, Start, TakeSlot,
};
use crate::sabotage;

pub(super) async fn get(tx: &mut impl Tx, ws: &str, name: &str) -> Result<Option<QueueRow>, Error> {
    let row = first(tx, "queue_get", params! { workspace: ws, name: name }).await?;
    row.map(rows::queue).transpose()
}

/// The queue as it was at some moment of this transaction: for starts, which may be as old as that.
pub(super) async fn remembered(
    tx: &mut impl Tx,
    ws: &str,
    name: &str,
) -> Result<Option<QueueRow>, Error> {
    if let Some(known) = tx.memo().and_then(|memo| memo.get(ws, name).cloned()) {
        return Ok(known);
    }
    let found = get(tx, ws, name).await?;
    if let Some(memo) = tx.memo() {
        memo.put(ws, name, found.clone());
    }
    Ok(found)
}

/// The queue, locked if it has limits that must be counted.
async fn counted(tx: &mut impl Tx, ws: &str, name: &str) -> Result<Option<QueueRow>, Error> {
    match get(tx, ws, name).await? {
        Some(queue) if queue.concurrency.is_some() || queue.rate.is_some() => {
            let row = first(tx, "queue_lock", params! { workspace: ws, name: name }).await?;
            row.map(rows::queue).transpose()
        }
        found => Ok(found),
    }
}

/// The queue to claim from; the default one is there without having been made, and has no limits.
pub(super) async fn counted_or_default(
    tx: &mut impl Tx,
    ws: &str,
    name: &str,
) -> Result<Option<QueueRow>, Error> {
    let unmade = || QueueRow { name: name.to_owned(), ..QueueRow::default() };
    let found = counted(tx, ws, name).await?;
    Ok(found.or_else(|| (name == DEFAULT_QUEUE).then(unmade)))
}

/// How many more may start in a partition, and when that changes by itself.
pub(super) struct Room {
    pub(super) free: i64,
    pub(super) eases_at: Option<Timestamp>,
}

pub(super) async fn room(
    tx: &mut impl Tx,
    ws: &str,
    queue: &QueueRow,
    partition: &str,
    now: Timestamp,
) -> Result<Room, Error> {
    let mut room = Room { free: i64::MAX, eases_at: None };
    if let Some(limit) = queue.concurrency {
        let (held, next) = held(tx, ws, &queue.name, partition, now).await?;
        room.free = limit - held;
        if room.free <= 0 {
            room.eases_at = next;
        }
    }
    if let Some((limit, period)) = queue.rate {
        let (started, oldest) = window(tx, ws, queue, partition, now).await?;
        room.free = room.free.min(limit - started);
        if started >= limit {
            room.eases_at = oldest.map(|at| at.after(period));
        }
    }
    Ok(room)
}

/// Slots held by runs and steps, and when the first step's slot would run out.
async fn held(
    tx: &mut impl Tx,
    ws: &str,
    queue: &str,
    partition: &str,
    now: Timestamp,
) -> Result<(i64, Option<Timestamp>), Error> {
    let at = params! { workspace: ws, queue: queue, partition_key: partition, now: now };
    let runs = count(tx, "run_held", at).await?;
    let steps = count(tx, "slot_held", at).await?;
    let next = match first(tx, "slot_next", at).await? {
        Some(mut row) => row.opt_time()?,
        None => None,
    };
    Ok((runs + steps, next))
}

async fn count(
    tx: &mut impl Tx,
    statement: &'static str,
    params: crate::gate::Params<'_>,
) -> Result<i64, Error> {
    first(tx, statement, params).await?.map_or(Ok(0), |mut row| row.int())
}

/// Starts inside the sliding window, and the oldest of them.
async fn window(
    tx: &mut impl Tx,
    ws: &str,
    queue: &QueueRow,
    partition: &str,
    now: Timestamp,
) -> Result<(i64, Option<Timestamp>), Error> {
    let Some((_, period)) = queue.rate else {
        return Ok((0, None));
    };
    let at = params! {
        workspace: ws, queue: &queue.name, partition_key: partition, after: now.before(period),
        until: now.after(period),
    };
    match first(tx, "start_count", at).await? {
        Some(mut row) => Ok((row.int()?, row.opt_time()?)),
        None => Ok((0, None)),
    }
}

/// Notes a start against the queue's rate, and forgets those that left the window.
pub(super) async fn note_start(
    tx: &mut impl Tx,
    ws: &str,
    queue: &QueueRow,
    partition: &str,
    token: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let Some((_, period)) = queue.rate else {
        return Ok(());
    };
    tx.execute(
        "start_prune",
        params! {
            workspace: ws, queue: &queue.name, partition_key: partition, after: now.before(period),
            until: now.after(period),
        },
    )
    .await?;
    tx.execute(
        "start_insert",
        params! {
            workspace: ws, queue: &queue.name, partition_key: partition, now: now,
            // The run id and a number may be longer than a key; the digest is not.
            token: steadfast_core::json::fingerprint(token),
        },
    )
    .await?;
    Ok(())
}

pub(super) async fn take_slot(tx: &mut impl Tx, op: &TakeSlot) -> Result<SlotTaken, Error> {
    let ws = op.lease.workspace.as_str();
    let Some(queue) = counted_or_default(tx, ws, &op.queue).await? else {
        return Ok(SlotTaken::NoQueue);
    };
    if !own::fenced(tx, &op.lease, op.now).await? {
        return Ok(SlotTaken::Fenced);
    }
    let partition = if queue.partitioned { op.partition.as_str() } else { "" };
    let id = params! { workspace: ws, run_id: &op.lease.run_id, function_id: op.step };
    if let Some(mut row) = first(tx, "slot_of", id).await? {
        // Ours already (a repeated request), or left by an earlier owner of this run.
        if row.text()? == op.lease.worker && row.int()? == op.lease.epoch {
            return Ok(SlotTaken::Done);
        }
        tx.execute("slot_delete", id).await?;
    }
    let room = room(tx, ws, &queue, partition, op.now).await?;
    if room.free <= 0 || queue.paused {
        return Ok(SlotTaken::Full { until: room.eases_at });
    }
    tx.execute(
        "slot_insert",
        params! {
            workspace: ws, run_id: &op.lease.run_id, function_id: op.step, queue: &op.queue,
            partition_key: partition, worker: &op.lease.worker, epoch: op.lease.epoch,
            lease_until: op.lease_until,
        },
    )
    .await?;
    // With what was there before it: a step may give its slot back and take it again at once.
    let (before, _) = window(tx, ws, &queue, partition, op.now).await?;
    let token = format!("{}#{}#{}#{before}", op.lease.run_id, op.step, op.lease.epoch);
    note_start(tx, ws, &queue, partition, &token, op.now).await?;
    Ok(SlotTaken::Done)
}

pub(super) async fn free_slot(tx: &mut impl Tx, op: &FreeSlot) -> Result<Freed, Error> {
    let id = params! {
        workspace: &op.lease.workspace, run_id: &op.lease.run_id, function_id: op.step,
    };
    if let Some(mut row) = first(tx, "slot_of", id).await?
        && (row.text()? == op.lease.worker && row.int()? == op.lease.epoch
            || sabotage::is_left_out("a slot is its owner's"))
    {
        return Ok(Freed(tx.execute("slot_delete", id).await? > 0));
    }
    Ok(Freed(false))
}

pub(super) async fn list(tx: &mut impl Tx, op: &ListQueues) -> Result<Queues, Error> {
    let rows = tx.query("queue_list", params! { workspace: &op.workspace }).await?;
    Ok(Queues(rows.into_iter().map(rows::queue).collect::<Result<_, _>>()?))
}

pub(super) async fn inspect(tx: &mut impl Tx, op: &InspectQueue) -> Result<QueueReport, Error> {
    let ws = op.workspace.as_str();
    let named = params! { workspace: ws, name: &op.queue };
    let found = first(tx, "queue_defined", named).await?.map(define::defined).transpose()?;
    let (queue, defined) = match found {
        Some((queue, defined)) => (Some(queue), defined),
        None => (None, None),
    };
    let partition = match &queue {
        Some(queue) if queue.partitioned => op.partition.as_str(),
        _ => "",
    };
    let at = params! { workspace: ws, queue: &op.queue, partition_key: partition, now: op.now };
    let mut holders = Vec::new();
    for mut row in tx.query("run_holders", at).await? {
        let (run_id, worker, until) = (row.text()?, row.text()?, row.time()?);
        holders.push(Holder { run_id, step: -1, worker, until });
    }
    for mut row in tx.query("slot_holders", at).await? {
        let (run_id, step) = (row.text()?, row.int()?);
        holders.push(Holder { run_id, step, worker: row.text()?, until: row.time()? });
    }
    holders.truncate(100);
    let (held, _) = held(tx, ws, &op.queue, partition, op.now).await?;
    let (started, oldest) = match &queue {
        Some(queue) => window(tx, ws, queue, partition, op.now).await?,
        None => (0, None),
    };
    let period = queue.as_ref().and_then(|q| q.rate).map(|(_, period)| period);
    let eases_at = oldest.zip(period).map(|(at, period)| at.after(period));
    let waiting = count(tx, "run_waiting", at).await?;
    Ok(QueueReport { queue, defined, holders, held, started, eases_at, waiting })
}

/// Takes a deduplication id for a start; gives the holder and since when, if it is taken.
pub(super) async fn dedupe_take(
    tx: &mut impl Tx,
    op: &Start,
) -> Result<Option<(String, Timestamp)>, Error> {
    let key = params! {
        workspace: &op.workspace, queue: &op.queue, dedupe_id: &op.dedupe_id, run_id: &op.run_id,
        now: op.now,
    };
    if tx.execute("dedupe_insert", key).await? == 1 {
        return Ok(None);
    }
    match first(tx, "dedupe_get", key).await? {
        Some(mut row) => Ok(Some((row.text()?, row.time()?))),
        None => Err(Error::Transient("the deduplication id was freed meanwhile".to_owned())),
    }
}

/// Gives back a deduplication id that a start took although its run existed without it.
pub(super) async fn dedupe_release(
    tx: &mut impl Tx,
    ws: &str,
    queue: &str,
    dedupe_id: &str,
    run_id: &str,
    existing: &RunRow,
) -> Result<(), Error> {
    let keeps = existing.dedupe_id == dedupe_id
        && existing.queue == queue
        && !existing.status.is_terminal();
    if !keeps {
        let key = params! { workspace: ws, queue: queue, dedupe_id: dedupe_id, run_id: run_id };
        tx.execute("dedupe_delete", key).await?;
    }
    Ok(())
}

/// Takes the deduplication id of a run again that is resumed; gives none if another run has taken
/// it since.
pub(super) async fn dedupe_again<'a>(
    tx: &mut impl Tx,
    ws: &str,
    run: &'a RunRow,
    now: Timestamp,
) -> Result<&'a str, Error> {
    if run.dedupe_id.is_empty() {
        return Ok("");
    }
    let key = params! {
        workspace: ws, queue: &run.queue, dedupe_id: &run.dedupe_id, run_id: &run.run_id, now: now,
    };
    let is_free = tx.execute("dedupe_insert", key).await? == 1;
    Ok(if is_free { &run.dedupe_id } else { "" })
}

/// Frees the deduplication id of a run that ends.
pub(super) async fn dedupe_free(tx: &mut impl Tx, ws: &str, run: &RunRow) -> Result<(), Error> {
    free(tx, ws, &run.queue, &run.dedupe_id, &run.run_id).await
}

pub(super) async fn free(
    tx: &mut impl Tx,
    ws: &str,
    queue: &str,
    dedupe_id: &str,
    run_id: &str,
) -> Result<(), Error> {
    if !dedupe_id.is_empty() {
        let key = params! { workspace: ws, queue: queue, dedupe_id: dedupe_id, run_id: run_id };
        tx.execute("dedupe_delete", key).await?;
    }
    Ok(())
}
