//! Benchmark driver for `duroxide` 0.1.32 with its SQLite provider.
//!
//! Run as `peer-duroxide WORKLOAD --url sqlite:FILE [--n N] [--conc N] [--secs S]`; see the
//! documentation of `bench-kit` for the workloads. The dispatchers poll every 5 ms (the default is
//! 100), 16 for orchestrations and 64 for activities (100 in `w3`; the defaults are 2 and 2).
//! The provider asks for `synchronous = WAL`, which SQLite does not know and takes for NORMAL;
//! nothing it offers changes that. A caller looks for a result after 5 ms, then ever less often,
//! down to every 100 ms, which cannot be set either.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bench_kit::{Args, die, memory};
use duroxide::providers::sqlite::SqliteProvider;
use duroxide::providers::{Provider, TagFilter};
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{
    ActivityContext, Client, OrchestrationContext, OrchestrationRegistry, OrchestrationStatus,
};
use serde_json::{Value, json};
use tokio::time::sleep;

#[path = "../../shared.rs"]
mod shared;

/// Runs that were done, and that are held in their third step. A turn that conflicts with another
/// is repeated: these may be too high, and the database has the last word.
static DONE: AtomicUsize = AtomicUsize::new(0);
static HELD: AtomicUsize = AtomicUsize::new(0);
/// Whether third steps are held, for `w5-before`.
static HOLD: AtomicBool = AtomicBool::new(false);
/// Runs that the engine failed after too many conflicts in its database.
static FAILED: AtomicUsize = AtomicUsize::new(0);
/// Number of the next run, for its name.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The tag of third steps in `w5`.
const THIRD: &str = "third";
const LIMIT: Duration = Duration::from_secs(300);
/// When no run ends for this long, twice the time for which a worker locks its step, none will.
const STALLED: Duration = Duration::from_secs(60);

struct App {
    store: Arc<dyn Provider>,
    client: Client,
    /// What tells the runs of this process from those of others.
    prefix: String,
}

#[tokio::main]
async fn main() {
    let begin = Instant::now();
    let args = Args::parse();
    // Else the runtime writes a line to the standard output for every conflict in its database.
    let silence = tracing::subscriber::NoSubscriber::new();
    tracing::subscriber::set_global_default(silence).expect("the only subscriber");
    let app = App::open(&args).await;
    match args.workload.as_str() {
        "w1" => {
            let _runtime = app.serve(16, 64, TagFilter::DefaultOnly).await;
            shared::w1(&args, note, || app.run("five", 0)).await;
        }
        "w2" => {
            let _runtime = app.serve(16, 64, TagFilter::DefaultOnly).await;
            shared::w2(&args, note, &app, |app| async move { app.run("five", 0).await }).await;
        }
        "w3" => w3(&args, &app).await,
        "w4" => w4(&args, &app).await,
        "w5-before" => w5_before(&args, &app).await,
        "w5-after" => w5_after(&args, &app, begin).await,
        "w6" => {
            let _runtime = app.serve(16, 64, TagFilter::DefaultOnly).await;
            shared::w6(&args, note, |n| app.run("many", n)).await;
        }
        "w7" => {
            let _runtime = app.serve(16, 64, TagFilter::DefaultOnly).await;
            app.run("single", 0).await;
            let interval = Duration::from_millis(5);
            let took = shared::in_turn(args.n, interval, || app.run("single", 0)).await;
            shared::report_latency(&took, note());
        }
        other => panic!("unknown workload {other:?}"),
    }
    // Dispatchers may be in the middle of a poll; there is nothing to wait for.
    std::process::exit(0);
}

/// What is to be said about the store.
fn note() -> Value {
    json!({ "synchronous": "normal", "failed": FAILED.load(Relaxed) })
}

async fn w3(args: &Args, app: &Arc<App>) {
    let filling =
        shared::from_tasks(args.n, app, |app| async move { app.start("single", 0).await }).await;
    let _runtime = app.serve(16, 100, TagFilter::DefaultOnly).await;
    let begin = Instant::now();
    let (done, end) = app.completed(args.n).await;
    shared::report_w3(args.n, filling, done, (end - begin).as_secs_f64(), note());
}

async fn w4(args: &Args, app: &Arc<App>) {
    let _runtime = app.serve(16, 64, TagFilter::DefaultOnly).await;
    app.run("five", 0).await;
    let me = std::process::id();
    let (before, begin) = (memory(me), Instant::now());
    let accepting =
        shared::from_tasks(args.n, app, |app| async move { app.start("wait", 0).await }).await;
    let mut left = args.n;
    // A run waits for its signal when its first turn is off the queue.
    while left > 0 && begin.elapsed() < LIMIT {
        left = app.client.get_queue_depths().await.expect("a queue's length").orchestrator_queue;
        sleep(Duration::from_millis(20)).await;
    }
    let secs = begin.elapsed().as_secs_f64();
    sleep(Duration::from_secs(5)).await;
    let used = memory(me).saturating_sub(before);
    shared::report_w4(args.n, accepting, (args.n - left, secs), used, note());
}

/// One runtime brings the runs to their third step, without conflicts in which some could get
/// lost. Another one, with as many workers as there are runs, takes those steps and keeps them.
async fn w5_before(args: &Args, app: &Arc<App>) {
    HOLD.store(true, Relaxed);
    shared::from_tasks(args.n, app, |app| async move { app.start("tagged", 0).await }).await;
    let _first = app.serve(1, 1, TagFilter::DefaultOnly).await;
    let begin = Instant::now();
    while app.client.get_queue_depths().await.expect("a queue's length").worker_queue < args.n
        && begin.elapsed() < LIMIT
    {
        sleep(Duration::from_millis(20)).await;
    }
    let _second = app.serve(1, args.n, TagFilter::Tags(HashSet::from([THIRD.to_owned()]))).await;
    let held = shared::reached(&HELD, args.n).await;
    assert_eq!(held, args.n, "not all runs are in their third step");
    die();
}

async fn w5_after(args: &Args, app: &Arc<App>, begin: Instant) {
    let _runtime = app.serve(16, 64, TagFilter::Any).await;
    let (done, end) = app.completed(args.n).await;
    shared::report_w5(args.n, done, (end - begin).as_secs_f64(), note());
}

/// A step: the activity of every orchestration here.
async fn activity(_: ActivityContext, i: String) -> Result<String, String> {
    if i == "2" && HOLD.load(Relaxed) {
        HELD.fetch_add(1, Relaxed);
        std::future::pending::<()>().await;
    }
    Ok(json!({ "step": i, "ok": true }).to_string())
}

async fn steps(ctx: OrchestrationContext, n: usize) -> Result<String, String> {
    let mut last = String::new();
    for i in 0..n {
        last = ctx.schedule_activity("step", i.to_string()).await?;
    }
    DONE.fetch_add(1, Relaxed);
    Ok(last)
}

async fn many_steps(ctx: OrchestrationContext, n: String) -> Result<String, String> {
    let n = n.parse().map_err(|error| format!("{n}: {error}"))?;
    steps(ctx, n).await
}

/// Five steps, of which the third can be left to workers of its own.
async fn tagged_steps(ctx: OrchestrationContext, _: String) -> Result<String, String> {
    for i in 0..5 {
        let step = ctx.schedule_activity("step", i.to_string());
        let step = if i == 2 { step.with_tag(THIRD) } else { step };
        step.await?;
    }
    DONE.fetch_add(1, Relaxed);
    Ok(String::new())
}

async fn wait_for_signal(ctx: OrchestrationContext, _: String) -> Result<String, String> {
    Ok(ctx.schedule_wait("signal").await)
}

impl App {
    async fn open(args: &Args) -> Arc<Self> {
        let path = args.url.strip_prefix("sqlite:").expect("a URL that begins with sqlite:");
        if !Path::new(path).exists() {
            std::fs::File::create(path).expect("a file that can be made");
        }
        let store = SqliteProvider::new(&args.url, None).await.expect("a file that can be opened");
        let store: Arc<dyn Provider> = Arc::new(store);
        let client = Client::new(store.clone());
        Arc::new(Self { store, client, prefix: std::process::id().to_string() })
    }

    async fn serve(&self, turns: usize, workers: usize, filter: TagFilter) -> Arc<Runtime> {
        let activities = ActivityRegistry::builder().register("step", activity).build();
        let orchestrations = OrchestrationRegistry::builder()
            .register("five", |ctx, _: String| steps(ctx, 5))
            .register("single", |ctx, _: String| steps(ctx, 1))
            .register("many", many_steps)
            .register("tagged", tagged_steps)
            .register("wait", wait_for_signal)
            .build();
        let options = RuntimeOptions {
            orchestration_concurrency: turns,
            worker_concurrency: workers,
            dispatcher_min_poll_interval: Duration::from_millis(5),
            worker_tag_filter: filter,
            ..Default::default()
        };
        Runtime::start_with_options(self.store.clone(), activities, orchestrations, options).await
    }

    /// Starts a run. Returns its name.
    async fn begin(&self, name: &str, n: usize) -> String {
        let id = format!("{}-{}", self.prefix, NEXT.fetch_add(1, Relaxed));
        self.client.start_orchestration(&id, name, n.to_string()).await.expect("a start");
        id
    }

    async fn start(&self, name: &str, n: usize) {
        self.begin(name, n).await;
    }

    /// A run that succeeds: one that the engine fails is counted, and another takes its place.
    async fn run(&self, name: &str, n: usize) {
        loop {
            let id = self.begin(name, n).await;
            let end = self.client.wait_for_orchestration(&id, LIMIT).await;
            match end.expect("a run that ends") {
                OrchestrationStatus::Completed { .. } => return,
                _ => FAILED.fetch_add(1, Relaxed),
            };
        }
    }

    /// Waits until `n` runs are over, well or not. Returns how many are well, and when the last of
    /// them was: a run may get lost, and nothing more happens then.
    async fn completed(&self, n: usize) -> (usize, Instant) {
        let (mut done, mut last) = (0, Instant::now());
        loop {
            let metrics = self.client.get_system_metrics().await.expect("the runs' numbers");
            let failed = metrics.failed_instances as usize;
            if metrics.completed_instances as usize > done {
                (done, last) = (metrics.completed_instances as usize, Instant::now());
            }
            if done + failed >= n || last.elapsed() > STALLED {
                FAILED.store(failed, Relaxed);
                return (done.min(n), last);
            }
            // It counts rows, which takes the time of those that work: not often before the end.
            let near = DONE.load(Relaxed) >= n;
            sleep(Duration::from_millis(if near { 20 } else { 200 })).await;
        }
    }
}
