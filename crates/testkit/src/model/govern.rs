//! The ledger and the meters.
//!
//! Invariants: an effect is entered once and moves by its arrows; what is taken from meters is
//! taken as a whole.

use std::time::Duration;

use steadfast_core::{CommandEvent, CommandStatus, EffectEvent, EffectStatus, Error, Timestamp};
use steadfast_store::op::{
    BUDGET_METERS, BudgetRow, Budgets, Charge, EffectChange, EffectRow, Effects, EnterCalls,
    Entered, EventRow, Govern, Health, InvocationRow, Invocations, Lease, ListBudgets, ListEffects,
    ListInvocations, MARK_TIME, MARKS, NewEffect, Resolve, ResolvedEffect, Signal, Spend, Spent,
    SweepMeters, Swept, Take, Truth, is_stopped, met, not_begun, past_at,
};

use super::command::Step;
use super::{Model, key, numbered};

impl Model {
    /// Writes what belongs to a governed record, or says why that cannot be.
    pub(super) fn govern(&mut self, lease: &Lease, what: &Govern) -> Result<(), String> {
        let (ws, run_id) = (lease.workspace.as_str(), lease.run_id.as_str());
        if let Some(seq) = what.consume {
            self.signals.edit(&numbered(ws, run_id, seq), |signal| signal.consumed = true);
        }
        let mut moved = false;
        if let Some(change) = &what.effect {
            moved = self.change_effect(ws, run_id, what, change)?;
        }
        let mut new = true;
        for call in &what.invocations {
            new = self.called(ws, call);
        }
        if let Some(asked) = &what.approval {
            self.ask(ws, &what.command_id, run_id, asked, what.now);
        }
        if what.invocations.is_empty() && !what.charges.is_empty() {
            new = self.once(ws, &what.charged_as, what.now);
        }
        if let Some(health) = what.health.as_ref().filter(|_| new) {
            self.report_health(ws, health, what);
        }
        if new {
            self.charge(ws, &what.charges);
        }
        if let Some(effect_id) = &what.undone {
            self.effects.edit(&key(ws, effect_id), |effect| {
                if effect.compensated_at.is_none() {
                    effect.compensated_at = Some(what.now);
                    effect.updated_at = what.now;
                }
            });
        }
        let status = self.status_of(ws, &what.command_id);
        if what.blocks && moved {
            let step = Step::new(CommandEvent::Block, &what.actor, what.now);
            self.step(ws, &what.command_id, &step);
        } else if what.consume.is_some() && status == Some(CommandStatus::Blocked) {
            let step = Step::new(CommandEvent::Run, &what.actor, what.now);
            self.step(ws, &what.command_id, &step);
        }
        for new in &what.events {
            let event = EventRow {
                event_id: new.event_id.clone(),
                command_id: what.command_id.clone(),
                purpose: new.purpose.to_owned(),
                event_type: new.event_type.clone(),
                payload: new.payload.clone(),
                actor: what.actor.clone(),
                trace_id: what.trace_id.clone(),
                created_at: what.now,
            };
            self.put_event(ws, event);
        }
        Ok(())
    }

    fn called(&mut self, ws: &str, call: &InvocationRow) -> bool {
        let at = key(ws, &call.invocation_id);
        let new = !self.invocations.has(&at);
        if new {
            self.invocations.put(at, call.clone());
        }
        new
    }

    pub(super) fn enter_calls(&mut self, op: &EnterCalls) -> Entered {
        let ws = op.lease.workspace.as_str();
        let entered = op.calls.iter().map(|call| u64::from(self.called(ws, call))).sum();
        if entered > 0 {
            self.charge(ws, &op.charges);
        }
        Entered(entered)
    }

    /// Writes an event, unless one of its id is there.
    pub(super) fn put_event(&mut self, ws: &str, event: EventRow) {
        let at = key(ws, &event.event_id);
        if !self.events.has(&at) {
            self.events.put(at, event);
        }
    }

    fn change_effect(
        &mut self,
        ws: &str,
        run_id: &str,
        what: &Govern,
        change: &EffectChange,
    ) -> Result<bool, String> {
        let status = self.status_of(ws, &what.command_id).filter(|status| is_stopped(*status));
        if what.child
            && !matches!(change, EffectChange::Move { .. })
            && let Some(status) = status
        {
            return Err(not_begun(&what.command_id, status));
        }
        if let EffectChange::Begin(new) = change
            && new.once
        {
            let other = |effect: &&EffectRow| {
                let open = !matches!(effect.status, EffectStatus::Planned | EffectStatus::Failed);
                effect.effect_id != new.effect_id
                    && effect.effect_type == new.effect_type
                    && effect.idempotency_key == new.idempotency_key
                    && effect.compensated_at.is_none()
                    && effect.compensates == new.compensates
                    && open
            };
            if let Some(other) = self.effects_of(ws).find(other) {
                return Err(met(new, other));
            }
        }
        Ok(match change {
            EffectChange::Plan(new) => self.enter(ws, run_id, what, new, EffectStatus::Planned)?,
            EffectChange::Begin(new) if self.effects.has(&key(ws, &new.effect_id)) => {
                self.move_effect(ws, &new.effect_id, EffectEvent::Begin, (None, None), what)
            }
            EffectChange::Begin(new) => {
                self.enter(ws, run_id, what, new, EffectStatus::Executing)?
            }
            EffectChange::Move { effect_id, event, result, error } => {
                self.move_effect(ws, effect_id, *event, (result.clone(), error.clone()), what)
            }
        })
    }

    fn enter(
        &mut self,
        ws: &str,
        run_id: &str,
        what: &Govern,
        new: &NewEffect,
        status: EffectStatus,
    ) -> Result<bool, String> {
        let of = |effect: &&EffectRow| effect.command_id == what.command_id;
        let known: Vec<EffectRow> = self.effects_of(ws).filter(of).cloned().collect();
        let clash = known.iter().find(|effect| {
            effect.effect_type == new.effect_type
                && effect.idempotency_key == new.idempotency_key
                && effect.compensates == new.compensates
                && effect.payload != new.payload
                && effect.effect_id != new.effect_id
        });
        if clash.is_some() {
            return Err(format!(
                "effect \"{}\" of this command has the key \"{}\" already, with another payload",
                new.effect_type, new.idempotency_key
            ));
        }
        let at = key(ws, &new.effect_id);
        if self.effects.has(&at) {
            return Ok(false);
        }
        let row = EffectRow {
            effect_id: new.effect_id.clone(),
            command_id: what.command_id.clone(),
            run_id: run_id.to_owned(),
            ordinal: known.iter().map(|effect| effect.ordinal).max().unwrap_or(0) + 1,
            effect_type: new.effect_type.clone(),
            payload: new.payload.clone(),
            idempotency_key: new.idempotency_key.clone(),
            status,
            result: None,
            error: None,
            compensates: new.compensates.clone(),
            compensation: new.compensation.clone(),
            compensated_at: None,
            created_at: what.now,
            updated_at: what.now,
            completed_at: None,
        };
        self.effects.put(at, row);
        Ok(true)
    }

    fn move_effect(
        &mut self,
        ws: &str,
        effect_id: &str,
        event: EffectEvent,
        (result, error): (Option<String>, Option<Error>),
        what: &Govern,
    ) -> bool {
        let at = key(ws, effect_id);
        let Some(arrow) = self.effects.get(&at).and_then(|e| e.status.on(event).ok()) else {
            return false;
        };
        self.effects.edit(&at, |effect| {
            effect.status = arrow.to();
            effect.result = result;
            effect.error = error;
            effect.updated_at = what.now;
            effect.completed_at = arrow.to().is_terminal().then_some(what.now);
        })
    }

    pub(super) fn effects_of(&self, ws: &str) -> impl Iterator<Item = &EffectRow> {
        let all = self.effects.iter().filter(move |((of, _), _)| of == ws);
        all.map(|(_, effect)| effect).collect::<Vec<_>>().into_iter()
    }

    pub(super) fn resolve(&mut self, op: &Resolve) -> ResolvedEffect {
        let ws = op.workspace.as_str();
        let Some(known) = self.effects.get(&key(ws, &op.effect_id)).cloned() else {
            return ResolvedEffect::NotFound;
        };
        let undoing = self.undoing(ws, &known.command_id);
        let what = Govern { now: op.now, ..Govern::default() };
        let over = self.run(ws, &known.run_id).is_none_or(|run| run.status.is_terminal());
        let mut known = known;
        if over
            && undoing.is_none()
            && known.status == EffectStatus::Executing
            && self.move_effect(ws, &op.effect_id, EffectEvent::Lose, (None, None), &what)
        {
            known.status = EffectStatus::Unknown;
        }
        let (last, same) = self.last_said(op, &known);
        let repeated = same && last == Some(op.now);
        if repeated || known.status != EffectStatus::Unknown {
            return match same {
                true => ResolvedEffect::Done,
                false => ResolvedEffect::Known(known.status),
            };
        }
        let (event, result) = match &op.truth {
            Truth::Done(result) => (EffectEvent::Succeed, Some(result.clone())),
            Truth::NotDone => (EffectEvent::Fail, None),
            Truth::Again => (EffectEvent::Begin, None),
        };
        self.move_effect(ws, &op.effect_id, event, (result.clone(), None), &what);
        if let Some(command) = self.commands.get(&key(ws, &known.command_id)).cloned() {
            let step = Step::new(CommandEvent::Run, &op.actor, op.now);
            self.step(ws, &known.command_id, &step);
            let payload = serde_json::json!({
                "effect_id": known.effect_id, "truth": op.truth.as_str(), "reason": op.reason,
            });
            let at = op.now.as_micros();
            let event_id = format!("evt_{}_e{}r{at:020}", known.command_id, known.effect_id);
            let (id, context) = (&known.command_id, &command.row.context);
            let kind = "effect.resolved";
            self.audit(ws, id, context, event_id, kind, &payload, &op.actor, op.now);
        }
        let truth = op.truth.as_str();
        for run_id in std::iter::once(&known.run_id).chain(&undoing) {
            self.tell_truth(ws, run_id, &known.effect_id, truth, result.as_ref(), op.now);
        }
        ResolvedEffect::Done
    }

    /// When something was last said of an effect, and whether it was this by the same person.
    fn last_said(&self, op: &Resolve, known: &EffectRow) -> (Option<Timestamp>, bool) {
        let of_it = |event: &EventRow| {
            let payload: serde_json::Value = serde_json::from_str(&event.payload).unwrap();
            event.command_id == known.command_id
                && event.event_type == "effect.resolved"
                && payload["effect_id"] == known.effect_id.as_str()
        };
        let of = self.events.iter().filter(|((ws, _), event)| *ws == op.workspace && of_it(event));
        let Some((_, last)) = of.max_by_key(|(_, event)| event.created_at) else {
            return (None, false);
        };
        let payload: serde_json::Value = serde_json::from_str(&last.payload).unwrap();
        let same = match &op.truth {
            Truth::Done(result) => known.result.as_ref() == Some(result),
            Truth::NotDone | Truth::Again => true,
        };
        let same = same && last.actor == op.actor && payload["truth"] == op.truth.as_str();
        (Some(last.created_at), same)
    }

    /// Tells the run that waits for it what became of an effect.
    pub(super) fn tell_truth(
        &mut self,
        ws: &str,
        run_id: &str,
        effect_id: &str,
        truth: &str,
        result: Option<&String>,
        now: Timestamp,
    ) {
        let told = Signal {
            workspace: ws.to_owned(),
            run_id: run_id.to_owned(),
            name: format!("effect:{effect_id}"),
            signal_id: format!("effect:{effect_id}:{}", now.as_micros()),
            payload: serde_json::json!({ "truth": truth, "result": result }).to_string(),
            now,
        };
        self.signal(&told);
    }

    pub(super) fn list_effects(&self, op: &ListEffects) -> Effects {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|w| w == value);
        let mut found: Vec<EffectRow> = self
            .effects_of(&op.workspace)
            .filter(|e| is(&op.command_id, &e.command_id) && is(&op.key, &e.idempotency_key))
            .filter(|e| is(&op.effect_id, &e.effect_id))
            .filter(|e| op.status.is_none_or(|status| status == e.status))
            .filter(|e| !op.to_undo || super::saga::is_to_undo(e))
            .cloned()
            .collect();
        found.sort_by_key(|e| (e.command_id.clone(), e.ordinal, e.effect_id.clone()));
        if op.last_first {
            found.reverse();
        }
        found.truncate(op.limit);
        Effects(found)
    }

    pub(super) fn list_invocations(&self, op: &ListInvocations) -> Invocations {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|w| w == value);
        let after = |call: &InvocationRow| {
            let at = (call.created_at, call.invocation_id.clone());
            op.after.as_ref().is_none_or(|after| at > *after)
        };
        let mut found: Vec<InvocationRow> = self
            .invocations
            .iter()
            .filter(|((ws, _), _)| *ws == op.workspace)
            .map(|(_, call)| call.clone())
            .filter(|c| is(&op.command_id, &c.command_id) && is(&op.connector, &c.connector))
            .filter(after)
            .collect();
        found.sort_by_key(|c| (c.created_at, c.invocation_id.clone()));
        found.truncate(op.limit);
        Invocations(found)
    }

    pub(super) fn list_budgets(&self, op: &ListBudgets) -> Budgets {
        let mine = self.meters.iter().filter(|((ws, _), _)| *ws == op.workspace);
        let asked = |meter: &String| op.meters.is_empty() || op.meters.contains(meter);
        let mut found: Vec<BudgetRow> = mine
            .filter(|((_, meter), (spent, _))| meter.starts_with(BUDGET_METERS) && *spent != 0)
            .filter(|((_, meter), _)| asked(meter) && op.after.as_ref().is_none_or(|a| meter > a))
            .map(|((_, meter), (spent, at))| BudgetRow {
                meter: meter.clone(),
                spent: *spent,
                until: (*at > 0).then(|| Timestamp::from_micros(*at)),
            })
            .collect();
        found.sort_by_key(|row| row.meter.clone());
        found.truncate(op.limit);
        Budgets(found)
    }

    pub(super) fn spend(&mut self, op: &Spend) -> Spent {
        let ws = op.workspace.as_str();
        let now = op.now.as_micros();
        if self.is_marked(ws, &op.nonce) {
            return Spent::Done;
        }
        let mut takes: Vec<&Take> = op.takes.iter().collect();
        takes.sort_by(|a, b| a.meter().cmp(b.meter()));
        let mut after = Vec::new();
        for take in takes {
            let (amount, at) = self.meters.get(&key(ws, take.meter())).copied().unwrap_or_default();
            let short = |until: Option<i64>| {
                let until = until.map(steadfast_core::Timestamp::from_micros);
                Spent::Short { meter: take.meter().to_owned(), spent: amount, until }
            };
            let next = match take {
                Take::Rate { calls, per, .. } => {
                    let each = (micros(*per) / i64::from((*calls).max(1))).max(1);
                    let full = at.max(now) + each;
                    if full - now > micros(*per) {
                        return short(Some(full - micros(*per)));
                    }
                    (amount, full)
                }
                Take::Budget { amount: more, cap, until, .. } => {
                    if amount + more > *cap {
                        return short(None);
                    }
                    (amount + more, until.map_or(at, |until| at.max(until.as_micros())))
                }
                Take::Breaker { .. } if at > now => return short(Some(at)),
                Take::Breaker { failures, cool_down, .. } => {
                    let trial = amount >= i64::from(*failures);
                    (amount, if trial { now + micros(*cool_down) } else { at })
                }
            };
            if next != (amount, at) {
                after.push((take.meter().to_owned(), next));
            }
        }
        self.once(ws, &op.nonce, op.now);
        for (meter, value) in after {
            self.meters.put(key(ws, &meter), value);
        }
        Spent::Done
    }

    fn is_marked(&self, ws: &str, name: &str) -> bool {
        !name.is_empty() && self.meters.has(&key(ws, &format!("{MARKS}{name}")))
    }

    /// Whether a request of this name is carried out for the first time.
    fn once(&mut self, ws: &str, name: &str, now: Timestamp) -> bool {
        let new = !self.is_marked(ws, name);
        if new && !name.is_empty() {
            let at = now.after(MARK_TIME).as_micros();
            self.meters.put(key(ws, &format!("{MARKS}{name}")), (0, at));
        }
        new
    }

    pub(super) fn sweep_meters(&mut self, op: &SweepMeters) -> Swept {
        let past = self.meters.iter().filter_map(|((ws, meter), (amount, moment))| {
            let at = past_at(*moment).filter(|at| *at <= op.now.as_micros())?;
            let may = *amount == 0 || meter.starts_with(BUDGET_METERS);
            (*ws == op.workspace && may).then(|| (at, key(ws, meter)))
        });
        let mut past: Vec<_> = past.collect();
        past.sort();
        past.truncate(op.limit);
        for (_, at) in &past {
            self.meters.remove(at);
        }
        Swept(past.len() as u64)
    }

    fn charge(&mut self, ws: &str, charges: &[Charge]) {
        for charge in charges {
            let at = key(ws, &charge.meter);
            let (amount, moment) = self.meters.get(&at).copied().unwrap_or_default();
            let kept = charge.until.map_or(moment, |until| moment.max(until.as_micros()));
            self.meters.put(at, ((amount + charge.amount).max(0), kept));
        }
    }

    fn report_health(&mut self, ws: &str, health: &Health, what: &Govern) {
        let at = key(ws, &health.meter);
        let (amount, moment) = self.meters.get(&at).copied().unwrap_or_default();
        let next = match health.ok {
            true => (0, 0),
            false if amount + 1 >= i64::from(health.failures) => {
                (amount + 1, what.now.as_micros() + micros(health.cool_down))
            }
            false => (amount + 1, moment),
        };
        self.meters.put(at, next);
    }
}

fn micros(d: Duration) -> i64 {
    steadfast_core::time::micros(d)
}
