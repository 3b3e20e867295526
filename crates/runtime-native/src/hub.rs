//! What one process knows: its clock, its store, which runs it executes, who waits for an end.
//!
//! Invariants: everything here is a shortcut. The store is the truth, and every wait that uses the
//! hub also looks there.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::{mpsc, oneshot};
use futures::future::{BoxFuture, select};
use steadfast_core::caught::{self, Code};
use steadfast_core::env::Env;
use steadfast_core::{Error, RunStatus, Timestamp, limits};
use steadfast_store::{OpenStore, StoreExt, op};

use crate::bell::Bell;
use crate::client::RunEnd;
use crate::due::Due;
use crate::metrics::Metrics;
use crate::queues::Queues;

/// Something a live run should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Something arrived in its inbox.
    Arrived,
    /// The lease of this epoch is no longer ours: stop.
    Lost(i64),
    /// It was stopped from outside.
    Stopped,
    /// The worker shuts down: come to rest.
    Drain,
    /// The time of the shutdown is over: give the run back at once.
    GiveBack,
}

/// A run that this process executes.
pub(crate) struct Live {
    pub(crate) epoch: i64,
    /// What its logical clock began with.
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) queue: String,
    pub(crate) partition: String,
    pub(crate) lease_until: Arc<AtomicI64>,
    pub(crate) notices: mpsc::UnboundedSender<Notice>,
}

pub(crate) struct Hub {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) store: OpenStore,
    pub(crate) workspace: String,
    /// Rung when something may have become ready.
    pub(crate) ready: Bell,
    /// Rung when the set of live runs shrinks.
    pub(crate) freed: Bell,
    /// What the worker's next look for due runs waits for.
    pub(crate) due: Due,
    pub(crate) queues: Queues,
    live: Mutex<BTreeMap<String, Live>>,
    watchers: Mutex<BTreeMap<String, Vec<oneshot::Sender<RunEnd>>>>,
    /// Whether somebody looks after the runs that others execute.
    looking: AtomicBool,
    pub(crate) metrics: Metrics,
}

impl Hub {
    pub(crate) fn new(env: Arc<dyn Env>, store: OpenStore, workspace: &str) -> Self {
        Self {
            env,
            store,
            workspace: workspace.to_owned(),
            ready: Bell::default(),
            freed: Bell::default(),
            due: Due::default(),
            queues: Queues::default(),
            live: Mutex::default(),
            watchers: Mutex::default(),
            looking: AtomicBool::new(false),
            metrics: Metrics::default(),
        }
    }

    /// The store's time, as far as this process knows it.
    pub(crate) fn now(&self) -> Timestamp {
        let offset = self.store.clock_offset_us();
        Timestamp::from_micros(self.env.now().as_micros().saturating_add(offset))
    }

    pub(crate) async fn sleep_until(&self, at: Timestamp) {
        let now = self.now();
        if at == Timestamp::NEVER {
            std::future::pending::<()>().await;
        }
        // A microsecond more: a timer that fires early would only make another turn.
        self.env.sleep(now.until(at) + Duration::from_micros(1)).await;
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, BTreeMap<String, Live>> {
        self.live.lock().expect("invariant: not poisoned")
    }

    pub(crate) fn notify(&self, run_id: &str, notice: Notice) {
        if let Some(live) = self.live().get(run_id) {
            // A run that just ended does not read its notices any more.
            let _ = live.notices.unbounded_send(notice);
        }
    }

    /// Something was written that may let another run go on.
    pub(crate) fn arrived(&self, run_id: &str) {
        self.notify(run_id, Notice::Arrived);
        self.ready.ring();
    }

    fn watchers(&self) -> MutexGuard<'_, BTreeMap<String, Vec<oneshot::Sender<RunEnd>>>> {
        self.watchers.lock().expect("invariant: not poisoned")
    }

    /// Waits for a run's end, if this process brings it about.
    pub(crate) fn watch<'a>(&'a self, run_id: &'a str) -> Watch<'a> {
        Watch { hub: self, run_id, told: self.tell(run_id) }
    }

    fn tell(&self, run_id: &str) -> oneshot::Receiver<RunEnd> {
        let (tell, told) = oneshot::channel();
        self.watchers().entry(run_id.to_owned()).or_default().push(tell);
        told
    }

    /// Forgets watchers that went away, so that a map entry does not outlive its waiters.
    fn unwatch(&self, run_id: &str) {
        let mut watchers = self.watchers();
        if let Some(of_run) = watchers.get_mut(run_id) {
            of_run.retain(|watcher| !watcher.is_canceled());
            if of_run.is_empty() {
                watchers.remove(run_id);
            }
        }
    }

    /// Pushes a run's end to everyone in this process who waits for it.
    pub(crate) fn ended(&self, run_id: &str, end: &RunEnd) {
        let watchers = self.watchers().remove(run_id).unwrap_or_default();
        for watcher in watchers {
            // The waiter may have given up.
            let _ = watcher.send(end.clone());
        }
    }

    /// Runs were ended from outside: those executed here stop, and those who wait for them learn
    /// it.
    pub(crate) fn cancelled(&self, run_ids: impl Iterator<Item = String>, reason: &Error) {
        let end = RunEnd { status: RunStatus::Cancelled, outcome: Err(reason.clone()) };
        for run_id in run_ids {
            self.notify(&run_id, Notice::Stopped);
            self.ended(&run_id, &end);
        }
        self.ready.ring();
    }

    /// A run left this process: whoever waits for its end looks again. If it ended here, they know.
    pub(crate) fn left(&self, run_id: &str) {
        // Dropped outside the lock: the waiters watch anew.
        let watchers = self.watchers().remove(run_id);
        drop(watchers);
    }

    /// Looks for the ends of runs that are watched here and executed elsewhere: one question for
    /// all of them, whenever the store hints at an end, for as long as there are any.
    pub(crate) fn look_after(self: &Arc<Self>) {
        if self.looking.swap(true, Ordering::AcqRel) {
            return;
        }
        let hub = self.clone();
        self.keep("ends", move || {
            let hub = hub.clone();
            Box::pin(async move {
                loop {
                    hub.look_until_none_is_left().await;
                    hub.looking.store(false, Ordering::Release);
                    // A waiter may have been added after the last look and before the flag fell.
                    if hub.elsewhere().is_empty() || hub.looking.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
            })
        });
    }

    /// Spawns a task whose result is not awaited; a panic in it is logged and counted.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let hub = self.clone();
        let task = AssertUnwindSafe(task).catch_unwind().map(move |ended| {
            if let Err(payload) = ended {
                hub.panicked(name, payload);
            }
        });
        self.env.spawn(name, Box::pin(task));
    }

    /// Spawns a task of ours that is begun anew whenever it panics.
    pub(crate) fn keep(
        self: &Arc<Self>,
        name: &'static str,
        work: impl Fn() -> BoxFuture<'static, ()> + Send + 'static,
    ) {
        let hub = self.clone();
        self.env.spawn(name, Box::pin(async move { hub.kept(name, work).await }));
    }

    /// Does work until it ends by itself, anew after each panic.
    pub(crate) async fn kept(
        &self,
        name: &'static str,
        work: impl Fn() -> BoxFuture<'static, ()> + Send,
    ) {
        while let Err(payload) = AssertUnwindSafe(work()).catch_unwind().await {
            self.panicked(name, payload);
            self.env.sleep(limits::RESTART).await;
        }
    }

    /// Reports a panic in a task of ours that was caught, and counts it.
    pub(crate) fn panicked(&self, task: &'static str, payload: Box<dyn Any + Send>) -> Error {
        let payload = self.env.panicked(payload);
        let error = caught::panicked(Code("task", task), payload);
        tracing::error!(task, %error, "a task panicked");
        self.metrics.panicked(task);
        error
    }

    async fn look_until_none_is_left(&self) {
        const LEAST: Duration = Duration::from_millis(20);
        const MOST: Duration = Duration::from_secs(1);
        let mut pause = LEAST;
        loop {
            // Asked for before looking, so that an end between the two is heard.
            let hint = self.store.ended();
            let begun = self.env.now();
            let run_ids = self.elsewhere();
            if run_ids.is_empty() {
                return;
            }
            let mut found = false;
            for chunk in run_ids.chunks(limits::CLAIM_BATCH) {
                let (workspace, run_ids) = (self.workspace.clone(), chunk.to_vec());
                let now = self.now();
                let ends = self.store.ask(op::GetEnds { workspace, run_ids, now }).await;
                if ends.is_err() {
                    // Whoever waits asks by itself, and gets the error.
                    chunk.iter().for_each(|run_id| self.left(run_id));
                }
                for run in ends.map(|ends| ends.0).unwrap_or_default() {
                    if let Some(end) = RunEnd::of(&run) {
                        self.ended(&run.run_id, &end);
                        found = true;
                    }
                }
            }
            pause = if found { LEAST } else { (pause * 2).min(MOST) };
            // Hints may come faster than answers: half of the time is for others.
            self.env.sleep(begun.until(self.env.now())).await;
            select(hint, self.env.sleep(pause)).await;
        }
    }

    /// The runs that are watched here and executed elsewhere.
    fn elsewhere(&self) -> Vec<String> {
        let watched: Vec<String> = self.watchers().keys().cloned().collect();
        let live = self.live();
        watched.into_iter().filter(|run_id| !live.contains_key(run_id)).collect()
    }

    pub(crate) fn lease(&self, run: &op::RunRow) -> op::Lease {
        op::Lease {
            workspace: self.workspace.clone(),
            run_id: run.run_id.clone(),
            worker: run.worker.clone(),
            epoch: run.epoch,
        }
    }
}

/// Somebody who waits for a run's end. A waiter may be dropped at any moment, by its caller's time
/// limit for one, and leaves nothing behind.
pub(crate) struct Watch<'a> {
    hub: &'a Hub,
    run_id: &'a str,
    /// Resolves with the end; with an error if this process gave the run up without ending it.
    pub(crate) told: oneshot::Receiver<RunEnd>,
}

impl Watch<'_> {
    /// Waits anew, after the run was given up here.
    pub(crate) fn again(&mut self) {
        self.told = self.hub.tell(self.run_id);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.told.close();
        self.hub.unwatch(self.run_id);
    }
}

impl Live {
    pub(crate) fn extend(&self, until: Timestamp) {
        self.lease_until.store(until.as_micros(), Ordering::Release);
    }
}

impl RunEnd {
    /// The end of a run that is over.
    pub(crate) fn of(run: &op::RunRow) -> Option<Self> {
        if !run.status.is_terminal() {
            return None;
        }
        let outcome = match (run.status, &run.output, &run.error) {
            (RunStatus::Success, Some(value), _) => Ok(value.clone()),
            (_, _, Some(error)) => Err(error.clone()),
            (status, _, None) => {
                Err(steadfast_core::Error::app(format!("the run ended as {status}")))
            }
        };
        Some(Self { status: run.status, outcome })
    }
}

#[cfg(test)]
mod tests {
    use steadfast_store::{Error, Op, Reply, Store};

    use super::*;
    use crate::client::Client;

    /// A world in which nothing ever happens.
    struct Still;

    impl Env for Still {
        fn now(&self) -> Timestamp {
            Timestamp::from_micros(0)
        }
        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
        fn spawn(&self, _: &'static str, _: BoxFuture<'static, ()>) {}
        fn random(&self) -> u64 {
            0
        }
    }

    impl Store for Still {
        fn call(&self, _: Op) -> BoxFuture<'_, Result<Reply, Error>> {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn a_waiter_that_gives_up_leaves_nothing_behind() {
        let client = Client::new(Arc::new(Still), Arc::new(Still), "w").unwrap();
        let (one, two) = (client.wait("r"), client.wait("r"));
        futures::pin_mut!(one);
        assert!(one.as_mut().now_or_never().is_none());
        {
            futures::pin_mut!(two);
            assert!(two.as_mut().now_or_never().is_none());
            assert_eq!(client.hub.watchers()["r"].len(), 2);
        }
        assert_eq!(client.hub.watchers()["r"].len(), 1, "the other still waits");
        let end = RunEnd { status: RunStatus::Success, outcome: Ok("1".to_owned()) };
        client.hub.ended("r", &end);
        assert!(client.hub.watchers().is_empty());
        drop(client.wait("r").now_or_never());
        assert!(client.hub.watchers().is_empty());
    }
}
