//! What is worth trying at once, as one connection has learned it: claims from which queues, and
//! whole batches.
//!
//! Invariants: what is remembered here costs or spares a try, and decides nothing else.

use crate::long_way::{LONG_WAY, LongWays};
use crate::op::{Dequeue, Op, Reply};
use crate::session::Applied;

#[derive(Default)]
pub(super) struct Ways {
    /// The queues from which claims at once took nothing although something was there.
    long: LongWays,
    /// A claim at once that has just taken nothing.
    missed: Option<Dequeue>,
    /// For how many batches it is not tried to write them at once: somebody was to be told of a
    /// run's end, say.
    long_batches: u32,
}

impl Ways {
    /// Whether it is worth trying to carry an operation out at once.
    pub(super) fn is_short(&mut self, op: &Op) -> bool {
        self.missed = None;
        let Op::Dequeue(claim) = op else { return true };
        let is_short = self.long.is_short(claim);
        if !is_short {
            self.long.go(claim);
        }
        is_short
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
        if let Op::Dequeue(claim) = op {
            self.missed = Some(claim.clone());
        }
    }

    /// What the long way came to, after the short one had led nowhere.
    pub(super) fn learn(&mut self, applied: &[Applied]) {
        let Some(claim) = self.missed.take() else { return };
        let found = |applied: &Applied| match &applied.reply {
            Reply::Dequeue(claimed) => !claimed.runs.is_empty(),
            _ => false,
        };
        if applied.iter().any(found) {
            self.long.learn(&claim);
        }
    }
}
