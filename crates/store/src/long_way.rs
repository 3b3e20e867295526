//! Claims that go the long way, since the short one has led nowhere: commands wait there, say, or
//! the queue has limits that must be counted.
//!
//! Invariants: what is remembered here costs or spares a try, and decides nothing else.

use std::collections::HashMap;

use crate::op::Dequeue;

/// How many go the long way until the short one is tried again.
pub(crate) const LONG_WAY: u32 = 64;

/// By workspace and queue: how many more.
#[derive(Default)]
pub(crate) struct LongWays(HashMap<(String, String), u32>);

fn queue(claim: &Dequeue) -> (String, String) {
    (claim.workspace.clone(), claim.queue.clone())
}

impl LongWays {
    /// Whether the short way is worth trying.
    pub(crate) fn is_short(&self, claim: &Dequeue) -> bool {
        // Most often nothing is remembered, and nothing is to be made for the look.
        self.0.is_empty() || !self.0.contains_key(&queue(claim))
    }

    /// A claim goes the long way.
    pub(crate) fn go(&mut self, claim: &Dequeue) {
        let queue = queue(claim);
        let left = self.0.get(&queue).copied().unwrap_or(0).saturating_sub(1);
        match left {
            0 => drop(self.0.remove(&queue)),
            left => drop(self.0.insert(queue, left)),
        }
    }

    /// The short way has led nowhere.
    pub(crate) fn learn(&mut self, claim: &Dequeue) {
        self.0.insert(queue(claim), LONG_WAY);
    }
}
