//! The client: starts, steers and observes runs, whether or not this process executes any.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use steadfast_core::command::Ingress;
use steadfast_core::driver::Record;
use steadfast_core::env::Env;
use steadfast_core::envelope::Envelope;
use steadfast_core::workflow::Workflow;
use steadfast_core::{Error, Result, Timestamp, json, limits};
use steadfast_runtime_native::{self as runtime, Explanation, StartSpec, Worker};
use steadfast_store::OpenStore;
use steadfast_store::Tally;
use steadfast_store::op::{RunFilter, RunRow, Tell};

use crate::contract::{Contracts, no_contracts};
use crate::env::TokioEnv;
use crate::flow::router::{Routed, Router};
use crate::flow::scheduler::Scheduler;
use crate::fork::ForkCall;
use crate::governance::Governance;
use crate::queue::{Queue, QueueInfo};
use crate::run::Run;
use crate::start::StartCall;

/// Submits and observes runs. A process with only a client runs nothing itself.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: runtime::Client,
    pub(crate) worker: Option<Worker>,
    pub(crate) version: String,
    pub(crate) contracts: Arc<Contracts>,
    /// None where this process has no policies, and so decides on nothing that has some.
    pub(crate) governance: Option<Arc<Governance>>,
    pub(crate) scheduler: Scheduler,
    pub(crate) router: Router,
}

/// A run as it is stored: status, input, output, who executes it, when, and why.
pub type RunInfo = RunRow;

/// A page of runs, and where the next one begins.
#[derive(Debug, Clone)]
pub struct Runs {
    /// The runs, newest first.
    pub runs: Vec<RunInfo>,
    /// Pass it to `list_after` for the next page; `None` on the last.
    pub next: Option<(Timestamp, String)>,
}

/// What an audit event about the outside is of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Told {
    /// An event was refused, by a trigger or before any.
    Rejected,
    /// The filter of a trigger failed for an event.
    FilterFailed,
}

impl Client {
    /// Connects to a store, in workspace `default`.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_to(url, "default").await
    }

    /// Connects to a workspace of a store.
    pub async fn connect_to(url: &str, workspace: &str) -> Result<Self> {
        let store = steadfast_store::open(url).await?;
        Self::over(Arc::new(TokioEnv::current()), store, workspace)
    }

    /// A client over a store that is open already.
    pub fn over(env: Arc<dyn Env>, store: OpenStore, workspace: &str) -> Result<Self> {
        let inner = runtime::Client::new(env, store, workspace)?;
        Ok(Self::new(inner, None, String::new(), no_contracts(), None))
    }

    fn new(
        inner: runtime::Client,
        worker: Option<Worker>,
        version: String,
        contracts: Arc<Contracts>,
        governance: Option<Arc<Governance>>,
    ) -> Self {
        let scheduler = Scheduler::new(inner.clone(), contracts.clone(), governance.clone());
        let router = Router::default();
        Self { inner, worker, version, contracts, governance, scheduler, router }
    }

    pub(crate) fn of_worker(
        worker: Worker,
        version: String,
        contracts: Arc<Contracts>,
        governance: Arc<Governance>,
    ) -> Self {
        Self::new(worker.client(), Some(worker), version, contracts, Some(governance))
    }

    /// Makes the commands of an event: one for each trigger that matches. When this returns, they
    /// are durable, and the event may be forgotten by whoever brought it.
    pub async fn deliver(&self, event: &Envelope, ingress: Ingress) -> Result<Routed> {
        self.router.route(self, event, ingress).await
    }

    /// Tells the audit that something came from outside and was rejected: what [`Envelope::read`]
    /// or a filter of one's own refused. The same again is told once. Triggers that refuse an
    /// event are told of by [`Client::deliver`] itself.
    pub async fn rejected(&self, source: &str, content: &[u8], why: &Error) -> Result<()> {
        let what = json::digest(content);
        let about = serde_json::json!({ "source": source, "content": what, "error": why });
        self.tell_once(Told::Rejected, (source, ""), &format!("{source}\n{what}"), &about).await
    }

    /// Writes an audit event about something that came from outside. Its id is made of `what`, so
    /// the same again is written once.
    pub(crate) async fn tell_once(
        &self,
        of: Told,
        (source, trace_id): (&str, &str),
        what: &str,
        about: &serde_json::Value,
    ) -> Result<()> {
        let (prefix, event_type) = match of {
            Told::Rejected => ("evt_rejected", "ingress.rejected"),
            Told::FilterFailed => ("evt_filter", "trigger.filter_failed"),
        };
        let tell = Tell {
            workspace: self.inner.workspace().to_owned(),
            command_id: String::new(),
            event_id: format!("{prefix}_{}", json::fingerprint(what)),
            event_type: event_type.to_owned(),
            payload: about.to_string(),
            actor: format!("event:{source}"),
            trace_id: trace_id.to_owned(),
            now: self.inner.now(),
        };
        self.inner.ask(tell).await.map(|_| ())
    }

    /// What this process has to say about its workflows, as OpenMetrics has it: durations, retries,
    /// compensations.
    pub fn metrics(&self) -> String {
        self.inner.metrics()
    }

    /// Starts a workflow. Without an id it gets a fresh one; with the id of an equal earlier start,
    /// that run is given.
    pub fn start<W: Workflow<M>, M>(&self, workflow: W, input: W::Input) -> StartCall<W::Output> {
        match workflow.name() {
            Ok(name) => self.start_named(name, &input),
            Err(refusal) => StartCall::refused(self.clone(), refusal),
        }
    }

    /// Starts a workflow by its name, which some worker must know.
    pub fn start_named<T>(
        &self,
        workflow: &str,
        input: &(impl Serialize + ?Sized),
    ) -> StartCall<T> {
        match json::encode("the input", input) {
            Err(refusal) => StartCall::refused(self.clone(), refusal),
            Ok(input) => {
                let mut spec = StartSpec::new(workflow, input);
                spec.app_version.clone_from(&self.version);
                if let Some(worker) = &self.worker {
                    spec.max_attempts = worker.max_attempts(workflow);
                }
                StartCall::new(self.clone(), spec)
            }
        }
    }

    /// A handle to a run by its id, whoever started it.
    pub fn run<T>(&self, run_id: impl Into<String>) -> Run<T> {
        Run::new(self.clone(), run_id.into(), false)
    }

    /// One run. An error if there is none.
    pub async fn get(&self, run_id: &str) -> Result<RunInfo> {
        self.inner.get(run_id).await
    }

    /// Runs by filter, newest first.
    pub async fn list(&self, filter: RunFilter, limit: usize) -> Result<Runs> {
        self.list_after(filter, None, limit).await
    }

    /// The next page of runs.
    pub async fn list_after(
        &self,
        filter: RunFilter,
        after: Option<(Timestamp, String)>,
        limit: usize,
    ) -> Result<Runs> {
        let page = self.inner.list(filter, after, limit).await?;
        Ok(Runs { runs: page.runs, next: page.next })
    }

    /// The records of a run, in call order.
    pub async fn steps(&self, run_id: &str) -> Result<Vec<Record>> {
        let mut steps = Vec::new();
        loop {
            let from = steps.last().map_or(0, |last: &Record| last.id + 1);
            let from = i64::try_from(from).unwrap_or(i64::MAX);
            let page = self.inner.steps(run_id, from, limits::PAGE_ROWS).await?;
            let more = page.len() == limits::PAGE_ROWS;
            steps.extend(page);
            if !more {
                return Ok(steps);
            }
        }
    }

    /// Sends a signal to a run. It is kept until the run waits for it.
    pub async fn signal<P: Serialize>(&self, run_id: &str, name: &str, payload: P) -> Result<()> {
        let payload = json::encode("the signal", &payload)?;
        self.inner.signal(run_id, name, payload, None).await
    }

    /// Sends a signal under an id of the caller's: however often it is sent, it arrives once.
    pub async fn signal_once<P: Serialize>(
        &self,
        run_id: &str,
        name: &str,
        payload: P,
        signal_id: &str,
    ) -> Result<()> {
        let payload = json::encode("the signal", &payload)?;
        self.inner.signal(run_id, name, payload, Some(signal_id)).await
    }

    /// Stops a run and its attached children before their next step begins. An error says that it
    /// had ended before.
    pub async fn cancel(&self, run_id: &str, reason: &str) -> Result<()> {
        self.inner.cancel(run_id, reason).await
    }

    /// Puts a cancelled or exhausted run back on its queue, with a new budget of attempts.
    pub async fn resume(&self, run_id: &str) -> Result<()> {
        self.inner.resume(run_id).await
    }

    /// Makes a new run from the first `from_step` steps of another; the source is not changed. The
    /// fork has the values and stream items that the source had published before that step.
    pub fn fork<T>(&self, run_id: impl Into<String>, from_step: u64) -> ForkCall<T> {
        ForkCall::new(self.clone(), run_id.into(), from_step)
    }

    /// The ids of all runs that match: what a bulk call would touch.
    pub async fn matching(&self, filter: RunFilter) -> Result<Vec<String>> {
        let (mut ids, mut after) = (Vec::new(), None);
        loop {
            let page = self.inner.list(filter.clone(), after, limits::PAGE_ROWS).await?;
            ids.extend(page.runs.into_iter().map(|run| run.run_id));
            after = page.next;
            if after.is_none() {
                return Ok(ids);
            }
        }
    }

    /// Cancels every run that matches; gives those that were stopped.
    pub async fn cancel_all(&self, filter: RunFilter, reason: &str) -> Result<Vec<String>> {
        let mut done = Vec::new();
        for run_id in self.matching(filter).await? {
            match self.cancel(&run_id, reason).await {
                Ok(()) => done.push(run_id),
                Err(error) => skip_conflicts(error)?,
            }
        }
        Ok(done)
    }

    /// Resumes every run that matches; gives those that are back on their queues.
    pub async fn resume_all(&self, filter: RunFilter) -> Result<Vec<String>> {
        let mut done = Vec::new();
        for run_id in self.matching(filter).await? {
            match self.resume(&run_id).await {
                Ok(()) => done.push(run_id),
                Err(error) => skip_conflicts(error)?,
            }
        }
        Ok(done)
    }

    /// Forks every run that matches from the same step; gives pairs of source and new run.
    pub async fn fork_all(
        &self,
        filter: RunFilter,
        from_step: u64,
    ) -> Result<Vec<(String, String)>> {
        let mut done = Vec::new();
        for source in self.matching(filter).await? {
            let new: Run<serde_json::Value> = self.fork(source.clone(), from_step).await?;
            done.push((source, new.id().to_owned()));
        }
        Ok(done)
    }

    /// What a run waits for: the rule, the holders, until when.
    pub async fn explain(&self, run_id: &str) -> Result<Explanation> {
        self.inner.explain(run_id).await
    }

    /// How many commits and statements this process's store has cost so far.
    pub fn tally(&self) -> Tally {
        self.inner.tally()
    }

    /// Creates or changes a queue; true when it is new. What is set here outlasts restarts of
    /// programs that define the queue otherwise.
    pub async fn put_queue(&self, queue: Queue) -> Result<bool> {
        self.inner.put_queue(queue.into_row()).await
    }

    /// One queue: what holds, what code defined, and how full it is. `None` if there is none.
    pub async fn queue(&self, name: &str) -> Result<Option<QueueInfo>> {
        Ok(QueueInfo::of(self.inner.queue(name, "").await?))
    }

    /// Every queue, as it holds.
    pub async fn queues(&self) -> Result<Vec<Queue>> {
        Ok(self.inner.queues().await?.into_iter().map(Queue::from_row).collect())
    }

    /// Removes runs that ended longer ago than `keep`; gives how many.
    pub async fn purge(&self, keep: Duration) -> Result<u64> {
        self.inner.purge(self.inner.now().before(keep)).await
    }

    /// A run's published value, once it is there; `None` if it is not within the time.
    pub async fn value<V: DeserializeOwned>(
        &self,
        run_id: &str,
        key: &str,
        at_most: Duration,
    ) -> Result<Option<V>> {
        let give_up = self.inner.now().after(at_most);
        loop {
            if let Some(text) = self.inner.value(run_id, key).await? {
                return json::decode("the published value", &text).map(Some);
            }
            let left = self.inner.now().until(give_up);
            if left.is_zero() {
                return Ok(None);
            }
            self.inner.pause(left.min(Duration::from_millis(100))).await;
        }
    }
}

/// In a bulk call, a run that moved on meanwhile is passed over.
fn skip_conflicts(error: Error) -> Result<()> {
    match error.class() {
        steadfast_core::ErrorClass::Conflict | steadfast_core::ErrorClass::NotFound => Ok(()),
        _ => Err(error),
    }
}
