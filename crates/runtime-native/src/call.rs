//! Calls under way: a step's body, a task of its own where it waits, with its slot, its time limit
//! and its attempts.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::mpsc;
use futures::future::{AbortHandle, BoxFuture, Either, abortable, select};
use steadfast_core::caught::{self, Code};
use steadfast_core::driver::{Body, CallOptions, Kind, Outcome, Said, SlotRequest};
use steadfast_core::effect::EffectSpec;
use steadfast_core::gate::Taken;
use steadfast_core::{Error, ErrorClass, Timestamp, json, limits};
use steadfast_store::op;
use tracing::Instrument;

use crate::execute::Execution;
use crate::owner::OwnerHub;
use crate::registry::Registry;

/// A call that was begun and is not delivered yet.
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Whether a begun attempt must be on record, because it may not be repeated.
    pub(crate) once: bool,
    pub(crate) input: Option<String>,
    pub(crate) body: Arc<Body>,
    pub(crate) options: Arc<CallOptions>,
    /// The attempt under way, or the last one made.
    pub(crate) attempt: u32,
    /// Whether the store has an unfinished record of it.
    pub(crate) recorded: bool,
    pub(crate) started_at: Timestamp,
    /// Ends the attempt under way.
    pub(crate) abort: Option<AbortHandle>,
    /// What the body was before a probe took its place.
    pub(crate) real_body: Arc<Body>,
    /// When the attempt under way began.
    pub(crate) began_at: Timestamp,
    /// Whether the gate has judged it.
    pub(crate) governed: bool,
    /// Whether it was not let leave.
    pub(crate) blocked: bool,
    /// Whether an attempt was begun of which nobody has said that it did nothing.
    pub(crate) begun: bool,
    /// Whether one of the attempts may have done it, although no answer says so.
    pub(crate) unclear: bool,
    /// Whether the attempt that ended was made: an answer may also come from somebody else.
    pub(crate) sent: bool,
    /// Whether people have said yes to it.
    pub(crate) approved: bool,
    /// Why it is not known whether the last attempt did it, where it may not be repeated.
    pub(crate) doubt: Option<Error>,
    /// Whether the attempt under way asks whether it was done.
    pub(crate) probing: bool,
    /// How often the receiver was asked and could not be reached.
    pub(crate) probes: u32,
    /// The epoch in which the connector's call was begun that its unfinished record tells of.
    pub(crate) made_in: Option<i64>,
    /// What it waits to be told.
    pub(crate) asking: Option<Asking>,
    /// The effect of another run that it finds out about, if it does.
    pub(crate) settles: Option<Settling>,
    /// The answer that its next record takes.
    pub(crate) consume: Option<i64>,
    /// Events that its next record brings.
    pub(crate) notes: Vec<op::NewEvent>,
    /// Calls that its next record brings: attempts that got no clear answer, and probes.
    pub(crate) unentered: Vec<op::InvocationRow>,
    /// What was taken of budgets for the attempt under way.
    pub(crate) taken: Vec<Taken>,
    /// What the attempt under way costs, where a budget counts that.
    pub(crate) price: Option<i64>,
}

/// What somebody has to say before a call goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asking {
    /// Whether it may be done.
    People,
    /// Whether it was done.
    Truth,
}

/// An effect that was left open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settling {
    pub(crate) effect_id: String,
    /// Whether it can be undone.
    pub(crate) way_back: bool,
    /// Whether it is looked at again later, because somebody may still be at it.
    pub(crate) later: bool,
    /// What the record of an earlier look says, if there is one.
    pub(crate) known: Option<Look>,
}

/// How far an earlier look at an open effect has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// It was being made again, or a person was asked: the ledger says which.
    Begun,
    /// It is made again at this time.
    Due(Timestamp),
}

impl Call {
    /// Whether the attempt that ended so may have done it although no answer says so.
    pub(crate) fn is_unclear(&self, error: &Error) -> bool {
        self.sent && error.is_unclear()
    }

    /// The effect that it is, if it is one.
    pub(crate) fn effect(&self) -> Option<&EffectSpec> {
        self.options.guard.as_ref()?.effect.as_ref()
    }

    /// Whether a connector carries it out.
    pub(crate) fn is_by_connector(&self) -> bool {
        self.options.guard.as_ref().is_some_and(|guard| guard.calling.is_some())
    }

    /// The type of the effect that it is; the step's own name for others.
    pub(crate) fn effect_type(&self) -> &str {
        self.effect().map_or(&self.name, |spec| &spec.effect_type)
    }

    /// The event that tells of attempts after which there is another.
    pub(crate) fn retried_as(&self) -> Option<&str> {
        self.options.retried_as.as_deref()
    }

    /// What the connector has said of the attempt that ended.
    pub(crate) fn said(&self) -> Option<Said> {
        let guard = self.options.guard.as_ref()?;
        guard.said.lock().expect("invariant: not poisoned").take()
    }

    /// What was taken of budgets, set right: all of it goes back where nothing was sent, and what
    /// the other side says that it cost counts instead of the price.
    pub(crate) fn charges(&mut self, said: Option<&Said>) -> Vec<op::Charge> {
        let cost = said.and_then(|said| said.cost_units).map(|units| units.min(limits::COST_UNITS));
        let cost = cost.and_then(|units| i64::try_from(units).ok());
        let sent = self.sent;
        let taken = std::mem::take(&mut self.taken).into_iter().filter_map(|taken| {
            let amount = match cost {
                _ if !sent => -taken.amount,
                Some(cost) if taken.units => cost - taken.amount,
                _ => 0,
            };
            let Taken { meter, until, .. } = taken;
            (amount != 0).then_some(op::Charge { meter, amount, until })
        });
        taken.collect()
    }

    /// The connector's call of an attempt that ended, for the ledger.
    pub(crate) fn invocation(
        &self,
        execution: &Execution,
        id: u64,
        error: Option<&Error>,
        said: Option<Said>,
    ) -> Option<op::InvocationRow> {
        let mut row = self.row(execution, id).filter(|_| self.sent || self.blocked)?;
        row.cost_units = self.price.filter(|_| self.sent);
        if let Some(said) = said {
            let units = said.cost_units.map(|units| units.min(limits::COST_UNITS));
            row.cost_units = units.and_then(|u| i64::try_from(u).ok()).or(row.cost_units);
            row.actual = said.actual;
            row.outputs = said.summary;
        }
        let verification = match error {
            _ if self.blocked => "blocked",
            Some(_) => "failed",
            None if row.actual == row.intended => "verified",
            None => "contradicted",
        };
        Some(op::InvocationRow {
            verification: verification.to_owned(),
            error: error.cloned(),
            ..row
        })
    }

    /// The question whether an attempt did it, for the ledger.
    pub(crate) fn probe_call(
        &self,
        execution: &Execution,
        id: u64,
        number: u32,
        error: Option<&Error>,
    ) -> Option<op::InvocationRow> {
        let row = self.row(execution, id).filter(|_| self.governed)?;
        let (intended, answered) = (format!("{}{}", op::PROBE, row.intended), error.is_none());
        Some(op::InvocationRow {
            invocation_id: format!("{}_p{number}", row.invocation_id),
            actual: if answered { intended.clone() } else { String::new() },
            intended,
            side_effect: false,
            verification: if answered { "verified" } else { "failed" }.to_owned(),
            error: error.cloned(),
            ..row
        })
    }

    /// A call that was begun by a worker that has not said what became of it, for the ledger: under
    /// the id by which that worker would have entered it.
    pub(crate) fn cut_off(
        &self,
        execution: &Execution,
        id: u64,
        begun: &Begun,
    ) -> Option<op::InvocationRow> {
        let row = self.row(execution, id)?;
        let text = "its worker died, or lost the run, before it could say what became of it";
        Some(op::InvocationRow {
            invocation_id: invocation_id(&begun.place, begun.epoch, begun.attempt),
            run_id: begun.run_id.clone(),
            error: Some(Error::new(ErrorClass::Timeout, "SF-0842", text)),
            latency_us: 0,
            ..row
        })
    }

    /// What the record of a begun attempt says: by whom, and how often its receiver was asked.
    pub(crate) fn mark(&self) -> String {
        let mut mark = serde_json::Map::new();
        mark.extend(self.made_in.map(|epoch| ("epoch".to_owned(), epoch.into())));
        mark.extend((self.probes > 0).then(|| ("probes".to_owned(), self.probes.into())));
        match mark.is_empty() {
            true => "null".to_owned(),
            false => serde_json::Value::Object(mark).to_string(),
        }
    }

    /// A call that was under way when its code stopped waiting for it, for the ledger.
    pub(crate) fn abandoned(&self, execution: &Execution, id: u64) -> Option<op::InvocationRow> {
        let text = "the code did not wait for its end: what became of it is not known";
        let error = Error::new(ErrorClass::Cancelled, "SF-0841", text);
        match self.probing {
            true => self.probe_call(execution, id, self.probes + 1, Some(&error)),
            false => self.invocation(execution, id, Some(&error), None).filter(|_| self.governed),
        }
    }

    /// What all rows of its calls have in common, where a connector is called.
    fn row(&self, execution: &Execution, id: u64) -> Option<op::InvocationRow> {
        let guard = self.options.guard.as_ref()?;
        let calling = guard.calling.as_ref()?;
        let now = execution.now();
        Some(op::InvocationRow {
            invocation_id: invocation_id(&execution.place(id), execution.epoch(), self.attempt),
            command_id: execution.context().command_id.clone(),
            run_id: execution.run_id().to_owned(),
            connector: calling.connector.clone(),
            agent: execution.context().requested_by.clone(),
            intended: calling.operation.clone(),
            actual: String::new(),
            inputs: json::digest(&calling.input),
            outputs: String::new(),
            side_effect: guard.effect.is_some(),
            idempotency_key: guard.effect.as_ref().map_or_else(String::new, |e| e.key.clone()),
            verification: "failed".to_owned(),
            error: None,
            latency_us: now.as_micros() - self.began_at.as_micros(),
            cost_units: None,
            created_at: now,
        })
    }

    /// How the connector is doing, as this attempt saw it.
    pub(crate) fn health(&self, outcome: &Outcome, registry: &Registry) -> Option<op::Health> {
        let calling = self.options.guard.as_ref()?.calling.as_ref()?;
        let breaker = registry.breaker(&calling.connector)?;
        if !self.sent {
            return None;
        }
        // Only what the other side has said tells how it does: a refusal of our own does not, and
        // neither does one to slow down.
        let ok = match outcome.as_ref().map_err(Error::class) {
            Ok(_) => true,
            Err(ErrorClass::TransientConnectorError | ErrorClass::Timeout) => false,
            Err(ErrorClass::PermanentConnectorError | ErrorClass::Conflict) => true,
            Err(ErrorClass::NotFound | ErrorClass::ValidationError) => true,
            Err(_) => return None,
        };
        Some(op::Health {
            meter: format!("breaker:{}", calling.connector),
            ok,
            failures: breaker.failures,
            cool_down: breaker.cool_down,
        })
    }
}

/// By the epoch as well: whoever was fenced off made a call of its own.
fn invocation_id(place: &str, epoch: i64, attempt: u32) -> String {
    format!("tool_{place}_{epoch}_{attempt}")
}

/// An attempt that was begun, as its record has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) run_id: String,
    /// The place in the run's code.
    pub(crate) place: String,
    pub(crate) epoch: i64,
    pub(crate) attempt: u32,
}

/// An attempt that came to its end.
pub(crate) struct Ended {
    pub(crate) id: u64,
    pub(crate) outcome: Outcome,
}

/// One attempt: takes the slot, runs the body within its time, gives the slot back.
pub(crate) struct Attempt {
    pub(crate) hub: OwnerHub,
    pub(crate) lease: op::Lease,
    pub(crate) lease_for: Duration,
    /// The end of the run's lease, as it is extended.
    pub(crate) lease_until: Arc<AtomicI64>,
    pub(crate) id: u64,
    /// What kind of code it runs, and its name.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) attempt: u32,
    pub(crate) body: Arc<Body>,
    pub(crate) options: Arc<CallOptions>,
    pub(crate) ended: mpsc::UnboundedSender<Ended>,
}

impl Attempt {
    /// The attempt as a task; the handle ends it early.
    pub(crate) fn task(self) -> (BoxFuture<'static, ()>, AbortHandle) {
        // The name that tracers show; that of a span itself cannot be made at run time.
        let span = tracing::info_span!(
            "activity",
            otel.name = %format_args!("activity.{}", self.name),
            attempt = self.attempt,
        );
        // Moved into the task once: a method that took it would keep room for it twice.
        let (task, handle) = abortable(async move { self.run().await });
        // What the body logs belongs to its run, and to this activity of it.
        (Box::pin(task.map(|_| ()).instrument(span)), handle)
    }

    /// Ends in any case: the run waits for it.
    async fn run(&self) {
        let ended = AssertUnwindSafe(self.make()).catch_unwind().await;
        self.end(ended.unwrap_or_else(|payload| Err(self.hub.panicked("step", payload))));
    }

    async fn make(&self) -> Outcome {
        if let Some(slot) = &self.options.slot {
            self.take_slot(slot).await?;
        }
        self.hub.env.crash_point("step.started");
        let outcome = self.perform().await;
        self.hub.env.crash_point("step.performed");
        if self.options.slot.is_some() {
            self.free_slot().await;
        }
        outcome
    }

    async fn free_slot(&self) {
        let freed = op::FreeSlot { lease: self.lease.clone(), step: self.step() };
        // If it fails, the slot runs out with its lease.
        let _ = self.hub.store.ask(freed).await;
        self.hub.ready.ring();
    }

    /// Whether a slot with this end, and the run itself, are ours for a while.
    fn lasts(&self, slot_until: Timestamp) -> bool {
        let until = Timestamp::from_micros(self.lease_until.load(Ordering::Acquire));
        self.hub.now().after(self.lease_for / 10) < until.min(slot_until)
    }

    fn step(&self) -> i64 {
        i64::try_from(self.id).unwrap_or(i64::MAX)
    }

    fn end(&self, outcome: Outcome) {
        // The run may have stopped meanwhile; then nobody needs the outcome.
        let _ = self.ended.unbounded_send(Ended { id: self.id, outcome });
    }

    async fn perform(&self) -> Outcome {
        let body = caught::future(Code(self.kind, &self.name), || (self.body)());
        match self.options.timeout {
            None => body.await.flatten(),
            Some(limit) => match select(body, self.hub.env.sleep(limit)).await {
                Either::Left((ended, _)) => ended.flatten(),
                Either::Right(_) => Err(Error::new(
                    ErrorClass::Timeout,
                    "SF-0306",
                    format!("the step took longer than {limit:?}"),
                )),
            },
        }
    }

    /// Waits for a slot of the queue. The wait is in memory: it is short, or the queue is full of
    /// work.
    async fn take_slot(&self, slot: &SlotRequest) -> Result<(), Error> {
        let mut pause = Duration::from_millis(20);
        loop {
            let heard = self.hub.ready.rings();
            let now = self.hub.now();
            let until = now.after(self.lease_for);
            let take = op::TakeSlot {
                lease: self.lease.clone(),
                step: self.step(),
                queue: slot.queue.clone(),
                partition: slot.partition.clone(),
                lease_until: until,
                now,
            };
            match self.hub.store.ask(take).await? {
                op::SlotTaken::Done if self.lasts(until) => return Ok(()),
                // The wait was so long that the slot, or the run, may be another's: once more.
                op::SlotTaken::Done => {
                    self.free_slot().await;
                    self.hub.env.sleep(pause).await;
                }
                op::SlotTaken::Full { until } => {
                    let at_most = until.map_or(pause, |at| now.until(at).min(pause));
                    let hint = Box::pin(self.hub.ready.after(heard));
                    select(hint, self.hub.env.sleep(at_most.max(Duration::from_millis(1)))).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                op::SlotTaken::Fenced => {
                    return Err(Error::new(ErrorClass::Cancelled, "SF-0307", "the run was lost"));
                }
                op::SlotTaken::NoQueue => {
                    return Err(Error::new(
                        ErrorClass::NotFound,
                        "SF-0112",
                        format!("there is no queue \"{}\"", slot.queue),
                    ));
                }
            }
        }
    }
}
