//! Cron expressions, read once: schedules by the thousand have few different ones.
//!
//! Invariants: an expression that never fires is refused; what is kept in memory is bounded.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};

use croner::JobType;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;

use crate::error::{Error, Result};
use crate::limits;

/// Expressions kept; beyond it, they are read anew.
const KNOWN: usize = 1_000;

/// An expression, ready to be asked.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) cron: croner::Cron,
    /// Whether it names its times of day, and gives no interval of them.
    pub(super) fixed: bool,
}

impl Pattern {
    pub(super) fn read(text: &str) -> Result<Arc<Self>> {
        static READ: LazyLock<Mutex<BTreeMap<String, Arc<Pattern>>>> =
            LazyLock::new(Mutex::default);
        let read = || READ.lock().expect("invariant: nothing panics under the lock");
        if let Some(known) = read().get(text) {
            return Ok(known.clone());
        }
        let made = Arc::new(Self::parse(text)?);
        let mut known = read();
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(text.to_owned(), made.clone());
        Ok(made)
    }

    fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::invalid("SF-0601", format!("cron \"{text}\": {why}"));
        if text.len() > limits::KEY_BYTES {
            return Err(bad("is too long"));
        }
        let text = match text.trim() {
            midnight if midnight.eq_ignore_ascii_case("@midnight") => "@daily",
            text => text,
        };
        check_steps(text).map_err(|why| bad(&why))?;
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .dom_and_dow(one_day_field_is_starred(text))
            .build();
        let cron = parser.parse(&with_one_sunday(text)).map_err(|e| bad(&e.to_string()))?;
        let epoch = jiff::Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        if cron.find_next_occurrence(&epoch, false).is_err() {
            return Err(bad("never fires"));
        }
        let fixed = cron.determine_job_type() == JobType::FixedTime || names_its_times(text);
        Ok(Self { cron, fixed })
    }
}

/// The fields of an expression from the left, seconds first, with how many values each has.
const FIELDS: [(&str, u32); 6] = [
    ("seconds", 60),
    ("minutes", 60),
    ("hours", 24),
    ("days of the month", 31),
    ("months", 12),
    ("days of the week", 7),
];

/// Refuses a step larger than its field: `*/61` in the minutes would fire once an hour, which is
/// almost certainly a mistake.
fn check_steps(expression: &str) -> Result<(), String> {
    let written: Vec<&str> = expression.split_whitespace().collect();
    let first = FIELDS.len().saturating_sub(written.len());
    for (field, (name, values)) in written.iter().zip(FIELDS.iter().skip(first)) {
        for part in field.split(',') {
            let Some((_, step)) = part.split_once('/') else { continue };
            if step.parse::<u32>().is_ok_and(|step| step > *values) {
                return Err(format!("a step of {step} is wider than the {values} {name}"));
            }
        }
    }
    Ok(())
}

/// Whether the days of the month or those of the week begin with a star, as in `*/2`. As in Vixie's
/// cron, a day has to be one of both then; otherwise one of them is enough.
fn one_day_field_is_starred(expression: &str) -> bool {
    let fields: Vec<&str> = expression.split_whitespace().collect();
    let [.., days, _, weekdays] = fields[..] else { return false };
    days.starts_with('*') || weekdays.starts_with('*')
}

/// Whether seconds, minutes and hours are numbers, and lists of them.
fn names_its_times(expression: &str) -> bool {
    let fields: Vec<&str> = expression.split_whitespace().collect();
    let numbers = |field: &&str| field.chars().all(|c| c.is_ascii_digit() || c == ',');
    fields.len() >= 5 && fields[..fields.len() - 3].iter().all(numbers)
}

/// The expression with Sunday always spelt 0: the library loses the last Sunday of a month, 7L.
fn with_one_sunday(expression: &str) -> String {
    match expression.trim_end().rsplit_once(char::is_whitespace) {
        Some((rest, weekdays)) => format!("{rest} {}", weekdays.to_uppercase().replace("7L", "0L")),
        None => expression.to_owned(),
    }
}
