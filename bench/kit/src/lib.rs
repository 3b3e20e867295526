//! What every benchmark driver shares: its arguments, its figures, its one line of JSON.
//!
//! A driver is a program for one engine. `cargo xtask bench` runs it as
//! `DRIVER WORKLOAD --url URL [--dir DIR] [--n N] [--conc N] [--secs S]`, once per workload and
//! repetition, on a database that nobody used before, and reads the last line of its output:
//! `{"value": 1234.5, ...}`. Whatever else is in that object is kept as a detail.
//!
//! Workloads, the same for everyone. A *strict step* returns a small JSON object, and is on disk
//! before the next one begins.
//!
//! - `w1`: `n` runs of five strict steps, one after the other. Value: median latency in ms.
//! - `w2`: runs of five strict steps, `conc` at a time, for `secs`. Value: runs a second.
//! - `w3`: `n` one-step runs are put on a queue with worker concurrency 100 while nobody serves it,
//!   and then served. Value: runs a second of the serving, from a worker that is up to the last end
//!   on disk; `enqueue` is that of the filling.
//! - `w4`: `n` runs are started that wait for a signal. Value: starts a second; `bytes` is what a
//!   run that waits costs in memory of the process.
//! - `w5-before`: `n` runs are brought to the middle of their third of five steps; then the driver
//!   kills itself. No value.
//! - `w5-after`: the same database and a new process. Value: seconds until all `n` are over.
//! - `w6`: one run of `n` steps. Value: steps a second.
//! - `s1`: one tick of the scheduler over `n` schedules, of which one in `conc` is due. Value:
//!   the processor time of the process in ms. Ours alone.
//! - `w7`: `n` times on an idle system, one run is enqueued and its result awaited. Value: median
//!   latency in ms.

use std::fs;
use std::str::FromStr;
use std::time::Duration;

use mimalloc::MiMalloc;
use serde_json::{Value, json};

/// The same for every engine: what differs between them is not how glibc manages memory.
#[global_allocator]
static MEMORY: MiMalloc = MiMalloc;

/// The arguments of a driver.
#[derive(Debug, Clone)]
pub struct Args {
    /// The workload.
    pub workload: String,
    /// The database.
    pub url: String,
    /// A folder for files of the driver's own.
    pub dir: String,
    /// How many runs, or steps.
    pub n: usize,
    /// How many at a time.
    pub conc: usize,
    /// For how long.
    pub secs: f64,
}

impl Args {
    /// From the command line.
    pub fn parse() -> Self {
        let words: Vec<String> = std::env::args().collect();
        Self {
            workload: words.get(1).cloned().unwrap_or_default(),
            url: option(&words, "--url", String::new()),
            dir: option(&words, "--dir", ".".to_owned()),
            n: option(&words, "--n", 1000),
            conc: option(&words, "--conc", 64),
            secs: option(&words, "--secs", 10.0),
        }
    }
}

/// The value after a word of the command line, or a default.
pub fn option<T: FromStr>(words: &[String], name: &str, default: T) -> T {
    let at = words.iter().position(|word| word == name);
    let value = at.and_then(|at| words.get(at + 1));
    match value.map(|text| text.parse()) {
        None => default,
        Some(Ok(value)) => value,
        Some(Err(_)) => panic!("{name}: cannot read {value:?}"),
    }
}

/// Durations, for their quantiles.
#[derive(Debug, Default, Clone)]
pub struct Latencies(Vec<f64>);

impl Latencies {
    /// Adds one.
    pub fn push(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64() * 1e3);
    }

    /// Adds another's.
    pub fn extend(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The quantile `p` of 0 to 1, in milliseconds.
    pub fn quantile(&self, p: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (sorted.len().saturating_sub(1)) as f64 * p;
        sorted.get(at.round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// The result of a latency workload.
    pub fn report(&self) {
        report(self.quantile(0.5), json!({ "p99_ms": round(self.quantile(0.99)) }));
    }
}

/// Bytes of memory a process has, less what is shared with files.
pub fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Prints the driver's result.
pub fn report(value: f64, details: Value) {
    let mut line = json!({ "value": round(value) });
    if let (Some(line), Value::Object(details)) = (line.as_object_mut(), details) {
        line.extend(details);
    }
    println!("{line}");
}

/// Three digits after the point are plenty.
pub fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Ends this process as a power cut would.
pub fn die() -> ! {
    // A signal needs unsafe code or a dependency; the shell's own kill does as well.
    let me = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args(["-9", &me]).status();
    loop {
        std::thread::park();
    }
}
