//! What becomes of slots that nobody fired in time: random schedules, random outages, and a verdict
//! that the test works out for itself from all slots of a gap at once.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_core::schedule::{
    Absence, Calendar, Misfire, Plan, Planned, Progress, Schedule, Verdict,
};

use crate::at;
use crate::dice::Dice;

const TRIGGER: &str = "nightly";

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn random_schedule(dice: &mut Dice, policy: Misfire) -> Schedule {
    let crons =
        ["*/5 * * * *", "*/7 * * * *", "0,20 * * * *", "0 * * * *", "30 2 * * *", "0 */6 * * *"];
    let windows = [None, None, Some(300), Some(7200), Some(86_400)];
    Schedule {
        cron_expression: dice.pick(&crons).to_owned(),
        timezone: dice.pick(&["UTC", "Europe/Berlin"]).to_owned(),
        // Up to more than the distance of two slots: they may become due in another order.
        jitter_seconds: *dice.pick(&[&0, &0, &30, &900, &5000]),
        start_at: (dice.below(4) == 0).then(|| at("2026-03-27T12:34:56Z")),
        end_at: (dice.below(4) == 0).then(|| at("2026-03-31T12:34:56Z")),
        misfire_policy: policy,
        dedupe_key_strategy: policy,
        catchup_limit: u32::try_from(dice.within(1, 12)).unwrap(),
        catchup_window_seconds: *dice.pick(&windows.each_ref()),
        grace_seconds: *dice.pick(&[&0, &60, &60, &600, &3600]),
        ..Schedule::cron("* * * * *")
    }
}

/// A scheduler that comes when chance lets it.
struct Scheduler<'a> {
    calendar: &'a Calendar,
    progress: Progress,
    now: Timestamp,
    /// Everything decided so far.
    decided: Vec<Planned>,
    /// What was decided of the gap that is being worked off.
    gap: Vec<Planned>,
}

impl<'a> Scheduler<'a> {
    fn new(calendar: &'a Calendar, cursor: Timestamp) -> Self {
        let progress = Progress { cursor, gap: None, absence: None, last: false };
        Self { calendar, progress, now: cursor, decided: Vec::new(), gap: Vec::new() }
    }

    fn tick(&mut self, most: usize) {
        let measured = self.progress.gap.map_or(self.now, |gap| gap.until);
        let plan = self.calendar.plan(TRIGGER, &self.progress, self.now, most);
        self.check_step(&plan, measured, most);
        self.gap.extend(plan.slots.iter().cloned());
        self.decided.extend(plan.slots);
        (self.progress.cursor, self.progress.gap) = (plan.cursor, plan.gap);
        if plan.gap.is_none() {
            let slots = std::mem::take(&mut self.gap);
            let verdicts: Vec<_> = slots.iter().map(|slot| slot.verdict.clone()).collect();
            assert_eq!(
                verdicts,
                expected(self.calendar, &slots, measured),
                "{:?}",
                self.schedule()
            );
        }
    }

    fn schedule(&self) -> &Schedule {
        self.calendar.schedule()
    }

    fn check_step(&self, plan: &Plan, measured: Timestamp, most: usize) {
        assert!(plan.slots.len() <= most);
        let last = plan.slots.last().map_or(self.progress.cursor, |slot| slot.nominal);
        assert_eq!(plan.cursor, last);
        if let Some(gap) = plan.gap {
            assert_eq!((gap.until, plan.due), (measured, self.now), "the rest is for at once");
            assert_eq!(plan.slots.len(), most, "a step ends early only where it is full");
            return;
        }
        // Everything that was due has its verdict.
        let next = self.calendar.after(plan.cursor);
        let due = next.map_or(Timestamp::NEVER, |next| self.calendar.due(TRIGGER, next));
        assert!(due > measured && plan.due == due);
    }
}

/// The verdicts on all slots of a gap. Slots are decided in order, so that one is due when those
/// before it are due as well.
fn expected(calendar: &Calendar, slots: &[Planned], measured: Timestamp) -> Vec<Verdict> {
    let schedule = calendar.schedule();
    let mut due = Timestamp::from_micros(0);
    let late = |slot: &&Planned| {
        due = due.max(calendar.due(TRIGGER, slot.nominal));
        due.after(seconds(schedule.grace_seconds.into())) < measured
    };
    let late = slots.iter().filter(late).count();
    let window = schedule.catchup_window_seconds.map(seconds);
    let oldest = window.map_or(Timestamp::from_micros(0), |window| measured.before(window));
    let old = slots[..late].iter().filter(|slot| slot.nominal < oldest).count();
    let limit = usize::try_from(schedule.catchup_limit).unwrap();
    let cause = "no scheduler was there in time";
    let (missed, reason) = match schedule.misfire_policy {
        Misfire::Skip => (late, String::new()),
        Misfire::Catchup => {
            (old.max(late.saturating_sub(limit)), format!("; beyond the catch-up limit of {limit}"))
        }
        Misfire::Compress => (old, String::new()),
    };
    let mut verdicts = Vec::new();
    for (place, slot) in slots.iter().enumerate() {
        let compress = schedule.misfire_policy == Misfire::Compress && late > 0;
        let (first, last) =
            (slots[missed.min(slots.len() - 1)].nominal, slots[slots.len() - 1].nominal);
        let skip = schedule.misfire_policy == Misfire::Skip;
        verdicts.push(match place {
            _ if place < missed && !skip && slot.nominal < oldest => {
                Verdict::Miss(format!("{cause}; older than the catch-up window"))
            }
            _ if place < missed => Verdict::Miss(format!("{cause}{reason}")),
            _ if !compress || first == last => Verdict::Fire(None),
            _ if slot.nominal < last => Verdict::Compress(last),
            _ => Verdict::Fire(Some((first, last))),
        });
    }
    verdicts
}

/// Lets a scheduler with bad luck live for a while; every slot gets one verdict, in order.
fn live(calendar: &Calendar, dice: &mut Dice) -> Vec<Planned> {
    let cursor = at("2026-03-26T00:00:00Z").after(seconds(dice.below(86_400)));
    let mut scheduler = Scheduler::new(calendar, cursor);
    for _ in 0..12 {
        let away = match dice.below(4) {
            0 => dice.within(3600, 2 * 86_400),
            1 => dice.within(60, 7200),
            _ => dice.below(400),
        };
        scheduler.now = scheduler.now.after(seconds(away));
        scheduler.tick(usize::try_from(dice.within(1, 40)).unwrap());
    }
    while scheduler.progress.gap.is_some() {
        scheduler.tick(500);
    }
    let decided: Vec<_> = scheduler.decided.iter().map(|slot| slot.nominal).collect();
    let all: Vec<_> = calendar.between(cursor, scheduler.progress.cursor).collect();
    assert_eq!(decided, all, "{:?}", calendar.schedule());
    scheduler.decided
}

/// Lives through many schedules of a policy; gives how many slots were fired, compressed, missed.
fn lives(policy: Misfire, seed: u64) -> [usize; 3] {
    let mut dice = Dice::new(seed);
    let mut counts = [0; 3];
    for _ in 0..150 {
        let calendar = Calendar::new(&random_schedule(&mut dice, policy)).unwrap();
        for slot in live(&calendar, &mut dice) {
            let kind = match slot.verdict {
                Verdict::Fire(_) => 0,
                Verdict::Compress(_) => 1,
                Verdict::Miss(_) => 2,
            };
            counts[kind] += 1;
        }
    }
    counts
}

/// R62, X8
#[test]
fn r062_under_skip_what_is_later_than_the_grace_is_missed_and_nothing_else_is() {
    let [fired, compressed, missed] = lives(Misfire::Skip, 62);
    assert!(fired > 200 && compressed == 0 && missed > 500, "{fired} {compressed} {missed}");
}

/// R63, X8
#[test]
fn r063_under_catchup_the_latest_slots_of_a_gap_are_fired_up_to_the_limit() {
    let [fired, compressed, missed] = lives(Misfire::Catchup, 63);
    assert!(fired > 200 && compressed == 0 && missed > 500, "{fired} {compressed} {missed}");
}

/// R64, X8
#[test]
fn r064_under_compress_one_slot_covers_a_gap_from_its_first_to_its_last() {
    let [fired, compressed, missed] = lives(Misfire::Compress, 64);
    assert!(fired > 200 && compressed > 500 && missed > 500, "{fired} {compressed} {missed}");
}

/// R66: a scheduler that was away, one that is slow and one that was paused decide alike.
#[test]
fn r066_the_cause_of_a_misfire_changes_its_reason_and_nothing_else() {
    let mut dice = Dice::new(66);
    for policy in [Misfire::Skip, Misfire::Catchup, Misfire::Compress].repeat(20) {
        let calendar = Calendar::new(&random_schedule(&mut dice, policy)).unwrap();
        let cursor = at("2026-03-26T06:00:00Z");
        let mut away = Scheduler::new(&calendar, cursor);
        away.now = cursor.after(seconds(dice.within(86_400, 3 * 86_400)));
        let now = away.now;
        away.tick(usize::MAX);

        let mut slow = Scheduler::new(&calendar, cursor);
        slow.now = now;
        slow.tick(3);
        while slow.progress.gap.is_some() {
            slow.now = slow.now.after(seconds(dice.below(900)));
            slow.tick(3);
        }
        assert_eq!(slow.decided, away.decided);

        let reason = "paused: stocktaking".to_owned();
        let absence = Some(Absence { from: cursor, until: now, reason });
        let progress = Progress { cursor, gap: None, absence, last: false };
        let paused = calendar.plan(TRIGGER, &progress, now, usize::MAX).slots;
        assert_eq!(paused.len(), away.decided.len());
        for (paused, away) in paused.iter().zip(&away.decided) {
            let reason = |text: &String| {
                text.replace("no scheduler was there in time", "paused: stocktaking")
            };
            let wanted = match &away.verdict {
                Verdict::Miss(text) => Verdict::Miss(reason(text)),
                other => other.clone(),
            };
            assert_eq!((paused.nominal, &paused.verdict), (away.nominal, &wanted));
        }
    }
}
