//! Questions to people: asked once, waited for without a worker, read from the store.
//!
//! Invariants: a question's id follows from the call's place, so that a restart asks the same one;
//! a yes holds for exactly what was shown.

use steadfast_core::approval::{ApprovalRequest, Vote};
use steadfast_core::driver::{Guard, Kind, RecordState};
use steadfast_core::gate::effect_seen;
use steadfast_core::policy::Asks;
use steadfast_core::{ApprovalStatus, Error, ErrorClass, Timestamp, json};
use steadfast_store::op::{self, EffectChange, Entry, Govern, NewApproval, NewEffect, With};

use super::govern::{begun, refused};
use super::{Execution, Step, stopped};
use crate::call::{Asking, Call, Ended};
use crate::waits::Wait;

impl Execution {
    /// The question whether this may be done.
    pub(super) fn question(&self, id: u64, call: &Call, guard: &Guard, asks: Asks) -> NewApproval {
        let (action, payload, digest) = match (&guard.effect, &guard.calling) {
            (Some(spec), calling) => {
                // Bound to what is really sent, too, where a connector sends it.
                let sent = calling.as_ref().map_or_else(String::new, |calling| {
                    format!("{}\n{}\n{}", calling.connector, calling.operation, calling.input)
                });
                let digest = json::digest(format!("{}\n{sent}", spec.digest()));
                let shown = calling.as_ref().map(|c| effect_seen(&spec.payload, &c.input));
                let shown = shown.map_or_else(|| spec.payload.clone(), |seen| seen.to_string());
                (spec.effect_type.clone(), shown, digest)
            }
            (None, Some(calling)) => {
                let action = format!("{} {}", calling.connector, calling.operation);
                let digest = json::digest(format!("{action}\n{}", calling.input));
                (action, calling.input.clone(), digest)
            }
            (None, None) => (call.name.clone(), "null".to_owned(), json::digest(&call.name)),
        };
        let request = asks.request(&call.name, action);
        NewApproval { payload, digest, ..self.asking(id, &request) }
    }

    fn asking(&self, id: u64, request: &ApprovalRequest) -> NewApproval {
        let now = self.hub.now();
        NewApproval {
            approval_id: format!("apr_{}", self.place(id)),
            approval_type: request.approval_type.clone(),
            action: request.action.clone(),
            reason: request.reason.clone(),
            payload: request.payload.to_string(),
            digest: request.digest(),
            requested_by: self.context.requested_by.clone(),
            approvers: i64::from(request.approvers),
            among: request.among.clone(),
            expires_at: now.after(request.ttl),
            escalate_at: request.escalate_after.map(|d| now.after(d)),
        }
    }

    /// What people have said to a question, if it was asked before.
    pub(super) async fn known_answer(
        &mut self,
        asked: &NewApproval,
    ) -> Step<Option<Result<op::ApprovalRow, Error>>> {
        let list = op::ListApprovals {
            workspace: self.hub.workspace.clone(),
            approval_id: Some(asked.approval_id.clone()),
            limit: 1,
            ..op::ListApprovals::default()
        };
        let found = self.hub.store.ask(list).await.map_err(stopped)?.0;
        let Some(row) = found.into_iter().next() else {
            return Ok(None);
        };
        if row.asked.digest != asked.digest {
            let text = format!(
                "approval \"{}\" was given for something else: what would be done now differs from \
                 what was shown",
                asked.approval_id
            );
            return Ok(Some(Err(Error::new(ErrorClass::ApprovalRejected, "SF-0814", text))));
        }
        // Only those count who would be asked now.
        let by = row.approved_by();
        let counted = by.iter().filter(|person| asked.may(person)).count();
        let yes = i64::try_from(counted).unwrap_or(i64::MAX);
        if row.status == ApprovalStatus::Approved && yes < asked.approvers {
            let text = format!(
                "approval \"{}\" was given by {yes} people of those who may, and {} are needed now",
                asked.approval_id, asked.approvers
            );
            return Ok(Some(Err(Error::new(ErrorClass::ApprovalRejected, "SF-0814", text))));
        }
        Ok(match row.status {
            ApprovalStatus::Pending => None,
            ApprovalStatus::Approved => Some(Ok(row)),
            status => {
                let no = row.votes.iter().rev().find(|vote| vote.vote != Vote::Approved);
                let reason = no.map_or_else(
                    || "nobody said enough in time".to_owned(),
                    |no| format!("{} by {}: {}", no.vote.as_str(), no.approver, no.reason),
                );
                Some(Err(rejection(&asked.approval_id, status.as_str(), &reason)))
            }
        })
    }

    /// Asks, and waits without a worker.
    pub(super) async fn ask_people(
        &mut self,
        id: u64,
        mut call: Box<Call>,
        planned: Option<NewEffect>,
        asked: NewApproval,
    ) -> Step<bool> {
        let mut record = begun(id, &call).record;
        record.state = RecordState::Retrying;
        record.next_at = Timestamp::NEVER;
        let mut events = std::mem::take(&mut call.notes);
        events.push(self.note(id, call.attempt, "approval.requested", "audit", asked.told()));
        let approval_id = asked.approval_id.clone();
        let with = Govern {
            events,
            effect: planned.map(|new| EffectChange::Plan(Box::new(new))),
            approval: Some(Box::new(asked)),
            invocations: std::mem::take(&mut call.unentered),
            ..self.govern()
        };
        let with = Some(With::Govern(Box::new(with)));
        self.pending.push(Entry { record, replaces: call.recorded, with });
        if let Some(refusal) = self.try_flush().await? {
            self.calls.insert(id, call);
            return Ok(self.attempt_ended(Ended { id, outcome: Err(refused(refusal)) }));
        }
        call.recorded = true;
        call.asking = Some(Asking::People);
        self.calls.insert(id, call);
        self.waits.insert(id, Wait::answer(format!("approval:{approval_id}")));
        // It may have been asked before a restart, and answered meanwhile.
        self.look = true;
        Ok(false)
    }

    /// `cx.approval`: asks, or reads what was said.
    pub(super) async fn begin_approval(
        &mut self,
        id: u64,
        mut call: Box<Call>,
        request: &ApprovalRequest,
    ) -> Step<bool> {
        let asked = self.asking(id, request);
        if self.context.dry_run {
            // Nobody is asked about what is only shown.
            self.calls.insert(id, call);
            return Ok(self.attempt_ended(Ended { id, outcome: Ok(approved("dry-run", &[])) }));
        }
        call.recorded = self.driver.unfinished(id).is_some();
        match self.known_answer(&asked).await? {
            Some(answer) => {
                let outcome = answer.map(|row| approved(&asked.approval_id, &row.approved_by()));
                self.calls.insert(id, call);
                Ok(self.attempt_ended(Ended { id, outcome }))
            }
            None => self.ask_people(id, call, None, asked).await,
        }
    }

    /// The first answer that has come, if any.
    pub(super) fn next_answer(&self) -> Option<(u64, op::PendingSignal)> {
        self.waits.iter().find_map(|(id, wait)| {
            let Wait::Answer { name } = wait else { return None };
            let signal = self.signals.iter().find(|signal| signal.name == *name)?;
            Some((*id, signal.clone()))
        })
    }

    /// Goes on with what waited for an answer; true when its outcome was delivered.
    pub(super) async fn take_answer(&mut self, id: u64, signal: op::PendingSignal) -> Step<bool> {
        self.waits.remove(&id);
        self.signals.retain(|s| s.seq != signal.seq);
        let Some(mut call) = self.calls.remove(&id) else {
            return Ok(false);
        };
        call.consume = Some(signal.seq);
        let answer: serde_json::Value = serde_json::from_str(&signal.payload).unwrap_or_default();
        let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
        match call.asking.take() {
            Some(Asking::Truth) => self.take_truth(id, call, &answer).await,
            _ if text("status") != ApprovalStatus::Approved.as_str() => {
                let name = signal.name.trim_start_matches("approval:");
                let error = rejection(name, &text("status"), &text("reason"));
                Ok(self.refused_by_people(id, call, error))
            }
            _ if call.kind == Kind::Approval => {
                let by: Vec<String> =
                    serde_json::from_value(answer["by"].clone()).unwrap_or_default();
                let approval_id = signal.name.trim_start_matches("approval:").to_owned();
                self.calls.insert(id, call);
                Ok(self.attempt_ended(Ended { id, outcome: Ok(approved(&approval_id, &by)) }))
            }
            // What they said is read from the store and held against what is needed by now.
            _ => self.leave(id, call).await,
        }
    }

    pub(super) fn refused_by_people(&mut self, id: u64, mut call: Box<Call>, error: Error) -> bool {
        call.blocked = true;
        self.calls.insert(id, call);
        self.attempt_ended(Ended { id, outcome: Err(error) })
    }
}

fn approved(approval_id: &str, by: &[String]) -> String {
    serde_json::json!({ "approval_id": approval_id, "by": by }).to_string()
}

fn rejection(approval: &str, status: &str, reason: &str) -> Error {
    let text = format!("approval \"{approval}\" is {status}: {reason}");
    Error::new(ErrorClass::ApprovalRejected, "SF-0813", text)
}
