//! Definitions become triggers: created, changed, paused, disabled, removed; never re-fired.
//!
//! Invariants: before a definition changes, every slot of the old one up to now is decided by the
//! old one; a change is written only over the version that was read; a sync removes only what its
//! own source had defined.

use steadfast_core::trigger::{Trigger, When};
use steadfast_core::{Error, ErrorClass, Result, Timestamp};
use steadfast_runtime_native::Client;
use steadfast_store::op::{self, TriggerState};

use super::scheduler::{self, Manner, Planner, Scheduler};
use crate::contract::Contracts;

/// How often a change is tried against others who change the same trigger.
const TRIES: usize = 20;

/// Makes the triggers of a source be exactly these; with `types`, only those of these types.
pub(crate) async fn sync(
    scheduler: &Scheduler,
    client: &Client,
    source: &str,
    wanted: &[Trigger],
    types: Option<&Contracts>,
) -> Result<()> {
    for trigger in wanted {
        define(scheduler, client, source, trigger).await?;
    }
    let workspace = client.workspace().to_owned();
    let all = client.ask(op::ListTriggers::all(workspace)).await?.0;
    let orphans = all.into_iter().filter(|row| {
        row.source == source
            && row.state != TriggerState::Removed
            && !wanted.iter().any(|trigger| trigger.trigger_id == row.trigger_id)
    });
    for orphan in orphans {
        if types.is_some_and(|types| !makes(&orphan, types)) {
            let trigger_id = orphan.trigger_id;
            tracing::warn!(trigger_id, "it is defined elsewhere; give each program a source");
            continue;
        }
        tracing::info!(trigger_id = orphan.trigger_id, "its definition is gone");
        steer(scheduler, client, &orphan.trigger_id, &Change::Remove).await?;
    }
    Ok(())
}

/// Whether a trigger submits commands of one of these types.
fn makes(row: &op::TriggerRow, types: &Contracts) -> bool {
    let trigger = serde_json::from_str::<Trigger>(&row.spec);
    trigger.is_ok_and(|trigger| types.get(&trigger.command.name).is_ok())
}

/// Creates a trigger, or makes the existing one what the definition says.
pub(crate) async fn define(
    scheduler: &Scheduler,
    client: &Client,
    source: &str,
    trigger: &Trigger,
) -> Result<()> {
    trigger.check()?;
    // Whether it is enabled is a state, and no other definition.
    let spec = serde_json::to_string(&Trigger { enabled: true, ..trigger.clone() })
        .map_err(|e| Error::invalid("SF-0101", format!("a trigger cannot be written: {e}")))?;
    for _ in 0..TRIES {
        let workspace = client.workspace().to_owned();
        let list = op::ListTriggers::one(workspace, &trigger.trigger_id);
        let now = client.now();
        let row = match client.ask(list).await?.0.pop() {
            None => first(source, trigger, &spec, now)?,
            Some(row) if row.source != source && row.state != TriggerState::Removed => {
                return Err(Error::new(
                    ErrorClass::Conflict,
                    "SF-0609",
                    format!(
                        "trigger \"{}\" belongs to source \"{}\", not to \"{source}\"",
                        row.trigger_id, row.source
                    ),
                ));
            }
            Some(row) => {
                let replaces = row.spec != spec && row.state != TriggerState::Removed;
                // What it does has changed, not when: what it missed stays to be decided.
                let replaces = replaces && !keeps_times(&row, trigger);
                let row = match replaces {
                    true => decided(scheduler, row, Manner::Last, now).await?,
                    false => Some(row),
                };
                let Some(row) = row else { continue };
                match changed(row, source, trigger, &spec, now)? {
                    Some(row) => row,
                    None => return Ok(()),
                }
            }
        };
        if put(client, row).await? {
            return Ok(());
        }
    }
    Err(busy(&trigger.trigger_id))
}

/// A trigger that was not there: it has no past.
fn first(source: &str, trigger: &Trigger, spec: &str, now: Timestamp) -> Result<op::TriggerRow> {
    let mut row = op::TriggerRow {
        trigger_id: trigger.trigger_id.clone(),
        kind: trigger.when.kind().to_owned(),
        spec: spec.to_owned(),
        revision: 1,
        source: source.to_owned(),
        state: if trigger.enabled { TriggerState::Active } else { TriggerState::Disabled },
        reason: if trigger.enabled { "" } else { "disabled" }.to_owned(),
        absent_from: now,
        absent_until: if trigger.enabled { now } else { Timestamp::NEVER },
        cursor_at: now,
        gap: String::new(),
        due_at: Timestamp::NEVER,
        version: 0,
        created_at: now,
        updated_at: now,
    };
    row.due_at = due(&row)?;
    Ok(row)
}

/// Whether a schedule that does not fire for now would fire as before, and only do something else.
fn keeps_times(row: &op::TriggerRow, trigger: &Trigger) -> bool {
    let before = serde_json::from_str::<Trigger>(&row.spec).map(|before| before.when);
    match (before, &trigger.when) {
        (Ok(When::Cron(before)), When::Cron(now)) => {
            row.state != TriggerState::Active && before == *now
        }
        _ => false,
    }
}

/// The row as the definition wants it; none if it is so already.
fn changed(
    mut row: op::TriggerRow,
    source: &str,
    trigger: &Trigger,
    spec: &str,
    now: Timestamp,
) -> Result<Option<op::TriggerRow>> {
    let enabled = !matches!(row.state, TriggerState::Disabled | TriggerState::Removed);
    let same = row.spec == spec && row.source == source;
    if same && enabled == trigger.enabled && row.state != TriggerState::Removed {
        return Ok(None);
    }
    if row.state == TriggerState::Removed {
        // It begins anew: nobody wanted its slots meanwhile.
        let new = first(source, trigger, spec, now)?;
        let (revision, created_at) = (row.revision + 1, row.created_at);
        return Ok(Some(op::TriggerRow { revision, created_at, version: row.version, ..new }));
    }
    let keeps = keeps_times(&row, trigger);
    if row.spec != spec {
        row.spec = spec.to_owned();
        row.kind = trigger.when.kind().to_owned();
        row.revision += 1;
        if !keeps {
            row.cursor_at = row.cursor_at.max(now);
            row.gap = String::new();
        }
    }
    if enabled != trigger.enabled {
        enable(&mut row, trigger.enabled, now);
    }
    row.source = source.to_owned();
    row.updated_at = now;
    row.due_at = due(&row)?;
    Ok(Some(row))
}

/// As the definition says; somebody's pause outlasts it.
fn enable(row: &mut op::TriggerRow, on: bool, now: Timestamp) {
    const WHILE: &str = "disabled while ";
    if !on {
        let why = match row.state {
            TriggerState::Paused => format!("{WHILE}{}", row.reason),
            _ => "disabled".to_owned(),
        };
        return set_state(row, false, TriggerState::Disabled, &why, now);
    }
    match row.reason.strip_prefix(WHILE).map(str::to_owned) {
        Some(pause) => set_state(row, false, TriggerState::Paused, &pause, now),
        None => set_state(row, true, TriggerState::Disabled, "", now),
    }
}

/// The trigger with every slot up to now decided by its definition of now; none if somebody else
/// has changed it meanwhile, so that it is to be looked at again.
async fn decided(
    scheduler: &Scheduler,
    row: op::TriggerRow,
    active: Manner,
    now: Timestamp,
) -> Result<Option<op::TriggerRow>> {
    // A definition that a newer version wrote may be unreadable here; it is replaced all the same.
    if row.kind != "cron" || scheduler.planner(&row).is_err() {
        return Ok(Some(row));
    }
    let (before, mut row) = ((row.state, row.revision), row);
    let manner = if row.state == TriggerState::Active { active } else { Manner::Closed };
    // As often as it takes: a tick leaves the rest of a long gap to the next one, and here is none.
    loop {
        let (after, count) = scheduler.advance(row, now, manner).await?;
        if before != (after.state, after.revision) {
            return Ok(None);
        }
        if count == 0 {
            return Ok(Some(after));
        }
        row = after;
    }
}

/// What somebody wants of a trigger.
pub(crate) enum Change {
    Pause(String),
    Resume,
    Remove,
}

/// Changes a trigger's state; gives it as it is afterwards.
pub(crate) async fn steer(
    scheduler: &Scheduler,
    client: &Client,
    trigger_id: &str,
    change: &Change,
) -> Result<op::TriggerRow> {
    for _ in 0..TRIES {
        let mut row = scheduler::find(client, trigger_id).await?;
        let now = client.now();
        let refused = |what: &str| {
            let text = format!("trigger \"{trigger_id}\" is {} and {what}", row.state.as_str());
            Err(Error::new(ErrorClass::Conflict, "SF-0610", text))
        };
        match (change, row.state) {
            (Change::Pause(_), TriggerState::Paused) | (Change::Resume, TriggerState::Active) => {
                return Ok(row);
            }
            (Change::Remove, TriggerState::Removed) => return Ok(row),
            (Change::Pause(_), TriggerState::Disabled | TriggerState::Removed) => {
                return refused("cannot be paused");
            }
            (Change::Resume, TriggerState::Disabled | TriggerState::Removed) => {
                return refused("cannot be resumed; its definition says so");
            }
            (Change::Pause(reason), TriggerState::Active) => {
                let why = match reason.as_str() {
                    "" => "paused".to_owned(),
                    reason => format!("paused: {reason}"),
                };
                set_state(&mut row, false, TriggerState::Paused, &why, now);
            }
            (Change::Resume, TriggerState::Paused) => {
                set_state(&mut row, true, TriggerState::Paused, "", now);
            }
            (Change::Remove, _) => {
                // What waits for its jitter still is wanted by nobody.
                match decided(scheduler, row, Manner::Planned, now).await? {
                    Some(decided) => row = decided,
                    None => continue,
                }
                row.state = TriggerState::Removed;
                row.reason = "removed".to_owned();
            }
        }
        row.updated_at = now;
        row.due_at = due(&row)?;
        let after = op::TriggerRow { version: row.version + 1, ..row.clone() };
        if put(client, row).await? {
            return Ok(after);
        }
    }
    Err(busy(trigger_id))
}

/// Lets a trigger fire, or not; remembers since when and why.
fn set_state(row: &mut op::TriggerRow, on: bool, off: TriggerState, why: &str, now: Timestamp) {
    if on {
        row.state = TriggerState::Active;
        row.absent_until = now;
    } else {
        // One that was away already has been away since then.
        if row.absent_until != Timestamp::NEVER {
            row.absent_from = now;
        }
        row.absent_until = Timestamp::NEVER;
        row.state = off;
        row.reason = why.to_owned();
    }
}

/// When the trigger is due next, as it stands.
fn due(row: &op::TriggerRow) -> Result<Timestamp> {
    if row.state != TriggerState::Active || row.kind != "cron" {
        return Ok(Timestamp::NEVER);
    }
    Ok(Planner::read(row)?.due_after(row.cursor_at))
}

async fn put(client: &Client, trigger: op::TriggerRow) -> Result<bool> {
    let workspace = client.workspace().to_owned();
    let put = client.ask(op::PutTrigger { workspace, trigger }).await?;
    Ok(put == op::TriggerPut::Done)
}

fn busy(trigger_id: &str) -> Error {
    let text = format!("trigger \"{trigger_id}\" is being changed by others all the time");
    Error::new(ErrorClass::Conflict, "SF-0611", text)
}
