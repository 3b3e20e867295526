//! The loops that claim: one for recoveries and ended waits, one for every queue.
//!
//! Invariants: for queues that limit each worker, counting what this worker has, claiming on that
//! count and counting what was claimed are one turn, and turns do not overlap; other queues wait
//! for nobody.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures::future::select;
use steadfast_core::{Result, Timestamp};
use steadfast_store::StoreExt;
use steadfast_store::op::{self, Claimed, InLine};

use super::{Core, Since};
use crate::bell::Bell;
use crate::hub::{Live, Notice};
use crate::pace::Pace;

/// What is rung for within this time is looked at together by who wakes runs.
const TOGETHER: Duration = Duration::from_millis(20);

/// How long claims from a queue may go on from where the one before ended, at least and at most.
/// Who came in before that place waits for so long, unless nothing is left behind it.
const GOES_ON: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Looks at the whole line take at most this part of the time: a database may pass by all that was
/// claimed of late.
const LOOKS: u32 = 20;
/// How often others are let go first with no place becoming free, before a claim, and for how long
/// at most. Whoever is told on one thread of what was written leaves at once, while another thread
/// still tells the others.
const IN_VAIN: u32 = 32;
const FIRST: Duration = Duration::from_millis(1);

/// What came of a claim whose runs are launched.
#[derive(Default)]
struct Took {
    /// The partition of the last run that was claimed, if any was.
    partition: Option<String>,
    /// When more becomes ready, as far as is known.
    next_at: Option<Timestamp>,
    /// Whether there is no place left on the queue.
    full: bool,
    /// Whether something that is due was left.
    left: bool,
}

/// How far a queue was served.
#[derive(Default)]
struct Served {
    /// The partition that was served last.
    partition: String,
    /// Where in line the last claim ended, if the next is to go on from there.
    behind: Option<InLine>,
    /// When the whole line was looked at, and for how long claims go on after that.
    looked_at: Timestamp,
    holds_for: Duration,
}

impl Served {
    /// Where the next claim begins.
    fn begin(&mut self, now: Timestamp) -> Option<InLine> {
        // A clock that was set back says nothing.
        if now < self.looked_at || self.looked_at.until(now) >= self.holds_for {
            self.behind = None;
        }
        self.behind.clone()
    }

    /// A claim that began at a time has ended now; the next may find more behind a place.
    fn end(&mut self, more: Option<InLine>, began: Timestamp, now: Timestamp) {
        if self.behind.is_none() {
            let holds_for = began.until(now) * LOOKS;
            (self.looked_at, self.holds_for) = (now, holds_for.clamp(GOES_ON.0, GOES_ON.1));
        }
        self.behind = more;
    }
}

/// Where more may wait after a claim of so many at most: only if it took all that it could.
fn more(claimed: &Claimed, limit: usize) -> Option<InLine> {
    let is_whole = claimed.full || claimed.runs.len() == limit;
    claimed.last.clone().filter(|_| is_whole)
}

/// Lets those go first who are ready to run.
async fn others_first() {
    let mut waited = false;
    let turn = poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    turn.await;
}

impl Core {
    /// Claims runs whose lease ran out or whose wait is over.
    pub(super) async fn wake_ups(self: Arc<Self>) {
        let mut pace = Pace::new(self.config.poll);
        while !self.is_stopping() {
            let due = &self.hub.due;
            let before = due.look();
            let mut since = self.since(&due.bell);
            let mut claimed = self.wake().await;
            if let Ok(took) = &mut claimed {
                let known = due.looked(before, took.next_at, took.left);
                (since.own, took.next_at) = (known.rings, known.next_at);
            }
            let (ready, own) = (since.ready, since.own);
            let found = claimed.as_ref().is_ok_and(|took| took.partition.is_some());
            self.after_claim(claimed, since, &mut pace).await;
            if !found && due.bell.rings() > own && self.hub.ready.rings() == ready {
                // Most places go to runs that wait on their queue.
                let ready = Box::pin(self.hub.ready.after(ready));
                select(ready, self.hub.env.sleep(TOGETHER)).await;
            }
        }
    }

    /// What was heard up to now; what is heard while looking is heard after it.
    fn since<'a>(&'a self, bell: &'a Bell) -> Since<'a> {
        let changed = self.hub.store.changed();
        Since { ready: self.hub.ready.rings(), own: bell.rings(), bell, changed }
    }

    /// Always in turn: what it takes may be of any queue.
    async fn wake(self: &Arc<Self>) -> Result<Took> {
        let _turn = self.claiming.lock().await;
        let limit = self.room();
        if limit == 0 && !self.ends_overdue() {
            return Ok(Took { left: true, ..Took::default() });
        }
        let lease_until = self.lease_until();
        let wake = op::Wake {
            workspace: self.hub.workspace.clone(),
            worker: self.id.clone(),
            app_version: self.config.app_version.clone(),
            workflows: self.registry.names(),
            limit,
            worker_has: self.has(None),
            lease_until,
            now: self.hub.now(),
        };
        let claimed = self.hub.store.ask(wake).await?;
        let took = self.took(claimed, lease_until);
        Ok(Took { left: took.left || limit == 0, ..took })
    }

    /// Whether a worker without room asks for overdue runs to be ended: once a second.
    fn ends_overdue(&self) -> bool {
        const EVERY_US: i64 = 1_000_000;
        let now = self.hub.now().as_micros();
        let last = self.ended_overdue_at.load(Ordering::Acquire);
        let is_due = now.saturating_sub(last) >= EVERY_US;
        if is_due {
            self.ended_overdue_at.store(now, Ordering::Release);
        }
        is_due
    }

    /// How many runs this worker has, by queue and partition; of one queue, or of all.
    fn has(&self, queue: Option<&str>) -> Vec<(String, String, i64)> {
        let live = self.hub.live();
        let mut has: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        for live in live.values().filter(|live| queue.is_none_or(|queue| live.queue == queue)) {
            *has.entry((&live.queue, &live.partition)).or_default() += 1;
        }
        has.into_iter().map(|((q, p), runs)| (q.to_owned(), p.to_owned(), runs)).collect()
    }

    /// Keeps one loop for every queue there is.
    pub(super) async fn queues(self: Arc<Self>) {
        while !self.is_stopping() {
            let since = Since { own: u64::MAX, ..self.since(&self.hub.due.bell) };
            let workspace = self.hub.workspace.clone();
            let listed = self.hub.store.ask(op::ListQueues { workspace }).await;
            let listed = listed.map(|queues| queues.0);
            if let Ok(listed) = &listed {
                for changed in self.hub.queues.list(listed) {
                    self.place(&changed).ring();
                }
            }
            let names = listed.unwrap_or_default().into_iter().map(|queue| queue.name);
            for name in names.chain([op::DEFAULT_QUEUE.to_owned()]) {
                if self.serves(&name) {
                    continue;
                }
                self.spawn_loop("queue", move |core| {
                    let name = name.clone();
                    Box::pin(async move { core.queue(name).await })
                });
            }
            // Not at every ring: a new queue may wait for a moment.
            let pause = self.hub.env.sleep(self.config.poll.0);
            select(Box::pin(self.stop.after(0)), pause).await;
            self.idle(since, Duration::ZERO, self.config.poll.1).await;
        }
    }

    /// Whether a queue has a loop already; from now on it has.
    fn serves(&self, queue: &str) -> bool {
        let mut served = self.served.lock().expect("invariant: not poisoned");
        !served.insert(queue.to_owned())
    }

    /// Claims runs of one queue.
    async fn queue(self: Arc<Self>, name: String) {
        let mut pace = Pace::new(self.config.poll);
        let mut served = Served::default();
        let places = self.place(&name);
        while !self.is_stopping() {
            self.leavers_first(&name, &places).await;
            let since = self.since(&places);
            let claimed = self.dequeue(&name, &mut served).await;
            self.after_claim(claimed, since, &mut pace).await;
        }
    }

    /// Runs whose ends were written together leave together, and a claim costs little more for
    /// many: so whoever leaves is let go first, for as long as more do, until half of the places
    /// are free. Not until all are: then nothing would be claimed while anything is executed.
    async fn leavers_first(&self, name: &str, places: &Bell) {
        let (began, mut heard, mut in_vain) = (self.hub.now(), places.rings(), 0);
        let mut wanted = self.hub.queues.to_half(name, || self.count(name));
        while wanted > 0 && in_vain < IN_VAIN && began.until(self.hub.now()) < FIRST {
            others_first().await;
            let left = places.rings() - heard;
            (heard, wanted) = (heard + left, wanted.saturating_sub(left));
            in_vain = if left > 0 { 0 } else { in_vain + 1 };
        }
    }

    /// How many runs of a queue this worker has.
    fn count(&self, queue: &str) -> usize {
        self.hub.live().values().filter(|live| live.queue == queue).count()
    }

    async fn dequeue(self: &Arc<Self>, name: &str, served: &mut Served) -> Result<Took> {
        let queues = &self.hub.queues;
        let _turn = match queues.limits_each(name) {
            true => Some(self.claiming.lock().await),
            false => None,
        };
        let limit = self.room().min(queues.most_at_once(name));
        if limit == 0 {
            return Ok(Took::default());
        }
        let has = self.has(Some(name)).into_iter().map(|(_, partition, runs)| (partition, runs));
        let has: Vec<_> = has.collect();
        let count: i64 = has.iter().map(|(_, runs)| runs).sum();
        if queues.is_full(name, usize::try_from(count).unwrap_or(0)) {
            return Ok(Took { full: true, ..Took::default() });
        }
        let (now, lease_until) = (self.hub.now(), self.lease_until());
        let dequeue = op::Dequeue {
            workspace: self.hub.workspace.clone(),
            queue: name.to_owned(),
            worker: self.id.clone(),
            app_version: self.config.app_version.clone(),
            workflows: self.registry.names(),
            limit,
            worker_has: has,
            after_partition: served.partition.clone(),
            behind: served.begin(now),
            lease_until,
            now,
        };
        let claimed = self.hub.store.ask(dequeue).await?;
        // Where there was no room, nobody looked.
        if !claimed.full || !claimed.runs.is_empty() {
            served.end(more(&claimed, limit), now, self.hub.now());
        }
        let took = self.took(claimed, lease_until);
        if let Some(last) = &took.partition {
            served.partition.clone_from(last);
        }
        Ok(took)
    }

    /// Launches what was claimed under leases until then: from here on it is counted.
    fn took(self: &Arc<Self>, mut claimed: Claimed, lease_until: Timestamp) -> Took {
        // A row says when others look at the run: at its deadline, if that is earlier.
        claimed.runs.iter_mut().for_each(|run| run.wake_at = lease_until);
        if !claimed.overdue.is_empty() {
            tracing::info!(runs = ?claimed.overdue, "runs ended because their deadline passed");
            for run_id in &claimed.overdue {
                self.hub.notify(run_id, Notice::Stopped);
            }
            self.hub.ready.ring();
        }
        for run_id in &claimed.exhausted {
            tracing::warn!(run_id, "a run lost its worker too often and was parked");
            // Whoever waited for it may go on.
            self.hub.ready.ring();
        }
        let partition = claimed.runs.last().map(|run| run.partition.clone());
        self.launch(claimed.runs.into_iter().filter(|run| !self.goes_on(run)));
        Took { partition, next_at: claimed.next_at, full: claimed.full, left: claimed.left }
    }

    /// Whether a claimed run is executed here under this very claim, as when the answer to a claim
    /// comes twice. A claim that the database forgot in a crash and that is made again has another
    /// epoch: its run may have another input by then, and a new execution replaces the old one.
    fn goes_on(&self, run: &op::RunRow) -> bool {
        let live = self.hub.live();
        let is_same = |live: &&Live| live.epoch == run.epoch && live.started_at == run.started_at;
        let same = live.get(&run.run_id).filter(is_same);
        if let Some(live) = same {
            live.extend(run.wake_at);
        }
        same.is_some()
    }

    /// Waits before the next claim, unless the last one found something and there is room for more.
    async fn after_claim(&self, claimed: Result<Took>, since: Since<'_>, pace: &mut Pace) {
        let took = match claimed {
            Ok(took) => took,
            Err(error) => {
                self.failed("a claim failed", &error);
                pace.back_off();
                let none = Since { ready: u64::MAX, own: u64::MAX, ..since };
                return self.idle(none, pace.deaf(), pace.wait()).await;
            }
        };
        pace.ease();
        pace.looked(took.partition.is_some());
        if took.partition.is_some() && !took.full {
            return;
        }
        let now = self.hub.now();
        let wait = took.next_at.map_or(pace.wait(), |at| now.until(at).min(pace.wait()));
        self.idle(since, pace.deaf(), wait.max(Duration::from_millis(1))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_micros(ms * 1000)
    }

    /// A claim that began then, took so long and ended at a run; whether it looked at the whole
    /// line.
    fn claim(served: &mut Served, began: i64, took: i64, run_id: &str) -> bool {
        let is_whole = served.begin(at(began)).is_none();
        let place = InLine { rank: 0, ready_at: at(0), run_id: run_id.to_owned() };
        served.end((!run_id.is_empty()).then_some(place), at(began), at(began + took));
        is_whole
    }

    #[test]
    fn claims_go_on_for_a_while_and_longer_where_a_look_takes_longer() {
        let mut served = Served::default();
        assert!(claim(&mut served, 1000, 1, "a"));
        assert!(!claim(&mut served, 1050, 1, "b"));
        assert!(claim(&mut served, 1051, 10, "c"), "after 50 ms");
        assert!(!claim(&mut served, 1260, 10, "d"), "a look of 10 ms is good for 200");
        assert!(claim(&mut served, 1261, 400, "e"));
        assert!(!claim(&mut served, 2660, 1, "f"));
        assert!(claim(&mut served, 2661, 1, "g"), "never for more than a second");
        assert!(!claim(&mut served, 2670, 1, ""));
        assert!(claim(&mut served, 2672, 1, "h"), "nothing was found");
        assert!(claim(&mut served, 1000, 1, "i"), "the clock was set back");
    }

    #[test]
    fn only_who_got_all_it_could_goes_on() {
        let last = InLine { rank: 0, ready_at: at(0), run_id: "a".to_owned() };
        let full = Claimed { last: Some(last.clone()), full: true, ..Claimed::default() };
        assert_eq!(more(&full, 3), Some(last.clone()));
        let some = Claimed { last: Some(last.clone()), ..Claimed::default() };
        assert_eq!(more(&some, 3), None);
        assert_eq!(more(&some, 0), Some(last), "as many as were asked for");
    }
}
