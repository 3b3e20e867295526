//! A worker's reports, and what it learns with them: which leases it lost, whether another process
//! has taken its name over, and which other workers are silent.
//!
//! Invariants: whether another worker is silent is counted in this worker's own pauses, and never
//! judged by comparing two clocks; a worker that was superseded claims nothing any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::{Either, select};
use steadfast_core::{Error, ErrorClass, Result, Timestamp, limits};
use steadfast_store::StoreExt;
use steadfast_store::op::{self, Peer};

use super::Core;
use crate::hub::Notice;

/// An execution that ends because its lease is void makes the worker report sooner, but not more
/// often than this: many runs may be cancelled at once.
const SOONEST: Duration = Duration::from_millis(250);

impl Core {
    /// Reports three times a lease, and whenever a lease turns out to be void.
    pub(super) async fn heartbeats(self: Arc<Self>) {
        let mut watch = Watch::default();
        let every = self.config.lease / 3;
        let mut heard = 0;
        let keeps = || !self.gone.load(Ordering::Acquire) && !self.hub.live().is_empty();
        while !self.is_stopping() || keeps() {
            if self.leaving.load(Ordering::Acquire) {
                return self.give_back_all().await;
            }
            let pause = self.hub.env.sleep(every);
            let has_passed = if self.is_stopping() {
                // Leases are kept while steps drain.
                let heard = self.hub.freed.rings();
                select(Box::pin(self.hub.freed.after(heard)), pause).await;
                false
            } else {
                let fenced = async {
                    self.hub.env.sleep(SOONEST.min(every)).await;
                    self.fenced.after(heard).await;
                };
                let sooner = select(Box::pin(self.stop.after(0)), Box::pin(fenced));
                matches!(select(sooner, pause).await, Either::Right(_))
            };
            heard = self.fenced.rings();
            if let Err(error) = self.beat().await {
                self.failed("a heartbeat failed", &error);
            } else if has_passed && let Err(error) = self.look_at_others(&mut watch, every).await {
                self.failed("other workers cannot be looked at", &error);
            }
        }
    }

    /// Reports this worker as alive and extends its leases.
    pub(super) async fn beat(&self) -> Result<()> {
        let leases: Vec<_> =
            self.hub.live().iter().map(|(id, live)| (id.clone(), live.epoch)).collect();
        let (now, until) = (self.hub.now(), self.lease_until());
        let beat = op::Heartbeat {
            workspace: self.hub.workspace.clone(),
            worker: self.id.clone(),
            app_version: self.config.app_version.clone(),
            workflows: self.registry.names(),
            lease: self.config.lease,
            leases: leases.clone(),
            lease_until: until,
            now,
        };
        let beaten = self.hub.store.ask(beat).await?;
        self.seen_at.store(now.as_micros(), Ordering::Release);
        if let Some(by) = &beaten.superseded_by {
            self.end(superseded(&self.id, by));
        }
        for (run_id, epoch) in leases {
            match self.hub.live().get(&run_id) {
                Some(live) if live.epoch == epoch && !beaten.lost.contains(&run_id) => {
                    live.extend(until);
                }
                Some(live) if live.epoch == epoch => {
                    let _ = live.notices.unbounded_send(Notice::Lost(epoch));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Fences this worker's earlier incarnations off; their runs can be claimed at once.
    pub(super) async fn take_over(&self) -> Result<()> {
        let (name, now) = (&self.config.name, self.hub.now());
        let take_over = op::TakeOver {
            workspace: self.hub.workspace.clone(),
            name: name.clone(),
            worker: self.id.clone(),
            now,
        };
        let over = self.hub.store.ask(take_over).await?;
        for (former, seen_at) in &over.former {
            let ago = seen_at.until(now).as_secs();
            tracing::warn!(
                worker = self.id,
                former,
                runs = over.runs,
                "the worker took the name \"{name}\" over from a worker that was last seen {ago} s \
                 ago; if that one is alive, it stops with SF-0309"
            );
        }
        Ok(())
    }

    /// Ends the leases of workers that have been silent for the length of their lease.
    async fn look_at_others(&self, watch: &mut Watch, passed: Duration) -> Result<()> {
        let list = op::ListPeers {
            workspace: self.hub.workspace.clone(),
            worker: self.id.clone(),
            after: watch.after.clone(),
        };
        let page = self.hub.store.ask(list).await?.0;
        for Peer { worker, seen_at, .. } in watch.look(&page, passed) {
            let end = op::EndLeases {
                workspace: self.hub.workspace.clone(),
                worker: worker.clone(),
                seen_at,
                now: self.hub.now(),
            };
            if let op::LeasesEnded::Done(runs @ 1..) = self.hub.store.ask(end).await? {
                tracing::warn!(
                    worker,
                    runs,
                    "a worker is silent, and its clock was ahead; its leases were ended"
                );
                self.hub.ready.ring();
            }
        }
        Ok(())
    }

    /// A worker that has come to rest tells so: it is not taken for one that may be alive.
    pub(super) async fn sign_off(&self) {
        if self.fault.get().is_some() {
            return;
        }
        let end = op::EndLeases {
            workspace: self.hub.workspace.clone(),
            worker: self.id.clone(),
            seen_at: Timestamp::from_micros(self.seen_at.load(Ordering::Acquire)),
            now: self.hub.now(),
        };
        if let Err(error) = self.hub.store.ask(end).await {
            tracing::warn!(%error, "the worker could not sign off; others find it silent");
        }
    }

    /// Something that is tried again failed. If it will fail for ever, the worker stops.
    pub(super) fn failed(&self, what: &'static str, error: &Error) {
        match error.code() {
            "SF-0406" => self.end(error.clone()),
            _ => tracing::error!(%error, "{what}"),
        }
    }

    /// The worker stops by itself: it claims nothing any more and drops what it executes, which is
    /// no longer its own.
    fn end(&self, why: Error) {
        if self.fault.set(why).is_err() {
            return;
        }
        if let Some(error) = self.fault.get() {
            tracing::error!(%error, worker = self.id, "the worker has stopped");
        }
        self.stopping.store(true, Ordering::Release);
        for live in self.hub.live().values() {
            // One that ends by itself needs no notice.
            let _ = live.notices.unbounded_send(Notice::Lost(live.epoch));
        }
        self.stop.ring();
    }
}

fn superseded(worker: &str, by: &str) -> Error {
    let text = format!(
        "worker \"{worker}\" was superseded by \"{by}\": another process was started under its \
         name and has its runs now. Give each process a worker name of its own"
    );
    Error::new(ErrorClass::Conflict, "SF-0309", text)
}

/// For how long other workers have been silent, in this worker's own pauses.
#[derive(Debug, Default)]
struct Watch {
    /// All pauses so far.
    passed: Duration,
    /// What each worker's last report was, and since when.
    known: BTreeMap<String, (Timestamp, Duration)>,
    /// Where the next page begins.
    after: String,
}

impl Watch {
    /// Takes note of the next page of workers after a pause; gives those that are silent.
    fn look(&mut self, page: &[Peer], passed: Duration) -> Vec<Peer> {
        self.passed += passed;
        let is_last = page.len() < limits::PEERS;
        let end = page.last().filter(|_| !is_last).map(|peer| peer.worker.clone());
        let (after, now) = (std::mem::take(&mut self.after), self.passed);
        let on_page = |worker: &String| *worker > after && end.as_ref().is_none_or(|e| worker <= e);
        let listed = |worker: &String| page.iter().any(|peer| peer.worker == *worker);
        self.known.retain(|worker, _| !on_page(worker) || listed(worker));
        self.after = end.unwrap_or_default();
        let mut silent = Vec::new();
        for peer in page {
            let known = self.known.entry(peer.worker.clone()).or_insert((peer.seen_at, now));
            if known.0 != peer.seen_at {
                *known = (peer.seen_at, now);
            } else if now - known.1 >= peer.lease {
                silent.push(peer.clone());
            }
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    fn peer(worker: &str, seen_at: i64) -> Peer {
        let (worker, seen_at) = (worker.to_owned(), Timestamp::from_micros(seen_at));
        Peer { worker, seen_at, lease: Duration::from_secs(15) }
    }

    fn silent(watch: &mut Watch, page: &[Peer]) -> Vec<String> {
        watch.look(page, PAUSE).into_iter().map(|peer| peer.worker).collect()
    }

    #[test]
    fn a_worker_is_silent_after_a_lease_without_a_report_whatever_the_times_of_its_reports() {
        let mut watch = Watch::default();
        for round in 0..3 {
            let page = [peer("dead", i64::MAX), peer("lives", -round)];
            assert_eq!(silent(&mut watch, &page), [] as [&str; 0], "{round}");
        }
        assert_eq!(silent(&mut watch, &[peer("dead", i64::MAX), peer("lives", 7)]), ["dead"]);
        assert_eq!(silent(&mut watch, &[peer("dead", 1), peer("lives", 8)]), [] as [&str; 0]);
        // One that was not listed meanwhile begins anew.
        assert_eq!(silent(&mut watch, &[peer("lives", 9)]), [] as [&str; 0]);
        assert_eq!(watch.known.len(), 1);
    }

    #[test]
    fn many_workers_are_looked_at_in_turn() {
        let all: Vec<Peer> = (0..250).map(|n| peer(&format!("w{n:03}"), n)).collect();
        let mut watch = Watch::default();
        let (mut found, mut rounds) = (Vec::new(), 0);
        while found.len() < all.len() {
            let rest = all.iter().filter(|peer| peer.worker > watch.after);
            let page: Vec<Peer> = rest.take(limits::PEERS).cloned().collect();
            found.extend(silent(&mut watch, &page));
            rounds += 1;
            assert!(rounds <= 6, "three pages, seen twice with 15 s between");
        }
        assert_eq!(watch.known.len(), 250);
    }
}
