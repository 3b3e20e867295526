//! Panics of ours: a thread or task that panics is reported and begun anew, what it had in hand is
//! answered, and others go on. The panics are placed by faults in the store, and at crash points
//! of the worker.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

mod env;

use std::time::Duration;

use env::Nervous;
use futures::future::join_all;
use steadfast::{Client, Cx, Queue, Result, Steadfast};
use steadfast_store::fault;
use steadfast_testkit::db::TestDb;

const SOON: Duration = Duration::from_secs(60);

async fn same(n: u32) -> Result<u32> {
    Ok(n)
}

async fn count(cx: Cx, n: u32) -> Result<u32> {
    for _ in 0..n {
        cx.step(same, n).await?;
    }
    Ok(n)
}

async fn listen(cx: Cx, _: ()) -> Result<String> {
    cx.wait_signal("word").await
}

async fn fabric(db: &TestDb) -> Steadfast {
    let fabric = Steadfast::open(&db.url).workflow(count).workflow(listen).lease(SOON).drain(SOON);
    fabric.start().await.unwrap()
}

/// The part of a database's URL that no other has: its name, or the folder of its file.
fn name(db: &TestDb) -> String {
    let parts = db.url.split('?').next().unwrap().rsplit('/');
    parts.into_iter().find(|part| *part != "test.db").unwrap().to_owned()
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = tokio::time::Instant::now() + SOON;
    while !holds().await {
        assert!(tokio::time::Instant::now() < give_up, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs, all at once, end as they should.
async fn works(fabric: &Steadfast) {
    let runs = join_all((0..20).map(|n| fabric.start(count, n % 5).into_future())).await;
    for (n, run) in (0..20).zip(runs) {
        assert_eq!(run.unwrap().result_within(SOON).await.unwrap(), n % 5);
    }
}

async fn stops(fabric: Steadfast) {
    let stopped = tokio::time::timeout(SOON / 2, fabric.shutdown()).await;
    assert!(stopped.is_ok(), "something is held");
}

/// An operation whose code panics, in company: it fails alone, however often it is tried.
async fn an_operation_that_panics_fails_alone(db: Option<TestDb>) {
    let Some(db) = db else { return };
    let fabric = fabric(&db).await;
    let run = fabric.start(listen, ()).await.unwrap();
    let mark = format!("poison-{}", name(&db));
    fault::arm("operation", &mark, u32::MAX);
    for _ in 0..3 {
        let poison = run.signal("word", &mark);
        let (refused, ()) = futures::join!(poison, works(&fabric));
        assert_eq!(refused.unwrap_err().code(), "SF-0408");
    }
    assert!(fabric.tally().panics >= 3, "{:?}", fabric.tally());
    assert!(!fabric.metrics().contains("store_panics_total 0"), "{}", fabric.metrics());
    fault::disarm(&mark);
    run.signal("word", &mark).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), mark);
    stops(fabric).await;
}

/// The writer itself panics with a batch in its hands: that batch is answered, and the next is
/// written.
async fn a_writer_that_panics_answers_and_is_begun_anew(db: Option<TestDb>) {
    let Some(db) = db else { return };
    let fabric = fabric(&db).await;
    let run = fabric.start(listen, ()).await.unwrap();
    until("it waits", async || fabric.live_runs() == 0).await;
    for n in 0..3 {
        let mark = format!("batch-{n}-{}", name(&db));
        fault::arm("batch", &mark, 1);
        let signal = tokio::time::timeout(SOON, run.signal("other", &mark)).await;
        assert_eq!(signal.unwrap().unwrap_err().code(), "SF-0408");
        assert_eq!(fault::disarm(&mark), 0);
        run.signal("other", &mark).await.unwrap();
        works(&fabric).await;
    }
    assert_eq!(fabric.tally().panics, 3);
    run.signal("word", "end").await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), "end");
    stops(fabric).await;
}

/// A task of the store panics several times: it is begun anew, and the store works.
async fn a_task_that_panics_is_begun_anew(db: Option<TestDb>, task: &'static str) {
    let Some(db) = db else { return };
    let (fabric, name) = (fabric(&db).await, name(&db));
    let other = Client::connect(&db.url).await.unwrap();
    let panics = || fabric.tally().panics + other.tally().panics;
    fault::arm(task, &name, 6);
    until(task, async || {
        // Work wakes the tasks that wait for some.
        works(&fabric).await;
        panics() >= 6
    })
    .await;
    assert_eq!((fault::disarm(&name), panics()), (0, 6));
    for n in 0..5 {
        // The worker is told by the other process, or finds out by looking.
        let run = other.start_named::<u32>("count", &3).id(format!("r{n}")).await.unwrap();
        assert_eq!(run.result_within(SOON).await.unwrap(), 3);
    }
    stops(fabric).await;
}

/// The worker panics at a point: the run that it had is recovered when its lease has run out, and
/// others go on.
async fn a_worker_that_panics_recovers(db: Option<TestDb>) {
    let Some(db) = db else { return };
    let env = Nervous::new();
    let fabric = Steadfast::open(&db.url).env(env.clone()).workflow(count).workflow(listen);
    let fabric = fabric.queue(Queue::new("slow")).lease(Duration::from_secs(2)).drain(SOON);
    let fabric = fabric.start().await.unwrap();
    for (point, task) in [
        ("record.before", "run"),
        ("record.after", "run"),
        ("finish.before", "run"),
        ("finish.after", "run"),
        ("run.claimed", "start"),
    ] {
        env.arm(point, 1);
        let began = fabric.start(count, 3).id(point).await;
        match task {
            "start" => assert_eq!(began.unwrap_err().code(), "SF-0408"),
            _ => drop(began.unwrap()),
        }
        works(&fabric).await;
        let result = fabric.run::<u32>(point).result_within(SOON).await;
        assert_eq!((result.unwrap(), env.left()), (3, 0), "{point}");
    }
    let text = fabric.metrics();
    for line in ["task_panics_total{task=\"run\"} 4", "task_panics_total{task=\"start\"} 1"] {
        assert!(text.contains(line), "{text}");
    }
    stops(fabric).await;
}

/// The loop of a queue panics between claiming and executing.
async fn a_loop_that_panics_is_begun_anew(db: Option<TestDb>) {
    let Some(db) = db else { return };
    let env = Nervous::new();
    let fabric = Steadfast::open(&db.url).env(env.clone()).workflow(count);
    let fabric = fabric.queue(Queue::new("slow")).lease(Duration::from_secs(2)).drain(SOON);
    let fabric = fabric.start().await.unwrap();
    for n in 0..2 {
        env.arm("run.claimed", 1);
        let run = fabric.start(count, 3).queue("slow").id(format!("q{n}")).await.unwrap();
        until("a loop panics", async || env.left() == 0).await;
        works(&fabric).await;
        assert_eq!(run.result_within(SOON).await.unwrap(), 3);
    }
    let text = fabric.metrics();
    assert!(text.contains("task_panics_total{task=\"queue\"} 2"), "{text}");
    // Not one loop more than there was.
    stops(fabric).await;
}

/// The task of a step panics around its body: the run is told, as if the body had.
async fn a_task_of_a_step_that_panics_fails_its_attempt(db: Option<TestDb>) {
    let Some(db) = db else { return };
    let env = Nervous::new();
    let fabric = Steadfast::open(&db.url).env(env.clone()).workflow(count).drain(SOON);
    let fabric = fabric.start().await.unwrap();
    for point in ["step.started", "step.performed"] {
        env.arm(point, 1);
        let failed = fabric.start(count, 3).await.unwrap().result_within(SOON).await.unwrap_err();
        assert_eq!(failed.code(), "SF-0205", "{point}: {failed}");
        works(&fabric).await;
    }
    stops(fabric).await;
}

macro_rules! on_each {
    ($($case:ident($($sqlite:expr; $servers:expr)?);)+) => { $(mod $case {
        use super::TestDb;

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn on_sqlite() {
            super::$case(Some(TestDb::sqlite()) $(, $sqlite)?).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn on_postgres() {
            super::$case(TestDb::postgres() $(, $servers)?).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn on_mysql() {
            super::$case(TestDb::mysql() $(, $servers)?).await;
        }
    })+ };
}

on_each! {
    an_operation_that_panics_fails_alone();
    a_writer_that_panics_answers_and_is_begun_anew();
    a_task_that_panics_is_begun_anew("watch"; "notifications");
    a_worker_that_panics_recovers();
    a_loop_that_panics_is_begun_anew();
    a_task_of_a_step_that_panics_fails_its_attempt();
}
