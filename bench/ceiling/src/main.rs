//! The ceiling: the least an engine must write, with group commit and no engine around it.
//!
//! A run is a row that is inserted, five rows for its steps, and an update at its end; each is on
//! disk before the next begins. Writers take whatever waits, write it in one commit, and wake
//! everybody who waited. There is no fence, no lease, no lifecycle, no queue limit, no replay: what
//! an engine adds to this is what it costs.

mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bench_kit::{Args, Latencies, report, round};
use serde_json::{Value, json};
use writer::{Write, Writer};

/// Tasks that put runs on the queue, and slots that serve it.
const STARTERS: usize = 64;
const SLOTS: usize = 100;

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let writer = Writer::open(&args.url).await;
    for n in 0..20 {
        run(&writer, id(n), 5).await;
    }
    match args.workload.as_str() {
        "w1" => {
            let mut latencies = Latencies::default();
            for n in 0..args.n {
                let begun = Instant::now();
                run(&writer, id(100 + n), 5).await;
                latencies.push(begun.elapsed());
            }
            latencies.report();
        }
        "w2" => throughput(&args, writer).await,
        "w3" => drain(&args, writer).await,
        "w6" => {
            let begun = Instant::now();
            run(&writer, id(100), args.n).await;
            report(args.n as f64 / begun.elapsed().as_secs_f64(), Value::Null);
        }
        other => panic!("the ceiling has no workload {other:?}"),
    }
}

/// Ordered by time, as an engine's are.
fn id(n: usize) -> Arc<str> {
    format!("0193f0a1b2c3-{n:04x}-{:016x}", (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)).into()
}

async fn run(writer: &Writer, run: Arc<str>, steps: usize) {
    writer.put(vec![Write::Start(run.clone(), false)]).await;
    for step in 0..steps {
        let step = i64::try_from(step).expect("a number of steps");
        writer.put(vec![Write::Step(run.clone(), step)]).await;
    }
    writer.put(vec![Write::End(run)]).await;
}

async fn throughput(args: &Args, writer: Writer) {
    let next = Arc::new(AtomicUsize::new(1000));
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(args.secs);
    let callers = (0..args.conc).map(|_| {
        let (writer, next) = (writer.clone(), next.clone());
        tokio::spawn(async move {
            let mut runs = 0;
            while Instant::now() < end {
                run(&writer, id(next.fetch_add(1, Ordering::Relaxed)), 5).await;
                runs += 1;
            }
            runs
        })
    });
    let mut runs = 0;
    for caller in callers.collect::<Vec<_>>() {
        runs += caller.await.expect("a caller does not panic");
    }
    let commits = writer.commits() as f64 / f64::from(runs);
    let rate = f64::from(runs) / begun.elapsed().as_secs_f64();
    report(rate, json!({ "commits_per_run": round(commits) }));
}

async fn drain(args: &Args, writer: Writer) {
    let start = |run| vec![Write::Start(run, true)];
    let serve = |run: Arc<str>| vec![Write::Step(run.clone(), 0), Write::End(run)];
    let enqueue = for_each(args.n, STARTERS, &writer, start).await;
    let rate = for_each(args.n, SLOTS, &writer, serve).await;
    report(rate, json!({ "enqueue": round(enqueue) }));
}

/// Writes something for each of `n` runs from several tasks; gives how many a second.
async fn for_each(
    n: usize,
    tasks: usize,
    writer: &Writer,
    writes: impl Fn(Arc<str>) -> Vec<Write> + Copy + Send + 'static,
) -> f64 {
    let begun = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let tasks = (0..tasks).map(|_| {
        let (writer, next) = (writer.clone(), next.clone());
        tokio::spawn(async move {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= n {
                    return;
                }
                writer.put(writes(id(1000 + at))).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("a task does not panic");
    }
    n as f64 / begun.elapsed().as_secs_f64()
}
