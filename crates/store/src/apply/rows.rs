//! Reading rows into values, in the column order of `dialect.rs`.

use std::time::Duration;

use steadfast_core::driver::{Kind, Outcome, Record, RecordState};
use steadfast_core::{Error as Failure, RunStatus};

use crate::error::Error;
use crate::gate::Row;
use crate::op::{QueueRow, RunRow};

pub(super) fn run(mut row: Row) -> Result<RunRow, Error> {
    let r = &mut row;
    Ok(RunRow {
        run_id: r.text()?,
        workflow: r.text()?,
        status: status(&r.text()?)?,
        input: r.text()?,
        output: r.opt_text()?,
        error: r.opt_text()?.map(|text| failure(&text)).transpose()?,
        queue: r.text()?,
        partition: r.text()?,
        priority: r.int()?,
        dedupe_id: r.text()?,
        app_version: r.text()?,
        worker: r.text()?,
        epoch: r.int()?,
        attempts: r.int()?,
        max_attempts: r.int()?,
        created_at: r.time()?,
        updated_at: r.time()?,
        started_at: r.opt_time()?,
        finished_at: r.opt_time()?,
        ready_at: r.time()?,
        wake_at: r.time()?,
        parked: r.flag()?,
        waits: r.text()?,
        timeout: r.opt_int()?.map(duration),
        deadline_at: r.opt_time()?,
        forked_from: r.text()?,
        parent: r.text()?,
        detached: r.flag()?,
        generation: r.int()?,
        seed: r.int()?,
        inbox: r.int()?,
    })
}

pub(super) fn runs(rows: Vec<Row>) -> Result<Vec<RunRow>, Error> {
    rows.into_iter().map(run).collect()
}

pub(super) fn record(mut row: Row) -> Result<Record, Error> {
    let r = &mut row;
    let (id, seq) = (unsigned(r.int()?)?, unsigned(r.int()?)?);
    let name = r.text()?;
    let kind = r.text()?;
    let state = r.text()?;
    let input = r.opt_text()?;
    let (output, error) = (r.opt_text()?, r.opt_text()?);
    let outcome: Outcome = match error {
        Some(text) => Err(failure(&text)?),
        None => Ok(output.unwrap_or_else(|| "null".to_owned())),
    };
    let child = Some(r.text()?).filter(|id| !id.is_empty());
    Ok(Record {
        id,
        seq,
        name,
        kind: Kind::parse(&kind).ok_or_else(|| unknown("step kind", &kind))?,
        state: RecordState::parse(&state).ok_or_else(|| unknown("step state", &state))?,
        input,
        outcome,
        child,
        attempt: u32::try_from(r.int()?).unwrap_or(u32::MAX),
        started_at: r.time()?,
        completed_at: r.time()?,
        next_at: r.time()?,
        seen: false,
    })
}

pub(super) fn queue(mut row: Row) -> Result<QueueRow, Error> {
    let r = &mut row;
    Ok(QueueRow {
        name: r.text()?,
        concurrency: r.opt_int()?,
        worker_concurrency: r.opt_int()?,
        rate: r.opt_int()?.zip(r.opt_int()?).map(|(limit, us)| (limit, duration(us))),
        priorities: r.flag()?,
        partitioned: r.flag()?,
        paused: r.flag()?,
    })
}

pub(super) fn status(text: &str) -> Result<RunStatus, Error> {
    RunStatus::parse(text).ok_or_else(|| unknown("run status", text))
}

/// An error as it is stored.
pub(super) fn error_text(error: &Failure) -> String {
    serde_json::to_string(error).expect("invariant: an error is plain data")
}

fn failure(text: &str) -> Result<Failure, Error> {
    serde_json::from_str(text).map_err(|_| unknown("error", text))
}

fn duration(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

fn unsigned(v: i64) -> Result<u64, Error> {
    u64::try_from(v).map_err(|_| unknown("position", &v.to_string()))
}

/// A value that a newer version may have written: refused, never guessed.
fn unknown(what: &str, text: &str) -> Error {
    Error::Incompatible(format!("unknown {what} \"{text}\": was it written by a newer version?"))
}
