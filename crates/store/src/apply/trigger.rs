//! Triggers: replaced as they were read, advanced slot by slot, with the commands they make.
//!
//! Invariants: whoever advances a trigger has read its last version, so a slot is decided once,
//! however many schedulers there are; a slot, its command and its events are one commit.

use steadfast_core::schedule::{Overlap, SlotEvent, SlotStatus};
use steadfast_core::{Timestamp, limits};

use super::{command, event, rows};
use crate::error::Error;
use crate::gate::{Params, Tx, Value, first, params};
use crate::op::{
    Activities, ActivityRow, Advance, Advanced, Backfill, Backfilled, DueTriggers, ListActivities,
    ListSlots, ListTriggers, LogActivity, Logged, NewSlot, Parent, PutTrigger, SlotRow, Slots,
    Submit, Submitted, TriggerPut, Triggers,
};

pub(super) async fn put(tx: &mut impl Tx, op: &PutTrigger) -> Result<TriggerPut, Error> {
    let t = &op.trigger;
    let row: Params<'_> = params! {
        workspace: &op.workspace, trigger_id: &t.trigger_id, kind: &t.kind, spec: &t.spec,
        revision: t.revision, source: &t.source, state: t.state.as_str(), reason: &t.reason,
        absent_from: t.absent_from, absent_until: t.absent_until, cursor_at: t.cursor_at,
        gap: &t.gap, due_at: t.due_at, version: t.version, created_at: t.created_at,
        updated_at: t.updated_at,
    };
    let statement = if t.version == 0 { "trigger_insert" } else { "trigger_update" };
    let done = tx.execute(statement, row).await? == 1;
    if done {
        return Ok(TriggerPut::Done);
    }
    // Our own earlier success, whose answer was lost.
    let at = params! { workspace: &op.workspace, trigger_id: &t.trigger_id };
    let now = first(tx, "trigger_get", at).await?.map(rows::trigger).transpose()?;
    let mine = now.is_some_and(|now| {
        let mut wanted = t.clone();
        wanted.version += 1;
        wanted.created_at = now.created_at;
        now == wanted
    });
    Ok(if mine { TriggerPut::Done } else { TriggerPut::Stale })
}

pub(super) async fn advance(tx: &mut impl Tx, op: &Advance) -> Result<Advanced, Error> {
    let ws = op.workspace.as_str();
    let step = params! {
        workspace: ws, trigger_id: &op.trigger_id, version: op.version, cursor_at: op.cursor_at,
        gap: &op.gap, due_at: op.due_at, now: op.now,
    };
    if tx.execute("trigger_advance", step).await? != 1 {
        return Ok(Advanced::Stale);
    }
    let mut done = Vec::with_capacity(op.slots.len());
    for new in &op.slots {
        let slot = decide(tx, op, new).await?;
        // One that was filled by hand before it was decided has not been missed.
        let new = write_slot(tx, ws, &op.trigger_id, &slot).await? == 1;
        if new && slot.status == SlotStatus::Missed {
            event::missed(tx, ws, &op.trigger_id, &slot).await?;
        }
        done.push(slot);
    }
    Ok(Advanced::Done(done))
}

/// The slot as it comes out: its command made, or what was in the way.
async fn decide(tx: &mut impl Tx, op: &Advance, new: &NewSlot) -> Result<SlotRow, Error> {
    let mut slot = new.slot.clone();
    let Some(fire) = &new.fire else {
        return Ok(slot);
    };
    let before = match op.overlap {
        Overlap::Allow => Vec::new(),
        Overlap::Skip | Overlap::Wait => still_active(tx, op, slot.nominal_at).await?,
    };
    let submitted = match before.first() {
        None => command::submit(tx, fire).await?,
        Some(active) if op.overlap == Overlap::Skip && !new.makes_up => {
            slot.status = SlotStatus::Skipped;
            slot.reason = format!("the command of an earlier slot is not over: {active}");
            return Ok(slot);
        }
        Some(_) => {
            let earlier = |command_id| Parent { command_id, required: None, propagate: false };
            let after = before.into_iter().map(earlier).collect();
            command::submit(tx, &Submit { after, ..(**fire).clone() }).await?
        }
    };
    note(&mut slot, fire, submitted);
    Ok(slot)
}

/// What a submission makes of its slot.
fn note(slot: &mut SlotRow, fire: &Submit, submitted: Submitted) {
    let fails =
        |slot: &mut SlotRow, reason| (slot.status, slot.reason) = (SlotStatus::Missed, reason);
    match submitted {
        Submitted::New(..) => slot.command_id.clone_from(&fire.command_id),
        Submitted::Existing(command_id, _) => {
            slot.status = SlotStatus::Collapsed;
            slot.reason = "the command was there already".to_owned();
            slot.command_id = command_id;
        }
        Submitted::Conflict(command_id, field) => fails(
            slot,
            format!("command {command_id} has the same key and another {field} [SF-0501]"),
        ),
        Submitted::NoQueue => {
            fails(slot, format!("there is no queue \"{}\" [SF-0112]", fire.start.queue));
        }
        Submitted::NoParent(parent) => {
            fails(slot, format!("there is no command \"{parent}\" [SF-0506]"));
        }
        Submitted::RunTaken => {
            fails(slot, format!("run \"{}\" belongs to no command [SF-0508]", fire.start.run_id));
        }
    }
}

/// The commands of the trigger's last slots that are not over, the last first.
async fn still_active(
    tx: &mut impl Tx,
    op: &Advance,
    nominal: Timestamp,
) -> Result<Vec<String>, Error> {
    let at = params! {
        workspace: &op.workspace, trigger_id: &op.trigger_id, nominal_at: nominal,
        limit: limits::OVERLAP_SLOTS, background: limits::BACKGROUND_PRIORITY,
    };
    let rows = tx.query("slot_active", at).await?;
    let mut active = rows.into_iter().map(|mut row| row.text()).collect::<Result<Vec<_>, _>>()?;
    // Two slots may have met in one command.
    active.dedup();
    Ok(active)
}

async fn write_slot(
    tx: &mut impl Tx,
    ws: &str,
    trigger_id: &str,
    slot: &SlotRow,
) -> Result<u64, Error> {
    let row = params! {
        workspace: ws, trigger_id: trigger_id, nominal_at: slot.nominal_at,
        status: slot.status.as_str(), reason: &slot.reason, lag_us: slot.lag_us,
        command_id: &slot.command_id, into_at: slot.into_at, window_from: slot.window_from,
        revision: slot.revision, decided_at: slot.decided_at,
    };
    tx.execute("slot_write", row).await
}

pub(super) async fn backfill(tx: &mut impl Tx, op: &Backfill) -> Result<Backfilled, Error> {
    let ws = op.fire.start.workspace.as_str();
    let at = params! {
        workspace: ws, trigger_id: &op.trigger_id, nominal_at: op.slot.nominal_at,
    };
    let before = first(tx, "slot_status", at).await?.map(|mut row| row.text()).transpose()?;
    let before = before.map(|text| rows::slot_status(&text)).transpose()?;
    let submitted = command::submit(tx, &op.fire).await?;
    let mut slot = op.slot.clone();
    note(&mut slot, &op.fire, submitted.clone());
    let event = match &submitted {
        Submitted::New(..) => SlotEvent::Backfill,
        Submitted::Existing(..) => SlotEvent::Collapse,
        _ => return Ok(Backfilled { submitted, status: before }),
    };
    let Some(before) = before else {
        write_slot(tx, ws, &op.trigger_id, &slot).await?;
        return Ok(Backfilled { submitted, status: Some(slot.status) });
    };
    // A slot that fired keeps what it has.
    let Ok(arrow) = before.on(event) else {
        return Ok(Backfilled { submitted, status: Some(before) });
    };
    let moved = params! {
        workspace: ws, trigger_id: &op.trigger_id, nominal_at: slot.nominal_at,
        from: arrow.from().as_str(), status: arrow.to().as_str(), reason: &slot.reason,
        command_id: &slot.command_id, decided_at: slot.decided_at,
    };
    tx.execute("slot_move", moved).await?;
    Ok(Backfilled { submitted, status: Some(arrow.to()) })
}

pub(super) async fn list(tx: &mut impl Tx, op: &ListTriggers) -> Result<Triggers, Error> {
    let mut conditions = String::new();
    let mut given = vec![("workspace", Value::from(&op.workspace))];
    if let Some(id) = &op.trigger_id {
        conditions.push_str("AND trigger_id = :trigger_id ");
        given.push(("trigger_id", Value::from(id)));
    }
    if let Some(kind) = &op.kind {
        conditions.push_str("AND kind = :kind");
        given.push(("kind", Value::from(kind)));
    }
    let found = tx.query_where("trigger_list", &conditions, &given).await?;
    found.into_iter().map(rows::trigger).collect::<Result<_, _>>().map(Triggers)
}

pub(super) async fn due(tx: &mut impl Tx, op: &DueTriggers) -> Result<Triggers, Error> {
    let mut given = vec![
        ("workspace", Value::from(&op.workspace)),
        ("now", Value::from(op.now)),
        ("limit", Value::from(op.limit)),
    ];
    let mut conditions = "";
    if let Some((at, id)) = &op.after {
        conditions = "AND (due_at > :after_at OR (due_at = :after_at AND trigger_id > :after_id))";
        given.push(("after_at", Value::from(*at)));
        given.push(("after_id", Value::from(id)));
    }
    let found = tx.query_where("trigger_due", conditions, &given).await?;
    found.into_iter().map(rows::trigger).collect::<Result<_, _>>().map(Triggers)
}

pub(super) async fn slots(tx: &mut impl Tx, op: &ListSlots) -> Result<Slots, Error> {
    let which = params! {
        workspace: &op.workspace, trigger_id: &op.trigger_id, from: op.from, until: op.until,
        limit: op.limit,
    };
    let statement = if op.latest { "slot_list_latest" } else { "slot_list" };
    let found = tx.query(statement, which).await?;
    let mut slots = found.into_iter().map(rows::slot).collect::<Result<Vec<_>, _>>()?;
    if op.latest {
        slots.reverse();
    }
    Ok(Slots(slots))
}

pub(super) async fn log_activity(tx: &mut impl Tx, op: &LogActivity) -> Result<Logged, Error> {
    let ActivityRow { run_id, activity_id, workflow_id, .. } = &op.run;
    let run = params! {
        workspace: &op.workspace, run_id: run_id, activity_id: activity_id,
        definition_version: op.run.definition_version, workflow_id: workflow_id,
        trigger_type: &op.run.trigger_type, trigger_key: &op.run.trigger_key,
        context_snapshot: &op.run.context_snapshot, tasks_spawned: op.run.tasks_spawned,
        scheduled_for: op.run.scheduled_for, fired_at: op.run.fired_at,
        window_start: op.run.window.map(|(first, _)| first),
        window_end: op.run.window.map(|(_, last)| last), status: op.run.status.as_str(),
        error: op.run.error.as_ref().map(rows::error_text), started_at: op.run.started_at,
        finished_at: op.run.finished_at,
    };
    let mut new = tx.execute("activity_insert", run).await?;
    for task in &op.tasks {
        let row = params! {
            workspace: &op.workspace, id: &task.id, run_id: &task.run_id,
            task_type: &task.task_type, idx: task.idx, params: &task.params,
            created_at: task.created_at,
        };
        new += tx.execute("task_insert", row).await?;
    }
    Ok(Logged(new))
}

pub(super) async fn activities(tx: &mut impl Tx, op: &ListActivities) -> Result<Activities, Error> {
    let which = params! {
        workspace: &op.workspace, activity_id: &op.activity_id,
        limit: op.limit,
    };
    let mut found = Vec::new();
    for row in tx.query("activity_list", which).await? {
        let run = rows::activity(row)?;
        let at = params! { workspace: &op.workspace, run_id: &run.run_id };
        let tasks = tx.query("task_list", at).await?;
        let tasks = tasks.into_iter().map(rows::task).collect::<Result<_, _>>()?;
        found.push((run, tasks));
    }
    Ok(Activities(found))
}
