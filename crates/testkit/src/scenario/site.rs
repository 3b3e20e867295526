//! The outside world of a scenario: every step body acts here, and what it did is written down.
//!
//! Invariants: the books never crash and are never rolled back; each call gets a nonce of its own,
//! so a recorded value says which call it came from; calls and commits take their numbers from one
//! counter, so "before" is the order in which things happened.
//! Deliberately absent: judgement. What a call may see or do is decided by the checks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use steadfast_core::env::Env;
use steadfast_core::{Error, Result, Timestamp};

use crate::sim::{Handle, SimEnv};

/// One counter for everything that happens.
#[derive(Debug, Default)]
pub struct Ticks(AtomicU64);

impl Ticks {
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// One call of a step's body.
#[derive(Debug, Clone)]
pub struct Performed {
    /// The run.
    pub run: String,
    /// The step.
    pub step: &'static str,
    /// Values of earlier steps that the body was given.
    pub saw: Vec<u64>,
    /// The receiver's key, for effects.
    pub key: String,
    /// Whether everything it saw must be durable before it starts.
    pub strict: bool,
    /// What it returns, if it succeeds.
    pub nonce: u64,
    /// The worker that made the call.
    pub worker: String,
    /// The worker's node.
    pub node: Arc<str>,
    /// Its position in the order of all things.
    pub started: u64,
    /// When, in virtual time.
    pub started_at: Timestamp,
    /// Where it ended, if it did.
    pub ended: Option<u64>,
    /// Whether it did what it was for.
    pub done: bool,
}

/// What a body does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Takes a moment and succeeds.
    Work,
    /// Takes this many milliseconds and succeeds.
    Slow(u64),
    /// Fails so many times before it succeeds.
    FailFirst(usize),
    /// Always fails.
    Fail,
    /// Panics.
    Panic,
    /// Takes its node down.
    Die,
}

/// A body, ready to be called any number of times.
#[derive(Debug, Clone)]
pub struct Deed {
    /// The run.
    pub run: String,
    /// The step.
    pub step: &'static str,
    /// Values it is given.
    pub saw: Vec<u64>,
    /// The key, for effects.
    pub key: String,
    /// Whether it is a step or effect, and not a read.
    pub strict: bool,
    /// What it does.
    pub how: How,
}

/// Everything that was done, in order.
#[derive(Debug, Default)]
pub struct Books {
    pub(super) ticks: Arc<Ticks>,
    calls: Mutex<Vec<Performed>>,
}

impl Books {
    /// What was done so far.
    pub fn calls(&self) -> Vec<Performed> {
        self.calls.lock().unwrap().clone()
    }

    fn begin(&self, site: &Site, deed: &Deed) -> usize {
        let mut calls = self.calls.lock().unwrap();
        let nonce = 1000 + calls.len() as u64;
        calls.push(Performed {
            run: deed.run.clone(),
            step: deed.step,
            saw: deed.saw.clone(),
            key: deed.key.clone(),
            strict: deed.strict,
            nonce,
            worker: site.worker.get().cloned().unwrap_or_default(),
            node: site.env.name().into(),
            started: self.ticks.next(),
            started_at: site.sim.now(),
            ended: None,
            done: false,
        });
        calls.len() - 1
    }

    fn failures(&self, deed: &Deed) -> usize {
        let calls = self.calls.lock().unwrap();
        let same = calls.iter().filter(|call| call.run == deed.run && call.step == deed.step);
        same.filter(|call| call.ended.is_some() && !call.done).count()
    }

    fn end(&self, at: usize, done: bool) -> u64 {
        let mut calls = self.calls.lock().unwrap();
        calls[at].ended = Some(self.ticks.next());
        calls[at].done = done;
        calls[at].nonce
    }
}

/// A node's access to the outside world, for one life of the node.
pub struct Site {
    pub(super) sim: Handle,
    pub(super) env: Arc<SimEnv>,
    pub(super) books: Arc<Books>,
    /// Set as soon as the worker has an id.
    pub(super) worker: OnceLock<String>,
}

impl Site {
    /// Makes one call.
    pub async fn perform(self: Arc<Self>, deed: Deed) -> Result<u64> {
        let fails = match deed.how {
            How::FailFirst(times) => self.books.failures(&deed) < times,
            How::Fail => true,
            How::Work | How::Slow(_) | How::Panic | How::Die => false,
        };
        let at = self.books.begin(&self, &deed);
        let ms = match deed.how {
            How::Slow(ms) => ms,
            _ => 1 + self.sim.rng().below(40),
        };
        self.env.sleep(Duration::from_millis(ms)).await;
        match deed.how {
            How::Panic => {
                self.books.end(at, false);
                // Not `panic!`: the hook would print what the scenario expects.
                std::panic::resume_unwind(Box::new("planned".to_owned()));
            }
            How::Die => self.env.die(),
            _ => {}
        }
        let nonce = self.books.end(at, !fails);
        if fails { Err(Error::app("planned")) } else { Ok(nonce) }
    }
}
