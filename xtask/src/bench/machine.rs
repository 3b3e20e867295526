//! The machine: what it is, and when it is quiet enough to be measured on.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::servers::Servers;

/// Cores in use by whoever, above which a figure would be somebody else's.
const BUSY: f64 = 0.3;
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for three quiet seconds in a row, but not for ever.
pub(super) fn wait_until_quiet() {
    let begun = Instant::now();
    let mut quiet = 0;
    while quiet < 3 {
        if begun.elapsed() > PATIENCE {
            eprintln!("bench: the machine does not become quiet; figures may be somebody else's");
            return;
        }
        quiet = if cores_in_use() < BUSY { quiet + 1 } else { 0 };
    }
}

/// Over the last part of a second.
fn cores_in_use() -> f64 {
    const LOOK: Duration = Duration::from_millis(400);
    let before = busy_seconds();
    thread::sleep(LOOK);
    (busy_seconds() - before) / LOOK.as_secs_f64()
}

/// Seconds that all cores together were busy, since the start.
fn busy_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let busy: f64 =
        ticks.iter().enumerate().filter(|(at, _)| ![3, 4].contains(at)).map(|t| t.1).sum();
    busy / 100.0
}

/// Says what is measured on, and that everybody waits for the disk.
pub(super) fn describe(servers: &Servers) {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = text.lines().next().unwrap_or_default().replace("MemTotal:", "");
    eprintln!("bench: {cores} cores, {} memory, {}", memory.trim(), kernel());
    for setting in servers.durability() {
        eprintln!("bench: {setting}");
    }
    eprintln!("bench: SQLite with journal_mode=WAL, synchronous=FULL (ours and the ceiling's)");
}

fn kernel() -> String {
    let output = Command::new("uname").arg("-sr").output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}
