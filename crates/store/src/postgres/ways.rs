//! What is worth trying at once, as one connection has learned it: claims from which queues, and
//! whole batches.
//!
//! Invariants: what is remembered here costs or spares a try, and decides nothing else.

use std::collections::HashMap;

use crate::op::{Op, Reply};
use crate::session::Applied;

/// Claims, or batches, that go the long way once the short one has led nowhere: commands wait
/// there, say, or the queue has limits that must be counted; somebody is to be told of a run's end.
const LONG_WAY: u32 = 64;

/// A queue, by its workspace and name.
type Queue = (String, String);

#[derive(Default)]
pub(super) struct Ways {
    /// The queues from which claims at once took nothing although something was there, and for how
    /// many claims that is not tried again.
    long: HashMap<Queue, u32>,
    /// The queue of a claim at once that has just taken nothing.
    missed: Option<Queue>,
    /// For how many batches it is not tried to write them at once.
    long_batches: u32,
}

fn queue(op: &Op) -> Option<Queue> {
    match op {
        Op::Dequeue(op) => Some((op.workspace.clone(), op.queue.clone())),
        _ => None,
    }
}

impl Ways {
    /// Whether it is worth trying to carry an operation out at once.
    pub(super) fn is_short(&mut self, op: &Op) -> bool {
        self.missed = None;
        let Some(queue) = queue(op) else { return true };
        match self.long.get_mut(&queue) {
            Some(0) => self.long.remove(&queue).is_some(),
            Some(claims) => {
                *claims -= 1;
                false
            }
            None => true,
        }
    }

    /// Whether it is worth trying to write a batch at once.
    pub(super) fn is_short_for_batches(&mut self) -> bool {
        let one_less = self.long_batches.checked_sub(1);
        self.long_batches = one_less.unwrap_or(0);
        one_less.is_none()
    }

    /// A batch was not written at once, or not all of it.
    pub(super) fn missed_batch(&mut self) {
        self.long_batches = LONG_WAY;
    }

    /// An operation was not carried out at once.
    pub(super) fn missed(&mut self, op: &Op) {
        self.missed = queue(op);
    }

    /// What the long way came to, after the short one had led nowhere.
    pub(super) fn learn(&mut self, applied: &[Applied]) {
        let Some(queue) = self.missed.take() else { return };
        let found = |applied: &Applied| match &applied.reply {
            Reply::Dequeue(claimed) => !claimed.runs.is_empty(),
            _ => false,
        };
        if applied.iter().any(found) {
            self.long.insert(queue, LONG_WAY);
        }
    }
}
