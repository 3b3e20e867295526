//! Crash tests for users: a sound workflow passes, an unsound one is reported with its crash point.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfast_core::workflow::Effect;
use steadfast_core::{Cx, Error, Result, Retry, RunStatus};
use steadfast_testkit::crash_safe::{CrashSafe, assert_crash_safe};

async fn ok(value: u64) -> Result<u64> {
    Ok(value)
}

async fn sound(cx: Cx, input: u64) -> Result<u64> {
    let doubled = cx.compute("double", || input * 2)?;
    let first = cx.step(ok, doubled).await?;
    cx.sleep(Duration::from_secs(3600)).await?;
    let second = cx.read("look", move || ok(first + 1)).await?;
    let pay = Effect::keyed("pay", format!("order-{input}"));
    let paid = cx.effect(pay, move |_key| ok(second)).await?;
    cx.append("log", paid).await?;
    Ok(paid)
}

/// R76, R93
#[test]
fn a_sound_workflow_survives_a_crash_at_every_place() {
    assert_crash_safe(sound, 20);
    let survived = CrashSafe::new(sound, 20).check();
    assert_eq!(survived.status, RunStatus::Success);
    assert!(survived.crashes > 20, "{survived:?}");
}

/// The other side of the flaky step: it refuses the first call of each world.
static CALLS: AtomicU64 = AtomicU64::new(0);

async fn parent(cx: Cx, input: u64) -> Result<u64> {
    let rate = cx.state::<u64>()?;
    let child = cx.child(leaf, input).await?;
    let approved = cx.wait_signal::<bool>("approve").await?;
    if !approved {
        return Err(Error::app("refused"));
    }
    Ok(child * *rate)
}

async fn leaf(cx: Cx, input: u64) -> Result<u64> {
    let body = move || {
        let failed = CALLS.fetch_add(1, Ordering::Relaxed) == 0;
        async move { if failed { Err(Error::app("not yet")) } else { Ok(input) } }
    };
    cx.step("flaky", body).retry(Retry::standard()).await
}

/// R78
#[test]
fn children_signals_retries_and_state_take_part() {
    let survived = CrashSafe::new(parent, 3)
        .register(leaf)
        .signal("approve", true)
        .state(7_u64)
        .prepare(|| CALLS.store(0, Ordering::Relaxed))
        .check();
    assert_eq!(survived.status, RunStatus::Success);
}

async fn mails(cx: Cx, _: u64) -> Result<u64> {
    cx.effect(Effect::at_most_once("mail", "mail-1"), |_key| ok(1)).await
}

#[test]
fn an_effect_that_may_not_be_repeated_may_end_as_unknown() {
    assert_eq!(CrashSafe::new(mails, 1).check().status, RunStatus::Success);
}

static COUNTER: AtomicU64 = AtomicU64::new(0);

async fn counts(cx: Cx, _: u64) -> Result<u64> {
    let first = cx.step(ok, 1).await?;
    // Not recorded, and another number each time.
    let drifting = COUNTER.fetch_add(1, Ordering::Relaxed);
    cx.step("second", || ok(2)).await?;
    Ok(first + drifting)
}

/// X10
#[test]
fn a_value_that_is_not_recorded_is_reported_with_its_crash_point() {
    let defect = CrashSafe::new(counts, 1).try_check().unwrap_err();
    let report = defect.to_string();
    assert!(report.contains("\"counts\" is not crash safe"), "{report}");
    assert!(report.contains("crash: ") && report.contains("(point "), "{report}");
    assert!(report.contains("something between the steps is not the same each time"), "{report}");
}

static BRANCH: AtomicU64 = AtomicU64::new(0);

async fn branches(cx: Cx, _: u64) -> Result<u64> {
    match BRANCH.fetch_add(1, Ordering::Relaxed) % 2 {
        0 => cx.step("left", || ok(1)).await,
        _ => cx.step("right", || ok(1)).await,
    }
}

/// X10
#[test]
#[should_panic(expected = "\"branches\" is not crash safe")]
fn a_branch_that_is_not_recorded_is_reported() {
    CrashSafe::new(branches, 1).check();
}

static SENT: AtomicU64 = AtomicU64::new(0);

async fn leaks(cx: Cx, _: u64) -> Result<u64> {
    cx.step(ok, 1).await?;
    // A side effect outside of a step: done again by every replay.
    let sent = SENT.fetch_add(1, Ordering::Relaxed) + 1;
    cx.step("remember", move || ok(sent)).await?;
    if sent > 1 {
        return Err(Error::app("sent before"));
    }
    Ok(1)
}

#[test]
fn a_side_effect_outside_of_a_step_is_reported_when_it_shows() {
    // Each world begins with an empty outbox, as a test of one's own would.
    let report = CrashSafe::new(leaks, 1).prepare(|| SENT.store(0, Ordering::Relaxed)).try_check();
    let report = report.unwrap_err().to_string();
    assert!(report.contains("sent before") && report.contains("crash: "), "{report}");
}

#[test]
#[should_panic(expected = "the run does not end")]
fn a_run_that_waits_for_ever_is_reported() {
    CrashSafe::new(parent, 3).register(leaf).state(7_u64).check();
}

#[test]
fn steps_may_use_the_types_of_a_runtime() {
    async fn spawns(cx: Cx, _: u64) -> Result<u64> {
        let body = || async {
            let (tell, told) = tokio::sync::oneshot::channel();
            tell.send(5).map_err(|_| Error::app("nobody listens"))?;
            drop(tokio::runtime::Handle::current());
            told.await.map_err(|error| Error::app(error.to_string()))
        };
        cx.step("spawns", body).await
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    CrashSafe::new(spawns, 1).tokio(runtime.handle().clone()).check();
}
