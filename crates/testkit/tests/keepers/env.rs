//! A world in which the worker's code panics at a crash point.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast::{Timestamp, TokioEnv};
use steadfast_core::env::Env;

/// [`Env`] on tokio, with panics at crash points.
pub(crate) struct Nervous {
    tokio: TokioEnv,
    /// Where, and how often.
    panics: Mutex<(&'static str, u32)>,
}

impl Nervous {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { tokio: TokioEnv::current(), panics: Mutex::new(("", 0)) })
    }

    /// The next so many that pass a point panic.
    pub(crate) fn arm(&self, point: &'static str, times: u32) {
        *self.panics.lock().unwrap() = (point, times);
    }

    /// How many have not yet.
    pub(crate) fn left(&self) -> u32 {
        self.panics.lock().unwrap().1
    }
}

impl Env for Nervous {
    fn now(&self) -> Timestamp {
        self.tokio.now()
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

    fn crash_point(&self, name: &'static str) {
        let mut panics = self.panics.lock().unwrap();
        if panics.0 == name && panics.1 > 0 {
            panics.1 -= 1;
            drop(panics);
            panic!("a panic was placed at {name}");
        }
    }
}
