//! The scheduler: asks which triggers are due, plans their slots, writes the verdicts.
//!
//! Invariants: any number of schedulers may tick at once, and a slot is decided once, because
//! whoever writes has read the trigger's last version; an idle tick is one indexed query; what one
//! trigger cannot do (a broken definition) never stops the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use steadfast_core::command::Ingress;
use steadfast_core::schedule::{
    Absence, Calendar, Gap, Planned, Progress, SlotStatus, Verdict, slot_run_id,
};
use steadfast_core::trigger::{Trigger, When};
use steadfast_core::{Error, Result, Timestamp, limits};
use steadfast_runtime_native::Client;
use steadfast_store::op;

use super::ingress::{self, Request};
use crate::contract::Contracts;
use crate::governance::Governance;

/// Triggers advanced at the same time: they share commits.
const TOGETHER: usize = limits::COMMIT_BATCH;
/// Steps of one trigger in one tick.
const STEPS: usize = 10;
/// How long a trigger that others decide on may be due before it is told.
const OVERDUE: Duration = Duration::from_secs(60);
/// Definitions kept in memory; beyond it, they are read anew.
const KNOWN: usize = 20_000;

/// Ticks. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Scheduler {
    client: Client,
    contracts: Arc<Contracts>,
    governance: Option<Arc<Governance>>,
    known: Arc<Mutex<Known>>,
}

/// Definitions by trigger, with the revision they belong to.
type Known = HashMap<String, (i64, Arc<Planner>)>;

/// A definition, ready to be asked.
pub(crate) struct Planner {
    pub(crate) trigger: Trigger,
    pub(crate) calendar: Calendar,
    /// Whether it was told that nobody here may decide on it.
    told: AtomicBool,
}

/// Who has a slot fired, and how.
pub(crate) struct Origin<'a> {
    pub(crate) requested_by: &'a str,
    pub(crate) ingress: Ingress,
    pub(crate) priority: i64,
}

/// The schedule itself.
const SCHEDULED: Origin<'static> =
    Origin { requested_by: "system:scheduler", ingress: Ingress::ScheduledTrigger, priority: 0 };

/// How the slots of a trigger are decided.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// By its misfire policy.
    Planned,
    /// By its misfire policy, and none waits for its jitter: the definition is about to change.
    Last,
    /// None of them fires any more: the trigger is not active and about to change.
    Closed,
}

impl Scheduler {
    pub(crate) fn new(
        client: Client,
        contracts: Arc<Contracts>,
        governance: Option<Arc<Governance>>,
    ) -> Self {
        Self { client, contracts, governance, known: Arc::default() }
    }

    /// Fires what is due; gives how many slots were decided.
    pub(crate) async fn tick(&self) -> Result<usize> {
        let now = self.client.now();
        let (mut decided, mut after) = (0, None);
        loop {
            let (workspace, limit) = (self.client.workspace().to_owned(), limits::PAGE_ROWS);
            let due = self.client.ask(op::DueTriggers { workspace, after, limit, now }).await?.0;
            // Not from the beginning again: what cannot be decided here stands there still.
            after = due.get(limit - 1).map(|last| (last.due_at, last.trigger_id.clone()));
            let (mut under_way, mut rows) = (FuturesUnordered::new(), due.into_iter());
            loop {
                while under_way.len() < TOGETHER
                    && let Some(row) = rows.next()
                {
                    under_way.push(self.catch_up(row, now));
                }
                match under_way.next().await {
                    Some(slots) => decided += slots,
                    None => break,
                }
            }
            if after.is_none() {
                return Ok(decided);
            }
        }
    }

    /// Decides what is due of one trigger, however much that is.
    async fn catch_up(&self, row: op::TriggerRow, now: Timestamp) -> usize {
        let trigger_id = row.trigger_id.clone();
        if let Ok(planner) = self.planner(&row)
            && let Err(error) = self.contracts.of(&planner.trigger)
        {
            // Only a process that has its policies decides on it; it stays due for that one.
            if row.due_at.until(now) > OVERDUE && planner.complains() {
                tracing::warn!(trigger_id, %error, "a trigger is overdue and not decided here");
            }
            return 0;
        }
        match self.advance(row, now, Manner::Planned).await {
            Ok((_, decided)) => decided,
            Err(error) => {
                tracing::error!(trigger_id, %error, "a trigger cannot be fired");
                0
            }
        }
    }

    /// Decides every slot up to `now`; gives the trigger as it is afterwards. Somebody else may be
    /// doing the same: then what they did stands. Where they changed the trigger's state or
    /// definition, it is left to them.
    pub(crate) async fn advance(
        &self,
        mut row: op::TriggerRow,
        now: Timestamp,
        manner: Manner,
    ) -> Result<(op::TriggerRow, usize)> {
        let (mut decided, mut steps) = (0, 0);
        loop {
            let planner = self.planner(&row)?;
            let (step, again) = self.step(&row, &planner, now, manner)?;
            let nothing = step.slots.is_empty() && step.due_at == row.due_at;
            if nothing && step.cursor_at == row.cursor_at {
                return Ok((row, decided));
            }
            let (cursor_at, gap, due_at) = (step.cursor_at, step.gap.clone(), step.due_at);
            match self.client.ask(step).await? {
                op::Advanced::Done(slots) => {
                    decided += slots.len();
                    log(&row.trigger_id, &slots);
                    row = op::TriggerRow {
                        cursor_at,
                        gap,
                        due_at,
                        version: row.version + 1,
                        updated_at: now,
                        ..row
                    };
                    self.client.ring();
                    steps += 1;
                    // The rest of a long gap waits for the next tick: others are due as well.
                    if !again || (manner == Manner::Planned && steps == STEPS) {
                        return Ok((row, decided));
                    }
                }
                op::Advanced::Stale => {
                    let before = (row.state, row.revision);
                    row = find(&self.client, &row.trigger_id).await?;
                    if before != (row.state, row.revision) {
                        return Ok((row, decided));
                    }
                }
            }
        }
    }

    /// One step of a trigger, and whether more is due.
    fn step(
        &self,
        row: &op::TriggerRow,
        planner: &Planner,
        now: Timestamp,
        manner: Manner,
    ) -> Result<(op::Advance, bool)> {
        let calendar = &planner.calendar;
        let progress = Progress { last: manner != Manner::Planned, ..progress(row)? };
        let mut plan = calendar.plan(&row.trigger_id, &progress, now, limits::SLOT_BATCH);
        // More of a gap, or what became due since it was measured.
        let again = plan.due <= now;
        if manner == Manner::Closed {
            let why = format!("{}; the schedule was changed meanwhile", row.reason);
            plan.slots.iter_mut().for_each(|slot| slot.verdict = Verdict::Miss(why.clone()));
            plan.due = Timestamp::NEVER;
        }
        let gap = plan.gap.map(|gap| serde_json::to_string(&gap).unwrap_or_default());
        let slots = plan.slots.iter().map(|slot| self.new_slot(row, planner, slot, now)).collect();
        let step = op::Advance {
            workspace: self.client.workspace().to_owned(),
            trigger_id: row.trigger_id.clone(),
            version: row.version,
            overlap: calendar.schedule().overlap,
            slots,
            cursor_at: plan.cursor,
            gap: gap.unwrap_or_default(),
            due_at: plan.due,
            now,
        };
        Ok((step, again))
    }

    fn new_slot(
        &self,
        row: &op::TriggerRow,
        planner: &Planner,
        planned: &Planned,
        now: Timestamp,
    ) -> op::NewSlot {
        let mut slot = slot_row(row, planned.nominal, now);
        match &planned.verdict {
            Verdict::Miss(reason) => {
                (slot.status, slot.reason) = (SlotStatus::Missed, reason.clone());
            }
            Verdict::Compress(into) => {
                slot.status = SlotStatus::Compressed;
                slot.reason = format!("covered by the slot of {}", into.iso());
                slot.into_at = Some(*into);
            }
            Verdict::Fire(window) => {
                slot.window_from = window.map(|(first, _)| first);
                match self.fire(planner, planned.nominal, *window, &SCHEDULED) {
                    Ok(fire) => {
                        let grace = planner.calendar.schedule().grace_seconds;
                        let is_late = planned.due.after(Duration::from_secs(grace.into())) < now;
                        let makes_up = is_late || window.is_some();
                        return op::NewSlot { slot, fire: Some(Box::new(fire)), makes_up };
                    }
                    Err(error) => {
                        (slot.status, slot.reason) = (SlotStatus::Missed, error.to_string());
                    }
                }
            }
        }
        op::NewSlot { slot, fire: None, makes_up: false }
    }

    /// The command of a slot: everything in it follows from the nominal time, but who asks for it.
    /// Policies judge that principal, and the run's context keeps it.
    pub(crate) fn fire(
        &self,
        planner: &Planner,
        nominal: Timestamp,
        window: Option<(Timestamp, Timestamp)>,
        origin: &Origin<'_>,
    ) -> Result<op::Submit> {
        let trigger = &planner.trigger;
        let contract = self.contracts.of(trigger)?;
        let payload = trigger.payload_at(nominal, window)?;
        self.contracts.check(&contract.name, &payload)?;
        let mut request = Request::new(origin.requested_by, origin.ingress);
        request.run_id = Some(slot_run_id(&trigger.trigger_id, nominal));
        request.scheduled_for = Some(nominal);
        request.window = window;
        request.priority = origin.priority;
        let governance = self.governance.as_deref();
        ingress::submit_op(&self.client, governance, contract, &payload, request)
    }

    /// A trigger's definition, read once per revision.
    pub(crate) fn planner(&self, row: &op::TriggerRow) -> Result<Arc<Planner>> {
        let mut known = self.known.lock().expect("invariant: not poisoned");
        if let Some((revision, planner)) = known.get(&row.trigger_id)
            && *revision == row.revision
        {
            return Ok(planner.clone());
        }
        let planner = Arc::new(Planner::read(row)?);
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(row.trigger_id.clone(), (row.revision, planner.clone()));
        Ok(planner)
    }
}

impl Planner {
    pub(crate) fn read(row: &op::TriggerRow) -> Result<Self> {
        let trigger: Trigger = serde_json::from_str(&row.spec).map_err(|e| {
            let text = format!("the definition of trigger \"{}\": {e}", row.trigger_id);
            Error::invalid("SF-0606", text)
        })?;
        let When::Cron(schedule) = &trigger.when else {
            let text = format!("trigger \"{}\" has no schedule", row.trigger_id);
            return Err(Error::invalid("SF-0607", text));
        };
        let calendar = Calendar::new(schedule)?;
        Ok(Self { trigger, calendar, told: AtomicBool::new(false) })
    }

    /// True once: a complaint at every tick would drown the others.
    fn complains(&self) -> bool {
        !self.told.swap(true, Ordering::Relaxed)
    }

    /// When the first slot after a moment is due.
    pub(crate) fn due_after(&self, moment: Timestamp) -> Timestamp {
        let next = self.calendar.after(moment);
        next.map_or(Timestamp::NEVER, |at| self.calendar.due(&self.trigger.trigger_id, at))
    }
}

/// A slot that fires.
pub(crate) fn slot_row(row: &op::TriggerRow, nominal: Timestamp, now: Timestamp) -> op::SlotRow {
    op::SlotRow {
        nominal_at: nominal,
        status: SlotStatus::Fired,
        reason: String::new(),
        lag_us: steadfast_core::time::micros(nominal.until(now)),
        command_id: String::new(),
        into_at: None,
        window_from: None,
        revision: row.revision,
        decided_at: now,
    }
}

fn progress(row: &op::TriggerRow) -> Result<Progress> {
    let gap = match row.gap.as_str() {
        "" => None,
        text => Some(serde_json::from_str::<Gap>(text).map_err(|e| {
            Error::invalid("SF-0606", format!("the gap of trigger \"{}\": {e}", row.trigger_id))
        })?),
    };
    let absence = (row.absent_until > row.absent_from).then(|| Absence {
        from: row.absent_from,
        until: row.absent_until,
        reason: row.reason.clone(),
    });
    Ok(Progress { cursor: row.cursor_at, gap, absence, last: false })
}

/// A trigger by its id; an error if there is none.
pub(crate) async fn find(client: &Client, trigger_id: &str) -> Result<op::TriggerRow> {
    let workspace = client.workspace().to_owned();
    let list = op::ListTriggers::one(workspace, trigger_id);
    client.ask(list).await?.0.pop().ok_or_else(|| {
        let text = format!("there is no trigger \"{trigger_id}\"");
        Error::new(steadfast_core::ErrorClass::NotFound, "SF-0608", text)
    })
}

fn log(trigger_id: &str, slots: &[op::SlotRow]) {
    if !tracing::enabled!(tracing::Level::WARN) {
        return;
    }
    for slot in slots {
        let (nominal, status) = (slot.nominal_at.iso(), slot.status.as_str());
        match slot.status {
            SlotStatus::Missed => {
                tracing::warn!(trigger_id, nominal, reason = slot.reason, "schedule.missed");
            }
            _ => tracing::info!(trigger_id, nominal, status, command_id = slot.command_id, "slot"),
        }
    }
}
