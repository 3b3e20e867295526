//! Governed calls: judged before they leave, entered in the ledger, and held where people must
//! answer first.
//!
//! Invariants: no attempt of a governed call begins without a verdict of its own; the ledger, the
//! events and the record of a call are one commit; a question to people is asked once, and its
//! answer is read from the store, so that a restart neither asks nor forgets.

use std::sync::Arc;

use steadfast_core::driver::{EffectClass, Guard, Kind, Record, RecordState};
use steadfast_core::effect::EffectSpec;
use steadfast_core::gate::{CapReached, Gate, Leaving, Passage, Verdict};
use steadfast_core::policy::Judgement;
use steadfast_core::{EffectEvent, EffectStatus, Error, ErrorClass, json, limits};
use steadfast_store::op::{self, EffectChange, Entry, Govern, NewEffect, With};

use super::{Execution, Step, stopped};
use crate::call::{Call, Ended};

impl Execution {
    fn gate(&self, call: &Call) -> Option<(Arc<dyn Gate>, Arc<Guard>)> {
        Some((self.registry.gate.clone()?, call.options.guard.clone()?))
    }

    /// Judges what is about to leave, and lets it leave. True when its outcome was delivered at
    /// once.
    pub(super) async fn leave(&mut self, id: u64, mut call: Box<Call>) -> Step<bool> {
        // An earlier attempt was, perhaps; this one is not yet.
        call.sent = false;
        match self.gate(&call) {
            // Boxed, as is whatever else few runs do: a run's memory is that of its largest part.
            Some((gate, guard)) => Box::pin(self.pass(id, call, gate, guard)).await,
            None => self.go(id, call, None).await,
        }
    }

    async fn pass(
        &mut self,
        id: u64,
        mut call: Box<Call>,
        gate: Arc<dyn Gate>,
        guard: Arc<Guard>,
    ) -> Step<bool> {
        loop {
            let mut verdict = self.judge(&*gate, &guard, &call).await;
            match std::mem::replace(&mut verdict.passage, Passage::Open) {
                Passage::Open => return self.go(id, call, None).await,
                Passage::Go => {
                    call.governed = true;
                    call.taken = std::mem::take(&mut verdict.taken);
                    let priced = call.taken.iter().filter(|taken| taken.units && taken.amount > 0);
                    call.price = priced.map(|taken| taken.amount).next();
                    self.judged(id, &mut call, &verdict);
                    if let Some(result) = self.done_before(id, &call, &guard).await? {
                        self.calls.insert(id, call);
                        return Ok(self.attempt_ended(Ended { id, outcome: Ok(result) }));
                    }
                    self.drift(id, &mut call, &*gate, &guard);
                    let begins = guard.effect.as_ref().map(|spec| {
                        let (of, undo) = (self.effect_of(id, &call), verdict.compensation.clone());
                        EffectChange::Begin(Box::new(new_effect(of, spec, undo)))
                    });
                    return self.go(id, call, begins).await;
                }
                Passage::Refused(error) => {
                    call.governed = true;
                    call.blocked = true;
                    self.judged(id, &mut call, &verdict);
                    self.calls.insert(id, call);
                    return Ok(self.attempt_ended(Ended { id, outcome: Err(error) }));
                }
                Passage::Ask(asks) => {
                    call.governed = true;
                    let asked = self.question(id, &call, &guard, *asks);
                    match self.known_answer(&asked).await? {
                        Some(Ok(_)) if !call.approved => call.approved = true,
                        Some(Err(error)) => return Ok(self.refused_by_people(id, call, error)),
                        _ => {
                            self.judged(id, &mut call, &verdict);
                            let planned = guard.effect.as_ref().map(|spec| {
                                new_effect(self.effect_id(id), spec, verdict.compensation.clone())
                            });
                            return self.ask_people(id, call, planned, asked).await;
                        }
                    }
                }
                Passage::Plan => return Ok(self.plan(id, &call, &guard, &verdict.judgement)),
            }
        }
    }

    async fn judge(&mut self, gate: &dyn Gate, guard: &Guard, call: &Call) -> Verdict {
        let leaving = Leaving {
            context: &self.context,
            run_id: &self.run.run_id,
            workflow: &self.run.workflow,
            effect: guard.effect.as_ref(),
            call: guard.calling.as_ref(),
            attempt: call.attempt,
            approved: call.approved,
            child: self.is_child(),
            owed: self.owed(),
            now: self.hub.now(),
        };
        // A gate that cannot decide lets nothing through.
        gate.judge(leaving).await.unwrap_or_else(|error| Verdict {
            judgement: Judgement::default(),
            passage: Passage::Refused(error),
            compensation: None,
            taken: Vec::new(),
            cap: None,
        })
    }

    /// What pending records will charge budgets: it counts already, and costs no commit of its own.
    fn owed(&self) -> Vec<(String, i64)> {
        let governed = self.pending.iter().filter_map(|entry| match &entry.with {
            Some(With::Govern(with)) => Some(&with.charges),
            _ => None,
        });
        governed.flatten().map(|charge| (charge.meter.clone(), charge.amount)).collect()
    }

    /// The result of the same effect in another command, where the receiver has no memory for keys:
    /// the ledger is that memory.
    async fn done_before(&mut self, id: u64, call: &Call, guard: &Guard) -> Step<Option<String>> {
        let Some(spec) = guard.effect.as_ref().filter(|_| call.once && !call.begun) else {
            return Ok(None);
        };
        let list = op::ListEffects {
            workspace: self.hub.workspace.clone(),
            key: Some(spec.key.clone()),
            status: Some(EffectStatus::Succeeded),
            limit: limits::PAGE_ROWS,
            ..op::ListEffects::default()
        };
        let known = self.hub.store.ask(list).await.map_err(stopped)?.0;
        let own = self.effect_id(id);
        let same = |row: &op::EffectRow| {
            row.effect_type == spec.effect_type
                && row.payload == spec.payload
                && row.effect_id != own
                && row.compensates == spec.undoes
                && row.compensated_at.is_none()
        };
        Ok(known.into_iter().find(same).and_then(|row| row.result))
    }

    /// Begins an attempt; an effect is on record as begun before it does.
    async fn go(
        &mut self,
        id: u64,
        mut call: Box<Call>,
        begins: Option<EffectChange>,
    ) -> Step<bool> {
        let first = call.kind == Kind::Effect && (!call.recorded || call.once || begins.is_some());
        if first {
            call.made_in = begins.as_ref().map(|_| self.epoch()).filter(|_| call.is_by_connector());
            let mut entry = begun(id, &call);
            entry.with = begins.map(|effect| {
                let events = self.begin_events(id, &mut call);
                With::Govern(Box::new(Govern {
                    events,
                    effect: Some(effect),
                    invocations: call.unentered.clone(),
                    consume: call.consume.take(),
                    ..self.govern()
                }))
            });
            let governed = entry.with.is_some();
            let recorded = std::mem::replace(&mut call.recorded, true);
            self.pending.push(entry);
            if governed && let Some(refusal) = self.try_flush().await? {
                call.recorded = recorded;
                call.blocked = call.begun;
                self.calls.insert(id, call);
                let refusal = refused(refusal);
                return Ok(self.attempt_ended(Ended { id, outcome: Err(refusal) }));
            }
            if governed {
                call.unentered.clear();
            }
        }
        if call.kind != Kind::Read || call.attempt > 1 {
            self.before_leaving().await?;
        }
        Ok(self.attempt(id, call).await)
    }

    fn begin_events(&self, id: u64, call: &mut Call) -> Vec<op::NewEvent> {
        let mut events = std::mem::take(&mut call.notes);
        if let Some(spec) = call.effect() {
            let about = serde_json::json!({
                "effect_id": self.effect_of(id, call), "effect_type": spec.effect_type,
                "idempotency_key": spec.key,
            });
            events.push(self.note(id, call.attempt, "effect.executing", "event", about));
        }
        events
    }

    /// Writes what is pending; if the last entry is refused, the others are written without it.
    pub(super) async fn try_flush(&mut self) -> Step<Option<String>> {
        self.urgent = false;
        let mut entries = std::mem::take(&mut self.pending);
        let refusal = self.record(entries.clone()).await?;
        if refusal.is_some() {
            entries.pop();
            self.pending = entries;
            self.flush().await?;
        }
        Ok(refusal)
    }

    /// What the gate decided, as an event of the call's next record.
    fn judged(&self, id: u64, call: &mut Call, verdict: &Verdict) {
        let judgement = &verdict.judgement;
        if judgement.decisions.is_empty() {
            return;
        }
        let mut payload = judgement.to_json();
        payload["step"] = call.name.clone().into();
        payload["attempt"] = call.attempt.into();
        let decided = json::fingerprint(&payload.to_string());
        let mut note = self.note(id, call.attempt, "policy.evaluated", "audit", payload);
        // A call is judged again once people have answered: that is another decision.
        note.event_id = format!("{}.{}", note.event_id, &decided[..8]);
        call.notes.push(note);
        let own_rule = || judgement.decisions.iter().any(|d| d.finding.rule == "cost_cap");
        if verdict.cap.is_some() || own_rule() {
            let about = serde_json::json!({ "operation": call.name, "attempts": call.attempt });
            let mut note = self.note(id, call.attempt, "cost.cap_reached", "audit", about);
            if let Some(cap) = &verdict.cap {
                reached(cap, &self.context.command_id, &mut note);
            }
            call.notes.push(note);
        }
    }

    /// A compensation that does more than it declared is let do it, and told of.
    fn drift(&self, id: u64, call: &mut Call, gate: &dyn Gate, guard: &Guard) {
        let Some(spec) = &guard.effect else { return };
        let Some(compensation) = &spec.compensation else { return };
        if gate.drift(&self.context, compensation, &spec.effect_type) {
            let payload = serde_json::json!({
                "effect_type": spec.effect_type, "compensation": compensation,
                "compensates_effect_id": spec.undoes,
            });
            let note = self.note(id, call.attempt, "compensation_drift", "audit", payload);
            call.notes.push(note);
        }
    }

    /// A dry run: shown, not done.
    fn plan(&mut self, id: u64, call: &Call, guard: &Guard, judgement: &Judgement) -> bool {
        let mut effect = None;
        let mut outcome = Ok("null".to_owned());
        if let Some(spec) = &guard.effect {
            let new = new_effect(self.effect_id(id), spec, None);
            effect = Some(EffectChange::Plan(Box::new(new)));
            outcome = Ok(spec.dry.clone().unwrap_or_else(|| "null".to_owned()));
        }
        let payload = judgement.to_json();
        let events = vec![self.note(id, call.attempt, "policy.evaluated", "audit", payload)];
        let with = Govern { effect, events, ..self.govern() };
        self.urgent = true;
        self.deliver(id, &call.name, call.kind, outcome, Some(With::Govern(Box::new(with))));
        true
    }

    /// What the ledger and the audit keep of an attempt that ended, with its record.
    pub(super) fn ending(&self, id: u64, call: &mut Call, record: &Record) -> Option<With> {
        let over = record.state == RecordState::Done;
        let told = call.retried_as().is_some() && !over;
        let step = self.agent_step(id, call, record).filter(|_| over);
        let bare = call.consume.is_none() && call.notes.is_empty() && step.is_none();
        if !call.governed && bare && !told {
            return None;
        }
        let mut events = std::mem::take(&mut call.notes);
        events.extend(step);
        let mut effect = None;
        if over && (call.effect().is_some() || call.settles.is_some()) {
            let (event, word, result, error) = match &record.outcome {
                Ok(value) => (EffectEvent::Succeed, "succeeded", Some(value.clone()), None),
                // The last error says nothing of the attempts before it, and a refusal neither.
                Err(error) if call.unclear || call.blocked && call.begun => {
                    (EffectEvent::Lose, "unknown", None, Some(error.clone()))
                }
                Err(error) => (EffectEvent::Fail, "failed", None, Some(error.clone())),
            };
            let effect_id = self.effect_of(id, call);
            let about = serde_json::json!({
                "effect_id": effect_id, "effect_type": call.effect_type(), "error": error,
            });
            let purpose = if event == EffectEvent::Lose { "audit" } else { "event" };
            events.push(self.note(id, call.attempt, &format!("effect.{word}"), purpose, about));
            effect = Some(EffectChange::Move { effect_id, event, result, error });
        }
        if let (false, Some(name), Err(error)) = (over, call.retried_as(), &record.outcome) {
            let about = serde_json::json!({
                "operation": call.name, "attempt": call.attempt, "error": error,
                "next_at": record.next_at.iso(),
            });
            events.push(self.note(id, call.attempt, name, "event", about));
        }
        if over
            && let Err(error) = &record.outcome
            && call.governed
            && call.attempt > 1
            && call.attempt >= call.options.retry.max_attempts()
            && error.is_retryable()
        {
            let about = serde_json::json!({ "operation": call.name, "attempts": call.attempt });
            events.push(self.note(id, call.attempt, "cost.cap_reached", "audit", about));
        }
        let said = call.said();
        let charges = call.charges(said.as_ref());
        let mut invocations = std::mem::take(&mut call.unentered);
        invocations.extend(call.invocation(self, id, record.outcome.as_ref().err(), said));
        // By the epoch as well, as calls are.
        let known = || format!("{}_{}_{}", self.place(id), self.epoch(), call.attempt);
        let with = Govern {
            events,
            effect,
            charged_as: if charges.is_empty() { String::new() } else { known() },
            charges,
            invocations,
            health: call.health(&record.outcome, &self.registry),
            consume: call.consume.take(),
            ..self.govern()
        };
        Some(With::Govern(Box::new(with)))
    }

    /// What is told of a step of an agent's own code; of a proposal also what became of it.
    fn agent_step(&self, id: u64, call: &Call, record: &Record) -> Option<op::NewEvent> {
        let gate = self.registry.gate.as_ref()?;
        if self.context.command_id.is_empty() || !gate.is_agent(&self.context) {
            return None;
        }
        let took = record.completed_at.as_micros() - record.started_at.as_micros();
        let mut about = serde_json::json!({
            "step_index": id, "tool_name": call.name, "kind": call.kind.as_str(),
            "attempts": call.attempt, "latency_ms": took / 1000,
        });
        let proposal = call.options.proposes.as_ref();
        match &record.outcome {
            Ok(made) if proposal.is_some() => {
                about["command_id"] = serde_json::from_str(made).unwrap_or_default();
            }
            Ok(_) => {}
            Err(error) => about["error"] = serde_json::to_value(error).unwrap_or_default(),
        }
        if let Some(command_type) = proposal {
            about["command_type"] = command_type.as_str().into();
        }
        let event_type = if proposal.is_some() { "agent.proposed" } else { "agent.step" };
        Some(self.note(id, call.attempt, event_type, "agent_step", about))
    }

    pub(super) fn govern(&self) -> Govern {
        Govern {
            command_id: self.context.command_id.clone(),
            actor: self.lease.worker.clone(),
            trace_id: self.context.trace_id.clone(),
            child: self.is_child(),
            now: self.hub.now(),
            ..Govern::default()
        }
    }

    /// Whether it is a child of a command's run: it may outlive the command. What a compensation
    /// starts does not.
    fn is_child(&self) -> bool {
        !self.run.parent.is_empty() && self.context.undo.is_none()
    }

    /// An event whose id follows from the step it belongs to.
    pub(super) fn note(
        &self,
        id: u64,
        attempt: u32,
        event_type: &str,
        purpose: &'static str,
        payload: serde_json::Value,
    ) -> op::NewEvent {
        let place = json::fingerprint(&format!("{}\n{}", self.run.run_id, self.run.generation));
        let command = &self.context.command_id;
        op::NewEvent {
            event_id: format!("evt_{command}_s{}.{id:06}.{attempt:03}.{event_type}", &place[..8]),
            purpose,
            event_type: event_type.to_owned(),
            payload: payload.to_string(),
        }
    }

    pub(super) fn effect_id(&self, id: u64) -> String {
        format!("eff_{}", self.place(id))
    }

    /// The effect that a call performs, or finds out about.
    pub(super) fn effect_of(&self, id: u64, call: &Call) -> String {
        let settled = call.settles.as_ref().map(|settles| settles.effect_id.clone());
        settled.unwrap_or_else(|| self.effect_id(id))
    }
}

fn new_effect(effect_id: String, spec: &EffectSpec, compensation: Option<String>) -> NewEffect {
    NewEffect {
        effect_id,
        effect_type: spec.effect_type.clone(),
        payload: spec.payload.clone(),
        idempotency_key: spec.key.clone(),
        compensation,
        compensates: spec.undoes.clone(),
        once: spec.class == EffectClass::AtMostOnce,
    }
}

/// That a budget is used up is told once to each command that it holds up: the event's id follows
/// from the command, the budget and its cap.
fn reached(cap: &CapReached, command_id: &str, note: &mut op::NewEvent) {
    let bound = if cap.hard { "hard" } else { "soft" };
    let which = json::fingerprint(&format!("{}\n{bound}\n{}", cap.meter, cap.cap));
    note.event_id = format!("evt_{command_id}_{}.{}", note.event_type, &which[..16]);
    let mut about: serde_json::Value = serde_json::from_str(&note.payload).unwrap_or_default();
    about["budget"] = cap.meter.as_str().into();
    about["bound"] = bound.into();
    about["cap"] = cap.cap.into();
    about["spent"] = cap.spent.into();
    about["wanted"] = cap.wanted.into();
    note.payload = about.to_string();
}

/// Why the store would not enter it.
pub(super) fn refused(why: String) -> Error {
    match why {
        why if why.ends_with(op::BEGINS_NO_MORE) => {
            Error::new(ErrorClass::Cancelled, "SF-0836", why)
        }
        why if why.ends_with(op::IS_BEING_DONE) => {
            // Once it is known what became of the other one, this one goes on from there.
            let wait = std::time::Duration::from_secs(1);
            Error::new(ErrorClass::RateLimited, "SF-0839", why).retry_after(wait)
        }
        why => Error::new(ErrorClass::Conflict, "SF-0807", why),
    }
}

/// The record of an attempt that is about to be made.
pub(super) fn begun(id: u64, call: &Call) -> Entry {
    let mut record = Record::done(id, 0, &call.name, call.kind, Ok(call.mark()));
    record.state = RecordState::Executing;
    record.input.clone_from(&call.input);
    record.attempt = call.attempt;
    record.started_at = call.started_at;
    Entry { record, replaces: call.recorded, with: None }
}
