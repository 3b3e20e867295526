//! Benchmark driver for `dbos` 0.5.0 on Postgres.
//!
//! Run as `peer-dbos WORKLOAD --url postgres://USER@HOST:PORT/DATABASE [--n N] [--conc N] [--secs S]`;
//! see the documentation of `bench-kit` for the workloads. The pool has 20 connections, the
//! default being 10. A queue is polled every 10 ms in `w3`. In `w7` the value is that of the
//! default intervals (one second, for the queue and for the result), and `fast_poll_ms` that of
//! 10 ms for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bench_kit::{Args, die, memory, round};
use dbos::sysdb::types::{WorkflowFilter, WorkflowStatus};
use dbos::{Config, DBOS, Enqueue, QueueConflict, QueueOptions, StartOptions, WorkflowRef};
use serde_json::{Value, json};
use tokio::time::sleep;

#[path = "../../shared.rs"]
mod shared;

/// Runs that were done, that wait for a signal, and that are held in their third step.
static DONE: AtomicUsize = AtomicUsize::new(0);
static WAITING: AtomicUsize = AtomicUsize::new(0);
static HELD: AtomicUsize = AtomicUsize::new(0);
/// Whether third steps are held, for `w5-before`.
static HOLD: AtomicBool = AtomicBool::new(false);

const QUEUE: &str = "queue";
const FAST: Duration = Duration::from_millis(10);
const DEFAULT: Duration = Duration::from_secs(1);
/// A worker begins at the default interval and takes a tenth off at every poll: after the sum of
/// that series it is at the fastest.
const RAMP: Duration = Duration::from_secs(11);

type Result<T> = dbos::Result<T>;

struct App {
    dbos: DBOS,
    five: WorkflowRef<u32, Value>,
    single: WorkflowRef<u32, Value>,
    many: WorkflowRef<u32, u32>,
    wait: WorkflowRef<u32, u32>,
}

#[tokio::main]
async fn main() {
    let begin = Instant::now();
    let args = Args::parse();
    match args.workload.as_str() {
        "w1" => {
            let app = App::launch(&args, true, DEFAULT).await;
            shared::w1(&args, no_note, || app.five()).await;
        }
        "w2" => {
            let app = App::launch(&args, true, DEFAULT).await;
            shared::w2(&args, no_note, &app, |app| async move { app.five().await }).await;
        }
        "w3" => w3(&args).await,
        "w4" => w4(&args).await,
        "w5-before" => w5_before(&args).await,
        "w5-after" => w5_after(&args, begin).await,
        "w6" => {
            let app = App::launch(&args, true, DEFAULT).await;
            shared::w6(&args, no_note, |n| app.many(n)).await;
        }
        "w7" => w7(&args).await,
        other => panic!("unknown workload {other:?}"),
    }
}

async fn w3(args: &Args) {
    let app = App::launch(args, false, DEFAULT).await;
    app.queue(FAST).await;
    let filling = shared::from_tasks(args.n, &app, |app| async move { app.enqueue().await }).await;
    app.dbos.shutdown().await;

    let app = App::launch(args, true, DEFAULT).await;
    let begin = Instant::now();
    shared::reached(&DONE, args.n / 2).await;
    let half = begin.elapsed().as_secs_f64();
    let done = shared::reached(&DONE, args.n).await;
    app.settled().await;
    let serving = begin.elapsed().as_secs_f64();
    // Without the time in which the worker's polling interval comes down.
    let late = round(done.saturating_sub(args.n / 2) as f64 / (serving - half));
    shared::report_w3(args.n, filling, done, serving, json!({ "second_half": late }));
}

async fn w4(args: &Args) {
    let app = App::launch(args, true, DEFAULT).await;
    app.five().await;
    let me = std::process::id();
    let (before, begin) = (memory(me), Instant::now());
    let accepting = shared::from_tasks(args.n, &app, |app| async move { app.wait().await }).await;
    let waiting = shared::reached(&WAITING, args.n).await;
    let secs = begin.elapsed().as_secs_f64();
    sleep(Duration::from_secs(5)).await;
    let used = memory(me).saturating_sub(before);
    shared::report_w4(args.n, accepting, (waiting, secs), used, no_note());
}

async fn w5_before(args: &Args) {
    HOLD.store(true, Relaxed);
    let app = App::launch(args, true, DEFAULT).await;
    shared::from_tasks(args.n, &app, |app| async move { app.start_five().await }).await;
    let held = shared::reached(&HELD, args.n).await;
    assert_eq!(held, args.n, "not all runs are in their third step");
    die();
}

async fn w5_after(args: &Args, begin: Instant) {
    let app = App::launch(args, true, DEFAULT).await;
    let launched = round(begin.elapsed().as_secs_f64());
    let done = shared::reached(&DONE, args.n).await;
    app.settled().await;
    let secs = begin.elapsed().as_secs_f64();
    shared::report_w5(args.n, done, secs, json!({ "launch_s": launched }));
}

async fn w7(args: &Args) {
    let slow = {
        let app = App::launch(args, true, DEFAULT).await;
        app.queue(DEFAULT).await;
        app.queued().await;
        let slow = shared::in_turn(args.n, DEFAULT, || app.queued()).await;
        app.dbos.shutdown().await;
        slow
    };
    let app = App::launch(args, true, FAST).await;
    app.queue(FAST).await;
    sleep(RAMP).await;
    let fast = shared::in_turn(args.n, FAST, || app.queued()).await;
    shared::report_latency(&slow, json!({ "fast_poll_ms": round(fast.quantile(0.5)) }));
}

/// There is nothing to be said about the store.
fn no_note() -> Value {
    json!({})
}

/// Step `i` of a run.
async fn step(i: u32) -> Result<Value> {
    dbos::step("step", move || async move {
        if i == 2 && HOLD.load(Relaxed) {
            HELD.fetch_add(1, Relaxed);
            std::future::pending::<()>().await;
        }
        Result::Ok(json!({ "step": i, "ok": true }))
    })
    .await
}

async fn five_steps(_: u32) -> Result<Value> {
    let mut last = Value::Null;
    for i in 0..5 {
        last = step(i).await?;
    }
    DONE.fetch_add(1, Relaxed);
    Ok(last)
}

async fn one_step(_: u32) -> Result<Value> {
    let value = step(0).await?;
    DONE.fetch_add(1, Relaxed);
    Ok(value)
}

async fn many_steps(n: u32) -> Result<u32> {
    for i in 0..n {
        step(i).await?;
    }
    Ok(n)
}

async fn wait_for_signal(n: u32) -> Result<u32> {
    WAITING.fetch_add(1, Relaxed);
    let _: Option<String> = dbos::recv(None, Duration::from_secs(86_400)).await?;
    Ok(n)
}

impl App {
    /// An engine that serves its queues or does not, and that looks for results every `poll`.
    async fn launch(args: &Args, serve: bool, poll: Duration) -> Arc<Self> {
        let mut config = Config::new("bench", args.url.clone());
        config.app_version = Some("1".to_owned());
        config.max_connections = 20;
        config.outcome_poll_interval = Some(poll);
        config.listen_queues = if serve { None } else { Some(Vec::new()) };
        let dbos = DBOS::new(config);
        let once = "a name that is registered once";
        let five = dbos.register_workflow("five", five_steps).expect(once);
        let single = dbos.register_workflow("single", one_step).expect(once);
        let many = dbos.register_workflow("many", many_steps).expect(once);
        let wait = dbos.register_workflow("wait", wait_for_signal).expect(once);
        dbos.launch().await.expect("a database that can be reached");
        Arc::new(Self { dbos, five, single, many, wait })
    }

    async fn queue(&self, polling_interval: Duration) {
        let worker_concurrency = Some(100);
        let options = QueueOptions { worker_concurrency, polling_interval, ..Default::default() };
        let made = self.dbos.register_queue(QUEUE, options, QueueConflict::AlwaysUpdate).await;
        made.expect("a queue");
    }

    async fn five(&self) {
        self.five.run(0).await.expect("a run of five steps");
    }

    async fn many(&self, n: usize) {
        self.many.run(n as u32).await.expect("a run of many steps");
    }

    async fn start_five(&self) {
        self.five.start(0).await.expect("a start");
    }

    async fn wait(&self) {
        self.wait.start(0).await.expect("a start");
    }

    async fn enqueue(&self) {
        let options = StartOptions { queue: Some(Enqueue::new(QUEUE)), ..Default::default() };
        self.single.start_with(0, options).await.expect("a run on the queue");
    }

    async fn queued(&self) {
        let options = StartOptions { queue: Some(Enqueue::new(QUEUE)), ..Default::default() };
        let run = self.single.start_with(0, options).await.expect("a run on the queue");
        run.result().await.expect("the result of a queued run");
    }

    /// Waits until the last run is over in the database too.
    async fn settled(&self) {
        let filter = WorkflowFilter {
            status: vec![WorkflowStatus::Pending],
            limit: Some(1),
            ..Default::default()
        };
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) {
            let pending = self.dbos.list_workflows(&filter).await.expect("a list of runs");
            if pending.is_empty() {
                break;
            }
            sleep(Duration::from_millis(2)).await;
        }
    }
}
