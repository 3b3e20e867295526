//! What becomes of the nominal times that the clock has passed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Calendar, Misfire};
use crate::time::Timestamp;

/// How far a schedule got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Every nominal time up to here has its verdict.
    pub cursor: Timestamp,
    /// A gap that is being worked off.
    pub gap: Option<Gap>,
    /// When the schedule last was not to fire.
    pub absence: Option<Absence>,
    /// Whether this is the schedule's last look: a nominal time that has come waits no longer for
    /// its share of the jitter.
    pub last: bool,
}

/// A gap that takes more than one planning step. It was measured once, and stays so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The moment at which it was measured.
    pub until: Timestamp,
    /// Slots before this one are missed.
    pub first: Timestamp,
    /// Slots before this one are not fired by themselves.
    pub keep: Timestamp,
    /// Whether it was measured for the last time: then it has every nominal time up to its end.
    #[serde(default)]
    pub last: bool,
}

/// A time in which the schedule was told not to fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// From when.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
    /// Why: `paused: …` or `disabled`.
    pub reason: String,
}

/// What becomes of one nominal time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is fired; with the window it covers, where that is more than itself.
    Fire(Option<(Timestamp, Timestamp)>),
    /// The later slot covers it.
    Compress(Timestamp),
    /// It is missed, for this reason.
    Miss(String),
}

/// A nominal time and its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The nominal time.
    pub nominal: Timestamp,
    /// When it was due.
    pub due: Timestamp,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// A planning step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Verdicts, oldest first.
    pub slots: Vec<Planned>,
    /// How far the schedule gets with them.
    pub cursor: Timestamp,
    /// The gap, if some of it is left.
    pub gap: Option<Gap>,
    /// When to plan again: `NEVER` when there are no more slots.
    pub due: Timestamp,
}

impl Calendar {
    /// The verdicts on the slots that are due at `now`, at most `most` of them.
    pub fn plan(&self, id: &str, progress: &Progress, now: Timestamp, most: usize) -> Plan {
        let mut next = self.after(progress.cursor);
        let gap = progress.gap.unwrap_or_else(|| self.measure(id, progress, next, now));
        let mut plan =
            Plan { slots: Vec::new(), cursor: progress.cursor, gap: None, due: Timestamp::NEVER };
        while let Some(nominal) = next {
            let mut due = self.due(id, nominal);
            if gap.last && nominal <= gap.until {
                due = due.min(gap.until);
            }
            if due > gap.until {
                // What became due while a gap was worked off is looked at next.
                plan.due = if progress.last && nominal <= now { due.min(now) } else { due };
                break;
            }
            if plan.slots.len() == most {
                (plan.gap, plan.due) = (Some(gap), now);
                break;
            }
            let verdict = self.verdict(nominal, &gap, progress.absence.as_ref());
            plan.slots.push(Planned { nominal, due, verdict });
            plan.cursor = nominal;
            next = self.after(nominal);
        }
        plan
    }

    fn verdict(&self, nominal: Timestamp, gap: &Gap, absence: Option<&Absence>) -> Verdict {
        let compress = self.schedule().misfire_policy == Misfire::Compress;
        if nominal < gap.first {
            return Verdict::Miss(self.reason(nominal, gap, absence));
        }
        if nominal < gap.keep {
            return Verdict::Compress(gap.keep);
        }
        let covers = compress && nominal == gap.keep && gap.first < gap.keep;
        Verdict::Fire(covers.then_some((gap.first, gap.keep)))
    }

    fn reason(&self, nominal: Timestamp, gap: &Gap, absence: Option<&Absence>) -> String {
        let told = absence.filter(|a| a.from <= nominal && nominal <= a.until);
        let cause = told.map_or("no scheduler was there in time", |a| &a.reason);
        let schedule = self.schedule();
        let window = schedule.catchup_window_seconds.map(Duration::from_secs);
        match schedule.misfire_policy {
            Misfire::Skip => cause.to_owned(),
            Misfire::Catchup | Misfire::Compress
                if window.is_some_and(|w| nominal < gap.until.before(w)) =>
            {
                format!("{cause}; older than the catch-up window")
            }
            Misfire::Catchup | Misfire::Compress => {
                format!("{cause}; beyond the catch-up limit of {}", schedule.catchup_limit)
            }
        }
    }

    /// Measures what has passed since the cursor; `next` is the first slot after it.
    fn measure(
        &self,
        id: &str,
        progress: &Progress,
        next: Option<Timestamp>,
        now: Timestamp,
    ) -> Gap {
        let (schedule, cursor) = (self.schedule(), progress.cursor);
        let grace = Duration::from_secs(schedule.grace_seconds.into());
        let jitter = Duration::from_secs(schedule.jitter_seconds.into());
        let late = |nominal: &Timestamp| self.due(id, *nominal).after(grace) < now;
        let gap = |first, keep| Gap { until: now, first, keep, last: progress.last };
        // The usual case: a scheduler was there in time, and nothing is to be made up for.
        if let Some(next) = next.filter(|next| !late(next)) {
            return gap(next, next);
        }
        // A slot in time is no older than this.
        let recent = cursor.max(now.before(grace).before(jitter).before(Duration::from_micros(1)));
        let in_time = self.between(recent, now).find(|nominal| !late(nominal));
        let in_time = in_time.unwrap_or(Timestamp::NEVER);
        let begin = match schedule.catchup_window_seconds {
            Some(window) => {
                let oldest = now.before(Duration::from_secs(window));
                cursor.max(oldest.before(Duration::from_micros(1)))
            }
            None => cursor,
        };
        match schedule.misfire_policy {
            Misfire::Skip => gap(in_time, in_time),
            Misfire::Catchup => {
                let kept = self.latest(begin, now, schedule.catchup_limit as usize, in_time);
                let first = kept.unwrap_or(in_time);
                gap(first, first)
            }
            Misfire::Compress => {
                let first = self.after(begin).unwrap_or(Timestamp::NEVER).min(in_time);
                if self.after(cursor).is_none_or(|oldest| oldest >= in_time) {
                    return gap(first, first);
                }
                // From the cursor: a slot that is not due yet holds up those behind it.
                let keep = match progress.last {
                    true => self.latest(cursor, now, 1, Timestamp::NEVER),
                    false => self.last_due(id, cursor, now),
                };
                gap(first, keep.unwrap_or(first))
            }
        }
    }

    /// The oldest of the latest `count` slots after `from` that lie before `end`.
    fn latest(
        &self,
        from: Timestamp,
        now: Timestamp,
        count: usize,
        end: Timestamp,
    ) -> Option<Timestamp> {
        // Looks back further and further: the cost depends on what is found, not on the gap.
        let mut back = Duration::from_secs(3600);
        loop {
            let start = from.max(now.before(back));
            let found: Vec<_> =
                self.between(start, now).take_while(|nominal| *nominal < end).collect();
            if found.len() >= count || start == from {
                return found.get(found.len().saturating_sub(count)).copied();
            }
            back *= 4;
        }
    }

    /// The last slot that is due, where those before it are due too.
    fn last_due(&self, id: &str, from: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let jitter = Duration::from_secs(self.schedule().jitter_seconds.into());
        // Everything before this is due, whatever its share of the jitter.
        let sure = self.latest(from, now.before(jitter), 1, Timestamp::NEVER);
        let more = self.between(sure.unwrap_or(from), now);
        more.take_while(|nominal| self.due(id, *nominal) <= now).last().or(sure)
    }
}

#[cfg(test)]
mod tests;
