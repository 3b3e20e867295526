//! A stopped run: its attempts are aborted. Attempts of a command finish, and their outcomes are
//! written to the ledger.
//!
//! Invariants: no more records of the run are written; writes to the ledger are fenced by the lease
//! under which the attempt began; a cancelled command is over only when no attempt is left; the run
//! is released only after its last attempt has ended (decision 30).

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc;
use futures::future::{Either, select};
use steadfast_core::driver::Record;
use steadfast_core::{Timestamp, limits};
use steadfast_store::op::{self, EffectChange, Entry, Govern, With, Written};

use super::{Execution, Exit};
use crate::call::{Call, Ended};

/// What entries say of how effects ended.
pub(super) fn outcomes(entries: &[Entry]) -> Vec<Govern> {
    let ends = entries.iter().filter_map(|entry| match &entry.with {
        Some(With::Govern(with)) if matches!(with.effect, Some(EffectChange::Move { .. })) => {
            Some((**with).clone())
        }
        _ => None,
    });
    ends.collect()
}

impl Execution {
    /// Ends what is under way, and lets the run go. A command that is cancelled lets what is under
    /// way end, and is over only then.
    pub(super) async fn let_go(&mut self) {
        match self.context.command_id.is_empty() {
            true => {
                let until = Timestamp::from_micros(self.lease_until.load(Ordering::Acquire));
                // Once the lease has ended, the run can be claimed without a release.
                if !self.end_attempts(self.hub.now().until(until)).await {
                    return;
                }
            }
            false => self.let_end().await,
        }
        let (lease, now) = (self.lease.clone(), self.hub.now());
        let release = op::Release { lease, what: op::Released::Hold, now };
        // If it fails, a resumed run begins when the lease has run out.
        let released = self.hub.store.ask(release).await;
        if released == Ok(Written::Done) {
            self.hub.ready.ring();
        }
    }

    /// The time of a shutdown is over: ends what is under way and gives the run back, for another
    /// worker to go on with at once.
    pub(super) async fn give_back(&mut self) -> Exit {
        for (id, call) in &self.calls {
            if call.abort.is_some() && call.options.slot.is_some() {
                self.free(*id);
            }
        }
        if !self.end_attempts(limits::GIVING_BACK).await {
            let run_id = self.run.run_id.as_str();
            tracing::warn!(run_id, "a step does not end: another worker waits for the lease");
            return Exit::Parked;
        }
        match self.release().await {
            Ok(()) => Exit::Parked,
            Err(exit) => exit,
        }
    }

    /// Aborts the attempts under way; whether all of them were gone within a time. One that does
    /// not come to a point where it waits cannot be aborted.
    async fn end_attempts(&mut self, at_most: Duration) -> bool {
        for call in std::mem::take(&mut self.calls).into_values() {
            if let Some(abort) = call.abort {
                abort.abort();
            }
        }
        self.running.clear();
        // Every attempt holds a sender, to its very end.
        self.end = mpsc::unbounded().0;
        let gone = Box::pin(async { while self.ended.next().await.is_some() {} });
        matches!(select(gone, self.hub.env.sleep(at_most)).await, Either::Left(_))
    }

    /// Lets what is under way end, and tells the ledger what became of it.
    async fn let_end(&mut self) {
        // What ended before the stop was heard of counts as well.
        let mut outcomes = std::mem::take(&mut self.untold);
        outcomes.extend(self::outcomes(&self.pending));
        while !self.running.is_empty() {
            let pause = self.hub.env.sleep(self.config.lease / 3);
            match select(self.ended.next(), pause).await {
                Either::Left((Some(ended), _)) => outcomes.extend(self.came_to(ended)),
                Either::Left((None, _)) => break,
                Either::Right(_) => {}
            }
            if !self.running.is_empty() {
                // Nobody else keeps a stopped run's time.
                let until = self.hub.now().after(self.config.lease);
                self.say(std::mem::take(&mut outcomes), Some(until)).await;
            }
        }
        self.say(outcomes, None).await;
        let late = std::mem::take(&mut self.late);
        if !late.is_empty() {
            // A line of the ledger at most is missing if it fails.
            let charges = std::mem::take(&mut self.owing);
            let enter = op::EnterCalls { charges, ..self.entering(late) };
            let _ = self.hub.store.ask(enter).await;
        }
    }

    /// What the ledger is told of an effect whose attempt ended after the run was stopped.
    fn came_to(&mut self, ended: Ended) -> Option<Govern> {
        self.running.remove(&ended.id);
        let mut call = self.calls.remove(&ended.id)?;
        if call.effect().is_none() || !call.governed || call.probing {
            self.enter_late(&mut call, &ended);
            return None;
        }
        call.unclear |= ended.outcome.as_ref().is_err_and(|error| call.is_unclear(error));
        let mut record = Record::done(ended.id, 0, &call.name, call.kind, ended.outcome);
        record.attempt = call.attempt;
        (record.started_at, record.completed_at) = (call.started_at, self.hub.now());
        // There is no next attempt.
        match self.ending(ended.id, &mut call, &record) {
            Some(With::Govern(with)) => Some(*with),
            _ => None,
        }
    }

    /// A call that is no effect changes nothing; that it was made, and what it cost, is on record
    /// all the same.
    fn enter_late(&mut self, call: &mut Call, ended: &Ended) {
        let error = ended.outcome.as_ref().err();
        let row = match call.probing {
            true => call.probe_call(self, ended.id, call.probes + 1, error),
            false => {
                let said = call.said();
                self.owing.extend(call.charges(said.as_ref()));
                call.invocation(self, ended.id, error, said)
            }
        };
        self.late.append(&mut call.unentered);
        self.late.extend(row.filter(|_| call.governed));
    }

    /// Tells where a stopped run's worker stands.
    async fn say(&mut self, outcomes: Vec<Govern>, busy_until: Option<Timestamp>) {
        let left = op::Left {
            command_id: self.context.command_id.clone(),
            lease: self.lease.clone(),
            outcomes,
            busy_until,
        };
        // If it fails, the command is settled when the lease has run out, and what became of the
        // effects is found out before they are taken back.
        let _ = self.hub.store.leave(left, self.hub.now()).await;
    }
}
