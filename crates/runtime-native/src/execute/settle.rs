//! Settling: what became of an effect that a run of the same command left open, found out before
//! the command is taken back.
//!
//! Invariants: while somebody may still be at it, it is left alone; then its own code is found by
//! replaying the run that began it, its receiver is asked, and only what may be repeated and can
//! be undone is made again, with the same key; what nobody can know is for a person to say. The
//! ledger's row is the answer, whoever wrote it.

use std::sync::Arc;

use steadfast_core::connector::default_retry;
use steadfast_core::driver::{Ask, Body, EffectClass, Kind, RecordState};
use steadfast_core::{EffectStatus, Error, ErrorClass, Timestamp};
use steadfast_store::op::{self, Entry, With};

use super::doubt::marked;
use super::govern::begun;
use super::{Execution, Step, driver, look, place, stopped};
use crate::call::{Begun, Call, Ended, Look, Settling};

impl Execution {
    pub(super) async fn begin_settle(
        &mut self,
        id: u64,
        name: String,
        effect_id: String,
    ) -> Step<bool> {
        let nothing: Body = Box::new(|| Box::pin(std::future::pending()));
        let mut call = self.call(name, Kind::Effect, None, nothing, Arc::default());
        let mut settles = Settling { effect_id, way_back: false, later: false, known: None };
        if let Some(known) = self.driver.unfinished(id) {
            call.recorded = true;
            call.attempt = known.attempt;
            call.started_at = known.started_at;
            (call.made_in, call.probes) = marked(&known);
            settles.known = Some(match known.state {
                RecordState::Retrying => Look::Due(known.next_at),
                RecordState::Executing | RecordState::Done => Look::Begun,
            });
        }
        call.settles = Some(settles);
        // Whatever comes of the next attempt, it says nothing of the first.
        call.unclear = true;
        self.settle(id, call).await
    }

    /// Looks at the effect, and does the next thing that is needed. True when its outcome was
    /// delivered.
    pub(super) async fn settle(&mut self, id: u64, mut call: Box<Call>) -> Step<bool> {
        let Some(row) = self.open_effect(&call).await? else {
            self.calls.insert(id, call);
            return Ok(self.attempt_ended(Ended { id, outcome: Ok("null".to_owned()) }));
        };
        let (workspace, run_id) = (self.hub.workspace.clone(), row.run_id.clone());
        let get = op::GetRun { workspace, run_id, now: self.hub.now() };
        let run = self.hub.store.ask(get).await.map_err(stopped)?.0;
        let busy = run.as_ref().and_then(|run| self.at_work(&row, run));
        if let Some(settles) = &mut call.settles {
            settles.later = busy.is_some();
            settles.way_back = row.compensation.is_some();
        }
        if let Some(until) = busy {
            return Ok(self.make_at(id, call, until));
        }
        // Without its code it cannot be repeated. People have allowed it when it was begun.
        (call.once, call.approved) = (true, true);
        if let Some(run) = run {
            let (found, begun) = self.rehearsed(&run, &row).await?;
            take_over(&mut call, found);
            // What the run left open, and what was made again of it and cut off in its turn.
            let own = call.made_in.map(|epoch| Begun {
                run_id: self.run.run_id.clone(),
                place: self.place(id),
                epoch,
                attempt: call.attempt,
            });
            for begun in begun.into_iter().chain(own) {
                call.unentered.extend(call.cut_off(self, id, &begun));
            }
        }
        match call.settles.as_mut().and_then(|settles| settles.known.take()) {
            // It is tried again when its time has come, as the next attempt.
            Some(Look::Due(next_at)) if call.may_repeat() => {
                return Ok(self.make_at(id, call, next_at));
            }
            // A person was asked: nothing is sent any more behind that person's back.
            Some(_) if row.status == EffectStatus::Unknown => call.once = true,
            // A crash in the middle was an attempt, too.
            Some(_) => call.attempt += 1,
            None => {}
        }
        self.reconcile(id, call).await
    }

    /// The effect that a call settles, unless it is known by now what became of it.
    async fn open_effect(&mut self, call: &Call) -> Step<Option<op::EffectRow>> {
        let Some(settles) = &call.settles else { return Ok(None) };
        let found = self.ledger_row(&settles.effect_id.clone()).await?;
        let open = |row: &op::EffectRow| {
            matches!(row.status, EffectStatus::Executing | EffectStatus::Unknown)
        };
        Ok(found.filter(open))
    }

    /// Until when whoever began it may still be at it, if so. The worker of a stopped run lets an
    /// attempt end, says that it is busy, and then says what became of it; and what a worker has
    /// sent before it died may still be on its way.
    fn at_work(&self, row: &op::EffectRow, run: &op::RunRow) -> Option<Timestamp> {
        let (now, lease) = (self.hub.now(), self.config.lease);
        let held = !run.worker.is_empty() && row.status == EffectStatus::Executing;
        let until = match run.finished_at {
            None if held => run.wake_at.max(row.updated_at.after(lease)),
            // Nobody has it: it waits, or it went on without an answer.
            None => row.updated_at.after(lease),
            Some(ended) => ended.max(row.updated_at).after(lease),
        };
        // It may come to its end long before that.
        (until > now).then(|| until.min(now.after(lease / 3)))
    }

    /// What the run asked for when it began the effect, from its code and its records; none if its
    /// code would do something else by now, or if the run itself waits for a person's answer.
    /// And the attempt that the run's record tells of, if it is one of a connector's.
    async fn rehearsed(
        &mut self,
        run: &op::RunRow,
        row: &op::EffectRow,
    ) -> Step<(Option<Ask>, Option<Begun>)> {
        if run.waits.contains(&format!("effect:{}", row.effect_id)) {
            return Ok((None, None));
        }
        let steps = look::records(&self.hub, run).await.map_err(stopped)?;
        let is_it = |id: u64| format!("eff_{}", place(run, id)) == row.effect_id;
        let record = steps.iter().find(|record| is_it(record.id));
        let begun = record.filter(|record| record.state == RecordState::Executing);
        let begun = begun.and_then(|record| {
            let (run_id, place) = (run.run_id.clone(), place(run, record.id));
            Some(Begun { run_id, place, epoch: marked(record).0?, attempt: record.attempt })
        });
        let at = record.map(|record| record.id);
        let code = driver(&self.hub, &self.registry, run, steps);
        let Some((at, code)) = at.zip(code) else {
            return Ok((None, None));
        };
        let ask = code.rehearse([at]).pop().map(|request| request.ask);
        Ok((ask.filter(|ask| is_same(ask, row)), begun))
    }

    /// It is noted as unknown, and nobody is waited for: it could not be undone in any case.
    pub(super) fn leave_unknown(&mut self, id: u64, call: &Call, with: op::Govern) -> bool {
        let now = self.hub.now();
        let Entry { mut record, replaces, .. } = begun(id, call);
        (record.state, record.completed_at) = (RecordState::Done, now);
        record.seq = self.driver.deliver(id, record.outcome.clone(), now);
        let with = Some(With::Govern(Box::new(with)));
        self.urgent = true;
        self.pending.push(Entry { record, replaces, with });
        true
    }
}

impl Call {
    /// Whether what it settles may be made again, to know that it was done before it is undone.
    pub(crate) fn may_repeat(&self) -> bool {
        !self.once && self.settles.as_ref().is_some_and(|settles| settles.way_back)
    }

    /// Whether what it settles is as open as before. That another attempt failed says nothing of
    /// the first one: only the receiver, asked for it, and people can say that it was not done.
    pub(crate) fn is_open_still(&self, error: &Error) -> bool {
        self.settles.is_some() && error.code() != NOT_DONE
    }
}

/// What a call needs of the request that began the effect, to ask for it or to make it again.
fn take_over(call: &mut Call, found: Option<Ask>) {
    let Some(Ask::Effect { class, body, options }) = found else { return };
    call.once = class == EffectClass::AtMostOnce;
    call.body = Arc::new(body);
    call.real_body = call.body.clone();
    call.options = options;
    if call.options.retry.max_attempts() < 2 {
        // What must be undone is worth another try.
        Arc::make_mut(&mut call.options).retry = default_retry();
    }
}

/// Whether a request asks for what the ledger has on record.
fn is_same(ask: &Ask, row: &op::EffectRow) -> bool {
    let Ask::Effect { options, .. } = ask else { return false };
    let spec = options.guard.as_ref().and_then(|guard| guard.effect.as_ref());
    spec.is_some_and(|spec| {
        let (key, payload) = (&row.idempotency_key, &row.payload);
        spec.effect_type == row.effect_type && spec.key == *key && spec.payload == *payload
    })
}

/// The code of the errors by which a receiver, or a person, says that it was not done.
pub(super) const NOT_DONE: &str = "SF-0832";

/// What the receiver said, as an outcome.
pub(super) fn not_done() -> Error {
    let text = "the receiver says that the effect was not performed; its command is taken back";
    Error::new(ErrorClass::Application, NOT_DONE, text).permanent()
}
