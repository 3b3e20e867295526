//! Steering from outside: cancel, resume, fork, purge.
//!
//! Invariants: a cancel is decided by the commit order, and a loser is told so; a fork never
//! touches its source; a purge removes only runs that are over.

use steadfast_core::{Error as Failure, RunEvent, RunStatus, Timestamp, Transition};

use super::{follow, own, queue, rows};
use crate::error::Error;
use crate::gate::{Tx, first, params};
use crate::op::{Cancel, Cancelled, Fork, Forked, Purge, Purged, Resume, Resumed, RunRow};

/// A run, locked.
pub(super) async fn lock(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
) -> Result<Option<RunRow>, Error> {
    let at = params! { workspace: ws, run_id: run_id };
    first(tx, "run_lock", at).await?.map(rows::run).transpose()
}

/// A run, locked, after its end was written if its deadline has passed.
pub(super) async fn lock_as_of(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
    now: Timestamp,
) -> Result<Option<RunRow>, Error> {
    match lock(tx, ws, run_id).await? {
        Some(run) if run.is_overdue(now) => {
            end_overdue(tx, ws, &run, now).await?;
            lock(tx, ws, run_id).await
        }
        found => Ok(found),
    }
}

/// Ends a locked run whose deadline has passed, with its attached children and for its command;
/// gives the children.
pub(super) async fn end_overdue(
    tx: &mut impl Tx,
    ws: &str,
    run: &RunRow,
    now: Timestamp,
) -> Result<Vec<String>, Error> {
    let reason = steadfast_core::run::overdue(run.deadline_at.unwrap_or(now));
    let arrow = run.status.on(RunEvent::Cancel);
    let arrow = arrow.map_err(|refused| Error::Incompatible(refused.to_string()))?;
    stop_with_children(tx, ws, run, arrow, (&reason, "system:deadline"), now).await
}

pub(super) async fn cancel(tx: &mut impl Tx, op: &Cancel) -> Result<Cancelled, Error> {
    let by = "system:cancel";
    cancel_run(tx, &op.workspace, &op.run_id, &op.reason, by, op.now).await
}

/// Stops a run and its attached children, and with it the command that it carries out.
pub(super) async fn cancel_run(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
    reason: &Failure,
    actor: &str,
    now: Timestamp,
) -> Result<Cancelled, Error> {
    let Some(run) = lock_as_of(tx, ws, run_id, now).await? else {
        return Ok(Cancelled::NotFound);
    };
    let Ok(arrow) = run.status.on(RunEvent::Cancel) else {
        return Ok(Cancelled::AlreadyOver(run.status));
    };
    let stopped = stop_with_children(tx, ws, &run, arrow, (reason, actor), now).await?;
    Ok(Cancelled::Done(stopped))
}

/// Ends a locked run and its attached children, for a reason and on behalf of an actor; gives the
/// children.
async fn stop_with_children(
    tx: &mut impl Tx,
    ws: &str,
    run: &RunRow,
    arrow: Transition<RunStatus>,
    (reason, actor): (&Failure, &str),
    now: Timestamp,
) -> Result<Vec<String>, Error> {
    stop(tx, ws, run, arrow, reason, now).await?;
    let children = attached(tx, ws, &run.run_id).await?;
    stop_all(tx, ws, &children, reason, now).await?;
    tell(tx, ws, run, RunEvent::Cancel, Some(reason), actor, now).await?;
    let mut stopped: Vec<_> = children.into_iter().map(|child| child.run_id).collect();
    stopped.sort();
    Ok(stopped)
}

/// The descendants that go down with a locked run. Each is locked before its own children are
/// looked up, so that no more come.
pub(super) async fn attached(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
) -> Result<Vec<RunRow>, Error> {
    let mut found = Vec::new();
    let mut parents = vec![run_id.to_owned()];
    while let Some(parent) = parents.pop() {
        let at = params! { workspace: ws, run_id: &parent };
        for mut row in tx.query("run_attached_children", at).await? {
            let child = row.text()?;
            let run = lock(tx, ws, &child).await?;
            if let Some(run) = run.filter(|run| !run.status.is_terminal()) {
                parents.push(child);
                found.push(run);
            }
        }
    }
    Ok(found)
}

/// Ends locked runs from outside.
pub(super) async fn stop_all(
    tx: &mut impl Tx,
    ws: &str,
    runs: &[RunRow],
    reason: &Failure,
    now: Timestamp,
) -> Result<(), Error> {
    for run in runs {
        if let Ok(arrow) = run.status.on(RunEvent::Cancel) {
            stop(tx, ws, run, arrow, reason, now).await?;
        }
    }
    Ok(())
}

/// Tells the command of a run what happened to the run from outside.
pub(super) async fn tell(
    tx: &mut impl Tx,
    ws: &str,
    run: &RunRow,
    event: RunEvent,
    reason: Option<&Failure>,
    actor: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let end = follow::End {
        ws,
        run_id: &run.run_id,
        context: run.context.as_deref(),
        event,
        result: None,
        error: reason,
        actor,
        lease_until: (!run.worker.is_empty()).then_some(run.wake_at),
        now,
    };
    follow::ended(tx, &end).await
}

/// Ends a locked run from outside: its owner, if any, is fenced off.
pub(super) async fn stop(
    tx: &mut impl Tx,
    ws: &str,
    run: &RunRow,
    arrow: Transition<RunStatus>,
    reason: &Failure,
    now: Timestamp,
) -> Result<(), Error> {
    let set = params! {
        workspace: ws, run_id: &run.run_id, from: arrow.from().as_str(), to: arrow.to().as_str(),
        error: rows::error_text(reason), now: now, run_ids: vec![run.run_id.as_str()],
    };
    tx.execute("run_stop", set).await?;
    tx.execute("slot_clear", set).await?;
    queue::dedupe_free(tx, ws, run).await?;
    own::arrive(tx, ws, &run.parent, now).await
}

pub(super) async fn resume(tx: &mut impl Tx, op: &Resume) -> Result<Resumed, Error> {
    let Some(run) = lock_as_of(tx, &op.workspace, &op.run_id, op.now).await? else {
        return Ok(Resumed::NotFound);
    };
    let Ok(arrow) = run.status.on(RunEvent::Resume) else {
        return Ok(Resumed::NotStopped(run.status));
    };
    if let Some(refusal) = follow::forbids(tx, &op.workspace, &run).await? {
        return Ok(refusal);
    }
    let (rank, partition) = place_again(tx, &op.workspace, &run).await?;
    let dedupe_id = queue::dedupe_again(tx, &op.workspace, &run, op.now).await?;
    // One that had begun is held by its last owner until that lets go, or its lease is over.
    let ready_at = run.started_at.map_or(op.now, |_| run.ready_at.max(op.now));
    let set = params! {
        workspace: &op.workspace, run_id: &op.run_id, from: arrow.from().as_str(),
        to: arrow.to().as_str(), partition_key: partition, sort_rank: rank, dedupe_id: dedupe_id,
        ready_at: ready_at, now: op.now,
    };
    tx.execute("run_resume", set).await?;
    tell(tx, &op.workspace, &run, RunEvent::Resume, None, "system:resume", op.now).await?;
    Ok(Resumed::Done)
}

/// Where a run goes that is put on its queue again: by the queue's rules of now, because a run left
/// in a partition that its queue has no more would never be found.
async fn place_again(tx: &mut impl Tx, ws: &str, run: &RunRow) -> Result<(i64, String), Error> {
    let queue = queue::get(tx, ws, &run.queue).await?.unwrap_or_default();
    let rank = queue.rank(run.priority);
    let partition = if queue.partitioned { run.partition.clone() } else { String::new() };
    Ok((rank, partition))
}

pub(super) async fn fork(tx: &mut impl Tx, op: &Fork) -> Result<Forked, Error> {
    let ws = op.workspace.as_str();
    // The id first: a known fork is found after its source was removed, too.
    let known = params! { workspace: ws, run_id: &op.run_id };
    if let Some(mut known) = first(tx, "run_fork_request", known).await? {
        return Ok(compare(op, &known.text()?, known.opt_text()?.as_deref()));
    }
    let Some(source) = lock(tx, ws, &op.source).await? else {
        return Ok(Forked::NotFound);
    };
    if let Some(patch) =
        op.patches.iter().find(|p| i64::try_from(p.id).unwrap_or(i64::MAX) >= op.from_step)
    {
        return Ok(Forked::NoSuchStep(i64::try_from(patch.id).unwrap_or(i64::MAX)));
    }
    insert_fork(tx, op, &source).await?;
    let copy = params! {
        workspace: ws, source: &op.source, to: &op.run_id, from: op.from_step,
        generation: source.generation,
    };
    for statement in ["step_copy", "value_copy", "stream_copy"] {
        tx.execute(statement, copy).await?;
    }
    for patch in &op.patches {
        let (output, error) = match &patch.outcome {
            Ok(value) => (Some(value.clone()), None),
            Err(error) => (None, Some(rows::error_text(error))),
        };
        let id = i64::try_from(patch.id).unwrap_or(i64::MAX);
        let set = params! {
            workspace: ws, run_id: &op.run_id, function_id: id, output: output, error: error,
        };
        if tx.execute("step_patch", set).await? != 1
            && first(tx, "step_epoch", set).await?.is_none()
        {
            // The copied prefix has no such step. The new run is taken back by `takes_back`.
            return Ok(Forked::NoSuchStep(id));
        }
    }
    Ok(Forked::Done)
}

/// The reply to a fork whose id is taken: the same request again gets the same reply.
fn compare(op: &Fork, forked_from: &str, request: Option<&str>) -> Forked {
    let known = request.and_then(|request| request.split_once(':'));
    match known {
        _ if forked_from != op.source => Forked::Conflict("source"),
        Some((digest, _)) if digest != op.digest() => Forked::Conflict("request"),
        Some((_, seed)) if seed == op.seed.to_string() => Forked::Done,
        Some(_) => Forked::Existing,
        None => Forked::Conflict("source"),
    }
}

/// The new run: what the source was started with, on its queue, with a fresh budget.
async fn insert_fork(tx: &mut impl Tx, op: &Fork, source: &RunRow) -> Result<(), Error> {
    let version = op.app_version.as_deref().unwrap_or(&source.app_version);
    let (rank, partition) = place_again(tx, &op.workspace, source).await?;
    let new = params! {
        workspace: &op.workspace, run_id: &op.run_id, workflow: &source.workflow,
        status: RunStatus::Enqueued.as_str(), input: op.input.as_ref().unwrap_or(&source.input),
        queue: &source.queue, partition_key: partition, priority: source.priority, sort_rank: rank,
        dedupe_id: "", app_version: version, worker: "", epoch: 0i64, attempts: 0i64,
        max_attempts: source.max_attempts, created_at: op.now, started_at: None::<i64>,
        ready_at: op.now, wake_at: Timestamp::NEVER, parked: false, waits: "",
        timeout_us: op.timeout.or(source.timeout),
        deadline_at: None::<i64>, forked_from: &op.source, parent: "", detached: false,
        seed: source.seed, context: None::<&str>,
    };
    if tx.execute("run_insert", new).await? != 1 {
        return Err(Error::Transient("the id of a fork was taken meanwhile".to_owned()));
    }
    // The copied steps replay under the same logical clock and the same generation.
    let same = params! {
        workspace: &op.workspace, run_id: &op.run_id, generation: source.generation,
        seed: source.seed, started_at: source.started_at,
        fork_request: format!("{}:{}", op.digest(), op.seed),
    };
    tx.execute("run_fork_fields", same).await?;
    Ok(())
}

pub(super) async fn purge(tx: &mut impl Tx, op: &Purge) -> Result<Purged, Error> {
    let which = params! {
        workspace: &op.workspace, before: op.before, limit: op.limit,
    };
    let mut ids = Vec::new();
    for mut row in tx.query("run_purge_select", which).await? {
        ids.push(row.text()?);
    }
    if ids.is_empty() {
        return Ok(Purged(0));
    }
    let gone = params! { workspace: &op.workspace, run_ids: ids };
    let of_runs = [
        "step_clear",
        "signal_clear",
        "value_clear",
        "stream_clear",
        "slot_clear",
        "debounce_clear",
    ];
    for statement in of_runs {
        tx.execute(statement, gone).await?;
    }
    Ok(Purged(tx.execute("run_purge", gone).await?))
}
