//! Panics in the user's code: each fails the call that it is in, and holds nothing.

mod governed;
mod outside;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use steadfast::{
    Builder, Cx, Effect, Error, ErrorClass, Result, Retry, Run, RunStatus, Steadfast, StepState,
};

use super::{Case, Fixture, SOON, case_table, until};

case_table![
    a_step_that_panics_is_tried_again_as_its_policy_says,
    code_of_a_call_that_panics_fails_that_call_and_the_run_goes_on,
    a_workflow_that_panics_fails_its_own_run,
    a_result_that_panics_when_it_is_read_fails_who_reads_it,
];

/// The cases of both halves.
pub(super) fn cases() -> Vec<(&'static str, Case)> {
    [CASES, governed::CASES, outside::CASES].concat()
}

/// A value that cannot be written.
#[derive(Debug, Clone, Deserialize)]
struct Unwritten;

impl Serialize for Unwritten {
    fn serialize<S: Serializer>(&self, _: S) -> std::result::Result<S::Ok, S::Error> {
        panic!("boom")
    }
}

/// A value that cannot be read.
#[derive(Debug, Clone, Serialize)]
struct Unread;

impl<'de> Deserialize<'de> for Unread {
    fn deserialize<D: Deserializer<'de>>(_: D) -> std::result::Result<Self, D::Error> {
        panic!("boom")
    }
}

/// A value that cannot be dropped in peace.
struct Loud;

impl Drop for Loud {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "boom");
    }
}

fn no_text<T>() -> T {
    std::panic::panic_any(7)
}

fn boom<T>() -> T {
    panic!("boom")
}

async fn same(n: u32) -> Result<u32> {
    Ok(n)
}

/// Runs beside what panics.
async fn innocent(cx: Cx, n: u32) -> Result<u32> {
    for _ in 0..n {
        cx.step(same, n).await?;
    }
    Ok(n)
}

/// A fabric with room for two runs, whose shutdown waits for what is held.
fn narrow(f: &Fixture) -> Builder {
    f.fabric().workflow(innocent).max_runs(2).lease(SOON).drain(SOON)
}

/// Nothing is held: there is room for all again, and the shutdown waits for nothing.
async fn unharmed(fabric: &Steadfast) {
    let runs = (0..6).map(|n| fabric.start(innocent, n).into_future());
    for (n, run) in (0..6).zip(futures::future::join_all(runs).await) {
        assert_eq!(run.unwrap().result_within(SOON).await.unwrap(), n);
    }
    until("no run is in memory", async || fabric.live_runs() == 0).await;
    let stopped = tokio::time::timeout(SOON / 2, fabric.shutdown()).await;
    assert!(stopped.is_ok(), "something is held");
}

/// How a run ended, while another one was under way.
async fn ended<T: serde::de::DeserializeOwned>(fabric: &Steadfast, run: Run<T>) -> Result<T> {
    let other = fabric.start(innocent, 5).await.unwrap();
    let result = run.result_within(SOON).await;
    assert_eq!(other.result_within(SOON).await.unwrap(), 5, "others go on");
    let info = run.info().await.unwrap();
    assert!(info.status.is_terminal() && info.worker.is_empty(), "{info:?}");
    result
}

fn assert_panic(error: &Error, message: &str) {
    assert_eq!((error.class(), error.code()), (ErrorClass::Panic, "SF-0205"), "{error}");
    assert_eq!(error.message(), message);
}

/// How often the step of a run was called.
#[derive(Clone, Default)]
struct Count(Arc<AtomicU32>);

async fn thrice(cx: Cx, most: u32) -> Result<u32> {
    let count = (*cx.state::<Count>()?).clone();
    count.0.store(0, Ordering::SeqCst);
    let body = move || {
        let count = count.clone();
        async move {
            let n = count.0.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(n > 2, "attempt {n}");
            Ok::<_, Error>(n)
        }
    };
    let retry = Retry::exponential(most, Duration::from_millis(1), 1.0);
    cx.step("explode", body).retry(retry).await
}

async fn a_step_that_panics_is_tried_again_as_its_policy_says(f: Fixture) {
    let count = Count::default();
    let fabric = narrow(&f).workflow(thrice).state(count.clone()).start().await.unwrap();
    for most in [1, 2, 3] {
        let run = fabric.start(thrice, most).await.unwrap();
        let id = run.id().to_owned();
        let result = ended(&fabric, run).await;
        assert_eq!(count.0.load(Ordering::SeqCst), most);
        let step = fabric.steps(&id).await.unwrap().remove(0);
        assert_eq!((step.state, step.attempt), (StepState::Done, most));
        match most {
            3 => assert_eq!(result.unwrap(), 3),
            _ => {
                let message = format!("step \"explode\" panicked: attempt {most}");
                assert_panic(&result.unwrap_err(), &message);
            }
        }
    }
    unharmed(&fabric).await;
}

/// Gives the error of a call whose code panics, or whose future panics when it is dropped.
async fn rescued(cx: Cx, how: String) -> Result<Error> {
    let failed: Result<u32> = match how.as_str() {
        "step" => cx.step("x", || async { boom::<Result<u32>>() }).await,
        "step made" => cx.step("x", boom::<std::future::Ready<Result<u32>>>).await,
        "waiting step" => {
            let body = || async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                no_text::<Result<u32>>()
            };
            cx.step("x", body).await
        }
        "slow step" => {
            let body = || async {
                let _loud = Loud;
                std::future::pending::<Result<u32>>().await
            };
            cx.step("x", body).timeout(Duration::from_millis(20)).await
        }
        "read" => cx.read("x", || async { boom::<Result<u32>>() }).await,
        "effect" => {
            let effect = Effect::keyed("x", "k");
            cx.effect(effect, |_| async { boom::<Result<u32>>() }).await
        }
        "payload" => {
            let effect = Effect::keyed("x", "k").payload(Unwritten);
            cx.effect(effect, |_| async { Ok::<_, Error>(1) }).await
        }
        "compute" => cx.compute("x", boom),
        "input written" => cx.step(takes, Unwritten).await,
        "value written" => {
            cx.step("x", || async { Ok::<_, Error>(Unwritten) }).await.map(|_: Unwritten| 1)
        }
        "value read" => cx.step("x", || async { Ok::<_, Error>(Unread) }).await.map(|_: Unread| 1),
        other => Err(Error::app(format!("there is no {other}"))),
    };
    cx.step(same, 1).await?;
    // Replayed: what is on record is the same.
    cx.sleep(Duration::from_millis(50)).await?;
    Ok(failed.unwrap_err())
}

async fn takes(_: Unwritten) -> Result<u32> {
    Ok(1)
}

async fn code_of_a_call_that_panics_fails_that_call_and_the_run_goes_on(f: Fixture) {
    let fabric = narrow(&f).workflow(rescued).start().await.unwrap();
    for (how, message) in [
        ("step", "step \"x\" panicked: boom"),
        ("step made", "step \"x\" panicked: boom"),
        ("waiting step", "step \"x\" panicked: without a message (its payload is no text)"),
        ("read", "read \"x\" panicked: boom"),
        ("effect", "effect \"x\" panicked: boom"),
        ("payload", "writing as JSON \"the effect's payload\" panicked: boom"),
        ("compute", "compute \"x\" panicked: boom"),
        ("input written", "writing as JSON \"the step's input\" panicked: boom"),
        ("value written", "writing as JSON \"the step's result\" panicked: boom"),
        ("value read", "reading from JSON \"the recorded value\" panicked: boom"),
    ] {
        let run = fabric.start(rescued, how.to_owned()).await.unwrap();
        let error = ended(&fabric, run).await.unwrap_or_else(|e| panic!("{how}: {e}"));
        assert_panic(&error, message);
    }
    let run = fabric.start(rescued, "slow step".to_owned()).await.unwrap();
    assert_eq!(ended(&fabric, run).await.unwrap().code(), "SF-0306");
    unharmed(&fabric).await;
}

async fn explodes(cx: Cx, how: String) -> Result<Unwritten> {
    if how == "later" {
        cx.step(same, 1).await?;
        cx.sleep(Duration::from_millis(50)).await?;
    }
    assert!(how == "result", "boom");
    Ok(Unwritten)
}

async fn reads(_: Cx, _: Unread) -> Result<u32> {
    Ok(1)
}

/// What it holds panics when the run is put away, and again when it is over.
async fn holds(cx: Cx, _: ()) -> Result<u32> {
    let loud = Loud;
    cx.sleep(Duration::from_millis(50)).await?;
    let raced = futures::future::select(
        Box::pin(async move {
            let _loud = loud;
            std::future::pending::<()>().await;
        }),
        cx.sleep(Duration::from_millis(10)),
    );
    // Forgotten: a panic of its own here would be the workflow's.
    std::mem::forget(raced.await);
    Ok(1)
}

async fn a_workflow_that_panics_fails_its_own_run(f: Fixture) {
    let fabric = narrow(&f).workflow(explodes).workflow(reads).workflow(holds);
    let fabric = fabric.start().await.unwrap();
    for (how, message) in [
        ("at once", "workflow \"explodes\" panicked: boom"),
        ("later", "workflow \"explodes\" panicked: boom"),
        ("result", "writing as JSON \"the result\" panicked: boom"),
    ] {
        let run = fabric.start(explodes, how.to_owned()).await.unwrap();
        assert_panic(&ended(&fabric, run).await.unwrap_err(), message);
    }
    let run = fabric.start(reads, Unread).await.unwrap();
    let message = "reading from JSON \"the input\" panicked: boom";
    assert_panic(&ended(&fabric, run).await.unwrap_err(), message);
    let run = fabric.start(holds, ()).await.unwrap();
    assert_eq!(ended(&fabric, run).await.unwrap(), 1);
    unharmed(&fabric).await;
}

async fn gives_unread(_: Cx, _: ()) -> Result<Unread> {
    Ok(Unread)
}

async fn a_result_that_panics_when_it_is_read_fails_who_reads_it(f: Fixture) {
    let fabric = narrow(&f).workflow(gives_unread).start().await.unwrap();
    let run = fabric.start(gives_unread, ()).await.unwrap();
    let id = run.id().to_owned();
    let error = run.result_within(SOON).await.unwrap_err();
    assert_panic(&error, "reading from JSON \"the result\" panicked: boom");
    assert_eq!(fabric.get(&id).await.unwrap().status, RunStatus::Success);
    unharmed(&fabric).await;
}
