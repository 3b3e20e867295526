//! Whether the writer of claims takes runs from queues for much of the time: one is drained then.
//!
//! Invariants: it decides on the size of batches and on nothing else, so an old or wrong answer
//! costs time only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The part of the time that is much.
const MUCH: f64 = 0.3;
/// How long what has passed counts: after it, for a third.
const MEMORY: Duration = Duration::from_millis(20);
/// How long an answer holds after a claim.
const HOLDS: Duration = Duration::from_millis(10);

/// What everybody may ask.
pub(crate) struct Busy {
    since: Instant,
    /// Until when claims take much of the time, in microseconds from `since`.
    until: AtomicU64,
}

impl Busy {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), until: AtomicU64::new(0) }
    }

    /// Whether claims take much of the time.
    pub(crate) fn is_much(&self) -> bool {
        self.holds_at(self.since.elapsed())
    }

    fn holds_at(&self, now: Duration) -> bool {
        micros(now) < self.until.load(Ordering::Relaxed)
    }

    fn note_at(&self, much: bool, now: Duration) {
        let until = if much { micros(now + HOLDS) } else { 0 };
        self.until.store(until, Ordering::Relaxed);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What the writer of claims has.
pub(crate) struct Meter {
    busy: Arc<Busy>,
    share: Share,
    /// When it was last done with something.
    ended: Instant,
}

impl Meter {
    pub(crate) fn new(busy: &Arc<Busy>) -> Self {
        Self { busy: busy.clone(), share: Share::default(), ended: Instant::now() }
    }

    /// It is done with something: a claim from a queue, if that has begun at some time.
    pub(crate) fn add(&mut self, begun: Option<Instant>) {
        let claim = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        let all = std::mem::replace(&mut self.ended, Instant::now()).elapsed();
        let much = self.share.add(all, claim);
        self.busy.note_at(much, self.busy.since.elapsed());
    }
}

/// The time of late, and how much of it claims have taken, in seconds. What is long past counts for
/// nothing, so a pause of any length counts as one of `MEMORY`.
#[derive(Default)]
struct Share {
    all: f64,
    claims: f64,
}

impl Share {
    /// So much time has passed, and claims have taken so much of it; whether that is much by now.
    fn add(&mut self, all: Duration, claims: Duration) -> bool {
        let left = faded(all);
        let memory = MEMORY.as_secs_f64();
        self.all = self.all * left + memory * (1.0 - left);
        self.claims = self.claims * left + memory * (1.0 - faded(claims));
        self.claims > MUCH * self.all
    }
}

/// What is left of a moment after so long.
fn faded(after: Duration) -> f64 {
    (-after.as_secs_f64() / MEMORY.as_secs_f64()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn claims_in_a_row_are_much_and_rare_ones_are_not() {
        let mut share = Share::default();
        assert!(!share.add(Duration::ZERO, Duration::ZERO), "no time is no part of it");
        assert!(!share.add(ms(1000), ms(1)));
        let row = (0..20).map(|_| share.add(ms(2), ms(1))).collect::<Vec<_>>();
        assert!(!row[0] && row[19], "{row:?}");
        assert!(!share.add(ms(100), ms(1)), "a pause counts by its length");
        assert!(!(0..100).any(|_| share.add(ms(5), ms(1))), "a fifth is not much");
    }

    #[test]
    fn an_answer_holds_for_a_while_only() {
        let busy = Busy::new();
        assert!(!busy.holds_at(ms(0)));
        busy.note_at(true, ms(5));
        assert!(busy.holds_at(ms(14)) && !busy.holds_at(ms(15)));
        busy.note_at(true, ms(20));
        busy.note_at(false, ms(21));
        assert!(!busy.holds_at(ms(22)));
    }
}
