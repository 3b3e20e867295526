//! The end of an attempt: its outcome, the next attempt, or a doubt; and attempts nobody waits for.
//!
//! Invariants: what may not be repeated and got no clear answer stays on record as begun; the
//! record of an attempt and what the ledger keeps of it are one entry.

use std::time::Duration;

use steadfast_core::Error;
use steadfast_core::driver::{Kind, Record, RecordState};
use steadfast_store::op::{self, Entry};

use super::Execution;
use crate::call::{Call, Ended};
use crate::waits::Wait;

impl Execution {
    /// An attempt of a call ended: delivers its outcome, or arranges the next attempt.
    pub(super) fn attempt_ended(&mut self, ended: Ended) -> bool {
        let now = self.hub.now();
        self.running.remove(&ended.id);
        let Some(mut call) = self.calls.remove(&ended.id) else {
            return false;
        };
        call.abort = None;
        if call.probing {
            return self.probed(ended.id, call, ended.outcome);
        }
        call.unclear |= ended.outcome.as_ref().is_err_and(|error| call.is_unclear(error));
        if let Err(error) = &ended.outcome
            && self.is_doubtful(&call, error)
        {
            // It stays on record as begun: what became of it is asked, not guessed.
            call.doubt = Some(error.clone());
            // It was sent, so what was taken for it is spent, and the ledger has it.
            call.taken.clear();
            let row = call.invocation(self, ended.id, Some(error), call.said());
            call.unentered.extend(row.filter(|_| call.governed));
            let (name, attempt) = (call.name.clone(), call.attempt);
            self.waits.insert(ended.id, Wait::Retry { name, attempt, until: now });
            self.calls.insert(ended.id, call);
            return false;
        }
        let mut record = Record::done(ended.id, 0, &call.name, call.kind, ended.outcome);
        record.input.clone_from(&call.input);
        record.attempt = call.attempt;
        (record.started_at, record.completed_at) = (call.started_at, now);
        let replaces = call.recorded;
        let wait = match &record.outcome {
            Err(error) => self.next_wait(&call, error),
            Ok(_) => None,
        };
        if let Err(error) = &record.outcome
            && wait.is_none()
            && call.is_open_still(error)
        {
            return self.nobody_knows(ended.id, call);
        }
        if let Some(wait) = wait {
            record.state = RecordState::Retrying;
            record.next_at = now.after(wait);
            if call.unclear {
                // The last error may be clear; those before it were not.
                record.outcome = record.outcome.map_err(Error::maybe_with_effect);
            }
            call.begun = call.unclear;
            self.told_of_retry(&call, &record);
            let (name, attempt) = (call.name.clone(), call.attempt);
            self.waits.insert(ended.id, Wait::Retry { name, attempt, until: record.next_at });
            self.urgent = true;
            let with = self.ending(ended.id, &mut call, &record);
            call.recorded = true;
            (call.blocked, call.sent) = (false, false);
            self.calls.insert(ended.id, call);
            self.pending.push(Entry { record, replaces, with });
            return false;
        }
        self.urgent |= call.kind != Kind::Read;
        let with = self.ending(ended.id, &mut call, &record);
        record.seq = self.driver.deliver(ended.id, record.outcome.clone(), now);
        self.pending.push(Entry { record, replaces, with });
        true
    }

    /// Whether it may have been done although no answer says so, and may not be repeated.
    fn is_doubtful(&self, call: &Call, error: &Error) -> bool {
        let candidate = call.once && call.is_unclear(error);
        candidate && (call.governed || self.next_wait(call, error).is_some())
    }

    fn told_of_retry(&self, call: &Call, record: &Record) {
        let Err(error) = &record.outcome else { return };
        let class = serde_json::to_value(error.class()).unwrap_or_default();
        self.hub.metrics.retried(&call.name, class.as_str().unwrap_or_default());
        tracing::info_span!("activity.retry", activity = call.name).in_scope(|| {
            tracing::info!(attempt = call.attempt, %error, "activity.retry");
        });
    }

    /// The wait before the next attempt, if there is one: what the policy says, and not before the
    /// other side wants.
    fn next_wait(&self, call: &Call, error: &Error) -> Option<Duration> {
        let wait = call.options.retry.wait_drawn(call.attempt, error, self.hub.env.random())?;
        Some(wait.max(error.wait_at_least().unwrap_or_default()))
    }

    /// The code no longer waits for a request.
    pub(super) fn forget(&mut self, id: u64) {
        self.waits.remove(&id);
        self.running.remove(&id);
        self.digests.remove(&id);
        self.backlog.retain(|request| request.id != id);
        if let Some(call) = self.calls.remove(&id) {
            self.abandon(id, call);
        }
    }

    /// Ends an attempt that nobody waits for, and gives its slot back.
    pub(super) fn abandon(&self, id: u64, mut call: Box<Call>) {
        let mut rows = std::mem::take(&mut call.unentered);
        if let Some(abort) = call.abort.take() {
            abort.abort();
            rows.extend(call.abandoned(self, id));
            if call.options.slot.is_some() {
                self.free(id);
            }
        }
        if !rows.is_empty() {
            let (hub, enter) = (self.hub.clone(), self.entering(rows));
            let task = async move {
                // If it fails, the effect's own row still says that it was begun.
                let _ = hub.store.ask(enter).await;
            };
            self.hub.spawn("enter", task);
        }
    }

    /// Gives the slot of a call back.
    pub(super) fn free(&self, id: u64) {
        let step = i64::try_from(id).unwrap_or(i64::MAX);
        let free = op::FreeSlot { lease: self.lease.clone(), step };
        let hub = self.hub.clone();
        let task = async move {
            // If it fails, the slot runs out with its lease.
            let _ = hub.store.ask(free).await;
            hub.ready.ring();
        };
        self.hub.spawn("free", task);
    }

    /// Calls of which no record will tell.
    pub(super) fn entering(&self, calls: Vec<op::InvocationRow>) -> op::EnterCalls {
        op::EnterCalls { lease: self.lease.clone(), calls, charges: Vec::new() }
    }
}
