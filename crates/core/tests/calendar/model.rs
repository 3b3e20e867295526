//! The model: cron fields matched against what a clock on the wall shows.
//!
//! Two rules make up the whole of it. A pattern of fixed times fires when the hands pass one for
//! the first time, jumps included. Any other pattern fires whenever the hands show it.

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};

pub(crate) struct Pattern {
    seconds: Vec<bool>,
    minutes: Vec<bool>,
    hours: Vec<bool>,
    days: String,
    months: Vec<bool>,
    weekdays: String,
    /// Whether the times of day are named by numbers alone.
    fixed: bool,
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let (time, date) = fields.split_at(fields.len() - 3);
        let [seconds, minutes, hours] = match *time {
            [minutes, hours] => ["0", minutes, hours],
            [seconds, minutes, hours] => [seconds, minutes, hours],
            _ => panic!("{text} has neither five fields nor six"),
        };
        let numbers = |field: &&str| field.chars().all(|c| c.is_ascii_digit() || c == ',');
        Self {
            seconds: set(seconds, 0, 59),
            minutes: set(minutes, 0, 59),
            hours: set(hours, 0, 23),
            days: date[0].to_owned(),
            months: set(date[1], 1, 12),
            weekdays: date[2].to_owned(),
            fixed: time.iter().all(numbers),
        }
    }

    /// Whether the wall shows it. The wall's time is in seconds, as if it were UTC.
    fn shows(&self, wall: i64) -> bool {
        let part = |unit: i64, of: i64| usize::try_from(wall.div_euclid(unit) % of).unwrap();
        if !self.seconds[part(1, 60)] || !self.minutes[part(60, 60)] || !self.hours[part(3600, 24)]
        {
            return false;
        }
        let moment = jiff::Timestamp::from_second(wall).unwrap();
        let date = moment.to_zoned(TimeZone::UTC).date();
        self.months[usize::try_from(date.month()).unwrap()] && self.falls_on(date)
    }

    fn falls_on(&self, date: Date) -> bool {
        let by_day = self.days.split(',').any(|item| day_is(item, date));
        let by_weekday = self.weekdays.split(',').any(|item| weekday_is(item, date));
        // As in Vixie's cron: where neither begins with a star, either will do.
        match self.days.starts_with('*') || self.weekdays.starts_with('*') {
            true => by_day && by_weekday,
            false => by_day || by_weekday,
        }
    }

    /// When it fires after `from`, up to `until`, in seconds; looked at every `step` of them.
    pub(crate) fn fires(&self, zone: &TimeZone, from: i64, until: i64, step: i64) -> Vec<i64> {
        let offset =
            |t: i64| i64::from(zone.to_offset(jiff::Timestamp::from_second(t).unwrap()).seconds());
        // Long enough before to know what the hands have passed already.
        let start = (from - 4 * 3600).div_euclid(step) * step;
        let mut passed = start + offset(start);
        let mut found = Vec::new();
        for t in (start + step..=until).step_by(usize::try_from(step).unwrap()) {
            let wall = t + offset(t);
            let fires = if self.fixed {
                let mut new = (passed + step..=wall).step_by(usize::try_from(step).unwrap());
                new.any(|wall| self.shows(wall))
            } else {
                self.shows(wall)
            };
            passed = passed.max(wall);
            found.extend((fires && t > from).then_some(t));
        }
        found
    }
}

/// The values of a field, by value.
fn set(field: &str, low: usize, high: usize) -> Vec<bool> {
    let mut values = vec![false; high + 1];
    for item in field.split(',') {
        let (range, step) = item.split_once('/').unwrap_or((item, "1"));
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (low, high),
            Some((first, last)) => (first.parse().unwrap(), last.parse().unwrap()),
            None => (range.parse().unwrap(), range.parse().unwrap()),
        };
        (first..=last).step_by(step.parse().unwrap()).for_each(|value| values[value] = true);
    }
    values
}

fn day_is(item: &str, date: Date) -> bool {
    let (day, last) = (date.day(), date.days_in_month());
    if item == "L" {
        return day == last;
    }
    let Some(wanted) = item.strip_suffix('W') else {
        return set(item, 1, 31)[usize::try_from(day).unwrap()];
    };
    let wanted: i8 = if wanted == "L" { last } else { wanted.parse().unwrap() };
    // The working day of the month that is nearest; for the last one, the last.
    let month = date.first_of_month().series(jiff::Span::new().days(1)).take(31);
    let working = month.filter(|d| d.month() == date.month() && is_working_day(*d));
    let nearest = if item == "LW" {
        working.last()
    } else {
        working.min_by_key(|d| (d.day() - wanted).abs())
    };
    wanted <= last && nearest == Some(date)
}

fn is_working_day(date: Date) -> bool {
    (1..=5).contains(&date.weekday().to_monday_one_offset())
}

fn weekday_is(item: &str, date: Date) -> bool {
    let weekday = usize::try_from(date.weekday().to_sunday_zero_offset()).unwrap();
    let same = |number: &str| number.parse::<usize>().unwrap() % 7 == weekday;
    if let Some((number, nth)) = item.split_once('#') {
        return same(number) && (date.day() - 1) / 7 + 1 == nth.parse::<i8>().unwrap();
    }
    if let Some(number) = item.strip_suffix('L') {
        return same(number) && date.day() + 7 > date.days_in_month();
    }
    let values = set(item, 0, 7);
    values[weekday] || (weekday == 0 && values[7])
}

pub(crate) fn zone(name: &str) -> TimeZone {
    TimeZoneDatabase::bundled().get(name).unwrap()
}

/// The moments in a year at which a zone's clocks change, and by how many seconds.
pub(crate) fn changes(zone: &TimeZone, year: i16) -> Vec<(i64, i64)> {
    let day = |year: i16| Date::new(year, 1, 1).unwrap().to_zoned(TimeZone::UTC).unwrap();
    let (from, until) = (day(year).timestamp().as_second(), day(year + 1).timestamp().as_second());
    let offset =
        |t: i64| i64::from(zone.to_offset(jiff::Timestamp::from_second(t).unwrap()).seconds());
    // Clocks change on the half hour.
    let halves = (from..until).step_by(1800);
    halves.map(|t| (t, offset(t) - offset(t - 1800))).filter(|(_, by)| *by != 0).collect()
}
