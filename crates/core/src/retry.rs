//! Retry policies: how often and after which waits, as data.
//!
//! Invariants: waits are computed from the attempt number alone, so a restarted process waits what
//! the first would have; a non-retryable error is never retried, whatever the policy says.
//! Deliberately absent: jitter by default, since a durable retry must be explainable to the second.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorClass};

/// How a step is tried again. The default is not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Retry {
    max_attempts: u32,
    waits: Waits,
    /// Only these classes are tried again, where they are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    only: Option<Vec<ErrorClass>>,
    /// Whether each wait is cut by chance, so that many that failed together do not come together.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    jittered: bool,
    /// A wait that would make all of them longer than this ends the tries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Waits {
    Exponential { first: Duration, rate: f64, most: Duration },
    Listed(Vec<Duration>),
}

impl Default for Retry {
    fn default() -> Self {
        Self::none()
    }
}

impl Retry {
    /// No retries: one attempt.
    pub fn none() -> Self {
        Self { max_attempts: 1, ..Self::standard() }
    }

    /// Three attempts with waits of 1 s and 2 s.
    pub fn standard() -> Self {
        Self::exponential(3, Duration::from_secs(1), 2.0)
    }

    /// `max_attempts` attempts in all (at least one), the first wait `first`, each next one `rate`
    /// times longer.
    pub fn exponential(max_attempts: u32, first: Duration, rate: f64) -> Self {
        let most = Duration::from_secs(3600);
        Self {
            max_attempts: max_attempts.max(1),
            waits: Waits::Exponential { first, rate: rate.max(1.0), most },
            only: None,
            jittered: false,
            within: None,
        }
    }

    /// One attempt more than there are waits.
    pub fn listed(waits: impl IntoIterator<Item = Duration>) -> Self {
        let waits: Vec<_> = waits.into_iter().collect();
        let max_attempts = u32::try_from(waits.len()).unwrap_or(u32::MAX - 1) + 1;
        let waits = Waits::Listed(waits);
        Self { max_attempts, waits, only: None, jittered: false, within: None }
    }

    /// Tries again only after errors of these classes.
    pub fn only(mut self, classes: impl IntoIterator<Item = ErrorClass>) -> Self {
        self.only = Some(classes.into_iter().collect());
        self
    }

    /// Cuts each wait by up to half, by a draw of the caller's: see [`Retry::wait_drawn`].
    pub fn jittered(mut self) -> Self {
        self.jittered = true;
        self
    }

    /// Ends the tries where the waits together would be longer.
    pub fn within(mut self, total: Duration) -> Self {
        self.within = Some(total);
        self
    }

    /// Attempts in all, the first included.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// The wait after failed attempt `attempt` (counted from 1), or `None` when it was the last or
    /// the error is not worth another.
    pub fn wait_after(&self, attempt: u32, error: &Error) -> Option<Duration> {
        let listed = self.only.as_ref().is_none_or(|only| only.contains(&error.class()));
        if attempt >= self.max_attempts || !error.is_retryable() || !listed {
            return None;
        }
        let wait = self.nth(attempt);
        let before: Duration = (1..attempt).map(|n| self.nth(n)).sum();
        (self.within.is_none_or(|most| before + wait <= most)).then_some(wait)
    }

    /// The same, with chance where the policy wants it: the draw is recorded with the wait, so a
    /// restarted process waits what the first would have.
    pub fn wait_drawn(&self, attempt: u32, error: &Error, draw: u64) -> Option<Duration> {
        let wait = self.wait_after(attempt, error)?;
        match self.jittered {
            true => Some(wait - wait.mul_f64(0.5 * (draw % 1024) as f64 / 1024.0)),
            false => Some(wait),
        }
    }

    /// The wait after attempt n, whatever the error.
    fn nth(&self, attempt: u32) -> Duration {
        match &self.waits {
            Waits::Listed(waits) => waits.get(attempt as usize - 1).copied().unwrap_or_default(),
            Waits::Exponential { first, rate, most } => {
                let factor = rate.powi(i32::try_from(attempt - 1).unwrap_or(i32::MAX));
                let secs = (first.as_secs_f64() * factor).min(most.as_secs_f64());
                Duration::from_secs_f64(secs)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R81
    #[test]
    fn r081_defaults_are_off_and_the_standard_waits_double() {
        let error = Error::app("no");
        assert_eq!(Retry::default().max_attempts(), 1);
        assert_eq!(Retry::default().wait_after(1, &error), None);
        assert_eq!(Retry::standard().max_attempts(), 3);
        let four = Retry::exponential(4, Duration::from_secs(1), 2.0);
        let waits: Vec<_> = (1..=4).map(|n| four.wait_after(n, &error)).collect();
        let secs = |s| Some(Duration::from_secs(s));
        assert_eq!(waits, [secs(1), secs(2), secs(4), None]);
    }

    #[test]
    fn listed_waits_come_in_order_and_permanent_errors_get_none() {
        let listed = Retry::listed([30, 120, 600].map(Duration::from_secs));
        let error = Error::new(ErrorClass::TransientConnectorError, "SF-0001", "503");
        assert_eq!(listed.max_attempts(), 4);
        assert_eq!(listed.wait_after(3, &error), Some(Duration::from_secs(600)));
        assert_eq!(listed.wait_after(4, &error), None);
        assert_eq!(listed.wait_after(1, &error.permanent()), None);
    }
}
