//! The loops and the lines that every driver beside this file needs.
//!
//! `note` is always what a driver has to say besides: details for the report.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bench_kit::{Args, Latencies, report, round};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Runs before the clock starts.
const WARM_UP: usize = 20;
/// Tasks that start or enqueue runs.
const TASKS: usize = 256;
/// After this long a workload that is not over is reported as it stands.
const LIMIT: Duration = Duration::from_secs(300);

/// `w1`: runs one after the other.
pub async fn w1<F: Future<Output = ()>>(
    args: &Args,
    note: impl Fn() -> Value,
    run: impl Fn() -> F,
) {
    in_turn(WARM_UP, Duration::ZERO, &run).await;
    let took = in_turn(args.n, Duration::ZERO, &run).await;
    report_latency(&took, note());
}

/// `w2`: runs side by side for a while.
pub async fn w2<P, F, R>(args: &Args, note: impl Fn() -> Value, peer: &Arc<P>, run: R)
where
    P: Send + Sync + 'static,
    F: Future<Output = ()> + Send,
    R: Fn(Arc<P>) -> F + Copy + Send + 'static,
{
    in_turn(WARM_UP, Duration::ZERO, || run(peer.clone())).await;
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(args.secs);
    let mut tasks = JoinSet::new();
    for _ in 0..args.conc {
        let peer = peer.clone();
        tasks.spawn(async move {
            let mut took = Latencies::default();
            while Instant::now() < end {
                let begin = Instant::now();
                run(peer.clone()).await;
                took.push(begin.elapsed());
            }
            took
        });
    }
    let mut all = Latencies::default();
    for took in tasks.join_all().await {
        all.extend(took);
    }
    let value = all.len() as f64 / begin.elapsed().as_secs_f64();
    let mut details = note();
    details["p50_ms"] = json!(round(all.quantile(0.5)));
    details["p99_ms"] = json!(round(all.quantile(0.99)));
    report(value, details);
}

/// `w6`: one run of many steps; a short one before it.
pub async fn w6<F: Future<Output = ()>>(
    args: &Args,
    note: impl Fn() -> Value,
    run: impl Fn(usize) -> F,
) {
    run(10).await;
    let begin = Instant::now();
    run(args.n).await;
    report(args.n as f64 / begin.elapsed().as_secs_f64(), note());
}

/// Calls one after the other, with a pause of up to `spread` before each, so that they meet an
/// engine that polls at every point of its interval.
pub async fn in_turn<F: Future<Output = ()>>(
    n: usize,
    spread: Duration,
    call: impl Fn() -> F,
) -> Latencies {
    let mut took = Latencies::default();
    for i in 0..n {
        if !spread.is_zero() {
            // Multiples of the golden ratio fill the interval evenly.
            sleep(spread.mul_f64((i as f64 * 0.618_034).fract())).await;
        }
        let begin = Instant::now();
        call().await;
        took.push(begin.elapsed());
    }
    took
}

/// `n` calls from many tasks. Returns the seconds they took.
pub async fn from_tasks<P, F, C>(n: usize, peer: &Arc<P>, call: C) -> f64
where
    P: Send + Sync + 'static,
    F: Future<Output = ()> + Send,
    C: Fn(Arc<P>) -> F + Copy + Send + 'static,
{
    let begin = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (next, peer) = (next.clone(), peer.clone());
        tasks.spawn(async move {
            while next.fetch_add(1, Relaxed) < n {
                call(peer.clone()).await;
            }
        });
    }
    tasks.join_all().await;
    begin.elapsed().as_secs_f64()
}

/// Waits until a counter says `n`, or for five minutes. Returns what it says.
pub async fn reached(count: &AtomicUsize, n: usize) -> usize {
    let begin = Instant::now();
    while count.load(Relaxed) < n && begin.elapsed() < LIMIT {
        sleep(Duration::from_millis(2)).await;
    }
    count.load(Relaxed).min(n)
}

/// The result of `w1` and `w7`.
pub fn report_latency(took: &Latencies, note: Value) {
    let mut details = note;
    details["p99_ms"] = json!(round(took.quantile(0.99)));
    report(took.quantile(0.5), details);
}

/// The result of `w3`: `n` runs enqueued in `filling` seconds, `done` of them in `serving` ones.
pub fn report_w3(n: usize, filling: f64, done: usize, serving: f64, note: Value) {
    let mut details = unfinished(n, done, note);
    details["enqueue"] = json!(round(n as f64 / filling));
    report(done as f64 / serving, details);
}

/// The result of `w4`: `n` starts acknowledged after `accepting` seconds, `waiting` runs at their
/// signal after `secs`, and the bytes of memory that all of them take.
pub fn report_w4(n: usize, accepting: f64, (waiting, secs): (usize, f64), bytes: u64, note: Value) {
    let mut details = unfinished(n, waiting, note);
    details["bytes"] = json!(bytes / n as u64);
    details["accepted"] = json!(round(n as f64 / accepting));
    report(waiting as f64 / secs, details);
}

/// The result of `w5-after`: `done` of `n` runs over after `secs`.
pub fn report_w5(n: usize, done: usize, secs: f64, note: Value) {
    report(secs, unfinished(n, done, note));
}

/// Says how many runs are missing, if any are.
fn unfinished(n: usize, done: usize, mut details: Value) -> Value {
    if done < n {
        details["unfinished"] = json!(n - done);
    }
    details
}
