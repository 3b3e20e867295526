//! Worker processes: started, killed, frozen and ended, with a diary of each life.
//!
//! Invariants: a life has a name of its own, which it signs its calls with; its diary says when it
//! was frozen and when it was dead, on the ledger's clock; no process outlives its fleet.

use std::collections::BTreeMap;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use steadfast_testkit::crash;
use steadfast_testkit::ledger::Ledger;

/// What happened to one worker process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    /// When it was known to be dead.
    pub(crate) dead_us: Option<u64>,
    /// When it was frozen, and when it went on.
    pub(crate) frozen_us: Vec<(u64, Option<u64>)>,
}

/// How a worker is started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recipe {
    /// A name that outlives the process.
    pub(crate) name: Option<String>,
    /// Where it dies by itself.
    pub(crate) crash_at: Option<String>,
    /// Where it freezes by itself.
    pub(crate) freeze_at: Option<String>,
    pub(crate) lease_ms: Option<u64>,
    pub(crate) max_runs: Option<usize>,
}

impl Recipe {
    /// One that freezes by itself, at a point and a count.
    pub(crate) fn freezing(at: &str) -> Self {
        Self { freeze_at: Some(at.to_owned()), ..Self::default() }
    }
}

struct Process {
    life: String,
    child: Child,
}

/// Worker processes on one store, by place.
pub(crate) struct Fleet<'a> {
    url: String,
    ledger: &'a Ledger,
    processes: BTreeMap<usize, Process>,
    pub(crate) lives: BTreeMap<String, Life>,
    born: u32,
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(url: &str, ledger: &'a Ledger) -> Self {
        let (processes, lives) = (BTreeMap::new(), BTreeMap::new());
        Self { url: url.to_owned(), ledger, processes, lives, born: 0 }
    }

    /// Starts a worker in a place that is free; gives the name of its life.
    pub(crate) fn start(&mut self, place: usize, recipe: &Recipe) -> String {
        assert!(!self.processes.contains_key(&place), "place {place} is taken");
        self.born += 1;
        let life = format!("w{place}.{}", self.born);
        let mut command = Command::new(env!("CARGO_BIN_EXE_kill_worker"));
        command.args([&self.url, &self.ledger.address(), &life]);
        if let Some(name) = &recipe.name {
            command.args(["--name", name]);
        }
        if let Some(ms) = recipe.lease_ms {
            command.args(["--lease-ms", &ms.to_string()]);
        }
        if let Some(most) = recipe.max_runs {
            command.args(["--max-runs", &most.to_string()]);
        }
        command.env(crash::CRASH_AT, recipe.crash_at.as_deref().unwrap_or_default());
        command.env(crash::FREEZE_AT, recipe.freeze_at.as_deref().unwrap_or_default());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("the worker program starts");
        self.lives.insert(life.clone(), Life::default());
        self.processes.insert(place, Process { life: life.clone(), child });
        life
    }

    /// Kills a worker with SIGKILL, frozen or not. False if it was dead already.
    pub(crate) fn kill(&mut self, place: usize) -> bool {
        let Some(mut process) = self.processes.remove(&place) else {
            return false;
        };
        let alive = matches!(process.child.try_wait(), Ok(None));
        let _ = process.child.kill();
        let _ = process.child.wait();
        self.buried(&process.life);
        alive
    }

    /// Whether the worker in a place ended by itself; its place is then free.
    pub(crate) fn ended(&mut self, place: usize) -> Option<ExitStatus> {
        let status = self.processes.get_mut(&place)?.child.try_wait().ok()??;
        let process = self.processes.remove(&place)?;
        self.buried(&process.life);
        Some(status)
    }

    fn buried(&mut self, life: &str) {
        let now = self.ledger.now_us();
        self.lives.entry(life.to_owned()).or_default().dead_us = Some(now);
    }

    /// Stops a worker in its tracks.
    pub(crate) fn freeze(&mut self, place: usize) {
        let now = self.ledger.now_us();
        if let Some(process) = self.processes.get(&place) {
            signal("STOP", process.child.id());
            self.lives.entry(process.life.clone()).or_default().frozen_us.push((now, None));
        }
    }

    /// Lets a frozen worker go on, as if nothing had happened.
    pub(crate) fn thaw(&mut self, place: usize) {
        let Some(process) = self.processes.get(&place) else {
            return;
        };
        signal("CONT", process.child.id());
        let now = self.ledger.now_us();
        let frozen = &mut self.lives.entry(process.life.clone()).or_default().frozen_us;
        if let Some((_, thawed @ None)) = frozen.last_mut() {
            *thawed = Some(now);
        }
    }

    /// Asks a worker to end (SIGTERM) and waits for it.
    pub(crate) fn end(&mut self, place: usize, at_most: Duration) -> Option<ExitStatus> {
        signal("TERM", self.processes.get(&place)?.child.id());
        let give_up = Instant::now() + at_most;
        while Instant::now() < give_up {
            if let Some(status) = self.ended(place) {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    pub(crate) fn places(&self) -> Vec<usize> {
        self.processes.keys().copied().collect()
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        for place in self.places() {
            self.kill(place);
        }
    }
}

fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(sent.is_ok(), "the program `kill` is needed to send SIG{name}");
}
