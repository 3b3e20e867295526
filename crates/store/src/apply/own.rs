//! What a run's owner writes: records, the end, a suspension, a time-out. Every write is fenced.
//!
//! Invariants: the fence (worker, epoch, deadline) is checked under the run's row lock, which is
//! kept until commit, so a claim by another worker is either seen or waits; a done record is never
//! changed.

use steadfast_core::driver::{Outcome, Record as StepRecord, RecordState};
use steadfast_core::{Error as Failure, RunEvent, RunStatus, Timestamp, Transition};

use super::{follow, govern, queue, rows, signal, start, steer};
use crate::error::Error;
use crate::gate::{Fields, Tx, Value, fields, first, params};
use crate::op::{
    ContinueAsNew, Entry, Finish, Lease, Record, Release, Released, RunRow, Signal, Signalled,
    Started, Suspend, Suspended, TimeOut, TimedOut, With, Written,
};
use crate::sabotage;

/// Whether the lease is good; if so, it stays good until this transaction ends.
pub(super) async fn fenced(tx: &mut impl Tx, lease: &Lease, now: Timestamp) -> Result<bool, Error> {
    let at = params! {
        workspace: &lease.workspace, run_id: &lease.run_id, epoch: lease.epoch,
        worker: &lease.worker, now: now,
    };
    Ok(first(tx, "run_fence", at).await?.is_some())
}

/// The run's row, locked.
async fn lock(tx: &mut impl Tx, lease: &Lease) -> Result<Option<RunRow>, Error> {
    let at = params! { workspace: &lease.workspace, run_id: &lease.run_id };
    first(tx, "run_lock", at).await?.map(rows::run).transpose()
}

/// Whether the lease is the run's newest, whatever its deadline.
fn is_newest(lease: &Lease, run: &RunRow) -> bool {
    sabotage::is_left_out("the lease is the run's newest")
        || run.status == RunStatus::Pending
            && run.epoch == lease.epoch
            && run.worker == lease.worker
}

fn owned(lease: &Lease, run: &RunRow, now: Timestamp) -> bool {
    is_newest(lease, run) && !run.is_overdue(now)
}

pub(super) async fn record(tx: &mut impl Tx, op: &Record) -> Result<Written, Error> {
    if record_held(tx, op).await? {
        return Ok(Written::Done);
    }
    if !fenced(tx, &op.lease, op.now).await? {
        return Ok(Written::Fenced);
    }
    write(tx, &op.lease, &op.entries).await
}

/// Writes a record that stands alone and its fence as one statement. False when nothing was
/// written: it does not stand alone, the lease is void, or the record is there already.
pub(super) async fn record_held(tx: &mut impl Tx, op: &Record) -> Result<bool, Error> {
    let [entry] = &*op.entries else { return Ok(false) };
    if entry.replaces || entry.with.is_some() {
        return Ok(false);
    }
    Ok(tx.execute("step_insert_held", &held_fields(op, &entry.record)).await? == 1)
}

#[cfg(feature = "postgres")]
/// Ends a run with its last record as one statement. False when nothing was written: somebody is to
/// be told of the end, there is not one plain record, the lease is void, or the record is there.
pub(super) async fn finish_held(tx: &mut impl Tx, op: &Finish) -> Result<bool, Error> {
    let [entry] = &*op.entries else { return Ok(false) };
    if entry.replaces || entry.with.is_some() {
        return Ok(false);
    }
    let mut fields = record_fields(&op.lease, &entry.record);
    fields.push(("worker", Value::from(&op.lease.worker)));
    let (result, failure) = split(&op.outcome);
    let to = Value::from(end_arrow(op)?.to().as_str());
    let end = [("to", to), ("result", result.into()), ("failure", failure.into())];
    fields.extend(end);
    fields.push(("now", Value::from(op.now)));
    Ok(tx.execute("run_finish_held", &fields).await? == 1)
}

/// The columns of a record, and what its fence compares.
fn held_fields<'a>(op: &'a Record, record: &'a StepRecord) -> Fields<'a> {
    let mut fields = record_fields(&op.lease, record);
    fields.push(("worker", Value::from(&op.lease.worker)));
    fields.push(("now", Value::from(op.now)));
    fields
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
/// Where the caller's own work on the database stands, before it is run.
pub(crate) enum Due {
    /// It is to be run now; the lease stays good until this transaction ends.
    Now,
    /// It was run and recorded under this lease: an earlier commit whose answer was lost.
    Before(Outcome),
    /// The lease is void.
    Fenced,
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
/// Whether work whose outcome the last of these records will hold is still to be run.
pub(crate) async fn due(tx: &mut impl Tx, op: &Record) -> Result<Due, Error> {
    if !fenced(tx, &op.lease, op.now).await? {
        return Ok(Due::Fenced);
    }
    let Some(last) = op.entries.last() else {
        return Ok(Due::Now);
    };
    let at = params! {
        workspace: &op.lease.workspace, run_id: &op.lease.run_id, function_id: id(&last.record),
        from: id(&last.record), limit: 1i64,
    };
    let Some(mut row) = first(tx, "step_epoch", at).await? else {
        return Ok(Due::Now);
    };
    let mine = row.int()? == op.lease.epoch && row.text()? == last.record.name;
    if !mine || row.text()? != RecordState::Done.as_str() {
        return Ok(Due::Now);
    }
    let stored = first(tx, "step_list", at).await?.map(rows::record).transpose()?;
    Ok(stored.map_or(Due::Now, |stored| Due::Before(stored.outcome)))
}

pub(super) async fn finish(tx: &mut impl Tx, op: &Finish) -> Result<Written, Error> {
    let lease = &op.lease;
    let arrow = end_arrow(op)?;
    let is_plain = op.entries.iter().all(|entry| entry.with.is_none());
    if is_plain && tx.is_near() && tx.execute("run_end_untold", &end_fields(op, arrow)).await? == 1
    {
        // If one of the records cannot be, nor can the end: all of it is taken back.
        return write(tx, lease, &op.entries).await;
    }
    let at = params! {
        workspace: &lease.workspace, run_id: &lease.run_id, epoch: lease.epoch,
        worker: &lease.worker, now: op.now,
    };
    let Some(mut held) = first(tx, "run_owner", at).await? else {
        // Our own earlier success, whose answer was lost: the epoch has not moved since.
        let mine = lock(tx, lease)
            .await?
            .is_some_and(|run| run.epoch == lease.epoch && ended_as(&run, &op.outcome));
        return Ok(if mine { Written::Done } else { Written::Fenced });
    };
    let (parent, queue, dedupe_id) = (held.text()?, held.text()?, held.text()?);
    let context = held.opt_text()?;
    match write(tx, &op.lease, &op.entries).await? {
        Written::Done => {}
        other => return Ok(other),
    }
    tx.execute("run_end", &end_fields(op, arrow)).await?;
    queue::free(tx, &lease.workspace, &queue, &dedupe_id, &lease.run_id).await?;
    arrive(tx, &lease.workspace, &parent, op.now).await?;
    tell(tx, op, context.as_deref()).await?;
    Ok(Written::Done)
}

/// Tells the command of a run, if it has one, how the run ended.
pub(super) async fn tell(
    tx: &mut impl Tx,
    op: &Finish,
    context: Option<&str>,
) -> Result<(), Error> {
    if context.is_none() {
        return Ok(());
    }
    let end = follow::End {
        ws: &op.lease.workspace,
        run_id: &op.lease.run_id,
        context,
        event: if op.outcome.is_ok() { RunEvent::Succeed } else { RunEvent::Fail },
        result: op.outcome.as_deref().ok(),
        error: op.outcome.as_ref().err(),
        actor: &op.lease.worker,
        lease_until: None,
        now: op.now,
    };
    follow::ended(tx, &end).await
}

/// The arrow that an end takes.
pub(super) fn end_arrow(op: &Finish) -> Result<Transition<RunStatus>, Error> {
    let event = if op.outcome.is_ok() { RunEvent::Succeed } else { RunEvent::Fail };
    RunStatus::Pending.on(event).map_err(|e| Error::Incompatible(e.to_string()))
}

/// The columns of an end.
pub(super) fn end_fields(op: &Finish, arrow: Transition<RunStatus>) -> Fields<'_> {
    let (output, error) = split(&op.outcome);
    fields! {
        workspace: &op.lease.workspace, run_id: &op.lease.run_id, from: arrow.from().as_str(),
        to: arrow.to().as_str(), epoch: op.lease.epoch, worker: &op.lease.worker, output: output,
        error: error, now: op.now,
    }
}

fn ended_as(run: &RunRow, outcome: &Outcome) -> bool {
    match outcome {
        Ok(value) => run.status == RunStatus::Success && run.output.as_ref() == Some(value),
        Err(error) => run.status == RunStatus::Error && run.error.as_ref() == Some(error),
    }
}

/// Tells a run (if there is one) that something arrived for it, waking it if it is suspended.
pub(super) async fn arrive(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
    now: Timestamp,
) -> Result<(), Error> {
    if !run_id.is_empty() {
        tx.execute("run_arrive", params! { workspace: ws, run_id: run_id, now: now }).await?;
    }
    Ok(())
}

pub(super) async fn suspend(tx: &mut impl Tx, op: &Suspend) -> Result<Suspended, Error> {
    let Some(run) = lock(tx, &op.lease).await? else {
        return Ok(Suspended::Fenced);
    };
    if !owned(&op.lease, &run, op.now) {
        let mine = run.epoch == op.lease.epoch
            && run.status == RunStatus::Pending
            && run.parked
            && run.waits == op.waits;
        return Ok(if mine { Suspended::Done } else { Suspended::Fenced });
    }
    match write(tx, &op.lease, &op.entries).await? {
        Written::Done => {}
        Written::Fenced => return Ok(Suspended::Fenced),
        Written::Refused(why) => return Ok(Suspended::Refused(why)),
    }
    let parked = tx.execute("run_suspend", &suspend_fields(op)).await? == 1;
    Ok(if parked { Suspended::Done } else { Suspended::Arrived })
}

/// The columns of a suspension.
pub(super) fn suspend_fields(op: &Suspend) -> Fields<'_> {
    fields! {
        workspace: &op.lease.workspace, run_id: &op.lease.run_id, epoch: op.lease.epoch,
        worker: &op.lease.worker, inbox: op.inbox, wake_at: op.wake_at, waits: &op.waits,
        now: op.now,
    }
}

/// Ends a run whose deadline has passed, as its owner asks for.
pub(super) async fn time_out(tx: &mut impl Tx, op: &TimeOut) -> Result<TimedOut, Error> {
    let Some(run) = lock(tx, &op.lease).await? else {
        return Ok(TimedOut::Fenced);
    };
    if !is_newest(&op.lease, &run) {
        // An earlier try of this request, or another process, has ended it under this lease.
        let code = run.error.as_ref().map(Failure::code);
        let same = run.epoch == op.lease.epoch + 1 && run.status == RunStatus::Cancelled;
        let mine = same && code == Some("SF-0304");
        return Ok(if mine { TimedOut::Done(Vec::new()) } else { TimedOut::Fenced });
    }
    if !run.is_overdue(op.now) && !sabotage::is_left_out("the deadline has passed") {
        return Ok(TimedOut::NotDue(run.deadline_at));
    }
    let stopped = steer::end_overdue(tx, &op.lease.workspace, &run, op.now).await?;
    Ok(TimedOut::Done(stopped))
}

pub(super) async fn release(tx: &mut impl Tx, op: &Release) -> Result<Written, Error> {
    if op.what == Released::Hold {
        return let_go(tx, op).await;
    }
    let set = params! {
        workspace: &op.lease.workspace, run_id: &op.lease.run_id, epoch: op.lease.epoch,
        worker: &op.lease.worker, now: op.now,
    };
    if tx.execute("run_release", set).await? == 1 {
        return Ok(Written::Done);
    }
    // Our own earlier success, whose answer was lost: nobody has claimed the run since.
    let mine = lock(tx, &op.lease).await?.is_some_and(|run| {
        run.epoch == op.lease.epoch
            && run.status == RunStatus::Pending
            && run.parked
            && run.waits.is_empty()
    });
    Ok(if mine { Written::Done } else { Written::Fenced })
}

/// Lets a run that was stopped under the lease begin again as soon as it is resumed. Its epoch
/// tells that nobody has claimed it since.
async fn let_go(tx: &mut impl Tx, op: &Release) -> Result<Written, Error> {
    let stopped = lock(tx, &op.lease).await?.filter(|run| {
        let waits = matches!(run.status, RunStatus::Cancelled | RunStatus::Enqueued);
        waits && run.epoch == op.lease.epoch + 1
    });
    let Some(run) = stopped else { return Ok(Written::Fenced) };
    if run.ready_at > op.now {
        let set = params! {
            workspace: &op.lease.workspace, run_id: &op.lease.run_id, epoch: run.epoch, now: op.now,
        };
        tx.execute("run_let_go", set).await?;
    }
    Ok(Written::Done)
}

pub(super) async fn continue_as_new(
    tx: &mut impl Tx,
    op: &ContinueAsNew,
) -> Result<Written, Error> {
    let Some(run) = lock(tx, &op.lease).await? else {
        return Ok(Written::Fenced);
    };
    if !owned(&op.lease, &run, op.now) {
        // Our own earlier success, whose answer was lost, has raised the epoch by one.
        let raised = Lease { epoch: op.lease.epoch + 1, ..op.lease.clone() };
        let mine = run.generation == op.generation + 1 && run.input == op.input;
        let done = mine && owned(&raised, &run, op.now);
        return Ok(if done { Written::Done } else { Written::Fenced });
    }
    let at = params! {
        workspace: &op.lease.workspace, run_id: &op.lease.run_id, epoch: op.lease.epoch,
        worker: &op.lease.worker, input: &op.input, generation: op.generation, now: op.now,
        run_ids: vec![op.lease.run_id.as_str()],
    };
    if tx.execute("run_renew", at).await? != 1 {
        return Ok(Written::Fenced);
    }
    tx.execute("step_clear", at).await?;
    tx.execute("value_settle", at).await?;
    Ok(Written::Done)
}

/// Writes entries under a lease that was just checked.
async fn write(tx: &mut impl Tx, lease: &Lease, entries: &[Entry]) -> Result<Written, Error> {
    for entry in entries {
        if !put(tx, lease, entry).await? {
            continue;
        }
        if let Some(with) = &entry.with
            && let Some(refusal) = attach(tx, lease, &entry.record, with).await?
        {
            return Ok(Written::Refused(refusal));
        }
    }
    Ok(Written::Done)
}

/// Writes one record. False when it is there already: a repeated request, whose companions are too.
async fn put(tx: &mut impl Tx, lease: &Lease, entry: &Entry) -> Result<bool, Error> {
    let record = &entry.record;
    let fields = record_fields(lease, record);
    let statement = if entry.replaces { "step_settle" } else { "step_insert" };
    if tx.execute(statement, &fields).await? == 1 {
        return Ok(true);
    }
    let Some(mut row) = first(tx, "step_epoch", &fields).await? else {
        return Err(Error::Refused(format!("step {} is not there to be settled", record.id)));
    };
    if row.int()? == lease.epoch && row.text()? == record.name {
        // MySQL counts changed rows, not matched ones: an unfinished record that was settled to
        // what it already was has been settled all the same.
        return Ok(entry.replaces && row.text()? != RecordState::Done.as_str());
    }
    Err(Error::Refused(format!("step {} of run {} is recorded already", record.id, lease.run_id)))
}

/// The columns of a record.
pub(super) fn record_fields<'a>(lease: &'a Lease, record: &'a StepRecord) -> Fields<'a> {
    let (output, error) = split(&record.outcome);
    fields! {
        workspace: &lease.workspace, run_id: &lease.run_id, function_id: id(record),
        seq: i64::try_from(record.seq).unwrap_or(i64::MAX), name: &record.name,
        kind: record.kind.as_str(), state: record.state.as_str(), input: record.input.as_deref(),
        input_digest: record.input_digest.as_deref(), output: output, error: error,
        child_run_id: record.child.as_deref().unwrap_or_default(),
        attempt: i64::from(record.attempt), started_at: record.started_at,
        completed_at: record.completed_at, next_at: record.next_at, epoch: lease.epoch,
    }
}

fn id(record: &StepRecord) -> i64 {
    i64::try_from(record.id).unwrap_or(i64::MAX)
}

/// Writes what belongs to a record; gives the reason if that cannot be.
async fn attach(
    tx: &mut impl Tx,
    lease: &Lease,
    record: &StepRecord,
    with: &With,
) -> Result<Option<String>, Error> {
    let (ws, run_id, now) = (lease.workspace.as_str(), lease.run_id.as_str(), record.completed_at);
    match with {
        With::Consume(seq) => {
            let at = params! { workspace: ws, run_id: run_id, seq: *seq, function_id: id(record) };
            let consumed = tx.execute("signal_consume", at).await? == 1;
            return Ok((!consumed).then(|| format!("signal {seq} was consumed before")));
        }
        With::Publish { key, value } => {
            let new = params! {
                workspace: ws, run_id: run_id, value_key: key, value: value,
                function_id: id(record), now: now,
            };
            tx.execute("value_insert", new).await?;
        }
        With::Append { stream, item } => {
            let new = params! {
                workspace: ws, run_id: run_id, stream: stream, item: item.as_deref(),
                function_id: id(record),
            };
            tx.execute("stream_insert", new).await?;
        }
        With::Send(sent) => return Ok(refusal_of_send(sent, signal::signal(tx, sent).await?)),
        With::Spawn(child) => return Ok(refusal_of_spawn(start::start(tx, child).await?)),
        With::Govern(what) => return govern::write(tx, lease, id(record), what).await,
    }
    Ok(None)
}

fn refusal_of_send(signal: &Signal, reply: Signalled) -> Option<String> {
    match reply {
        Signalled::Accepted | Signalled::Duplicate => None,
        Signalled::Over => Some(format!("run {} is over and takes no signals", signal.run_id)),
        Signalled::NotFound => Some(format!("there is no run {}", signal.run_id)),
    }
}

fn refusal_of_spawn(reply: Started) -> Option<String> {
    match reply {
        Started::New(_) | Started::Existing(_) => None,
        Started::Conflict(field) => {
            Some(format!("the child's id is taken by a run with another {field}"))
        }
        Started::Duplicate(run_id) => Some(format!("run {run_id} has the deduplication id")),
        Started::NoQueue => Some("the child's queue does not exist".to_owned()),
    }
}

/// The columns of an outcome: the value, or the error as it is stored.
pub(super) fn split(outcome: &Outcome) -> (Option<&str>, Option<String>) {
    match outcome {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(rows::error_text(error))),
    }
}
