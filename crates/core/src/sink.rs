//! Where events go: what a target is asked, and what it may answer.
//!
//! Invariants: a target keeps no order and no memory; it sends one event and says how that went.
//! Order, repetition, parking and giving up are the relay's.

use std::time::Duration;

use futures::future::BoxFuture;

use crate::error::Error;
use crate::event::CloudEvent;
use crate::time::Timestamp;

/// How sending went.
#[derive(Debug, Clone, PartialEq)]
pub enum Delivery {
    /// It has arrived.
    Done,
    /// Not this time. With a wait if the other side named one.
    Again {
        /// What happened.
        error: Error,
        /// How long the other side wants to be left alone.
        after: Option<Duration>,
    },
    /// The other side wants no more events, ever.
    Gone(Error),
}

/// Says what is the same thing told again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dedup {
    /// The same for everything that need be told only once.
    pub key: String,
    /// For how long.
    pub window: Duration,
}

/// A place that takes events.
pub trait SinkTarget: Send + Sync + 'static {
    /// What kind of place: `webhook`.
    fn kind(&self) -> &'static str;

    /// Where it is, fit for everybody's eyes.
    fn place(&self) -> String;

    /// Whether it wants this event; what it does not want counts as arrived.
    fn wants(&self, _event: &CloudEvent) -> bool {
        true
    }

    /// Whether this event is one of those that are told once in a while.
    fn dedup(&self, _event: &CloudEvent) -> Option<Dedup> {
        None
    }

    /// Sends one event. `now` is the time of the attempt.
    fn send<'a>(&'a self, event: &'a CloudEvent, now: Timestamp) -> BoxFuture<'a, Delivery>;
}

/// How long to wait after so many attempts: doubled from a second to five minutes.
pub fn backoff(attempts: u32) -> Duration {
    const LONGEST: Duration = Duration::from_secs(300);
    let doublings = attempts.saturating_sub(1).min(16);
    (Duration::from_secs(1) * 2u32.pow(doublings)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_a_second_to_five_minutes() {
        let waits: Vec<_> = (0..=11).map(|n| backoff(n).as_secs()).collect();
        assert_eq!(waits, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(backoff(u32::MAX).as_secs(), 300);
    }
}
