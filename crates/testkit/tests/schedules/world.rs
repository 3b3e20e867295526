//! The schedule as it must be: every deed done to it, one after the other, and what it writes.
//!
//! Invariants: what is decided is decided from the slots alone, by `policy`; verdicts that were
//! spoken and not yet written stay as they are. Deliberately absent: the store, versions, two
//! schedulers. Whatever happens at once must look as if it had happened in some order here.

use std::fmt;
use std::sync::{Arc, Mutex};

use steadfast::{Calendar, SlotStatus, Timestamp, Trigger, TriggerState, When};

use crate::policy::{ID, Verdict, judge};

/// What somebody does to the schedule.
#[derive(Clone)]
pub(crate) enum Deed {
    Tick,
    Pause(&'static str),
    Resume,
    Define(Box<Trigger>),
    Remove,
}

impl fmt::Debug for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick => f.write_str("tick"),
            Self::Pause(why) => write!(f, "pause for {why}"),
            Self::Resume => f.write_str("resume"),
            Self::Define(t) => write!(f, "define enabled={} {:?}", t.enabled, t.when),
            Self::Remove => f.write_str("remove"),
        }
    }
}

/// What he is told: nothing, or the code of an error.
pub(crate) type Said = Result<(), String>;

/// A slot that was written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) verdict: Verdict,
    pub(crate) revision: i64,
    pub(crate) decided_at: Timestamp,
}

/// When the schedule last was not to fire, and why.
#[derive(Debug, Clone, PartialEq)]
struct Absence {
    from: Timestamp,
    until: Timestamp,
    reason: String,
}

/// A calendar that remembers the nominal times it was asked for.
pub(crate) struct Times {
    pub(crate) calendar: Calendar,
    from: Timestamp,
    known: Mutex<Vec<Timestamp>>,
}

impl Times {
    /// Those after a moment, up to another.
    pub(crate) fn between(&self, from: Timestamp, until: Timestamp) -> Vec<Timestamp> {
        let mut known = self.known.lock().unwrap();
        let last = known.last().copied().unwrap_or(self.from);
        known.extend(self.calendar.between(last, until));
        let place = |at: Timestamp| known.partition_point(|slot| *slot <= at);
        known[place(from)..place(until)].to_vec()
    }
}

/// A definition from when it was given until it was replaced.
#[derive(Clone)]
pub(crate) struct Lifetime {
    /// The revision with which it began; later ones only do something else at the same times.
    pub(crate) since: i64,
    pub(crate) revision: i64,
    pub(crate) times: Arc<Times>,
    pub(crate) from: Timestamp,
    pub(crate) end: Option<End>,
    /// Slots up to here were looked at by somebody who was about to replace it.
    hasty: Timestamp,
}

/// How a definition ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum End {
    /// Every nominal time up to here is its own, whatever the jitter.
    With(Timestamp),
    /// What waited for its jitter then is wanted by nobody.
    Without(Timestamp),
}

/// The schedule as it must be.
#[derive(Clone)]
pub(crate) struct World {
    /// As it was last given, and enabled.
    trigger: Option<Arc<Trigger>>,
    pub(crate) state: TriggerState,
    absence: Option<Absence>,
    /// Every slot up to here has its row or its verdict.
    cursor: Timestamp,
    /// Verdicts whose scheduler died before it wrote them.
    pub(crate) spoken: Vec<Verdict>,
    /// What was written since somebody last looked.
    pub(crate) fresh: Vec<Row>,
    pub(crate) lifetimes: Vec<Lifetime>,
    /// When it was not to fire.
    pub(crate) absences: Vec<(Timestamp, Timestamp)>,
}

impl World {
    /// Nothing is defined.
    pub(crate) fn empty() -> Self {
        Self {
            trigger: None,
            state: TriggerState::Removed,
            absence: None,
            cursor: Timestamp::from_micros(0),
            spoken: Vec::new(),
            fresh: Vec::new(),
            lifetimes: Vec::new(),
            absences: Vec::new(),
        }
    }

    pub(crate) fn trigger(&self) -> Option<&Trigger> {
        self.trigger.as_deref()
    }

    pub(crate) fn revision(&self) -> i64 {
        self.lifetimes.last().map_or(0, |life| life.revision)
    }

    /// Whether nobody will ever tell the two apart.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let all = |w: &Self| (w.state, w.absence.clone(), w.cursor, w.spoken.clone());
        all(self) == all(other) && self.revision() == other.revision()
    }

    fn times(&self) -> Option<&Arc<Times>> {
        self.lifetimes.last().map(|life| &life.times)
    }

    /// The calendar in force.
    pub(crate) fn calendar(&self) -> Option<&Calendar> {
        self.times().map(|times| &times.calendar)
    }

    /// How many slots nobody has looked at yet.
    pub(crate) fn backlog(&self, now: Timestamp) -> usize {
        self.times().map_or(0, |times| times.between(self.cursor, now).len())
    }

    /// When it must be due next; none where that depends on who died.
    pub(crate) fn due_at(&self) -> Option<Timestamp> {
        if self.state != TriggerState::Active {
            return Some(Timestamp::NEVER);
        }
        let calendar = self.calendar().filter(|_| self.spoken.is_empty())?;
        let next = calendar.after(self.cursor);
        Some(next.map_or(Timestamp::NEVER, |slot| calendar.due(ID, slot)))
    }

    /// Does it.
    pub(crate) fn does(&mut self, deed: &Deed, now: Timestamp) -> Said {
        let refused = Err("SF-0610".to_owned());
        match (deed, self.state) {
            (Deed::Tick, TriggerState::Active) => self.decide(now, false, usize::MAX),
            (Deed::Define(wanted), _) => self.define(wanted, now),
            (Deed::Tick, _) => {}
            _ if self.trigger.is_none() => return Err("SF-0608".to_owned()),
            (Deed::Remove, TriggerState::Removed) => {}
            (Deed::Remove, _) => {
                let active = self.state == TriggerState::Active;
                self.decide(now, false, usize::MAX);
                let end = if active { End::Without(now) } else { End::With(now) };
                self.lifetimes.last_mut().unwrap().end = Some(end);
                self.come_back(now);
                self.state = TriggerState::Removed;
            }
            (Deed::Pause(why), TriggerState::Active) => {
                self.leave(TriggerState::Paused, &format!("paused: {why}"), now);
            }
            (Deed::Resume, TriggerState::Paused) => self.come_back(now),
            (Deed::Pause(_), TriggerState::Paused) | (Deed::Resume, TriggerState::Active) => {}
            (Deed::Pause(_) | Deed::Resume, _) => return refused,
        }
        Ok(())
    }

    /// Begins it, writes so many rows, and dies.
    pub(crate) fn dies_doing(&mut self, deed: &Deed, now: Timestamp, written: usize) {
        match deed {
            Deed::Tick if self.state == TriggerState::Active => self.decide(now, false, written),
            Deed::Remove => self.decide(now, false, written),
            Deed::Define(wanted) if self.is_other(wanted) && !self.only_does_other(wanted) => {
                self.decide(now, true, written);
            }
            _ => {}
        }
    }

    /// Whether the definition says something else, beyond being enabled.
    fn is_other(&self, wanted: &Trigger) -> bool {
        let known = self.trigger.as_deref().filter(|_| self.state != TriggerState::Removed);
        known.is_some_and(|known| *known != Trigger { enabled: true, ..wanted.clone() })
    }

    /// Whether it is away, and fires afterwards as before.
    fn only_does_other(&self, wanted: &Trigger) -> bool {
        let same = |known: &Trigger| known.when == wanted.when;
        self.state != TriggerState::Active && self.trigger.as_deref().is_some_and(same)
    }

    fn define(&mut self, wanted: &Trigger, now: Timestamp) {
        let is_new = self.state == TriggerState::Removed;
        let mut is_other = self.is_other(wanted);
        if is_other && self.only_does_other(wanted) {
            // What it missed meanwhile stays to be decided, by the new one.
            self.lifetimes.last_mut().unwrap().revision += 1;
            self.trigger = Some(Arc::new(Trigger { enabled: true, ..wanted.clone() }));
            is_other = false;
        }
        if is_other {
            self.decide(now, true, usize::MAX);
            self.lifetimes.last_mut().unwrap().end = Some(End::With(now));
        }
        if is_new {
            (self.state, self.absence) = (TriggerState::Active, None);
        }
        if is_new || is_other {
            let When::Cron(cron) = &wanted.when else { panic!("it is a schedule") };
            let (calendar, revision) = (Calendar::new(cron).unwrap(), self.revision() + 1);
            let times = Arc::new(Times { calendar, from: now, known: Mutex::default() });
            let (since, from, hasty) = (revision, now, now);
            self.lifetimes.push(Lifetime { since, revision, times, from, end: None, hasty });
            self.trigger = Some(Arc::new(Trigger { enabled: true, ..wanted.clone() }));
            (self.cursor, self.spoken) = (now, Vec::new());
        }
        match (self.state, wanted.enabled) {
            (TriggerState::Disabled, true) => {
                let reason = self.absence.as_ref().map(|absence| absence.reason.clone());
                match reason.as_deref().and_then(|why| why.strip_prefix("disabled while ")) {
                    Some(pause) => self.leave(TriggerState::Paused, pause, now),
                    None => self.come_back(now),
                }
            }
            (TriggerState::Active, false) => self.leave(TriggerState::Disabled, "disabled", now),
            (TriggerState::Paused, false) => {
                let pause = self.absence.as_ref().map_or("", |absence| &absence.reason);
                let why = format!("disabled while {pause}");
                self.leave(TriggerState::Disabled, &why, now);
            }
            _ => {}
        }
    }

    fn leave(&mut self, state: TriggerState, reason: &str, now: Timestamp) {
        let since = self.absence.as_ref().filter(|a| a.until == Timestamp::NEVER);
        let from = since.map_or(now, |a| a.from);
        if since.is_none() {
            self.absences.push((now, Timestamp::NEVER));
        }
        self.state = state;
        self.absence = Some(Absence { from, until: Timestamp::NEVER, reason: reason.to_owned() });
    }

    fn come_back(&mut self, now: Timestamp) {
        self.state = TriggerState::Active;
        if let Some(absence) = &mut self.absence {
            absence.until = now;
        }
        if let Some((_, until)) = self.absences.last_mut() {
            *until = now.min(*until);
        }
    }

    /// Writes what is due, or so much of it. When the definition is replaced, and when it ends
    /// while the schedule is not to fire, every nominal time up to now is due.
    fn decide(&mut self, now: Timestamp, ending: bool, at_most: usize) {
        let (Some(times), revision) = (self.times().cloned(), self.revision()) else { return };
        let calendar = &times.calendar;
        let ending = ending || self.state != TriggerState::Active;
        let mut room = at_most;
        loop {
            if self.spoken.is_empty() && room > 0 {
                let due = |slot: &Timestamp| ending || calendar.due(ID, *slot) <= now;
                let slots = times.between(self.cursor, now);
                let slots: Vec<_> = slots.into_iter().take_while(due).collect();
                self.spoken = judge(calendar, &slots, now);
                if let (true, Some(last)) = (ending, slots.last()) {
                    self.lifetimes.last_mut().unwrap().hasty = *last;
                }
            }
            let count = self.spoken.len().min(room);
            if count == 0 {
                return;
            }
            room -= count;
            let written: Vec<_> = self.spoken.drain(..count).collect();
            for verdict in written {
                self.cursor = verdict.nominal;
                let verdict = self.explained(verdict);
                self.fresh.push(Row { verdict, revision, decided_at: now });
            }
        }
    }

    /// A verdict with the reason why its slot was missed, if it was. None fires any more where the
    /// schedule is not to.
    fn explained(&self, mut verdict: Verdict) -> Verdict {
        let nominal = verdict.nominal;
        if self.state != TriggerState::Active {
            let reason = self.absence.as_ref().map_or("", |a| &a.reason);
            let why = format!("{reason}; the schedule was changed meanwhile");
            return Verdict::miss(nominal, why);
        }
        if verdict.status == SlotStatus::Missed {
            let lasted = self.absence.as_ref().filter(|a| a.from < a.until);
            let told = lasted.filter(|a| a.from <= nominal && nominal <= a.until);
            let cause = told.map_or("no scheduler was there in time", |a| &a.reason);
            verdict.reason.insert_str(0, cause);
        }
        verdict
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state, absence, cursor, .. } = self;
        let (revision, spoken) = (self.revision(), self.spoken.len());
        let cron = self.calendar().map(|calendar| calendar.schedule().clone());
        write!(
            f,
            "{state:?}, revision {revision}, decided until {cursor}, {spoken} spoken, last \
             absent {absence:?}, {cron:?}"
        )
    }
}

impl Lifetime {
    /// Its nominal times, all of which must have a row when somebody has just looked.
    pub(crate) fn slots(&self, now: Timestamp) -> Vec<Timestamp> {
        let until = |end| self.times.between(self.from, end).into_iter();
        let due = |slot: &Timestamp, end| {
            *slot <= self.hasty || self.times.calendar.due(ID, *slot) <= end
        };
        match self.end {
            Some(End::With(end)) => until(end).collect(),
            Some(End::Without(end)) => until(end).take_while(|slot| due(slot, end)).collect(),
            None => until(now).take_while(|slot| due(slot, now)).collect(),
        }
    }
}

/// Whether a row made a command.
pub(crate) fn fired(row: &Row) -> bool {
    row.verdict.status == SlotStatus::Fired
}
