//! Claiming: from a queue, after a wait, or from a worker that is gone.
//!
//! Invariants: every claim raises the epoch; rows another worker has locked are skipped, not waited
//! for; attempts count dequeues and recoveries, not wake-ups.

use std::collections::BTreeMap;

use steadfast_core::{
    Error as Failure, ErrorClass, RunEvent, RunStatus, Timestamp, Transition, limits,
};

use super::{follow, queue, rows, steer};
use crate::error::Error;
use crate::gate::{Fields, Row, Tx, fields, first, params};
use crate::op::{Claimed, Dequeue, InLine, QueueRow, RunRow, Wake};

pub(super) async fn dequeue(tx: &mut impl Tx, op: &Dequeue) -> Result<Claimed, Error> {
    let ws = op.workspace.as_str();
    let Some(queue) = queue::counted_or_default(tx, ws, &op.queue).await? else {
        return Ok(Claimed::default());
    };
    let mut claimed = Claimed::default();
    if queue.paused {
        return Ok(claimed);
    }
    let limit = op.limit;
    let partitions = partitions(tx, op, &queue).await?;
    let mut looked = partitions.is_empty();
    for partition in partitions {
        let left = limit - claimed.runs.len();
        if left == 0 {
            break;
        }
        let room = queue::room(tx, ws, &queue, &partition, op.now).await?;
        let free = room.free.min(worker_room(op, &queue, &partition));
        if let (true, Some(at)) = (free <= 0, room.eases_at) {
            claimed.next_at = Some(claimed.next_at.map_or(at, |next| next.min(at)));
        }
        let take = usize::try_from(free).unwrap_or(0).min(left);
        if take > 0 {
            looked = true;
            let line = take_from(tx, op, &queue, &partition, take).await?;
            for (place, run) in line {
                claimed.last = (!queue.partitioned).then_some(place);
                claimed.runs.push(run);
            }
        }
    }
    claimed.full = !queue.partitioned && worker_room(op, &queue, "") <= count(&claimed.runs);
    // Who has no room goes by its places. To look all the same would be to pass by all that waits.
    if looked && claimed.runs.is_empty() && claimed.next_at.is_none() {
        let at = params! { workspace: ws, queue: &op.queue, now: op.now };
        claimed.next_at = match first(tx, "run_next_ready", at).await? {
            Some(mut row) => Some(row.time()?),
            None => None,
        };
    }
    Ok(claimed)
}

#[cfg(feature = "postgres")]
/// Claims from a queue as one statement. `None` when nothing was written: nothing waits or there is
/// no room, something of it is a command's, which may have expired, or the queue is paused, was
/// never made, or has more to it than a limit per worker.
pub(super) async fn dequeue_at_once(
    tx: &mut impl Tx,
    op: &Dequeue,
) -> Result<Option<Claimed>, Error> {
    let has: i64 = op.worker_has.iter().map(|(_, runs)| runs).sum();
    let (mut line, mut limit) = claim_at_once(tx, op, has, op.behind.as_ref()).await?;
    if line.is_empty()
        && let Some(behind) = &op.behind
    {
        // Somebody there who was not claimed is for the long way.
        if !first_in_line(tx, op, "", 1, Some(behind)).await?.is_empty() {
            return Ok(None);
        }
        (line, limit) = claim_at_once(tx, op, has, None).await?;
    }
    // They come in the order in which they lie in the table.
    line.sort_by(|(place, _), (other, _)| place.cmp(other));
    let last = line.last().map(|(place, _)| place.clone());
    let runs: Vec<RunRow> = line.into_iter().map(|(_, run)| run).collect();
    let full = limit.is_some_and(|limit| limit <= has + count(&runs));
    Ok((!runs.is_empty()).then(|| Claimed { runs, full, last, ..Claimed::default() }))
}

#[cfg(feature = "postgres")]
/// What is claimed behind a place in line, and the queue's limit for each worker.
async fn claim_at_once(
    tx: &mut impl Tx,
    op: &Dequeue,
    has: i64,
    behind: Option<&InLine>,
) -> Result<(Vec<(InLine, RunRow)>, Option<i64>), Error> {
    let arrow = arrow(RunStatus::Enqueued, RunEvent::Claim)?;
    let mut set = fields! {
        workspace: &op.workspace, queue: &op.queue, limit: op.limit,
        has: has, app_version: &op.app_version, workflows: op.workflows.clone(),
        to: arrow.to().as_str(), worker: &op.worker, attempt: 1i64, stride: tx.claim_stride(),
        lease_until: op.lease_until, now: op.now,
    };
    set.extend(behind_fields(behind));
    let (mut line, mut limit) = (Vec::new(), None);
    for mut row in tx.query("run_dequeue_claim", &set).await? {
        limit = row.opt_int()?;
        line.push(placed(row)?);
    }
    Ok((line, limit))
}

/// A place in line as fields; without one, a place before all others.
fn behind_fields(behind: Option<&InLine>) -> Fields<'_> {
    match behind {
        Some(at) => fields! { rank: at.rank, ready_at: at.ready_at, after: &at.run_id },
        None => fields! { rank: i64::MIN, ready_at: i64::MIN, after: "" },
    }
}

/// A run of a line, by its rank and the columns of runs.
fn placed(mut row: Row) -> Result<(InLine, RunRow), Error> {
    let rank = row.int()?;
    let run = rows::run(row)?;
    Ok((InLine { rank, ready_at: run.ready_at, run_id: run.run_id.clone() }, run))
}

fn count(runs: &[RunRow]) -> i64 {
    i64::try_from(runs.len()).unwrap_or(i64::MAX)
}

/// The partitions to look at, beginning after the one served last and going round once.
async fn partitions(
    tx: &mut impl Tx,
    op: &Dequeue,
    queue: &QueueRow,
) -> Result<Vec<String>, Error> {
    if !queue.partitioned {
        return Ok(vec![String::new()]);
    }
    let mut found = Vec::new();
    let (mut after, mut wrapped) = (op.after_partition.clone(), false);
    while found.len() < limits::CLAIM_PARTITIONS {
        let at = params! { workspace: &op.workspace, queue: &op.queue, after: &after };
        let next = match first(tx, "run_next_partition", at).await? {
            Some(mut row) => row.text()?,
            None if wrapped => break,
            None => {
                wrapped = true;
                if first(tx, "run_has_partition", at).await?.is_some() {
                    found.push(String::new());
                }
                after = String::new();
                continue;
            }
        };
        if wrapped && next > op.after_partition {
            break;
        }
        after.clone_from(&next);
        found.push(next);
    }
    Ok(found)
}

fn worker_room(op: &Dequeue, queue: &QueueRow, partition: &str) -> i64 {
    let Some(limit) = queue.worker_concurrency else {
        return i64::MAX;
    };
    // Runs from a time when the queue had partitions count too.
    let counts = |key: &str| !queue.partitioned || key == partition;
    let has: i64 = op.worker_has.iter().filter(|(key, _)| counts(key)).map(|(_, n)| n).sum();
    limit - has
}

async fn take_from(
    tx: &mut impl Tx,
    op: &Dequeue,
    queue: &QueueRow,
    partition: &str,
    take: usize,
) -> Result<Vec<(InLine, RunRow)>, Error> {
    let mut behind = op.behind.as_ref().filter(|_| !queue.partitioned);
    let mut line = first_in_line(tx, op, partition, take, behind).await?;
    if line.is_empty() && behind.take().is_some() {
        line = first_in_line(tx, op, partition, take, behind).await?;
    }
    let (mut places, mut runs): (Vec<InLine>, Vec<RunRow>) = line.into_iter().unzip();
    if follow::expire(tx, &op.workspace, &runs, op.now).await? {
        // What has ended may have taken others of these with it: its children.
        let left = first_in_line(tx, op, partition, take, behind).await?;
        let waits = |run_id: &str| left.iter().any(|(_, other)| other.run_id == run_id);
        runs.retain(|run| waits(&run.run_id));
        places.retain(|place| waits(&place.run_id));
    }
    let claim = Claim { ws: &op.workspace, worker: &op.worker, until: op.lease_until, now: op.now };
    claim.take(tx, &mut runs, 1).await?;
    for run in &runs {
        let token = format!("{}#{}", run.run_id, run.epoch);
        queue::note_start(tx, &op.workspace, queue, partition, &token, op.now).await?;
    }
    Ok(places.into_iter().zip(runs).collect())
}

/// What is first in line, locked; behind a place, if there is one.
async fn first_in_line(
    tx: &mut impl Tx,
    op: &Dequeue,
    partition: &str,
    take: usize,
    behind: Option<&InLine>,
) -> Result<Vec<(InLine, RunRow)>, Error> {
    let mut at = fields! {
        workspace: &op.workspace, queue: &op.queue, partition_key: partition, now: op.now,
        app_version: &op.app_version, workflows: op.workflows.clone(), limit: take,
    };
    let look = match behind {
        Some(_) => "run_dequeue_select_behind",
        None => "run_dequeue_select",
    };
    at.extend(behind_fields(behind));
    tx.query(look, &at).await?.into_iter().map(placed).collect()
}

struct Claim<'a> {
    ws: &'a str,
    worker: &'a str,
    until: Timestamp,
    now: Timestamp,
}

impl Claim<'_> {
    /// Claims locked rows, all in the same status, in the database and in memory alike.
    async fn take(&self, tx: &mut impl Tx, runs: &mut [RunRow], attempt: i64) -> Result<(), Error> {
        let Some(head) = runs.first() else {
            return Ok(());
        };
        let arrow = arrow(head.status, RunEvent::Claim)?;
        let ids: Vec<&str> = runs.iter().map(|r| r.run_id.as_str()).collect();
        let stride = tx.claim_stride();
        let set = params! {
            workspace: self.ws, from: arrow.from().as_str(), to: arrow.to().as_str(), run_ids: ids,
            worker: self.worker, attempt: attempt, stride: stride, now: self.now,
            lease_until: self.until,
        };
        tx.execute("run_claim", set).await?;
        for run in runs.iter_mut() {
            run.status = arrow.to();
            run.worker = self.worker.to_owned();
            run.epoch += stride;
            run.attempts += attempt;
            run.started_at = run.started_at.or(Some(self.now));
            run.wake_at = self.until;
            run.parked = false;
            run.waits.clear();
            run.updated_at = self.now;
            run.deadline_at = run.deadline_by(self.now);
            run.wake_at = run.wake_at.min(run.deadline_at.unwrap_or(Timestamp::NEVER));
        }
        follow::claimed(tx, self.ws, runs, self.worker, self.now).await
    }
}

/// The arrow for an event; the rows were selected by status, so a refusal is a bug.
fn arrow(from: RunStatus, event: RunEvent) -> Result<Transition<RunStatus>, Error> {
    from.on(event).map_err(|refused| Error::Incompatible(refused.to_string()))
}

/// What a worker has of the queues that limit it, whatever way a run comes to it.
struct Rooms {
    limited: Vec<QueueRow>,
    has: BTreeMap<(String, String), i64>,
}

impl Rooms {
    /// By the limits of now: a worker's own idea of them may be old.
    async fn of(tx: &mut impl Tx, op: &Wake) -> Result<Self, Error> {
        let rows = tx.query("queue_list_limited", params! { workspace: &op.workspace }).await?;
        let limited = rows.into_iter().map(rows::queue).collect::<Result<_, _>>()?;
        let mut rooms = Self { limited, has: BTreeMap::new() };
        for (queue, partition, runs) in &op.worker_has {
            if let Some((place, _)) = rooms.place(queue, partition) {
                *rooms.has.entry(place).or_default() += runs;
            }
        }
        Ok(rooms)
    }

    /// Where a run is counted, and the limit there.
    fn place(&self, queue: &str, partition: &str) -> Option<((String, String), i64)> {
        let queue = self.limited.iter().find(|limited| limited.name == queue)?;
        let partition = if queue.partitioned { partition } else { "" };
        Some(((queue.name.clone(), partition.to_owned()), queue.worker_concurrency?))
    }

    /// Whole queues, and partitions as `{{place}}` has them, that are not worth selecting from.
    fn full(&self) -> (Vec<String>, Vec<String>) {
        let has = |queue: &str| self.has.get(&(queue.to_owned(), String::new())).copied();
        let full_queue = |queue: &&QueueRow| {
            let has = has(&queue.name).filter(|_| !queue.partitioned).unwrap_or(0);
            queue.worker_concurrency.is_some_and(|limit| has >= limit)
        };
        let queues = self.limited.iter().filter(full_queue).map(|queue| queue.name.clone());
        let full_place = |((queue, partition), has): (&(String, String), &i64)| {
            let limited = self.limited.iter().find(|limited| limited.name == *queue)?;
            let full = limited.partitioned && limited.worker_concurrency? <= *has;
            full.then(|| format!("{queue}\n{partition}"))
        };
        (queues.collect(), self.has.iter().filter_map(full_place).collect())
    }

    /// Whether the worker may have one more, which then counts.
    fn take(&mut self, queue: &str, partition: &str) -> bool {
        let Some((place, limit)) = self.place(queue, partition) else {
            return true;
        };
        let has = self.has.entry(place).or_default();
        *has += 1;
        *has <= limit
    }
}

/// The answer to a wake where nothing is due, which is most of them, by one look that locks
/// nothing.
pub(super) async fn nothing_to_wake(tx: &mut impl Tx, op: &Wake) -> Result<Option<Claimed>, Error> {
    let next_at = next_wake(tx, op, None).await?;
    if next_at <= op.now {
        return Ok(None);
    }
    let next_at = Some(next_at).filter(|at| *at != Timestamp::NEVER);
    Ok(Some(Claimed { next_at, ..Claimed::default() }))
}

/// Ends runs whose deadline has passed, whichever worker has them; gives them and their children,
/// and whether there may be more.
async fn end_overdue(tx: &mut impl Tx, op: &Wake) -> Result<(Vec<String>, bool), Error> {
    let which = params! {
        workspace: &op.workspace, now: op.now, limit: limits::CLAIM_BATCH,
    };
    let found = rows::runs(tx.query("run_overdue_select", which).await?)?;
    let is_full = found.len() == limits::CLAIM_BATCH;
    let mut ended = Vec::new();
    for run in found {
        // One before may have ended it: its parent, or the command that both belong to.
        let run = steer::lock(tx, &op.workspace, &run.run_id).await?;
        if let Some(run) = run.filter(|run| run.is_overdue(op.now)) {
            let children = steer::end_overdue(tx, &op.workspace, &run, op.now).await?;
            ended.push(run.run_id);
            ended.extend(children);
        }
    }
    Ok((ended, is_full))
}

pub(super) async fn wake(tx: &mut impl Tx, op: &Wake) -> Result<Claimed, Error> {
    if tx.is_near()
        && let Some(nothing) = nothing_to_wake(tx, op).await?
    {
        return Ok(nothing);
    }
    let (overdue, more) = end_overdue(tx, op).await?;
    let mut rooms = Rooms::of(tx, op).await?;
    let (full_queues, full_places) = rooms.full();
    let at = params! {
        workspace: &op.workspace, now: op.now, app_version: &op.app_version,
        workflows: op.workflows.clone(), full_queues: full_queues, full_places: full_places,
        worker: &op.worker,
        limit: op.limit,
    };
    let found = rows::runs(tx.query("run_wake_select", at).await?)?;
    let mut claimed = Claimed { overdue, ..Claimed::default() };
    let (mut woken, mut recovered, mut used_up) = (Vec::new(), Vec::new(), Vec::new());
    for run in found {
        if !run.parked && run.attempts > run.max_attempts {
            used_up.push(run);
            continue;
        }
        if !rooms.take(&run.queue, &run.partition) {
            continue;
        }
        if run.parked { woken.push(run) } else { recovered.push(run) }
    }
    let claim = Claim { ws: &op.workspace, worker: &op.worker, until: op.lease_until, now: op.now };
    claim.take(tx, &mut woken, 0).await?;
    claim.take(tx, &mut recovered, 1).await?;
    claimed.runs = woken;
    claimed.runs.append(&mut recovered);
    // After the claims, because a parent may be among them: what is told of it is what is stored.
    for run in used_up {
        // The one before may have taken it down: a command that fails is taken back, and its
        // children are stopped.
        let run = steer::lock(tx, &op.workspace, &run.run_id).await?;
        if let Some(run) = run.filter(|run| !run.status.is_terminal()) {
            exhaust(tx, op, &run).await?;
            claimed.exhausted.push(run.run_id);
        }
    }
    let mut next_at = next_wake(tx, op, None).await?;
    claimed.left = next_at <= op.now;
    if claimed.left {
        next_at = next_wake(tx, op, Some(op.now)).await?;
    }
    if more {
        next_at = op.now;
    }
    claimed.next_at = Some(next_at).filter(|at| *at != Timestamp::NEVER);
    Ok(claimed)
}

/// When the first run becomes due, of all or of those that are not by some time.
async fn next_wake(
    tx: &mut impl Tx,
    op: &Wake,
    after: Option<Timestamp>,
) -> Result<Timestamp, Error> {
    let now = after.map_or(i64::MIN, Timestamp::as_micros);
    let next = params! { workspace: &op.workspace, now: now };
    match first(tx, "run_next_wake", next).await? {
        Some(mut row) => row.time(),
        None => Ok(Timestamp::NEVER),
    }
}

/// Parks a run that lost its worker once too often.
async fn exhaust(tx: &mut impl Tx, op: &Wake, run: &RunRow) -> Result<(), Error> {
    let reason = Failure::new(
        ErrorClass::RetriesExceeded,
        "SF-0302",
        format!(
            "the run lost its worker {} times (first run and {} recoveries are allowed); \
             resume it once the cause is gone",
            run.attempts, run.max_attempts
        ),
    );
    let arrow = arrow(run.status, RunEvent::Exhaust)?;
    steer::stop(tx, &op.workspace, run, arrow, &reason, op.now).await?;
    let by = "system:recovery";
    steer::tell(tx, &op.workspace, run, RunEvent::Exhaust, Some(&reason), by, op.now).await
}
