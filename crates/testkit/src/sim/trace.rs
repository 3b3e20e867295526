//! What happened, as a running hash, and on request as a timeline to read.
//!
//! Invariants: two simulations with the same hash made the same moves at the same times.
//! Deliberately absent: text in the hot path. Names are hashed once, when a task is spawned.

use std::collections::VecDeque;
use std::sync::Arc;

use steadfast_core::Timestamp;

use super::rng::mix;

/// What happened to a task or a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A task began.
    Spawned,
    /// A task was polled.
    Polled,
    /// A task ended.
    Ended,
    /// A node crashed.
    Crashed,
    /// A node came up.
    Started,
    /// A node was paused.
    Paused,
    /// A node's clock was moved.
    Skewed,
    /// Somebody left a note.
    Noted,
}

/// One line of the timeline.
#[derive(Debug, Clone)]
pub struct Event {
    /// When, by the simulation's own clock.
    pub at: Timestamp,
    /// On which node.
    pub node: Arc<str>,
    /// What happened.
    pub what: What,
    /// The task's name, or the note.
    pub name: String,
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:<8} {:?} {}", self.at, self.node, self.what, self.name)
    }
}

/// The hash so far, and the last events if they are kept.
#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: u64,
    keep: usize,
    events: VecDeque<Event>,
}

impl Trace {
    pub(super) fn keep(&mut self, last: usize) {
        self.keep = last;
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.iter().cloned().collect()
    }

    /// Adds an event; `stem` is the hash of `name`.
    pub(super) fn add(&mut self, at: i64, node: (u32, &Arc<str>), what: What, name: (&str, u64)) {
        let place = (u64::from(node.0) << 8) | what as u64;
        // Order matters: each event is mixed into what was before it.
        self.hash = mix(self.hash.rotate_left(5) ^ at.cast_unsigned()) ^ place ^ name.1;
        // Polls are hashed but not kept: they would bury everything else.
        if self.keep == 0 || what == What::Polled {
            return;
        }
        if self.events.len() == self.keep {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            at: Timestamp::from_micros(at),
            node: node.1.clone(),
            what,
            name: name.0.to_owned(),
        });
    }
}

/// The hash of a name (FNV-1a).
pub(super) fn stem(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
