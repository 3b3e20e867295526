//! The sans-I/O driver: polls workflow code, hands out what it asks for, takes in what became of
//! it.
//!
//! Invariants: outcomes are delivered one at a time, and on replay in the order in which they were
//! first delivered, so `join!`, biased `select!` and `FuturesUnordered` take the same turns again;
//! nothing is started while recorded outcomes are still to be delivered; code that asks for
//! something else than its history says is stopped; a recorded call that is made with another input
//! is reported, and stops the code only where it is to be replayed strictly; code that waits for
//! something foreign is reported, never left hanging.
//! Deliberately absent: clocks, sockets, storage, tasks. A host (the native runtime, an adapter,
//! the simulator) carries requests out and decides when a record is durable.

mod drift;
mod record;
mod request;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use futures::future::BoxFuture;

pub use drift::Drift;
pub use record::{Kind, Outcome, Record, RecordState};
pub use request::{
    Ask, Body, CallOptions, ChildStart, EffectClass, Guard, Probing, Request, Said, SlotRequest,
    Verb,
};

use crate::caught::{self, Code};
use crate::error::{Error, ErrorClass};
use crate::limits;
use crate::time::Timestamp;

/// What is known of a run when its code starts or is replayed.
#[derive(Debug, Clone)]
pub struct RunMeta {
    /// The tenant the run belongs to.
    pub workspace: String,
    /// The run's id.
    pub run_id: String,
    /// The workflow's registered name.
    pub workflow: String,
    /// How often the run has continued as new.
    pub generation: u32,
    /// Seeds the deterministic random numbers.
    pub seed: u64,
    /// When the run was first started, or last continued as new: where its logical clock begins.
    pub started_at: Timestamp,
    /// What travels with it from its cause.
    pub context: crate::command::Context,
    /// Whether a recorded call that is made with another input ends the run.
    pub strict_replay: bool,
}

/// What a turn of the workflow came to.
pub enum Turn {
    /// The workflow wants these started, and no longer waits for those.
    Ask {
        /// New requests, in the order of the calls.
        start: Vec<Request>,
        /// Requests whose futures were dropped.
        dropped: Vec<u64>,
    },
    /// The workflow returned.
    Done(Outcome),
    /// The workflow starts over with a new input.
    ContinueAsNew(String),
}

/// State shared between the driver and the workflow's context.
pub(crate) struct Shared {
    pub(crate) meta: RunMeta,
    pub(crate) state: Mutex<State>,
    pub(crate) app: Arc<dyn std::any::Any + Send + Sync>,
}

#[derive(Default)]
pub(crate) struct State {
    next_id: u64,
    next_seq: u64,
    now: Timestamp,
    history: BTreeMap<u64, Record>,
    slots: BTreeMap<u64, Slot>,
    requests: Vec<Request>,
    dropped: Vec<u64>,
    rides: Vec<Record>,
    draws: u64,
    /// Streams that the code has closed; what it appends to them nobody would read.
    pub(crate) closed: BTreeSet<String>,
    continue_with: Option<String>,
    fault: Option<Error>,
    /// Whether a call with another input than the recorded one is a fault.
    strict: bool,
    /// Such calls, where it is not.
    drifts: Vec<Drift>,
    /// Positions whose requests are kept for `rehearse`, and those requests.
    wanted: BTreeSet<u64>,
    caught: Vec<Request>,
}

enum Slot {
    Waiting(Option<Waker>),
    Ready(Outcome),
}

thread_local! {
    /// The run whose code is being polled on this thread, by address of its shared state.
    static POLLING: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in user code never happens under this lock.
        self.state.lock().expect("invariant: driver state is not poisoned")
    }

    /// Whether the caller is this run's own code, not a spawned task and not a step's body.
    pub(crate) fn is_polling(self: &Arc<Self>) -> bool {
        POLLING.get() == Arc::as_ptr(self) as usize
    }
}

impl State {
    pub(crate) fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        if id >= limits::STEPS_PER_RUN {
            self.fail(Error::invalid(
                "SF-0204",
                format!(
                    "a run records at most {} steps; use continue_as_new",
                    limits::STEPS_PER_RUN
                ),
            ));
        }
        id
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.draws += 1;
        self.draws
    }

    pub(crate) fn continue_with(&mut self, input: String) {
        self.continue_with = Some(input);
    }

    /// Stops the run: the first fault is the one that is reported.
    pub(crate) fn fail(&mut self, error: Error) {
        self.fault.get_or_insert(error);
    }

    /// Registers a request, checking that history (if any) is of the same call.
    pub(crate) fn ask(&mut self, mut request: Request) {
        if let Some(error) = self.mismatch(request.id, &request.name, request.ask.kind()) {
            return self.fail(error);
        }
        request.input_digest = request.digest();
        request.asked_at = self.now;
        if let Some(recorded) = self.history.get_mut(&request.id) {
            recorded.seen = true;
            if let Some(drift) = Drift::between(recorded, &request) {
                match self.strict {
                    true => return self.fail(drift.error()),
                    false => self.drifts.push(drift),
                }
            }
        }
        self.slots.insert(request.id, Slot::Waiting(None));
        if self.wanted.contains(&request.id) {
            return self.caught.push(request);
        }
        self.requests.push(request);
    }

    fn mismatch(&self, id: u64, name: &str, kind: Kind) -> Option<Error> {
        let recorded = self.history.get(&id)?;
        if recorded.name == name && recorded.kind == kind {
            return None;
        }
        Some(Error::new(
            ErrorClass::NonDeterminism,
            "SF-0201",
            format!(
                "step {id} was recorded as {} \"{}\" but the code now asks for {} \"{name}\"; \
                 guard the change with cx.patched, or fork the run from step {id}",
                recorded.kind.as_str(),
                recorded.name,
                kind.as_str(),
            ),
        ))
    }

    /// What became of a request, or a registration to be woken.
    pub(crate) fn poll_slot(&mut self, id: u64, waker: &Waker) -> Poll<Outcome> {
        match self.slots.get_mut(&id) {
            Some(Slot::Ready(_)) => match self.slots.remove(&id) {
                Some(Slot::Ready(outcome)) => Poll::Ready(outcome),
                _ => unreachable!("invariant: the slot was just seen ready"),
            },
            Some(Slot::Waiting(place)) => {
                *place = Some(waker.clone());
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }

    /// A future was dropped before its outcome arrived.
    pub(crate) fn forget(&mut self, id: u64) {
        if matches!(self.slots.remove(&id), Some(Slot::Waiting(_))) {
            self.requests.retain(|r| r.id != id);
            self.dropped.push(id);
        }
    }

    /// The recorded outcome of a call that completes at once (compute, patch), if there is one.
    pub(crate) fn ride_known(&mut self, id: u64, name: &str, kind: Kind) -> Option<Outcome> {
        if let Some(error) = self.mismatch(id, name, kind) {
            self.fail(error.clone());
            return Some(Err(error));
        }
        let recorded = self.history.get_mut(&id)?;
        recorded.seen = true;
        Some(recorded.outcome.clone())
    }

    /// Records a call that completed at once; the record rides along with the next commit.
    pub(crate) fn ride(&mut self, id: u64, name: &str, kind: Kind, outcome: Outcome) -> Outcome {
        let seq = self.take_seq();
        let mut record = Record::done(id, seq, name, kind, outcome.clone());
        (record.started_at, record.completed_at) = (self.now, self.now);
        self.rides.push(record);
        outcome
    }

    /// Whether the code at this point of an old history knew the patch. See `Cx::patched`.
    pub(crate) fn meets_patch(&self, name: &str) -> bool {
        self.has_patch(name) || self.history.range(self.next_id..).next().is_none()
    }

    pub(crate) fn has_patch(&self, name: &str) -> bool {
        self.history.get(&self.next_id).is_some_and(|r| r.kind == Kind::Patch && r.name == name)
    }

    fn take_seq(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }

    /// The requested record that was delivered first, of those not delivered yet.
    fn next_from_history(&mut self) -> Option<u64> {
        self.requests
            .iter()
            .filter_map(|r| self.history.get(&r.id))
            .filter(|record| record.state == RecordState::Done)
            .min_by_key(|record| record.seq)
            .map(|record| record.id)
    }

    fn settle(&mut self, id: u64, outcome: Outcome, at: Timestamp) {
        // The logical clock never runs backwards, whatever a node's clock did.
        self.now = self.now.max(at);
        if let Some(Slot::Waiting(waker)) = self.slots.insert(id, Slot::Ready(outcome)) {
            if let Some(waker) = waker {
                waker.wake();
            }
        } else {
            // The future was dropped meanwhile: nobody will ask for this outcome.
            self.slots.remove(&id);
        }
    }
}

/// Drives one run's code.
pub struct Driver {
    shared: Arc<Shared>,
    future: BoxFuture<'static, Outcome>,
    waker: Arc<TurnWaker>,
}

impl Driver {
    /// Prepares code for its first turn, with whatever history the run has.
    pub fn new(
        meta: RunMeta,
        history: Vec<Record>,
        app: Arc<dyn std::any::Any + Send + Sync>,
        code: impl FnOnce(crate::Cx) -> BoxFuture<'static, Outcome>,
    ) -> Self {
        let state = State {
            next_seq: history.iter().map(|r| r.seq + 1).max().unwrap_or(0),
            now: meta.started_at,
            strict: meta.strict_replay,
            history: history.into_iter().map(|r| (r.id, r)).collect(),
            ..State::default()
        };
        let shared = Arc::new(Shared { meta, state: Mutex::new(state), app });
        let workflow = || Code("workflow", &shared.meta.workflow);
        let future = caught::call(workflow(), || code(crate::Cx::new(shared.clone())))
            .unwrap_or_else(|error| Box::pin(std::future::ready(Err(error))));
        Self { shared, future, waker: Arc::default() }
    }

    /// Lets the code run until it needs something that is not in its history.
    pub fn turn(&mut self) -> Turn {
        loop {
            if let Poll::Ready(outcome) = self.poll() {
                return Turn::Done(self.checked(outcome));
            }
            let mut state = self.shared.lock();
            if let Some(fault) = state.fault.clone() {
                return Turn::Done(Err(fault));
            }
            if let Some(input) = state.continue_with.take() {
                return Turn::ContinueAsNew(input);
            }
            if let Some(id) = state.next_from_history() {
                state.requests.retain(|r| r.id != id);
                let record = state.history.get(&id).expect("invariant: found above");
                let (outcome, at) = (record.outcome.clone(), record.completed_at);
                state.settle(id, outcome, at);
                continue;
            }
            let start = std::mem::take(&mut state.requests);
            let dropped = std::mem::take(&mut state.dropped);
            drop(state);
            if self.waiting() == 0 {
                return Turn::Done(Err(foreign_await()));
            }
            return Turn::Ask { start, dropped };
        }
    }

    /// Replays a history to its end and gives what the code asked for at these positions, whether
    /// it still waits for it or not. Nothing is started: this is for finding the code of a call
    /// that was left open by a run that is over.
    pub fn rehearse(mut self, positions: impl IntoIterator<Item = u64>) -> Vec<Request> {
        self.shared.lock().wanted = positions.into_iter().collect();
        let _ = self.turn();
        std::mem::take(&mut self.shared.lock().caught)
    }

    /// Gives the code the outcome of a request; `turn` lets it react. Returns the delivery number,
    /// which belongs in the record.
    pub fn deliver(&mut self, id: u64, outcome: Outcome, at: Timestamp) -> u64 {
        let mut state = self.shared.lock();
        let seq = state.take_seq();
        state.settle(id, outcome, at);
        seq
    }

    /// Recorded calls that the code made with another input, since last asked.
    pub fn take_drifts(&mut self) -> Vec<Drift> {
        std::mem::take(&mut self.shared.lock().drifts)
    }

    /// The number that the next delivery will get, for a record that is written before it.
    pub fn next_seq(&self) -> u64 {
        self.shared.lock().next_seq
    }

    /// Records of calls that completed inside the code itself, since last asked.
    pub fn take_rides(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.shared.lock().rides)
    }

    /// Whether there are such records.
    pub fn has_rides(&self) -> bool {
        !self.shared.lock().rides.is_empty()
    }

    /// What history says of a request that is not done yet: an effect begun, a retry waiting.
    pub fn unfinished(&self, id: u64) -> Option<Record> {
        self.shared.lock().history.get(&id).filter(|r| r.state != RecordState::Done).cloned()
    }

    fn waiting(&self) -> usize {
        let state = self.shared.lock();
        state.slots.values().filter(|slot| matches!(slot, Slot::Waiting(_))).count()
    }

    /// Polls until the code neither finishes nor wakes itself.
    fn poll(&mut self) -> Poll<Outcome> {
        /// More self-wake-ups than any combinator needs: beyond it the code spins.
        const SPINS: usize = 10_000;
        let waker = Waker::from(self.waker.clone());
        let mut context = Context::from_waker(&waker);
        for _ in 0..SPINS {
            self.waker.woken.store(false, Ordering::Release);
            let before = POLLING.replace(Arc::as_ptr(&self.shared) as usize);
            let code = Code("workflow", &self.shared.meta.workflow);
            let polled = caught::poll(code, self.future.as_mut(), &mut context);
            POLLING.set(before);
            match polled {
                Poll::Ready(ended) => return Poll::Ready(ended.flatten()),
                Poll::Pending if self.waker.woken.load(Ordering::Acquire) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Err(foreign_await()))
    }

    /// A fault outranks what the code returned, and so does history that the code never asked for.
    fn checked(&self, outcome: Outcome) -> Outcome {
        let state = self.shared.lock();
        if let Some(fault) = &state.fault {
            return Err(fault.clone());
        }
        if let Some(record) = state.history.values().find(|r| !r.seen) {
            return Err(Error::new(
                ErrorClass::NonDeterminism,
                "SF-0202",
                format!(
                    "step {} was recorded as {} \"{}\" but the code ended without asking for it; \
                     guard the change with cx.patched, or fork the run from step {}",
                    record.id,
                    record.kind.as_str(),
                    record.name,
                    record.id
                ),
            ));
        }
        outcome
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // What the code holds may panic when it is dropped, and no call of it is under way.
        caught::discard(std::mem::replace(&mut self.future, Box::pin(std::future::pending())));
    }
}

#[derive(Default)]
struct TurnWaker {
    woken: AtomicBool,
}

impl Wake for TurnWaker {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
    }
}

fn foreign_await() -> Error {
    Error::new(
        ErrorClass::NonDeterminism,
        "SF-0203",
        "the workflow waits for something that is not durable (a socket, a channel, a plain \
         timer); do that inside cx.step or cx.read, and sleep with cx.sleep",
    )
}
