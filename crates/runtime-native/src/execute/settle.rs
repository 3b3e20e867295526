//! Settling: what became of an effect that a run of the same command left open, found out before
//! the command is taken back.
//!
//! Invariants: while somebody may still be at it, it is left alone; then its own code is found by
//! replaying the run that began it, its receiver is asked, and only what may be repeated and can
//! be undone is made again, with the same key; what nobody can know is for a person to say. The
//! ledger's row is the answer, whoever wrote it.

use std::sync::Arc;

use steadfast_core::connector::default_retry;
use steadfast_core::driver::{Ask, Body, CallOptions, EffectClass, Kind, RecordState};
use steadfast_core::{EffectStatus, Error, ErrorClass, Timestamp};
use steadfast_store::StoreExt;
use steadfast_store::op::{self, Entry, With};

use super::govern::begun;
use super::{Execution, Step, driver, place, stopped};
use crate::call::{Call, Ended, Settling};
use crate::waits::Wait;

impl Execution {
    pub(super) async fn begin_settle(
        &mut self,
        id: u64,
        name: String,
        effect_id: String,
    ) -> Step<bool> {
        let nothing: Body = Box::new(|| Box::pin(std::future::pending()));
        let mut call = self.call(name, Kind::Effect, None, nothing, CallOptions::default());
        call.settles = Some(Settling { effect_id, way_back: false, later: false });
        if let Some(known) = self.driver.unfinished(id) {
            call.recorded = true;
            call.attempt = known.attempt;
            call.started_at = known.started_at;
        }
        self.settle(id, call).await
    }

    /// Looks at the effect, and does the next thing that is needed. True when its outcome was
    /// delivered.
    pub(super) async fn settle(&mut self, id: u64, mut call: Call) -> Step<bool> {
        let Some(row) = self.open_effect(&call).await? else {
            self.calls.insert(id, call);
            return Ok(self.attempt_ended(Ended { id, outcome: Ok("null".to_owned()) }));
        };
        let (workspace, run_id) = (self.hub.workspace.clone(), row.run_id.clone());
        let get = op::GetRun { workspace, run_id };
        let run = self.hub.store.ask(get).await.map_err(stopped)?.0;
        let busy = run.as_ref().and_then(|run| self.at_work(&row, run));
        if let Some(settles) = &mut call.settles {
            settles.later = busy.is_some();
            settles.way_back = row.compensation.is_some();
        }
        if let Some(until) = busy {
            let (name, attempt) = (call.name.clone(), call.attempt);
            self.waits.insert(id, Wait::Retry { name, attempt, until });
            self.calls.insert(id, call);
            return Ok(false);
        }
        // Without its code it cannot be repeated. People have allowed it when it was begun.
        (call.once, call.approved) = (true, true);
        if let Some(run) = run
            && let Some(Ask::Effect { class, body, options }) =
                self.rehearsed(&run, &row.effect_id).await?
        {
            call.once = class == EffectClass::AtMostOnce;
            call.body = Arc::new(body);
            call.real_body = call.body.clone();
            call.options = options;
            if call.options.retry.max_attempts() < 2 {
                // What must be undone is worth another try.
                call.options.retry = default_retry();
            }
        }
        self.reconcile(id, call).await
    }

    /// The effect that a call settles, unless it is known by now what became of it.
    async fn open_effect(&mut self, call: &Call) -> Step<Option<op::EffectRow>> {
        let list = op::ListEffects {
            workspace: self.hub.workspace.clone(),
            effect_id: call.settles.as_ref().map(|settles| settles.effect_id.clone()),
            limit: 1,
            ..op::ListEffects::default()
        };
        let found = self.hub.store.ask(list).await.map_err(stopped)?.0;
        let open = |row: &op::EffectRow| {
            matches!(row.status, EffectStatus::Executing | EffectStatus::Unknown)
        };
        Ok(found.into_iter().find(open))
    }

    /// Until when whoever began it may still be at it, if so. The worker of a stopped run lets an
    /// attempt end, says that it is busy, and then says what became of it; and what a worker has
    /// sent before it died may still be on its way.
    fn at_work(&self, row: &op::EffectRow, run: &op::RunRow) -> Option<Timestamp> {
        let (now, lease) = (self.hub.now(), self.config.lease);
        let until = match run.finished_at {
            None => now.after(lease / 3),
            Some(ended) => ended.max(row.updated_at).after(lease),
        };
        (until > now).then_some(until)
    }

    /// What the run asked for when it began the effect, from its code and its records.
    async fn rehearsed(&mut self, run: &op::RunRow, effect_id: &str) -> Step<Option<Ask>> {
        let load = op::Load {
            workspace: self.hub.workspace.clone(),
            run_id: run.run_id.clone(),
            steps: true,
            children: Vec::new(),
            names: Vec::new(),
        };
        let steps = self.hub.store.ask(load).await.map_err(stopped)?.steps;
        let is_it = |id: u64| format!("eff_{}", place(run, id)) == effect_id;
        let at = steps.iter().map(|record| record.id).find(|id| is_it(*id));
        let code = driver(&self.hub, &self.registry, run, steps);
        let Some((at, code)) = at.zip(code) else {
            return Ok(None);
        };
        Ok(code.rehearse([at]).pop().map(|request| request.ask))
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

    /// Whether what it settles is as open as before, whatever came of the last attempt to know.
    pub(crate) fn is_open_still(&self, error: &Error) -> bool {
        let unclear = error.is_retryable() || error.class() == ErrorClass::Panic;
        self.settles.is_some() && (self.blocked || unclear)
    }
}

/// What the receiver said, as an outcome.
pub(super) fn not_done() -> Error {
    let text = "the receiver says that the effect was not performed; its command is taken back";
    Error::new(ErrorClass::Application, "SF-0832", text).permanent()
}
