//! Approvals, as people answer them.

use steadfast_core::approval::{Answer, Vote};
use steadfast_core::{ApprovalStatus, Error, ErrorClass, Result, key, limits};
use steadfast_store::op::{ApprovalRow, Decide, Decided, ListApprovals, SettleApprovals};

use crate::client::Client;

impl Client {
    /// Questions to people.
    pub async fn approvals(&self, mut which: ListApprovals) -> Result<Vec<ApprovalRow>> {
        self.inner.workspace().clone_into(&mut which.workspace);
        Ok(self.inner.ask(which).await?.0)
    }

    /// The questions that wait for people.
    pub async fn pending_approvals(&self) -> Result<Vec<ApprovalRow>> {
        let (status, limit) = (Some(ApprovalStatus::Pending), limits::PAGE_ROWS);
        self.approvals(ListApprovals { status, limit, ..ListApprovals::default() }).await
    }

    /// Takes somebody's answer. An error says why it does not count: it is their own request, they
    /// are not asked, or it is too late. The same answer twice counts once.
    pub async fn decide(
        &self,
        approval_id: &str,
        approver: &str,
        vote: Vote,
        reason: &str,
    ) -> Result<ApprovalStatus> {
        key::check("approver", approver)?;
        let decide = Decide {
            workspace: self.inner.workspace().to_owned(),
            approval_id: approval_id.to_owned(),
            approver: approver.to_owned(),
            vote,
            reason: reason.to_owned(),
            now: self.inner.now(),
        };
        let refused = |class, code: &str, text: String| Err(Error::new(class, code, text));
        match self.inner.ask(decide).await? {
            Decided::Counted(_) => Ok(ApprovalStatus::Pending),
            Decided::Settled(status) => {
                self.inner.ring();
                Ok(status)
            }
            Decided::Again(status) => Ok(status),
            Decided::Late(status) => refused(
                ErrorClass::Conflict,
                "SF-0815",
                format!("approval \"{approval_id}\" is {status}, or its time is up"),
            ),
            Decided::Own => refused(
                ErrorClass::PermissionDenied,
                "SF-0816",
                format!("\"{approver}\" asked for it or gave its payload, and cannot approve it"),
            ),
            Decided::NotAsked => refused(
                ErrorClass::PermissionDenied,
                "SF-0817",
                format!("\"{approver}\" is not among those who may answer"),
            ),
            Decided::NotFound => refused(
                ErrorClass::NotFound,
                "SF-0818",
                format!("there is no approval \"{approval_id}\""),
            ),
        }
    }

    /// Takes an answer that came over a wire, such as a signed webhook: it counts only for what its
    /// giver was shown.
    pub async fn answer(&self, answer: &Answer) -> Result<ApprovalStatus> {
        let (approval_id, limit) = (Some(answer.approval_id.clone()), 1);
        let which = ListApprovals { approval_id, limit, ..ListApprovals::default() };
        let other = self.approvals(which).await?.pop();
        if other.is_some_and(|row| row.asked.digest != answer.digest) {
            let id = &answer.approval_id;
            let text = format!("the answer to approval \"{id}\" is to something else than it asks");
            return Err(Error::new(ErrorClass::Conflict, "SF-0819", text));
        }
        let Answer { approval_id, approver, vote, reason, .. } = answer;
        self.decide(approval_id, approver, *vote, reason).await
    }

    /// Ends questions whose time is up; gives how many were settled or passed on.
    pub async fn settle_approvals(&self) -> Result<usize> {
        let workspace = self.inner.workspace().to_owned();
        let (limit, now) = (limits::PURGE_BATCH, self.inner.now());
        let settled = self.inner.ask(SettleApprovals { workspace, limit, now }).await?;
        if !settled.0.is_empty() {
            self.inner.ring();
        }
        Ok(settled.0.len())
    }
}
