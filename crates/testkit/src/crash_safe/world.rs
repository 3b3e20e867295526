//! One world of a crash test: a node that executes, a store that remembers, and a tally of calls.
//!
//! Invariants: the run and its signals are there before the node comes up, so every decision point
//! belongs to the node; what had been recorded is counted at the moment of the crash.
//! Deliberately absent: a second node. Who recovers a run does not matter, only from what.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use steadfast_core::driver::{Kind, Record, RecordState};
use steadfast_core::env::Env as _;
use steadfast_core::{RunStatus, Timestamp};
use steadfast_runtime_native::{Client, Config, Registry, StartSpec, Worker};
use steadfast_store::StoreExt as _;
use steadfast_store::op::{self, RunRow};

use super::RUN;
use crate::faults::{Faults, Options, Plan, Point};
use crate::model::ModelStore;
use crate::sim::{Chaos, Sim};

/// The workspace of all crash tests.
pub(super) const WORKSPACE: &str = "w";
/// A run that takes longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(31 * 86_400);
const NODE: &str = "worker";

pub(super) struct World<'a> {
    pub(super) registry: &'a Registry,
    pub(super) workflow: &'a str,
    pub(super) input: &'a str,
    pub(super) signals: &'a [(String, String)],
}

/// What came of it.
pub(super) struct Seen {
    pub(super) points: Vec<Point>,
    /// The run under test.
    pub(super) row: RunRow,
    /// All runs, with their histories.
    pub(super) runs: Vec<(RunRow, Vec<Record>)>,
    /// Bodies that began, and those that began after the crash.
    pub(super) begun: usize,
    pub(super) begun_after: usize,
    /// Attempts that are recorded in the end, and those that were when the node crashed.
    pub(super) recorded: usize,
    pub(super) kept: usize,
}

/// Counts bodies that begin.
struct Tally {
    faults: Arc<Faults>,
    begun: AtomicUsize,
    at_crash: Mutex<Option<(usize, usize)>>,
}

impl Chaos for Tally {
    fn crashes(&self, node: &str, point: &'static str) -> bool {
        let crashes = self.faults.crashes(node, point);
        if point == "step.started" && !crashes {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }
        crashes
    }
}

impl World<'_> {
    pub(super) fn run(&self, plan: Plan) -> Result<Seen, String> {
        let sim = Sim::new(1);
        let store = Arc::new(ModelStore::new());
        let faults = Faults::new(&sim, plan, Options::default());
        let tally = Arc::new(Tally {
            faults: faults.clone(),
            begun: AtomicUsize::new(0),
            at_crash: Mutex::default(),
        });
        sim.set_chaos(tally.clone());
        self.begin(&sim, &store)?;
        self.raise(&sim, &faults, &store, &tally);
        let over = sim.run_until(|| is_over(&store), PATIENCE);
        let runs = all_runs(&store);
        if let Err(stuck) = over {
            let open: Vec<_> = runs.iter().filter(|(row, _)| !row.status.is_terminal()).collect();
            let waits: Vec<_> =
                open.iter().map(|(row, _)| format!("{} {}", row.run_id, row.waits)).collect();
            return Err(format!("the run does not end ({stuck}); it waits for {waits:?}"));
        }
        let row = runs.iter().find(|(row, _)| row.run_id == RUN).map(|(row, _)| row.clone());
        let begun = tally.begun.load(Ordering::Relaxed);
        let (before, kept) = tally.at_crash.lock().unwrap().unwrap_or((begun, 0));
        Ok(Seen {
            points: faults.outcome(Ok(())).points,
            row: row.expect("invariant: the run was started"),
            recorded: attempts(&runs),
            runs,
            begun,
            begun_after: begun - before,
            kept,
        })
    }

    /// Starts the run and sends its signals, before anything can go wrong.
    fn begin(&self, sim: &Sim, store: &Arc<ModelStore>) -> Result<(), String> {
        let client = Client::new(sim.node("client"), store.clone(), WORKSPACE);
        let client = client.map_err(|error| error.to_string())?;
        let mut spec = StartSpec::new(self.workflow, self.input.to_owned());
        spec.run_id = Some(RUN.to_owned());
        let signals = self.signals.to_vec();
        let begun = sim.block_on(async move {
            client.start(spec).await?;
            for (at, (name, payload)) in signals.into_iter().enumerate() {
                client.signal(RUN, &name, payload, Some(&at.to_string())).await?;
            }
            Ok::<_, steadfast_core::Error>(())
        });
        begun.map_err(|error| error.to_string())
    }

    fn raise(&self, sim: &Sim, faults: &Arc<Faults>, store: &Arc<ModelStore>, tally: &Arc<Tally>) {
        let (handle, faults, store) = (sim.handle(), faults.clone(), store.clone());
        let (registry, tally) = (self.registry.clone(), tally.clone());
        let keep = async move {
            loop {
                let env = handle.node(NODE);
                let died = env.died();
                let seen = faults.store(env.clone(), store.clone());
                let (at, registry) = (env.clone(), registry.clone());
                let boot = async move { drop(Worker::start(at, seen, registry, config()).await) };
                env.spawn("boot", Box::pin(boot));
                died.await;
                let kept = attempts(&all_runs(&store));
                let begun = tally.begun.load(Ordering::Relaxed);
                tally.at_crash.lock().unwrap().get_or_insert((begun, kept));
                handle.sleep(Duration::from_secs(1)).await;
            }
        };
        sim.node("supervisor").spawn("keep", Box::pin(keep));
    }
}

fn config() -> Config {
    Config {
        workspace: WORKSPACE.to_owned(),
        // Named: what it left behind is taken over at once.
        name: NODE.to_owned(),
        // Long, so that a run that sleeps for days costs few heartbeats.
        lease: Duration::from_secs(900),
        poll: (Duration::from_secs(600), Duration::from_secs(900)),
        ..Config::default()
    }
}

fn peek<O: op::Operation + Send + 'static>(store: &ModelStore, op: O) -> O::Reply {
    let reply = store.ask(op).now_or_never().expect("invariant: the model answers at once");
    reply.expect("invariant: a read succeeds")
}

fn page(store: &ModelStore, status: Vec<RunStatus>, limit: usize) -> Vec<RunRow> {
    let filter = op::RunFilter { status, ..op::RunFilter::default() };
    let workspace = WORKSPACE.to_owned();
    // A run that has a deadline is over when the store says so: time does not pass here.
    let now = Timestamp::from_micros(0);
    peek(store, op::ListRuns { workspace, filter, after: None, limit, now }).runs
}

fn is_over(store: &ModelStore) -> bool {
    page(store, vec![RunStatus::Enqueued, RunStatus::Pending], 1).is_empty()
}

/// Every run of a test; a page is enough for what a test starts.
fn all_runs(store: &ModelStore) -> Vec<(RunRow, Vec<Record>)> {
    let runs = page(store, Vec::new(), 1000).into_iter();
    runs.map(|row| {
        let (workspace, run_id) = (WORKSPACE.to_owned(), row.run_id.clone());
        let list = op::ListSteps { workspace, run_id, from: 0, limit: 1000 };
        let steps = peek(store, list).0;
        (row, steps)
    })
    .collect()
}

/// Attempts of bodies that are on record.
fn attempts(runs: &[(RunRow, Vec<Record>)]) -> usize {
    let records = runs.iter().flat_map(|(_, records)| records);
    records
        .filter(|record| matches!(record.kind, Kind::Step | Kind::Read | Kind::Effect))
        .filter(|record| record.state != RecordState::Executing)
        .map(|record| record.attempt as usize)
        .sum()
}
