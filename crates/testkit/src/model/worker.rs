//! Workers: what they report, who succeeds whom, and the end of what a silent one holds.
//!
//! Invariants: whoever was superseded gets nothing extended and keeps no run; leases are ended
//! early only for a worker that has not reported since.

use std::time::Duration;

use steadfast_core::{RunStatus, Timestamp, limits};
use steadfast_store::op::{
    Beaten, EndLeases, Heartbeat, LeasesEnded, ListPeers, ListWorkers, Peer, Peers, RunRow,
    TakeOver, TakenOver, WorkerRow, Workers,
};

use super::{Key, Model, all_of, key};

/// A worker that was silent for so long is forgotten when a new one reports.
const FORGOTTEN: Duration = Duration::from_secs(86_400);
/// One that was superseded, after so long.
const LONG_FORGOTTEN: Duration = Duration::from_secs(30 * 86_400);

/// A worker as it reported.
#[derive(Debug, Clone)]
pub(super) struct Reported {
    row: WorkerRow,
    lease: Duration,
    superseded_by: Option<String>,
    /// Whether its leases were ended since it reported last.
    lost: bool,
}

impl Model {
    pub(super) fn take_over(&mut self, op: &TakeOver) -> TakenOver {
        let earlier = |worker: &str| {
            let of_name = worker.strip_prefix(&op.name).is_some_and(|tail| tail.starts_with('#'));
            of_name && worker != op.worker
        };
        let mut former = Vec::new();
        for at in self.workers_of(&op.workspace, &earlier) {
            self.workers.edit(&at, |known| {
                let by = known.superseded_by.get_or_insert_with(|| op.worker.clone());
                if *by == op.worker && !known.lost {
                    former.push((known.row.worker.clone(), known.row.seen_at));
                }
            });
        }
        TakenOver { runs: self.fence_off(&op.workspace, &earlier, op.now), former }
    }

    pub(super) fn is_superseded(&self, workspace: &str, worker: &str) -> bool {
        let known = self.workers.get(&key(workspace, worker));
        known.is_some_and(|known| known.superseded_by.is_some())
    }

    fn workers_of(&self, workspace: &str, which: &dyn Fn(&str) -> bool) -> Vec<Key> {
        let all = self.workers.iter();
        let these = all.filter(|((ws, worker), _)| ws == workspace && which(worker));
        these.map(|(at, _)| at.clone()).collect()
    }

    /// Fences the owners of runs off, and frees their slots and sinks; gives how many runs.
    fn fence_off(&mut self, workspace: &str, which: &dyn Fn(&str) -> bool, now: Timestamp) -> u64 {
        let runs = self.leased(workspace, |run| which(&run.worker));
        for at in &runs {
            self.runs.edit(at, |run| {
                run.wake_at = run.wake_at.min(now);
                run.epoch += 1;
            });
        }
        self.free_all(workspace, which);
        runs.len() as u64
    }

    /// Runs under leases.
    fn leased(&self, workspace: &str, which: impl Fn(&RunRow) -> bool) -> Vec<Key> {
        self.runs_of(workspace)
            .filter(|run| run.status == RunStatus::Pending && !run.parked)
            .filter(|run| run.wake_at < Timestamp::NEVER && which(run))
            .map(|run| key(workspace, &run.run_id))
            .collect()
    }

    /// Frees the slots and sinks of workers.
    fn free_all(&mut self, workspace: &str, which: &dyn Fn(&str) -> bool) {
        let slots: Vec<_> = self
            .slots
            .iter()
            .filter(|((ws, _, _), slot)| ws == workspace && which(&slot.worker))
            .map(|(at, _)| at.clone())
            .collect();
        for at in &slots {
            self.slots.remove(at);
        }
        self.free_sinks(workspace, which);
    }

    pub(super) fn heartbeat(&mut self, op: &Heartbeat) -> Beaten {
        self.log.hear_of(&op.worker);
        if let Some(successor) = self.report(op) {
            self.fence_off(&op.workspace, &|worker| worker == op.worker, op.now);
            let lost = op.leases.iter().map(|(run_id, _)| run_id.clone()).collect();
            return Beaten { lost, superseded_by: Some(successor) };
        }
        let mut lost = Vec::new();
        for (run_id, epoch) in &op.leases {
            let at = key(&op.workspace, run_id);
            let mine = self.runs.get(&at).is_some_and(|run| {
                run.status == RunStatus::Pending && run.worker == op.worker && run.epoch == *epoch
            });
            if !mine {
                lost.push(run_id.clone());
                continue;
            }
            // A heartbeat that arrives late must not take back what a later one has given.
            self.runs.edit(&at, |run| {
                let until = op.lease_until.min(run.deadline_at.unwrap_or(Timestamp::NEVER));
                run.wake_at = run.wake_at.max(until);
            });
            let slots: Vec<_> = self
                .slots
                .range(all_of(&op.workspace, run_id))
                .filter(|(_, slot)| slot.worker == op.worker && slot.epoch == *epoch)
                .filter(|(_, slot)| slot.until > op.now)
                .map(|(at, _)| at.clone())
                .collect();
            for at in &slots {
                self.slots.edit(at, |slot| slot.until = slot.until.max(op.lease_until));
            }
        }
        Beaten { lost, superseded_by: None }
    }

    /// Takes note of a worker that lives; gives who has superseded it, if it was superseded.
    fn report(&mut self, op: &Heartbeat) -> Option<String> {
        let me = key(&op.workspace, &op.worker);
        let known = self.workers.get(&me).map(|known| known.superseded_by.clone());
        if let Some(successor) = known {
            if successor.is_none() {
                self.workers.edit(&me, |known| {
                    known.row.app_version.clone_from(&op.app_version);
                    known.row.workflows.clone_from(&op.workflows);
                    known.row.seen_at = op.now;
                    (known.lease, known.lost) = (op.lease, false);
                });
            }
            return successor;
        }
        let row = WorkerRow {
            worker: op.worker.clone(),
            app_version: op.app_version.clone(),
            workflows: op.workflows.clone(),
            started_at: op.now,
            seen_at: op.now,
        };
        let new = Reported { row, lease: op.lease, superseded_by: None, lost: false };
        self.workers.put(me, new);
        let is_forgotten = |known: &Reported| {
            let after = if known.superseded_by.is_some() { LONG_FORGOTTEN } else { FORGOTTEN };
            known.row.seen_at < op.now.before(after)
        };
        let silent: Vec<_> = self
            .workers
            .iter()
            .filter(|((ws, _), known)| *ws == op.workspace && is_forgotten(known))
            .map(|(at, _)| at.clone())
            .collect();
        for at in &silent {
            self.workers.remove(at);
        }
        None
    }

    pub(super) fn end_leases(&mut self, op: &EndLeases) -> LeasesEnded {
        let at = key(&op.workspace, &op.worker);
        if self.workers.get(&at).is_none_or(|known| known.row.seen_at != op.seen_at) {
            return LeasesEnded::Reports;
        }
        self.workers.edit(&at, |known| known.lost = true);
        let mine =
            self.leased(&op.workspace, |run| run.worker == op.worker && run.wake_at > op.now);
        for at in &mine {
            self.runs.edit(at, |run| run.wake_at = op.now);
        }
        self.free_all(&op.workspace, &|worker| worker == op.worker);
        LeasesEnded::Done(mine.len() as u64)
    }

    pub(super) fn list_workers(&self, op: &ListWorkers) -> Workers {
        let listed = self.workers.iter().filter(|((ws, _), known)| {
            let lives = known.superseded_by.is_none() && !known.lost;
            *ws == op.workspace && known.row.seen_at >= op.since && lives
        });
        Workers(listed.map(|(_, known)| known.row.clone()).collect())
    }

    pub(super) fn list_peers(&self, op: &ListPeers) -> Peers {
        let others = self.workers.iter().filter(|((ws, worker), known)| {
            *ws == op.workspace && *worker != op.worker && *worker > op.after && !known.lost
        });
        let peer = |(_, known): (&Key, &Reported)| Peer {
            worker: known.row.worker.clone(),
            seen_at: known.row.seen_at,
            lease: known.lease,
        };
        Peers(others.take(limits::PEERS).map(peer).collect())
    }
}
