//! The deadline of a run, as its owner meets it.
//!
//! Invariant: the store compares the deadline under the owner's lease; the deadline that an
//! execution knows only decides when the store is asked.

use steadfast_store::op;

use super::{Execution, Exit, Step, stopped};

impl Execution {
    /// Ends the execution if the run's deadline has passed.
    pub(super) async fn check_deadline(&mut self) -> Step {
        if !self.run.is_overdue(self.hub.now()) {
            return Ok(());
        }
        match Box::pin(self.time_out()).await? {
            true => Err(Exit::Stopped),
            false => Ok(()),
        }
    }

    /// Has the store end this run because of its deadline, which the store compares itself. True
    /// when it did, or another process had; false when the deadline is later than this execution
    /// believed.
    async fn time_out(&mut self) -> Step<bool> {
        let time_out = op::TimeOut { lease: self.lease.clone(), now: self.hub.now() };
        match self.hub.store.ask(time_out).await.map_err(stopped)? {
            op::TimedOut::Done(others) => {
                let deadline = self.run.deadline_at.unwrap_or(self.hub.now());
                let reason = steadfast_core::run::overdue(deadline);
                self.hub.cancelled(others.into_iter().chain([self.run.run_id.clone()]), &reason);
                Ok(true)
            }
            op::TimedOut::NotDue(deadline) => {
                self.run.deadline_at = deadline;
                Ok(false)
            }
            op::TimedOut::Fenced => Err(Exit::Stopped),
        }
    }

    /// A write that the store refused after the deadline leaves the run active: its end is written
    /// now, not when its lease runs out.
    pub(super) async fn end_if_overdue(&mut self) {
        if self.run.is_overdue(self.hub.now()) {
            // If it fails, any worker ends the run when the lease has run out.
            let _ = self.time_out().await;
        }
    }
}
