//! Several programs in one workspace, and people beside them: who fires what, who removes what, and
//! what is filled in by hand.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    Backfill, Client, CommandStatus, CommandType, Contract, Cron, Cx, Envelope, EventMatch,
    Governance, Ingress, ListCommands, ListEvents, Misfire, Overlap, Result, Schedule, SlotStatus,
    Trigger, TriggerState, When,
};

use super::schedules::{self, at};
use super::{Clock, Fixture, case_table, until};

case_table![
    r010_only_who_has_its_policies_fires_a_governed_schedule,
    r107_a_trigger_is_judged_by_the_contract_of_who_fires_it,
    r107_an_operator_who_fires_a_schedule_is_judged_as_himself,
    x9_a_program_removes_no_schedules_of_another,
    two_definitions_of_one_id_are_refused,
    r055_what_was_filled_in_by_hand_was_not_missed,
    r055_what_a_later_slot_has_covered_is_not_missing,
    r064_what_covers_an_outage_waits_where_others_are_left_out,
    r063_a_catch_up_runs_its_slots_one_after_the_other,
    overlap_looks_at_every_slot_that_is_not_over,
    r066_a_new_payload_while_paused_loses_no_slot,
    r067_an_event_stays_the_same_when_its_trigger_is_edited,
    r068_senders_number_their_events_each_for_themselves,
    an_event_that_does_not_fit_the_command_is_refused,
    x2_parents_that_end_at_once_release_their_child_once,
    a_page_of_what_others_decide_holds_nobody_up,
    a_pause_outlasts_a_definition_that_was_disabled,
    r066_a_scheduler_that_is_late_every_night_goes_by_the_policy,
];

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Night {
    date: String,
}

async fn pull(_: Cx, night: Night) -> Result<String> {
    Ok(night.date)
}

async fn other(_: Cx, _: Value) -> Result<()> {
    Ok(())
}

fn governed() -> Contract {
    Contract::new().policies(["permission"]).requires(["warehouse.write"])
}

fn each_second() -> Schedule {
    Schedule::new("tick", "* * * * * *").submits("pull", json!({ "date": "{scheduled_for}" }))
}

fn allowed() -> Governance {
    Governance::new().grant("system:scheduler", ["warehouse.write"])
}

/// R10, R107: others in the workspace do not know the rules, and leave it to those who do.
async fn r010_only_who_has_its_policies_fires_a_governed_schedule(f: Fixture) {
    let stranger = f.fabric().command(other, Contract::new()).start().await.unwrap();
    let owner = f.fabric().command(pull, governed()).govern(allowed()).schedule(each_second());
    let owner = owner.start().await.unwrap();
    let bare = f.client();
    let fired = async || {
        bare.tick().await.unwrap();
        stranger.tick().await.unwrap();
        let slots = owner.schedule("tick").slots(10).await.unwrap();
        assert!(slots.iter().all(|slot| slot.status != SlotStatus::Missed), "{slots:?}");
        slots.iter().filter(|slot| slot.status == SlotStatus::Fired).count() >= 2
    };
    until("it has fired twice", fired).await;
    owner.shutdown().await;
    stranger.shutdown().await;
    let page = ListCommands { limit: 10, ..Default::default() };
    for row in bare.commands(page).await.unwrap().commands {
        assert!(row.status != CommandStatus::Failed, "{row:?}");
    }
}

/// R107: whoever can define a trigger cannot leave the policies out of it.
async fn r107_a_trigger_is_judged_by_the_contract_of_who_fires_it(f: Fixture) {
    let fabric = f.fabric().command(pull, governed()).start().await.unwrap();
    let trigger = Trigger {
        trigger_id: "sly".to_owned(),
        enabled: true,
        when: When::Cron(Cron::cron("* * * * * *")),
        command: CommandType::new("pull"),
        payload: json!({ "date": "{scheduled_for}" }),
    };
    f.client().define(&trigger).await.unwrap();
    let page = || ListCommands { limit: 10, ..Default::default() };
    let judged = async || !fabric.commands(page()).await.unwrap().commands.is_empty();
    until("it was judged", judged).await;
    fabric.shutdown().await;
    for row in fabric.commands(page()).await.unwrap().commands {
        assert_eq!(row.status, CommandStatus::Failed, "nobody granted it: {row:?}");
    }
}

async fn ids(f: &Fixture) -> String {
    let all = f.client().triggers().await.unwrap();
    let ids: Vec<_> = all.iter().map(|t| t.trigger_id.clone()).collect();
    ids.join(" ")
}

/// X9
/// R107: the policies see who fires a schedule by hand, and the run's context keeps it.
async fn r107_an_operator_who_fires_a_schedule_is_judged_as_himself(f: Fixture) {
    let allowed = Governance::new().grant("user:ops", ["warehouse.write"]);
    let yearly =
        Schedule::new("yearly", "0 0 1 1 *").submits("pull", json!({ "date": "{scheduled_for}" }));
    let owner = f.fabric().command(pull, governed()).govern(allowed).schedule(yearly);
    let owner = owner.start().await.unwrap();
    let yearly = owner.schedule("yearly");
    let (ops, _) = yearly.trigger("user:ops").await.unwrap();
    let ops = owner.command::<String>(ops);
    ops.result().await.unwrap();
    let row = ops.info().await.unwrap().command;
    assert_eq!(row.requested_by, "user:ops");
    assert!(row.context.contains("\"requested_by\":\"user:ops\""), "{}", row.context);
    let year = days("2024-06-01T00:00:00Z", "2025-06-01T00:00:00Z");
    let filled = yearly.backfill(&year, "user:guest").await.unwrap();
    let (id, new) = filled[0].command.clone().unwrap();
    assert!(new);
    let denied = owner.command::<String>(id);
    assert_eq!(denied.result().await.unwrap_err().code(), "SF-0801");
    assert_eq!(denied.info().await.unwrap().command.requested_by, "user:guest");
    owner.shutdown().await;
}

async fn x9_a_program_removes_no_schedules_of_another(f: Fixture) {
    let yearly = |id: &str, of: &str| {
        let payload = json!({ "date": "{target_date}" });
        Schedule::new(id, "0 3 1 1 *").submits(of, payload)
    };
    let first = f.fabric().command(pull, Contract::new()).schedule(yearly("a", "pull"));
    first.start().await.unwrap().shutdown().await;
    // The same commands, and nothing on a schedule: a program that only takes requests.
    let door = f.fabric().command(pull, Contract::new()).command(other, Contract::new());
    door.start().await.unwrap().shutdown().await;
    assert_eq!(ids(&f).await, "a");
    let second = f.fabric().command(other, Contract::new()).schedule(yearly("b", "other"));
    second.start().await.unwrap().shutdown().await;
    assert_eq!(ids(&f).await, "a b");
    // With a name of its own, a program removes also its last one.
    let named = || f.fabric().command(other, Contract::new()).source("night shift");
    named().schedule(yearly("c", "other")).start().await.unwrap().shutdown().await;
    assert_eq!(ids(&f).await, "a b c");
    named().start().await.unwrap().shutdown().await;
    assert_eq!(ids(&f).await, "a b");
}

async fn two_definitions_of_one_id_are_refused(f: Fixture) {
    let daily = || Schedule::new("a", "0 3 * * *").submits("other", json!({}));
    let twice = f.fabric().command(other, Contract::new()).schedule(daily()).schedule(daily());
    let error = twice.start().await.err().expect("it is refused");
    assert_eq!(error.code(), "SF-0108", "{error}");
    assert_eq!(ids(&f).await, "");
}

/// The usual schedule, for a command without a key.
fn nightly(change: impl FnOnce(&mut Cron)) -> Trigger {
    let (command, payload) = (CommandType::new("pull"), json!({ "date": "{target_date}" }));
    Trigger { command, payload, ..schedules::nightly(change) }
}

/// A night shift that begins on the first of June, and its clock.
async fn shift(f: &Fixture, change: impl FnOnce(&mut Cron)) -> (Client, std::sync::Arc<Clock>) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let client = Client::over(clock.clone(), f.store.clone(), &f.workspace).unwrap();
    client.define(&nightly(change)).await.unwrap();
    (client, clock)
}

async fn statuses(client: &Client) -> String {
    let slots = client.schedule("nightly").slots(100).await.unwrap();
    let letter = |slot: &steadfast::Slot| slot.status.as_str().chars().next().unwrap();
    slots.iter().map(letter).collect()
}

async fn missed(client: &Client) -> usize {
    let event_type = Some("schedule.missed".to_owned());
    let which = ListEvents { event_type, limit: 1000, ..Default::default() };
    client.events(which).await.unwrap().len()
}

fn days(from: &str, until: &str) -> Backfill {
    Backfill { from: at(from), until: at(until), only_missing: true, dry_run: false }
}

/// R55, X8: nobody is woken for a night that somebody has filled in.
async fn r055_what_was_filled_in_by_hand_was_not_missed(f: Fixture) {
    let (client, clock) = shift(&f, |_| {}).await;
    clock.go("2026-06-04T12:00:00Z");
    let schedule = client.schedule("nightly");
    let which = days("2026-06-02T00:00:00Z", "2026-06-03T12:00:00Z");
    schedule.backfill(&which, "user:ops").await.unwrap();
    client.tick().await.unwrap();
    assert_eq!(statuses(&client).await, "ffm");
    assert_eq!(missed(&client).await, 1);
    let future = days("2026-07-01T00:00:00Z", "2026-07-02T00:00:00Z");
    assert_eq!(schedule.backfill(&future, "user:ops").await.unwrap_err().code(), "SF-0612");
    client.remove("nightly").await.unwrap();
    for refused in [
        schedule.backfill(&which, "user:ops").await.err(),
        schedule.trigger("user:ops").await.err(),
    ] {
        assert_eq!(refused.expect("it is refused").code(), "SF-0610");
    }
}

/// R55, R64
async fn r055_what_a_later_slot_has_covered_is_not_missing(f: Fixture) {
    let (client, clock) = shift(&f, |c| c.misfire_policy = Misfire::Compress).await;
    clock.go("2026-06-05T12:00:00Z");
    client.tick().await.unwrap();
    assert_eq!(statuses(&client).await, "cccf");
    let which = days("2026-06-02T00:00:00Z", "2026-06-03T12:00:00Z");
    let filled = client.schedule("nightly").backfill(&which, "user:ops").await.unwrap();
    assert!(filled.iter().all(|line| line.command.is_none()), "{filled:?}");
}

/// R64: the slots before it say that it covers them, so it must take place.
async fn r064_what_covers_an_outage_waits_where_others_are_left_out(f: Fixture) {
    let (client, clock) = shift(&f, |c| {
        (c.misfire_policy, c.overlap) = (Misfire::Compress, Overlap::Skip);
    })
    .await;
    clock.go("2026-06-02T03:00:10Z");
    client.tick().await.unwrap();
    // Nobody carries the first one out.
    clock.go("2026-06-05T12:00:00Z");
    client.tick().await.unwrap();
    assert_eq!(statuses(&client).await, "fccf");
    let last = client.schedule("nightly").slots(1).await.unwrap().remove(0);
    let command = client.command::<()>(last.command_id).info().await.unwrap();
    assert_eq!(command.after.len(), 1, "it waits for the first");
}

/// R63: where slots are left out while an earlier one is not over, those of a catch-up wait: nobody
/// would make up for them again. The night in time is left out as the schedule says.
async fn r063_a_catch_up_runs_its_slots_one_after_the_other(f: Fixture) {
    let (client, clock) = shift(&f, |c| {
        (c.misfire_policy, c.catchup_limit, c.overlap) = (Misfire::Catchup, 3, Overlap::Skip);
    })
    .await;
    clock.go("2026-06-06T12:00:00Z");
    client.tick().await.unwrap();
    assert_eq!(statuses(&client).await, "mmfff");
    let slots = client.schedule("nightly").slots(3).await.unwrap();
    let mut before = Vec::new();
    for slot in slots {
        let after = client.command::<()>(slot.command_id.clone()).info().await.unwrap().after;
        let mut after: Vec<_> = after.into_iter().map(|parent| parent.command_id).collect();
        after.sort();
        before.sort();
        assert_eq!(after, before, "each waits for all before it");
        before.push(slot.command_id);
    }
    clock.go("2026-06-07T03:00:10Z");
    client.tick().await.unwrap();
    assert_eq!(statuses(&client).await, "mmfffs");
    assert_eq!(missed(&client).await, 2, "one event for each that was dropped");
}

async fn overlap_looks_at_every_slot_that_is_not_over(f: Fixture) {
    let (client, clock) = shift(&f, |c| c.overlap = Overlap::Wait).await;
    let mut made: Vec<String> = Vec::new();
    for day in 2..=4 {
        clock.go(&format!("2026-06-{day:02}T03:00:10Z"));
        client.tick().await.unwrap();
        let slot = client.schedule("nightly").slots(1).await.unwrap().remove(0);
        let command = client.command::<()>(slot.command_id);
        let after = command.info().await.unwrap().after;
        let after: Vec<_> = after.into_iter().map(|parent| parent.command_id).collect();
        match day {
            2 => assert_eq!(after, [] as [&str; 0]),
            // The second one waits for the first and is stopped; the first is not over by that.
            3 => drop(command.cancel("", "user:ops").await.unwrap()),
            _ => assert_eq!(after, [made[0].clone()], "{made:?}"),
        }
        made.push(command.id().to_owned());
    }
}

/// R66: what a schedule does may change while it is paused; when it should have fired, has not.
async fn r066_a_new_payload_while_paused_loses_no_slot(f: Fixture) {
    let catch_up = |c: &mut Cron| (c.misfire_policy, c.catchup_limit) = (Misfire::Catchup, 10);
    let (client, clock) = shift(&f, catch_up).await;
    client.schedule("nightly").pause("deploy").await.unwrap();
    clock.go("2026-06-04T12:00:00Z");
    let mut changed = nightly(catch_up);
    changed.payload["note"] = json!("new");
    client.define(&changed).await.unwrap();
    client.schedule("nightly").resume().await.unwrap();
    client.tick().await.unwrap();
    assert_eq!(statuses(&client).await, "fff");
}

fn event(source: &str, id: &str, date: &Value) -> Envelope {
    let event = json!({
        "specversion": "1.0", "id": id, "source": source, "type": "night.over",
        "data": { "date": date },
    });
    Envelope::read(&event).unwrap()
}

fn on_event(extra: &str) -> Trigger {
    Trigger {
        trigger_id: "after".to_owned(),
        enabled: true,
        when: When::Event(EventMatch { event_type: "night.over".to_owned(), filter: None }),
        command: CommandType::new("pull"),
        payload: json!({ "date": "{event.payload.date}", "extra": extra }),
    }
}

/// R59, R67
async fn r067_an_event_stays_the_same_when_its_trigger_is_edited(f: Fixture) {
    let client = f.client();
    client.define(&on_event("one")).await.unwrap();
    let come = event("/a", "1", &json!("2026-06-01"));
    let first = client.deliver(&come, Ingress::ConnectorEvent).await.unwrap();
    client.define(&on_event("two")).await.unwrap();
    let again = client.deliver(&come, Ingress::ConnectorEvent).await.unwrap();
    assert!(again.refused.is_empty(), "{:?}", again.refused);
    assert_eq!(again.commands[0].1, first.commands[0].1);
    assert!(!again.commands[0].2, "it is a repetition");
}

/// R68
async fn r068_senders_number_their_events_each_for_themselves(f: Fixture) {
    let client = f.client();
    client.define(&on_event("one")).await.unwrap();
    for source in ["/a", "/b", "/a"] {
        let come = event(source, "1", &json!(source));
        client.deliver(&come, Ingress::ConnectorEvent).await.unwrap();
    }
    let page = ListCommands { limit: 10, ..Default::default() };
    assert_eq!(client.commands(page).await.unwrap().commands.len(), 2);
}

async fn an_event_that_does_not_fit_the_command_is_refused(f: Fixture) {
    let fabric = f.fabric().command(pull, Contract::new()).start().await.unwrap();
    fabric.define(&on_event("one")).await.unwrap();
    let wrong = event("/a", "1", &json!(7));
    let routed = fabric.deliver(&wrong, Ingress::ConnectorEvent).await.unwrap();
    assert_eq!(routed.commands, []);
    assert_eq!(routed.refused.len(), 1);
    // On record, and once, however often it comes.
    fabric.deliver(&wrong, Ingress::ConnectorEvent).await.unwrap();
    let unreadable = Envelope::read_slice(b"garbage").unwrap_err();
    fabric.rejected("shop", b"garbage", &unreadable).await.unwrap();
    let event_type = Some("ingress.rejected".to_owned());
    let which = ListEvents { event_type, limit: 10, ..Default::default() };
    let told = fabric.events(which).await.unwrap();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|event| event.purpose == "audit"));
    let page = ListCommands { limit: 10, ..Default::default() };
    assert_eq!(fabric.commands(page).await.unwrap().commands, []);
    for wrong in ["*", "night*", "*.over"] {
        let mut trigger = on_event("one");
        trigger.when = When::Event(EventMatch { event_type: wrong.to_owned(), filter: None });
        assert_eq!(fabric.define(&trigger).await.unwrap_err().code(), "SF-0703", "{wrong}");
    }
    fabric.shutdown().await;
}

/// X2: each child waits for two, which two workers end in the same moment: whoever is second must
/// see it.
async fn x2_parents_that_end_at_once_release_their_child_once(f: Fixture) {
    let build = || f.fabric().command(pull, Contract::new());
    let (one, two) = (build().start().await.unwrap(), build().start().await.unwrap());
    let mut children = Vec::new();
    for n in 0..12 {
        let parents = [0, 1].map(|which| Night { date: format!("{n}.{which}") });
        let first = one.submit(pull, parents[0].clone()).await.unwrap();
        let second = two.submit(pull, parents[1].clone()).await.unwrap();
        let child = Night { date: format!("child {n}") };
        let child = one.submit(pull, child).after(first.id()).after(second.id()).await.unwrap();
        children.push(child);
    }
    for (n, child) in children.into_iter().enumerate() {
        assert_eq!(child.result().await.unwrap(), format!("child {n}"));
        let events = child.events().await.unwrap();
        let queued = events.iter().filter(|event| event.event_type == "command.queued").count();
        assert_eq!(queued, 1, "released once");
    }
    one.shutdown().await;
    two.shutdown().await;
}

/// More of them than a page has, and due before ours.
async fn a_page_of_what_others_decide_holds_nobody_up(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let client = Client::over(clock.clone(), f.store.clone(), &f.workspace).unwrap();
    let mut governed = schedules::nightly(|cron| cron.cron_expression = "0 3 * * *".to_owned());
    governed.command.policies = vec!["permission".to_owned()];
    let define = |n: usize| {
        let trigger = Trigger { trigger_id: format!("theirs-{n}"), ..governed.clone() };
        let client = client.clone();
        async move { client.define(&trigger).await.unwrap() }
    };
    futures::future::join_all((0..1001).map(define)).await;
    let ours = schedules::nightly(|cron| cron.cron_expression = "0 4 * * *".to_owned());
    client.define(&ours).await.unwrap();
    clock.go("2026-06-02T04:00:10Z");
    assert_eq!(client.tick().await.unwrap(), 1);
    let slots = client.schedule("nightly").slots(10).await.unwrap();
    assert_eq!(slots[0].status, SlotStatus::Fired);
    let theirs = client.schedule("theirs-7").slots(10).await.unwrap();
    assert!(theirs.is_empty(), "they are still to be decided by who may: {theirs:?}");
}

/// Who paused it did not ask for it to go on with the next release.
async fn a_pause_outlasts_a_definition_that_was_disabled(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let client = Client::over(clock.clone(), f.store.clone(), &f.workspace).unwrap();
    let mut trigger = schedules::nightly(|_| {});
    client.define(&trigger).await.unwrap();
    client.schedule("nightly").pause("audit").await.unwrap();
    for enabled in [false, true] {
        trigger.enabled = enabled;
        client.define(&trigger).await.unwrap();
    }
    let row = client.triggers().await.unwrap().remove(0);
    assert_eq!((row.state, row.reason.as_str()), (TriggerState::Paused, "paused: audit"));
    clock.go("2026-06-03T12:00:00Z");
    assert_eq!(client.tick().await.unwrap(), 0);
    client.schedule("nightly").resume().await.unwrap();
    client.tick().await.unwrap();
    assert_eq!(client.schedule("nightly").slots(10).await.unwrap().len(), 2, "accounted for");
}

/// R66: overload. A scheduler that runs, and comes two hours late every night, past any grace.
async fn r066_a_scheduler_that_is_late_every_night_goes_by_the_policy(f: Fixture) {
    let policies = [
        (Misfire::Skip, SlotStatus::Missed),
        (Misfire::Catchup, SlotStatus::Fired),
        (Misfire::Compress, SlotStatus::Fired),
    ];
    for (policy, wanted) in policies {
        let workspace = format!("{}-{policy:?}", &f.workspace[..20]);
        let own = Fixture { workspace, ..f.clone() };
        let clock = Clock::at("2026-06-01T12:00:00Z");
        let client = Client::over(clock.clone(), own.store.clone(), &own.workspace).unwrap();
        client.define(&schedules::nightly(|cron| cron.misfire_policy = policy)).await.unwrap();
        for day in 2..=11 {
            clock.go(&format!("2026-06-{day:02}T05:00:00Z"));
            assert_eq!(client.tick().await.unwrap(), 1, "{policy:?}");
        }
        let slots = client.schedule("nightly").slots(20).await.unwrap();
        // Two hours by the database's clock, which is not quite this one.
        let late = |slot: &steadfast::Slot| slot.lag_us >= 7_199_000_000;
        assert!(slots.len() == 10 && slots.iter().all(late), "{policy:?}: {slots:?}");
        assert!(slots.iter().all(|slot| slot.status == wanted), "{policy:?}: {slots:?}");
        let page = ListCommands { limit: 20, ..Default::default() };
        let made = client.commands(page).await.unwrap().commands;
        let days: std::collections::BTreeSet<_> = made.iter().map(|row| &row.payload).collect();
        let fired = if wanted == SlotStatus::Fired { 10 } else { 0 };
        assert_eq!((made.len(), days.len()), (fired, fired), "each for its own day");
    }
}
