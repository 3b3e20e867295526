//! Where the clocks change: nothing is lost, nothing is done twice.

use std::time::Duration;

use jiff::tz::TimeZone;
use steadfast_core::Timestamp;
use steadfast_core::schedule::Calendar;

use crate::dice::Dice;
use crate::model::{Pattern, changes, zone};
use crate::{at, calendar, times};

/// An hour at night, an hour at night, an hour at midnight, and half an hour.
const ZONES: [&str; 4] =
    ["Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe"];
const YEARS: [i16; 3] = [2025, 2026, 2027];
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn seconds(moment: Timestamp) -> i64 {
    moment.as_micros() / 1_000_000
}

fn found(calendar: &Calendar, from: i64, until: i64) -> Vec<i64> {
    calendar.between(moment(from), moment(until)).map(seconds).collect()
}

/// Every change of every zone and year: the zone, the moment, the seconds that the hands jump.
fn all_changes() -> Vec<(&'static str, i64, i64)> {
    let mut all = Vec::new();
    for name in ZONES {
        for year in YEARS {
            let changes = changes(&zone(name), year);
            assert_eq!(changes.len(), 2, "{name} changes its clocks twice in {year}");
            all.extend(changes.into_iter().map(|(at, by)| (name, at, by)));
        }
    }
    all
}

/// The hour and minute on the wall.
fn on_the_wall(name: &str, at: i64) -> (i8, i8) {
    let wall = jiff::Timestamp::from_second(at).unwrap().to_zoned(zone(name));
    (wall.hour(), wall.minute())
}

#[test]
fn a_fixed_time_that_the_clocks_skip_fires_once_right_after_the_jump() {
    for (name, jump, by) in all_changes().into_iter().filter(|(_, _, by)| *by > 0) {
        let (hour, minute) = on_the_wall(name, jump - 60);
        for skipped in 1..=by / 60 {
            let time = i64::from(hour) * 60 + i64::from(minute) + skipped;
            let cron = format!("{} {} * * *", time % 60, time / 60 % 24);
            let calendar = calendar(&cron, name);
            let around = found(&calendar, jump - 12 * HOUR, jump + 12 * HOUR);
            assert_eq!(around, [jump], "{cron} in {name}");
            let days = found(&calendar, jump - 36 * HOUR, jump + 36 * HOUR);
            assert_eq!(days.len(), 3, "{cron} in {name}: once a day before and after too");
        }
    }
}

#[test]
fn a_fixed_time_that_the_clocks_show_twice_fires_once() {
    for (name, back, by) in all_changes().into_iter().filter(|(_, _, by)| *by < 0) {
        for minutes_before in 1..=-by / 60 {
            let first = back - minutes_before * 60;
            let (hour, minute) = on_the_wall(name, first);
            let calendar = calendar(&format!("{minute} {hour} * * *"), name);
            let around = found(&calendar, back - 12 * HOUR, back + 12 * HOUR);
            assert_eq!(around, [first], "{hour}:{minute} in {name}, the first time of the two");
        }
    }
}

#[test]
fn the_moments_that_people_would_look_up() {
    let day = |zone: &str, cron: &str, day: &str| {
        times(cron, zone, &format!("{day}T00:00:00Z"), &format!("{day}T23:59:59Z"))
    };
    for (zone, cron, date, fires) in [
        ("Europe/Berlin", "30 2 * * *", "2026-03-29", "01:00:00"),
        ("Europe/Berlin", "30 2 * * *", "2026-03-30", "00:30:00"),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25", "00:30:00"),
        ("America/New_York", "15 2 * * *", "2026-03-08", "07:00:00"),
        ("America/New_York", "15 1 * * *", "2026-11-01", "05:15:00"),
        ("America/Santiago", "0 0 * * *", "2026-09-06", "04:00:00"),
        ("America/Santiago", "30 23 * * 6", "2026-04-05", "02:30:00"),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03", "15:30:00"),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04", "14:45:00"),
    ] {
        assert_eq!(day(zone, cron, date), [format!("{date}T{fires}+00:00")], "{cron} in {zone}");
    }
}

/// A list names its times as a single one does: the early one of two is not lost in spring, and not
/// doubled in autumn.
#[test]
fn a_list_of_fixed_times_is_fixed_too() {
    let (cron, berlin) = ("0,30 2,14 * * *", "Europe/Berlin");
    let of = |day: &str| {
        times(cron, berlin, &format!("2026-{day}T00:00:00Z"), &format!("2026-{day}T23:00:00Z"))
    };
    assert_eq!(
        of("03-29"),
        ["2026-03-29T01:00:00+00:00", "2026-03-29T12:00:00+00:00", "2026-03-29T12:30:00+00:00"],
        "two o'clock and half past two are both at three"
    );
    assert_eq!(of("10-25").len(), 3, "half past two, and the two of the afternoon: {cron}");
    let twice = times(cron, berlin, "2026-10-24T22:00:00Z", "2026-10-25T22:59:59Z");
    assert_eq!(twice.len(), 4, "{twice:?}");
}

/// The jump may end on another day than the one it began on.
#[test]
fn a_fixed_time_skipped_at_the_end_of_a_day_fires_although_the_next_day_is_not_named() {
    let nuuk = times("30 23 * * 6", "America/Nuuk", "2026-03-25T00:00:00Z", "2026-04-06T00:00:00Z");
    assert_eq!(nuuk, ["2026-03-29T01:00:00+00:00", "2026-04-05T00:30:00+00:00"]);
}

#[test]
fn an_interval_fires_through_both_sides_of_every_change() {
    for (name, change, _) in all_changes() {
        let (from, until) = (change - 30 * HOUR, change + 30 * HOUR);
        for cron in ["*/30 * * * *", "0 * * * *", "*/15 0-4 * * *"] {
            let ours = found(&calendar(cron, name), from, until);
            assert!(ours.is_sorted_by(|a, b| a < b), "{cron} in {name}");
            let wall = Pattern::new(cron).fires(&zone(name), from, until, 60);
            assert_eq!(ours, wall, "{cron} in {name}");
        }
        let halves = found(&calendar("*/30 * * * *", name), from, until);
        assert!(
            halves.windows(2).all(|two| two[1] - two[0] == HOUR / 2),
            "no half hour is missing"
        );
    }
}

#[test]
fn seconds_run_through_a_change_as_well() {
    for (name, change, _) in all_changes().into_iter().filter(|(name, _, _)| *name != ZONES[1]) {
        for cron in ["*/20 * * * * *", "15,45 59 * * * *", "30 30 2 * * *"] {
            let (from, until) = (change - 2 * HOUR, change + 2 * HOUR);
            let wall = Pattern::new(cron).fires(&zone(name), from, until, 1);
            assert_eq!(found(&calendar(cron, name), from, until), wall, "{cron} in {name}");
        }
    }
}

#[test]
fn a_daily_time_fires_once_on_every_day_of_the_year() {
    for name in ZONES {
        for (hour, minute) in [(0, 0), (0, 30), (2, 15), (3, 0), (12, 0), (23, 30)] {
            let (from, until) = (at("2026-01-05T12:00:00Z"), at("2027-01-05T12:00:00Z"));
            let calendar = calendar(&format!("{minute} {hour} * * *"), name);
            let fires = found(&calendar, seconds(from), seconds(until));
            assert_eq!(fires.len(), 365, "{hour}:{minute} in {name}");
            let moved = fires.iter().filter(|t| on_the_wall(name, **t) != (hour, minute)).count();
            assert!(
                moved <= 1,
                "{hour}:{minute} in {name} is at that time but where it is skipped"
            );
        }
    }
}

/// A range of one value would be a fixed time, which is for the plain numbers to say.
fn time_field(dice: &mut Dice, high: u64) -> String {
    let a = dice.below(high);
    let b = dice.within(a + 1, high);
    match dice.below(7) {
        0 => "*".to_owned(),
        1 => format!("*/{}", dice.pick(&["2", "5", "7", "15"])),
        2 => format!("{b},{a}"),
        3 => format!("{a}-{b}"),
        4 => format!("{a}-{high}/{}", dice.within(2, 9)),
        _ => a.to_string(),
    }
}

fn expression(dice: &mut Dice) -> String {
    let minute = time_field(dice, 59);
    // The small hours are where clocks change.
    let last = *dice.pick(&[&3, &3, &23]);
    let hour = time_field(dice, last);
    let days = dice.pick(&["*", "*", "*", "L", "15W", "LW", "1-7", "13,28", "*/2"]);
    let months = dice.pick(&["*", "*", "*", "3,4,9-11", "*/2"]);
    let weekdays = dice.pick(&["*", "*", "*", "1-5", "0", "7", "0#1", "0L", "6,0", "*/2"]);
    format!("{minute} {hour} {days} {months} {weekdays}")
}

#[test]
fn random_patterns_fire_when_the_wall_shows_them() {
    let names = [&ZONES[..], &["UTC", "Asia/Kolkata", "Africa/Casablanca", "Antarctica/Troll"]];
    let places: Vec<_> = names.concat().into_iter().map(Place::new).collect();
    let mut dice = Dice::new(0x5EED);
    let mut fired = 0;
    for _ in 0..300 {
        let cron = expression(&mut dice);
        let place = dice.pick(&places.iter().collect::<Vec<_>>());
        let from = place.moment(&mut dice);
        let until = from + 7 * DAY;
        let calendar = calendar(&cron, place.name);
        let ours = found(&calendar, from, until);
        let wall = Pattern::new(&cron).fires(&place.zone, from, until, 60);
        assert_eq!(ours, wall, "{cron} in {} after {from}", place.name);
        let mut last = moment(from).after(Duration::from_micros(dice.below(1_000_000)));
        for expected in ours.iter().take(50) {
            let next = calendar.after(last).unwrap();
            assert!(next > last && seconds(next) == *expected, "{cron} after {last}");
            last = next;
        }
        fired += ours.len();
    }
    assert!(fired > 10_000, "the patterns are not all empty: {fired}");
}

struct Place {
    name: &'static str,
    zone: TimeZone,
    changes: Vec<i64>,
}

impl Place {
    fn new(name: &'static str) -> Self {
        let zone = zone(name);
        let changes = changes(&zone, 2026).into_iter().map(|(at, _)| at).collect();
        Self { name, zone, changes }
    }

    /// Any moment, often one shortly before the clocks change.
    fn moment(&self, dice: &mut Dice) -> i64 {
        let far = i64::try_from(dice.below(365 * 86_400)).unwrap();
        if self.changes.is_empty() || dice.below(3) == 0 {
            return 1_700_000_000 + 3 * far;
        }
        *dice.pick(&self.changes.iter().collect::<Vec<_>>()) - far % (5 * DAY)
    }
}
