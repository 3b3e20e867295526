//! One representation of time: microseconds since the Unix epoch, in UTC.
//!
//! Invariants: arithmetic saturates, so a far-future date never wraps into the past.
//! Deliberately absent: a way to read the clock. `now` is always a parameter.

use std::fmt;
use std::time::Duration;

use jiff::fmt::temporal::DateTimePrinter;
use jiff::tz::Offset;
use serde::{Deserialize, Serialize};

/// Writes ISO 8601, without reading a pattern each time.
const PRINTER: DateTimePrinter = DateTimePrinter::new();

/// A moment, in microseconds since the Unix epoch.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Later than every moment that will be met: "not until something else happens".
    pub const NEVER: Timestamp = Timestamp(i64::MAX);

    /// From microseconds since the epoch.
    pub const fn from_micros(us: i64) -> Self {
        Self(us)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since the epoch, rounded towards the past.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// ISO 8601 in UTC with its offset: `2026-03-01T09:00:00+00:00`; microseconds only if there are
    /// any. This is the spelling that ids hold.
    pub fn iso(self) -> String {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(t) if self.0.rem_euclid(1_000_000) == 0 => {
                PRINTER.timestamp_with_offset_to_string(&t, Offset::UTC)
            }
            Ok(t) => t.strftime("%Y-%m-%dT%H:%M:%S.%6f+00:00").to_string(),
            Err(_) => "never".to_owned(),
        }
    }

    /// The day in UTC, moved by some days: `2026-03-01`.
    pub fn utc_date(self, days: i64) -> String {
        let moved = self.0.saturating_add(days.saturating_mul(86_400_000_000));
        match jiff::Timestamp::from_microsecond(moved) {
            Ok(t) => PRINTER.date_to_string(&Offset::UTC.to_datetime(t).date()),
            Err(_) => "never".to_owned(),
        }
    }

    /// This moment moved into the future.
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// This moment moved into the past.
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }

    /// How long until `later`; zero when it has passed.
    pub fn until(self, later: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with microseconds, or `never`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        let (secs, us) = (self.0.div_euclid(1_000_000), self.0.rem_euclid(1_000_000));
        let (days, of_day) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
        let (y, m, d) = civil_from_days(days);
        let (h, min, s) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(f, "{y:04}-{m:02}-{d:02}T{h:02}:{min:02}:{s:02}.{us:06}Z")
    }
}

/// Proleptic Gregorian date of a day count since 1970-01-01, counted in 400-year eras from March.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A duration in whole microseconds, saturating.
pub fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_rfc_3339_across_leap_days_and_before_the_epoch() {
        let at = |secs: i64| Timestamp::from_micros(secs * 1_000_000).to_string();
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000Z");
        assert_eq!(at(-1), "1969-12-31T23:59:59.000000Z");
        assert_eq!(at(4_102_444_799), "2099-12-31T23:59:59.000000Z");
        assert_eq!(Timestamp::NEVER.to_string(), "never");
    }

    #[test]
    fn ids_hold_one_spelling_of_a_moment() {
        let at = |us: i64| Timestamp::from_micros(us).iso();
        assert_eq!(at(0), "1970-01-01T00:00:00+00:00");
        assert_eq!(at(951_782_400_000_000), "2000-02-29T00:00:00+00:00");
        assert_eq!(at(-1_000_000), "1969-12-31T23:59:59+00:00");
        assert_eq!(at(1), "1970-01-01T00:00:00.000001+00:00");
        assert_eq!(Timestamp::NEVER.iso(), "never");
        assert_eq!(Timestamp::from_micros(951_782_400_000_000).utc_date(-1), "2000-02-28");
        assert_eq!(Timestamp::from_micros(-1).utc_date(0), "1969-12-31");
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::NEVER.after(Duration::from_secs(1)), Timestamp::NEVER);
        assert_eq!(Timestamp::from_micros(5).until(Timestamp::from_micros(2)), Duration::ZERO);
    }
}
