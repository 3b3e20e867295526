//! A store that goes wrong where a plan says so, for one node of a simulation.
//!
//! Invariants: every call that reaches the store, and every crash point, is a *decision point*,
//! numbered over all nodes in the order in which they happen; without a fault a call only takes
//! time; with `retrying` a repeated attempt is a point of its own, so a second fault can meet the
//! retry.
//! Deliberately absent: knowledge of what operations mean. The inner store decides that.

mod explore;
mod plan;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast_core::Timestamp;
use steadfast_core::env::Env;
use steadfast_core::time::micros;
use steadfast_store::{Error, Op, Reply, Store};

pub use explore::{Explore, Failure, Report, explore, shrink};
pub use plan::{Fault, Plan, Rates};

use crate::sim::{Chaos, Handle, Rng, SimEnv};

/// What a real store waits before it repeats an operation.
const RETRY: Duration = Duration::from_secs(1);
/// How often a real store compares its clock with the node's.
const SYNC_US: i64 = 30_000_000;
/// Where late writes live: nothing crashes it.
const NETWORK: &str = "network";

/// What kind of decision point it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A call that only reads.
    Read,
    /// A call that writes.
    Write,
    /// A named place in the code.
    CrashPoint,
}

/// A decision point that was met. Its number is its position in [`Outcome::points`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// The operation's or the crash point's name.
    pub op: &'static str,
    /// The node.
    pub node: Arc<str>,
    /// What may go wrong there.
    pub access: Access,
    /// Whether a crash of the store's server would lose claims there.
    pub forgets: bool,
}

/// The server of a store: what a crash of it takes back.
pub trait Server: Send + Sync {
    /// Whether there are claims that it has acknowledged and not flushed.
    fn has_unflushed(&self) -> bool;
    /// Crashes and restarts. Claims that were not flushed never happened, and every worker that is
    /// alive loses its connections.
    fn crash(&self, now: Timestamp);
}

/// What a run of a scenario was like.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The decision points, in order.
    pub points: Vec<Point>,
    /// The faults that happened.
    pub placed: BTreeMap<u64, Fault>,
    /// Whether everything that must hold held, or else what did not.
    pub verdict: Result<(), String>,
}

/// How the stores of a simulation behave when nothing goes wrong.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether transient and ambiguous errors are met by trying again, as production stores do, or
    /// are shown to the caller.
    pub retrying: bool,
    /// The least and the most time between call and application, and between that and the reply.
    pub latency: (Duration, Duration),
}

impl Default for Options {
    fn default() -> Self {
        Self { retrying: true, latency: (Duration::from_micros(50), Duration::from_millis(2)) }
    }
}

/// The plan at work: shared by the stores of all nodes.
pub struct Faults {
    sim: Handle,
    plan: Plan,
    rng: Rng,
    options: Options,
    healed: AtomicBool,
    hints_lost: AtomicBool,
    down_until: AtomicI64,
    server: OnceLock<Arc<dyn Server>>,
    met: Mutex<Met>,
}

#[derive(Default)]
struct Met {
    points: Vec<Point>,
    placed: BTreeMap<u64, Fault>,
}

impl Faults {
    /// Puts a plan to work in a simulation; decides at its crash points too.
    pub fn new(sim: &Handle, plan: Plan, options: Options) -> Arc<Self> {
        let faults = Arc::new(Self {
            sim: sim.clone(),
            // Its own source, so that an explicit plan of the same faults makes the same run.
            rng: Rng::new(plan.seed() ^ 0xfa17),
            plan,
            options,
            healed: AtomicBool::new(false),
            hints_lost: AtomicBool::new(false),
            down_until: AtomicI64::new(i64::MIN),
            server: OnceLock::new(),
            met: Mutex::default(),
        });
        sim.set_chaos(faults.clone());
        faults
    }

    /// Says which server [`Fault::Forget`] crashes; without one, it is never met.
    ///
    /// # Panics
    /// If there is one already.
    pub fn set_server(&self, server: Arc<dyn Server>) {
        assert!(self.server.set(server).is_ok(), "a simulation has one server");
    }

    /// The store as seen from a node. A restarted node needs a new one, with its new environment.
    pub fn store(self: &Arc<Self>, env: Arc<SimEnv>, inner: Arc<dyn Store>) -> Arc<FaultStore> {
        let offset_us = AtomicI64::new(-env.skew_us());
        let synced_at = AtomicI64::new(self.sim.now().as_micros());
        Arc::new(FaultStore { inner, env, faults: self.clone(), offset_us, synced_at })
    }

    /// From now on nothing goes wrong any more, and hints arrive.
    pub fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
        self.hints_lost.store(false, Ordering::Relaxed);
        self.down_until.store(i64::MIN, Ordering::Relaxed);
    }

    /// Whether change hints are being dropped; for hints that do not pass the store.
    pub fn hints_lost(&self) -> bool {
        self.hints_lost.load(Ordering::Relaxed)
    }

    /// How many decision points were met.
    pub fn count(&self) -> u64 {
        self.met.lock().unwrap().points.len() as u64
    }

    /// How many faults have happened so far.
    pub fn placed(&self) -> u64 {
        self.met.lock().unwrap().placed.len() as u64
    }

    /// What the run was like, with the scenario's verdict on it.
    pub fn outcome(&self, verdict: Result<(), String>) -> Outcome {
        let met = self.met.lock().unwrap();
        Outcome { points: met.points.clone(), placed: met.placed.clone(), verdict }
    }

    /// Meets a decision point.
    fn decide(&self, node: &Arc<str>, op: &'static str, access: Access) -> Option<Fault> {
        let mut met = self.met.lock().unwrap();
        let number = met.points.len() as u64;
        let forgets = self.server.get().is_some_and(|server| server.has_unflushed());
        let point = Point { op, node: node.clone(), access, forgets };
        let drawn = self.plan.rates().and_then(|rates| rates.draw(&self.rng, &point));
        let planned = self.plan.faults().get(&number).copied().filter(|fault| fault.fits(&point));
        met.points.push(point);
        let fault = planned.or(drawn).filter(|_| !self.healed.load(Ordering::Relaxed));
        if let Some(fault) = fault {
            met.placed.insert(number, fault);
        }
        drop(met);
        match fault {
            Some(fault) => self.sim.note(node, &format!("{number} {op} {fault}")),
            None => self.sim.note(node, op),
        }
        fault
    }

    fn is_down(&self) -> bool {
        self.sim.now().as_micros() < self.down_until.load(Ordering::Relaxed)
    }

    fn latency(&self) -> Duration {
        let (least, most) = self.options.latency;
        let spread = micros(most.saturating_sub(least)).cast_unsigned() + 1;
        least + Duration::from_micros(self.sim.rng().below(spread))
    }
}

impl Chaos for Faults {
    fn crashes(&self, node: &str, point: &'static str) -> bool {
        let fault = self.decide(&Arc::from(node), point, Access::CrashPoint);
        fault == Some(Fault::CrashBefore)
    }
}

/// A store as seen from one node, for one life of the node.
pub struct FaultStore {
    inner: Arc<dyn Store>,
    env: Arc<SimEnv>,
    faults: Arc<Faults>,
    offset_us: AtomicI64,
    synced_at: AtomicI64,
}

impl FaultStore {
    /// One attempt, with what the plan has for it.
    async fn attempt(&self, op: &Op) -> Result<Reply, Error> {
        self.wait(self.faults.latency()).await;
        // Only a caller from elsewhere comes here after the node's end.
        if self.env.is_dead() {
            return Err(Error::Closed);
        }
        if self.faults.is_down() {
            return Err(Error::Transient("the store is down".to_owned()));
        }
        let access = if op.is_read() { Access::Read } else { Access::Write };
        let fault = self.faults.decide(self.env.shared_name(), op.name(), access);
        let reply = match fault {
            None => self.inner.call(op.clone()).await,
            Some(fault) => self.apply(op, fault).await,
        };
        self.wait(self.faults.latency()).await;
        self.sync();
        reply
    }

    async fn apply(&self, op: &Op, fault: Fault) -> Result<Reply, Error> {
        match fault {
            Fault::FailBefore => return Err(Error::Transient("injected".to_owned())),
            Fault::CrashBefore => {
                self.env.die();
                return Err(Error::Closed);
            }
            Fault::Late(d) => {
                self.apply_later(op.clone(), d);
                return Err(Error::Ambiguous("injected, to be applied late".to_owned()));
            }
            Fault::StoreDown(d) => {
                let until = self.faults.sim.now().after(d).as_micros();
                self.faults.down_until.store(until, Ordering::Relaxed);
                return Err(Error::Transient("the store went down".to_owned()));
            }
            Fault::Forget => {
                if let Some(server) = self.faults.server.get() {
                    server.crash(self.faults.sim.now());
                }
                return Err(Error::Transient("the server of the store crashed".to_owned()));
            }
            Fault::Stop(d) => self.stand_still(d).await,
            Fault::LostNotification => self.faults.hints_lost.store(true, Ordering::Relaxed),
            Fault::ClockJump(ms) => self.faults.sim.skew(self.env.name(), ms.saturating_mul(1000)),
            Fault::Ambiguous | Fault::CrashAfter | Fault::Pause(_) | Fault::Duplicate => {}
        }
        let reply = self.inner.call(op.clone()).await;
        match fault {
            Fault::Ambiguous => return Err(Error::Ambiguous("injected".to_owned())),
            Fault::CrashAfter => {
                self.env.die();
                return Err(Error::Closed);
            }
            Fault::Duplicate => return self.inner.call(op.clone()).await,
            Fault::Pause(d) => self.stand_still(d).await,
            _ => {}
        }
        reply
    }

    /// Stops the node, and ends this poll: what follows belongs to the time after that.
    async fn stand_still(&self, d: Duration) {
        self.faults.sim.pause(self.env.name(), d);
        self.wait(d).await;
    }

    /// Not the node's own sleep, which never ends after a crash: a caller from elsewhere goes on.
    /// The node's tasks are dropped while they wait.
    fn wait(&self, d: Duration) -> impl Future<Output = ()> + Send + 'static {
        self.faults.sim.sleep(d)
    }

    /// The operation is still under way when its sender gave up on it, or is gone.
    fn apply_later(&self, op: Op, d: Duration) {
        let (inner, network) = (self.inner.clone(), self.faults.sim.node(NETWORK));
        let wait = self.wait(d);
        let task = async move {
            wait.await;
            // Nobody hears the reply.
            drop(inner.call(op).await);
        };
        network.spawn("late", Box::pin(task));
    }

    /// Measures the node's clock against the store's, as often as a real store does.
    fn sync(&self) {
        let now = self.faults.sim.now().as_micros();
        if now - self.synced_at.load(Ordering::Relaxed) >= SYNC_US {
            self.synced_at.store(now, Ordering::Relaxed);
            self.offset_us.store(-self.env.skew_us(), Ordering::Relaxed);
        }
    }

    async fn carry_out(&self, op: Op) -> Result<Reply, Error> {
        loop {
            if self.env.is_dead() {
                // The node's own code is gone and must not go on; a test that kept the store is
                // told.
                if self.env.is_inside() {
                    return std::future::pending().await;
                }
                return Err(Error::Closed);
            }
            match self.attempt(&op).await {
                Err(error) if error.is_retryable() && self.faults.options.retrying => {
                    self.wait(RETRY).await;
                }
                reply => return reply,
            }
        }
    }
}

impl Store for FaultStore {
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(self.carry_out(op))
    }

    fn clock_offset_us(&self) -> i64 {
        self.offset_us.load(Ordering::Relaxed)
    }

    fn announce(&self) {
        self.inner.announce();
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        self.inner.ended()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        // Asked for now: what is told before the first poll counts, too.
        let mut changed = self.inner.changed();
        Box::pin(async move {
            loop {
                changed.await;
                changed = self.inner.changed();
                if !self.faults.hints_lost() {
                    return;
                }
                // A store that always has a hint must not keep this poll for ever.
                self.wait(RETRY).await;
            }
        })
    }
}

#[cfg(test)]
mod tests;
