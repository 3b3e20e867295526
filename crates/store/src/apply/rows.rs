//! Reading rows into values, in the column order of `dialect.rs`.

use std::time::Duration;

use steadfast_core::approval::Vote;
use steadfast_core::driver::{Kind, Outcome, Record, RecordState};
use steadfast_core::schedule::SlotStatus;
use steadfast_core::{ApprovalStatus, CommandStatus, EffectStatus, Error as Failure, RunStatus};

use crate::error::Error;
use crate::gate::Row;
use crate::op::{
    ActivityRow, ApprovalRow, CommandRow, EffectRow, EventRow, InvocationRow, NewApproval,
    QueueRow, RunRow, SlotRow, TaskRow, TriggerRow, TriggerState, VoteRow,
};

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
        context: r.opt_text()?,
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
    let (input, input_digest) = (r.opt_text()?, r.opt_text()?);
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
        input_digest,
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
    queue_of(&mut row)
}

pub(super) fn queue_of(r: &mut Row) -> Result<QueueRow, Error> {
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

pub(super) fn command(mut row: Row) -> Result<CommandRow, Error> {
    let r = &mut row;
    Ok(CommandRow {
        command_id: r.text()?,
        command_type: r.text()?,
        requested_by: r.text()?,
        ingress: r.text()?,
        payload: r.text()?,
        context: r.text()?,
        status: command_status(&r.text()?)?,
        cancellation_mode: r.text()?,
        idempotency_key: r.opt_text()?,
        workflow_id: r.text()?,
        result: r.opt_text()?,
        error: r.opt_text()?.map(|text| failure(&text)).transpose()?,
        collapsed: r.int()?,
        created_at: r.time()?,
        updated_at: r.time()?,
        completed_at: r.opt_time()?,
        expires_at: r.opt_time()?,
    })
}

pub(super) fn effect(mut row: Row) -> Result<EffectRow, Error> {
    let r = &mut row;
    let (effect_id, command_id, run_id, ordinal) = (r.text()?, r.text()?, r.text()?, r.int()?);
    let (effect_type, payload, idempotency_key) = (r.text()?, r.text()?, r.text()?);
    let status = r.text()?;
    Ok(EffectRow {
        effect_id,
        command_id,
        run_id,
        ordinal,
        effect_type,
        payload,
        idempotency_key,
        status: EffectStatus::parse(&status).ok_or_else(|| unknown("effect status", &status))?,
        result: r.opt_text()?,
        error: r.opt_text()?.map(|text| failure(&text)).transpose()?,
        compensates: r.opt_text()?,
        compensation: r.opt_text()?,
        compensated_at: r.opt_time()?,
        created_at: r.time()?,
        updated_at: r.time()?,
        completed_at: r.opt_time()?,
    })
}

pub(super) fn invocation(mut row: Row) -> Result<InvocationRow, Error> {
    let r = &mut row;
    Ok(InvocationRow {
        invocation_id: r.text()?,
        command_id: r.text()?,
        run_id: r.text()?,
        connector: r.text()?,
        agent: r.text()?,
        intended: r.text()?,
        actual: r.text()?,
        inputs: r.text()?,
        outputs: r.text()?,
        side_effect: r.flag()?,
        idempotency_key: r.text()?,
        verification: r.text()?,
        error: r.opt_text()?.map(|text| failure(&text)).transpose()?,
        latency_us: r.int()?,
        cost_units: r.opt_int()?,
        created_at: r.time()?,
    })
}

pub(super) fn approval(mut row: Row) -> Result<ApprovalRow, Error> {
    let r = &mut row;
    let asked = NewApproval {
        approval_id: r.text()?,
        approval_type: r.text()?,
        action: r.text()?,
        reason: r.text()?,
        payload: r.text()?,
        digest: r.text()?,
        requested_by: r.text()?,
        approvers: r.int()?,
        among: serde_json::from_str(&r.text()?)
            .map_err(|e| Error::Incompatible(format!("a stored list is damaged: {e}")))?,
        expires_at: r.time()?,
        escalate_at: r.opt_time()?,
    };
    let (command_id, run_id, status) = (r.text()?, r.text()?, r.text()?);
    Ok(ApprovalRow {
        asked,
        command_id,
        run_id,
        status: ApprovalStatus::parse(&status)
            .ok_or_else(|| unknown("approval status", &status))?,
        created_at: r.time()?,
        decided_at: r.opt_time()?,
        votes: Vec::new(),
    })
}

pub(super) fn vote(mut row: Row) -> Result<VoteRow, Error> {
    let (approver, vote) = (row.text()?, row.text()?);
    let vote = Vote::parse(&vote).ok_or_else(|| unknown("vote", &vote))?;
    Ok(VoteRow { approver, vote, reason: row.text()?, at: row.time()? })
}

pub(super) fn event(mut row: Row) -> Result<EventRow, Error> {
    event_of(&mut row)
}

/// An event at the beginning of a row.
pub(super) fn event_of(r: &mut Row) -> Result<EventRow, Error> {
    Ok(EventRow {
        event_id: r.text()?,
        command_id: r.text()?,
        purpose: r.text()?,
        event_type: r.text()?,
        payload: r.text()?,
        actor: r.text()?,
        trace_id: r.text()?,
        created_at: r.time()?,
    })
}

pub(super) fn trigger(mut row: Row) -> Result<TriggerRow, Error> {
    let r = &mut row;
    let (trigger_id, kind, spec) = (r.text()?, r.text()?, r.text()?);
    let (revision, source, state) = (r.int()?, r.text()?, r.text()?);
    Ok(TriggerRow {
        trigger_id,
        kind,
        spec,
        revision,
        source,
        state: TriggerState::parse(&state).ok_or_else(|| unknown("trigger state", &state))?,
        reason: r.text()?,
        absent_from: r.time()?,
        absent_until: r.time()?,
        cursor_at: r.time()?,
        gap: r.text()?,
        due_at: r.time()?,
        version: r.int()?,
        created_at: r.time()?,
        updated_at: r.time()?,
    })
}

pub(super) fn slot(mut row: Row) -> Result<SlotRow, Error> {
    let r = &mut row;
    Ok(SlotRow {
        nominal_at: r.time()?,
        status: slot_status(&r.text()?)?,
        reason: r.text()?,
        lag_us: r.int()?,
        command_id: r.text()?,
        into_at: r.opt_time()?,
        window_from: r.opt_time()?,
        revision: r.int()?,
        decided_at: r.time()?,
    })
}

pub(super) fn activity(mut row: Row) -> Result<ActivityRow, Error> {
    let r = &mut row;
    Ok(ActivityRow {
        run_id: r.text()?,
        activity_id: r.text()?,
        definition_version: r.int()?,
        workflow_id: r.text()?,
        trigger_type: r.text()?,
        trigger_key: r.text()?,
        context_snapshot: r.text()?,
        tasks_spawned: r.int()?,
        scheduled_for: r.opt_time()?,
        fired_at: r.time()?,
        window: r.opt_time()?.zip(r.opt_time()?),
        status: command_status(&r.text()?)?,
        error: r.opt_text()?.map(|text| failure(&text)).transpose()?,
        started_at: r.time()?,
        finished_at: r.time()?,
    })
}

pub(super) fn task(mut row: Row) -> Result<TaskRow, Error> {
    let r = &mut row;
    Ok(TaskRow {
        id: r.text()?,
        run_id: r.text()?,
        task_type: r.text()?,
        idx: r.int()?,
        params: r.text()?,
        status: r.opt_text()?.map(|text| status(&text)).transpose()?,
        created_at: r.time()?,
    })
}

pub(super) fn command_status(text: &str) -> Result<CommandStatus, Error> {
    CommandStatus::parse(text).ok_or_else(|| unknown("command status", text))
}

pub(super) fn slot_status(text: &str) -> Result<SlotStatus, Error> {
    SlotStatus::parse(text).ok_or_else(|| unknown("slot status", text))
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

pub(super) fn duration(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

fn unsigned(v: i64) -> Result<u64, Error> {
    u64::try_from(v).map_err(|_| unknown("position", &v.to_string()))
}

/// A value that a newer version may have written: refused, never guessed.
fn unknown(what: &str, text: &str) -> Error {
    Error::Incompatible(format!("unknown {what} \"{text}\": was it written by a newer version?"))
}
