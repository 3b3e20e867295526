//! Triggers and their slots: a slot is decided once, by whoever has read the trigger's last
//! version.

use steadfast_core::schedule::{Overlap, SlotEvent, SlotStatus};
use steadfast_core::{Timestamp, limits};
use steadfast_store::op::{
    Activities, Advance, Advanced, Backfill, Backfilled, CommandRef, DueTriggers, ListActivities,
    ListSlots, ListTriggers, LogActivity, Logged, NewSlot, Parent, PutTrigger, SlotRow, Slots,
    Submit, Submitted, TaskRow, TriggerPut, TriggerRow, Triggers,
};

use super::{Model, key};

impl Model {
    pub(super) fn put_trigger(&mut self, op: &PutTrigger) -> TriggerPut {
        let at = key(&op.workspace, &op.trigger.trigger_id);
        let mut wanted = op.trigger.clone();
        wanted.version += 1;
        match self.triggers.get(&at) {
            None if op.trigger.version == 0 => {}
            None => return TriggerPut::Stale,
            Some(now) => {
                wanted.created_at = now.created_at;
                if *now == wanted {
                    return TriggerPut::Done;
                }
                if op.trigger.version == 0 || now.version != op.trigger.version {
                    return TriggerPut::Stale;
                }
            }
        }
        self.triggers.put(at, wanted);
        TriggerPut::Done
    }

    pub(super) fn advance(&mut self, op: &Advance) -> Advanced {
        let at = key(&op.workspace, &op.trigger_id);
        if self.triggers.get(&at).is_none_or(|trigger| trigger.version != op.version) {
            return Advanced::Stale;
        }
        self.triggers.edit(&at, |trigger| {
            trigger.cursor_at = op.cursor_at;
            trigger.gap.clone_from(&op.gap);
            trigger.due_at = op.due_at;
            trigger.version += 1;
            trigger.updated_at = op.now;
        });
        let mut done = Vec::new();
        for new in &op.slots {
            let slot = self.decide(op, new);
            let new = self.write_slot(&op.workspace, &op.trigger_id, &slot);
            if new && slot.status == SlotStatus::Missed {
                self.tell_missed(&op.workspace, &op.trigger_id, &slot);
            }
            done.push(slot);
        }
        Advanced::Done(done)
    }

    fn decide(&mut self, op: &Advance, new: &NewSlot) -> SlotRow {
        let mut slot = new.slot.clone();
        let Some(fire) = &new.fire else { return slot };
        let before = match op.overlap {
            Overlap::Allow => Vec::new(),
            Overlap::Skip | Overlap::Wait => self.still_active(op, slot.nominal_at),
        };
        let submitted = match before.first() {
            None => self.submit(fire),
            Some(active) if op.overlap == Overlap::Skip && !new.makes_up => {
                slot.status = SlotStatus::Skipped;
                slot.reason = format!("the command of an earlier slot is not over: {active}");
                return slot;
            }
            Some(_) => {
                let earlier = |command_id| Parent { command_id, required: None, propagate: false };
                let after = before.into_iter().map(earlier).collect();
                self.submit(&Submit { after, ..(**fire).clone() })
            }
        };
        note(&mut slot, fire, &submitted);
        slot
    }

    fn still_active(&self, op: &Advance, nominal: Timestamp) -> Vec<String> {
        let of = |((ws, id, at), slot): &(&(String, String, i64), &SlotRow)| {
            *ws == op.workspace
                && *id == op.trigger_id
                && *at < nominal.as_micros()
                && matches!(slot.status, SlotStatus::Fired | SlotStatus::Collapsed)
        };
        let last = self.trigger_slots.iter().filter(of).map(|(_, slot)| slot).collect::<Vec<_>>();
        let last = last.into_iter().rev().take(limits::OVERLAP_SLOTS);
        let mut active: Vec<_> = last
            .filter(|slot| !self.is_over(&op.workspace, &slot.command_id))
            .filter(|slot| !self.is_background(&op.workspace, &slot.command_id))
            .map(|slot| slot.command_id.clone())
            .collect();
        active.dedup();
        active
    }

    /// Whether a command's run stands behind all others.
    fn is_background(&self, ws: &str, command_id: &str) -> bool {
        let command = self.commands.get(&key(ws, command_id));
        let run = command.and_then(|command| self.run(ws, &command.row.workflow_id));
        run.is_some_and(|run| run.priority >= limits::BACKGROUND_PRIORITY)
    }

    /// Whether it is new.
    fn write_slot(&mut self, ws: &str, trigger_id: &str, slot: &SlotRow) -> bool {
        let at = (ws.to_owned(), trigger_id.to_owned(), slot.nominal_at.as_micros());
        let new = !self.trigger_slots.has(&at);
        if new {
            self.trigger_slots.put(at, slot.clone());
        }
        new
    }

    pub(super) fn backfill(&mut self, op: &Backfill) -> Backfilled {
        let ws = op.fire.start.workspace.clone();
        let at = (ws.clone(), op.trigger_id.clone(), op.slot.nominal_at.as_micros());
        let before = self.trigger_slots.get(&at).map(|slot| slot.status);
        let submitted = self.submit(&op.fire);
        let mut slot = op.slot.clone();
        note(&mut slot, &op.fire, &submitted);
        let event = match &submitted {
            Submitted::New(..) => SlotEvent::Backfill,
            Submitted::Existing(..) => SlotEvent::Collapse,
            _ => return Backfilled { submitted, status: before },
        };
        let Some(before) = before else {
            self.write_slot(&ws, &op.trigger_id, &slot);
            return Backfilled { submitted, status: Some(slot.status) };
        };
        let Ok(arrow) = before.on(event) else {
            return Backfilled { submitted, status: Some(before) };
        };
        self.trigger_slots.edit(&at, |row| {
            row.status = arrow.to();
            row.reason = slot.reason;
            row.command_id = slot.command_id;
            row.decided_at = slot.decided_at;
        });
        Backfilled { submitted, status: Some(arrow.to()) }
    }

    pub(super) fn list_triggers(&self, op: &ListTriggers) -> Triggers {
        let mine = self.triggers.iter().filter(|((ws, _), _)| *ws == op.workspace);
        let wanted = |t: &&TriggerRow| {
            op.trigger_id.as_ref().is_none_or(|id| t.trigger_id == *id)
                && op.kind.as_ref().is_none_or(|kind| t.kind == *kind)
        };
        Triggers(mine.map(|(_, trigger)| trigger).filter(wanted).cloned().collect())
    }

    pub(super) fn due_triggers(&self, op: &DueTriggers) -> Triggers {
        let mine = self.triggers.iter().filter(|((ws, _), _)| *ws == op.workspace);
        let mut due: Vec<_> =
            mine.map(|(_, trigger)| trigger).filter(|t| t.due_at <= op.now).cloned().collect();
        due.sort_by_key(|t| (t.due_at, t.trigger_id.clone()));
        due.retain(|t| {
            op.after.as_ref().is_none_or(|after| (t.due_at, &t.trigger_id) > (after.0, &after.1))
        });
        due.truncate(op.limit);
        Triggers(due)
    }

    pub(super) fn list_slots(&self, op: &ListSlots) -> Slots {
        let of = |at: Timestamp| (op.workspace.clone(), op.trigger_id.clone(), at.as_micros());
        if op.from > op.until {
            return Slots(Vec::new());
        }
        let found: Vec<_> =
            self.trigger_slots.range(of(op.from)..=of(op.until)).map(|(_, s)| s.clone()).collect();
        let limit = op.limit;
        let skip = if op.latest { found.len().saturating_sub(limit) } else { 0 };
        Slots(found.into_iter().skip(skip).take(limit).collect())
    }

    pub(super) fn log_activity(&mut self, op: &LogActivity) -> Logged {
        let mut new = 0;
        let at = key(&op.workspace, &op.run.run_id);
        let taken = self
            .activities
            .iter()
            .any(|((ws, _), run)| *ws == op.workspace && run.workflow_id == op.run.workflow_id);
        if !taken && !self.activities.has(&at) {
            let mut run = op.run.clone();
            let of_run = CommandRef::Run(run.workflow_id.clone());
            if let Some(command) = self.find_command(&op.workspace, &of_run) {
                run.fired_at = command.created_at;
            }
            self.activities.put(at, run);
            new += 1;
        }
        for task in &op.tasks {
            let at = key(&op.workspace, &task.id);
            if !self.tasks.has(&at) {
                self.tasks.put(at, task.clone());
                new += 1;
            }
        }
        Logged(new)
    }

    pub(super) fn list_activities(&self, op: &ListActivities) -> Activities {
        let mine = self.activities.iter().filter(|((ws, _), _)| *ws == op.workspace);
        let mut runs: Vec<_> =
            mine.map(|(_, run)| run).filter(|run| run.activity_id == op.activity_id).collect();
        runs.sort_by_key(|run| (run.started_at, run.run_id.clone()));
        runs.truncate(op.limit);
        let tasks_of = |run_id: &str| {
            let mine = self.tasks.iter().filter(|((ws, _), _)| *ws == op.workspace);
            let mine = mine.map(|(_, task)| task).filter(|task| task.run_id == run_id);
            mine.map(|task| TaskRow {
                status: self.run(&op.workspace, &task.id).map(|run| run.status),
                ..task.clone()
            })
            .collect()
        };
        Activities(runs.into_iter().map(|run| (run.clone(), tasks_of(&run.run_id))).collect())
    }
}

/// What a submission makes of its slot.
fn note(slot: &mut SlotRow, fire: &Submit, submitted: &Submitted) {
    let (status, reason) = match submitted {
        Submitted::New(..) => {
            slot.command_id.clone_from(&fire.command_id);
            return;
        }
        Submitted::Existing(command_id, _) => {
            slot.command_id.clone_from(command_id);
            (SlotStatus::Collapsed, "the command was there already".to_owned())
        }
        Submitted::Conflict(command_id, field) => (
            SlotStatus::Missed,
            format!("command {command_id} has the same key and another {field} [SF-0501]"),
        ),
        Submitted::NoQueue => {
            (SlotStatus::Missed, format!("there is no queue \"{}\" [SF-0112]", fire.start.queue))
        }
        Submitted::NoParent(parent) => {
            (SlotStatus::Missed, format!("there is no command \"{parent}\" [SF-0506]"))
        }
        Submitted::RunTaken => (
            SlotStatus::Missed,
            format!("run \"{}\" belongs to no command [SF-0508]", fire.start.run_id),
        ),
    };
    (slot.status, slot.reason) = (status, reason);
}
