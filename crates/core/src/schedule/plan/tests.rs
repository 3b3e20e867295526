//! Plans: outages under each policy, taken whole and in steps.

use super::*;
use crate::schedule::{Schedule, parse_moment};

fn at(text: &str) -> Timestamp {
    parse_moment(text).unwrap()
}

fn calendar(change: impl FnOnce(&mut Schedule)) -> Calendar {
    let mut schedule = Schedule::cron("0 3 * * *");
    change(&mut schedule);
    schedule.dedupe_key_strategy = schedule.misfire_policy;
    Calendar::new(&schedule).unwrap()
}

fn from(cursor: &str) -> Progress {
    Progress { cursor: at(cursor), gap: None, absence: None, last: false }
}

/// The verdicts in short: `F` fired, `C` compressed, `M` missed.
fn short(plan: &Plan) -> String {
    let letter = |slot: &Planned| match slot.verdict {
        Verdict::Fire(_) => 'F',
        Verdict::Compress(_) => 'C',
        Verdict::Miss(_) => 'M',
    };
    plan.slots.iter().map(letter).collect()
}

/// R62, R63, R64
#[test]
fn r062_an_outage_of_ten_slots_under_each_policy() {
    // Down from the evening of the 1st until noon of the 11th: ten nights.
    let (progress, now) = (from("2026-06-01T18:00:00Z"), at("2026-06-11T12:00:00Z"));
    let planned = |change: fn(&mut Schedule)| calendar(change).plan("t", &progress, now, 100);
    let skip = planned(|_| {});
    assert_eq!(short(&skip), "MMMMMMMMMM");
    assert_eq!(skip.due, at("2026-06-12T03:00:00Z"), "the next regular one fires");
    assert_eq!(skip.cursor, at("2026-06-11T03:00:00Z"));
    let all = planned(|s| s.misfire_policy = Misfire::Catchup);
    assert_eq!(short(&all), "FFFFFFFFFF");
    let four = planned(|s| (s.misfire_policy, s.catchup_limit) = (Misfire::Catchup, 4));
    assert_eq!(short(&four), "MMMMMMFFFF", "the latest four, oldest first");
    let window = planned(|s| {
        s.misfire_policy = Misfire::Catchup;
        s.catchup_window_seconds = Some(2 * 86_400);
    });
    assert_eq!(short(&window), "MMMMMMMMFF");
    let one = planned(|s| s.misfire_policy = Misfire::Compress);
    assert_eq!(short(&one), "CCCCCCCCCF");
    let (first, last) = (at("2026-06-02T03:00:00Z"), at("2026-06-11T03:00:00Z"));
    assert_eq!(one.slots[9].verdict, Verdict::Fire(Some((first, last))));
    assert_eq!(one.slots[0].verdict, Verdict::Compress(last));
}

/// X8
#[test]
fn x8_a_slot_is_in_time_for_a_minute_and_joins_a_window_when_it_is_due() {
    let progress = from("2026-06-01T18:00:00Z");
    let skip = calendar(|_| {});
    assert_eq!(short(&skip.plan("t", &progress, at("2026-06-02T03:01:00Z"), 9)), "F");
    assert_eq!(short(&skip.plan("t", &progress, at("2026-06-02T03:01:01Z"), 9)), "M");
    assert_eq!(short(&skip.plan("t", &progress, at("2026-06-02T02:59:59Z"), 9)), "");
    let now = at("2026-06-04T03:00:10Z");
    assert_eq!(short(&skip.plan("t", &progress, now, 9)), "MMF");
    let compress = calendar(|s| s.misfire_policy = Misfire::Compress);
    assert_eq!(short(&compress.plan("t", &progress, now, 9)), "CCF");
    let only = compress.plan("t", &progress, at("2026-06-02T03:00:10Z"), 9);
    assert_eq!(only.slots[0].verdict, Verdict::Fire(None), "in time, it covers itself alone");
}

#[test]
fn a_long_gap_is_taken_in_steps_with_one_end() {
    let hourly = calendar(|s| {
        s.cron_expression = "0 * * * *".to_owned();
        s.misfire_policy = Misfire::Compress;
    });
    let mut progress = from("2026-06-01T00:00:00Z");
    let (mut now, mut all) = (at("2026-06-03T00:30:00Z"), String::new());
    let whole = short(&hourly.plan("t", &progress, now, 1000));
    loop {
        let plan = hourly.plan("t", &progress, now, 7);
        all.push_str(&short(&plan));
        progress.cursor = plan.cursor;
        progress.gap = plan.gap;
        if plan.gap.is_none() {
            break;
        }
        assert_eq!(plan.due, now);
        now = now.after(Duration::from_secs(1200));
    }
    assert_eq!(all, whole, "although the clock went on meanwhile");
    assert_eq!(whole, format!("{}F", "C".repeat(47)));
}

#[test]
fn the_reason_names_a_pause_where_there_was_one() {
    let absence = Absence {
        from: at("2026-06-03T00:00:00Z"),
        until: at("2026-06-04T00:00:00Z"),
        reason: "paused: audit".to_owned(),
    };
    let progress = Progress { absence: Some(absence), ..from("2026-06-01T18:00:00Z") };
    let plan = calendar(|_| {}).plan("t", &progress, at("2026-06-04T12:00:00Z"), 9);
    let reasons: Vec<_> = plan.slots.iter().map(|slot| format!("{:?}", slot.verdict)).collect();
    assert_eq!(
        reasons,
        [
            "Miss(\"no scheduler was there in time\")",
            "Miss(\"paused: audit\")",
            "Miss(\"no scheduler was there in time\")"
        ]
    );
}

#[test]
fn start_end_and_jitter_hold() {
    let within = calendar(|s| {
        s.start_at = Some(at("2026-06-02T03:00:00Z"));
        s.end_at = Some(at("2026-06-03T03:00:00Z"));
    });
    let progress = from("2026-05-01T00:00:00Z");
    let plan = within.plan("t", &progress, at("2026-06-03T03:00:30Z"), 9);
    assert_eq!((short(&plan).as_str(), plan.due), ("MF", Timestamp::NEVER));
    let jittery = calendar(|s| s.jitter_seconds = 600);
    let nominal = at("2026-06-02T03:00:00Z");
    let due = jittery.due("t", nominal);
    assert!(nominal <= due && due < nominal.after(Duration::from_secs(600)));
    assert_ne!(due, jittery.due("u", nominal), "each trigger has its own share");
    let before =
        jittery.plan("t", &from("2026-06-02T00:00:00Z"), due.before(Duration::from_micros(1)), 9);
    assert_eq!((short(&before).as_str(), before.due), ("", due));
    assert_eq!(short(&jittery.plan("t", &from("2026-06-02T00:00:00Z"), due, 9)), "F");
}

/// R65
#[test]
fn r065_a_schedule_that_does_not_fit_together_is_refused_by_its_field() {
    let refused = |change: fn(&mut Schedule)| {
        let mut schedule = Schedule::cron("0 3 * * *");
        change(&mut schedule);
        let error = Calendar::new(&schedule).unwrap_err();
        format!("{} {}", error.code(), error.message())
    };
    for (change, wanted) in [
        ((|s| s.misfire_policy = Misfire::Catchup) as fn(&mut Schedule), "SF-0604 misfire_policy"),
        (|s| s.cron_expression = "61 * * * *".to_owned(), "SF-0601 cron \"61 * * * *\""),
        (|s| s.cron_expression = "0 0 30 2 *".to_owned(), "SF-0601 cron \"0 0 30 2 *\": never"),
        (|s| s.cron_expression = String::new(), "SF-0601"),
        (|s| s.timezone = "Berlin".to_owned(), "SF-0602 timezone \"Berlin\""),
        (|s| s.grace_seconds = 90_000, "SF-0603 grace_seconds"),
        (
            |s| {
                s.start_at = Some(Timestamp::from_micros(2));
                s.end_at = Some(Timestamp::from_micros(1));
            },
            "SF-0603 end_at",
        ),
    ] {
        let text = refused(change);
        assert!(text.starts_with(wanted), "{text}");
    }
}

#[test]
fn a_last_look_waits_for_no_jitter_and_its_gap_stays_so() {
    let hourly = calendar(|s| {
        s.cron_expression = "0 * * * *".to_owned();
        (s.jitter_seconds, s.misfire_policy) = (86_400, Misfire::Compress);
    });
    let (progress, now) = (from("2026-06-01T00:00:00Z"), at("2026-06-04T00:30:00Z"));
    let usual = short(&hourly.plan("t", &progress, now, 1000));
    assert!(usual.len() < 72, "some are not due: {usual}");
    let last = Progress { last: true, ..progress.clone() };
    let whole = short(&hourly.plan("t", &last, now, 1000));
    assert_eq!(whole, format!("{}F", "C".repeat(71)), "up to midnight, one of them in time");
    // Whoever looked last may be gone before he was done: the next one goes on as he began.
    let begun = hourly.plan("t", &last, now, 10);
    let progress = Progress { cursor: begun.cursor, gap: begun.gap, ..progress };
    let rest = hourly.plan("t", &progress, now.after(Duration::from_secs(3600)), 1000);
    assert_eq!(short(&begun) + &short(&rest), whole);
    assert_eq!(rest.cursor, at("2026-06-04T00:00:00Z"));
    // And who looks last ends what somebody began before, and then looks again.
    let begun = hourly.plan("t", &from("2026-06-01T00:00:00Z"), now, 10);
    let last = Progress { cursor: begun.cursor, gap: begun.gap, ..last };
    let rest = hourly.plan("t", &last, now, 1000);
    assert_eq!(short(&begun) + &short(&rest), usual);
    assert_eq!((rest.gap, rest.due), (None, now), "there is more");
}
