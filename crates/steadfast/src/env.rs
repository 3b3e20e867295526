//! The production world: tokio's timers and tasks, the system's clock and randomness.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use steadfast_core::Timestamp;
use steadfast_core::env::Env;

/// [`Env`] on a tokio runtime.
#[derive(Debug, Clone)]
pub struct TokioEnv {
    runtime: tokio::runtime::Handle,
}

impl TokioEnv {
    /// On the current runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime, as tokio itself does.
    pub fn current() -> Self {
        Self { runtime: tokio::runtime::Handle::current() }
    }
}

impl Env for TokioEnv {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(d))
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }

    fn random(&self) -> u64 {
        // Every state has keys of its own, from the system's randomness.
        RandomState::new().build_hasher().finish()
    }
}
