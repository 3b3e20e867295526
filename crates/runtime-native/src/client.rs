//! The registry-free client: starts, steers and observes runs; executes none.

mod queue;

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use steadfast_core::driver::{Outcome, Record};
use steadfast_core::env::{Env, new_id};
use steadfast_core::{Error, ErrorClass, Result, RunStatus, Timestamp, key, limits};
use steadfast_store::op::{self, Forked, Signalled, Started};
use steadfast_store::{OpenStore, StoreExt};

use crate::hub::Hub;

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEnd {
    /// Its last status.
    pub status: RunStatus,
    /// Its value or error.
    pub outcome: Outcome,
}

/// A run to be started.
#[derive(Debug, Clone)]
pub struct StartSpec {
    /// The id; generated when none is given.
    pub run_id: Option<String>,
    /// The workflow's name.
    pub workflow: String,
    /// The input as canonical JSON.
    pub input: String,
    /// The queue.
    pub queue: String,
    /// The partition, empty for none.
    pub partition: String,
    /// Lower goes first.
    pub priority: i64,
    /// Unique on the queue while active; empty for none.
    pub dedupe_id: String,
    /// The version to pin to; empty for any.
    pub app_version: String,
    /// Wait before it may start.
    pub delay: Duration,
    /// How long it may run.
    pub timeout: Option<Duration>,
    /// When it is stopped at the latest.
    pub deadline: Option<Timestamp>,
    /// Recoveries allowed.
    pub max_attempts: u32,
    /// What travels with it from its cause, as JSON.
    pub context: Option<String>,
}

impl StartSpec {
    /// A run with defaults.
    pub fn new(workflow: &str, input: String) -> Self {
        Self {
            run_id: None,
            workflow: workflow.to_owned(),
            input,
            queue: op::DEFAULT_QUEUE.to_owned(),
            partition: String::new(),
            priority: 0,
            dedupe_id: String::new(),
            app_version: String::new(),
            delay: Duration::ZERO,
            timeout: None,
            deadline: None,
            max_attempts: limits::RECOVERY_ATTEMPTS,
            context: None,
        }
    }

    fn check(&self) -> Result<()> {
        key::check("workflow name", &self.workflow)?;
        key::check("queue name", &self.queue)?;
        if let Some(id) = &self.run_id {
            key::check("run id", id)?;
        }
        let optional = [
            ("partition key", &self.partition),
            ("deduplication id", &self.dedupe_id),
            ("application version", &self.app_version),
        ];
        for (what, value) in optional {
            if !value.is_empty() {
                key::check(what, value)?;
            }
        }
        Ok(())
    }
}

/// Submits and observes runs.
#[derive(Clone)]
pub struct Client {
    pub(crate) hub: Arc<Hub>,
}

impl Client {
    /// A client over a store.
    pub fn new(env: Arc<dyn Env>, store: OpenStore, workspace: &str) -> Result<Self> {
        key::check_workspace(workspace)?;
        Ok(Self { hub: Arc::new(Hub::new(env, store, workspace)) })
    }

    /// The operation for a spec.
    pub fn start_op(&self, spec: StartSpec) -> Result<op::Start> {
        spec.check()?;
        let now = self.hub.now();
        let bits = self.hub.env.random();
        Ok(op::Start {
            workspace: self.hub.workspace.clone(),
            run_id: spec.run_id.unwrap_or_else(|| new_id(&*self.hub.env)),
            workflow: spec.workflow,
            input: spec.input,
            queue: spec.queue,
            partition: spec.partition,
            priority: spec.priority,
            dedupe_id: spec.dedupe_id,
            app_version: spec.app_version,
            max_attempts: i64::from(spec.max_attempts),
            ready_at: now.after(spec.delay),
            timeout: spec.timeout,
            deadline_at: spec.deadline,
            parent: String::new(),
            detached: false,
            seed: i64::from_be_bytes(bits.to_be_bytes()),
            context: spec.context,
            claim: None,
            rest: None,
            now,
        })
    }

    /// Starts a run; gives its id and whether it is new. The id of an equal earlier start is an
    /// answer, not an error.
    pub async fn start(&self, spec: StartSpec) -> Result<(String, bool)> {
        let op = self.start_op(spec)?;
        let run_id = op.run_id.clone();
        Ok((run_id, self.begin(op).await?.is_some()))
    }

    /// Carries out a start.
    pub(crate) async fn begin(&self, op: op::Start) -> Result<Option<Option<op::Lease>>> {
        let reply = self.hub.store.ask(op.clone()).await?;
        self.started(&op, reply)
    }

    /// What a reply to a start means: the lease of a new run, nothing for an existing one, an
    /// error.
    pub fn started(&self, op: &op::Start, reply: Started) -> Result<Option<Option<op::Lease>>> {
        let conflict = |code: &str, text: String| Err(Error::new(ErrorClass::Conflict, code, text));
        match reply {
            Started::New(lease) => {
                if lease.is_none() {
                    self.hub.ready.ring();
                }
                Ok(Some(lease))
            }
            Started::Existing(_) => Ok(None),
            Started::Conflict(field) => {
                conflict("SF-0110", format!("run \"{}\" exists with another {field}", op.run_id))
            }
            Started::Duplicate(holder) => conflict(
                "SF-0111",
                format!("run \"{holder}\" is active with deduplication id \"{}\"", op.dedupe_id),
            ),
            Started::NoQueue => Err(Error::new(
                ErrorClass::NotFound,
                "SF-0112",
                format!("there is no queue \"{}\"; create it before starting runs on it", op.queue),
            )),
        }
    }

    /// Starts a run after a quiet time: each call before that replaces the input and waits anew.
    /// Gives the run's id and whether this call created it.
    pub async fn debounce(
        &self,
        spec: StartSpec,
        key: &str,
        quiet: Duration,
        max_wait: Option<Duration>,
    ) -> Result<(String, bool)> {
        key::check("debounce key", key)?;
        let start = self.start_op(StartSpec { delay: quiet, ..spec })?;
        let key = key.to_owned();
        let reply = self.hub.store.ask(op::Debounce { start: start.clone(), key, max_wait });
        let reply = match reply.await? {
            op::Debounced::New => Started::New(None),
            op::Debounced::Replaced(run_id) => return Ok((run_id, false)),
            op::Debounced::Duplicate(run_id) => Started::Duplicate(run_id),
            op::Debounced::Conflict("id") => {
                return Err(Error::new(
                    ErrorClass::Conflict,
                    "SF-0110",
                    format!(
                        "run \"{}\" has begun and takes no other input; leave the id out, and the \
                         next debounced run gets one of its own",
                        start.run_id
                    ),
                ));
            }
            op::Debounced::Conflict(field) => Started::Conflict(field),
            op::Debounced::NoQueue => Started::NoQueue,
        };
        self.started(&start, reply).map(|_| (start.run_id, true))
    }

    /// One run.
    pub async fn get(&self, run_id: &str) -> Result<op::RunRow> {
        self.find(run_id).await?.ok_or_else(|| no_run(run_id))
    }

    /// One run, if there is one.
    pub async fn find(&self, run_id: &str) -> Result<Option<op::RunRow>> {
        let at = op::GetRun {
            workspace: self.hub.workspace.clone(),
            run_id: run_id.to_owned(),
            now: self.hub.now(),
        };
        Ok(self.hub.store.ask(at).await?.0.map(|run| *run))
    }

    /// Runs by filter, newest first.
    pub async fn list(
        &self,
        filter: op::RunFilter,
        after: Option<(Timestamp, String)>,
        limit: usize,
    ) -> Result<op::RunPage> {
        let (workspace, now) = (self.hub.workspace.clone(), self.hub.now());
        Ok(self.hub.store.ask(op::ListRuns { workspace, filter, after, limit, now }).await?)
    }

    /// Records of a run, in call order.
    pub async fn steps(&self, run_id: &str, from: i64, limit: usize) -> Result<Vec<Record>> {
        let (workspace, run_id) = (self.hub.workspace.clone(), run_id.to_owned());
        Ok(self.hub.store.ask(op::ListSteps { workspace, run_id, from, limit }).await?.0)
    }

    /// Waits for a run's end. The end is pushed when this process brings it about; otherwise one
    /// question to the store, for all who wait, finds it (see `Hub::look_after`).
    pub async fn wait(&self, run_id: &str) -> Result<RunEnd> {
        /// However ends are pushed, a waiter looks for itself now and then.
        const LOOK: Duration = Duration::from_secs(5);
        let mut watch = self.hub.watch(run_id);
        loop {
            // Watched first: a run that is live here after that will have its end pushed.
            if !self.hub.live().contains_key(run_id) {
                if let Some(end) = RunEnd::of(&self.get(run_id).await?) {
                    return Ok(end);
                }
                self.hub.look_after();
            }
            match select(&mut watch.told, self.hub.env.sleep(LOOK)).await {
                Either::Left((Ok(end), _)) => return Ok(end),
                // The worker of this process gave the run up without ending it.
                Either::Left((Err(_), _)) => watch.again(),
                Either::Right(_) => {}
            }
        }
    }

    /// Sends a signal; one with an id that was accepted before changes nothing.
    pub async fn signal(
        &self,
        run_id: &str,
        name: &str,
        payload: String,
        signal_id: Option<&str>,
    ) -> Result<()> {
        key::check_signal("signal name", name)?;
        let signal_id = match signal_id {
            Some(id) => id.to_owned(),
            None => new_id(&*self.hub.env),
        };
        key::check_signal("signal id", &signal_id)?;
        let signal = op::Signal {
            workspace: self.hub.workspace.clone(),
            run_id: run_id.to_owned(),
            name: name.to_owned(),
            signal_id,
            payload,
            now: self.hub.now(),
        };
        match self.hub.store.ask(signal).await? {
            Signalled::Accepted | Signalled::Duplicate => {
                self.hub.arrived(run_id);
                Ok(())
            }
            Signalled::Over => Err(Error::new(
                ErrorClass::Conflict,
                "SF-0113",
                format!("run \"{run_id}\" is over and takes no signals"),
            )),
            Signalled::NotFound => Err(no_run(run_id)),
        }
    }

    /// Cancels a run and its attached children. An error says that it had ended before.
    pub async fn cancel(&self, run_id: &str, reason: &str) -> Result<()> {
        let text = if reason.is_empty() { "the run was cancelled" } else { reason };
        let reason = Error::new(ErrorClass::Cancelled, "SF-0305", text);
        let cancel = op::Cancel {
            workspace: self.hub.workspace.clone(),
            run_id: run_id.to_owned(),
            reason: reason.clone(),
            now: self.hub.now(),
        };
        match self.hub.store.ask(cancel).await? {
            op::Cancelled::Done(others) => {
                self.hub.cancelled(others.into_iter().chain([run_id.to_owned()]), &reason);
                Ok(())
            }
            op::Cancelled::AlreadyOver(status) => Err(Error::new(
                ErrorClass::Conflict,
                "SF-0114",
                format!("run \"{run_id}\" has ended before as {status}"),
            )),
            op::Cancelled::NotFound => Err(no_run(run_id)),
        }
    }

    /// Puts a cancelled or exhausted run back on its queue.
    pub async fn resume(&self, run_id: &str) -> Result<()> {
        let (workspace, now) = (self.hub.workspace.clone(), self.hub.now());
        let reply = self.hub.store.ask(op::Resume { workspace, run_id: run_id.to_owned(), now });
        match reply.await? {
            op::Resumed::Done => {
                self.hub.ready.ring();
                Ok(())
            }
            op::Resumed::NotStopped(status) => Err(Error::new(
                ErrorClass::Conflict,
                "SF-0115",
                format!(
                    "run \"{run_id}\" is {status}; only a cancelled or exhausted run is resumed"
                ),
            )),
            op::Resumed::TakenBack => Err(Error::new(
                ErrorClass::Conflict,
                "SF-0837",
                format!(
                    "effects of the command of run \"{run_id}\" were taken back, so what the run \
                     has on record is no longer so; submit a new command"
                ),
            )),
            op::Resumed::NotFound => Err(no_run(run_id)),
        }
    }

    /// Makes a new run from the steps of another before `from_step`; gives its id and whether it is
    /// new. The id of an equal earlier fork is an answer, not an error.
    pub async fn fork(&self, mut fork: op::Fork) -> Result<(String, bool)> {
        if fork.run_id.is_empty() {
            fork.run_id = new_id(&*self.hub.env);
        }
        key::check("run id", &fork.run_id)?;
        fork.workspace.clone_from(&self.hub.workspace);
        fork.seed = i64::from_be_bytes(self.hub.env.random().to_be_bytes());
        fork.now = self.hub.now();
        let run_id = fork.run_id.clone();
        let taken = |by| Err(Error::new(ErrorClass::Conflict, "SF-0110", by));
        match self.hub.store.ask(fork.clone()).await? {
            Forked::Done => {
                self.hub.ready.ring();
                Ok((run_id, true))
            }
            Forked::Existing => Ok((run_id, false)),
            Forked::Conflict("source") => {
                taken(format!("run \"{run_id}\" exists and is not a fork of \"{}\"", fork.source))
            }
            Forked::Conflict(_) => taken(format!(
                "run \"{run_id}\" is a fork of \"{}\" from another step, or with another input, \
                 patch, version or timeout",
                fork.source
            )),
            Forked::NoSuchStep(step) => Err(Error::invalid(
                "SF-0116",
                format!(
                    "step {step} of run \"{}\" is not copied and cannot be patched",
                    fork.source
                ),
            )),
            Forked::NotFound => Err(no_run(&fork.source)),
        }
    }

    /// A published value as JSON, if it is there.
    pub async fn value(&self, run_id: &str, key: &str) -> Result<Option<String>> {
        let (workspace, run_id) = (self.hub.workspace.clone(), run_id.to_owned());
        let at = op::GetValue { workspace, run_id, key: key.to_owned() };
        Ok(self.hub.store.ask(at).await?.0)
    }

    /// Items of a stream from a position on. An error if nothing follows and there is no such run:
    /// it never was, or retention has removed it.
    pub async fn stream(&self, run_id: &str, stream: &str, from: i64) -> Result<op::StreamPage> {
        let at = op::ReadStream {
            workspace: self.hub.workspace.clone(),
            run_id: run_id.to_owned(),
            stream: stream.to_owned(),
            from,
            limit: limits::PAGE_ROWS,
        };
        let page = self.hub.store.ask(at).await?;
        match page.closed && page.items.is_empty() && self.find(run_id).await?.is_none() {
            true => Err(no_run(run_id)),
            false => Ok(page),
        }
    }

    /// Waits a little, or until the store or this process hints at a change.
    pub async fn pause(&self, at_most: Duration) {
        let heard = self.hub.ready.rings();
        let hint = select(self.hub.store.changed(), Box::pin(self.hub.ready.after(heard)));
        select(hint, self.hub.env.sleep(at_most)).await;
    }

    /// The store's time, as far as this process knows it.
    pub fn now(&self) -> Timestamp {
        self.hub.now()
    }

    /// How many commits and statements the store has cost so far.
    pub fn tally(&self) -> steadfast_store::Tally {
        self.hub.store.tally()
    }

    /// Removes runs that ended before a moment; gives how many.
    pub async fn purge(&self, before: Timestamp) -> Result<u64> {
        let mut removed = 0;
        loop {
            let workspace = self.hub.workspace.clone();
            let batch = op::Purge { workspace, before, limit: limits::PURGE_BATCH };
            let op::Purged(n) = self.hub.store.ask(batch).await?;
            removed += n;
            if n == 0 {
                return Ok(removed);
            }
        }
    }
}

fn no_run(run_id: &str) -> Error {
    Error::new(ErrorClass::NotFound, "SF-0109", format!("there is no run \"{run_id}\""))
}
