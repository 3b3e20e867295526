//! Schedules beside a model that walks the clock second by second and looks at the wall.
//!
//! The model shares no code with the calendar: it knows a zone's offset and the fields of cron.
//! What the calendar finds by searching, the model finds by waiting.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod clocks;
mod dice;
mod fields;
mod model;
mod outages;

use steadfast_core::Timestamp;
use steadfast_core::schedule::{Calendar, Schedule, parse_moment};

/// A moment from its text.
fn at(text: &str) -> Timestamp {
    parse_moment(text).unwrap()
}

/// A calendar of an expression in a zone.
fn calendar(cron: &str, zone: &str) -> Calendar {
    let schedule = Schedule { timezone: zone.to_owned(), ..Schedule::cron(cron) };
    Calendar::new(&schedule).unwrap_or_else(|error| panic!("{cron} in {zone}: {error}"))
}

/// The nominal times after `from`, up to `until`.
fn times(cron: &str, zone: &str, from: &str, until: &str) -> Vec<String> {
    calendar(cron, zone).between(at(from), at(until)).map(Timestamp::iso).collect()
}
