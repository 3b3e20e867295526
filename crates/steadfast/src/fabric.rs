//! The fabric: a store, the workflows of this process, and the worker that runs them.

mod background;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::{Either, join_all, select};
use steadfast_core::connector::{Connector, Ways};
use steadfast_core::env::Env;
use steadfast_core::trigger::Trigger;
use steadfast_core::workflow::Workflow;
use steadfast_core::{Result, limits};
use steadfast_runtime_native::{Config, Registry, Worker};
use steadfast_store::OpenStore;
use steadfast_store::op::COMPENSATE;

use crate::activity::{self, Activity};
use crate::agent;
use crate::client::Client;
use crate::contract::{Contract, Contracts};
use crate::env::TokioEnv;
use crate::event::Retention;
use crate::flow::perform::Gatekeeper;
use crate::flow::publish::Relay;
use crate::flow::{compensate, startup, sync};
use crate::governance::Governance;
use crate::queue::Queue;
use crate::sink::{self, Sink};
use crate::trigger::{OnEvent, Schedule};

/// A process that runs workflows. It is also a [`Client`].
///
/// Dropping the last clone ends it without waiting: steps under way are aborted, their runs given
/// back, and connections and threads are gone within about a second. [`Steadfast::shutdown`] gives
/// steps their time first.
#[derive(Clone)]
pub struct Steadfast {
    client: Arc<Client>,
    worker: Worker,
    relays: Vec<Relay>,
    retention: Retention,
    stopping: Arc<AtomicBool>,
    _life: Arc<Life>,
}

/// What all clones of a program share: with the last of them the program ends.
struct Life {
    worker: Worker,
    stopping: Arc<AtomicBool>,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        self.worker.leave();
    }
}

impl Steadfast {
    /// Describes a fabric over `sqlite://file`, `sqlite::memory:`, `postgres://…` or `mysql://…`.
    pub fn open(url: impl Into<String>) -> Builder {
        Builder {
            url: url.into(),
            store: None,
            env: None,
            registry: Registry::default(),
            config: Config::default(),
            queues: Vec::new(),
            contracts: Contracts::default(),
            governance: Governance::default(),
            definitions: Vec::new(),
            source: None,
            sinks: Vec::new(),
            retention: Retention::default(),
            refusal: None,
        }
    }

    /// This worker's id.
    pub fn worker_id(&self) -> &str {
        self.worker.id()
    }

    /// How many runs are in memory here. Suspended runs are not.
    pub fn live_runs(&self) -> usize {
        self.worker.live_runs()
    }

    /// Why this worker has stopped by itself, if it has: `SF-0309` when another process was started
    /// under its worker name, `SF-0406` when the store's file is gone. [`Steadfast::shutdown`] is
    /// no such reason. Steps that were under way are dropped; the process should end, or start
    /// anew.
    pub fn fault(&self) -> Option<steadfast_core::Error> {
        self.worker.fault()
    }

    /// Whether nothing is done in the background any more.
    fn is_over(&self) -> impl Fn() -> bool + Clone + Send + 'static + use<> {
        let (worker, stopping) = (self.worker.clone(), self.stopping.clone());
        move || stopping.load(Ordering::Acquire) || worker.fault().is_some()
    }

    /// Stops claiming, lets steps under way end, gives the rest back. Nothing is lost: what was not
    /// finished goes on in another process, or in the next one.
    pub async fn shutdown(&self) {
        self.stopping.store(true, Ordering::Release);
        self.worker.shutdown().await;
    }

    /// Gives new events their numbers and sends to the sinks of this process what is due now; gives
    /// how many have arrived. The fabric does this by itself, each second.
    pub async fn publish(&self) -> Result<usize> {
        let mut arrived = 0;
        for sent in join_all(self.relays.iter().map(Relay::tick)).await {
            arrived += sent?;
        }
        Ok(arrived)
    }

    /// Runs until the process is asked to stop (Ctrl-C or SIGTERM), then shuts down. An error if
    /// the worker has stopped by itself before; see [`Steadfast::fault`].
    pub async fn run_until_stopped(&self) -> Result<()> {
        let stopped = async {
            #[cfg(unix)]
            {
                use tokio::signal::unix::{SignalKind, signal};
                let mut term = signal(SignalKind::terminate())?;
                tokio::select! {
                    done = tokio::signal::ctrl_c() => done,
                    _ = term.recv() => Ok(()),
                }
            }
            #[cfg(not(unix))]
            tokio::signal::ctrl_c().await
        };
        let (stopped, fault) = (std::pin::pin!(stopped), std::pin::pin!(self.worker.stopped()));
        let listened: std::io::Result<()> = match select(stopped, fault).await {
            Either::Left((listened, _)) => listened,
            Either::Right(_) => Ok(()),
        };
        self.shutdown().await;
        match self.fault() {
            Some(fault) => Err(fault),
            None => listened.map_err(steadfast_core::Error::from_any),
        }
    }
}

impl Steadfast {
    /// Makes the triggers what the program says, and ticks where there is anything to tick for.
    async fn begin(&self, source: Option<&str>, triggers: &[Trigger]) -> Result<()> {
        let client = &self.client;
        for relay in &self.relays {
            relay.begin().await?;
        }
        if source.is_some() || !triggers.is_empty() {
            let types = source.is_none().then_some(&*client.contracts);
            let source = source.unwrap_or("code");
            sync::sync(&client.scheduler, &client.inner, source, triggers, types).await?;
        }
        self.keep_ticking();
        if client.contracts.is_empty() && !self.relays[0].has_sink() {
            return Ok(());
        }
        for relay in &self.relays {
            self.keep_publishing(relay.clone());
        }
        Ok(())
    }
}

impl Deref for Steadfast {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Describes a fabric before it starts.
#[must_use = "a fabric does nothing until it is started"]
pub struct Builder {
    url: String,
    store: Option<OpenStore>,
    env: Option<Arc<dyn Env>>,
    registry: Registry,
    config: Config,
    queues: Vec<Queue>,
    contracts: Contracts,
    governance: Governance,
    definitions: Vec<Definition>,
    source: Option<String>,
    sinks: Vec<Sink>,
    retention: Retention,
    refusal: Option<steadfast_core::Error>,
}

/// Something that makes commands, before its contract is known.
enum Definition {
    Schedule(Schedule),
    OnEvent(OnEvent),
    Activity(Activity),
}

impl Definition {
    fn define(self, contracts: &Contracts) -> Result<Trigger> {
        match self {
            Self::Schedule(schedule) => schedule.define(contracts),
            Self::OnEvent(event) => event.define(contracts),
            Self::Activity(activity) => activity.define(contracts),
        }
    }
}

impl Builder {
    /// Registers a workflow under its function's name.
    pub fn workflow<W: Workflow<M>, M>(mut self, workflow: W) -> Self {
        let added = self.registry.add(workflow);
        self.note(added)
    }

    /// Registers a workflow under a name of its own, with its own number of recoveries.
    pub fn workflow_named<W: Workflow<M>, M>(
        mut self,
        name: &str,
        max_recoveries: impl Into<Option<u32>>,
        workflow: W,
    ) -> Self {
        let most = max_recoveries.into().unwrap_or(limits::RECOVERY_ATTEMPTS);
        let added = self.registry.add_named(name, most, workflow);
        self.note(added)
    }

    /// Registers a command type and the workflow that carries it out. Both have the function's
    /// name.
    pub fn command<W: Workflow<M>, M>(mut self, workflow: W, contract: Contract) -> Self
    where
        W::Input: schemars::JsonSchema,
    {
        let added = contract.of(&workflow).and_then(|made| self.contracts.add(made));
        let added = added.and_then(|()| self.registry.add(workflow));
        self.note(added)
    }

    /// Replays the workflow or command registered just before strictly: where a recorded step is
    /// called with another input than the recorded one, the run ends with `SF-0308`. Without this,
    /// the difference is logged and audited (`replay.input_changed`), and the run goes on with the
    /// recorded outcome.
    pub fn strict_replay(mut self) -> Self {
        self.registry.strict_replay();
        self
    }

    /// Who may do what, within which budgets. Connectors that were added before are kept.
    pub fn govern(mut self, governance: Governance) -> Self {
        let connectors = std::mem::take(&mut self.governance.connectors);
        self.governance = Governance { connectors, ..governance };
        self
    }

    /// A way out, for `cx.call` and `cx.effect_via`.
    pub fn connector(mut self, connector: impl Connector) -> Self {
        let added = self.governance.connector(Arc::new(connector));
        self.note(added)
    }

    /// A schedule. What an earlier start defined and this one does not is removed; see
    /// [`Builder::source`] for whose that is.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.definitions.push(Definition::Schedule(schedule));
        self
    }

    /// A trigger for events.
    pub fn on_event(mut self, event: OnEvent) -> Self {
        self.definitions.push(Definition::OnEvent(event));
        self
    }

    /// An activity: a trigger with the tasks it starts.
    pub fn activity(mut self, activity: Activity) -> Self {
        if !self.definitions.iter().any(|d| matches!(d, Definition::Activity(_))) {
            let added = activity::contract().and_then(|made| self.contracts.add(made));
            let added = added.and_then(|()| self.registry.add(activity::run_activity));
            self = self.note(added);
        }
        self.definitions.push(Definition::Activity(activity));
        self
    }

    /// Whose definitions these are: a start removes what the same source had defined before and
    /// does not any more. Programs that share a workspace have each a source of their own. Without
    /// one, a start removes only triggers of command types that it has itself, and none at all if
    /// it defines none.
    pub fn source(mut self, name: impl Into<String>) -> Self {
        self.source = Some(name.into());
        self
    }

    /// A place that gets events, from now on and at least once each.
    pub fn sink(mut self, sink: Sink) -> Self {
        self.sinks.push(sink);
        self
    }

    /// How long events are kept.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        let checked = retention.check();
        self.note(checked)
    }

    /// Shares a value with workflows, which get it by `cx.state::<T>()`.
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.registry.state.insert(value);
        self
    }

    /// Defines a queue. The start creates it; of a queue that is there, it applies what differs
    /// from the definition that was applied last, and leaves all else as an operator has set it: a
    /// pause or another limit outlasts restarts. [`Client::queue`] shows both.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    /// The tenant; runs of different workspaces never meet. `default` by default.
    pub fn workspace(mut self, workspace: impl Into<String>) -> Self {
        self.config.workspace = workspace.into();
        self
    }

    /// The application's version. Runs are pinned to the version that started them, and only a
    /// worker of that version goes on with them.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.config.app_version = version.into();
        self
    }

    /// A name that stays the same across restarts: the restarted process goes on with its runs at
    /// once, without waiting for leases to run out. If another live process has the name, it is
    /// superseded: its runs go on here, and it stops with `SF-0309`.
    pub fn worker_name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// How long a run stays with a worker that no longer reports (15 s by default).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease;
        self
    }

    /// Most runs in memory at once (1,000 by default).
    pub fn max_runs(mut self, most: usize) -> Self {
        self.config.max_runs = most;
        self
    }

    /// The shortest and longest time between two polls of a queue.
    pub fn poll(mut self, least: Duration, most: Duration) -> Self {
        self.config.poll = (least, most);
        self
    }

    /// How long a shutdown waits for steps under way (10 s by default).
    pub fn drain(mut self, at_most: Duration) -> Self {
        self.config.drain = at_most;
        self
    }

    /// Another world than tokio and the system clock, for tests.
    pub fn env(mut self, env: Arc<dyn Env>) -> Self {
        self.env = Some(env);
        self
    }

    /// A store that is open already, instead of the URL.
    pub fn store(mut self, store: OpenStore) -> Self {
        self.store = Some(store);
        self
    }

    /// Opens the store, brings its schema up to date, and starts the worker: whatever earlier
    /// processes left unfinished goes on.
    pub async fn start(self) -> Result<Steadfast> {
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        sink::check_all(&self.sinks)?;
        let store = match self.store {
            Some(store) => store,
            None => steadfast_store::open(&self.url).await?,
        };
        let env = self.env.unwrap_or_else(|| Arc::new(TokioEnv::current()));
        let version = self.config.app_version.clone();
        if !self.queues.is_empty() {
            let workspace = &self.config.workspace;
            let client = Client::over(env.clone(), store.clone(), workspace)?;
            for queue in self.queues {
                client.inner.define_queue(queue.into_row()).await?;
            }
        }
        let contracts = Arc::new(self.contracts);
        let runtime = Client::over(env.clone(), store.clone(), &self.config.workspace)?.inner;
        self.governance.check(contracts.all().map(|registered| &registered.command))?;
        let triggers = self.definitions.into_iter().map(|d| d.define(&contracts));
        let triggers = triggers.collect::<Result<Vec<_>>>()?;
        startup::check(&runtime, &contracts, &triggers).await?;
        let mut registry = self.registry;
        registry.state.insert(activity::Log(store.clone()));
        let governance = Arc::new(self.governance);
        let workspace = self.config.workspace.clone();
        let gate = (store.clone(), env.clone(), workspace);
        govern(&mut registry, &governance, &contracts, gate)?;
        let desk = agent::Desk::default();
        registry.state.insert(desk.clone());
        let worker = Worker::start(env, store, registry, self.config).await?;
        let client = Arc::new(Client::of_worker(worker.clone(), version, contracts, governance));
        desk.open(&client);
        let relays = Relay::all(&client.inner, self.sinks, worker.id());
        let (retention, stopping) = (self.retention, Arc::<AtomicBool>::default());
        let life = Life { worker: worker.clone(), stopping: stopping.clone() };
        let _life = Arc::new(life);
        let fabric = Steadfast { client, worker, relays, retention, stopping, _life };
        let begun = fabric.begin(self.source.as_deref(), &triggers).await;
        if let Err(error) = begun {
            fabric.shutdown().await;
            return Err(error);
        }
        Ok(fabric)
    }

    /// Keeps the first refusal, to be reported at the start.
    fn note(mut self, added: Result<()>) -> Self {
        if let Err(error) = added {
            self.refusal.get_or_insert(error);
        }
        self
    }
}

/// Puts the gate, the ways out and the way back into a registry.
fn govern(
    registry: &mut Registry,
    governance: &Arc<Governance>,
    contracts: &Contracts,
    (store, env, workspace): (OpenStore, Arc<dyn Env>, String),
) -> Result<()> {
    let book = Arc::new(contracts.book());
    registry.state.insert((*book).clone());
    registry.state.insert(Ways::new(governance.connectors.clone()));
    registry.connectors = governance.connectors.clone();
    if contracts.is_empty() && governance.connectors.is_empty() {
        return Ok(());
    }
    registry.state.insert(contracts.undoers());
    registry.state.insert(compensate::Ledger(store.clone()));
    registry.add_named(COMPENSATE, limits::RECOVERY_ATTEMPTS, compensate::compensate)?;
    let governance = governance.clone();
    registry.gate = Some(Arc::new(Gatekeeper { governance, book, store, env, workspace }));
    Ok(())
}
