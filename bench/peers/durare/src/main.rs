//! Benchmark driver for `durare` 0.5.0 on Postgres or SQLite.
//!
//! Run as `peer-durare WORKLOAD --url URL [--n N] [--conc N] [--secs S]`, the URL being
//! `postgres://USER@HOST:PORT/DATABASE` or `sqlite:FILE`; see the documentation of `bench-kit` for
//! the workloads. The pool is ours: 20 connections on Postgres (the default is 8), and on SQLite
//! the default settings but for `synchronous`, which is FULL instead of NORMAL, as a strict step
//! must survive a power cut. A queue is polled every 10 ms in `w3`. In `w7` the value is that of
//! the default interval of one second, and `fast_poll_ms` that of 10 ms; a waiting caller looks for
//! the result every 100 ms in both, which cannot be set.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bench_kit::{Args, die, memory, round};
use durare::{
    DurableContext, DurableEngine, ListFilter, PostgresProvider, Result, STATUS_PENDING,
    SqliteProvider, StateProvider, WorkflowHandle, WorkflowOptions, WorkflowQueue,
};
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
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

/// An engine, and what its database promises.
struct App {
    engine: DurableEngine,
    /// Details for the report.
    store: Value,
}

#[tokio::main]
async fn main() {
    let begin = Instant::now();
    let args = Args::parse();
    match args.workload.as_str() {
        "w1" => {
            let app = App::launch(&args, true, DEFAULT).await;
            shared::w1(&args, || app.note(), || app.five()).await;
        }
        "w2" => {
            let app = App::launch(&args, true, DEFAULT).await;
            shared::w2(&args, || app.note(), &app, |app| async move { app.five().await }).await;
        }
        "w3" => w3(&args).await,
        "w4" => w4(&args).await,
        "w5-before" => w5_before(&args).await,
        "w5-after" => w5_after(&args, begin).await,
        "w6" => {
            let app = App::launch(&args, true, DEFAULT).await;
            shared::w6(&args, || app.note(), |n| app.many(n)).await;
        }
        "w7" => w7(&args).await,
        other => panic!("unknown workload {other:?}"),
    }
}

async fn w3(args: &Args) {
    let app = App::launch(args, false, FAST).await;
    let filling = shared::from_tasks(args.n, &app, |app| async move { app.enqueue().await }).await;
    app.shutdown().await;

    let app = App::launch(args, true, FAST).await;
    let begin = Instant::now();
    let done = shared::reached(&DONE, args.n).await;
    app.settled().await;
    let serving = begin.elapsed().as_secs_f64();
    shared::report_w3(args.n, filling, done, serving, app.note());
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
    shared::report_w4(args.n, accepting, (waiting, secs), used, app.note());
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
    app.engine.recover().await.expect("the runs of the process that died");
    let done = shared::reached(&DONE, args.n).await;
    app.settled().await;
    shared::report_w5(args.n, done, begin.elapsed().as_secs_f64(), app.note());
}

async fn w7(args: &Args) {
    let app = App::launch(args, true, DEFAULT).await;
    app.queued().await;
    let slow = shared::in_turn(args.n, DEFAULT, || app.queued()).await;
    app.shutdown().await;
    let app = App::launch(args, true, FAST).await;
    app.queued().await;
    let fast = shared::in_turn(args.n, FAST, || app.queued()).await;
    let mut note = app.note();
    note["fast_poll_ms"] = json!(round(fast.quantile(0.5)));
    shared::report_latency(&slow, note);
}

/// Step `i` of a run.
async fn step(ctx: &DurableContext, i: u32) -> Result<Value> {
    ctx.step("step", move || async move {
        if i == 2 && HOLD.load(Relaxed) {
            HELD.fetch_add(1, Relaxed);
            std::future::pending::<()>().await;
        }
        Ok(json!({ "step": i, "ok": true }))
    })
    .await
}

async fn five_steps(ctx: DurableContext, _: u32) -> Result<Value> {
    let mut last = Value::Null;
    for i in 0..5 {
        last = step(&ctx, i).await?;
    }
    DONE.fetch_add(1, Relaxed);
    Ok(last)
}

async fn one_step(ctx: DurableContext, _: u32) -> Result<Value> {
    let value = step(&ctx, 0).await?;
    DONE.fetch_add(1, Relaxed);
    Ok(value)
}

async fn many_steps(ctx: DurableContext, n: u32) -> Result<Value> {
    for i in 0..n {
        step(&ctx, i).await?;
    }
    Ok(json!(n))
}

async fn wait_for_signal(ctx: DurableContext, n: u32) -> Result<Value> {
    WAITING.fetch_add(1, Relaxed);
    let _: Option<String> = ctx.recv("signal", Duration::from_secs(86_400)).await?;
    Ok(json!(n))
}

async fn postgres(url: &str) -> PostgresProvider {
    let options = PgConnectOptions::from_str(url).expect("a Postgres URL");
    let options = options.options([("search_path", "dbos")]);
    let pool = PgPoolOptions::new().max_connections(20).connect_with(options).await;
    let pool = pool.expect("a database that can be reached");
    PostgresProvider::from_pool_with_schema(pool, "dbos").expect("a schema's name")
}

async fn sqlite(url: &str) -> SqlitePool {
    let options = SqliteConnectOptions::from_str(url)
        .expect("an SQLite URL")
        .create_if_missing(true)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(5));
    let pool = SqlitePoolOptions::new().max_connections(5).connect_with(options).await;
    pool.expect("a file that can be opened")
}

/// What the connections of a pool really use.
async fn synchronous(pool: &SqlitePool) -> &'static str {
    let level: i64 = sqlx::query_scalar("PRAGMA synchronous")
        .fetch_one(pool)
        .await
        .expect("a setting that can be read");
    ["off", "normal", "full", "extra"][level as usize]
}

impl App {
    /// An engine that serves the queue or does not, and polls it every `poll`.
    async fn launch(args: &Args, serve: bool, poll: Duration) -> Arc<Self> {
        let mut store = json!({});
        let provider: Arc<dyn StateProvider> = if args.url.starts_with("sqlite:") {
            let pool = sqlite(&args.url).await;
            store["synchronous"] = json!(synchronous(&pool).await);
            Arc::new(SqliteProvider::from_pool(pool))
        } else {
            Arc::new(postgres(&args.url).await)
        };
        let queue = WorkflowQueue::new(QUEUE).worker_concurrency(100).base_polling_interval(poll);
        let mut builder = DurableEngine::builder(provider);
        builder.app_version("1").register_queue(queue);
        builder.register("five", five_steps).register("single", one_step);
        builder.register("many", many_steps).register("wait", wait_for_signal);
        if !serve {
            builder.listen_queues(Vec::<String>::new());
        }
        let engine = builder.build().await.expect("an engine");
        engine.launch().await.expect("an engine that runs");
        Arc::new(Self { engine, store })
    }

    async fn shutdown(&self) {
        self.engine.shutdown(Duration::from_secs(5)).await.expect("an engine that stops");
    }

    async fn start(&self, name: &str, n: usize, queue: Option<&str>) -> WorkflowHandle<Value> {
        let options =
            WorkflowOptions { queue: queue.map(str::to_owned), ..WorkflowOptions::default() };
        self.engine.start(name, n as u32, options).await.expect("a start")
    }

    async fn five(&self) {
        self.start("five", 0, None).await.result().await.expect("a run of five steps");
    }

    async fn many(&self, n: usize) {
        self.start("many", n, None).await.result().await.expect("a run of many steps");
    }

    async fn start_five(&self) {
        self.start("five", 0, None).await;
    }

    async fn wait(&self) {
        self.start("wait", 0, None).await;
    }

    async fn enqueue(&self) {
        self.start("single", 0, Some(QUEUE)).await;
    }

    async fn queued(&self) {
        self.start("single", 0, Some(QUEUE)).await.result().await.expect("a queued run's result");
    }

    fn note(&self) -> Value {
        self.store.clone()
    }

    /// Waits until the last run is over in the database too.
    async fn settled(&self) {
        let filter = ListFilter {
            status: vec![STATUS_PENDING.to_owned()],
            limit: Some(1),
            ..ListFilter::default()
        };
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) {
            let pending = self.engine.list_workflows(&filter).await.expect("a list of runs");
            if pending.is_empty() {
                break;
            }
            sleep(Duration::from_millis(2)).await;
        }
    }
}
