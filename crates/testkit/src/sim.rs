//! A world in which nothing is left to chance: one thread, virtual time, and a seed for every
//! choice.
//!
//! Invariants: the same seed gives the same run, event by event ([`Handle::trace_hash`]); time
//! moves only when nothing is ready; a crashed node's tasks are never polled again; no lock is held
//! while foreign code (a poll, a wake-up, a drop) runs.
//! Deliberately absent: threads. Blocking calls stop virtual time, and a wake-up from another
//! thread is safe but not reproducible.

mod env;
mod rng;
mod state;
mod trace;

use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::env::Env;
use steadfast_core::time::micros;

pub use env::SimEnv;
pub use rng::Rng;
pub use trace::{Event, What};

use env::{Crash, Sleep};
use state::{State, TaskId, Turn, Woken};

/// Where virtual time begins: 2026-01-01, a Thursday.
const EPOCH_US: i64 = 1_767_225_600_000_000;
/// Polls at one instant beyond which the tasks only wake each other.
const SPIN: u64 = 1_000_000;
/// How long [`Sim::block_on`] waits, in virtual time.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// No task is being polled.
const NOBODY: u32 = u32::MAX;

/// Decides whether a node ends at a crash point. See [`Env::crash_point`].
pub trait Chaos: Send + Sync {
    /// Whether this node crashes here.
    fn crashes(&self, node: &str, point: &'static str) -> bool;
}

/// The simulation's owner: it runs the tasks, and drops them all when it is dropped.
pub struct Sim {
    handle: Handle,
}

/// Steers a simulation from inside or outside; cheap to clone.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    now: AtomicI64,
    rng: Rng,
    events: AtomicU64,
    /// The node whose task is being polled.
    current: AtomicU32,
    woken: Arc<Woken>,
    state: Mutex<State>,
    chaos: Mutex<Option<Arc<dyn Chaos>>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("invariant: no foreign code runs under this lock")
    }

    fn now(&self) -> i64 {
        self.now.load(Ordering::Relaxed)
    }

    fn bury(&self) {
        let dead = std::mem::take(&mut self.lock().graveyard);
        drop(dead);
    }

    fn crash(&self, node: u32) {
        let watchers = self.lock().crash(node, self.now());
        watchers.into_iter().for_each(Waker::wake);
        // In the middle of a poll the victim may hold locks that its other tasks want when dropped.
        if self.current.load(Ordering::Relaxed) == NOBODY {
            self.bury();
        }
    }
}

/// Why a simulation went no further, and what was still alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// Why.
    pub why: Why,
    /// When, by the simulation's own clock.
    pub at: Timestamp,
    /// The tasks that live, as node and name.
    pub tasks: Vec<(String, &'static str)>,
}

/// Why a simulation went no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Nothing is ready and nothing is due: the condition can never be met.
    Idle,
    /// The time was up.
    Limit,
    /// The tasks wake each other without end while no time passes.
    Spin,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            Why::Idle => "nothing is ready and nothing is due",
            Why::Limit => "the time was up",
            Why::Spin => "tasks wake each other without end",
        };
        write!(f, "stuck at {}: {why}; alive:", self.at)?;
        self.tasks.iter().try_for_each(|(node, name)| write!(f, " {node}/{name}"))
    }
}

impl std::error::Error for Stuck {}

impl Sim {
    /// A world of this seed, without nodes.
    pub fn new(seed: u64) -> Self {
        let shared = Shared {
            now: AtomicI64::new(EPOCH_US),
            rng: Rng::new(seed),
            events: AtomicU64::new(0),
            current: AtomicU32::new(NOBODY),
            woken: Arc::default(),
            state: Mutex::default(),
            chaos: Mutex::default(),
        };
        Self { handle: Handle { shared: Arc::new(shared) } }
    }

    /// Another handle.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until the condition holds. It is looked at after every poll, so it should be cheap.
    pub fn run_until(&self, cond: impl FnMut() -> bool, limit: Duration) -> Result<(), Stuck> {
        self.run(cond, self.shared.now().saturating_add(micros(limit)))
    }

    /// Runs for a while, and leaves the clock exactly that much later.
    pub fn run_for(&self, d: Duration) {
        let end = self.shared.now().saturating_add(micros(d));
        match self.run(|| false, end) {
            Err(Stuck { why: Why::Idle, .. }) => self.shared.now.store(end, Ordering::Relaxed),
            Err(stuck @ Stuck { why: Why::Spin, .. }) => panic!("{stuck}"),
            Ok(()) | Err(_) => {}
        }
    }

    /// Runs a future on the node `main` and everything else with it, until it ends. Panics when it
    /// cannot, or has not within a virtual day.
    pub fn block_on<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.block_on_for(PATIENCE, future).unwrap_or_else(|stuck| panic!("{stuck}"))
    }

    /// As [`Sim::block_on`], with a limit of one's own.
    pub fn block_on_for<T: Send + 'static>(
        &self,
        limit: Duration,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Stuck> {
        let place = Arc::new(Mutex::new(None));
        let result = place.clone();
        let task = async move {
            let value = future.await;
            *place.lock().unwrap() = Some(value);
        };
        self.node("main").spawn("block_on", Box::pin(task));
        self.run_until(|| result.lock().unwrap().is_some(), limit)?;
        Ok(result.lock().unwrap().take().expect("invariant: seen above"))
    }

    fn run(&self, mut cond: impl FnMut() -> bool, end: i64) -> Result<(), Stuck> {
        let shared = &*self.shared;
        let (mut spins, mut wake) = (0, Vec::new());
        loop {
            if cond() {
                return Ok(());
            }
            let turn = self.next();
            if let Some(turn) = turn {
                self.poll(turn);
                spins += 1;
                if spins > SPIN {
                    return Err(self.stuck(Why::Spin));
                }
                continue;
            }
            spins = 0;
            let mut state = shared.lock();
            let Some(at) = state.next_alarm_at() else {
                drop(state);
                return Err(self.stuck(Why::Idle));
            };
            if at > end {
                drop(state);
                shared.now.store(end, Ordering::Relaxed);
                return Err(self.stuck(Why::Limit));
            }
            shared.now.store(at, Ordering::Relaxed);
            // All that is due at one instant becomes ready at once, so that its order is drawn too.
            state.ring(at, &mut wake);
            drop(state);
            wake.drain(..).for_each(Waker::wake);
        }
    }

    fn next(&self) -> Option<Turn> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        state.enqueue(&mut shared.woken.lock().unwrap());
        state.next(shared.now(), &shared.rng)
    }

    fn poll(&self, turn: Turn) {
        let shared = &*self.shared;
        let Turn { id, node, mut future, gate, waker } = turn;
        gate.rearm();
        shared.events.fetch_add(1, Ordering::Relaxed);
        shared.current.store(node, Ordering::Relaxed);
        let mut context = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        match polled {
            Ok(poll) if poll.is_pending() => {
                let dead = shared.lock().put_back(id, future);
                drop(dead);
            }
            Ok(_) => self.end(id, future),
            // The node crashed in the middle of this poll: there is no more to it.
            Err(payload) if payload.is::<Crash>() => self.end(id, future),
            // A failed assertion of the code under test: the test is over.
            Err(payload) => {
                shared.current.store(NOBODY, Ordering::Relaxed);
                self.end(id, future);
                resume_unwind(payload);
            }
        }
        shared.current.store(NOBODY, Ordering::Relaxed);
        // Looked at only when something died: the common case pays for no second lock.
        if shared.lock().graveyard.is_empty() {
            return;
        }
        shared.bury();
    }

    fn end(&self, id: TaskId, future: state::Future) {
        drop(future);
        self.shared.lock().end(id, self.shared.now());
    }

    fn stuck(&self, why: Why) -> Stuck {
        Stuck { why, at: self.now(), tasks: self.shared.lock().tasks() }
    }
}

impl Deref for Sim {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Sim {
    /// Tasks hold handles and handles hold the tasks: somebody has to let go first.
    fn drop(&mut self) {
        self.shared.chaos.lock().unwrap().take();
        let mut state = self.shared.lock();
        state.closed = true;
        for node in 0..u32::try_from(state.nodes.len()).unwrap_or(0) {
            state.crash(node, self.shared.now());
        }
        drop(state);
        self.shared.bury();
    }
}

impl Handle {
    /// The environment of a node. A crashed node begins a new life with this.
    pub fn node(&self, name: &str) -> Arc<SimEnv> {
        let mut state = self.shared.lock();
        let index = state.node(name, self.shared.now());
        let node = &state.nodes[index as usize];
        Arc::new(SimEnv::new(self.clone(), index, node))
    }

    /// Virtual time, without any node's skew.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.shared.now())
    }

    /// Resolves after a while, whatever becomes of any node.
    pub fn sleep(&self, d: Duration) -> impl Future<Output = ()> + Send + 'static {
        Sleep::new(self.shared.clone(), d)
    }

    /// The source of every choice.
    pub fn rng(&self) -> &Rng {
        &self.shared.rng
    }

    /// Ends a node: its tasks and timers are gone. Nothing happens if it is down already.
    pub fn crash(&self, node: &str) {
        let index = self.shared.lock().find(node);
        if let Some(index) = index {
            self.shared.crash(index);
        }
    }

    /// Whether a node was started and did not crash since.
    pub fn is_up(&self, node: &str) -> bool {
        let state = self.shared.lock();
        state
            .find(node)
            .is_some_and(|index| !state.nodes[index as usize].life.dead.load(Ordering::Acquire))
    }

    /// Stops a node for a while without ending it: timers run out unseen, leases too. A node that
    /// is down stays down.
    pub fn pause(&self, node: &str, d: Duration) {
        if !self.is_up(node) {
            return;
        }
        let mut state = self.shared.lock();
        let now = self.shared.now();
        if let Some(index) = state.find(node) {
            state.pause(index, now, now.saturating_add(micros(d)), &self.shared.rng);
        }
    }

    /// Moves a node's clock by so many microseconds; adds up. The node must have been started once.
    pub fn skew(&self, node: &str, by_us: i64) {
        let mut state = self.shared.lock();
        let now = self.shared.now();
        let index = state.find(node).expect("a node to skew");
        state.nodes[index as usize].skew_us.fetch_add(by_us, Ordering::Relaxed);
        state.note(now, index, What::Skewed, "");
    }

    /// Says who decides at crash points.
    pub fn set_chaos(&self, chaos: Arc<dyn Chaos>) {
        *self.shared.chaos.lock().unwrap() = Some(chaos);
    }

    /// Adds a line to the trace; it counts for the hash.
    pub fn note(&self, node: &str, text: &str) {
        let mut state = self.shared.lock();
        if let Some(index) = state.find(node) {
            state.note(self.shared.now(), index, What::Noted, text);
        }
    }

    /// A number that stands for everything that happened so far.
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace.hash()
    }

    /// Keeps the last events (polls excepted) for [`Handle::timeline`].
    pub fn keep_timeline(&self, last: usize) {
        self.shared.lock().trace.keep(last);
    }

    /// The events that were kept, oldest first.
    pub fn timeline(&self) -> Vec<Event> {
        self.shared.lock().trace.events()
    }

    /// How often a task was polled.
    pub fn events(&self) -> u64 {
        self.shared.events.load(Ordering::Relaxed)
    }

    /// The tasks that live, as node and name.
    pub fn tasks(&self) -> Vec<(String, &'static str)> {
        self.shared.lock().tasks()
    }
}

#[cfg(test)]
mod tests;
