//! Beginning what the code asks for.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures::{FutureExt, StreamExt};
use steadfast_core::driver::{
    Ask, Body, CallOptions, ChildStart, EffectClass, Kind, Record, RecordState, Request,
};
use steadfast_core::{Error, ErrorClass, Timestamp};
use steadfast_store::op::{self, Entry, With};

use super::{Execution, Exit, Step};
use crate::call::{Attempt, Call, Ended};
use crate::waits::Wait;

impl Execution {
    /// Begins one request; true when its outcome was delivered at once.
    pub(super) async fn begin(&mut self, request: Request) -> Step<bool> {
        if self.draining && leaves(&request.ask) {
            // Asked for again when the run is claimed elsewhere.
            return Ok(false);
        }
        let Request { id, name, input, input_digest, asked_at, ask } = request;
        self.digests.extend(input_digest.map(|digest| (id, digest)));
        let kind = ask.kind();
        if self.refuses(id, &name, &ask) {
            return Ok(true);
        }
        match ask {
            Ask::Call { verb: _, body, options } => {
                let call = self.call(name, kind, input, body, options);
                return self.begin_call(id, call).await;
            }
            Ask::Effect { class, body, options } => {
                let call = self.call(name, kind, input, body, options);
                return Box::pin(self.begin_effect(id, class, call)).await;
            }
            Ask::Settle { effect_id } => {
                return Box::pin(self.begin_settle(id, name, effect_id)).await;
            }
            Ask::Approval(request) => {
                let nothing: Body = Box::new(|| Box::pin(std::future::pending()));
                let call = self.call(name, kind, input, nothing, Arc::default());
                return Box::pin(self.begin_approval(id, call, &request)).await;
            }
            Ask::Emit { payload, audit } => {
                self.emit(id, &name, &payload, audit);
                return Ok(true);
            }
            Ask::Undone { effect_id, compensation } => {
                self.undone(id, &name, effect_id, &compensation);
                return Ok(true);
            }
            Ask::Transaction(work) => return Box::pin(self.transact(id, &name, work)).await,
            Ask::Sleep { until } => {
                self.waits.insert(id, Wait::Sleep { asked_at, until });
            }
            Ask::Signal { until } => {
                self.waits.insert(id, Wait::Signal { name, asked_at, until });
            }
            Ask::Join { run_id } => {
                // It may be over already; if not, its end will be announced.
                self.look = true;
                let look_at = self.next_glance();
                self.waits.insert(id, Wait::Child { run_id, asked_at, look_at });
            }
            Ask::Publish { key, value } => {
                return Ok(self.deliver_with(id, &name, kind, With::Publish { key, value }));
            }
            Ask::Append { stream, item } => {
                return Ok(self.deliver_with(id, &name, kind, With::Append { stream, item }));
            }
            Ask::Send { to, signal, payload } => {
                let sent = self.signal(id, to, signal, payload);
                return Box::pin(self.send(id, &name, sent)).await;
            }
            Ask::Spawn(child) => return Box::pin(self.spawn(id, &name, child)).await,
        }
        Ok(false)
    }

    /// Whether the run may not do what changes the world without leaving by the gate. The audit is
    /// told.
    fn refuses(&mut self, id: u64, name: &str, ask: &Ask) -> bool {
        let changes = matches!(ask, Ask::Transaction(_) | Ask::Send { .. });
        let gate = self.registry.gate.as_ref().filter(|_| changes);
        let kind = ask.kind();
        let judged = gate.and_then(|gate| gate.refuses(&self.context, kind.as_str()));
        let Some(judgement) = judged else { return false };
        let mut payload = judgement.to_json();
        payload["step"] = name.into();
        let events = vec![self.note(id, 1, "policy.evaluated", "audit", payload)];
        let with = With::Govern(Box::new(op::Govern { events, ..self.govern() }));
        let denial = judgement.denial().unwrap_or_else(|| Error::app("refused"));
        self.urgent = true;
        self.deliver(id, name, kind, Err(denial), Some(with));
        true
    }

    /// Starts a child; its run id is the outcome.
    async fn spawn(&mut self, id: u64, name: &str, child: ChildStart) -> Step<bool> {
        let run_id = child.run_id.clone();
        if let Err(refusal) = steadfast_core::key::check("run id", &run_id) {
            self.deliver(id, name, Kind::Spawn, Err(refusal), None);
            return Ok(true);
        }
        let value = serde_json::Value::from(run_id.as_str()).to_string();
        let start = Box::new(self.child(child));
        self.commit_with(id, name, Kind::Spawn, With::Spawn(start), value).await?;
        self.hub.ready.ring();
        Ok(true)
    }

    /// Tells another run something. Nobody is told what is only shown.
    async fn send(&mut self, id: u64, name: &str, sent: op::Signal) -> Step<bool> {
        let null = "null".to_owned();
        match self.context.dry_run {
            true => self.deliver(id, name, Kind::Send, Ok(null), None),
            false => self.commit_with(id, name, Kind::Send, With::Send(sent), null).await?,
        }
        Ok(true)
    }

    /// Notes that an effect was taken back.
    fn undone(&mut self, id: u64, name: &str, effect_id: String, compensation: &str) {
        self.hub.metrics.compensated(&self.context.command_type, compensation);
        let undone = Some(effect_id);
        let with = With::Govern(Box::new(op::Govern { undone, ..self.govern() }));
        self.deliver_with(id, name, Kind::Undone, with);
    }

    /// An event of the code's own, in the next commit.
    fn emit(&mut self, id: u64, name: &str, payload: &str, audit: bool) {
        let purpose = if audit { "audit" } else { "event" };
        let payload = serde_json::from_str(payload).unwrap_or_default();
        let events = vec![self.note(id, 1, name, purpose, payload)];
        let with = With::Govern(Box::new(op::Govern { events, ..self.govern() }));
        self.deliver(id, name, Kind::Emit, Ok("null".to_owned()), Some(with));
    }

    pub(super) fn call(
        &self,
        name: String,
        kind: Kind,
        input: Option<String>,
        body: Body,
        options: Arc<CallOptions>,
    ) -> Box<Call> {
        let body = Arc::new(body);
        let now = self.hub.now();
        Box::new(Call {
            name,
            kind,
            once: false,
            input,
            real_body: body.clone(),
            body,
            options,
            attempt: 1,
            recorded: false,
            started_at: now,
            abort: None,
            began_at: now,
            governed: false,
            blocked: false,
            begun: false,
            unclear: false,
            sent: false,
            approved: false,
            doubt: None,
            probing: false,
            probes: 0,
            made_in: None,
            asking: None,
            settles: None,
            consume: None,
            notes: Vec::new(),
            unentered: Vec::new(),
            taken: Vec::new(),
            price: None,
        })
    }

    async fn begin_call(&mut self, id: u64, mut call: Box<Call>) -> Step<bool> {
        if let Some(known) = self.driver.unfinished(id) {
            call.recorded = true;
            call.attempt = known.attempt;
            call.started_at = known.started_at;
            // The error on record speaks for all attempts before it.
            call.unclear = match &known.outcome {
                Err(error) => error.is_unclear(),
                Ok(_) => known.attempt > 1,
            };
            call.begun = call.unclear;
            if known.next_at == Timestamp::NEVER {
                // It waited for people: they may have answered.
                return self.leave(id, call).await;
            }
            let (name, attempt, until) = (call.name.clone(), call.attempt, known.next_at);
            self.calls.insert(id, call);
            self.waits.insert(id, Wait::Retry { name, attempt, until });
            return Ok(false);
        }
        self.leave(id, call).await
    }

    /// When to look after a child by ourselves. Only the run that started a child is told of its
    /// end, and a fork may join what its source has started.
    fn next_glance(&self) -> Timestamp {
        match self.run.forked_from.is_empty() {
            true => Timestamp::NEVER,
            false => self.hub.now().after(self.config.lease),
        }
    }

    /// Attempts whose time has come; true when one of them came to its end at once.
    pub(super) async fn begin_due_retries(&mut self) -> Step<bool> {
        if self.draining {
            return Ok(false);
        }
        let now = self.hub.now();
        let due: Vec<u64> = self
            .waits
            .iter()
            .filter(|(_, wait)| matches!(wait, Wait::Retry { until, .. } if *until <= now))
            .map(|(id, _)| *id)
            .collect();
        match due.is_empty() {
            true => Ok(false),
            false => Box::pin(self.begin_again(due)).await,
        }
    }

    async fn begin_again(&mut self, due: Vec<u64>) -> Step<bool> {
        for id in due {
            self.waits.remove(&id);
            let Some(mut call) = self.calls.remove(&id) else {
                continue;
            };
            if call.settles.as_ref().is_some_and(|settles| settles.later) {
                if self.settle(id, call).await? {
                    return Ok(true);
                }
                continue;
            }
            if call.doubt.is_some() || call.probes > 0 {
                if self.reconcile(id, call).await? {
                    return Ok(true);
                }
                continue;
            }
            call.attempt += 1;
            if self.leave(id, call).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// An effect is recorded as begun before it is performed. Found begun, its class decides.
    async fn begin_effect(
        &mut self,
        id: u64,
        class: EffectClass,
        mut call: Box<Call>,
    ) -> Step<bool> {
        call.once = class == EffectClass::AtMostOnce;
        if let Some(known) = self.driver.unfinished(id) {
            if known.state == RecordState::Retrying {
                return self.begin_call(id, call).await;
            }
            call.recorded = true;
            call.attempt = known.attempt;
            call.started_at = known.started_at;
            (call.begun, call.unclear) = (true, true);
            self.found_begun(id, &mut call, &known);
            if let Some(outcome) = self.told_late(id).await? {
                (call.begun, call.unclear) = (false, false);
                self.calls.insert(id, call);
                return Ok(self.attempt_ended(Ended { id, outcome }));
            }
            if call.once {
                return self.reconcile(id, call).await;
            }
        }
        self.leave(id, call).await
    }

    /// What must be true before something leaves the process: every record is durable, and the
    /// lease is still ours for a while.
    pub(super) async fn before_leaving(&mut self) -> Step {
        self.flush().await?;
        if !self.lease_lasts() {
            return Err(Exit::Stopped);
        }
        // A run that comes back after its deadline begins nothing more.
        self.check_deadline().await
    }

    /// Makes an attempt; true when its outcome was delivered at once. Most bodies wait for
    /// something and are tasks of their own, but one that is alone is first looked at here: what
    /// it does without waiting needs no task. Not reads: nothing is written between them, so code
    /// that reads on and on would let nobody else have a turn.
    pub(super) async fn attempt(&mut self, id: u64, mut call: Box<Call>) -> bool {
        call.began_at = self.hub.now();
        call.sent = !call.probing;
        call.begun |= call.sent;
        let attempt = Attempt {
            hub: self.hub.clone(),
            lease: self.lease.clone(),
            lease_for: self.config.lease,
            lease_until: self.lease_until.clone(),
            id,
            kind: if call.probing { "probe of effect" } else { call.kind.as_str() },
            name: call.name.clone(),
            attempt: call.attempt,
            body: call.body.clone(),
            options: call.options.clone(),
            ended: self.end.clone(),
        };
        let (mut task, abort) = attempt.task();
        call.abort = Some(abort);
        let is_alone = self.running.is_empty() && self.backlog.is_empty();
        let is_inline = is_alone && call.kind != Kind::Read;
        self.running.insert(id);
        self.calls.insert(id, call);
        if is_inline && poll_fn(|cx| Poll::Ready(task.as_mut().poll(cx).is_ready())).await {
            return match self.ended.next().now_or_never() {
                Some(Some(ended)) => self.attempt_ended(ended),
                _ => false,
            };
        }
        self.hub.env.spawn("step", task);
        false
    }

    /// Runs the caller's SQL and records it in one commit.
    async fn transact(
        &mut self,
        id: u64,
        name: &str,
        work: Box<dyn std::any::Any + Send + Sync>,
    ) -> Step<bool> {
        if self.context.dry_run {
            let text = format!("\"{name}\" would write in a transaction, and a dry run does not");
            let refusal = Error::new(ErrorClass::PolicyDenied, "SF-0840", text);
            self.deliver(id, name, Kind::Transaction, Err(refusal), None);
            return Ok(true);
        }
        self.before_leaving().await?;
        let now = self.hub.now();
        // The delivery number is needed before the outcome is known: nothing else is delivered
        // between.
        let mut record =
            Record::done(id, self.driver.next_seq(), name, Kind::Transaction, Ok("null".into()));
        (record.started_at, record.completed_at) = (now, now);
        let entries = vec![Entry { record, replaces: false, with: None }];
        let entries = self.with_digests(entries);
        let records = op::Record { lease: self.lease.clone(), entries, now };
        let (written, outcome) = match self.hub.store.transact(records, work).await {
            Ok(done) => done,
            Err(steadfast_store::Error::Refused(why)) => {
                // Work for another database, say: the code is told, and may go on.
                let refusal = Error::new(ErrorClass::Store, "SF-0403", why);
                self.deliver(id, name, Kind::Transaction, Err(refusal), None);
                return Ok(true);
            }
            Err(error) => return Err(super::stopped(error)),
        };
        match written {
            op::Written::Done => {
                self.driver.deliver(id, outcome, now);
                Ok(true)
            }
            op::Written::Fenced | op::Written::Refused(_) => Err(Exit::Stopped),
        }
    }

    /// Delivers it with what its record brings; true, as its outcome was delivered.
    fn deliver_with(&mut self, id: u64, name: &str, kind: Kind, with: With) -> bool {
        self.urgent = true;
        self.deliver(id, name, kind, Ok("null".to_owned()), Some(with));
        true
    }

    /// Commits something that may be refused, and delivers what came of it.
    async fn commit_with(
        &mut self,
        id: u64,
        name: &str,
        kind: Kind,
        with: With,
        value: String,
    ) -> Step {
        self.flush().await?;
        let now = self.hub.now();
        let mut record = Record::done(id, self.driver.next_seq(), name, kind, Ok(value));
        (record.started_at, record.completed_at) = (now, now);
        let told = match &with {
            With::Send(signal) => Some(signal.run_id.clone()),
            With::Spawn(start) => {
                record.child = Some(start.run_id.clone());
                None
            }
            With::Consume(_) | With::Publish { .. } => None,
            With::Append { .. } | With::Govern(_) => None,
        };
        let mut entry = Entry { record, replaces: false, with: Some(with) };
        if let Some(refusal) = self.record(vec![entry.clone()]).await? {
            entry.with = None;
            entry.record.outcome = Err(Error::new(ErrorClass::Conflict, "SF-0303", refusal));
            self.record(vec![entry.clone()]).await?;
        }
        self.driver.deliver(id, entry.record.outcome, now);
        if let Some(run_id) = told {
            self.hub.arrived(&run_id);
        }
        Ok(())
    }

    fn signal(&self, id: u64, to: String, name: String, payload: String) -> op::Signal {
        op::Signal {
            workspace: self.hub.workspace.clone(),
            run_id: to,
            name,
            // Derived from the sender's step, so that it is sent once; hashed, because ids may be
            // long.
            signal_id: self.place(id),
            payload,
            now: self.hub.now(),
        }
    }

    fn child(&self, child: ChildStart) -> op::Start {
        let now = self.hub.now();
        let registered = self.registry.get(&child.workflow);
        op::Start {
            workspace: self.hub.workspace.clone(),
            run_id: child.run_id,
            workflow: child.workflow,
            input: child.input,
            queue: child.queue.unwrap_or_else(|| op::DEFAULT_QUEUE.to_owned()),
            partition: String::new(),
            priority: 0,
            dedupe_id: String::new(),
            app_version: self.run.app_version.clone(),
            max_attempts: i64::from(
                registered.map_or(steadfast_core::limits::RECOVERY_ATTEMPTS, |r| r.max_attempts),
            ),
            ready_at: now,
            timeout: None,
            deadline_at: if child.detached { None } else { self.run.deadline_at },
            parent: self.run.run_id.clone(),
            detached: child.detached,
            seed: i64::from_be_bytes(self.hub.env.random().to_be_bytes()),
            context: self.run.context.clone(),
            claim: None,
            rest: None,
            now,
        }
    }
}

/// Whether carrying it out leaves the process, and so has to wait for another worker while
/// draining.
fn leaves(ask: &Ask) -> bool {
    match ask {
        Ask::Call { .. } | Ask::Effect { .. } | Ask::Transaction(_) | Ask::Settle { .. } => true,
        Ask::Sleep { .. } | Ask::Signal { .. } | Ask::Join { .. } => false,
        Ask::Send { .. } | Ask::Publish { .. } | Ask::Append { .. } | Ask::Spawn(_) => false,
        Ask::Emit { .. } | Ask::Approval(_) | Ask::Undone { .. } => false,
    }
}
