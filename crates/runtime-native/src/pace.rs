//! How often a queue is polled: sooner while all goes well, later under contention.

use std::time::Duration;

/// The time between polls of one queue.
#[derive(Debug)]
pub(crate) struct Pace {
    now: Duration,
    least: Duration,
    most: Duration,
}

impl Pace {
    pub(crate) fn new((least, most): (Duration, Duration)) -> Self {
        let most = most.max(least);
        Self { now: Duration::from_secs(1).clamp(least, most), least, most }
    }

    /// The wait before the next poll.
    pub(crate) fn wait(&self) -> Duration {
        self.now
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
}
