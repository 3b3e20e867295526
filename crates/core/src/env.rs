//! Everything that is not deterministic, behind one trait: time, waiting, tasks, randomness,
//! crashes.
//!
//! Invariants: the engine reaches the outside of its own logic only through [`Env`] and the store,
//! so a simulator that implements both can place a fault at every point and replay it from a seed.
//! Deliberately absent: sockets and files; those belong to steps.

use std::any::Any;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::time::Timestamp;

/// The engine's world: tokio in production, virtual time in simulation.
pub trait Env: Send + Sync + 'static {
    /// Wall time of this node.
    fn now(&self) -> Timestamp;

    /// Resolves after a while.
    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()>;

    /// Runs a task beside this one. The name shows in traces of the simulator.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);

    /// Sixty-four random bits.
    fn random(&self) -> u64;

    /// A place where a test may end the process. A no-op in production.
    fn crash_point(&self, _name: &'static str) {}

    /// A panic of the engine's own code was caught, and is given back to be reported. A simulator
    /// goes on unwinding instead: for it, this is the end of the process, or of the test.
    fn panicked(&self, payload: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
        payload
    }
}

/// A fresh identifier: ordered by time, unique by eighty random bits.
pub fn new_id(env: &dyn Env) -> String {
    let ms = env.now().as_millis();
    let (hi, lo) = (env.random() & 0xffff, env.random());
    format!("{ms:012x}-{hi:04x}-{lo:016x}")
}

/// A fresh UUID (version 7): ordered by time, unique by 74 random bits.
pub fn new_uuid(env: &dyn Env) -> String {
    let ms = u64::try_from(env.now().as_millis()).unwrap_or(0) & 0xffff_ffff_ffff;
    let (a, b) = (env.random() & 0xfff, env.random() >> 2 | 1 << 63);
    let (top, low) = (ms >> 16, ms & 0xffff);
    format!("{top:08x}-{low:04x}-7{a:03x}-{:04x}-{:012x}", b >> 48, b & 0xffff_ffff_ffff)
}
