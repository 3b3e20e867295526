//! Debounced starts: one run for the calls of a quiet time.
//!
//! Invariants: the row of a key is locked before its run is looked at, and made before the run, so
//! calls at the same time are carried out one after the other; a run is replaced only as long as
//! it has never begun; a call that is sent again, because its answer was lost, finds itself among
//! the latest calls of its key and changes nothing.
//! Deliberately absent: the end of a run. A row whose run has begun is taken over by the next call,
//! and removed with its run.

use steadfast_core::{RunStatus, Timestamp, limits};

use super::{start, steer};
use crate::error::Error;
use crate::gate::{Row, Tx, first, params};
use crate::op::{Debounce, Debounced, Start, Started};

/// The latest calls of a key, the newest last: the seed of each, the run that it came to, and
/// whether it has made that run.
type Calls = Vec<(i64, String, bool)>;

/// Replaces the input of the waiting run of a key, or creates the next run.
pub(super) async fn debounce(tx: &mut impl Tx, op: &Debounce) -> Result<Debounced, Error> {
    let key = params! {
        workspace: &op.start.workspace, workflow: &op.start.workflow, debounce_key: &op.key,
    };
    if let Some(row) = first(tx, "debounce_get", key).await? {
        return call(tx, op, row).await;
    }
    if keep(tx, "debounce_insert", op, None, op.start.now, Calls::new()).await? {
        return begin(tx, op).await;
    }
    // Another first call at the same time, which is committed by now.
    match first(tx, "debounce_get", key).await? {
        Some(row) => call(tx, op, row).await,
        None => Err(Error::Transient("the debounce key was removed meanwhile".to_owned())),
    }
}

/// A call whose key is known, with the locked row of the key.
async fn call(tx: &mut impl Tx, op: &Debounce, mut row: Row) -> Result<Debounced, Error> {
    let (run_id, first_at, calls) = (row.text()?, row.time()?, row.text()?);
    let calls: Calls = serde_json::from_str(&calls).map_err(|e| {
        Error::Incompatible(format!("the calls of a debounce key are damaged: {e}"))
    })?;
    if let Some((_, known, is_new)) = calls.iter().find(|(seed, ..)| *seed == op.start.seed) {
        return Ok(match is_new {
            true => Debounced::New,
            false => Debounced::Replaced(known.clone()),
        });
    }
    let set = params! {
        workspace: &op.start.workspace, run_id: &run_id, input: &op.start.input,
        ready_at: ready_at(op, first_at), now: op.start.now,
    };
    // MySQL counts changed rows, not matched ones: an equal replacement is a replacement too.
    let is_replaced =
        tx.execute("run_replace_input", set).await? == 1 || waits(tx, op, &run_id).await?;
    if is_replaced {
        keep(tx, "debounce_update", op, Some(&run_id), first_at, calls).await?;
        return Ok(Debounced::Replaced(run_id));
    }
    keep(tx, "debounce_update", op, None, op.start.now, calls).await?;
    begin(tx, op).await
}

/// Whether a run has never begun and still may.
async fn waits(tx: &mut impl Tx, op: &Debounce, run_id: &str) -> Result<bool, Error> {
    let run = steer::lock(tx, &op.start.workspace, run_id).await?;
    Ok(run.is_some_and(|run| {
        run.status == RunStatus::Enqueued && run.epoch == 0 && !run.is_overdue(op.start.now)
    }))
}

/// Writes the row of the key with this call as the latest, which replaces the input of a run or
/// makes the next one; whether it was written.
async fn keep(
    tx: &mut impl Tx,
    statement: &'static str,
    op: &Debounce,
    replaces: Option<&str>,
    first_at: Timestamp,
    mut calls: Calls,
) -> Result<bool, Error> {
    let run_id = replaces.unwrap_or(&op.start.run_id);
    calls.push((op.start.seed, run_id.to_owned(), replaces.is_none()));
    let from = calls.len().saturating_sub(limits::DEBOUNCE_CALLS);
    let calls = serde_json::to_string(&calls[from..]).expect("invariant: calls are plain data");
    let fields = params! {
        workspace: &op.start.workspace, workflow: &op.start.workflow, debounce_key: &op.key,
        run_id: run_id, first_at: first_at, calls: calls,
    };
    Ok(tx.execute(statement, fields).await? == 1)
}

/// Starts the run of a first call. If that cannot be, `takes_back` removes what was written before.
async fn begin(tx: &mut impl Tx, op: &Debounce) -> Result<Debounced, Error> {
    let ready_at = ready_at(op, op.start.now);
    Ok(match start::start(tx, &Start { ready_at, ..op.start.clone() }).await? {
        Started::New(_) => Debounced::New,
        Started::Existing(_) => Debounced::Conflict("id"),
        Started::Conflict(field) => Debounced::Conflict(field),
        Started::Duplicate(run_id) => Debounced::Duplicate(run_id),
        Started::NoQueue => Debounced::NoQueue,
    })
}

/// The end of the quiet time, no later than the longest wait since the first call.
fn ready_at(op: &Debounce, first_at: Timestamp) -> Timestamp {
    let latest = op.max_wait.map_or(Timestamp::NEVER, |most| first_at.after(most));
    op.start.ready_at.min(latest)
}
