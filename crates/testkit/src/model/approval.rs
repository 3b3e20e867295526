//! Questions to people.
//!
//! Invariants: votes count while the question is pending and in time; what waits goes on with the
//! answer.

use steadfast_core::approval::Vote;
use steadfast_core::command::Context;
use steadfast_core::{
    ApprovalEvent, ApprovalStatus, CommandEvent, CommandStatus, Error, ErrorClass, Timestamp, json,
};
use steadfast_store::op::{
    ApprovalRow, Approvals, Decide, Decided, EventRow, Hold, ListApprovals, NewApproval,
    SettleApprovals, SettledApprovals, Signal, Supplied, Supply, Tell, ToldOf, VoteRow,
    supplied_between,
};

use super::command::Step;
use super::{Model, key};

/// A question, and when it is looked at next.
#[derive(Debug, Clone)]
pub(super) struct Approval {
    row: ApprovalRow,
    due_at: Timestamp,
}

impl Model {
    /// Asks, unless it was asked before.
    pub(super) fn ask(
        &mut self,
        ws: &str,
        command_id: &str,
        run_id: &str,
        asked: &NewApproval,
        now: Timestamp,
    ) {
        let at = key(ws, &asked.approval_id);
        if self.approvals.has(&at) {
            return;
        }
        let row = ApprovalRow {
            asked: asked.clone(),
            command_id: command_id.to_owned(),
            run_id: run_id.to_owned(),
            status: ApprovalStatus::Pending,
            created_at: now,
            decided_at: None,
            votes: Vec::new(),
        };
        let due_at = asked.escalate_at.map_or(asked.expires_at, |at| at.min(asked.expires_at));
        self.approvals.put(at, Approval { row: row.clone(), due_at });
        if run_id.is_empty() {
            let (told, by) = (asked.told(), &asked.requested_by);
            self.tell_of(ws, &row, "requested", "approval.requested", &told, by, now);
        }
    }

    pub(super) fn answer(&mut self, op: &Decide) -> Decided {
        let (ws, at) = (op.workspace.as_str(), key(&op.workspace, &op.approval_id));
        let Some(row) = self.approvals.get(&at).map(|approval| approval.row.clone()) else {
            return Decided::NotFound;
        };
        if row.votes.iter().any(|vote| vote.approver == op.approver && vote.vote == op.vote) {
            return Decided::Again(row.status);
        }
        if row.status != ApprovalStatus::Pending || row.asked.expires_at <= op.now {
            return Decided::Late(row.status);
        }
        let own = op.approver == row.asked.requested_by
            || self.has_supplied(ws, &row.command_id, &op.approver);
        if op.vote == Vote::Approved && own {
            return Decided::Own;
        }
        if !row.may(&op.approver) {
            return Decided::NotAsked;
        }
        self.approvals.edit(&at, |approval| {
            approval.row.votes.retain(|vote| vote.approver != op.approver);
            approval.row.votes.push(VoteRow {
                approver: op.approver.clone(),
                vote: op.vote,
                reason: op.reason.clone(),
                at: op.now,
            });
            approval.row.votes.sort_by_key(|vote| (vote.at, vote.approver.clone()));
        });
        let said = serde_json::json!({
            "approval_id": op.approval_id, "vote": op.vote.as_str(), "reason": op.reason,
        });
        let mark = format!("v{} {}", op.approver, op.vote.as_str());
        self.tell_of(ws, &row, &mark, "approval.voted", &said, &op.approver, op.now);
        let row = self.approvals.get(&at).map(|a| a.row.clone()).expect("invariant: it is there");
        let missing = row.asked.approvers - row.yes();
        let event = match op.vote {
            Vote::Approved if missing <= 0 => ApprovalEvent::Approve,
            Vote::Approved => return Decided::Counted(missing),
            Vote::Rejected | Vote::RequestChanges => ApprovalEvent::Reject,
        };
        let reason = format!("{} by {}: {}", op.vote.as_str(), op.approver, op.reason);
        self.close(ws, &row, event, &reason, &op.approver, op.now);
        Decided::Settled(row.status.on(event).expect("invariant: it is pending").to())
    }

    fn has_supplied(&self, ws: &str, command_id: &str, actor: &str) -> bool {
        let (first, last) = supplied_between(command_id);
        let theirs = self.events.iter().filter(|((of, id), event)| {
            of == ws && *id >= first && *id < last && event.actor == actor
        });
        !command_id.is_empty() && theirs.count() > 0
    }

    fn close(
        &mut self,
        ws: &str,
        row: &ApprovalRow,
        event: ApprovalEvent,
        reason: &str,
        actor: &str,
        now: Timestamp,
    ) {
        let Ok(arrow) = row.status.on(event) else { return };
        let to = arrow.to();
        self.approvals.edit(&key(ws, &row.asked.approval_id), |approval| {
            approval.row.status = to;
            approval.row.decided_at = Some(now);
            approval.due_at = Timestamp::NEVER;
        });
        let payload = serde_json::json!({
            "approval_id": row.asked.approval_id, "action": row.asked.action,
            "digest": row.asked.digest, "by": row.approved_by(), "reason": reason,
        });
        self.tell_of(ws, row, to.as_str(), &format!("approval.{to}"), &payload, actor, now);
        if row.run_id.is_empty() {
            return self.begin_or_end(ws, row, to, reason, actor, now);
        }
        if to != ApprovalStatus::Cancelled {
            let answer = serde_json::json!({
                "status": to.as_str(), "by": row.approved_by(), "reason": reason,
            });
            let told = Signal {
                workspace: ws.to_owned(),
                run_id: row.run_id.clone(),
                name: format!("approval:{}", row.asked.approval_id),
                signal_id: format!("approval:{}", row.asked.approval_id),
                payload: answer.to_string(),
                now,
            };
            self.signal(&told);
        }
    }

    fn begin_or_end(
        &mut self,
        ws: &str,
        row: &ApprovalRow,
        to: ApprovalStatus,
        reason: &str,
        actor: &str,
        now: Timestamp,
    ) {
        let Some(command) = self.commands.get(&key(ws, &row.command_id)).cloned() else { return };
        if command.row.status != CommandStatus::WaitingForApproval {
            return;
        }
        let text = format!("approval \"{}\" is {to}: {reason}", row.asked.approval_id);
        let refusal = Error::new(ErrorClass::ApprovalRejected, "SF-0813", text);
        let (event, error) = match to {
            ApprovalStatus::Approved => (CommandEvent::Approve, None),
            ApprovalStatus::Expired => (CommandEvent::Expire, Some(&refusal)),
            ApprovalStatus::Rejected => (CommandEvent::Fail, Some(&refusal)),
            ApprovalStatus::Pending | ApprovalStatus::Cancelled => return,
        };
        let until = Some(command.due_at).filter(|due| *due != Timestamp::NEVER);
        self.step(ws, &row.command_id, &Step { error, until, ..Step::new(event, actor, now) });
        let over = match event {
            CommandEvent::Approve => self.release_command(ws, &row.command_id, now),
            _ => true,
        };
        if over {
            self.release_commands(ws, &row.command_id, now);
        }
    }

    /// What no other operation writes, for auditors.
    pub(super) fn tell_of_none(&mut self, op: &Tell) -> ToldOf {
        let new = !self.events.has(&key(&op.workspace, &op.event_id));
        let event = EventRow {
            event_id: op.event_id.clone(),
            command_id: op.command_id.clone(),
            purpose: "audit".to_owned(),
            event_type: op.event_type.clone(),
            payload: op.payload.clone(),
            actor: op.actor.clone(),
            trace_id: op.trace_id.clone(),
            created_at: op.now,
        };
        self.put_event(&op.workspace, event);
        ToldOf(new)
    }

    /// What a command's payload lacked is given.
    pub(super) fn supply(&mut self, op: &Supply) -> Supplied {
        let (ws, id) = (op.workspace.as_str(), op.command_id.as_str());
        let Some(command) = self.commands.get(&key(ws, id)).cloned() else {
            return Supplied::NotFound;
        };
        if let Some(told) = self.events.get(&key(ws, &op.told_as()))
            && told.actor == op.actor
            && serde_json::from_str::<serde_json::Value>(&told.payload).unwrap() == op.told()
        {
            return Supplied::Done(command.row.status);
        }
        if command.row.status != CommandStatus::WaitingForInput {
            return Supplied::NotWaiting(command.row.status);
        }
        self.commands.edit(&key(ws, id), |command| {
            command.row.payload.clone_from(&op.payload);
            command.start.input.clone_from(&op.payload);
        });
        let until = Some(command.due_at).filter(|due| *due != Timestamp::NEVER);
        let by = |event| Step { until, ..Step::new(event, &op.actor, op.now) };
        self.step(ws, id, &by(CommandEvent::Validate));
        let (context, kind) = (&command.row.context, "command.supplied");
        self.audit(ws, id, context, op.told_as(), kind, &op.told(), &op.actor, op.now);
        if let Some(judgement) = &op.judgement {
            let payload = serde_json::from_str(judgement).unwrap_or_default();
            let event_id = format!("evt_{id}_{:06}p", command.events);
            let (context, kind) = (&command.row.context, "policy.evaluated");
            self.audit(ws, id, context, event_id, kind, &payload, &op.actor, op.now);
        }
        let over = match &op.hold {
            None => self.release_command(ws, id, op.now),
            Some(Hold::Denied(error)) => {
                let (event, error) = (CommandEvent::Fail, Some(error));
                self.step(ws, id, &Step { event, error, until: None, ..by(event) })
            }
            Some(Hold::Approval(asked)) => {
                self.step(ws, id, &by(CommandEvent::AskApproval));
                self.ask(ws, id, "", asked, op.now);
                false
            }
            Some(Hold::Input(_)) => {
                self.step(ws, id, &by(CommandEvent::AskInput));
                false
            }
        };
        if over {
            self.release_commands(ws, id, op.now);
        }
        self.status_of(ws, id).map_or(Supplied::NotFound, Supplied::Done)
    }

    #[allow(clippy::too_many_arguments, reason = "each is a fact about one event")]
    fn tell_of(
        &mut self,
        ws: &str,
        row: &ApprovalRow,
        mark: &str,
        event_type: &str,
        payload: &serde_json::Value,
        actor: &str,
        now: Timestamp,
    ) {
        let mark = json::fingerprint(mark);
        let event_id = format!("evt_{}_q{}{mark}", row.command_id, row.asked.approval_id);
        let command = self.commands.get(&key(ws, &row.command_id)).map(|c| c.row.clone());
        let context = command.map_or_else(|| "{}".to_owned(), |command| command.context);
        self.audit(ws, &row.command_id, &context, event_id, event_type, payload, actor, now);
    }

    /// An audit event of a command.
    #[allow(clippy::too_many_arguments, reason = "the columns of an event")]
    pub(super) fn audit(
        &mut self,
        ws: &str,
        command_id: &str,
        context: &str,
        event_id: String,
        event_type: &str,
        payload: &serde_json::Value,
        actor: &str,
        now: Timestamp,
    ) {
        let trace_id = Context::parse(context).map(|c| c.trace_id).unwrap_or_default();
        let event = EventRow {
            event_id,
            command_id: command_id.to_owned(),
            purpose: "audit".to_owned(),
            event_type: event_type.to_owned(),
            payload: payload.to_string(),
            actor: actor.to_owned(),
            trace_id,
            created_at: now,
        };
        self.put_event(ws, event);
    }

    pub(super) fn cancel_approvals(
        &mut self,
        ws: &str,
        command_id: &str,
        actor: &str,
        now: Timestamp,
    ) {
        let pending: Vec<ApprovalRow> = self
            .approvals_of(ws)
            .filter(|row| row.command_id == command_id && row.status == ApprovalStatus::Pending)
            .collect();
        for mut row in pending {
            // Who said yes so far is of no interest any more.
            row.votes.clear();
            let reason = "what it was for was stopped";
            self.close(ws, &row, ApprovalEvent::Cancel, reason, actor, now);
        }
    }

    fn approvals_of(&self, ws: &str) -> impl Iterator<Item = ApprovalRow> {
        let all = self.approvals.iter().filter(move |((of, _), _)| of == ws);
        all.map(|(_, approval)| approval.row.clone()).collect::<Vec<_>>().into_iter()
    }

    pub(super) fn settle_approvals(&mut self, op: &SettleApprovals) -> SettledApprovals {
        let ws = op.workspace.as_str();
        let mut due: Vec<(Timestamp, String)> = self
            .approvals
            .iter()
            .filter(|((of, _), approval)| of == ws && approval.due_at <= op.now)
            .map(|((_, id), approval)| (approval.due_at, id.clone()))
            .collect();
        due.sort();
        due.truncate(op.limit);
        let mut settled = Vec::new();
        for (_, id) in due {
            let at = key(ws, &id);
            let Some(row) = self.approvals.get(&at).map(|approval| approval.row.clone()) else {
                continue;
            };
            if row.status != ApprovalStatus::Pending {
                continue;
            }
            if row.asked.expires_at <= op.now {
                let reason = "nobody said enough in time";
                let expire = ApprovalEvent::Expire;
                self.close(ws, &row, expire, reason, "system:expiry", op.now);
            } else {
                let payload = serde_json::json!({
                    "approval_id": id, "action": row.asked.action,
                    "expires_at": row.asked.expires_at.iso(),
                });
                let actor = "system:escalation";
                let kind = "approval.escalated";
                self.tell_of(ws, &row, "escalated", kind, &payload, actor, op.now);
                self.approvals.edit(&at, |approval| approval.due_at = row.asked.expires_at);
            }
            settled.push(id);
        }
        SettledApprovals(settled)
    }

    pub(super) fn list_approvals(&self, op: &ListApprovals) -> Approvals {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|w| w == value);
        let mut found: Vec<ApprovalRow> = self
            .approvals_of(&op.workspace)
            .filter(|row| is(&op.approval_id, &row.asked.approval_id))
            .filter(|row| is(&op.command_id, &row.command_id))
            .filter(|row| op.status.is_none_or(|status| status == row.status))
            .collect();
        found.truncate(op.limit);
        Approvals(found)
    }
}
