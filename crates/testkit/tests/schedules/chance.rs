//! What happens next, by chance: definitions, moments and deeds.

use std::time::Duration;

use serde_json::json;
use steadfast::{CommandType, Cron, Misfire, Timestamp, Trigger, TriggerState, When};

use crate::dice::Dice;
use crate::policy::ID;
use crate::world::{Deed, World};

/// Where the clocks change in spring and autumn, by an hour or by half of one, or never.
const ZONES: [&str; 5] =
    ["Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "UTC"];
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// About how many slots an outage may have: enough for several commits.
const BACKLOG: u32 = 1200;

/// A source of events.
pub(crate) struct Chance {
    dice: Dice,
    /// So that two definitions with the same schedule may differ.
    edits: u64,
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed), edits: 0 }
    }

    /// When it happens: often just when a slot is due, sometimes long after.
    pub(crate) fn moment(&mut self, world: &World, now: Timestamp) -> Timestamp {
        let dice = &mut self.dice;
        let later = match dice.between(0, 99) {
            0..60 => match next_due(world, now) {
                Some((due, grace)) => {
                    let grace = Duration::from_secs(grace.into());
                    let instant = Duration::from_micros(1);
                    let some = Duration::from_millis(dice.between(0, 60_000));
                    let late = [Duration::ZERO, instant, some, some, grace, grace + instant];
                    return due.after(*dice.one(&late)).max(now);
                }
                None => Duration::from_secs(dice.between(1, DAY)),
            },
            60..70 => Duration::ZERO,
            70..85 => Duration::from_millis(dice.between(1, 2 * HOUR * 1000)),
            // Minutes are as likely as months; but where there are many slots, months are too long.
            _ => {
                let up_to = Duration::from_secs((100 * DAY) >> dice.between(0, 17));
                let up_to = up_to.min(BACKLOG * distance(world, now));
                Duration::from_micros(dice.between(1, up_to.as_micros().try_into().unwrap()))
            }
        };
        now.after(later)
    }

    /// What happens: one thing, or several at once.
    pub(crate) fn deeds(&mut self, world: &World) -> Vec<Deed> {
        let mut deeds = vec![self.deed(world)];
        if self.dice.percent(25) {
            deeds.push(self.deed(world));
            if self.dice.percent(30) {
                deeds.push(Deed::Tick);
            }
        }
        deeds
    }

    fn deed(&mut self, world: &World) -> Deed {
        let reason = *self.dice.one(&["audit", "vendor migration", "freeze"]);
        let roll = self.dice.between(0, 99);
        match (world.state, world.trigger()) {
            (TriggerState::Removed, _) | (_, None) => match roll {
                0..70 => self.definition(),
                70..80 => Deed::Tick,
                80..87 => Deed::Pause("gone"),
                87..94 => Deed::Resume,
                _ => Deed::Remove,
            },
            (TriggerState::Active, Some(known)) => match roll {
                0..75 => Deed::Tick,
                75..82 => Deed::Pause(reason),
                82..85 => again(known, false),
                85..87 => again(known, true),
                87..97 => self.edit(known, 90),
                97..98 => Deed::Remove,
                _ => Deed::Resume,
            },
            (TriggerState::Paused, Some(known)) => match roll {
                0..40 => Deed::Resume,
                40..65 => Deed::Tick,
                65..80 => self.edit(known, 90),
                80..88 => again(known, false),
                88..93 => again(known, true),
                93..95 => Deed::Remove,
                _ => Deed::Pause(reason),
            },
            (TriggerState::Disabled, Some(known)) => match roll {
                0..40 => again(known, true),
                40..65 => Deed::Tick,
                65..85 => self.edit(known, 40),
                85..90 => Deed::Pause(reason),
                90..95 => Deed::Resume,
                95..97 => Deed::Remove,
                _ => again(known, false),
            },
        }
    }

    fn definition(&mut self) -> Deed {
        let (cron, enabled) = (self.cron(), self.dice.percent(90));
        Deed::Define(Box::new(self.trigger(cron, enabled)))
    }

    /// Another cron, another policy, or only another payload.
    fn edit(&mut self, known: &Trigger, enabled: u64) -> Deed {
        let When::Cron(mut cron) = known.when.clone() else { panic!("it is a schedule") };
        let other = self.cron();
        match self.dice.between(0, 9) {
            0..6 => cron = other,
            6..8 => {
                let (expression, timezone) = (cron.cron_expression, cron.timezone);
                cron = Cron { cron_expression: expression, timezone, ..other };
            }
            _ => {}
        }
        let enabled = self.dice.percent(enabled);
        Deed::Define(Box::new(self.trigger(cron, enabled)))
    }

    fn trigger(&mut self, cron: Cron, enabled: bool) -> Trigger {
        self.edits += 1;
        let payload = json!({
            "at": "{scheduled_for}", "first": "{window_start}", "last": "{window_end}",
            "edit": self.edits,
        });
        let (trigger_id, when) = (ID.to_owned(), When::Cron(cron));
        Trigger { trigger_id, enabled, when, command: CommandType::new("live"), payload }
    }

    fn cron(&mut self) -> Cron {
        let expression = self.expression();
        let dice = &mut self.dice;
        let mut cron = Cron::cron(&expression);
        (*dice.one(&ZONES)).clone_into(&mut cron.timezone);
        cron.misfire_policy = *dice.one(&[Misfire::Skip, Misfire::Catchup, Misfire::Compress]);
        cron.dedupe_key_strategy = cron.misfire_policy;
        cron.catchup_limit = *dice.one(&[1, 2, 10, 100, 1000]);
        let window = HOUR << dice.between(0, 10);
        cron.catchup_window_seconds = dice.percent(40).then_some(window);
        cron.grace_seconds = *dice.one(&[0, 60, 60, 60, 3600, 86_400]);
        cron.jitter_seconds = *dice.one(&[0, 0, 0, 0, 60, 3600, 86_400]);
        // From early in the life until after it: some schedules begin late, some end.
        let mut some_day = |share| {
            let day = Duration::from_secs(dice.between(0, 1500) * DAY);
            dice.percent(share).then(|| Timestamp::from_micros(1_700_000_000_000_000).after(day))
        };
        (cron.start_at, cron.end_at) = (some_day(8), some_day(8));
        if cron.start_at.zip(cron.end_at).is_some_and(|(start, end)| start > end) {
            (cron.start_at, cron.end_at) = (cron.end_at, cron.start_at);
        }
        cron
    }

    /// Daily, weekly, monthly, some times a day, each hour, each few minutes.
    fn expression(&mut self) -> String {
        let dice = &mut self.dice;
        let (minute, hour) = (dice.between(0, 59), dice.between(0, 23));
        let (day, weekday) = (dice.between(1, 31), dice.between(0, 6));
        match dice.between(0, 19) {
            // At night, where the clocks change.
            0..4 => format!("30 {} * * *", dice.between(0, 3)),
            4..9 => format!("{minute} {hour} * * *"),
            9..11 => format!("{minute} {hour} * * {weekday}"),
            11..12 => format!("{minute} {hour} {day} * *"),
            12..13 => format!("{minute} {hour} L * *"),
            13..14 => format!("{minute} 6,12,18 * * *"),
            14..15 => format!("{minute} */6 * * *"),
            15..16 => format!("{minute} 9-17 * * 1-5"),
            16..18 => format!("{minute} * * * *"),
            18..19 => "*/20 * * * *".to_owned(),
            _ => "15 */5 8-16 * * *".to_owned(),
        }
    }
}

/// The definition as it is, enabled or not.
fn again(known: &Trigger, enabled: bool) -> Deed {
    Deed::Define(Box::new(Trigger { enabled, ..known.clone() }))
}

/// When the next slot is due, and how long it is in time.
fn next_due(world: &World, now: Timestamp) -> Option<(Timestamp, u32)> {
    let calendar = world.calendar()?;
    let next = calendar.after(now)?;
    let due = world.due_at().filter(|due| *due != Timestamp::NEVER);
    let due = due.unwrap_or_else(|| calendar.due(ID, next));
    Some((due, calendar.schedule().grace_seconds))
}

/// How far the next two slots are apart.
fn distance(world: &World, now: Timestamp) -> Duration {
    let next = |at| world.calendar().and_then(|calendar| calendar.after(at));
    let first = next(now).unwrap_or(Timestamp::NEVER);
    next(first).map_or(Duration::from_secs(DAY), |second| first.until(second))
}
