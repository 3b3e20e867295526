//! Whether an answer is looked for or slept for: a thread that sleeps is woken some 50 µs after
//! there is a reason to, which is half as long as a commit on a quiet disk.
//!
//! Invariants: it decides on time and on nothing else. Where answers take longer than is worth
//! looking, they are slept for, but for one now and then; so they are where there is one processor,
//! which somebody else needs to make the answer.

use std::sync::LazyLock;
#[cfg(feature = "sqlite")]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(feature = "sqlite")]
use std::task::Poll;
use std::time::{Duration, Instant};

/// For how long an answer is looked for: a commit on a quiet disk takes half of it. Others who are
/// ready on the same thread wait meanwhile, and so it cannot be much.
const PATIENCE: Duration = Duration::from_micros(500);
/// Answers that are slept for after some that were looked for in vain, at most: one after the
/// first, and twice as many after each that follows.
const SLEEPS: u32 = 64;

/// Whether somebody else can work while this thread looks.
pub(crate) fn has_company() -> bool {
    *PROCESSORS > 1
}

static PROCESSORS: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
/// What was learned of answers from one place.
pub(crate) struct Lookout {
    pub(crate) patience: Duration,
    /// How many more answers are slept for.
    sleeps: AtomicU32,
    /// How many are after the next that is looked for in vain.
    next_sleeps: AtomicU32,
}

impl Lookout {
    pub(crate) fn new() -> Self {
        let [sleeps, next_sleeps] = [0, 1].map(AtomicU32::new);
        Self { patience: PATIENCE, sleeps, next_sleeps }
    }

    /// Whether the next answer is likely to come while it is looked for, and somebody else can
    /// make it. Who is told so looks.
    pub(crate) fn is_worth_it(&self) -> bool {
        let one_less = |sleeps: u32| sleeps.checked_sub(1);
        let sleeps = || self.sleeps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        has_company() && sleeps().is_err()
    }

    /// Looks until there is an answer or patience ends.
    pub(crate) fn look<T>(&self, mut answer: impl FnMut() -> Option<T>) -> Option<T> {
        let begun = Instant::now();
        let found = loop {
            let found = answer();
            if found.is_some() || begun.elapsed() >= self.patience {
                break found;
            }
            // Whoever makes the answer may need this processor.
            std::thread::yield_now();
        };
        let mut next = 1;
        if found.is_none() {
            let sleeps = self.next_sleeps.load(Ordering::Relaxed);
            self.sleeps.store(sleeps, Ordering::Relaxed);
            next = SLEEPS.min(sleeps * 2);
        }
        self.next_sleeps.store(next, Ordering::Relaxed);
        found
    }
}

#[cfg(feature = "sqlite")]
/// The right to look, where many could want to: half of the processors are for that.
pub(crate) struct Seat(());

#[cfg(feature = "sqlite")]
static SEATS_TAKEN: AtomicUsize = AtomicUsize::new(0);

#[cfg(feature = "sqlite")]
impl Seat {
    /// A right, if one is left.
    pub(crate) fn take() -> Option<Self> {
        // Given back at once if it was one too many.
        let seat = (SEATS_TAKEN.fetch_add(1, Ordering::Relaxed), Self(()));
        (seat.0 < *PROCESSORS / 2).then_some(seat.1)
    }
}

#[cfg(feature = "sqlite")]
impl Drop for Seat {
    fn drop(&mut self) {
        SEATS_TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(feature = "sqlite")]
/// Lets those go first who are ready to run on this thread.
pub(crate) async fn others_first() {
    let mut waited = false;
    let turn = std::future::poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    turn.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the next answer is looked for. It comes with the second look, if there is one.
    fn is_looked_for(lookout: &Lookout) -> bool {
        let mut looks = 0;
        let second = || {
            looks += 1;
            (looks > 1).then_some(())
        };
        let is_worth_it = lookout.is_worth_it();
        if is_worth_it {
            assert_eq!(lookout.look(second).is_some(), lookout.patience > Duration::ZERO);
        }
        is_worth_it
    }

    #[test]
    fn answers_are_looked_for_and_slept_for_where_they_take_longer() {
        let mut lookout = Lookout::new();
        if !lookout.is_worth_it() {
            // One processor: nobody could answer while it is looked for.
            assert!(!is_looked_for(&lookout));
            return;
        }
        lookout.patience = Duration::MAX;
        assert!((0..9).all(|_| is_looked_for(&lookout)));
        // Each that comes too late is followed by twice as many that are not looked for.
        lookout.patience = Duration::ZERO;
        for sleeps in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!(is_looked_for(&lookout));
            assert!(!(0..sleeps).any(|_| is_looked_for(&lookout)));
        }
        // One that comes in time is as good as the first.
        lookout.patience = Duration::MAX;
        assert!(is_looked_for(&lookout));
        lookout.patience = Duration::ZERO;
        let [one, two, three] = [(); 3].map(|()| is_looked_for(&lookout));
        assert!(one && !two && three);
    }
}
