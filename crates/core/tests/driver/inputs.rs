//! Replay with another input than the recorded one: reported, or an error where replay is strict.

use std::time::Duration;

use steadfast_core::workflow::Effect;
use steadfast_core::{Cx, Error, Result};

use super::{Host, counted, linear};

/// What a call is made with, all of it from the input.
#[derive(serde::Serialize, serde::Deserialize, Clone)]
struct Given {
    step: u32,
    child: u32,
    to: String,
    sent: u32,
    published: u32,
    appended: Option<u32>,
    emitted: u32,
    slept_ms: u64,
    effect: u32,
    key: String,
    closure: u32,
}

fn given() -> Given {
    Given {
        step: 1,
        child: 1,
        to: "other".to_owned(),
        sent: 1,
        published: 1,
        appended: Some(1),
        emitted: 1,
        slept_ms: 5,
        effect: 1,
        key: "k".to_owned(),
        closure: 1,
    }
}

async fn calls_everything(cx: Cx, given: Given) -> Result<()> {
    cx.step(counted, given.step).await?;
    cx.spawn_named::<()>("child", &given.child).id("kid").await?;
    cx.send(&given.to, "hello", given.sent).await?;
    cx.publish("value", given.published).await?;
    match given.appended {
        Some(item) => cx.append("stream", item).await?,
        None => cx.close_stream("stream").await?,
    }
    cx.emit("event", given.emitted).await?;
    cx.sleep(Duration::from_millis(given.slept_ms)).await?;
    let effect = Effect::keyed("paid", given.key).payload(given.effect);
    cx.effect(effect, |_| async { Ok::<_, Error>(()) }).await?;
    let closure = given.closure;
    cx.step("closure", move || async move { Ok::<_, Error>(closure) }).await?;
    cx.wait_signal::<Option<()>>("go").timeout(Duration::from_secs(1)).await?;
    Ok(())
}

/// The call that has another input on replay, by id and name, and how it comes by it.
type Case = (u64, &'static str, fn(&mut Given));

/// Each kind of call that has an input, and what its change makes of the replay.
#[test]
fn a_recorded_call_with_another_input_is_reported_by_position_and_name() {
    let text = |given: &Given| serde_json::to_string(given).unwrap();
    let mut host = Host::new();
    assert_eq!(host.run(calls_everything, &text(&given())), Some(Ok("null".into())));
    assert!(host.run(calls_everything, &text(&given())).unwrap().is_ok());
    assert!(host.drifts.is_empty(), "the same input is no change: {:?}", host.drifts);
    let cases: &[Case] = &[
        (0, "counted", |given| given.step = 2),
        (1, "child", |given| given.child = 2),
        (2, "hello", |given| given.to = "another".to_owned()),
        (2, "hello", |given| given.sent = 2),
        (3, "value", |given| given.published = 2),
        (4, "stream", |given| given.appended = None),
        (5, "event", |given| given.emitted = 2),
        (6, "sleep", |given| given.slept_ms = 6),
        (7, "paid", |given| given.effect = 2),
        (7, "paid", |given| given.key = "l".to_owned()),
    ];
    for &(id, name, change) in cases {
        let mut changed = given();
        change(&mut changed);
        host.drifts.clear();
        assert!(host.run(calls_everything, &text(&changed)).unwrap().is_ok(), "{name}");
        let found: Vec<_> = host.drifts.iter().map(|d| (d.id, d.name.as_str())).collect();
        assert_eq!(found, [(id, name)], "the recorded outcome is used, and the change reported");
    }
    // What a closure does is not known, and a record without a digest says nothing.
    let mut changed = given();
    changed.closure = 2;
    host.drifts.clear();
    assert!(host.run(calls_everything, &text(&changed)).unwrap().is_ok());
    changed.step = 2;
    host.records[0].input_digest = None;
    assert!(host.run(calls_everything, &text(&changed)).unwrap().is_ok());
    assert!(host.drifts.is_empty(), "{:?}", host.drifts);
}

#[test]
fn strict_replay_ends_a_run_at_a_call_with_another_input() {
    let mut host = Host { strict: true, ..Host::new() };
    assert_eq!(host.run(linear, "1"), Some(Ok("4".into())));
    assert_eq!(host.run(linear, "1"), Some(Ok("4".into())), "the same input is no change");
    let error = host.run(linear, "2").unwrap().unwrap_err();
    assert_eq!(error.code(), "SF-0308");
    let message = error.message();
    assert!(message.contains("step 0") && message.contains("\"counted\""), "{message}");
}

async fn sleeps_by_the_clock(cx: Cx, (): ()) -> Result<()> {
    cx.sleep(Duration::from_secs(5)).await?;
    cx.sleep_until(cx.now().after(Duration::from_secs(5))).await
}

/// The logical clock is part of the history, so that a moment computed from it is no change.
#[test]
fn a_replay_at_another_time_of_day_changes_no_input() {
    let mut host = Host { strict: true, ..Host::new() };
    assert!(host.run(sleeps_by_the_clock, "null").unwrap().is_ok());
    host.now = 10_000_000_000;
    assert!(host.run(sleeps_by_the_clock, "null").unwrap().is_ok());
}
