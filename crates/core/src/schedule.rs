//! Schedules: which nominal times there are, and what becomes of each when the clock has passed it.
//!
//! Invariants: planning is a function of the schedule, how far it got, and `now`; every nominal
//! time gets exactly one verdict, in order; only nominal times decide what is derived, never the
//! moment of firing; one planning step is bounded, and a longer gap is taken in several with the
//! same end.
//! Deliberately absent: the store and the clock. A scheduler asks, writes the verdicts, asks again.

mod calendar;
mod pattern;
mod plan;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::key;
use crate::time::Timestamp;

pub use calendar::Calendar;
pub use plan::{Absence, Gap, Plan, Planned, Progress, Verdict};

lifecycle! {
    /// What became of one nominal time of a schedule.
    pub SlotStatus on SlotEvent as "slot";
    start { Fired | Collapsed | Skipped | Compressed | Missed }
    terminal { Fired | Collapsed | Skipped | Compressed | Missed }
    arrows {
        Missed --(Backfill)--> Fired;
        Missed --(Collapse)--> Collapsed;
        Skipped --(Backfill)--> Fired;
        Skipped --(Collapse)--> Collapsed;
        Compressed --(Backfill)--> Fired;
        Compressed --(Collapse)--> Collapsed;
    }
    states {
        /// It made a command.
        Fired = "fired",
        /// Its command was there already.
        Collapsed = "collapsed",
        /// The schedule's own rules said no.
        Skipped = "skipped",
        /// A later command covers it.
        Compressed = "compressed",
        /// Nobody fired it in time, and nobody will unless asked to.
        Missed = "missed",
    }
    events {
        /// Somebody made its command later.
        Backfill,
        /// Somebody wanted its command later, and it was there.
        Collapse,
    }
}

/// What happens to nominal times that passed while nobody could fire them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    /// They are missed.
    #[default]
    Skip,
    /// The latest of them are fired, each for itself.
    Catchup,
    /// One command covers them all.
    Compress,
}

/// What happens when the command of an earlier slot is not over yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Both run.
    #[default]
    Allow,
    /// The new slot is skipped.
    Skip,
    /// The new command waits for the earlier one to end.
    Wait,
}

/// A schedule, as data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Five fields, or six with seconds first; `L`, `W` and `#` as usual.
    pub cron_expression: String,
    /// An IANA zone.
    #[serde(default = "utc")]
    pub timezone: String,
    /// Fires up to this much later, each slot by an amount of its own.
    #[serde(default)]
    pub jitter_seconds: u32,
    /// No slots before.
    #[serde(default)]
    pub start_at: Option<Timestamp>,
    /// No slots after.
    #[serde(default)]
    pub end_at: Option<Timestamp>,
    /// What happens to missed slots.
    #[serde(default)]
    pub misfire_policy: Misfire,
    /// The workflow's side of the same choice: must be equal.
    #[serde(default)]
    pub dedupe_key_strategy: Misfire,
    /// With `catchup`: most missed slots that are fired.
    #[serde(default = "ten")]
    pub catchup_limit: u32,
    /// With `catchup` and `compress`: older slots are missed for good.
    #[serde(default)]
    pub catchup_window_seconds: Option<u64>,
    /// A slot this late is still in time.
    #[serde(default = "minute")]
    pub grace_seconds: u32,
    /// What happens when the earlier command is not over.
    #[serde(default)]
    pub overlap: Overlap,
}

fn utc() -> String {
    "UTC".to_owned()
}

fn ten() -> u32 {
    10
}

fn minute() -> u32 {
    60
}

impl Schedule {
    /// A schedule in UTC that skips what it missed.
    pub fn cron(expression: &str) -> Self {
        Self {
            cron_expression: expression.to_owned(),
            timezone: utc(),
            jitter_seconds: 0,
            start_at: None,
            end_at: None,
            misfire_policy: Misfire::Skip,
            dedupe_key_strategy: Misfire::Skip,
            catchup_limit: ten(),
            catchup_window_seconds: None,
            grace_seconds: minute(),
            overlap: Overlap::Allow,
        }
    }
}

/// What templates of a fire can name.
pub fn fire_values(nominal: Timestamp, window: Option<(Timestamp, Timestamp)>) -> Value {
    let (first, last) = window.unwrap_or((nominal, nominal));
    json!({
        "scheduled_for": nominal.iso(),
        "fire_date": nominal.utc_date(0),
        "target_date": nominal.utc_date(-1),
        "window_start": first.iso(),
        "window_end": last.iso(),
        "window_start_date": first.utc_date(-1),
    })
}

/// The run id of a schedule's slot.
pub fn slot_run_id(trigger_id: &str, nominal: Timestamp) -> String {
    key::derived(&format!("activity-{trigger_id}"), &format!(":{}", nominal.iso()))
}

fn wrong(field: &str, why: impl std::fmt::Display) -> Error {
    Error::invalid("SF-0603", format!("{field}: {why}"))
}

/// Reads a moment or a day: `2026-06-01`, or ISO 8601 with an offset.
pub fn parse_moment(text: &str) -> Result<Timestamp> {
    // A moment would be read as its day, without its time.
    let day = text.parse::<jiff::civil::Date>().ok().filter(|_| text.len() == 10);
    let moment = match day {
        Some(day) => day.to_zoned(jiff::tz::TimeZone::UTC).map(|zoned| zoned.timestamp()),
        None => text.parse::<jiff::Timestamp>(),
    };
    moment.map(|t| Timestamp::from_micros(t.as_microsecond())).map_err(|e| {
        Error::invalid("SF-0605", format!("\"{text}\" is no day and no ISO 8601 moment: {e}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        parse_moment(text).unwrap()
    }

    /// R4
    #[test]
    fn r004_the_target_date_is_the_utc_day_before_the_nominal_time() {
        for (fire, target) in [
            ("2026-06-02T03:00:00Z", "2026-06-01"),
            ("2026-07-01T03:00:00Z", "2026-06-30"),
            ("2027-01-01T03:00:00Z", "2026-12-31"),
            ("2028-03-01T03:00:00Z", "2028-02-29"),
            ("2026-03-01T03:00:00Z", "2026-02-28"),
            ("2026-06-02T00:30:00+02:00", "2026-05-31"),
        ] {
            assert_eq!(fire_values(at(fire), None)["target_date"], target, "{fire}");
        }
    }

    /// R58
    #[test]
    fn r058_a_slots_run_is_named_after_its_nominal_time() {
        let id = slot_run_id("550e8400-e29b-41d4-a716-446655440000", at("2026-03-01T09:00:00Z"));
        assert_eq!(id, "activity-550e8400-e29b-41d4-a716-446655440000:2026-03-01T09:00:00+00:00");
    }

    #[test]
    fn a_moment_is_read_or_refused() {
        assert_eq!(at("2026-06-01"), at("2026-06-01T00:00:00Z"));
        assert_eq!(parse_moment("yesterday").unwrap_err().code(), "SF-0605");
    }
}
