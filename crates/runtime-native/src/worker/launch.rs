//! Bringing a run into memory: by its start here, or by a claim; and its leaving.
//!
//! Invariants: a run is one task, which also starts it where it is started here, so a caller who
//! goes away leaves nothing claimed that nobody executes; a run counts from before it is written
//! until its task is over, also by a panic, so that a worker has no more than it may and shuts down
//! after all.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::FutureExt;
use futures::channel::{mpsc, oneshot};
use futures::future::BoxFuture;
use steadfast_core::Result;
use steadfast_store::{StoreExt, op};
use tracing::{Instrument, Span};

use super::Core;
use crate::client::Client;
use crate::execute::{Execution, Exit, First, Launch};
use crate::hub::{Live, Notice};
use crate::owner::OwnerHub;

impl Core {
    /// Starts a run that this worker claims with it; whether it is new.
    pub(super) async fn start_here(self: &Arc<Self>, start: op::Start) -> Result<bool> {
        let starting = Starting::new(self);
        self.told(|tell| Box::pin(starting.run(start, tell))).await
    }

    /// Submits a command whose run this worker claims with it; its id, and whether it is new.
    pub(super) async fn submit_here(
        self: &Arc<Self>,
        submit: op::Submit,
    ) -> Result<(String, bool)> {
        let starting = Starting::new(self);
        self.told(|tell| Box::pin(starting.command(submit, tell))).await
    }

    /// What a task of its own has to tell.
    async fn told<T>(
        &self,
        task: impl FnOnce(oneshot::Sender<Result<T>>) -> BoxFuture<'static, ()>,
    ) -> Result<T> {
        let (tell, told) = oneshot::channel();
        self.hub.env.spawn("run", task(tell));
        told.await.unwrap_or_else(|_| {
            tracing::error!("the task that starts a run panicked");
            self.hub.metrics.panicked("start");
            let why = "the task that starts the run ended before it was told";
            Err(steadfast_store::Error::Panicked(why.to_owned()).into())
        })
    }

    /// Executes claimed runs, each as a task of its own. They are counted at once; several begin
    /// elsewhere, so that whoever claimed them can claim more meanwhile.
    pub(super) fn launch(self: &Arc<Self>, runs: impl Iterator<Item = op::RunRow>) {
        let mut launches: Vec<Box<Launch>> = runs.map(|run| self.enter(run, true, None)).collect();
        if launches.len() < 2 {
            return launches.pop().into_iter().for_each(|launch| self.spawn_run(launch));
        }
        let core = self.clone();
        let crew = async move { launches.into_iter().for_each(|launch| core.spawn_run(launch)) };
        self.hub.env.spawn("crew", Box::pin(crew));
    }

    fn spawn_run(self: &Arc<Self>, launch: Box<Launch>) {
        let (core, span) = (self.clone(), span(&launch.run));
        self.hub.env.spawn("run", Box::pin(async move { core.live(launch, span).await }));
    }

    /// Counts a claimed run as live. Boxed: it is handed on through several futures, each of which
    /// would have room for it.
    fn enter(&self, run: op::RunRow, holds_place: bool, first: Option<First>) -> Box<Launch> {
        self.hub.env.crash_point("run.claimed");
        let (notices, heard) = mpsc::unbounded();
        let lease_until = Arc::new(AtomicI64::new(run.wake_at.as_micros()));
        let live = Live {
            epoch: run.epoch,
            started_at: run.started_at,
            queue: run.queue.clone(),
            partition: run.partition.clone(),
            lease_until: lease_until.clone(),
            notices,
        };
        if self.is_stopping() {
            // Claimed while the shutdown began: it comes to rest like the others.
            let _ = live.notices.unbounded_send(Notice::Drain);
        }
        if self.leaving.load(Ordering::Acquire) {
            let _ = live.notices.unbounded_send(Notice::GiveBack);
        }
        self.hub.live().insert(run.run_id.clone(), live);
        Box::new(Launch {
            hub: OwnerHub::new(self.hub.clone()),
            registry: self.registry.clone(),
            config: self.config.clone(),
            run,
            first,
            holds_place,
            lease_until,
            notices: heard,
        })
    }

    async fn live(&self, launch: Box<Launch>, span: Span) {
        let (run_id, mine) = (launch.run.run_id.clone(), launch.lease_until.clone());
        let executed = AssertUnwindSafe(self.execute(launch, span)).catch_unwind().await;
        if let Err(payload) = executed {
            // Its lease runs out, and a recovery counts. Given back, it would be claimed at once,
            // again and again.
            self.hub.panicked("run", payload);
        }
        self.left(&run_id, &mine);
    }

    async fn execute(&self, launch: Box<Launch>, span: Span) {
        let (attempt, epoch) = (launch.run.attempts, launch.run.epoch);
        let Some(execution) = Execution::prepare(launch).await else {
            return;
        };
        let execution = async {
            begins(attempt, epoch);
            let exit = execution.run().await;
            ends(exit);
            exit
        };
        if Box::pin(execution.instrument(span)).await == Exit::Stopped {
            self.fenced.ring();
        }
    }

    /// A run left memory: its place is free.
    fn left(&self, run_id: &str, lease_until: &Arc<AtomicI64>) {
        let gone = {
            let mut live = self.hub.live();
            match live.get(run_id) {
                Some(entry) if Arc::ptr_eq(&entry.lease_until, lease_until) => live.remove(run_id),
                _ => None,
            }
        };
        self.hub.left(run_id);
        // Most runs of the default queue were started here, and nobody waits for their places.
        if let Some(gone) = gone.filter(|gone| {
            gone.queue != op::DEFAULT_QUEUE || self.hub.queues.limits_each(&gone.queue)
        }) {
            self.place(&gone.queue).ring();
            self.hub.due.place();
        }
        self.freed();
    }

    /// There may be room for another run.
    fn freed(&self) {
        self.hub.freed.ring();
        if self.hungry.swap(false, Ordering::AcqRel) {
            self.hub.ready.ring();
        }
    }
}

/// A run that is being started here: it counts like one in memory, from before it is written until
/// it is in memory or will not be.
struct Starting(Arc<Core>);

impl Starting {
    fn new(core: &Arc<Core>) -> Self {
        core.starting.fetch_add(1, Ordering::AcqRel);
        Self(core.clone())
    }

    /// The whole of a run that is started here, up to where it ends or comes to rest. Its code
    /// takes the first turn before it is started: nothing leaves the process in a turn, and code
    /// that comes to rest in its first is suspended by the commit that starts it.
    async fn run(self, mut start: op::Start, tell: oneshot::Sender<Result<bool>>) {
        let core = self.0.clone();
        let run = claimed_row(start.clone());
        let span = span(&run);
        let first = span.in_scope(|| First::turn(&core.hub, &core.registry, &run));
        start.rest = first.as_ref().and_then(|first| first.rest(&core.hub, &core.config, &run));
        let rests_until = start.rest.as_ref().map(|rest| rest.wake_at);
        let client = Client { hub: core.hub.clone() };
        let started = Box::pin(client.begin(start)).await;
        let is_claimed = matches!(started, Ok(Some(Some(_))));
        // Counted first: who is told may ask for its end at once.
        let stays = is_claimed && rests_until.is_none();
        let launch = stays.then(|| core.enter(run, false, first));
        drop(self);
        // A caller that went away does not need its answer.
        let _ = tell.send(started.map(|new| new.is_some()));
        match (launch, rests_until) {
            (Some(launch), _) => core.live(launch, span).await,
            (None, Some(moment)) if is_claimed => {
                core.hub.due.at(moment);
                span.in_scope(|| {
                    begins(1, 1);
                    ends(Exit::Parked);
                });
            }
            _ => {}
        }
    }

    /// The same for the run of a command. It is judged first, so its code takes no turn before.
    async fn command(self, submit: op::Submit, tell: oneshot::Sender<Result<(String, bool)>>) {
        let core = self.0.clone();
        let client = Client { hub: core.hub.clone() };
        let reply = Box::pin(core.hub.store.ask(submit.clone())).await;
        let submitted = reply.map_err(Into::into).and_then(|r| client.submitted(&submit, r));
        let is_claimed = matches!(submitted, Ok((.., Some(_))));
        let run = is_claimed.then(|| claimed_row(*submit.start));
        let launch = run.map(|run| (span(&run), core.enter(run, false, None)));
        drop(self);
        let _ = tell.send(submitted.map(|(command_id, new, _)| (command_id, new)));
        if let Some((span, launch)) = launch {
            core.live(launch, span).await;
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.starting.fetch_sub(1, Ordering::AcqRel);
        self.0.freed();
    }
}

/// Every line logged in it, by us or by a step's body, carries these.
fn span(run: &op::RunRow) -> Span {
    let context = crate::context_of(run);
    tracing::info_span!(
        "workflow",
        run_id = run.run_id,
        workflow = run.workflow,
        command_id = context.command_id,
        trace_id = context.trace_id,
        correlation_id = context.correlation_id,
    )
}

fn begins(attempt: i64, epoch: i64) {
    tracing::info_span!("workflow.start")
        .in_scope(|| tracing::info!(attempt, epoch, "workflow.start"));
}

fn ends(exit: Exit) {
    tracing::info_span!("workflow.end").in_scope(|| tracing::info!(?exit, "workflow.end"));
}

/// The row that a start with a claim makes, without reading it back.
fn claimed_row(start: op::Start) -> op::RunRow {
    let deadline_at = start.deadline_by();
    let (worker, until) = start.claim.expect("invariant: only starts that claim come here");
    op::RunRow {
        run_id: start.run_id,
        workflow: start.workflow,
        status: steadfast_core::RunStatus::Pending,
        input: start.input,
        output: None,
        error: None,
        queue: start.queue,
        partition: String::new(),
        priority: start.priority,
        dedupe_id: start.dedupe_id,
        app_version: start.app_version,
        worker,
        epoch: 1,
        attempts: 1,
        max_attempts: start.max_attempts,
        created_at: start.now,
        updated_at: start.now,
        started_at: Some(start.now),
        finished_at: None,
        ready_at: start.ready_at,
        wake_at: until,
        parked: false,
        waits: String::new(),
        timeout: start.timeout,
        deadline_at,
        forked_from: String::new(),
        parent: start.parent,
        detached: start.detached,
        generation: 0,
        seed: start.seed,
        inbox: 0,
        context: start.context,
    }
}
