//! A clock that is moved by hand, so that a test sees years of nights in a moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast::TokioEnv;
use steadfast_core::Timestamp;
use steadfast_core::env::Env;
use steadfast_core::schedule::parse_moment;

/// [`Env`] on tokio, but for the time of day.
pub struct Clock {
    now: AtomicI64,
    drawn: AtomicU64,
    tokio: TokioEnv,
}

impl Clock {
    /// A clock that shows a moment, such as `2026-06-01T18:00:00Z`.
    pub fn at(moment: &str) -> Arc<Self> {
        let drawn = TokioEnv::current().random();
        let (now, drawn) = (AtomicI64::new(0), AtomicU64::new(drawn));
        let clock = Arc::new(Self { now, drawn, tokio: TokioEnv::current() });
        clock.set(parse_moment(moment).unwrap());
        clock
    }

    /// Sets it.
    pub fn set(&self, moment: Timestamp) {
        self.now.store(moment.as_micros(), Ordering::SeqCst);
    }

    /// Sets it to a moment, given as text.
    pub fn go(&self, moment: &str) {
        self.set(parse_moment(moment).unwrap());
    }
}

impl Env for Clock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::SeqCst))
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        self.tokio.sleep(d)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.tokio.spawn(name, task);
    }

    fn random(&self) -> u64 {
        // Different for every draw of every clock, and quick.
        let n = self.drawn.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        (n ^ (n >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }
}

/// [`Env`] on tokio, whose time of day is wrong.
pub struct Offset {
    by_us: i64,
    tokio: TokioEnv,
}

impl Offset {
    /// Ahead by so much.
    pub fn ahead(by: Duration) -> Self {
        Self { by_us: steadfast_core::time::micros(by), tokio: TokioEnv::current() }
    }

    /// Behind by so much.
    pub fn behind(by: Duration) -> Self {
        Self { by_us: -steadfast_core::time::micros(by), tokio: TokioEnv::current() }
    }
}

impl Env for Offset {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.tokio.now().as_micros() + self.by_us)
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        self.tokio.sleep(d)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.tokio.spawn(name, task);
    }

    fn random(&self) -> u64 {
        self.tokio.random()
    }
}
