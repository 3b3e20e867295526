//! What the bells of the servers have in common: commits here pull them, those who wait hear them.
//!
//! Invariants: a ring says nothing but "look again", for work or for an end.
//! Deliberately absent: what or who is meant, and any promise. Polling finds what a lost ring told.

use std::convert::Infallible;
#[cfg(feature = "mysql")]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Commits closer together than this share a ring.
const APART: Duration = Duration::from_millis(2);

/// Pulled by our commits, heard by everybody who waits.
#[derive(Default)]
pub(crate) struct Bell {
    pulled: Notify,
    /// All the news there ever was; may wrap.
    heard_of: AtomicU32,
    /// What the next ring is to tell.
    ready: AtomicU32,
    ended: AtomicU32,
    rung: Notify,
    rung_for_end: Notify,
    #[cfg(feature = "mysql")]
    waiting: AtomicUsize,
    #[cfg(feature = "mysql")]
    came: Notify,
}

/// What commits have done that others wait for.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct News {
    /// How often something was made ready.
    pub(crate) ready: u32,
    /// How often a run was ended.
    pub(crate) ended: u32,
}

impl News {
    /// Something is ready.
    pub(crate) const READY: Self = Self { ready: 1, ended: 0 };
    #[cfg(feature = "postgres")]
    /// There may be anything.
    pub(crate) const ALL: Self = Self { ready: 1, ended: 1 };

    pub(crate) fn ring(self) -> Ring {
        Ring { ready: self.ready > 0, ended: self.ended > 0 }
    }
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
/// is not, nor are many after which there is silence: who waits to be told of them may be the only
/// one who makes more.
pub(crate) struct Pauses {
    now: Duration,
    most: Duration,
}

impl Pauses {
    pub(crate) fn up_to(most: Duration) -> Self {
        Self { now: APART, most }
    }

    pub(crate) async fn pause(&mut self, bell: &Bell) {
        let before = bell.heard_of();
        tokio::time::sleep(self.now / 2).await;
        let between = bell.heard_of();
        tokio::time::sleep(self.now / 2).await;
        self.turn(between.wrapping_sub(before), bell.heard_of().wrapping_sub(between));
    }

    /// Decides by how much news there was in either half of a pause.
    fn turn(&mut self, first: u32, second: u32) {
        let much = APART.saturating_mul(first.saturating_add(second)).saturating_mul(2) > self.now;
        let goes_on = second > 0 || self.now == APART;
        self.now = match much && goes_on {
            true => (self.now * 2).min(self.most),
            false => APART,
        };
    }
}

impl Bell {
    fn heard_of(&self) -> u32 {
        self.heard_of.load(Ordering::Acquire)
    }

    /// Asks for the others to be told soon.
    pub(crate) fn pull(&self, news: News) {
        self.ready.fetch_add(news.ready, Ordering::AcqRel);
        self.ended.fetch_add(news.ended, Ordering::AcqRel);
        if news != News::default() {
            self.heard_of.fetch_add(news.ready + news.ended, Ordering::AcqRel);
            self.pulled.notify_one();
        }
    }

    /// Tells those who wait here of all commits since the last time, once, and has the others told.
    pub(crate) async fn tell_here(&self, others: &Bell) -> Infallible {
        loop {
            let news = self.pulled().await;
            self.ring(news.ring());
            others.pull(news);
            tokio::time::sleep(APART).await;
        }
    }

    /// Waits until it was pulled; gives what is to be told.
    pub(crate) async fn pulled(&self) -> News {
        loop {
            self.pulled.notified().await;
            let ready = self.ready.swap(0, Ordering::AcqRel);
            let ended = self.ended.swap(0, Ordering::AcqRel);
            let news = News { ready, ended };
            if news != News::default() {
                return news;
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

/// A wait that [`Bell::awaited`] sees, until it is dropped.
#[cfg(feature = "mysql")]
pub(crate) struct Waiting<'a>(&'a Bell);

#[cfg(feature = "mysql")]
impl Bell {
    /// Says that a caller waits for a ring.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        if self.waiting.fetch_add(1, Ordering::AcqRel) == 0 {
            self.came.notify_one();
        }
        Waiting(self)
    }

    /// Resolves as soon as a caller waits for a ring.
    pub(crate) async fn awaited(&self) {
        while self.waiting.load(Ordering::Acquire) == 0 {
            self.came.notified().await;
        }
    }
}

#[cfg(feature = "mysql")]
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_less_often_while_there_is_always_more_to_tell() {
        let mut pauses = Pauses::up_to(Duration::from_millis(10));
        // By how much news there was in each half of a pause.
        let news = [(1, 0), (1, 1), (2, 2), (4, 1), (1, 2), (1, 1), (1, 0), (0, 1), (0, 0)];
        let now = news.map(|(first, second)| {
            pauses.turn(first, second);
            pauses.now.as_millis()
        });
        assert_eq!(now, [4, 8, 10, 10, 10, 2, 4, 2, 2]);
    }

    #[cfg(feature = "mysql")]
    #[tokio::test(start_paused = true)]
    async fn a_bell_is_awaited_while_a_caller_waits_and_not_after() {
        let bell = Bell::default();
        let soon = Duration::from_millis(1);
        assert!(tokio::time::timeout(soon, bell.awaited()).await.is_err());
        let (first, second) = (bell.wait(), bell.wait());
        drop(first);
        bell.awaited().await;
        drop(second);
        assert!(tokio::time::timeout(soon, bell.awaited()).await.is_err());
        let late = async {
            tokio::time::sleep(soon).await;
            bell.wait()
        };
        let (_waiting, ()) = tokio::join!(late, bell.awaited());
    }

    #[test]
    fn others_who_wait_for_what_was_many_are_told_soon() {
        let mut pauses = Pauses::up_to(Duration::from_millis(64));
        for _ in 0..8 {
            pauses.turn(50, 50);
        }
        assert_eq!(pauses.now.as_millis(), 64);
        // All of it came at once, and nobody goes on before being told.
        pauses.turn(u32::MAX, 0);
        assert_eq!(pauses.now, APART);
    }
}
