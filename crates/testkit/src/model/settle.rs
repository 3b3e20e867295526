//! Commands whose time is up: those that expired, and those whose worker has let go.

use steadfast_core::command::Undoing;
use steadfast_core::{CommandEvent, CommandStatus, Error, Timestamp, limits};
use steadfast_store::op::{CommandRow, Left, SettleCommands, Settled};

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
        due.truncate(op.limit.min(limits::PURGE_BATCH));
        let due = due.into_iter().map(|(_, id)| id);
        Settled(due.filter(|id| self.settle_one(op, id)).collect())
    }

    fn left_by(&mut self, ws: &str, left: &Left, now: Timestamp) -> bool {
        if self.run(ws, &left.run_id).is_some_and(|run| run.epoch != left.epoch + 1) {
            return false;
        }
        let at = key(ws, &left.command_id);
        let Some(row) = self.commands.get(&at).map(|command| command.row.clone()) else {
            return false;
        };
        if row.status != CommandStatus::Cancelling || row.workflow_id != left.run_id {
            return false;
        }
        if let Some(until) = left.busy_until {
            self.commands.edit(&at, |command| command.due_at = until);
            return false;
        }
        self.end_cancelling(ws, &row, "system:worker", now);
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
