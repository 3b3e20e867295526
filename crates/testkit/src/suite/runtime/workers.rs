//! Workers beside each other: of one name, with clocks that differ, and gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use steadfast::{Cx, Error, Queue, Result, TokioEnv};
use steadfast_core::env::Env;

use super::{Fixture, Offset, SOON, case_table, dies, doomed, until};

case_table! {
    the_second_worker_of_a_name_has_the_runs_and_the_first_stops,
    a_worker_killed_while_its_clock_was_ahead_leaves_its_run_and_its_place,
    a_live_worker_keeps_its_runs_whatever_the_clocks_are,
    a_worker_whose_name_holds_a_number_sign_is_refused,
}

/// How often each step of each run was called.
#[derive(Default)]
struct Calls(Mutex<BTreeMap<(u32, u32), u32>>);

impl Calls {
    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

const STEPS: u32 = 30;

async fn steps(cx: Cx, run: u32) -> Result<u32> {
    let calls = cx.state::<Arc<Calls>>()?;
    for step in 0..STEPS {
        let calls = calls.clone();
        let body = move || {
            let calls = calls.clone();
            async move {
                *calls.0.lock().unwrap().entry((run, step)).or_default() += 1;
                tokio::time::sleep(Duration::from_millis(30)).await;
                Ok::<_, Error>(())
            }
        };
        cx.step("work", body).await?;
    }
    Ok(run)
}

/// With a lease of a minute, so that nothing ends by itself.
async fn the_second_worker_of_a_name_has_the_runs_and_the_first_stops(on: Fixture) {
    const RUNS: u32 = 4;
    let calls = Arc::new(Calls::default());
    let build = || on.patient().workflow(steps).state(calls.clone()).worker_name("box");
    let first = build().start().await.unwrap();
    let mut runs = Vec::new();
    for n in 0..RUNS {
        runs.push(first.start(steps, n).await.unwrap());
    }
    until("steps were called", async || calls.count() > 12).await;
    let begun = Instant::now();
    let second = build().start().await.unwrap();
    until("the first has stopped", async || first.fault().is_some()).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let fault = first.run_until_stopped().await.unwrap_err();
    assert_eq!(fault.code(), "SF-0309");
    assert!(fault.message().contains(second.worker_id()), "{fault}");
    for (n, run) in (0..).zip(&runs) {
        assert_eq!(run.result_within(SOON).await.unwrap(), n);
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "not by a lease that ran out");
    assert_eq!(second.fault(), None);
    // A run that is started through the first is executed by the second.
    let late = first.start(steps, RUNS).await.unwrap();
    assert_eq!(late.result_within(SOON).await.unwrap(), RUNS);
    second.shutdown().await;
    let calls = calls.0.lock().unwrap();
    let again: Vec<_> = calls.iter().filter(|(_, calls)| **calls > 1).collect();
    let of_one_run = |run| again.iter().filter(|((of, _), _)| *of == run).count();
    assert!((0..RUNS).all(|run| of_one_run(run) <= 1), "only the step under way: {again:?}");
    assert!(again.iter().all(|(_, calls)| **calls == 2), "{again:?}");
    assert_eq!(calls.len(), (STEPS * (RUNS + 1)) as usize);
}

/// Stays for good the first time; counts.
async fn stays_once(cx: Cx, n: u32) -> Result<u32> {
    let calls = cx.state::<Arc<AtomicU32>>()?;
    let body = move || {
        let calls = calls.clone();
        async move {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                std::future::pending::<()>().await;
            }
            Ok::<_, Error>(n)
        }
    };
    cx.step("stay", body).await
}

async fn a_worker_killed_while_its_clock_was_ahead_leaves_its_run_and_its_place(on: Fixture) {
    let calls = Arc::new(AtomicU32::new(0));
    let calls_of_first = calls.clone();
    let build = move |on: &Fixture| on.fabric().workflow(stays_once).state(calls.clone());
    let observer = build(&on).queue(Queue::new("q").concurrency(1));
    let queue = on.client();
    queue.put_queue(Queue::new("q").concurrency(1)).await.unwrap();
    let there = on.clone();
    let (first, ahead) = (build(&on), Duration::from_secs(3600));
    let run_id = doomed(async move {
        let env = Arc::new(Offset::ahead(ahead));
        let fabric = first.env(env).start().await.unwrap();
        let run = fabric.start(stays_once, 1).queue("q").await.unwrap();
        let give_up = Instant::now() + SOON;
        loop {
            let row = there.client().get(run.id()).await.unwrap();
            if calls_of_first.load(Ordering::SeqCst) == 1 && row.wake_at > now_and(ahead / 2) {
                break;
            }
            assert!(Instant::now() < give_up, "it is not leased for an hour: {row:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        dies(fabric);
        run.id().to_owned()
    })
    .await;
    let killed = Instant::now();
    let observer = observer.start().await.unwrap();
    let next = observer.start(stays_once, 2).queue("q").await.unwrap();
    assert_eq!(observer.run::<u32>(run_id).result_within(SOON).await.unwrap(), 1);
    assert_eq!(next.result_within(SOON).await.unwrap(), 2, "the place on the queue is free");
    // The lease is 2 s; the machine may be busy.
    assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
    observer.shutdown().await;
}

fn now_and(more: Duration) -> steadfast_core::Timestamp {
    TokioEnv::current().now().after(more)
}

/// Longer than two leases.
async fn lasts(cx: Cx, _: ()) -> Result<()> {
    let calls = cx.state::<Arc<AtomicU32>>()?;
    let body = move || {
        let calls = calls.clone();
        async move {
            calls.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(9)).await;
            Ok::<_, Error>(())
        }
    };
    cx.step("last", body).await
}

/// Ahead itself, or looked at by one that is behind.
async fn a_live_worker_keeps_its_runs_whatever_the_clocks_are(on: Fixture) {
    let hour = Duration::from_secs(3600);
    let beside = async |name: &str, mine: Offset, theirs: Offset| {
        let calls = Arc::new(AtomicU32::new(0));
        let build = || {
            let fabric = on.fabric().workspace(format!("{}-{name}", on.workspace));
            let fabric = fabric.lease(Duration::from_secs(4));
            fabric.workflow(lasts).state(calls.clone())
        };
        let worker = build().env(Arc::new(mine)).start().await.unwrap();
        let run = worker.start(lasts, ()).await.unwrap();
        let observer = build().env(Arc::new(theirs)).start().await.unwrap();
        run.result_within(SOON).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{name}");
        worker.shutdown().await;
        observer.shutdown().await;
    };
    let none = Duration::ZERO;
    tokio::join!(
        beside("ahead", Offset::ahead(hour), Offset::ahead(none)),
        beside("behind", Offset::ahead(none), Offset::behind(hour)),
    );
}

/// Its incarnations would be taken for those of another name.
async fn a_worker_whose_name_holds_a_number_sign_is_refused(on: Fixture) {
    let Err(refused) = on.fabric().worker_name("box#1").start().await else { panic!("started") };
    assert_eq!(refused.code(), "SF-0105");
}
