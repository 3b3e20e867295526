//! How often a queue is polled: sooner while all goes well, later under contention.

use std::time::Duration;

/// The time between polls of one queue.
#[derive(Debug)]
pub(crate) struct Pace {
    now: Duration,
    least: Duration,
    most: Duration,
    deaf: Duration,
}

/// How long hints are not listened to, at first and at most.
const DEAF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));

impl Pace {
    pub(crate) fn new((least, most): (Duration, Duration)) -> Self {
        Self { now: Duration::from_secs(1).clamp(least, most), least, most, deaf: Duration::ZERO }
    }

    /// The wait before the next poll.
    pub(crate) fn wait(&self) -> Duration {
        self.now
    }

    /// How long hints that something may be ready are not to be listened to: longer each time
    /// there was nothing.
    pub(crate) fn deaf(&self) -> Duration {
        self.deaf
    }

    /// A look has found something, or nothing.
    pub(crate) fn looked(&mut self, found: bool) {
        self.deaf = match found {
            true => Duration::ZERO,
            false => (self.deaf * 2).clamp(DEAF.0, DEAF.1),
        };
    }

    /// A poll went well.
    pub(crate) fn ease(&mut self) {
        self.now = self.now.mul_f64(0.9).max(self.least);
    }

    /// A poll met contention or failed.
    pub(crate) fn back_off(&mut self) {
        self.now = (self.now * 2).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R89
    #[test]
    fn r089_the_pace_shrinks_by_a_tenth_doubles_on_contention_and_stays_in_its_bounds() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new((ms(500), ms(4000)));
        assert_eq!(pace.wait(), ms(1000));
        pace.ease();
        assert_eq!(pace.wait(), ms(900));
        (0..50).for_each(|_| pace.ease());
        assert_eq!(pace.wait(), ms(500));
        pace.back_off();
        assert_eq!(pace.wait(), ms(1000));
        (0..50).for_each(|_| pace.back_off());
        assert_eq!(pace.wait(), ms(4000));
    }

    #[test]
    fn hints_that_lead_to_nothing_are_heard_less_often() {
        let ms = Duration::from_millis;
        let mut pace = Pace::new((ms(500), ms(4000)));
        assert_eq!(pace.deaf(), ms(0));
        let heard = [2, 4, 8, 16, 20, 20].map(ms);
        assert_eq!(heard.map(|_| (pace.looked(false), pace.deaf()).1), heard);
        pace.looked(true);
        assert_eq!(pace.deaf(), ms(0));
    }
}
