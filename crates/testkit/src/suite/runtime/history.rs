//! Long histories and deadlines: what must hold however many records a run has, and from the moment
//! at which it has to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfast::{Cx, Result, Run, RunStatus, Steadfast, Timestamp, TokioEnv};
use steadfast_core::env::Env as _;

use super::{Fixture, SOON, case_table, until};

case_table! {
    a_history_longer_than_a_page_is_replayed_whole,
    a_history_of_100_000_records_is_recovered_forked_and_cancelled,
    a_run_past_its_deadline_has_ended_though_no_worker_looked,
    a_run_without_steps_does_not_succeed_after_its_deadline,
    the_earlier_of_time_limit_and_deadline_ends_a_run,
    a_worker_without_the_code_leaves_the_queue_to_others,
}

type Calls = Arc<AtomicU64>;

fn now() -> Timestamp {
    TokioEnv::current().now()
}

/// Records `n` computed values, waits, and returns their sum and the signal's value.
async fn tally(cx: Cx, n: u64) -> Result<u64> {
    let calls = cx.state::<Calls>()?;
    let mut sum = 0;
    for value in 0..n {
        sum += cx.compute("add", || {
            calls.fetch_add(1, Ordering::SeqCst);
            value
        })?;
    }
    let more: u64 = cx.wait_signal("go").await?;
    Ok(sum + more)
}

fn sum(n: u64) -> u64 {
    n * (n - 1) / 2
}

async fn suspended(run: &Run<u64>) {
    until("it is suspended", async || run.info().await.is_ok_and(|run| run.parked)).await;
}

/// Starts a run of `n` records; resumes one that was cancelled, forks one behind all records, and
/// lets all of them end, without computing anything again.
async fn live(fabric: &Steadfast, calls: &Calls, n: u64) {
    let run = fabric.start(tally, n).id(format!("run-{n}")).await.unwrap();
    suspended(&run).await;
    assert_eq!(calls.swap(0, Ordering::SeqCst), n);
    let fork = fabric.fork::<u64>(run.id(), n).id(format!("fork-{n}")).await.unwrap();
    let stopped = fabric.fork::<u64>(run.id(), n).id(format!("stopped-{n}")).await.unwrap();
    suspended(&fork).await;
    suspended(&stopped).await;
    stopped.cancel("enough").await.unwrap();
    assert_eq!(stopped.info().await.unwrap().status, RunStatus::Cancelled);
    fabric.resume(stopped.id()).await.unwrap();
    for (run, more) in [(&run, 1), (&fork, 2), (&stopped, 3)] {
        run.signal("go", more).await.unwrap();
        assert_eq!(run.result_within(SOON * 2).await.unwrap(), sum(n) + more);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 0, "nothing of {n} was computed again");
    assert_eq!(fabric.steps(fork.id()).await.unwrap().len() as u64, n + 1);
}

/// R93 R94: a page of records is 1,000.
async fn a_history_longer_than_a_page_is_replayed_whole(on: Fixture) {
    let calls = Calls::default();
    let fabric = on.patient().workflow(tally).state(calls.clone()).start().await.unwrap();
    for n in [999, 1000, 1001, 2500] {
        live(&fabric, &calls, n).await;
    }
    fabric.shutdown().await;
}

/// R93 R94: the most records that a run may have; its signal is the last of them.
async fn a_history_of_100_000_records_is_recovered_forked_and_cancelled(on: Fixture) {
    let calls = Calls::default();
    let fabric = on.patient().workflow(tally).state(calls.clone()).start().await.unwrap();
    live(&fabric, &calls, 99_999).await;
    fabric.shutdown().await;
}

async fn never(cx: Cx, _: ()) -> Result<u64> {
    let calls = cx.state::<Calls>()?;
    calls.fetch_add(1, Ordering::SeqCst);
    Ok(1)
}

/// R92: no process executes anything here until the deadline has passed.
async fn a_run_past_its_deadline_has_ended_though_no_worker_looked(on: Fixture) {
    let client = on.client();
    let deadline = now().after(Duration::from_secs(2));
    let run = client.start_named::<u64>("never", &()).deadline(deadline).await.unwrap();
    assert_eq!(run.info().await.unwrap().status, RunStatus::Enqueued);
    let error = run.result_within(SOON).await.unwrap_err();
    assert_eq!(error.code(), "SF-0304", "{error}");
    let info = run.info().await.unwrap();
    assert_eq!((info.status, info.finished_at), (RunStatus::Cancelled, Some(deadline)));
    assert_eq!(run.cancel("late").await.unwrap_err().code(), "SF-0114");
    let calls = Calls::default();
    let fabric = on.fabric().workflow(never).state(calls.clone()).start().await.unwrap();
    let other = fabric.start(never, ()).await.unwrap();
    assert_eq!(other.result_within(SOON).await.unwrap(), 1);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "the overdue run was not executed");
    fabric.shutdown().await;
}

async fn slow(cx: Cx, ms: u64) -> Result<u64> {
    cx.compute("slow", || std::thread::sleep(Duration::from_millis(ms)))?;
    Ok(ms)
}

/// R92: nothing leaves the process before the end, so only the store can refuse it.
async fn a_run_without_steps_does_not_succeed_after_its_deadline(on: Fixture) {
    let fabric = on.fabric().workflow(slow).start().await.unwrap();
    let limit = Duration::from_millis(100);
    let run = fabric.start(slow, 400).timeout(limit).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap_err().code(), "SF-0304");
    let info = run.info().await.unwrap();
    assert_eq!((info.status, info.output), (RunStatus::Cancelled, None));
    fabric.shutdown().await;
}

async fn waits(cx: Cx, _: ()) -> Result<u64> {
    cx.wait_signal("never").await
}

/// R92
async fn the_earlier_of_time_limit_and_deadline_ends_a_run(on: Fixture) {
    let fabric = on.fabric().workflow(waits).start().await.unwrap();
    let (soon, late) = (Duration::from_millis(200), Duration::from_secs(3600));
    for (limit, deadline) in [(soon, late), (late, soon)] {
        let deadline = now().after(deadline);
        let run = fabric.start(waits, ()).timeout(limit).deadline(deadline).await.unwrap();
        assert_eq!(run.result_within(SOON).await.unwrap_err().code(), "SF-0304");
        let info = run.info().await.unwrap();
        let took = info.started_at.unwrap().until(info.deadline_at.unwrap());
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
    fabric.shutdown().await;
}

/// R84 R90: a worker of an older program takes no place of a queue, begins no time limit and puts
/// no run aside.
async fn a_worker_without_the_code_leaves_the_queue_to_others(on: Fixture) {
    let queue = || steadfast::Queue::new("narrow").concurrency(1);
    let old = on.fabric().workflow(waits).queue(queue()).start().await.unwrap();
    let limit = Duration::from_secs(30);
    let start = |n: u32| old.start_named::<u64>("never", &()).id(format!("n{n}")).queue("narrow");
    for n in 0..60 {
        start(n).timeout(limit).await.unwrap();
    }
    // The older worker looks at the queue again and again.
    let own = old.start(waits, ()).queue("narrow").await.unwrap();
    until("its own run has the place", async || own.info().await.is_ok_and(|run| run.parked)).await;
    for n in 0..60 {
        let info = old.run::<u64>(&format!("n{n}")).info().await.unwrap();
        assert_eq!((info.status, info.attempts), (RunStatus::Enqueued, 0));
        assert_eq!(info.deadline_at, None, "its time limit has not begun");
    }
    own.cancel("make room").await.unwrap();
    let why = old.explain("n0").await.unwrap();
    assert_eq!(why.rule.as_str(), "no_worker_of_workflow", "{}", why.detail);
    let calls = Calls::default();
    let new = on.fabric().workflow(never).state(calls.clone()).start().await.unwrap();
    for n in 0..60 {
        assert_eq!(new.run::<u64>(&format!("n{n}")).result_within(SOON).await.unwrap(), 1);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 60);
    new.shutdown().await;
    old.shutdown().await;
}
