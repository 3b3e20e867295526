//! Schedules: every nominal time ends as one row, whatever happened, and as at most one command.

use std::collections::BTreeSet;

use serde_json::json;
use steadfast::{
    Backfill, Client, CommandStatus, CommandType, Contract, Cron, Cx, ListCommands, ListEvents,
    Misfire, Overlap, Result, Schedule, SlotStatus, Trigger, TriggerState, When,
};
use steadfast_core::schedule::parse_moment;
use steadfast_core::{CommandStatus as Status, Timestamp};

use super::{Clock, Fixture, case_table};

case_table![
    r001_a_nightly_schedule_makes_one_command_a_day,
    r062_an_outage_of_ten_slots_under_each_policy_and_for_each_cause,
    x8_a_missed_slot_is_told_even_under_skip,
    a_changed_cron_fires_nothing_of_the_past,
    a_cron_changed_while_paused_accounts_for_the_old_one,
    r010_two_schedulers_make_one_command_a_slot,
    an_earlier_command_that_is_not_over_is_waited_for_or_wins,
    a_slot_whose_command_is_there_collapses,
    x9_a_start_removes_what_is_no_longer_defined,
    r055_a_missed_day_is_filled_by_hand_and_only_once,
    a_schedule_tells_its_next_times_and_fires_when_asked,
    definitions_that_cannot_fire_are_refused,
];

pub(super) fn at(moment: &str) -> Timestamp {
    parse_moment(moment).unwrap()
}

pub(super) fn nightly(change: impl FnOnce(&mut Cron)) -> Trigger {
    let mut cron = Cron::cron("0 3 * * *");
    change(&mut cron);
    cron.dedupe_key_strategy = cron.misfire_policy;
    Trigger {
        trigger_id: "nightly".to_owned(),
        enabled: true,
        when: When::Cron(cron),
        command: CommandType {
            key_template: Some("sync_vendor_sales:{vendor_name}:{target_date}".to_owned()),
            ..CommandType::new("sync_vendor_sales")
        },
        payload: json!({ "vendor_name": "acme_sales", "target_date": "{target_date}" }),
    }
}

impl Fixture {
    fn timed(&self, clock: &std::sync::Arc<Clock>) -> Client {
        Client::over(clock.clone(), self.store.clone(), &self.workspace).unwrap()
    }
}

async fn commands(client: &Client) -> Vec<steadfast::CommandRow> {
    let page = ListCommands { limit: 1000, ..Default::default() };
    let mut all = client.commands(page).await.unwrap().commands;
    all.sort_by(|a, b| a.workflow_id.cmp(&b.workflow_id));
    all
}

/// What became of the slots, in short: `F`ired, `M`issed, `C`ompressed, `S`kipped, co`L`lapsed.
async fn short(client: &Client) -> String {
    let slots = client.schedule("nightly").slots(1000).await.unwrap();
    let letter = |slot: &steadfast::Slot| match slot.status {
        SlotStatus::Fired => 'F',
        SlotStatus::Missed => 'M',
        SlotStatus::Compressed => 'C',
        SlotStatus::Skipped => 'S',
        SlotStatus::Collapsed => 'L',
    };
    slots.iter().map(letter).collect()
}

async fn missed_events(client: &Client) -> usize {
    let event_type = Some("schedule.missed".to_owned());
    let which = ListEvents { event_type, limit: 1000, ..Default::default() };
    client.events(which).await.unwrap().len()
}

/// R1, R2, R3, R4, R58
async fn r001_a_nightly_schedule_makes_one_command_a_day(f: Fixture) {
    let clock = Clock::at("2026-05-31T12:00:00Z");
    let client = f.timed(&clock);
    client.define(&nightly(|_| {})).await.unwrap();
    for day in 1..=30 {
        clock.go(&format!("2026-06-{day:02}T03:00:20Z"));
        assert_eq!(client.tick().await.unwrap(), 1, "night {day}");
        assert_eq!(client.tick().await.unwrap(), 0, "once");
    }
    let all = commands(&client).await;
    assert_eq!(all.len(), 30);
    let first = &all[0];
    assert_eq!(
        (first.requested_by.as_str(), first.ingress.as_str()),
        ("system:scheduler", "scheduled_trigger")
    );
    assert_eq!(first.workflow_id, "activity-nightly:2026-06-01T03:00:00+00:00");
    let key = first.idempotency_key.as_deref().unwrap();
    assert!(key.ends_with("sync_vendor_sales:acme_sales:2026-05-31"), "{key}");
    assert!(first.payload.contains("\"target_date\":\"2026-05-31\""), "{}", first.payload);
    assert_eq!(first.status, Status::Queued);
    let slot = &client.schedule("nightly").slots(1).await.unwrap()[0];
    assert_eq!(slot.nominal_at, at("2026-06-30T03:00:00Z"));
    assert!((19_000_000..22_000_000).contains(&slot.lag_us), "the lag is kept: {}", slot.lag_us);
    assert_eq!(slot.command_id, all[29].command_id);
}

/// How the schedule comes to miss its slots.
#[derive(Debug, Clone, Copy)]
enum Cause {
    Down,
    Paused,
    Disabled,
}

/// R62, R63, R64, R66
async fn r062_an_outage_of_ten_slots_under_each_policy_and_for_each_cause(f: Fixture) {
    type Set = fn(&mut Cron);
    let policies: [(&str, Set, &str, usize); 5] = [
        ("skip", |_| {}, "MMMMMMMMMM", 0),
        (
            "latest",
            |c| (c.misfire_policy, c.catchup_limit) = (Misfire::Catchup, 1),
            "MMMMMMMMMF",
            1,
        ),
        (
            "catchup 4",
            |c| (c.misfire_policy, c.catchup_limit) = (Misfire::Catchup, 4),
            "MMMMMMFFFF",
            4,
        ),
        ("catchup", |c| c.misfire_policy = Misfire::Catchup, "FFFFFFFFFF", 10),
        ("compress", |c| c.misfire_policy = Misfire::Compress, "CCCCCCCCCF", 1),
    ];
    for cause in [Cause::Down, Cause::Paused, Cause::Disabled] {
        for (name, set, wanted, fired) in &policies {
            let workspace = format!("{}-{cause:?}-{name}", &f.workspace[..20]);
            let own = Fixture { workspace, ..f.clone() };
            let client = outage(&own, *set, cause).await;
            let what = format!("{cause:?}, {name}");
            assert_eq!(short(&client).await, format!("F{wanted}F"), "{what}");
            let all = commands(&client).await;
            assert_eq!(all.len(), fired + 2, "{what}");
            let ids: BTreeSet<_> = all.iter().map(|c| c.workflow_id.clone()).collect();
            assert_eq!(ids.len(), all.len(), "each with the id of its own nominal time");
            let missed = wanted.matches('M').count();
            assert_eq!(missed_events(&client).await, missed, "{what}");
            if *name == "compress" {
                let window = &all[1].context;
                let first = "2026-06-02T03:00:00+00:00";
                assert!(
                    window.contains(first),
                    "its window begins with the first missed: {window}"
                );
                assert!(all[1].workflow_id.ends_with("2026-06-11T03:00:00+00:00"));
            }
        }
    }
}

/// One slot in time, ten that pass by, one in time again.
async fn outage(f: &Fixture, set: fn(&mut Cron), cause: Cause) -> Client {
    let clock = Clock::at("2026-05-31T12:00:00Z");
    let client = f.timed(&clock);
    let mut trigger = nightly(set);
    client.define(&trigger).await.unwrap();
    clock.go("2026-06-01T03:00:10Z");
    client.tick().await.unwrap();
    clock.go("2026-06-01T18:00:00Z");
    let schedule = client.schedule("nightly");
    match cause {
        Cause::Down => {}
        Cause::Paused => drop(schedule.pause("audit").await.unwrap()),
        Cause::Disabled => {
            trigger.enabled = false;
            client.define(&trigger).await.unwrap();
        }
    }
    if !matches!(cause, Cause::Down) {
        clock.go("2026-06-06T03:00:10Z");
        assert_eq!(client.tick().await.unwrap(), 0, "{cause:?}: nothing fires meanwhile");
    }
    clock.go("2026-06-11T12:00:00Z");
    match cause {
        Cause::Down => {}
        Cause::Paused => drop(schedule.resume().await.unwrap()),
        Cause::Disabled => {
            trigger.enabled = true;
            client.define(&trigger).await.unwrap();
        }
    }
    // However often somebody looks, it is decided once.
    assert_eq!(client.tick().await.unwrap(), 10);
    assert_eq!(client.tick().await.unwrap(), 0);
    clock.go("2026-06-12T03:00:10Z");
    assert_eq!(client.tick().await.unwrap(), 1, "the next regular one fires");
    client
}

/// X8
async fn x8_a_missed_slot_is_told_even_under_skip(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let client = f.timed(&clock);
    client.define(&nightly(|_| {})).await.unwrap();
    client.schedule("nightly").pause("vendor migration").await.unwrap();
    clock.go("2026-06-02T12:00:00Z");
    client.schedule("nightly").resume().await.unwrap();
    client.tick().await.unwrap();
    let slots = client.schedule("nightly").slots(10).await.unwrap();
    assert_eq!(
        (slots[0].status, slots[0].reason.as_str()),
        (SlotStatus::Missed, "paused: vendor migration")
    );
    let which = ListEvents { limit: 10, ..Default::default() };
    let event = client.events(which).await.unwrap().remove(0);
    assert_eq!(event.event_type, "schedule.missed");
    let payload: serde_json::Value = serde_json::from_str(&event.payload).unwrap();
    assert_eq!(payload["scheduled_for"], "2026-06-02T03:00:00+00:00");
    assert_eq!(payload["trigger_id"], "nightly");
    assert_eq!(payload["reason"], "paused: vendor migration");
    // A minute late is in time.
    clock.go("2026-06-03T03:00:58Z");
    client.tick().await.unwrap();
    clock.go("2026-06-04T03:01:05Z");
    client.tick().await.unwrap();
    assert_eq!(short(&client).await, "MFM");
}

async fn a_changed_cron_fires_nothing_of_the_past(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let client = f.timed(&clock);
    client.define(&nightly(|_| {})).await.unwrap();
    clock.go("2026-06-02T03:00:10Z");
    client.tick().await.unwrap();
    clock.go("2026-06-02T12:00:00Z");
    let earlier = nightly(|c| c.cron_expression = "0 1 * * *".to_owned());
    client.define(&earlier).await.unwrap();
    assert_eq!(client.tick().await.unwrap(), 0, "01:00 of today is past");
    let info = client.schedule("nightly").info().await.unwrap();
    assert_eq!((info.revision, info.due_at), (2, at("2026-06-03T01:00:00Z")));
    // The same definition again changes nothing.
    client.define(&earlier).await.unwrap();
    assert_eq!(client.schedule("nightly").info().await.unwrap(), info);
    clock.go("2026-06-03T01:00:10Z");
    assert_eq!(client.tick().await.unwrap(), 1);
    // What was due under the old one when it was changed is decided by the old one.
    clock.go("2026-06-04T01:00:10Z");
    client.define(&nightly(|_| {})).await.unwrap();
    clock.go("2026-06-04T03:00:10Z");
    client.tick().await.unwrap();
    let nominal: Vec<_> = client.schedule("nightly").slots(10).await.unwrap();
    let nominal: Vec<_> = nominal.iter().map(|slot| slot.nominal_at.iso()).collect();
    let wanted = ["02T03", "03T01", "04T01", "04T03"];
    assert_eq!(nominal, wanted.map(|t| format!("2026-06-{t}:00:00+00:00")));
    // The day's second slot wants the same key: it collapses, and is no second command.
    assert_eq!(short(&client).await, "FFFL");
}

async fn a_cron_changed_while_paused_accounts_for_the_old_one(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let client = f.timed(&clock);
    let catchup = |expression: &'static str| {
        nightly(move |c| {
            c.cron_expression = expression.to_owned();
            c.misfire_policy = Misfire::Catchup;
        })
    };
    client.define(&catchup("0 3 * * *")).await.unwrap();
    client.schedule("nightly").pause("freeze").await.unwrap();
    clock.go("2026-06-03T12:00:00Z");
    client.define(&catchup("0 5 * * *")).await.unwrap();
    let info = client.schedule("nightly").info().await.unwrap();
    assert_eq!(info.state, TriggerState::Paused, "an edit does not resume it");
    clock.go("2026-06-05T12:00:00Z");
    client.schedule("nightly").resume().await.unwrap();
    client.tick().await.unwrap();
    assert_eq!(
        short(&client).await,
        "MMFF",
        "two of the old one, closed; two of the new one, caught up"
    );
    let reason = client.schedule("nightly").slots(9).await.unwrap()[0].reason.clone();
    assert_eq!(reason, "paused: freeze; the schedule was changed meanwhile");
}

/// R5, R10
async fn r010_two_schedulers_make_one_command_a_slot(f: Fixture) {
    let clock = Clock::at("2026-06-01T00:30:00Z");
    let (one, two) = (f.timed(&clock), f.timed(&clock));
    let hourly = nightly(|c| {
        c.cron_expression = "0 * * * *".to_owned();
        (c.misfire_policy, c.catchup_limit) = (Misfire::Catchup, 1000);
    });
    let hourly = Trigger {
        command: CommandType::new("tick"),
        payload: json!({ "at": "{scheduled_for}" }),
        ..hourly
    };
    one.define(&hourly).await.unwrap();
    for day in 2..=9 {
        clock.go(&format!("2026-06-{day:02}T00:30:00Z"));
        let (a, b, c) = futures::join!(one.tick(), two.tick(), one.tick());
        assert_eq!(a.unwrap() + b.unwrap() + c.unwrap(), 24);
    }
    assert_eq!(short(&one).await, "F".repeat(24 * 8));
    assert_eq!(commands(&one).await.len(), 24 * 8);
}

async fn an_earlier_command_that_is_not_over_is_waited_for_or_wins(f: Fixture) {
    for (overlap, wanted) in [(Overlap::Allow, "FF"), (Overlap::Skip, "FS"), (Overlap::Wait, "FF")]
    {
        let workspace = format!("{}-{overlap:?}", &f.workspace[..20]);
        let own = Fixture { workspace, ..f.clone() };
        let clock = Clock::at("2026-06-01T12:00:00Z");
        let client = own.timed(&clock);
        client.define(&nightly(|c| c.overlap = overlap)).await.unwrap();
        for day in 2..=3 {
            clock.go(&format!("2026-06-{day:02}T03:00:10Z"));
            client.tick().await.unwrap();
        }
        assert_eq!(short(&client).await, wanted, "{overlap:?}");
        let all = commands(&client).await;
        match overlap {
            Overlap::Allow => assert!(all.iter().all(|c| c.status == CommandStatus::Queued)),
            Overlap::Skip => {
                let slot = &client.schedule("nightly").slots(9).await.unwrap()[1];
                assert!(slot.reason.contains(&all[0].command_id), "{}", slot.reason);
            }
            Overlap::Wait => {
                assert_eq!(all[1].status, CommandStatus::Validated);
                let first = client.command::<()>(&*all[0].command_id);
                first.cancel("over", "user:1").await.unwrap();
                let second = client.command::<()>(&*all[1].command_id);
                assert_eq!(second.status().await.unwrap(), CommandStatus::Queued);
            }
        }
    }
}

async fn a_slot_whose_command_is_there_collapses(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let client = f.timed(&clock);
    client.define(&nightly(|_| {})).await.unwrap();
    let other = Trigger { trigger_id: "other".to_owned(), ..nightly(|_| {}) };
    client.define(&other).await.unwrap();
    clock.go("2026-06-02T03:00:10Z");
    assert_eq!(client.tick().await.unwrap(), 2);
    let all = commands(&client).await;
    assert_eq!(all.len(), 1, "both want the same key");
    assert_eq!(all[0].collapsed, 1);
    let mut statuses = Vec::new();
    for id in ["nightly", "other"] {
        let slot = client.schedule(id).slots(1).await.unwrap().remove(0);
        assert_eq!(slot.command_id, all[0].command_id);
        statuses.push(slot.status);
    }
    statuses.sort();
    assert_eq!(statuses, [SlotStatus::Fired, SlotStatus::Collapsed], "whoever was first");
    client.remove("other").await.unwrap();
    // The same key for something else is no silent no-op.
    let mut wrong = nightly(|_| {});
    wrong.trigger_id = "wrong".to_owned();
    wrong.payload["note"] = json!("different");
    clock.go("2026-06-02T12:00:00Z");
    client.define(&wrong).await.unwrap();
    clock.go("2026-06-03T03:00:10Z");
    client.tick().await.unwrap();
    let slot = &client.schedule("wrong").slots(1).await.unwrap()[0];
    let other = client.schedule("nightly").slots(1).await.unwrap()[0].clone();
    let statuses = [slot.status, other.status];
    assert!(
        statuses.contains(&SlotStatus::Missed) || slot.status == SlotStatus::Fired,
        "{statuses:?}"
    );
    assert!(slot.reason.contains("SF-0501") || other.reason.contains("SF-0501"), "{}", slot.reason);
}

async fn noop(_: Cx, _: serde_json::Value) -> Result<()> {
    Ok(())
}

/// X9
async fn x9_a_start_removes_what_is_no_longer_defined(f: Fixture) {
    let schedule = |id: &str| Schedule::new(id, "0 3 1 1 *").submits("noop", json!({}));
    let build = || f.fabric().command(noop, Contract::new());
    let ids = async || {
        let all = f.client().triggers().await.unwrap();
        let text = all.iter().map(|t| format!("{}:{}", t.trigger_id, t.state.as_str()));
        text.collect::<Vec<_>>().join(" ")
    };
    let first = build().schedule(schedule("a")).schedule(schedule("b"));
    first.schedule(schedule("c").enabled(false)).start().await.unwrap().shutdown().await;
    assert_eq!(ids().await, "a:active b:active c:disabled");
    let disabled = f.client().schedule("c").info().await.unwrap();
    assert_eq!(disabled.due_at, Timestamp::NEVER, "a disabled definition has no next fire");
    let second = build().schedule(schedule("b").enabled(false)).schedule(schedule("c"));
    second.start().await.unwrap().shutdown().await;
    assert_eq!(ids().await, "b:disabled c:active", "the orphan is gone");
    // Another source's definitions are its own.
    let other = build().source("other").schedule(schedule("d"));
    other.start().await.unwrap().shutdown().await;
    assert_eq!(ids().await, "b:disabled c:active d:active");
    let taken = build().schedule(schedule("d")).start().await.err().unwrap();
    assert_eq!(taken.code(), "SF-0609");
    // A paused one stays paused over a restart; a removed one begins anew.
    f.client().schedule("c").pause("x").await.unwrap();
    let again = build().schedule(schedule("c")).schedule(schedule("a"));
    again.start().await.unwrap().shutdown().await;
    assert_eq!(ids().await, "a:active c:paused d:active");
}

/// R55
async fn r055_a_missed_day_is_filled_by_hand_and_only_once(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let client = f.timed(&clock);
    client.define(&nightly(|_| {})).await.unwrap();
    clock.go("2026-06-02T03:00:10Z");
    client.tick().await.unwrap();
    clock.go("2026-06-05T12:00:00Z");
    client.tick().await.unwrap();
    assert_eq!(short(&client).await, "FMMM");
    let schedule = client.schedule("nightly");
    let mut which = Backfill {
        from: at("2026-06-01"),
        until: at("2026-06-04T23:00:00Z"),
        only_missing: true,
        dry_run: true,
    };
    let plan = schedule.backfill(&which, "user:ops").await.unwrap();
    let shown: Vec<_> = plan.iter().map(|line| (line.nominal.utc_date(0), line.before)).collect();
    let (fired, missed) = (Some(SlotStatus::Fired), Some(SlotStatus::Missed));
    let day = |n: u32| format!("2026-06-0{n}");
    assert_eq!(shown, [(day(1), None), (day(2), fired), (day(3), missed), (day(4), missed)]);
    assert_eq!(commands(&client).await.len(), 1, "a dry run changes nothing");
    which.dry_run = false;
    let filled = schedule.backfill(&which, "user:ops").await.unwrap();
    let new: Vec<_> =
        filled.iter().map(|line| line.command.as_ref().map(|(_, new)| *new)).collect();
    assert_eq!(new, [Some(true), None, Some(true), Some(true)]);
    assert_eq!(short(&client).await, "FFFFM", "a slot before the schedule's first is filled too");
    let again = schedule.backfill(&which, "user:ops").await.unwrap();
    assert!(again.iter().all(|line| line.command.is_none()), "a repetition does nothing");
    which.only_missing = false;
    let again = schedule.backfill(&which, "user:ops").await.unwrap();
    assert!(again.iter().all(|line| line.command.as_ref().is_some_and(|(_, new)| !new)));
    let all = commands(&client).await;
    assert_eq!(all.len(), 4);
    assert!(all[0].idempotency_key.as_ref().unwrap().ends_with("acme_sales:2026-05-31"));
    let run = client.get(&all[0].workflow_id).await.unwrap();
    assert!(run.priority > 0, "behind fresh ones");
    which.until = at("2026-05-01");
    assert_eq!(schedule.backfill(&which, "user:ops").await.unwrap_err().code(), "SF-0612");
}

async fn a_schedule_tells_its_next_times_and_fires_when_asked(f: Fixture) {
    let clock = Clock::at("2026-03-28T12:00:00Z");
    let client = f.timed(&clock);
    let berlin = nightly(|c| {
        c.cron_expression = "30 2 * * *".to_owned();
        c.timezone = "Europe/Berlin".to_owned();
    });
    client.define(&berlin).await.unwrap();
    let schedule = client.schedule("nightly");
    let next: Vec<_> = schedule.next(3).await.unwrap().iter().map(|t| t.iso()).collect();
    // 02:30 does not exist on the 29th: it fires when the clocks have jumped, at 03:00 there.
    let wanted = ["29T01:00", "30T00:30", "31T00:30"];
    assert_eq!(next, wanted.map(|t| format!("2026-03-{t}:00+00:00")));
    let (id, new) = schedule.trigger("user:ops").await.unwrap();
    assert!(new);
    let row = client.command::<()>(&*id).info().await.unwrap().command;
    assert_eq!((row.requested_by.as_str(), row.ingress.as_str()), ("user:ops", "user_request"));
    let (again, new) = schedule.trigger("user:ops").await.unwrap();
    assert_eq!((again, new), (id, false), "the same day is the same command");
    assert_eq!(short(&client).await, "", "its own slots are not touched");
    assert_eq!(client.schedule("x").info().await.unwrap_err().code(), "SF-0608");
}

async fn definitions_that_cannot_fire_are_refused(f: Fixture) {
    let build = |schedule: Schedule| f.fabric().command(noop, Contract::new()).schedule(schedule);
    let refused = async |schedule: Schedule| {
        let error = build(schedule).start().await.err().expect("it is refused");
        format!("{} {}", error.code(), error.message())
    };
    let daily = |id: &str| Schedule::new(id, "0 3 * * *");
    let text = refused(daily("a")).await;
    assert!(text.starts_with("SF-0603") && text.contains("submits nothing"), "{text}");
    let text = refused(daily("a").submits("nope", json!({}))).await;
    assert!(text.starts_with("SF-0503") && text.contains("there are: noop"), "{text}");
    let text = refused(daily("a").submits("noop", json!({ "d": "{tomorrow}" }))).await;
    assert!(text.starts_with("SF-0504") && text.contains("{tomorrow}"), "{text}");
    let text = refused(daily("a").zone("Mars/Base").submits("noop", json!({}))).await;
    assert!(text.starts_with("SF-0602") && text.contains("Mars/Base"), "{text}");
    let none = f.client().triggers().await.unwrap();
    assert_eq!(none, [], "nothing was defined");
}
