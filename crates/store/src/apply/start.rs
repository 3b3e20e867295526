//! Beginning a run: by its id, at most once.

use steadfast_core::{RunStatus, Timestamp};

use super::{queue, rows};
use crate::error::Error;
use crate::gate::{Fields, Tx, fields, first, params};
use crate::op::{DEFAULT_QUEUE, Lease, QueueRow, RunRow, Start, Started};

/// Creates a run, or finds the one with its id.
pub(crate) async fn start(tx: &mut impl Tx, op: &Start) -> Result<Started, Error> {
    let Some(place) = place(tx, op).await? else {
        return Ok(Started::NoQueue);
    };
    if !op.dedupe_id.is_empty()
        && let Some(reply) = reserve(tx, op).await?
    {
        return Ok(reply);
    }
    if insert(tx, op, &place).await? {
        return Ok(made(op, &place));
    }
    let row =
        first(tx, "run_lock", params! { workspace: &op.workspace, run_id: &op.run_id }).await?;
    let row = row.ok_or_else(|| Error::Transient("the run was removed meanwhile".to_owned()))?;
    let existing = rows::run(row)?;
    if !op.dedupe_id.is_empty() {
        // The key was reserved for this request, and this request made no run.
        queue::dedupe_release(tx, &op.workspace, &op.queue, &op.dedupe_id, &op.run_id, &existing)
            .await?;
    }
    Ok(compare(op, &existing))
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
/// Creates a run on the default queue as one statement. `None` when nothing was written: it goes
/// elsewhere, the queue has limits, or the id is taken.
pub(super) async fn at_once(tx: &mut impl Tx, op: &Start) -> Result<Option<Started>, Error> {
    if op.queue != DEFAULT_QUEUE || !op.dedupe_id.is_empty() {
        return Ok(None);
    }
    let place = Place::unmade(op);
    let new = tx.execute("run_insert_open", &fields(op, &place)).await? == 1;
    Ok(new.then(|| made(op, &place)))
}

/// The answer to a start that made a run.
pub(super) fn made(op: &Start, place: &Place) -> Started {
    Started::New(first_lease(op, place))
}

/// The lease of a new run, if it was claimed as it was made.
pub(super) fn first_lease(op: &Start, place: &Place) -> Option<Lease> {
    let claimed = op.claim.as_ref().filter(|_| place.open);
    claimed.map(|(worker, _)| lease(op, worker))
}

/// Where on the queue the run goes.
pub(super) struct Place {
    rank: i64,
    partition: String,
    /// Whether a start may be claimed at once: nothing limits the queue.
    open: bool,
}

impl Place {
    /// On the default queue, as it is without having been made.
    pub(super) fn unmade(op: &Start) -> Self {
        let rank = QueueRow::default().rank(op.priority);
        Self { rank, partition: String::new(), open: true }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }
}

/// The place on the queue, or `None` if there is no such queue.
pub(super) async fn place(tx: &mut impl Tx, op: &Start) -> Result<Option<Place>, Error> {
    let found = queue::remembered(tx, &op.workspace, &op.queue).await?;
    Ok(match found {
        Some(queue) => Some(Place {
            rank: queue.rank(op.priority),
            partition: if queue.partitioned { op.partition.clone() } else { String::new() },
            open: queue.concurrency.is_none()
                && queue.worker_concurrency.is_none()
                && queue.rate.is_none()
                && !queue.paused,
        }),
        None if op.queue == DEFAULT_QUEUE => Some(Place::unmade(op)),
        None => None,
    })
}

/// Takes the deduplication id, or says who has it.
async fn reserve(tx: &mut impl Tx, op: &Start) -> Result<Option<Started>, Error> {
    let taken = queue::dedupe_take(tx, op).await?;
    match taken {
        None => Ok(None),
        Some((holder, _)) if holder == op.run_id => Ok(None),
        Some((holder, _)) => {
            // The id comes first: a repeated request finds its own run, although that run's key
            // was freed by its end and has gone to another one.
            let at = params! { workspace: &op.workspace, run_id: &op.run_id };
            let existing = first(tx, "run_get", at).await?.map(rows::run).transpose()?;
            Ok(Some(existing.map_or(Started::Duplicate(holder), |row| compare(op, &row))))
        }
    }
}

/// Writes a new run; false if its id is taken.
pub(super) async fn insert(tx: &mut impl Tx, op: &Start, place: &Place) -> Result<bool, Error> {
    Ok(tx.execute("run_insert", &fields(op, place)).await? == 1)
}

/// The columns of a new run.
pub(super) fn fields<'a>(op: &'a Start, place: &'a Place) -> Fields<'a> {
    let claimed = op.claim.as_ref().filter(|_| place.open);
    let rest = op.rest.as_ref().filter(|_| claimed.is_some());
    let holder = claimed.filter(|_| rest.is_none());
    let status = if claimed.is_some() { RunStatus::Pending } else { RunStatus::Enqueued };
    let deadline = match claimed {
        Some(_) => op.deadline_by(),
        None => op.deadline_at.filter(|at| *at != Timestamp::NEVER),
    };
    let wake_at = rest.map(|rest| rest.wake_at).or(holder.map(|(_, until)| *until));
    // Whatever it waits for, it is looked at when it is overdue.
    let wake_at = [wake_at, deadline].into_iter().flatten().min();
    fields! {
        workspace: &op.workspace, run_id: &op.run_id, workflow: &op.workflow,
        status: status.as_str(), input: &op.input, queue: &op.queue,
        partition_key: &place.partition, priority: op.priority, sort_rank: place.rank,
        dedupe_id: &op.dedupe_id, app_version: &op.app_version,
        worker: holder.map_or("", |(worker, _)| worker.as_str()),
        epoch: i64::from(claimed.is_some()), attempts: i64::from(claimed.is_some()),
        max_attempts: op.max_attempts, created_at: op.now, started_at: claimed.map(|_| op.now),
        ready_at: op.ready_at, wake_at: wake_at.unwrap_or(Timestamp::NEVER),
        parked: rest.is_some(), waits: rest.map_or("", |rest| rest.waits.as_str()),
        timeout_us: op.timeout, deadline_at: deadline, forked_from: "", parent: &op.parent,
        detached: op.detached, seed: op.seed, context: op.context.as_deref(),
    }
}

/// The first lease of a run.
pub(super) fn lease(op: &Start, worker: &str) -> Lease {
    Lease {
        workspace: op.workspace.clone(),
        run_id: op.run_id.clone(),
        worker: worker.to_owned(),
        epoch: 1,
    }
}

/// The same request again gets the same answer; the same id for something else is a conflict.
fn compare(op: &Start, row: &RunRow) -> Started {
    if row.workflow != op.workflow {
        return Started::Conflict("workflow");
    }
    if row.generation == 0 && row.input != op.input {
        return Started::Conflict("input");
    }
    // Only its own parent is told of a child's end: another one would wait for ever.
    if !op.parent.is_empty() && row.parent != op.parent {
        return Started::Conflict("parent");
    }
    let mine = row.seed == op.seed && row.parent == op.parent;
    if mine && row.status == RunStatus::Enqueued {
        return Started::New(None);
    }
    let status = if row.is_overdue(op.now) { RunStatus::Cancelled } else { row.status };
    match &op.claim {
        // Our own earlier success, whose answer was lost: the lease is still ours, or not needed.
        Some((worker, _)) if mine && (op.rest.is_some() || is_held(row, worker)) => {
            Started::New(Some(lease(op, worker)))
        }
        _ => Started::Existing(status),
    }
}

/// Whether who claimed a run at its start still has it.
fn is_held(row: &RunRow, worker: &str) -> bool {
    row.epoch == 1 && row.worker == worker
}
