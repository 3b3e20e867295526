//! Commands whose time is up: those that expired, and those whose worker has let go.

use steadfast_core::command::Undoing;
use steadfast_core::{
    CommandEvent, CommandStatus, EffectEvent, EffectStatus, Error, RunStatus, Timestamp,
};
use steadfast_store::op::{
    CommandRow, EffectChange, EffectRow, Govern, Left, SettleCommands, Settled, contradiction,
};

use super::command::{Step, expiry};
use super::{Model, key};

impl Model {
    pub(super) fn settle(&mut self, op: &SettleCommands) -> Settled {
        let ws = op.workspace.as_str();
        if let Some(left) = &op.left {
            let settled = self.left_by(ws, left, op.now);
            return Settled(settled.then(|| left.command_id.clone()).into_iter().collect());
        }
        let mut due: Vec<_> = self
            .commands_of(ws)
            .filter(|command| command.due_at <= op.now)
            .map(|command| (command.due_at, command.row.command_id.clone()))
            .collect();
        due.sort();
        due.truncate(op.limit);
        let due = due.into_iter().map(|(_, id)| id);
        Settled(due.filter(|id| self.settle_one(op, id)).collect())
    }

    fn left_by(&mut self, ws: &str, left: &Left, now: Timestamp) -> bool {
        let run = self.run(ws, &left.lease.run_id).cloned();
        if run.as_ref().is_some_and(|run| run.epoch != left.lease.epoch + 1) {
            return false;
        }
        let at = key(ws, &left.command_id);
        let Some(row) = self.commands.get(&at).map(|command| command.row.clone()) else {
            return false;
        };
        let stopped = [RunStatus::Cancelled, RunStatus::RetriesExceeded];
        if run.is_some_and(|run| stopped.contains(&run.status)) {
            self.came_to(ws, left, now);
        }
        if row.status != CommandStatus::Cancelling || row.workflow_id != left.lease.run_id {
            return false;
        }
        if let Some(until) = left.busy_until {
            self.commands.edit(&at, |command| command.due_at = until);
            return false;
        }
        self.end_cancelling(ws, &row, "system:worker", now);
        true
    }

    /// Notes what became of effects that were under way in a stopped run.
    fn came_to(&mut self, ws: &str, left: &Left, now: Timestamp) {
        let undoing = self.undoing(ws, &left.command_id);
        for what in &left.outcomes {
            let Some(EffectChange::Move { effect_id, event, .. }) = &what.effect else { continue };
            if self.contradicts(ws, what, effect_id, *event) {
                continue;
            }
            self.govern(&left.lease, what).expect("invariant: a move is not refused");
            let row = self.effects.get(&key(ws, effect_id)).cloned();
            let Some((run_id, row)) = undoing.as_ref().zip(row) else { continue };
            let truth = match row.status {
                EffectStatus::Succeeded => "done",
                EffectStatus::Failed => "not_done",
                _ => continue,
            };
            self.tell_truth(ws, run_id, effect_id, truth, row.result.as_ref(), now);
        }
        if left.busy_until.is_some() {
            let busy = |effect: &EffectRow| {
                effect.command_id == left.command_id
                    && effect.run_id == left.lease.run_id
                    && effect.status == EffectStatus::Executing
            };
            let rows = self.effects_of(ws).filter(|effect| busy(effect));
            let ids: Vec<String> = rows.map(|effect| effect.effect_id.clone()).collect();
            for id in ids {
                self.effects.edit(&key(ws, &id), |effect| effect.updated_at = now);
            }
        }
    }

    /// Whether the ledger has come to another end than the worker; then people are told.
    fn contradicts(
        &mut self,
        ws: &str,
        what: &Govern,
        effect_id: &str,
        event: EffectEvent,
    ) -> bool {
        let Some(known) = self.effects.get(&key(ws, effect_id)).cloned() else { return false };
        let told = match event {
            EffectEvent::Succeed => EffectStatus::Succeeded,
            EffectEvent::Fail => EffectStatus::Failed,
            EffectEvent::Begin | EffectEvent::Lose => return false,
        };
        let id = known.command_id.as_str();
        let command = self.commands.get(&key(ws, id)).cloned();
        let Some(command) = command.filter(|_| known.status.is_terminal() && known.status != told)
        else {
            return false;
        };
        let event_id = format!("evt_{id}_e{effect_id}x");
        let (payload, kind) = (contradiction(&known, told), "effect.contradicted");
        let context = &command.row.context;
        self.audit(ws, id, context, event_id, kind, &payload, &what.actor, what.now);
        true
    }

    fn end_cancelling(&mut self, ws: &str, row: &CommandRow, actor: &str, now: Timestamp) {
        let back = super::saga::takes_back(row);
        if back && self.undo(ws, &row.command_id, Undoing::Cancel, now) {
            return;
        }
        let reason = row.error.clone().unwrap_or_else(expiry);
        self.end_waiting(ws, &row.command_id, CommandEvent::Cancel, &reason, actor, now);
    }

    fn end_waiting(
        &mut self,
        ws: &str,
        id: &str,
        event: CommandEvent,
        reason: &Error,
        actor: &str,
        now: Timestamp,
    ) {
        self.step(ws, id, &Step { error: Some(reason), ..Step::new(event, actor, now) });
        self.release_if_over(ws, id, now);
    }

    fn settle_one(&mut self, op: &SettleCommands, id: &str) -> bool {
        let (ws, actor, now) = (op.workspace.as_str(), "system:expiry", op.now);
        let Some(command) = self.commands.get(&key(ws, id)).cloned() else { return false };
        if command.due_at > now {
            return false;
        }
        match command.row.status {
            CommandStatus::Cancelling => self.end_cancelling(ws, &command.row, actor, now),
            CommandStatus::WaitingForInput | CommandStatus::WaitingForApproval => {
                self.end_waiting(ws, id, CommandEvent::Expire, &expiry(), actor, now);
                self.cancel_approvals(ws, id, actor, now);
            }
            CommandStatus::Queued => {
                self.cancel_run(ws, &command.row.workflow_id, &expiry(), actor, now);
            }
            CommandStatus::Validated | CommandStatus::Approved => {
                self.end_waiting(ws, id, CommandEvent::Cancel, &expiry(), actor, now);
            }
            _ => return false,
        }
        true
    }
}
