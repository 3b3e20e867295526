//! One execution of a run: turns of the driver, and the commits between them.
//!
//! Invariants: before a step or effect starts, every earlier record is durable; what is not durable
//! when the run is suspended or finished is part of that commit (of very many records, the last);
//! exactly one outcome is delivered between two turns; a fenced write ends the execution without a
//! trace.
//! Deliberately absent: retries of store calls (the store has patience) and any memory of the run
//! beyond this execution.

mod attempt;
mod begin;
mod commit;
mod deadline;
mod doubt;
mod drift;
mod first;
mod govern;
mod look;
mod people;
mod settle;
mod stopped;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures::channel::mpsc;
use futures::future::{Either, select};
use futures::{FutureExt, StreamExt};
use steadfast_core::command::Context;
use steadfast_core::driver::{Driver, Kind, Outcome, Record, Request, RunMeta, Turn};
use steadfast_core::{Error, ErrorClass, Timestamp, json};
use steadfast_store::op::{self, Entry, PendingSignal, With};

pub(crate) use self::first::First;
use crate::call::{Call, Ended};
use crate::config::Config;
use crate::hub::{Hub, Notice};
use crate::owner::OwnerHub;
use crate::registry::Registry;
use crate::waits::Wait;

/// Why an execution is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The run ended.
    Finished,
    /// The run was suspended or given back.
    Parked,
    /// The run is somebody else's, or the store failed for good.
    Stopped,
    /// The time of the shutdown is over.
    TimeUp,
}

/// The execution ends here, for this reason.
type Step<T = ()> = Result<T, Exit>;

/// Everything an execution needs to begin.
pub(crate) struct Launch {
    pub(crate) hub: OwnerHub,
    pub(crate) registry: Arc<Registry>,
    pub(crate) config: Arc<Config>,
    pub(crate) run: op::RunRow,
    /// The first turn, if it was taken already.
    pub(crate) first: Option<First>,
    /// Whether it came by its queue, and holds a place there.
    pub(crate) holds_place: bool,
    pub(crate) lease_until: Arc<AtomicI64>,
    pub(crate) notices: mpsc::UnboundedReceiver<Notice>,
}

pub(crate) struct Execution {
    hub: OwnerHub,
    config: Arc<Config>,
    registry: Arc<Registry>,
    run: op::RunRow,
    /// What travels with the run.
    context: Context,
    lease: op::Lease,
    lease_until: Arc<AtomicI64>,
    notices: mpsc::UnboundedReceiver<Notice>,
    driver: Driver,
    /// The first turn, if it was taken already.
    turned: Option<Turn>,
    /// Records that are not durable yet.
    pending: Vec<Entry>,
    /// Whether one of them should become durable before the run waits.
    urgent: bool,
    /// Digests of the inputs of calls that have no final record yet.
    digests: BTreeMap<u64, String>,
    /// Requests that are not begun yet.
    backlog: VecDeque<Request>,
    calls: BTreeMap<u64, Box<Call>>,
    running: BTreeSet<u64>,
    ended: mpsc::UnboundedReceiver<Ended>,
    end: mpsc::UnboundedSender<Ended>,
    waits: BTreeMap<u64, Wait>,
    signals: Vec<PendingSignal>,
    /// What was read of the run's signals.
    inlet: look::Inlet,
    inbox: i64,
    /// Children known to be over.
    over: BTreeMap<String, op::RunRow>,
    /// Children known to be gone.
    missing: Vec<String>,
    /// Whether something may have arrived that was not read yet.
    look: bool,
    /// Whether the worker shuts down: nothing new leaves the process.
    draining: bool,
    /// Whether it holds a place on its queue.
    holds_place: bool,
    /// What became of effects, where the fence kept it from the ledger.
    untold: Vec<op::Govern>,
    /// Calls that ended after the run was stopped.
    late: Vec<op::InvocationRow>,
    /// What those cost.
    owing: Vec<op::Charge>,
}

impl Execution {
    /// Loads what the run has and prepares its code. `None` when the run is not ours to execute.
    pub(crate) async fn prepare(launch: Box<Launch>) -> Option<Box<Self>> {
        let Launch { hub, registry, config, run, first, holds_place, lease_until, notices } =
            *launch;
        // A first claim has nothing to load, unless a fork copied steps or a signal came early.
        let fresh = run.epoch == 1 && run.forked_from.is_empty() && run.inbox == 0;
        let (steps, loaded) = match fresh {
            true => (Vec::new(), op::Loaded::default()),
            false => look::history(&hub, &run).await.map_err(stopped).ok()?,
        };
        let lease = hub.lease(&run);
        let (driver, turned) = match first {
            Some(First { driver, turn }) => (driver, Some(turn)),
            None => (driver(&hub, &registry, &run, steps)?, None),
        };
        let (end, ended) = mpsc::unbounded();
        Some(Box::new(Self {
            hub,
            config,
            registry,
            lease,
            lease_until,
            notices,
            driver,
            turned,
            pending: Vec::new(),
            urgent: false,
            digests: BTreeMap::new(),
            backlog: VecDeque::new(),
            calls: BTreeMap::new(),
            running: BTreeSet::new(),
            ended,
            end,
            waits: BTreeMap::new(),
            inlet: look::Inlet::of_all(&loaded.signals),
            signals: loaded.signals,
            inbox: loaded.inbox,
            over: BTreeMap::new(),
            missing: Vec::new(),
            look: false,
            draining: false,
            holds_place,
            untold: Vec::new(),
            late: Vec::new(),
            owing: Vec::new(),
            context: crate::context_of(&run),
            run,
        }))
    }

    /// Runs until the end, a suspension, or the loss of the lease.
    pub(crate) async fn run(mut self: Box<Self>) -> Exit {
        let mut exit = loop {
            if let Err(exit) = self.turn().await {
                break exit;
            }
        };
        if exit == Exit::Finished {
            // What the code no longer waits for is not carried on with.
            for (id, call) in std::mem::take(&mut self.calls) {
                self.abandon(id, call);
            }
        }
        if exit == Exit::TimeUp {
            exit = Box::pin(self.give_back()).await;
        }
        if exit == Exit::Stopped {
            Box::pin(self.end_if_overdue()).await;
            Box::pin(self.let_go()).await;
        }
        exit
    }

    /// One turn of the code, and the one outcome it needs next.
    async fn turn(&mut self) -> Step {
        let turn = self.turned.take().unwrap_or_else(|| self.driver.turn());
        let drifts = self.driver.take_drifts();
        if !drifts.is_empty() {
            Box::pin(self.report(drifts)).await;
        }
        match turn {
            Turn::Done(outcome) => {
                self.take_rides();
                return Err(self.finish(outcome).await);
            }
            Turn::ContinueAsNew(input) => {
                self.take_rides();
                return Box::pin(self.renew(input)).await;
            }
            Turn::Ask { start, dropped } => {
                self.take_rides();
                dropped.iter().for_each(|id| self.forget(*id));
                self.backlog.extend(start);
            }
        }
        while let Some(notice) = self.notices.next().now_or_never() {
            // The hub dropped our entry: another execution of the run has taken it.
            self.heed(notice.ok_or(Exit::Stopped)?)?;
        }
        // One outcome a turn: what replay delivers one by one was delivered so at first, too.
        while let Some(request) = self.backlog.pop_front() {
            if self.begin(request).await? {
                return Ok(());
            }
        }
        self.next_outcome().await
    }

    /// Waits until there is an outcome, and delivers it. May suspend the run instead.
    async fn next_outcome(&mut self) -> Step {
        loop {
            if self.deliver_ready() {
                return Ok(());
            }
            if let Some((id, answer)) = self.next_answer() {
                if Box::pin(self.take_answer(id, answer)).await? {
                    return Ok(());
                }
                continue;
            }
            if self.has_unread_signals() {
                // Those consumed are marked first, so that the next page begins after them.
                self.flush().await?;
                self.look = true;
            }
            let now = self.hub.now();
            let due = |wait: &Wait| matches!(wait, Wait::Child { look_at, .. } if *look_at <= now);
            if self.look || self.waits.values().any(due) {
                Box::pin(self.look_again()).await?;
                continue;
            }
            self.check_deadline().await?;
            if self.begin_due_retries().await? {
                return Ok(());
            }
            if self.running.is_empty() {
                self.rest().await?;
                if self.look {
                    continue;
                }
            } else if self.urgent {
                self.flush().await?;
                continue;
            }
            if self.hear().await? {
                return Ok(());
            }
        }
    }

    /// Nothing runs: comes to rest, unless the next thing is due in a moment.
    async fn rest(&mut self) -> Step {
        if self.draining {
            return self.release().await;
        }
        let soon = self.hub.now().after(self.config.linger);
        if self.next_moment() > soon {
            return self.suspend().await;
        }
        if self.urgent {
            self.flush().await?;
        }
        Ok(())
    }

    /// Waits for the first thing to happen; true when that delivered an outcome.
    async fn hear(&mut self) -> Step<bool> {
        let hub = self.hub.clone();
        // With a step under way, what arrives in other processes is found by looking now and then.
        let glance = match self.waits.values().any(|w| !matches!(w, Wait::Retry { .. })) {
            true => hub.now().after(Duration::from_secs(1)),
            false => Timestamp::NEVER,
        };
        let moment = Box::pin(hub.sleep_until(self.next_moment().min(glance)));
        match select(select(self.ended.next(), self.notices.next()), moment).await {
            Either::Left((Either::Left((Some(ended), _)), _)) => {
                return Ok(self.attempt_ended(ended));
            }
            Either::Left((Either::Right((Some(notice), _)), _)) => self.heed(notice)?,
            // The hub dropped our entry: another execution of the run has taken it.
            Either::Left(_) => return Err(Exit::Stopped),
            Either::Right(_) => {
                let listens = |w: &Wait| !matches!(w, Wait::Sleep { .. } | Wait::Retry { .. });
                self.look |= self.waits.values().any(listens) && self.hub.now() >= glance;
            }
        }
        Ok(false)
    }

    fn heed(&mut self, notice: Notice) -> Step {
        match notice {
            Notice::Arrived => self.look = true,
            Notice::Drain => self.draining = true,
            // A run that started over meanwhile has a newer lease than the one that was lost.
            Notice::Lost(epoch) if epoch != self.lease.epoch => {}
            Notice::Lost(_) | Notice::Stopped => return Err(Exit::Stopped),
            Notice::GiveBack => return Err(Exit::TimeUp),
        }
        Ok(())
    }

    /// The next moment at which something happens by itself.
    fn next_moment(&self) -> Timestamp {
        // While draining, no attempt begins here any more.
        let counts = |wait: &&Wait| !(self.draining && matches!(wait, Wait::Retry { .. }));
        let waits = self.waits.values().filter(counts).map(Wait::until).min();
        let moment = waits.unwrap_or(Timestamp::NEVER);
        moment.min(self.run.deadline_at.unwrap_or(Timestamp::NEVER))
    }

    /// Delivers the first wait that is over, if any.
    fn deliver_ready(&mut self) -> bool {
        let now = self.hub.now();
        let ready = self.waits.iter().find_map(|(id, wait)| {
            let outcome = match wait {
                Wait::Retry { .. } | Wait::Answer { .. } => return None,
                Wait::Sleep { until, .. } => (*until <= now).then(|| (Ok("null".to_owned()), None)),
                Wait::Signal { name, until, .. } => {
                    let signal = self.signals.iter().find(|signal| signal.name == *name);
                    let taken = signal
                        .map(|s| (Ok(format!("[{}]", s.payload)), Some(With::Consume(s.seq))));
                    taken.or_else(|| (*until <= now).then(|| (Ok("null".to_owned()), None)))
                }
                Wait::Child { run_id, .. } => match self.over.get(run_id) {
                    Some(run) => Some((child_outcome(run), None)),
                    None if self.missing.contains(run_id) => Some((Err(gone(run_id)), None)),
                    None => None,
                },
            };
            outcome.map(|(outcome, with)| (*id, outcome, with))
        });
        let Some((id, outcome, with)) = ready else {
            return false;
        };
        let wait = self.waits.remove(&id).expect("invariant: just found");
        let (name, kind, since) = match wait {
            Wait::Sleep { asked_at, .. } => ("sleep".to_owned(), Kind::Sleep, asked_at),
            Wait::Signal { name, asked_at, .. } => (name, Kind::Signal, asked_at),
            Wait::Child { asked_at, .. } => ("join".to_owned(), Kind::Join, asked_at),
            Wait::Retry { .. } | Wait::Answer { .. } => {
                unreachable!("invariant: those are not delivered")
            }
        };
        if let Some(With::Consume(seq)) = &with {
            let seq = *seq;
            self.signals.retain(|signal| signal.seq != seq);
        }
        self.deliver_since(since, id, &name, kind, outcome, with);
        true
    }

    /// Gives the code an outcome that is final, and keeps its record for the next commit.
    fn deliver(&mut self, id: u64, name: &str, kind: Kind, outcome: Outcome, with: Option<With>) {
        self.deliver_since(Timestamp::NEVER, id, name, kind, outcome, with);
    }

    /// The same for what began at a moment: the record says so, if that is not ahead of this clock.
    fn deliver_since(
        &mut self,
        since: Timestamp,
        id: u64,
        name: &str,
        kind: Kind,
        outcome: Outcome,
        with: Option<With>,
    ) {
        let now = self.hub.now();
        let seq = self.driver.deliver(id, outcome.clone(), now);
        let mut record = Record::done(id, seq, name, kind, outcome);
        (record.started_at, record.completed_at) = (since.min(now), now);
        self.pending.push(Entry { record, replaces: false, with });
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.hub.now()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn run_id(&self) -> &str {
        &self.run.run_id
    }

    /// A digest that tells a call of this generation of this run from all others: what ids are
    /// made of, so that they are the same after a restart.
    pub(crate) fn place(&self, id: u64) -> String {
        place(&self.run, id)
    }

    pub(crate) fn epoch(&self) -> i64 {
        self.lease.epoch
    }

    fn take_rides(&mut self) {
        let rides = self.driver.take_rides().into_iter();
        self.pending.extend(rides.map(|record| Entry { record, replaces: false, with: None }));
    }

    /// Whether the lease lasts long enough to begin something that leaves the process.
    fn lease_lasts(&self) -> bool {
        let until = Timestamp::from_micros(self.lease_until.load(Ordering::Acquire));
        self.hub.now().after(self.config.lease / 10) < until
    }
}

/// A digest that tells a call of this generation of a run from all others.
fn place(run: &op::RunRow, id: u64) -> String {
    json::fingerprint(&format!("{}\n{}\n{id}", run.run_id, run.generation))
}

/// A driver for the run's code, or `None` if this worker has no such workflow.
fn driver(
    hub: &Hub,
    registry: &Registry,
    run: &op::RunRow,
    history: Vec<Record>,
) -> Option<Driver> {
    let registered = registry.get(&run.workflow)?;
    let meta = RunMeta {
        workspace: hub.workspace.clone(),
        run_id: run.run_id.clone(),
        workflow: run.workflow.clone(),
        generation: u32::try_from(run.generation).unwrap_or(u32::MAX),
        seed: u64::from_be_bytes(run.seed.to_be_bytes()),
        started_at: run.started_at.unwrap_or(run.created_at),
        context: crate::context_of(run),
        strict_replay: registered.strict_replay,
    };
    let (code, input) = (registered.code.clone(), run.input.clone());
    let state = Arc::new(registry.state.clone());
    Some(Driver::new(meta, history, state, move |cx| code(cx, input)))
}

fn child_outcome(run: &op::RunRow) -> Outcome {
    let end = crate::client::RunEnd::of(run).expect("invariant: the child is over");
    end.outcome
}

/// A child that is not there any more: its end will not be announced.
fn gone(run_id: &str) -> Error {
    let text = format!("child run \"{run_id}\" is gone; retention removed it before it was joined");
    Error::new(ErrorClass::NotFound, "SF-0109", text)
}

fn stopped(error: steadfast_store::Error) -> Exit {
    tracing::error!(%error, "a run is given up by this worker");
    Exit::Stopped
}
