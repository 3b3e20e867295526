//! Runs, steps, children, recovery.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::{Cx, Effect, Error, Result, Retry, RunStatus, StepKind, Timestamp};

use super::{Fixture, SOON, case_table, dies};

case_table! {
    a_run_returns_its_value_and_the_same_id_is_the_same_run,
    an_error_of_the_application_comes_back_as_itself,
    every_step_is_stored_with_all_that_is_known_of_it,
    a_child_is_stored_with_its_parent_and_joined,
    step_retries_wait_longer_each_time_and_are_counted_on_the_step,
    a_step_without_a_policy_is_tried_once,
    a_step_that_takes_too_long_is_timed_out,
    a_killed_worker_loses_its_runs_to_another_and_no_recorded_step_runs_again,
    a_run_beyond_its_deadline_is_cancelled_with_the_reason,
    steps_side_by_side_run_at_the_same_time,
    a_run_continues_as_new_with_an_empty_history,
    an_effect_is_performed_with_its_key,
    a_workflow_nobody_has_is_visible_and_waits_for_its_worker,
    a_call_in_a_spawned_task_is_refused,
    now_and_random_are_stable_and_cost_nothing,
    a_sleep_is_over_at_its_time_however_seldom_the_worker_polls,
}

async fn double(n: u32) -> Result<u32> {
    Ok(n * 2)
}

async fn arithmetic(cx: Cx, n: u32) -> Result<u32> {
    let a = cx.step(double, n).await?;
    let b = cx.read("fetch", move || async move { Ok::<_, Error>(a + 1) }).await?;
    cx.compute("more", || b + 1)
}

/// R74 R103 X10
async fn a_run_returns_its_value_and_the_same_id_is_the_same_run(on: Fixture) {
    let fabric = on.fabric().workflow(arithmetic).start().await.unwrap();
    let run = fabric.start(arithmetic, 20).id("one").await.unwrap();
    assert!(run.is_new());
    assert_eq!(run.result_within(SOON).await.unwrap(), 42);
    let info = run.info().await.unwrap();
    assert_eq!((info.status, info.output.as_deref()), (RunStatus::Success, Some("42")));
    let again = fabric.start(arithmetic, 20).id("one").await.unwrap();
    assert!(!again.is_new());
    let other_input = fabric.start(arithmetic, 21).id("one").await.unwrap_err();
    let other_code = on.client().start_named::<u32>("else", &20).id("one").await.unwrap_err();
    assert_eq!((other_input.code(), other_code.code()), ("SF-0110", "SF-0110"));
    assert!(other_code.message().contains("another workflow"));
    assert_eq!(run.info().await.unwrap(), info, "nothing changed");
    fabric.shutdown().await;
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum PayError {
    Declined(u32),
}

impl std::fmt::Display for PayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

async fn declined(cx: Cx, n: u32) -> Result<u32> {
    let pay = move || async move { Err::<u32, _>(Error::typed(&PayError::Declined(n))) };
    cx.step("pay", pay).await
}

/// R74 R77
async fn an_error_of_the_application_comes_back_as_itself(on: Fixture) {
    let fabric = on.fabric().workflow(declined).start().await.unwrap();
    let run = fabric.start(declined, 7).await.unwrap();
    let error = run.result_within(SOON).await.unwrap_err();
    assert_eq!(error.as_typed::<PayError>(), Some(PayError::Declined(7)));
    assert_eq!(run.status().await.unwrap(), RunStatus::Error);
    let stored = fabric.steps(run.id()).await.unwrap();
    assert_eq!(stored[0].outcome, Err(error));
    fabric.shutdown().await;
}

/// R75 R76 R97
async fn every_step_is_stored_with_all_that_is_known_of_it(on: Fixture) {
    let fabric = on.fabric().workflow(arithmetic).start().await.unwrap();
    let began = on_clock();
    let run = fabric.start(arithmetic, 5).await.unwrap();
    run.result_within(SOON).await.unwrap();
    let steps = fabric.steps(run.id()).await.unwrap();
    let seen: Vec<_> = steps
        .iter()
        .map(|s| (s.id, s.name.as_str(), s.kind, s.outcome.clone().unwrap(), s.input.clone()))
        .collect();
    assert_eq!(
        seen,
        [
            (0, "double", StepKind::Step, "10".to_owned(), Some("5".to_owned())),
            (1, "fetch", StepKind::Read, "11".to_owned(), None),
            (2, "more", StepKind::Compute, "12".to_owned(), None),
        ]
    );
    for step in &steps {
        assert!(step.started_at.as_millis() >= began - 60_000, "epoch milliseconds");
        assert!(step.completed_at >= step.started_at);
    }
    fabric.shutdown().await;
}

fn on_clock() -> i64 {
    use steadfast::Env as _;
    steadfast::TokioEnv::current().now().as_millis()
}

async fn parent(cx: Cx, n: u32) -> Result<u32> {
    let child = cx.spawn(arithmetic, n).await?;
    let other = cx.child(arithmetic, n + 1);
    let (a, b) = futures::future::join(child.result(), other).await;
    Ok(a? + b?)
}

/// R78
async fn a_child_is_stored_with_its_parent_and_joined(on: Fixture) {
    let fabric = on.fabric().workflow(parent).workflow(arithmetic).start().await.unwrap();
    let run = fabric.start(parent, 1).id("p").await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 4 + 6);
    let steps = fabric.steps("p").await.unwrap();
    assert_eq!(steps[0].child.as_deref(), Some("p/0"));
    assert_eq!(fabric.get("p/0").await.unwrap().parent, "p");
    fabric.shutdown().await;
}

#[derive(Default)]
struct Calls(AtomicU32);

impl Calls {
    fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

async fn third_time(cx: Cx, _: ()) -> Result<u32> {
    let calls = cx.state::<Calls>()?;
    let body = move || {
        let n = calls.next();
        async move { if n < 3 { Err(Error::app(format!("try {n}"))) } else { Ok(n) } }
    };
    let retry = Retry::exponential(3, Duration::from_millis(40), 2.0);
    cx.step("third", body).retry(retry).await
}

/// R81
async fn step_retries_wait_longer_each_time_and_are_counted_on_the_step(on: Fixture) {
    let fabric = on.fabric().workflow(third_time).state(Calls::default()).start().await.unwrap();
    let run = fabric.start(third_time, ()).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 3);
    let step = &fabric.steps(run.id()).await.unwrap()[0];
    assert_eq!(step.attempt, 3);
    let took = step.started_at.until(step.completed_at);
    assert!(took >= Duration::from_millis(120), "40 + 80 ms of waits, took {took:?}");
    assert_eq!(run.info().await.unwrap().attempts, 1, "step retries are not recoveries");
    fabric.shutdown().await;
}

async fn once_only(cx: Cx, _: ()) -> Result<u32> {
    let calls = cx.state::<Calls>()?;
    let body = move || {
        calls.next();
        async { Err::<u32, _>(Error::app("no")) }
    };
    cx.step("once", body).await
}

/// R81 C1
async fn a_step_without_a_policy_is_tried_once(on: Fixture) {
    let fabric = on.fabric().workflow(once_only).state(Calls::default()).start().await.unwrap();
    let run = fabric.start(once_only, ()).await.unwrap();
    run.result_within(SOON).await.unwrap_err();
    assert_eq!(fabric.steps(run.id()).await.unwrap()[0].attempt, 1);
    fabric.shutdown().await;
}

async fn too_slow(cx: Cx, _: ()) -> Result<()> {
    let body = || async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        Ok::<_, Error>(())
    };
    cx.step("slow", body).timeout(Duration::from_millis(50)).await
}

async fn a_step_that_takes_too_long_is_timed_out(on: Fixture) {
    let fabric = on.fabric().workflow(too_slow).start().await.unwrap();
    let error = fabric.start(too_slow, ()).await.unwrap().result_within(SOON).await.unwrap_err();
    assert_eq!(error.code(), "SF-0306");
    fabric.shutdown().await;
}

struct Trace {
    first: AtomicU32,
    second: AtomicU32,
}

async fn two_parts(cx: Cx, _: ()) -> Result<u32> {
    let trace = cx.state::<Arc<Trace>>()?;
    let early = trace.clone();
    let a = cx
        .step("first", move || {
            let n = early.first.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok::<_, Error>(n) }
        })
        .await?;
    let body = move || {
        let n = trace.second.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            if n == 1 {
                // The first worker dies in here.
                std::future::pending::<()>().await;
            }
            Ok::<_, Error>(n)
        }
    };
    let b = cx.step("second", body).await?;
    Ok(a * 10 + b)
}

/// R93 R79 R80 C8: the dead worker's tasks vanish with its runtime, as in a killed process.
async fn a_killed_worker_loses_its_runs_to_another_and_no_recorded_step_runs_again(on: Fixture) {
    let trace = Arc::new(Trace { first: AtomicU32::new(0), second: AtomicU32::new(0) });
    let doomed = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build();
    let doomed = doomed.unwrap();
    let (there, theirs) = (on.clone(), trace.clone());
    doomed
        .spawn(async move {
            let fabric =
                there.fabric().workflow(two_parts).state(theirs.clone()).start().await.unwrap();
            fabric.start(two_parts, ()).id("r").await.unwrap();
            while theirs.second.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            dies(fabric);
        })
        .await
        .unwrap();
    doomed.shutdown_background();
    let fabric = on.fabric().workflow(two_parts).state(trace.clone()).start().await.unwrap();
    let run = fabric.run::<u32>("r");
    assert_eq!(run.result_within(SOON).await.unwrap(), 12);
    assert_eq!(trace.first.load(Ordering::SeqCst), 1, "the recorded step ran once");
    // On a machine that is busy the first worker may have lost its short lease once, too.
    assert!(run.info().await.unwrap().attempts >= 2);
    fabric.shutdown().await;
}

async fn endless(cx: Cx, _: ()) -> Result<()> {
    cx.sleep(Duration::from_secs(3600)).await
}

/// R92
async fn a_run_beyond_its_deadline_is_cancelled_with_the_reason(on: Fixture) {
    let fabric = on.fabric().workflow(endless).start().await.unwrap();
    let run = fabric.start(endless, ()).timeout(Duration::from_millis(200)).await.unwrap();
    let info = run.info().await.unwrap();
    let started = info.started_at.unwrap();
    assert_eq!(info.deadline_at, Some(started.after(Duration::from_millis(200))));
    let error = run.result_within(SOON).await.unwrap_err();
    assert_eq!(error.code(), "SF-0304");
    assert_eq!(run.status().await.unwrap(), RunStatus::Cancelled);
    fabric.shutdown().await;
}

async fn side_by_side(cx: Cx, _: ()) -> Result<u32> {
    let barrier = Arc::new(tokio::sync::Barrier::new(3));
    let meet = |name: &'static str| {
        let barrier = barrier.clone();
        cx.step(name, move || {
            let barrier = barrier.clone();
            async move {
                barrier.wait().await;
                Ok::<_, Error>(1u32)
            }
        })
    };
    let (a, b, c) = (meet("a"), meet("b"), meet("c"));
    let joined = futures::future::join3(a.into_future(), b.into_future(), c.into_future()).await;
    Ok(joined.0? + joined.1? + joined.2?)
}

async fn steps_side_by_side_run_at_the_same_time(on: Fixture) {
    let fabric = on.fabric().workflow(side_by_side).start().await.unwrap();
    let run = fabric.start(side_by_side, ()).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 3);
    fabric.shutdown().await;
}

async fn countdown(cx: Cx, n: u32) -> Result<u32> {
    let n = cx.step("down", move || async move { Ok::<_, Error>(n - 1) }).await?;
    if n > 0 { cx.continue_as_new(n).await } else { Ok(n) }
}

async fn a_run_continues_as_new_with_an_empty_history(on: Fixture) {
    let fabric = on.fabric().workflow(countdown).start().await.unwrap();
    let run = fabric.start(countdown, 3).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 0);
    assert_eq!(run.info().await.unwrap().generation, 2);
    assert_eq!(fabric.steps(run.id()).await.unwrap().len(), 1);
    fabric.shutdown().await;
}

async fn pays(cx: Cx, order: String) -> Result<String> {
    let body = |key: String| async move { Ok::<_, Error>(format!("paid with {key}")) };
    cx.effect(Effect::keyed("pay", format!("pay:{order}")), body).await
}

async fn an_effect_is_performed_with_its_key(on: Fixture) {
    let fabric = on.fabric().workflow(pays).start().await.unwrap();
    let run = fabric.start(pays, "7".to_owned()).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), "paid with pay:7");
    let step = &fabric.steps(run.id()).await.unwrap()[0];
    assert_eq!((step.kind, step.input.as_deref()), (StepKind::Effect, Some("\"pay:7\"")));
    fabric.shutdown().await;
}

async fn a_workflow_nobody_has_is_visible_and_waits_for_its_worker(on: Fixture) {
    let fabric = on.fabric().workflow(arithmetic).start().await.unwrap();
    let run = fabric.start_named::<u32>("countdown", &1).await.unwrap();
    let why = fabric.explain(run.id()).await.unwrap();
    assert_eq!(why.detail, "no worker that reports has workflow \"countdown\"");
    assert_eq!(run.info().await.unwrap().status, RunStatus::Enqueued);
    let other = on.fabric().workflow(countdown).start().await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 0);
    other.shutdown().await;
    fabric.shutdown().await;
}

async fn spawns(cx: Cx, _: ()) -> Result<String> {
    let inner = cx.clone();
    let body = move || {
        let cx = inner.clone();
        async move {
            let task = tokio::spawn(async move { cx.step(double, 1).await });
            let refused = task.await.map_err(Error::from_any)?.unwrap_err();
            Ok::<_, Error>(refused.code().to_owned())
        }
    };
    cx.step("outer", body).await
}

async fn a_call_in_a_spawned_task_is_refused(on: Fixture) {
    let fabric = on.fabric().workflow(spawns).start().await.unwrap();
    let run = fabric.start(spawns, ()).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), "SF-0206");
    assert_eq!(fabric.steps(run.id()).await.unwrap().len(), 1);
    fabric.shutdown().await;
}

async fn draws(cx: Cx, _: ()) -> Result<(u64, u64, String, Timestamp)> {
    let (a, uuid) = (cx.random(), cx.uuid());
    cx.sleep(Duration::from_millis(300)).await?; // suspended and replayed
    Ok((a, cx.random(), uuid, cx.now()))
}

async fn now_and_random_are_stable_and_cost_nothing(on: Fixture) {
    let fabric = on.fabric().workflow(draws).start().await.unwrap();
    let one = fabric.start(draws, ()).await.unwrap();
    let two = fabric.start(draws, ()).await.unwrap();
    let (a, b) = (one.result_within(SOON).await.unwrap(), two.result_within(SOON).await.unwrap());
    assert_ne!((a.0, &a.2), (b.0, &b.2), "runs differ");
    assert_ne!(a.0, a.1);
    assert_eq!(fabric.steps(one.id()).await.unwrap().len(), 1, "only the sleep is recorded");
    let info = one.info().await.unwrap();
    assert!(info.started_at.unwrap().until(a.3) >= Duration::from_millis(300));
    fabric.shutdown().await;
}

async fn naps(cx: Cx, n: u32) -> Result<u32> {
    cx.sleep(Duration::from_millis(200)).await?; // rests from its start on
    let n = cx.step(double, n).await?;
    cx.sleep(Duration::from_millis(200)).await?; // comes to rest later
    Ok(n)
}

async fn a_sleep_is_over_at_its_time_however_seldom_the_worker_polls(on: Fixture) {
    let rare = SOON * 10;
    let fabric = on.fabric().lease(rare).poll(rare, rare).workflow(naps).start().await.unwrap();
    let run = fabric.start(naps, 21).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 42);
    fabric.shutdown().await;
}
