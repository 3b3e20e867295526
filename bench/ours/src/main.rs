//! The benchmark's workloads on Steadfast itself, over `sqlite://`, `postgres://` or `mysql://`.
//!
//! The workloads are described in `bench/kit`; `fleet` adds the one with several processes.
//! Run by `cargo xtask bench`; by hand: `bench-ours w2 --url sqlite:///tmp/b.db --conc 256`.

mod fleet;
mod history;
mod loads;
mod ticks;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bench_kit::{Args, Latencies, memory, report, round};
use serde_json::{Value, json};
use steadfast::{Builder, Client, Cx, Queue, Result, Steadfast};

/// Steps that were executed here, and runs whose code came to its end.
static STEPS: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);
/// Whether third steps hang, as they do in the process that is to be killed.
static HANG: AtomicBool = AtomicBool::new(false);

/// The queue of the workloads that use one.
const QUEUE: &str = "bench";
/// Tasks that start runs at the same time.
const STARTERS: usize = 256;

async fn work(i: u32) -> Result<Value> {
    if i == 2 && HANG.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    STEPS.fetch_add(1, Ordering::Relaxed);
    Ok(json!({ "step": i, "ok": true }))
}

async fn five(cx: Cx, _: u32) -> Result<Value> {
    let mut last = Value::Null;
    for i in 0..5 {
        last = cx.step(work, i).await?;
    }
    DONE.fetch_add(1, Ordering::Relaxed);
    Ok(last)
}

async fn single(cx: Cx, _: u32) -> Result<Value> {
    let value = cx.step(work, 0).await?;
    DONE.fetch_add(1, Ordering::Relaxed);
    Ok(value)
}

async fn many(cx: Cx, n: u32) -> Result<u32> {
    for i in 0..n {
        cx.step(work, i + 10).await?;
    }
    Ok(n)
}

async fn wait(cx: Cx, n: u32) -> Result<u32> {
    cx.wait_signal::<u32>("go").await?;
    Ok(n)
}

/// A fabric with every workflow of the benchmark.
fn fabric(args: &Args) -> Builder {
    Steadfast::open(args.url.as_str())
        .workflow(five)
        .workflow(single)
        .workflow(many)
        .workflow(wait)
        .worker_name("bench")
        .max_runs(10_000)
}

fn queue() -> Queue {
    Queue::new(QUEUE).worker_concurrency(100)
}

#[tokio::main]
async fn main() -> Result<()> {
    let begun = Instant::now();
    let args = Args::parse();
    match args.workload.as_str() {
        "w1" => latency(&args).await,
        "w2" => throughput(&args).await,
        "w3" => drain(&args).await,
        "w4" => suspended(&args).await,
        "w5-before" => before_the_crash(&args).await,
        "w5-after" => after_the_crash(&args, begun).await,
        "w6" => long_run(&args).await,
        "w7" => idle_latency(&args).await,
        "fill" => history::fill(&args).await,
        "w8" => fleet::drain(&args).await,
        "s1" => ticks::tick(&args).await,
        "l1" => loads::load(&args).await,
        "w8-serve" => fleet::serve(&args).await,
        other => panic!("there is no workload {other:?}"),
    }
}

async fn warm_up(fabric: &Steadfast) -> Result<()> {
    for i in 0..20 {
        fabric.start(five, i).await?.result().await?;
    }
    Ok(())
}

async fn latency(args: &Args) -> Result<()> {
    let fabric = fabric(args).start().await?;
    warm_up(&fabric).await?;
    let mut latencies = Latencies::default();
    for _ in 0..args.n {
        let begun = Instant::now();
        fabric.start(five, 1).await?.result().await?;
        latencies.push(begun.elapsed());
    }
    latencies.report();
    Ok(())
}

async fn throughput(args: &Args) -> Result<()> {
    let fabric = fabric(args).start().await?;
    warm_up(&fabric).await?;
    let before = fabric.tally();
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(args.secs);
    let callers = (0..args.conc).map(|_| {
        let fabric = fabric.clone();
        tokio::spawn(async move {
            let mut latencies = Latencies::default();
            while Instant::now() < end {
                let begun = Instant::now();
                fabric.start(five, 1).await?.result().await?;
                latencies.push(begun.elapsed());
            }
            Ok::<_, steadfast::Error>(latencies)
        })
    });
    let mut latencies = Latencies::default();
    for caller in callers.collect::<Vec<_>>() {
        latencies.extend(caller.await.expect("a caller does not panic")?);
    }
    let (runs, took) = (latencies.len() as f64, begun.elapsed().as_secs_f64());
    let spent = fabric.tally().since(before);
    let details = json!({
        "p50_ms": round(latencies.quantile(0.5)),
        "p99_ms": round(latencies.quantile(0.99)),
        "commits_per_run": round(spent.commits as f64 / runs),
        "statements_per_run": round(spent.statements as f64 / runs),
    });
    report(runs / took, details);
    Ok(())
}

/// Starts `n` runs from several tasks; gives how many a second.
async fn start_all<W, M>(client: &Client, n: usize, queue: &str, workflow: W) -> Result<f64>
where
    W: steadfast::Workflow<M, Input = u32> + Copy + Sync,
    W::Output: Send,
    M: 'static,
{
    let begun = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let starters = (0..STARTERS).map(|_| {
        let (client, next, queue) = (client.clone(), next.clone(), queue.to_owned());
        tokio::spawn(async move {
            while next.fetch_add(1, Ordering::Relaxed) < n {
                client.start(workflow, 1).queue(queue.as_str()).await?;
            }
            Ok::<_, steadfast::Error>(())
        })
    });
    for starter in starters.collect::<Vec<_>>() {
        starter.await.expect("a starter does not panic")?;
    }
    Ok(n as f64 / begun.elapsed().as_secs_f64())
}

async fn until_done(n: usize) {
    while DONE.load(Ordering::Relaxed) < n {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn drain(args: &Args) -> Result<()> {
    // A client starts and observes; nobody serves the queue yet.
    let client = Client::connect(&args.url).await?;
    client.put_queue(queue().paused(true)).await?;
    let enqueue = start_all(&client, args.n, QUEUE, single).await?;
    // Like the peers', the worker is there when the clock starts, and the last end is on disk when
    // it stops.
    let fabric = fabric(args).start().await?;
    let begun = Instant::now();
    client.put_queue(queue()).await?;
    until_done(args.n).await;
    while fabric.live_runs() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = begun.elapsed().as_secs_f64();
    fabric.shutdown().await;
    report(args.n as f64 / took, json!({ "enqueue": round(enqueue) }));
    Ok(())
}

async fn suspended(args: &Args) -> Result<()> {
    let fabric = fabric(args).start().await?;
    warm_up(&fabric).await?;
    let before = memory(std::process::id());
    let rate = start_all(&fabric, args.n, "default", wait).await?;
    while fabric.live_runs() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What a burst needed and gave back does not count as kept.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let kept = memory(std::process::id()).saturating_sub(before);
    report(rate, json!({ "bytes": round(kept as f64 / args.n as f64) }));
    Ok(())
}

async fn before_the_crash(args: &Args) -> Result<()> {
    HANG.store(true, Ordering::Relaxed);
    let fabric = fabric(args).start().await?;
    start_all(&fabric, args.n, "default", five).await?;
    while STEPS.load(Ordering::Relaxed) < 2 * args.n {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The second step's record is written after its body.
    tokio::time::sleep(Duration::from_millis(500)).await;
    bench_kit::die()
}

async fn after_the_crash(args: &Args, begun: Instant) -> Result<()> {
    let _fabric = fabric(args).start().await?;
    until_done(args.n).await;
    report(begun.elapsed().as_secs_f64(), Value::Null);
    Ok(())
}

async fn long_run(args: &Args) -> Result<()> {
    let fabric = fabric(args).start().await?;
    fabric.start(many, 10).await?.result().await?;
    let begun = Instant::now();
    let n = u32::try_from(args.n).expect("a number of steps");
    fabric.start(many, n).await?.result().await?;
    report(args.n as f64 / begun.elapsed().as_secs_f64(), Value::Null);
    Ok(())
}

async fn idle_latency(args: &Args) -> Result<()> {
    let fabric = fabric(args).queue(queue()).start().await?;
    // A process that submits and observes is not the one that serves.
    let client = Client::connect(&args.url).await?;
    let mut latencies = Latencies::default();
    for i in 0..args.n + 5 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let begun = Instant::now();
        client.start(single, 1).queue(QUEUE).await?.result().await?;
        if i >= 5 {
            latencies.push(begun.elapsed());
        }
    }
    latencies.report();
    fabric.shutdown().await;
    Ok(())
}
