//! A schedule's nominal times: cron in a time zone, correct where the clocks change.
//!
//! Invariants: a fixed time that the clocks skip fires when they have jumped, one that they show
//! twice fires once; an interval fires whenever the clocks show it; a pattern that never fires is
//! refused. Zones are compiled in, so that two machines never disagree.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use sha2::{Digest, Sha256};

use super::pattern::Pattern;
use super::{Misfire, Schedule, wrong};
use crate::error::{Error, Result};
use crate::limits;
use crate::time::Timestamp;

/// A checked schedule, ready to be asked.
#[derive(Debug, Clone)]
pub struct Calendar {
    schedule: Schedule,
    pattern: Arc<Pattern>,
    zone: TimeZone,
}

impl Calendar {
    /// Checks a schedule, naming what is wrong with it.
    pub fn new(schedule: &Schedule) -> Result<Self> {
        let pattern = Pattern::read(&schedule.cron_expression)?;
        static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
        let zone = ZONES.get(&schedule.timezone).map_err(|_| {
            Error::invalid(
                "SF-0602",
                format!(
                    "timezone \"{}\" is not in the IANA database; write it like \
                     \"Europe/Berlin\"",
                    schedule.timezone
                ),
            )
        })?;
        if schedule.misfire_policy != schedule.dedupe_key_strategy {
            return Err(Error::invalid(
                "SF-0604",
                format!(
                    "misfire_policy is {:?} and dedupe_key_strategy is {:?}; they must be equal",
                    schedule.misfire_policy, schedule.dedupe_key_strategy
                ),
            ));
        }
        let most = limits::CATCHUP_SLOTS;
        if schedule.misfire_policy == Misfire::Catchup
            && !(1..=most).contains(&schedule.catchup_limit)
        {
            return Err(wrong("catchup_limit", format!("is not in 1..={most}")));
        }
        for (field, value) in
            [("jitter_seconds", schedule.jitter_seconds), ("grace_seconds", schedule.grace_seconds)]
        {
            if value > 86_400 {
                return Err(wrong(field, "is more than a day"));
            }
        }
        if schedule.start_at.zip(schedule.end_at).is_some_and(|(start, end)| start > end) {
            return Err(wrong("end_at", "is before start_at"));
        }
        Ok(Self { schedule: schedule.clone(), pattern, zone })
    }

    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The expression in words.
    pub fn describe(&self) -> String {
        format!("{} ({})", self.pattern.cron.describe(), self.schedule.timezone)
    }

    /// The first nominal time after a moment, if there is one.
    pub fn after(&self, moment: Timestamp) -> Option<Timestamp> {
        // One step before the start: the start itself may be a nominal time.
        let from = match self.schedule.start_at {
            Some(start) => moment.max(start.before(Duration::from_micros(1))),
            None => moment,
        };
        let next = self.tick(from)?;
        let ended = self.schedule.end_at.is_some_and(|end| next > end);
        (!ended).then_some(next)
    }

    fn tick(&self, after: Timestamp) -> Option<Timestamp> {
        let moment = jiff::Timestamp::from_microsecond(after.as_micros()).ok()?;
        let local = moment.to_zoned(self.zone.clone());
        let next = if self.pattern.fixed {
            self.fixed_tick(&local)?
        } else {
            self.pattern.cron.find_next_occurrence(&local, false).ok()?.timestamp()
        };
        Some(Timestamp::from_micros(next.as_microsecond()))
    }

    /// The next of the fixed times. The pattern is asked for what stands on the wall, as if there
    /// were no zone, and the zone says when that is. With the zone in hand, the library takes a
    /// list of times for an interval, fires twice where midnight is skipped, and drops a time that
    /// is skipped at the end of its day.
    fn fixed_tick(&self, after: &jiff::Zoned) -> Option<jiff::Timestamp> {
        let mut wall = after.datetime().to_zoned(TimeZone::UTC).ok()?;
        loop {
            wall = self.pattern.cron.find_next_occurrence(&wall, false).ok()?;
            let moment = self.moment(wall.datetime())?;
            // Times that are shown a second time have had their moment.
            if moment > after.timestamp() {
                return Some(moment);
            }
        }
    }

    /// When the wall shows a time: the first time of two, or the end of the jump that skips it.
    fn moment(&self, wall: DateTime) -> Option<jiff::Timestamp> {
        let shown = self.zone.to_ambiguous_timestamp(wall);
        if let AmbiguousOffset::Gap { after, .. } = shown.offset() {
            let before_the_jump = after.to_timestamp(wall).ok()?;
            return self.zone.following(before_the_jump).next().map(|jump| jump.timestamp());
        }
        shown.earlier().ok()
    }

    /// The nominal times after `from`, up to `until`.
    pub fn between(&self, from: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> {
        let step = move |last: &Timestamp| self.after(*last);
        std::iter::successors(self.after(from), step).take_while(move |at| *at <= until)
    }

    /// When a slot is due: its nominal time and its share of the jitter, which is a function of the
    /// trigger and the slot, so that every scheduler agrees.
    pub fn due(&self, trigger_id: &str, nominal: Timestamp) -> Timestamp {
        let most = u64::from(self.schedule.jitter_seconds) * 1_000_000;
        if most == 0 {
            return nominal;
        }
        let mut hash = Sha256::new();
        hash.update(trigger_id.as_bytes());
        hash.update(nominal.as_micros().to_be_bytes());
        let head = hash.finalize().iter().take(8).fold(0u64, |n, b| (n << 8) | u64::from(*b));
        nominal.after(Duration::from_micros(head % most))
    }
}
