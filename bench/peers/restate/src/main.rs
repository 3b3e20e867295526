//! Benchmark driver for Restate: server 1.7.12, endpoint written with `restate-sdk` 0.13.0.
//!
//! Run as `peer-restate WORKLOAD --url INGRESS --admin ADMIN --endpoint-port PORT --server-pid PID
//! [--n N] [--conc N] [--secs S]`; see the documentation of `bench-kit` for the workloads.
//! `INGRESS` and `ADMIN` are base URLs of a server that the runner has started; this process calls
//! it, and serves the endpoint that it calls, on the free port `PORT` of 127.0.0.1.
//!
//! The server is `node_modules/@restatedev/restate-server-linux-x64/bin/restate-server` after
//! `npm install --ignore-scripts --prefix DIR @restatedev/restate-server@1.7.12`. It is started as
//! `restate-server --base-dir DATA --node-name n1`, with an empty folder `DATA`, and in its
//! environment, so that it listens on three free ports of the loopback interface only:
//!
//! ```text
//! RESTATE_BIND_IP=127.0.0.1
//! RESTATE_ADVERTISED_HOST=127.0.0.1
//! RESTATE_LISTEN_MODE=tcp
//! RESTATE_BIND_PORT=…              node to node
//! RESTATE_INGRESS__BIND_PORT=…     --url http://127.0.0.1:…
//! RESTATE_ADMIN__BIND_PORT=…       --admin http://127.0.0.1:…
//! RESTATE_DISABLE_TELEMETRY=true
//! RESTATE_LOG_FILTER=warn
//! RESTATE_WORKER__INVOKER__CONCURRENT_INVOCATIONS_LIMIT=…   100 in w3, at least n in w4 and w5
//! ```
//!
//! The last one is the worker concurrency of the queue in `w3`; it is not set in `w1`, `w2`, `w6`
//! and `w7`, the default being 1,000. All else, and durability above all, is as it comes. The
//! server is up when `GET INGRESS/restate/health` and `GET ADMIN/health` succeed. `w5-before` kills
//! it before it kills itself. For `w5-after` the runner starts the server on the same `DATA` and
//! ports and, without waiting for it, this program with the same `--endpoint-port`: the endpoint's
//! address is in the database.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bench_kit::{Args, die, memory, option, round};
use restate_sdk::prelude::*;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio::time::sleep;

#[path = "../../shared.rs"]
mod shared;

/// Runs that were done, that wait for a signal, and that are held in their third step.
static DONE: AtomicUsize = AtomicUsize::new(0);
static WAITING: AtomicUsize = AtomicUsize::new(0);
static HELD: AtomicUsize = AtomicUsize::new(0);
/// Whether third steps are held, for `w5-before`.
static HOLD: AtomicBool = AtomicBool::new(false);
/// One-step runs begin when it is closed: nobody serves the queue of `w3` before that.
static GATE: Semaphore = Semaphore::const_new(0);

/// Past the minute after which the server suspends a run that waits.
const SETTLE: Duration = Duration::from_secs(65);

/// The server, and how to call it.
struct App {
    ingress: String,
    admin: String,
    endpoint: u16,
    server: u32,
    http: reqwest::Client,
}

#[tokio::main]
async fn main() {
    let begin = Instant::now();
    let args = Args::parse();
    let app = App::serve(&args).await;
    if args.workload != "w5-after" {
        app.register().await;
    }
    if args.workload != "w3" {
        GATE.close();
    }
    match args.workload.as_str() {
        "w1" => shared::w1(&args, no_note, || app.call("five", 0)).await,
        "w2" => {
            shared::w2(&args, no_note, &app, |app| async move { app.call("five", 0).await }).await;
        }
        "w3" => w3(&args, &app).await,
        "w4" => w4(&args, &app).await,
        "w5-before" => w5_before(&args, &app).await,
        "w5-after" => w5_after(&args, &app, begin).await,
        "w6" => shared::w6(&args, no_note, |n| app.call("many", n)).await,
        "w7" => {
            app.call("single", 0).await;
            let took = shared::in_turn(args.n, Duration::ZERO, || app.call("single", 0)).await;
            shared::report_latency(&took, no_note());
        }
        other => panic!("unknown workload {other:?}"),
    }
}

async fn w3(args: &Args, app: &Arc<App>) {
    // The first call to a new server waits until its partitions are ready.
    app.call("many", 1).await;
    let filling =
        shared::from_tasks(args.n, app, |app| async move { app.send("single").await }).await;
    GATE.close();
    let begin = Instant::now();
    let done = shared::reached(&DONE, args.n).await;
    shared::report_w3(args.n, filling, done, begin.elapsed().as_secs_f64(), no_note());
}

async fn w4(args: &Args, app: &Arc<App>) {
    app.call("five", 0).await;
    let (before, begin) = (app.memory(), Instant::now());
    let accepting =
        shared::from_tasks(args.n, app, |app| async move { app.send("wait").await }).await;
    let waiting = shared::reached(&WAITING, args.n).await;
    let secs = begin.elapsed().as_secs_f64();
    sleep(SETTLE).await;
    let used = app.memory().saturating_sub(before);
    shared::report_w4(args.n, accepting, (waiting, secs), used, no_note());
}

async fn w5_before(args: &Args, app: &Arc<App>) {
    HOLD.store(true, Relaxed);
    shared::from_tasks(args.n, app, |app| async move { app.send("five").await }).await;
    let held = shared::reached(&HELD, args.n).await;
    assert_eq!(held, args.n, "not all runs are in their third step");
    let killed = Command::new("kill").args(["-9", &app.server.to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()), "no server {}", app.server);
    // Its ports and its files are free for the next one when its last thread is gone.
    while threads(app.server) > 0 {
        sleep(Duration::from_millis(10)).await;
    }
    die();
}

async fn w5_after(args: &Args, app: &Arc<App>, begin: Instant) {
    while !app.up().await {
        sleep(Duration::from_millis(10)).await;
    }
    let up = round(begin.elapsed().as_secs_f64());
    let done = shared::reached(&DONE, args.n).await;
    shared::report_w5(args.n, done, begin.elapsed().as_secs_f64(), json!({ "launch_s": up }));
}

/// Threads of a process that have not ended.
fn threads(pid: u32) -> usize {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let stats =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.filter(|stat| !stat.contains(") Z ")).count()
}

/// There is nothing to be said about the store.
fn no_note() -> Value {
    json!({})
}

struct Bench;

#[service]
impl Bench {
    #[handler]
    async fn five(&self, ctx: Context<'_>, _: Json<usize>) -> Result<Json<Value>, HandlerError> {
        let mut last = Value::Null;
        for i in 0..5 {
            last = step(&ctx, i).await?;
        }
        DONE.fetch_add(1, Relaxed);
        Ok(Json(last))
    }

    #[handler]
    async fn single(&self, ctx: Context<'_>, _: Json<usize>) -> Result<Json<Value>, HandlerError> {
        // It never gives a permit: it ends with an error when the gate is closed.
        let _ = GATE.acquire().await;
        let value = step(&ctx, 0).await?;
        DONE.fetch_add(1, Relaxed);
        Ok(Json(value))
    }

    #[handler]
    async fn many(&self, ctx: Context<'_>, n: Json<usize>) -> Result<Json<usize>, HandlerError> {
        for i in 0..n.0 {
            step(&ctx, i).await?;
        }
        Ok(n)
    }

    #[handler]
    async fn wait(&self, ctx: Context<'_>, n: Json<usize>) -> Result<Json<usize>, HandlerError> {
        let (_, signal) = ctx.awakeable::<String>();
        WAITING.fetch_add(1, Relaxed);
        signal.await?;
        Ok(n)
    }
}

/// Step `i` of a run.
async fn step(ctx: &Context<'_>, i: usize) -> Result<Value, HandlerError> {
    let body = || async move {
        if i == 2 && HOLD.load(Relaxed) {
            HELD.fetch_add(1, Relaxed);
            std::future::pending::<()>().await;
        }
        Ok(Json(json!({ "step": i, "ok": true })))
    };
    Ok(ctx.run(body).name("step").await?.into_inner())
}

/// A listener whose connections send at once, which they have from it. The server of the SDK does
/// not see to that, and a short answer then waits for an acknowledgement that comes 40 ms late.
fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_nodelay(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    socket.listen(1024)
}

impl App {
    /// Serves the endpoint.
    async fn serve(args: &Args) -> Arc<Self> {
        let words: Vec<String> = std::env::args().collect();
        let endpoint = option(&words, "--endpoint-port", 9080);
        let listener = listen(endpoint).expect("a free port");
        let server = HttpServer::new(Endpoint::builder().bind(Bench).build());
        tokio::spawn(server.serve(listener));
        let http = reqwest::Client::builder().pool_max_idle_per_host(512).build();
        Arc::new(Self {
            ingress: args.url.clone(),
            admin: option(&words, "--admin", "http://127.0.0.1:9070".to_owned()),
            endpoint,
            server: option(&words, "--server-pid", 0),
            http: http.expect("an HTTP client"),
        })
    }

    /// Tells the server about the endpoint.
    async fn register(&self) {
        let uri = format!("http://127.0.0.1:{}", self.endpoint);
        let body = json!({ "uri": uri, "force": true });
        let request = self.http.post(format!("{}/deployments", self.admin)).json(&body);
        let answer = request.send().await.expect("a server that can be reached");
        assert!(answer.status().is_success(), "{}", answer.status());
    }

    /// Calls a handler and waits for its response.
    async fn call(&self, handler: &str, n: usize) {
        let url = format!("{}/Bench/{handler}", self.ingress);
        let answer = self.http.post(url).json(&n).send().await.expect("an answer");
        assert!(answer.status().is_success(), "{handler}: {}", answer.status());
        answer.bytes().await.expect("a response");
    }

    /// Calls a handler and waits until the server has the call.
    async fn send(&self, handler: &str) {
        self.call(&format!("{handler}/send"), 0).await;
    }

    async fn up(&self) -> bool {
        let answer = self.http.get(format!("{}/restate/health", self.ingress)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Memory of the server and of the endpoint.
    fn memory(&self) -> u64 {
        memory(self.server) + memory(std::process::id())
    }
}
