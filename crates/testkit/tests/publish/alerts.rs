//! Alerts, as the people's services see them.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::{
    AlertRule, Alerts, ApprovalRequest, Contract, Cx, Effect, EffectType, Error, ErrorClass,
    ListEvents, Result, Sink, SinkState, Steadfast, Timestamp,
};
use steadfast_connectors::Alert;
use steadfast_testkit::db::TestDb;
use steadfast_testkit::suite::runtime::Clock;

use super::receiver::{Answer, Receiver};
use super::{fabric, greet, later, to, until};

fn kept(text: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let reference = format!("file:{}", file.path().display());
    (file, reference)
}

/// R52
#[tokio::test]
async fn r052_a_refusal_for_good_pages_the_person_on_call() {
    // The service is down at first: an alert is not lost by that.
    let script = [Answer::Status("500 Internal Server Error")];
    let (db, pager, chat) =
        (TestDb::sqlite(), Receiver::new(script).await, Receiver::new([]).await);
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let ((_a, key), (_b, url)) = (kept("routing-key-1"), kept(&chat.url));
    let page = Alert::pagerduty_at(&pager.url, &key, Alerts::default()).unwrap();
    let talk = Alert::slack(&url, Alerts::default()).unwrap();
    let built = fabric(&db.url, Some(&clock));
    let built = built.sink(Sink::new("pager", page)).sink(Sink::new("chat", talk));
    let fabric = built.start().await.unwrap();
    fabric.submit(greet, to("ann")).await.unwrap().result().await.unwrap();
    let bad = fabric.submit(greet, to("nobody")).await.unwrap();
    bad.result().await.unwrap_err();
    until("they are told", async || {
        fabric.publish().await.unwrap();
        later(&clock, 5);
        pager.count() == 2 && chat.count() == 1
    })
    .await;
    let page = pager.got()[1].json();
    assert_eq!(page["routing_key"], "routing-key-1");
    assert_eq!(page["event_action"], "trigger");
    let dedup = format!("steadfast/default/permanent_connector_error/{}", bad.id());
    assert_eq!(page["dedup_key"], dedup);
    assert_eq!(pager.got()[0].json()["dedup_key"], dedup, "a repetition has the same key");
    assert_eq!(page["payload"]["severity"], "critical");
    assert_eq!(page["payload"]["custom_details"]["command_id"], bad.id());
    assert!(page["payload"]["summary"].as_str().unwrap().contains("403 Forbidden"), "{page}");
    let said = chat.got()[0].json();
    assert!(said["text"].as_str().unwrap().starts_with("[critical] another system refuses"));
    let sinks = format!("{:?}", fabric.sinks().await.unwrap());
    assert!(!sinks.contains("routing-key-1") && !sinks.contains(&chat.url), "{sinks}");
    fabric.shutdown().await;
}

async fn toggle(fabric: &Steadfast) {
    for state in [SinkState::Disabled, SinkState::Active] {
        fabric.set_sink("other", state, "test", "user:1").await.unwrap();
    }
}

/// Sends everything there is.
async fn drained(fabric: &Steadfast) {
    until("everything is sent", async || {
        fabric.publish().await.unwrap();
        let listed = fabric.sinks().await.unwrap();
        let chat = listed.sinks.iter().find(|report| report.row.sink == "chat").unwrap();
        !listed.unsealed && chat.row.cursor == listed.head && chat.parked == 0
    })
    .await;
}

#[tokio::test]
async fn the_same_is_told_once_in_its_window_even_over_a_restart() {
    let (db, chat) = (TestDb::sqlite(), Receiver::new([]).await);
    let log = tempfile::NamedTempFile::new().unwrap();
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let (_file, url) = kept(&chat.url);
    let rule = AlertRule::new("stopped", "sink.disabled").subject("/sink");
    let start = async || {
        let alerts = Alerts::only([rule.clone()]).window(Duration::from_secs(600));
        let talk = Alert::slack(&url, alerts).unwrap();
        let built = fabric(&db.url, Some(&clock)).sink(Sink::new("chat", talk));
        built.sink(Sink::file("other", log.path())).start().await.unwrap()
    };
    let first = start().await;
    for _ in 0..3 {
        toggle(&first).await;
    }
    drained(&first).await;
    assert_eq!(chat.count(), 1);
    first.shutdown().await;
    later(&clock, 590);
    let second = start().await;
    toggle(&second).await;
    drained(&second).await;
    assert_eq!(chat.count(), 1, "the window is not over");
    later(&clock, 11);
    toggle(&second).await;
    drained(&second).await;
    assert_eq!(chat.count(), 2, "it is told again");
    second.shutdown().await;
}

/// X8
#[tokio::test]
async fn x8_a_missed_fire_alerts_once_for_its_schedule() {
    let (db, pager) = (TestDb::sqlite(), Receiver::new([]).await);
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let (_file, key) = kept("routing-key-1");
    let page = Alert::pagerduty_at(&pager.url, &key, Alerts::default()).unwrap();
    let sink = Sink::new("chat", page);
    let fabric = fabric(&db.url, Some(&clock)).sink(sink).start().await.unwrap();
    let trigger = steadfast::Trigger {
        trigger_id: "often".to_owned(),
        enabled: true,
        when: steadfast::When::Cron(steadfast::Cron::cron("*/10 * * * *")),
        command: steadfast::CommandType::new("greet"),
        payload: serde_json::json!({ "to": "{target_date}" }),
    };
    fabric.define(&trigger).await.unwrap();
    fabric.schedule("often").pause("vendor migration").await.unwrap();
    later(&clock, 1800);
    fabric.schedule("often").resume().await.unwrap();
    fabric.tick().await.unwrap();
    drained(&fabric).await;
    let missed =
        ListEvents { type_prefix: Some("schedule.missed".into()), limit: 9, ..Default::default() };
    let missed = fabric.events(missed).await.unwrap().len();
    let pages = pager.got();
    assert!(missed > 1 && pages.len() == 1, "{missed} missed slots: {pages:?}");
    assert_eq!(pages[0].json()["payload"]["component"], "often");
    assert_eq!(pages[0].json()["payload"]["class"], "schedule_missed");
    fabric.shutdown().await;
}

/// Goes wrong in the way that it is told.
async fn trouble(cx: Cx, how: String) -> Result<()> {
    match how.as_str() {
        "approval" => {
            let request = ApprovalRequest::new("send", "send it").ttl(Duration::from_secs(1));
            cx.approval(request).await.map(|_| ())
        }
        "unknown" => {
            let lost = |_| async {
                Err::<Value, _>(Error::new(ErrorClass::Timeout, "SF-0001", "no answer"))
            };
            cx.effect(Effect::at_most_once("sms.send", "sms:1"), lost).await.map(|_| ())
        }
        _ => Err(Error::new(ErrorClass::RetriesExceeded, "SF-0302", "it was tried too often")),
    }
}

/// X8: whatever the standard rules find is told to a person, each by a request of its own; and a
/// file has every event as a line.
#[tokio::test]
async fn x8_what_needs_a_person_is_told_whatever_it_is() {
    let (db, pager) = (TestDb::sqlite(), Receiver::new([]).await);
    let (log, (_file, key)) = (tempfile::NamedTempFile::new().unwrap(), kept("routing-key-1"));
    let page = Alert::pagerduty_at(&pager.url, &key, Alerts::default()).unwrap();
    let harmless = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);
    let sms = EffectType::new("sms.send").classes(harmless).not_undone("it cannot be unsent");
    let built = fabric(&db.url, None).command(trouble, Contract::new().effect(sms));
    let built = built.sink(Sink::new("chat", page)).sink(Sink::file("log", log.path()));
    let fabric = built.start().await.unwrap();
    let submit = |how: &str| fabric.submit(trouble, how.to_owned());
    let waits = submit("approval").await.unwrap();
    let now = Timestamp::from_micros(now_us());
    // Its time is up before that of what it waits for.
    let late = submit("late").after(waits.id()).expires_at(now.after(Duration::from_millis(500)));
    late.await.unwrap();
    submit("unknown").await.unwrap();
    submit("retries").await.unwrap().result().await.unwrap_err();
    let told = || -> Vec<String> {
        let class = |page: &super::receiver::Request| page.json()["payload"]["class"].clone();
        pager.got().iter().map(|page| class(page).as_str().unwrap().to_owned()).collect()
    };
    let wanted = ["approval_expired", "deadline_not_met", "effect_unknown", "retries_exceeded"];
    until("all of it is told", async || {
        wanted.iter().all(|class| told().iter().any(|told| told == class))
    })
    .await;
    drained(&fabric).await;
    let classes: BTreeSet<_> = told().into_iter().collect();
    assert_eq!((told().len(), classes), (4, wanted.map(str::to_owned).into()), "each once");
    fabric.shutdown().await;
    let lines = std::fs::read_to_string(log.path()).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in ["approval.expired", "effect.unknown", "command.failed"] {
        let named = |line: &Value| line["type"].as_str().is_some_and(|t| t.ends_with(event));
        assert!(lines.iter().any(named), "no line of {event}: {lines:?}");
    }
}

fn now_us() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.unwrap().as_micros()).unwrap()
}
