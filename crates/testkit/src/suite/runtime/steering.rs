//! Steering from outside: cancel, resume, fork, bulk calls, retention, shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfast::{Cx, Error, Result, Rule, RunFilter, RunStatus, Steadfast};

use super::{Fixture, SOON, case_table, until};

case_table! {
    a_cancel_takes_effect_before_the_next_step,
    a_cancel_takes_attached_children_along_and_leaves_detached_ones,
    a_cancel_takes_children_from_before_a_new_beginning_along,
    a_cancel_that_comes_too_late_says_so,
    a_cancelled_run_resumes_where_it_was,
    a_fork_keeps_the_steps_before_its_own_and_leaves_its_source_alone,
    a_fork_may_have_other_input_and_patched_outcomes,
    bulk_calls_touch_what_matches,
    listing_pages_through_everything_once,
    retention_removes_only_what_ended,
    a_join_of_a_child_that_retention_removed_is_an_error,
    a_shutdown_lets_steps_end_and_gives_the_rest_back,
    a_run_of_another_version_waits_and_is_explained,
}

struct Counts {
    first: AtomicU32,
    second: AtomicU32,
    /// Lets the first step of `gated` end.
    gate: tokio::sync::Semaphore,
}

async fn gated(cx: Cx, _: ()) -> Result<u32> {
    let counts = cx.state::<Arc<Counts>>()?;
    let early = counts.clone();
    let first = move || {
        let counts = early.clone();
        async move {
            counts.first.fetch_add(1, Ordering::SeqCst);
            counts.gate.acquire().await.map_err(Error::from_any)?.forget();
            Ok::<_, Error>(1u32)
        }
    };
    let a = cx.step("first", first).await?;
    let second = move || {
        counts.second.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Error>(1u32) }
    };
    Ok(a + cx.step("second", second).await?)
}

fn counts() -> Arc<Counts> {
    let (first, second) = (AtomicU32::new(0), AtomicU32::new(0));
    Arc::new(Counts { first, second, gate: tokio::sync::Semaphore::new(0) })
}

/// R74
async fn a_cancel_takes_effect_before_the_next_step(on: Fixture) {
    let counts = counts();
    let fabric = on.patient().workflow(gated).state(counts.clone()).start().await.unwrap();
    let run = fabric.start(gated, ()).await.unwrap();
    until("the step runs", async || counts.first.load(Ordering::SeqCst) == 1).await;
    on.client().cancel(run.id(), "enough").await.unwrap();
    counts.gate.add_permits(10);
    let error = run.result_within(SOON).await.unwrap_err();
    assert_eq!((error.code(), error.message()), ("SF-0305", "enough"));
    until("it left memory", async || fabric.live_runs() == 0).await;
    assert_eq!(counts.second.load(Ordering::SeqCst), 0, "no step began after the cancel");
    assert_eq!(run.status().await.unwrap(), RunStatus::Cancelled);
    fabric.shutdown().await;
}

async fn sleeper(cx: Cx, _: ()) -> Result<u32> {
    cx.sleep(Duration::from_secs(3600)).await?;
    Ok(1)
}

async fn family(cx: Cx, _: ()) -> Result<u32> {
    let attached = cx.spawn(sleeper, ()).id(format!("{}-attached", cx.run_id())).await?;
    cx.spawn(sleeper, ()).id(format!("{}-detached", cx.run_id())).detached().await?;
    attached.result().await
}

async fn a_cancel_takes_attached_children_along_and_leaves_detached_ones(on: Fixture) {
    let fabric = on.fabric().workflow(family).workflow(sleeper).start().await.unwrap();
    let run = fabric.start(family, ()).id("f").await.unwrap();
    until("all wait", async || fabric.get("f").await.is_ok_and(|run| run.parked)).await;
    run.cancel("stop").await.unwrap();
    let status = async |id: &str| fabric.get(id).await.unwrap().status;
    assert_eq!(status("f-attached").await, RunStatus::Cancelled);
    assert!(!status("f-detached").await.is_terminal());
    fabric.cancel("f-detached", "").await.unwrap();
    fabric.shutdown().await;
}

async fn renewed(cx: Cx, round: u32) -> Result<u32> {
    if round == 0 {
        cx.spawn(sleeper, ()).id(format!("{}-early", cx.run_id())).await?;
        return cx.continue_as_new(round + 1).await;
    }
    sleeper(cx, ()).await
}

async fn a_cancel_takes_children_from_before_a_new_beginning_along(on: Fixture) {
    let fabric = on.fabric().workflow(renewed).workflow(sleeper).start().await.unwrap();
    let run = fabric.start(renewed, 0).id("r").await.unwrap();
    let waits = async |id: &str| fabric.get(id).await.is_ok_and(|run| run.parked);
    until("both wait", async || waits("r").await && waits("r-early").await).await;
    assert_eq!(fabric.get("r").await.unwrap().generation, 1);
    run.cancel("stop").await.unwrap();
    let child = fabric.get("r-early").await.unwrap();
    assert_eq!(child.status, RunStatus::Cancelled);
    fabric.shutdown().await;
}

async fn quick(_: Cx, n: u32) -> Result<u32> {
    Ok(n)
}

async fn a_cancel_that_comes_too_late_says_so(on: Fixture) {
    let fabric = on.fabric().workflow(quick).start().await.unwrap();
    let run = fabric.start(quick, 1).await.unwrap();
    run.result_within(SOON).await.unwrap();
    let late = run.cancel("late").await.unwrap_err();
    assert_eq!(late.code(), "SF-0114");
    assert!(late.message().contains("SUCCESS"));
    assert_eq!(fabric.cancel("nobody", "").await.unwrap_err().code(), "SF-0109");
    fabric.shutdown().await;
}

/// R74 C11
async fn a_cancelled_run_resumes_where_it_was(on: Fixture) {
    let counts = counts();
    counts.gate.add_permits(1);
    let fabric = on.fabric().workflow(waits).state(counts.clone()).start().await.unwrap();
    let run = fabric.start(waits, ()).await.unwrap();
    until("it waits", async || run.info().await.is_ok_and(|run| run.parked)).await;
    run.cancel("pause").await.unwrap();
    let refused = fabric.signal(run.id(), "go", ()).await.unwrap_err();
    assert_eq!(refused.code(), "SF-0113", "a cancelled run takes no signals");
    fabric.resume(run.id()).await.unwrap();
    assert_eq!(fabric.resume(run.id()).await.unwrap_err().code(), "SF-0115");
    run.signal("go", ()).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 1);
    assert_eq!(counts.first.load(Ordering::SeqCst), 1, "the recorded step ran once");
    assert_eq!(fabric.resume(run.id()).await.unwrap_err().code(), "SF-0115");
    fabric.shutdown().await;
}

async fn waits(cx: Cx, _: ()) -> Result<u32> {
    let counts = cx.state::<Arc<Counts>>()?;
    let first = move || {
        let n = counts.first.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok::<_, Error>(n) }
    };
    let n = cx.step("first", first).await?;
    cx.wait_signal::<()>("go").await?;
    Ok(n)
}

async fn adds(cx: Cx, base: u32) -> Result<u32> {
    let counts = cx.state::<Arc<Counts>>()?;
    let mut sum = base;
    for name in ["a", "b", "c"] {
        let counts = counts.clone();
        let body = move || {
            let n = counts.first.fetch_add(1, Ordering::SeqCst) + 1;
            async move { Ok::<_, Error>(n) }
        };
        sum += cx.step(name, body).await?;
    }
    Ok(sum)
}

/// R94
async fn a_fork_keeps_the_steps_before_its_own_and_leaves_its_source_alone(on: Fixture) {
    let fabric = on.fabric().workflow(adds).state(counts()).start().await.unwrap();
    let source = fabric.start(adds, 100).id("s").await.unwrap();
    assert_eq!(source.result_within(SOON).await.unwrap(), 100 + 1 + 2 + 3);
    let before = (source.info().await.unwrap(), fabric.steps("s").await.unwrap());
    let fork = fabric.fork::<u32>("s", 1).id("f").await.unwrap();
    assert_eq!(fork.result_within(SOON).await.unwrap(), 100 + 1 + 4 + 5);
    let info = fork.info().await.unwrap();
    assert_eq!(info.forked_from, "s");
    assert_eq!((source.info().await.unwrap(), fabric.steps("s").await.unwrap()), before);
    let fresh = fabric.fork::<u32>("s", 0).timeout(SOON).await.unwrap();
    assert_eq!(fresh.result_within(SOON).await.unwrap(), 100 + 6 + 7 + 8, "0 copies nothing");
    assert_eq!(fresh.info().await.unwrap().timeout, Some(SOON));
    assert!(!fabric.fork::<u32>("s", 1).id("f").await.unwrap().id().is_empty(), "again: the same");
    assert_eq!(fabric.fork::<u32>("nobody", 0).await.unwrap_err().code(), "SF-0109");
    fabric.shutdown().await;
}

/// R94
async fn a_fork_may_have_other_input_and_patched_outcomes(on: Fixture) {
    let fabric = on.fabric().workflow(adds).state(counts()).start().await.unwrap();
    let source = fabric.start(adds, 100).id("s").await.unwrap();
    source.result_within(SOON).await.unwrap();
    let fork = fabric.fork::<u32>("s", 2).input(&200u32).patch(1, &50u32).await.unwrap();
    assert_eq!(fork.result_within(SOON).await.unwrap(), 200 + 1 + 50 + 4);
    let beyond = fabric.fork::<u32>("s", 2).patch(2, &1u32).await.unwrap_err();
    assert_eq!(beyond.code(), "SF-0116");
    fabric.shutdown().await;
}

async fn bulk_calls_touch_what_matches(on: Fixture) {
    let fabric = on.fabric().workflow(sleeper).workflow(quick).start().await.unwrap();
    for n in 0..5 {
        fabric.start(sleeper, ()).id(format!("s{n}")).await.unwrap();
    }
    fabric.start(quick, 1).id("q").await.unwrap().result_within(SOON).await.unwrap();
    let sleepers = || RunFilter { workflow: Some("sleeper".into()), ..RunFilter::default() };
    assert_eq!(fabric.matching(sleepers()).await.unwrap().len(), 5, "a dry run");
    assert_eq!(fabric.cancel_all(sleepers(), "all").await.unwrap().len(), 5);
    assert_eq!(fabric.cancel_all(sleepers(), "all").await.unwrap().len(), 0);
    let cancelled = RunFilter { status: vec![RunStatus::Cancelled], ..RunFilter::default() };
    assert_eq!(fabric.resume_all(cancelled).await.unwrap().len(), 5);
    let forked = fabric.fork_all(sleepers(), 0).await.unwrap();
    assert_eq!(forked.len(), 5);
    fabric.cancel_all(sleepers(), "end").await.unwrap();
    fabric.shutdown().await;
}

async fn listing_pages_through_everything_once(on: Fixture) {
    let client = on.client();
    for n in 0..25 {
        client.start_named::<u32>("quick", &n).id(format!("r{n:02}")).await.unwrap();
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = client.list_after(RunFilter::default(), after, 10).await.unwrap();
        seen.extend(page.runs.into_iter().map(|run| run.run_id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut expected: Vec<String> = (0..25).map(|n| format!("r{n:02}")).collect();
    expected.reverse();
    assert_eq!(seen, expected, "newest first, each once");
    let prefix = RunFilter { id_prefix: Some("r1".into()), ..RunFilter::default() };
    assert_eq!(client.list(prefix, 100).await.unwrap().runs.len(), 10);
}

/// Retention removes so many runs, sooner or later: it passes by what others have locked, and
/// claims on MySQL and MariaDB lock for a moment what lies beside what they look for.
async fn purged(fabric: &Steadfast, runs: u64) {
    let mut gone = 0;
    until("what is over is removed", async || {
        gone += fabric.purge(Duration::ZERO).await.unwrap();
        gone >= runs
    })
    .await;
    assert_eq!(gone, runs);
}

async fn retention_removes_only_what_ended(on: Fixture) {
    let fabric = on.fabric().workflow(sleeper).workflow(quick).start().await.unwrap();
    fabric.start(quick, 1).id("q").await.unwrap().result_within(SOON).await.unwrap();
    fabric.start(sleeper, ()).id("s").await.unwrap();
    assert_eq!(fabric.purge(Duration::from_secs(3600)).await.unwrap(), 0, "too young");
    purged(&fabric, 1).await;
    assert_eq!(fabric.get("q").await.unwrap_err().code(), "SF-0109");
    assert!(fabric.get("s").await.is_ok());
    fabric.cancel("s", "").await.unwrap();
    fabric.shutdown().await;
}

async fn joins_late(cx: Cx, _: ()) -> Result<u32> {
    let child = cx.spawn(quick, 7).id(format!("{}-child", cx.run_id())).await?;
    cx.wait_signal::<()>("go").await?;
    child.result().await
}

async fn a_join_of_a_child_that_retention_removed_is_an_error(on: Fixture) {
    let fabric = on.fabric().workflow(joins_late).workflow(quick).start().await.unwrap();
    let run = fabric.start(joins_late, ()).id("j").await.unwrap();
    let ended = async || fabric.get("j-child").await.is_ok_and(|run| run.status.is_terminal());
    until("the child is over", ended).await;
    purged(&fabric, 1).await;
    run.signal("go", ()).await.unwrap();
    let error = run.result_within(SOON).await.unwrap_err();
    assert_eq!(error.code(), "SF-0109");
    assert!(error.message().contains("j-child"), "{error}");
    fabric.shutdown().await;
}

/// X16
async fn a_shutdown_lets_steps_end_and_gives_the_rest_back(on: Fixture) {
    let counts = counts();
    let fabric = on.patient().workflow(gated).state(counts.clone()).start().await.unwrap();
    let run = fabric.start(gated, ()).await.unwrap();
    until("the step runs", async || counts.first.load(Ordering::SeqCst) == 1).await;
    let opens = {
        let counts = counts.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            counts.gate.add_permits(10);
        }
    };
    futures::future::join(fabric.shutdown(), opens).await;
    assert_eq!(fabric.live_runs(), 0);
    assert_eq!(counts.second.load(Ordering::SeqCst), 0, "no step begins while draining");
    let info = on.client().get(run.id()).await.unwrap();
    assert_eq!((info.status, info.worker.as_str()), (RunStatus::Pending, ""), "given back");
    let next = on.fabric().workflow(gated).state(counts.clone()).start().await.unwrap();
    assert_eq!(next.run::<u32>(run.id()).result_within(SOON).await.unwrap(), 2);
    assert_eq!(counts.first.load(Ordering::SeqCst), 1, "the drained step was recorded");
    assert_eq!(next.get(run.id()).await.unwrap().attempts, 1, "a clean release does not count");
    next.shutdown().await;
}

/// R90
async fn a_run_of_another_version_waits_and_is_explained(on: Fixture) {
    let new = on.fabric().workflow(quick).version("2").start().await.unwrap();
    let run = on.client().start_named::<u32>("quick", &5).version("1").await.unwrap();
    until("it is explained", async || {
        new.explain(run.id()).await.is_ok_and(|why| why.rule == Rule::NoWorkerOfVersion)
    })
    .await;
    assert_eq!(run.status().await.unwrap(), RunStatus::Enqueued);
    let old = on.fabric().workflow(quick).version("1").start().await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 5);
    old.shutdown().await;
    new.shutdown().await;
}
