//! Doubts: what is done about an effect of which nobody has said what became of it.
//!
//! Invariants: what may not be repeated is not; a person is asked only what the receiver cannot
//! say, once, and the question is on record with the doubt; what a person has said counts for more
//! than what a receiver says.

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::connector::default_retry;
use steadfast_core::driver::{Body, Guard, Outcome, Record};
use steadfast_core::{EffectEvent, EffectStatus, Error, ErrorClass, Timestamp, json};
use steadfast_store::op::{self, EffectChange, Govern, With};

use super::govern::begun;
use super::{Execution, Step, settle, stopped};
use crate::call::{Asking, Begun, Call, Ended};
use crate::waits::Wait;

impl Execution {
    /// Found begun after a crash, and not to be repeated: the receiver is asked, or a person.
    pub(super) async fn reconcile(&mut self, id: u64, mut call: Box<Call>) -> Step<bool> {
        call.governed = self.is_governed();
        // What a person has said counts for more than what a receiver says.
        let name = format!("effect:{}", self.effect_of(id, &call));
        if self.signals.iter().any(|signal| signal.name == name) {
            return Ok(self.nobody_knows(id, call));
        }
        let guard = call.options.guard.clone();
        if let Some(guard) = guard.filter(|guard| guard.probe.is_some()) {
            call.probing = true;
            call.body = probe_body(guard);
            self.before_leaving().await?;
            return Ok(self.attempt(id, call).await);
        }
        if call.may_repeat() {
            return self.leave(id, call).await;
        }
        Ok(self.nobody_knows(id, call))
    }

    /// The receiver has said whether it was done.
    pub(super) fn probed(&mut self, id: u64, mut call: Box<Call>, outcome: Outcome) -> bool {
        (call.probing, call.sent) = (false, false);
        let probes = std::mem::take(&mut call.probes) + 1;
        let row = call.probe_call(self, id, probes, outcome.as_ref().err());
        call.unentered.extend(row);
        let again = outcome.as_ref().err().and_then(|e| self.next_probe(&call, probes, e));
        if let Some(wait) = again {
            call.probes = probes;
            // On record, so that it comes to an end also where the run is put away between.
            let mut entry = begun(id, &call);
            call.recorded = true;
            if !call.unentered.is_empty() {
                let invocations = std::mem::take(&mut call.unentered);
                let with = Govern { invocations, ..self.govern() };
                entry.with = Some(With::Govern(Box::new(with)));
            }
            self.pending.push(entry);
            self.urgent = true;
            return self.make_at(id, call, self.hub.now().after(wait));
        }
        match outcome.map(|text| json::decode::<Option<Outcome>>("a probe's answer", &text)) {
            Ok(Ok(Some(done))) => {
                self.calls.insert(id, call);
                self.attempt_ended(Ended { id, outcome: done })
            }
            Ok(Ok(None)) if call.settles.is_some() => {
                call.unclear = false;
                self.calls.insert(id, call);
                self.attempt_ended(Ended { id, outcome: Err(settle::not_done()) })
            }
            Ok(Ok(None)) => {
                call.unclear = false;
                call.body = call.real_body.clone();
                let last = call.attempt >= call.options.retry.max_attempts();
                if let Some(error) = call.doubt.take().filter(|_| last) {
                    self.calls.insert(id, call);
                    return self.attempt_ended(Ended { id, outcome: Err(error) });
                }
                // Not done: it is made now, as the next attempt.
                call.begun = false;
                self.make_at(id, call, self.hub.now())
            }
            Ok(Err(_)) | Err(_) if call.may_repeat() => {
                call.body = call.real_body.clone();
                self.make_at(id, call, self.hub.now())
            }
            Ok(Err(_)) | Err(_) => self.nobody_knows(id, call),
        }
    }

    /// The wait before a receiver is asked again that could not be asked: people are asked only
    /// what it cannot say.
    fn next_probe(&self, call: &Call, probes: u32, error: &Error) -> Option<Duration> {
        let own = Some(&call.options.retry).filter(|retry| retry.max_attempts() > 1).cloned();
        let retry = own.unwrap_or_else(default_retry);
        let wait = retry.wait_drawn(probes, error, self.hub.env.random())?;
        Some(wait.max(error.wait_at_least().unwrap_or_default()))
    }

    /// The next attempt is made at this time.
    pub(super) fn make_at(&mut self, id: u64, call: Box<Call>, until: Timestamp) -> bool {
        let (name, attempt) = (call.name.clone(), call.attempt);
        self.waits.insert(id, Wait::Retry { name, attempt, until });
        self.calls.insert(id, call);
        false
    }

    /// What the ledger says of an effect whose record says only that it was begun: the worker of a
    /// stopped run told it, and the run was resumed since.
    pub(super) async fn told_late(&mut self, id: u64) -> Step<Option<Outcome>> {
        let effect_id = self.effect_id(id);
        let answer = format!("effect:{effect_id}");
        if !self.is_governed() || self.signals.iter().any(|signal| signal.name == answer) {
            return Ok(None);
        }
        Ok(match self.ledger_row(&effect_id).await? {
            Some(row) if row.status == EffectStatus::Succeeded => {
                Some(Ok(row.result.unwrap_or_else(|| "null".to_owned())))
            }
            Some(row) if row.status == EffectStatus::Failed => {
                Some(Err(row.error.unwrap_or_else(settle::not_done).permanent()))
            }
            _ => None,
        })
    }

    pub(super) async fn ledger_row(&mut self, effect_id: &str) -> Step<Option<op::EffectRow>> {
        let list = op::ListEffects {
            workspace: self.hub.workspace.clone(),
            effect_id: Some(effect_id.to_owned()),
            limit: 1,
            ..op::ListEffects::default()
        };
        Ok(self.hub.store.ask(list).await.map_err(stopped)?.0.pop())
    }

    /// Takes over what the record of a begun attempt says. A connector's call that was cut off is
    /// entered in the ledger with the call's next record.
    pub(super) fn found_begun(&self, id: u64, call: &mut Call, known: &Record) {
        (call.made_in, call.probes) = marked(known);
        if let Some(epoch) = call.made_in.filter(|_| self.is_governed()) {
            let run_id = self.run.run_id.clone();
            let begun = Begun { run_id, place: self.place(id), epoch, attempt: call.attempt };
            call.unentered.extend(call.cut_off(self, id, &begun));
        }
    }

    fn is_governed(&self) -> bool {
        !self.context.command_id.is_empty() && self.registry.gate.is_some()
    }

    /// A plain run's code is told; a command waits for a person.
    pub(super) fn nobody_knows(&mut self, id: u64, mut call: Box<Call>) -> bool {
        call.body = call.real_body.clone();
        call.doubt = None;
        if !self.is_governed() {
            self.calls.insert(id, call);
            let text = "it is not known whether the effect was performed, and it is not repeated";
            let unknown = Error::new(ErrorClass::Application, "SF-0301", text);
            return self.attempt_ended(Ended { id, outcome: Err(unknown.permanent()) });
        }
        call.governed = true;
        let effect_id = self.effect_of(id, &call);
        let payload =
            serde_json::json!({ "effect_id": effect_id, "effect_type": call.effect_type() });
        let lost = EffectChange::Move {
            effect_id: effect_id.clone(),
            event: EffectEvent::Lose,
            result: None,
            error: None,
        };
        let with = Govern {
            events: vec![self.note(id, call.attempt, "effect.unknown", "audit", payload)],
            effect: Some(lost),
            blocks: true,
            ..self.govern()
        };
        if call.settles.as_ref().is_some_and(|settles| !settles.way_back) {
            let with = Govern { invocations: std::mem::take(&mut call.unentered), ..with };
            return self.leave_unknown(id, &call, with);
        }
        let name = format!("effect:{effect_id}");
        // Somebody may have said it while nobody ran this.
        if !self.signals.iter().any(|signal| signal.name == name) {
            let mut entry = begun(id, &call);
            let invocations = std::mem::take(&mut call.unentered);
            entry.with = Some(With::Govern(Box::new(Govern { invocations, ..with })));
            self.pending.push(entry);
            self.urgent = true;
        }
        call.asking = Some(Asking::Truth);
        self.calls.insert(id, call);
        self.waits.insert(id, Wait::answer(name));
        self.look = true;
        false
    }

    /// A person has said what became of it.
    pub(super) async fn take_truth(
        &mut self,
        id: u64,
        mut call: Box<Call>,
        answer: &serde_json::Value,
    ) -> Step<bool> {
        (call.unclear, call.blocked) = (false, false);
        let outcome = match answer["truth"].as_str() {
            Some("done") => Ok(answer["result"].as_str().unwrap_or("null").to_owned()),
            // What is taken back is not done any more.
            Some("again") if call.settles.is_none() => {
                call.attempt += 1;
                call.begun = false;
                return self.leave(id, call).await;
            }
            _ => {
                let text = "a person said that the effect was not performed";
                Err(Error::new(ErrorClass::Application, settle::NOT_DONE, text).permanent())
            }
        };
        self.calls.insert(id, call);
        Ok(self.attempt_ended(Ended { id, outcome }))
    }
}

fn probe_body(guard: Arc<Guard>) -> Arc<Body> {
    Arc::new(Box::new(move || {
        let guard = guard.clone();
        Box::pin(async move {
            let ask = guard.probe.as_ref().expect("invariant: looked up before");
            let found: Option<Outcome> = ask().await?;
            json::encode("a probe's answer", &found)
        })
    }))
}

/// What the record of a begun attempt has noted: see [`Call::mark`].
pub(super) fn marked(record: &Record) -> (Option<i64>, u32) {
    let text = record.outcome.as_deref().unwrap_or_default();
    let noted: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let probes = noted["probes"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    (noted["epoch"].as_i64(), probes)
}
