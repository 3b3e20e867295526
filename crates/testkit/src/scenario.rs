//! The real engine in a simulated world: a workflow's shape, a plan of faults, and what must hold
//! afterwards.
//!
//! Invariants: nodes are restarted after every crash, so a plan only delays; the script that starts
//! and steers runs is a node of its own, crashes too, and begins again; the books of calls and of
//! commits never crash; the same shapes, plan and seed make the same run.
//! Deliberately absent: real time and real databases. The model store stands for them, and the
//! conformance suite says that it may.

mod check;
mod journal;
mod shapes;
mod site;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast_core::RunStatus;
use steadfast_core::env::Env as _;
use steadfast_runtime_native::{Client, Config, Registry, RunEnd, StartSpec, Worker};
use steadfast_store::{Store, op};

pub use check::View;
pub use journal::{Journal, WORKSPACE};
pub use shapes::SHAPES;
pub use site::{Books, Deed, How, Performed, Site};

use crate::faults::{Fault, Faults, Options, Outcome, Plan};
use crate::model::ModelStore;
use crate::sabotage::{Mutant, Sabotaged};
use crate::sim::{Handle, Sim, SimEnv};

/// How long a lease lasts in scenarios: shorter than every pause.
pub const LEASE: Duration = Duration::from_secs(15);
/// How long a shutdown waits for what is under way.
const DRAIN: Duration = Duration::from_secs(90);
/// Long enough for any two faults, and for every node to come back and finish.
const BOUND: Duration = Duration::from_secs(3600);
/// What is still under way after the last run ended: late writes, paused nodes.
const AFTERMATH: Duration = Duration::from_secs(100);
/// In a random world faults stop after this.
const CHAOS: Duration = Duration::from_secs(240);

/// What a script has done when it is over.
pub type Scripted = BoxFuture<'static, ()>;

/// A kind of workflow, with what is done to it and what must come of it.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Its name: also the name of its workflow.
    pub name: &'static str,
    /// How many workers it needs.
    pub nodes: usize,
    /// Starts and steers its runs. Begins again after a crash, so every part can be repeated.
    pub script: fn(Script) -> Scripted,
    /// What must hold of its runs at the end.
    pub check: fn(&View<'_>) -> Result<(), String>,
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// What a scenario was like.
#[derive(Debug)]
pub struct Played {
    /// Points, faults and verdict.
    pub outcome: Outcome,
    /// Stands for everything that happened.
    pub hash: u64,
    /// How often a body was called.
    pub calls: usize,
    /// What happened, if it was kept.
    pub timeline: Vec<String>,
}

/// Plays one shape under a plan.
pub fn play(shape: &Shape, plan: Plan) -> Outcome {
    let cast = [(*shape, String::new())];
    Play::new(&cast, shape.nodes).go(plan).outcome
}

/// A scenario to be played.
pub struct Play<'a> {
    cast: &'a [(Shape, String)],
    nodes: usize,
    mutant: Option<&'static Mutant>,
    timeline: usize,
    heals: bool,
}

impl<'a> Play<'a> {
    /// These shapes, each with a prefix for its run ids, on so many nodes.
    pub fn new(cast: &'a [(Shape, String)], nodes: usize) -> Self {
        Self { cast, nodes, mutant: None, timeline: 0, heals: false }
    }

    /// Over a store that is wrong in this way.
    #[must_use]
    pub fn sabotaged(mut self, mutant: Option<&'static Mutant>) -> Self {
        self.mutant = mutant;
        self
    }

    /// Faults stop after some minutes: for worlds in which they would go on for ever.
    #[must_use]
    pub fn healing(mut self) -> Self {
        self.heals = true;
        self
    }

    /// Keeps the last events.
    #[must_use]
    pub fn timeline(mut self, last: usize) -> Self {
        self.timeline = last;
        self
    }

    /// Plays it to the end.
    pub fn go(&self, plan: Plan) -> Played {
        let sim = Sim::new(plan.seed());
        sim.keep_timeline(self.timeline);
        let faults = Faults::new(&sim, plan, Options::default());
        let truth = Arc::new(ModelStore::new());
        let inner: Arc<dyn Store> = Arc::new(Sabotaged::new(truth.clone(), self.mutant));
        let books = Arc::new(Books::default());
        if self.mutant.is_some_and(Mutant::reuses_epochs) {
            truth.reuse_epochs();
        }
        let journal = Arc::new(Journal::new(inner, truth, books.ticks.clone(), self.nodes));
        faults.set_server(journal.clone());
        let world = Arc::new(World {
            sim: sim.handle(),
            faults,
            journal,
            books,
            workers: Mutex::default(),
            scripts: AtomicUsize::new(self.cast.len()),
        });
        world.raise(self.nodes);
        self.cast.iter().for_each(|(shape, prefix)| world.direct(*shape, prefix));
        let (verdict, points) = self.watch(&sim, &world);
        let mut outcome = world.faults.outcome(verdict);
        // What happens after the last run's end is looked at, but no place for more faults.
        outcome.points.truncate(usize::try_from(points).unwrap_or(usize::MAX));
        Played {
            outcome,
            hash: sim.trace_hash(),
            calls: world.books.calls().len(),
            timeline: sim.timeline().iter().map(ToString::to_string).collect(),
        }
    }

    /// Runs until everything is over, and judges. Gives how many points were met until then.
    fn watch(&self, sim: &Sim, world: &World) -> (Result<(), String>, u64) {
        let settled = || world.is_over() || world.journal.broken().is_some();
        let ended = if self.heals {
            // The chaos has an end; then everything must come right.
            match sim.run_until(settled, CHAOS) {
                Ok(()) => Ok(()),
                Err(_) => {
                    world.faults.heal();
                    sim.run_until(settled, BOUND)
                }
            }
        } else {
            sim.run_until(settled, BOUND)
        };
        let points = world.faults.count();
        if let Err(stuck) = ended {
            return (Err(format!("{stuck}; open: {}", world.open())), points);
        }
        let placed = world.faults.outcome(Ok(())).placed;
        let lingers = |fault: &Fault| fault.stops_a_node() || matches!(fault, Fault::Late(_));
        world.faults.heal();
        if placed.values().any(lingers) && world.journal.broken().is_none() {
            sim.run_for(AFTERMATH);
        }
        (self.judge(world, &placed), points)
    }

    fn judge(&self, world: &World, placed: &BTreeMap<u64, Fault>) -> Result<(), String> {
        if let Some(why) = world.journal.broken() {
            return Err(why);
        }
        check::all(world, placed)?;
        for (shape, prefix) in self.cast {
            let view = View::new(world, prefix, placed);
            (shape.check)(&view).map_err(|why| format!("{}{prefix}: {why}", shape.name))?;
        }
        Ok(())
    }
}

/// Everything in one simulation.
pub(crate) struct World {
    sim: Handle,
    faults: Arc<Faults>,
    journal: Arc<Journal>,
    books: Arc<Books>,
    workers: Mutex<BTreeMap<String, (Arc<SimEnv>, Worker)>>,
    scripts: AtomicUsize,
}

impl World {
    /// Starts the nodes, and whoever restarts them. The first has a name and takes its runs over at
    /// once; the others' runs wait for their leases.
    fn raise(self: &Arc<Self>, nodes: usize) {
        let names = ["a", "b", "c", "d", "e"];
        for (at, name) in names.into_iter().enumerate().take(nodes) {
            let world = self.clone();
            let keep = async move {
                loop {
                    let env = world.sim.node(name);
                    let died = env.died();
                    world.boot(&env, if at == 0 { name } else { "" });
                    died.await;
                    let pause = 200 + world.sim.rng().below(2000);
                    world.sim.sleep(Duration::from_millis(pause)).await;
                }
            };
            self.sim.node("supervisor").spawn("keep", Box::pin(keep));
        }
    }

    fn boot(self: &Arc<Self>, env: &Arc<SimEnv>, name: &str) {
        let config = Config {
            workspace: WORKSPACE.to_owned(),
            name: name.to_owned(),
            lease: LEASE,
            // Idle polls are places for faults too, and say little: the hints are enough.
            poll: (Duration::from_secs(20), Duration::from_secs(60)),
            // A loop that has just polled takes that long to see that it should stop.
            drain: DRAIN,
            ..Config::default()
        };
        let site = Arc::new(Site {
            sim: self.sim.clone(),
            env: env.clone(),
            books: self.books.clone(),
            worker: OnceLock::new(),
        });
        let mut registry = Registry::default();
        registry.state.insert(site.clone());
        shapes::register(&mut registry);
        let store = self.faults.store(env.clone(), self.journal.clone());
        let (world, at) = (self.clone(), env.clone());
        let boot = async move {
            if let Ok(worker) = Worker::start(at.clone(), store, registry, config).await {
                site.worker.set(worker.id().to_owned()).expect("invariant: one worker in a life");
                world.workers.lock().unwrap().insert(at.name().to_owned(), (at.clone(), worker));
            }
        };
        env.spawn("boot", Box::pin(boot));
    }

    /// Runs a script, again after each crash of its node.
    fn direct(self: &Arc<Self>, shape: Shape, prefix: &str) {
        let (world, prefix) = (self.clone(), prefix.to_owned());
        let node = format!("script{prefix}");
        let direct = async move {
            let over = Arc::new(AtomicUsize::new(0));
            while over.load(Ordering::Relaxed) == 0 {
                let env = world.sim.node(&node);
                let died = env.died();
                let store = world.faults.store(env.clone(), world.journal.clone());
                let client = Client::new(env.clone(), store, WORKSPACE);
                let client = client.expect("invariant: the workspace is a valid name");
                let (prefix, world) = (prefix.clone(), world.clone());
                let script = Script { client, prefix, world };
                let (done, told) = (over.clone(), env.clone());
                let act = async move {
                    (shape.script)(script).await;
                    done.store(1, Ordering::Relaxed);
                    // The script's node is no longer needed; this is also how its end is told.
                    told.die();
                };
                env.spawn("script", Box::pin(act));
                died.await;
            }
            world.scripts.fetch_sub(1, Ordering::Relaxed);
        };
        self.sim.node("supervisor").spawn("direct", Box::pin(direct));
    }

    fn is_over(&self) -> bool {
        self.scripts.load(Ordering::Relaxed) == 0 && self.journal.open() == 0
    }

    fn open(&self) -> String {
        let known = self.journal.known();
        let open: Vec<_> = known.runs.iter().filter(|(_, run)| !run.over).collect();
        format!("{open:?}, {} scripts", self.scripts.load(Ordering::Relaxed))
    }

    fn row(&self, run_id: &str) -> Option<op::RunRow> {
        let (workspace, run_id) = (WORKSPACE.to_owned(), run_id.to_owned());
        self.journal.peek(op::GetRun { workspace, run_id, now: self.sim.now() }).0.map(|row| *row)
    }
}

/// What a script works with.
#[derive(Clone)]
pub struct Script {
    /// Talks to the fabric as an application would.
    pub client: Client,
    prefix: String,
    world: Arc<World>,
}

impl Script {
    /// The id of a run (or a queue) of this scenario.
    pub fn id(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// A run to be started.
    pub fn spec(
        &self,
        name: &str,
        workflow: &str,
        input: impl Into<serde_json::Value>,
    ) -> StartSpec {
        let input = input.into().to_string();
        StartSpec { run_id: Some(self.id(name)), ..StartSpec::new(workflow, input) }
    }

    /// Starts a run from outside.
    pub async fn start(&self, name: &str, workflow: &str, input: impl Into<serde_json::Value>) {
        let spec = self.spec(name, workflow, input);
        self.client.start(spec).await.expect("a start that can be repeated");
    }

    /// Starts a run from inside a worker, which executes it at once.
    pub async fn submit(&self, spec: StartSpec) {
        let run_id = spec.run_id.clone().expect("invariant: scripts name their runs");
        while self.world.row(&run_id).is_none() {
            let worker = self.world.workers.lock().unwrap().get("a").cloned();
            if let Some((env, worker)) = worker.filter(|(env, _)| !env.is_dead()) {
                let spec = spec.clone();
                let submit = async move { drop(worker.submit(spec).await) };
                env.spawn("submit", Box::pin(submit));
            }
            // The node may die with the request; then it is made again.
            self.sleep(5000).await;
        }
    }

    /// Waits for a run's end.
    pub async fn wait(&self, name: &str) -> RunEnd {
        self.client.wait(&self.id(name)).await.expect("a run that exists")
    }

    /// Waits until a run has begun, for a minute at most.
    pub async fn claimed(&self, name: &str) {
        let id = self.id(name);
        let waits = |row: &op::RunRow| row.status == RunStatus::Enqueued;
        for _ in 0..6000 {
            if !self.world.row(&id).is_some_and(|row| waits(&row)) {
                return;
            }
            self.sleep(10).await;
        }
    }

    /// Waits a while.
    pub async fn sleep(&self, ms: u64) {
        self.world.sim.sleep(Duration::from_millis(ms)).await;
    }

    /// A number below `n`.
    pub fn draw(&self, n: u64) -> u64 {
        self.world.sim.rng().below(n)
    }

    /// Lets the first worker shut down, and sees that nothing of it is left.
    pub async fn shut_down(&self) {
        let worker = self.world.workers.lock().unwrap().get("a").cloned();
        let Some((env, worker)) = worker else { return };
        let begun = self.world.sim.now();
        let left = Arc::new(Mutex::new(None));
        let (sim, told) = (self.world.sim.clone(), left.clone());
        let task = async move {
            worker.shutdown().await;
            // Bodies that outlive a lost lease are steps; everything else must be gone.
            let of_node =
                |(node, name): &(String, &str)| node == "a" && matches!(*name, "loop" | "run");
            let tasks: Vec<_> = sim.tasks().into_iter().filter(of_node).collect();
            *told.lock().unwrap() = Some(tasks);
        };
        env.spawn("shutdown", Box::pin(task));
        while !env.is_dead() {
            if let Some(tasks) = left.lock().unwrap().take() {
                // What could not end in time (the node stood still, the store was away) is given
                // up; a node with a wrong clock gives up early.
                let late = begun.until(self.world.sim.now()) >= DRAIN / 4;
                if !late && !tasks.is_empty() {
                    self.world.journal.fail(format!("left after a shutdown: {tasks:?}"));
                }
                return self.world.sim.crash("a");
            }
            self.sleep(100).await;
        }
    }
}
