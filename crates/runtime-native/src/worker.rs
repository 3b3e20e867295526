//! A worker: claims what is ready, executes it, keeps its leases, and shuts down without losing a
//! step.
//!
//! Invariants: each loop is its own task, so one failing queue does not stop the others, and one
//! that panics is begun anew; a worker takes no more runs than it may have in memory; after
//! `shutdown` no loop of it is left.

mod beat;
mod claim;
mod launch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::future::{BoxFuture, select};
use futures::lock::Mutex as AsyncMutex;
use steadfast_core::env::{Env, new_id};
use steadfast_core::{Error, Result, Timestamp, key, limits};
use steadfast_store::{OpenStore, StoreExt, op};

use crate::bell::Bell;
use crate::client::{Client, StartSpec};
use crate::config::Config;
use crate::hub::{Hub, Notice};
use crate::registry::Registry;

/// A running worker. Cheap to clone; the loops stop at `shutdown`.
#[derive(Clone)]
pub struct Worker {
    core: Arc<Core>,
}

struct Core {
    hub: Arc<Hub>,
    registry: Arc<Registry>,
    config: Arc<Config>,
    id: String,
    stopping: AtomicBool,
    /// Set when nobody has the program any more: what is under way is given back.
    leaving: AtomicBool,
    /// Set when a shutdown waits no longer: leases of what is left are not kept.
    gone: AtomicBool,
    stop: Bell,
    /// Why the worker stopped by itself.
    fault: OnceLock<Error>,
    /// When it reported last, in microseconds.
    seen_at: AtomicI64,
    /// Rung when an execution ended because its lease may be void.
    fenced: Bell,
    /// Set by a loop that found no room, so that the next freed place rings the bell.
    hungry: AtomicBool,
    /// When this worker, having no room, last asked for overdue runs to be ended.
    ended_overdue_at: AtomicI64,
    loops: AtomicUsize,
    /// The queues that have a loop.
    served: Mutex<BTreeSet<String>>,
    /// Runs that are being started here.
    starting: AtomicUsize,
    /// Rung when a place on a queue is free again, by queue.
    place: Mutex<BTreeMap<String, Arc<Bell>>>,
    /// Held from the count of what this worker has until what it claimed on that count is counted
    /// too: otherwise a recovery and a dequeue could both take the last place.
    claiming: AsyncMutex<()>,
}

impl Worker {
    /// Starts the worker's loops.
    pub async fn start(
        env: Arc<dyn Env>,
        store: OpenStore,
        registry: Registry,
        config: Config,
    ) -> Result<Self> {
        key::check_workspace(&config.workspace)?;
        config.check()?;
        let incarnation = new_id(&*env);
        let id = match config.name.is_empty() {
            true => incarnation,
            false => format!("{}#{incarnation}", config.name),
        };
        key::check("worker name", &id)?;
        let core = Arc::new(Core {
            hub: Arc::new(Hub::new(env, store, &config.workspace)),
            registry: Arc::new(registry),
            id,
            stopping: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            stop: Bell::default(),
            fault: OnceLock::new(),
            seen_at: AtomicI64::new(0),
            fenced: Bell::default(),
            hungry: AtomicBool::new(false),
            ended_overdue_at: AtomicI64::new(i64::MIN),
            loops: AtomicUsize::new(0),
            served: Mutex::default(),
            starting: AtomicUsize::new(0),
            place: Mutex::default(),
            claiming: AsyncMutex::default(),
            config: Arc::new(config),
        });
        core.beat().await?;
        if !core.config.name.is_empty() {
            core.take_over().await?;
        }
        core.spawn_loop("heartbeats", |core| Box::pin(core.heartbeats()));
        core.spawn_loop("wake-ups", |core| Box::pin(async move { core.wake_ups().await }));
        core.spawn_loop("queues", |core| Box::pin(async move { core.queues().await }));
        Ok(Self { core })
    }

    /// A client of this worker's process: results are pushed to it.
    pub fn client(&self) -> Client {
        Client { hub: self.core.hub.clone() }
    }

    /// The worker's id: one incarnation.
    pub fn id(&self) -> &str {
        &self.core.id
    }

    /// Why the worker has stopped by itself, if it has: `SF-0309` when another process was started
    /// under its name, `SF-0406` when its store is gone. It executes nothing any more.
    pub fn fault(&self) -> Option<Error> {
        self.core.fault.get().cloned()
    }

    /// Waits until the worker stops: by itself, with the reason, or by `shutdown`.
    pub async fn stopped(&self) -> Option<Error> {
        self.core.stop.after(0).await;
        self.fault()
    }

    /// How many runs are in memory.
    pub fn live_runs(&self) -> usize {
        self.core.hub.live().len()
    }

    /// The recoveries a registered workflow allows.
    pub fn max_attempts(&self, workflow: &str) -> u32 {
        let registered = self.core.registry.get(workflow);
        registered.map_or(limits::RECOVERY_ATTEMPTS, |r| r.max_attempts)
    }

    /// Starts a run; if this worker can execute it now, creating and claiming it are one commit.
    /// Gives the id and whether the run is new.
    pub async fn submit(&self, mut spec: StartSpec) -> Result<(String, bool)> {
        let core = &self.core;
        if spec.app_version.is_empty() {
            spec.app_version.clone_from(&core.config.app_version);
        }
        let client = self.client();
        let mut start = client.start_op(spec)?;
        start.claim = core.claim_of(&start);
        let run_id = start.run_id.clone();
        let new = match start.claim {
            Some(_) => core.start_here(start).await?,
            None => client.begin(start).await?.is_some(),
        };
        Ok((run_id, new))
    }

    /// Submits a command; if this worker can execute it now, all of it is one commit. Gives its id
    /// and whether it is new.
    pub async fn submit_command(&self, mut submit: op::Submit) -> Result<(String, bool)> {
        let core = &self.core;
        submit.start.claim = core.claim_of(&submit.start);
        if submit.start.claim.is_some() {
            return core.submit_here(submit).await;
        }
        let reply = core.hub.store.ask(submit.clone()).await?;
        let (command_id, new, _) = self.client().submitted(&submit, reply)?;
        Ok((command_id, new))
    }

    /// Stops claiming, lets steps under way end for as long as the configuration says, aborts
    /// those that are left then, gives their runs back, and ends the loops.
    pub async fn shutdown(&self) {
        let core = &self.core;
        core.stop();
        core.notify_all(Notice::Drain);
        let mut is_empty = core.is_empty_within(core.config.drain).await;
        if !is_empty {
            core.notify_all(Notice::GiveBack);
            is_empty = core.is_empty_within(limits::GIVING_BACK).await;
        }
        if is_empty {
            core.sign_off().await;
        }
        core.gone.store(true, Ordering::Release);
        core.hub.freed.ring();
    }

    /// The same without waiting, and without any time for steps under way: nobody has the program
    /// any more.
    pub fn leave(&self) {
        self.core.leaving.store(true, Ordering::Release);
        self.core.stop();
    }
}

/// What a loop had heard before it looked.
struct Since<'a> {
    /// Rings for something that is ready.
    ready: u64,
    /// Rings at the loop's own bell: for places, mostly.
    own: u64,
    bell: &'a Bell,
    /// Resolves at the store's next hint.
    changed: BoxFuture<'a, ()>,
}

impl Core {
    /// A loop that panics begins anew, until the shutdown ends it.
    fn spawn_loop(
        self: &Arc<Self>,
        name: &'static str,
        body: impl Fn(Arc<Core>) -> BoxFuture<'static, ()> + Send + 'static,
    ) {
        self.loops.fetch_add(1, Ordering::AcqRel);
        let core = self.clone();
        let task = async move {
            let again = core.clone();
            core.hub.kept(name, move || body(again.clone())).await;
            core.loops.fetch_sub(1, Ordering::AcqRel);
            core.hub.freed.ring();
        };
        self.hub.env.spawn("loop", Box::pin(task));
    }

    /// Lets the loops end; nothing more is claimed.
    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stop.ring();
    }

    fn notify_all(&self, notice: Notice) {
        for live in self.hub.live().values() {
            // One that ends by itself needs no notice.
            let _ = live.notices.unbounded_send(notice);
        }
    }

    /// Waits until no run is in memory and no loop is left; false if that takes longer.
    async fn is_empty_within(&self, at_most: Duration) -> bool {
        let give_up = self.hub.now().after(at_most);
        loop {
            let heard = self.hub.freed.rings();
            if self.loops.load(Ordering::Acquire) == 0 && self.held() == 0 {
                return true;
            }
            if self.hub.now() >= give_up {
                return false;
            }
            let freed = Box::pin(self.hub.freed.after(heard));
            select(freed, self.hub.env.sleep(Duration::from_millis(50))).await;
        }
    }

    /// The program was dropped: gives back what is in memory, for a while.
    async fn give_back_all(&self) {
        let give_up = self.hub.now().after(limits::GIVING_BACK);
        while self.held() > 0 && self.hub.now() < give_up {
            let heard = self.hub.freed.rings();
            self.notify_all(Notice::GiveBack);
            let freed = Box::pin(self.hub.freed.after(heard));
            select(freed, self.hub.env.sleep(Duration::from_millis(50))).await;
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn lease_until(&self) -> Timestamp {
        self.hub.now().after(self.config.lease)
    }

    /// The claim of a run that this worker can execute as soon as it is started.
    fn claim_of(&self, start: &op::Start) -> Option<(String, Timestamp)> {
        let mine = self.registry.get(&start.workflow).is_some()
            && start.app_version == self.config.app_version
            && start.queue == op::DEFAULT_QUEUE
            && start.ready_at <= start.now
            && !self.is_stopping()
            && self.room() > 0;
        mine.then(|| (self.id.clone(), self.lease_until()))
    }

    /// The runs that are in memory, or about to be. Counted in this order, so that one that enters
    /// meanwhile is counted twice rather than not at all.
    fn held(&self) -> usize {
        self.starting.load(Ordering::Acquire) + self.hub.live().len()
    }

    fn room(&self) -> usize {
        let room = self.config.max_runs.saturating_sub(self.held());
        if room == 0 {
            self.hungry.store(true, Ordering::Release);
        }
        room.min(limits::CLAIM_BATCH)
    }

    /// The bell of a queue's places.
    fn place(&self, queue: &str) -> Arc<Bell> {
        let mut bells = self.place.lock().expect("invariant: not poisoned");
        match bells.get(queue) {
            Some(bell) => bell.clone(),
            None => bells.entry(queue.to_owned()).or_default().clone(),
        }
    }

    /// Waits for a hint, a free place, a moment or the stop. Hints of the store say nothing of
    /// what has changed and may come all the time: they are heard after a while.
    async fn idle(&self, since: Since<'_>, deaf: Duration, at_most: Duration) {
        if self.is_stopping() {
            return;
        }
        let changed = since.changed;
        let told = async {
            self.hub.env.sleep(deaf).await;
            changed.await;
        };
        let stop = Box::pin(self.stop.after(0));
        let ready = Box::pin(self.hub.ready.after(since.ready));
        let own = Box::pin(since.bell.after(since.own));
        let hint = select(select(ready, Box::pin(told)), select(own, stop));
        select(hint, self.hub.env.sleep(at_most)).await;
    }
}
