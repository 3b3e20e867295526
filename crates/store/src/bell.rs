//! What the bells of the servers have in common: commits here pull them, those who wait hear them.
//!
//! Invariants: a ring says nothing but "look again", for work or for an end.
//! Deliberately absent: what or who is meant, and any promise. Polling finds what a lost ring told.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Commits closer together than this share a ring.
const APART: Duration = Duration::from_millis(2);

/// Pulled by our commits, heard by everybody who waits.
#[derive(Default)]
pub(crate) struct Bell {
    pulled: Notify,
    pulls: AtomicU32,
    /// What the next ring is to say.
    is_ready: AtomicBool,
    has_ended: AtomicBool,
    rung: Notify,
    rung_for_end: Notify,
}

/// What a ring says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Something may be ready.
    pub(crate) ready: bool,
    /// A run may have ended.
    pub(crate) ended: bool,
}

impl Ring {
    /// Look at everything.
    pub(crate) const ALL: Self = Self { ready: true, ended: true };
}

/// The time between two rings for other processes, each of which costs the server and them
/// something: twice as long as long as there is always more to tell. One piece of news in a pause
/// is not: who waits for it may be the only one who makes more.
pub(crate) struct Pauses {
    now: Duration,
    most: Duration,
}

impl Pauses {
    pub(crate) fn up_to(most: Duration) -> Self {
        Self { now: APART, most }
    }

    pub(crate) async fn pause(&mut self, bell: &Bell) {
        let before = bell.pulls();
        tokio::time::sleep(self.now).await;
        self.turn(bell.pulls().wrapping_sub(before));
    }

    /// Decides by how often the bell was pulled in a pause: at most once in [`APART`].
    fn turn(&mut self, pulls: u32) {
        self.now = match APART * pulls * 2 > self.now {
            true => (self.now * 2).min(self.most),
            false => APART,
        };
    }
}

impl Bell {
    fn pulls(&self) -> u32 {
        self.pulls.load(Ordering::Acquire)
    }

    /// Asks for the others to be told soon.
    pub(crate) fn pull(&self, ready: bool, ended: bool) {
        self.is_ready.fetch_or(ready, Ordering::AcqRel);
        self.has_ended.fetch_or(ended, Ordering::AcqRel);
        if ready || ended {
            self.pulls.fetch_add(1, Ordering::AcqRel);
            self.pulled.notify_one();
        }
    }

    /// Tells those who wait here of all commits since the last time, once, and has the others told.
    pub(crate) async fn tell_here(&self, others: &Bell) -> Infallible {
        loop {
            let ring = self.pulled().await;
            self.ring(ring);
            others.pull(ring.ready, ring.ended);
            tokio::time::sleep(APART).await;
        }
    }

    /// Waits until it was pulled; gives what is to be told.
    pub(crate) async fn pulled(&self) -> Ring {
        loop {
            self.pulled.notified().await;
            let ready = self.is_ready.swap(false, Ordering::AcqRel);
            let ended = self.has_ended.swap(false, Ordering::AcqRel);
            if ready || ended {
                return Ring { ready, ended };
            }
        }
    }

    /// Wakes those who wait here.
    pub(crate) fn ring(&self, ring: Ring) {
        if ring.ready {
            self.rung.notify_waiters();
        }
        if ring.ended {
            self.rung_for_end.notify_waiters();
        }
    }

    /// Resolves when the next end of a run is told after this call, not after its first poll: who
    /// asks for it, looks and then waits misses nothing.
    pub(crate) fn end_heard(&self) -> Notified<'_> {
        self.rung_for_end.notified()
    }

    /// The same for the next ring for work.
    pub(crate) fn heard(&self) -> Notified<'_> {
        self.rung.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_less_often_while_there_is_always_more_to_tell() {
        let mut pauses = Pauses::up_to(Duration::from_millis(10));
        // By how often there was news in each pause.
        let now = [1, 2, 4, 5, 3, 2, 1, 1, 0].map(|pulls| {
            pauses.turn(pulls);
            pauses.now.as_millis()
        });
        assert_eq!(now, [4, 8, 10, 10, 10, 2, 4, 2, 2]);
    }
}
