//! A stopped run: what is under way is let end, and what became of it is told to the ledger.
//!
//! Invariants: nothing of the run is recorded any more; what the ledger is told is fenced by the
//! lease under which it was begun; a cancelled command is over only when nothing is under way.

use futures::StreamExt;
use futures::future::{Either, select};
use steadfast_core::Timestamp;
use steadfast_core::driver::Record;
use steadfast_store::op::{self, EffectChange, Entry, Govern, With};

use super::Execution;
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
    /// A command that is cancelled lets what is under way end, and is over only then.
    pub(super) async fn let_go(&mut self) {
        if self.context.command_id.is_empty() {
            return;
        }
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
