//! When a worker looks next for runs that are due, and what makes that sooner: a run that comes to
//! rest here until an earlier time, or a place where one was wanting.
//!
//! Invariants: whatever is said while the worker looks counts after that look. It is a hint, like
//! every ring: polling finds what was not said here.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use steadfast_core::Timestamp;

use crate::bell::Bell;

pub(crate) struct Due {
    pub(crate) bell: Bell,
    /// The first moment that is known of, in microseconds.
    first: AtomicI64,
    lacks_place: AtomicBool,
}

impl Default for Due {
    fn default() -> Self {
        let (bell, lacks_place) = (Bell::default(), AtomicBool::new(true));
        Self { bell, first: AtomicI64::new(Timestamp::NEVER.as_micros()), lacks_place }
    }
}

/// What counts from the end of a look on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The rings up to then.
    pub(crate) rings: u64,
    /// The first moment.
    pub(crate) next_at: Option<Timestamp>,
}

impl Due {
    /// The worker begins to look; how often the bell was rung before.
    pub(crate) fn look(&self) -> u64 {
        self.first.store(Timestamp::NEVER.as_micros(), Ordering::SeqCst);
        self.lacks_place.store(true, Ordering::SeqCst);
        self.bell.rings()
    }

    /// The worker has looked: what comes next, and whether something due was left. Then a place
    /// that became free meanwhile is a reason to look again.
    pub(crate) fn looked(&self, before: u64, next_at: Option<Timestamp>, was_left: bool) -> Known {
        self.lacks_place.store(was_left, Ordering::SeqCst);
        // Before what was said is read: who says more after that is heard.
        let rings = if was_left { before } else { self.bell.rings() };
        let next_at = next_at.unwrap_or(Timestamp::NEVER).as_micros();
        let first = self.first.fetch_min(next_at, Ordering::SeqCst).min(next_at);
        let next_at = Some(Timestamp::from_micros(first)).filter(|at| *at != Timestamp::NEVER);
        Known { rings, next_at }
    }

    /// A run rests until a time.
    pub(crate) fn at(&self, moment: Timestamp) {
        if moment.as_micros() < self.first.fetch_min(moment.as_micros(), Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    /// A place is free.
    pub(crate) fn place(&self) {
        if self.lacks_place.load(Ordering::SeqCst) {
            self.bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_run_that_rests_rings_if_it_is_due_before_all_others() {
        let due = Due::default();
        let known = due.looked(due.look(), Some(at(50)), false);
        assert_eq!(known, Known { rings: 0, next_at: Some(at(50)) });
        let rings = [60, 40, 45, Timestamp::NEVER.as_micros(), 30].map(|moment| {
            due.at(at(moment));
            due.bell.rings()
        });
        assert_eq!(rings, [0, 1, 1, 1, 2]);
    }

    #[test]
    fn what_is_said_while_the_worker_looks_counts_after_it() {
        let due = Due::default();
        let before = due.look();
        due.at(at(20));
        assert_eq!(due.looked(before, Some(at(50)), false).next_at, Some(at(20)));
        let before = due.look();
        due.place();
        let known = due.looked(before, None, true);
        assert!(due.bell.rings() > known.rings && known.next_at.is_none());
    }

    #[test]
    fn a_place_is_told_of_where_one_was_wanting() {
        let due = Due::default();
        let known = due.looked(due.look(), None, false);
        due.place();
        assert_eq!(due.bell.rings(), known.rings);
        let known = due.looked(due.look(), None, true);
        due.place();
        assert!(due.bell.rings() > known.rings);
    }
}
