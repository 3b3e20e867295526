//! One node's view of the simulation, as the engine's [`Env`].
//!
//! Invariants: an environment belongs to one life of its node. After the crash it starts nothing
//! and wakes nobody, so whatever still holds it cannot act; a restarted node gets a new one.
//! Deliberately absent: a difference between monotonic and wall time when sleeping. A skewed clock
//! changes what `now` says, never how long a sleep takes.

use std::any::Any;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast_core::Timestamp;
use steadfast_core::env::Env;
use steadfast_core::time::micros;

use super::state::{Alarm, AlarmKey, Life, Node};
use super::{Handle, Shared};

/// What unwinds a task whose node crashed in the middle of a poll.
pub(super) struct Crash;

/// A node's environment, for one life of the node.
pub struct SimEnv {
    handle: Handle,
    index: u32,
    name: Arc<str>,
    life: Arc<Life>,
    skew_us: Arc<AtomicI64>,
}

impl SimEnv {
    pub(super) fn new(handle: Handle, index: u32, node: &Node) -> Self {
        Self {
            handle,
            index,
            name: node.name.clone(),
            life: node.life.clone(),
            skew_us: node.skew_us.clone(),
        }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name, to be kept.
    pub(crate) fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    /// The simulation.
    pub fn sim(&self) -> &Handle {
        &self.handle
    }

    /// What this node's clock is ahead of virtual time, in microseconds.
    pub fn skew_us(&self) -> i64 {
        self.skew_us.load(Ordering::Relaxed)
    }

    /// Whether this life of the node is over.
    pub fn is_dead(&self) -> bool {
        self.life.dead.load(Ordering::Acquire)
    }

    /// Resolves when this life of the node is over: what a supervisor waits for.
    pub fn died(&self) -> impl Future<Output = ()> + Send + 'static {
        let life = self.life.clone();
        std::future::poll_fn(move |cx| {
            let mut watchers = life.watchers.lock().unwrap();
            if life.dead.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            if !watchers.iter().any(|waker| waker.will_wake(cx.waker())) {
                watchers.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Crashes this node. If the caller is one of its tasks, this does not return; a caller from
    /// elsewhere, such as the test itself, sees it return.
    pub fn die(&self) {
        // A later life of the node is not this environment's to end.
        if !self.is_dead() {
            self.shared().crash(self.index);
        }
        // Unwinding out of a drop that unwinds already would abort the process.
        if self.is_inside() && !std::thread::panicking() {
            // Not `panic!`: this is no failure, so no hook should report it.
            resume_unwind(Box::new(Crash));
        }
    }

    /// Whether the code that runs right now belongs to a task of this node.
    pub fn is_inside(&self) -> bool {
        self.shared().current.load(Ordering::Relaxed) == self.index
    }

    fn shared(&self) -> &Shared {
        &self.handle.shared
    }
}

impl Env for SimEnv {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.shared().now().saturating_add(self.skew_us()))
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        if self.is_dead() {
            return Box::pin(std::future::pending());
        }
        Box::pin(Sleep::new(self.handle.shared.clone(), d))
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let shared = self.shared();
        let mut state = shared.lock();
        if state.closed || self.is_dead() {
            drop(state);
            drop(task);
            return;
        }
        state.spawn(shared.now(), self.index, name, task, &shared.woken);
    }

    fn random(&self) -> u64 {
        self.shared().rng.next()
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
        // A crash ends what catches it, too; any other panic is a failure of the code under test.
        resume_unwind(payload)
    }

    fn crash_point(&self, name: &'static str) {
        if self.is_dead() {
            return self.die();
        }
        let chaos = self.shared().chaos.lock().unwrap().clone();
        if chaos.is_some_and(|chaos| chaos.crashes(&self.name, name)) {
            self.die();
        }
    }
}

/// A timer; set by the first poll.
pub(super) struct Sleep {
    shared: Arc<Shared>,
    at: i64,
    key: Option<AlarmKey>,
}

impl Sleep {
    pub(super) fn new(shared: Arc<Shared>, d: Duration) -> Self {
        // At least a microsecond: a loop around a sleep of zero must not stop virtual time.
        let at = shared.now().saturating_add(micros(d).max(1));
        Self { shared, at, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.now() >= self.at {
            return Poll::Ready(());
        }
        match self.key {
            Some(key) => {
                let former = self.shared.lock().rewire(key, cx.waker());
                drop(former);
            }
            None => {
                let alarm = Alarm::Wake(cx.waker().clone());
                let key = self.shared.lock().set_alarm(self.at, alarm, &self.shared.rng);
                self.key = Some(key);
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let alarm = self.shared.lock().cancel_alarm(key);
            drop(alarm);
        }
    }
}
