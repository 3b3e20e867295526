//! Queues: limits, slots, rate windows.
//!
//! Invariants: PENDING runs and held slots together never exceed a queue's concurrency through an
//! operation of this module; a slot ends with its lease, its run's stop, or when it is given back.

use steadfast_core::{RunStatus, Timestamp};
use steadfast_store::op::{
    DefineQueue, FreeSlot, Freed, Holder, InspectQueue, ListQueues, PutQueue, QueueChange,
    QueueDefined, QueuePut, QueueReport, QueueRow, Queues, RunRow, SlotTaken, TakeSlot,
};

use super::{Model, Slot, key, numbered};

/// Holders that a report names.
const HOLDERS: usize = 100;

impl Model {
    /// How many more may start in a partition (perhaps fewer than none), and when that eases.
    pub(super) fn room(
        &self,
        workspace: &str,
        queue: &QueueRow,
        partition: &str,
        now: Timestamp,
    ) -> (i64, Option<Timestamp>) {
        let (mut free, mut eases_at) = (i64::MAX, None);
        if let Some(limit) = queue.concurrency {
            let slots = self.held_slots(workspace, &queue.name, partition, now);
            let runs = self.held_runs(workspace, &queue.name, partition).count();
            free = limit - count(runs + slots.len());
            // A run may end at any time; only a slot that nobody renews has a known end.
            let first_end = slots.iter().map(|(_, slot)| slot.until).min();
            eases_at = first_end.filter(|_| free <= 0);
        }
        if let Some((limit, period)) = queue.rate {
            let recent = self.recent_starts(workspace, queue, partition, now);
            free = free.min(limit - count(recent.len()));
            if count(recent.len()) >= limit {
                eases_at = recent.into_iter().min().map(|at| at.after(period));
            }
        }
        (free, eases_at)
    }

    fn held_runs(
        &self,
        workspace: &str,
        queue: &str,
        partition: &str,
    ) -> impl Iterator<Item = &RunRow> {
        self.runs_of(workspace).filter(move |run| {
            run.status == RunStatus::Pending && run.queue == queue && run.partition == partition
        })
    }

    fn held_slots(
        &self,
        workspace: &str,
        queue: &str,
        partition: &str,
        now: Timestamp,
    ) -> Vec<(&(String, String, i64), &Slot)> {
        self.slots
            .iter()
            .filter(|((ws, _, _), _)| ws == workspace)
            .filter(|(_, slot)| slot.queue == queue && slot.partition == partition)
            .filter(|(_, slot)| slot.until > now)
            .collect()
    }

    /// Starts inside the window that ends now; its far end is not part of it. A start that is more
    /// than a period ahead is in none: the clock that noted it was ahead.
    fn recent_starts(
        &self,
        workspace: &str,
        queue: &QueueRow,
        partition: &str,
        now: Timestamp,
    ) -> Vec<Timestamp> {
        let Some((_, period)) = queue.rate else {
            return Vec::new();
        };
        let of = |number| (workspace.to_owned(), queue.name.clone(), partition.to_owned(), number);
        self.starts
            .range(of(0)..=of(u64::MAX))
            .map(|(_, at)| *at)
            .filter(|at| *at > now.before(period) && *at <= now.after(period))
            .collect()
    }

    /// Notes a start where a rate is kept, and forgets those that left the window.
    pub(super) fn note_start(
        &mut self,
        workspace: &str,
        queue: &QueueRow,
        partition: &str,
        now: Timestamp,
    ) {
        let Some((_, period)) = queue.rate else {
            return;
        };
        let of = |number| (workspace.to_owned(), queue.name.clone(), partition.to_owned(), number);
        let old: Vec<_> = self
            .starts
            .range(of(0)..=of(u64::MAX))
            .filter(|(_, at)| **at <= now.before(period) || **at > now.after(period))
            .map(|(at, _)| at.clone())
            .collect();
        for at in &old {
            self.starts.remove(at);
        }
        self.started += 1;
        self.starts.put(of(self.started), now);
    }

    pub(super) fn take_slot(&mut self, op: &TakeSlot) -> SlotTaken {
        let ws = op.lease.workspace.as_str();
        let Some(queue) = self.queue_or_default(ws, &op.queue) else {
            return SlotTaken::NoQueue;
        };
        if !self.owns(&op.lease, op.now) {
            return SlotTaken::Fenced;
        }
        let at = numbered(ws, &op.lease.run_id, op.step);
        if let Some(held) = self.slots.get(&at) {
            if held.worker == op.lease.worker && held.epoch == op.lease.epoch {
                return SlotTaken::Done;
            }
            // Left by an earlier owner of this run, who may not hold it any more.
            self.slots.remove(&at);
        }
        let partition = if queue.partitioned { op.partition.as_str() } else { "" };
        let (free, until) = self.room(ws, &queue, partition, op.now);
        if free <= 0 || queue.paused {
            return SlotTaken::Full { until };
        }
        let slot = Slot {
            queue: op.queue.clone(),
            partition: partition.to_owned(),
            worker: op.lease.worker.clone(),
            epoch: op.lease.epoch,
            until: op.lease_until,
        };
        self.slots.put(at, slot);
        self.note_start(ws, &queue, partition, op.now);
        SlotTaken::Done
    }

    pub(super) fn free_slot(&mut self, op: &FreeSlot) -> Freed {
        let at = numbered(&op.lease.workspace, &op.lease.run_id, op.step);
        let mine = self
            .slots
            .get(&at)
            .is_some_and(|slot| slot.worker == op.lease.worker && slot.epoch == op.lease.epoch);
        Freed(mine && self.slots.remove(&at))
    }

    pub(super) fn put_queue(&mut self, op: &PutQueue) -> QueuePut {
        let at = key(&op.workspace, &op.queue.name);
        let created = !self.queues.has(&at);
        self.set_queue(&op.workspace, &op.queue);
        QueuePut { created }
    }

    /// A definition changes what it says otherwise than the last one did.
    pub(super) fn define_queue(&mut self, op: &DefineQueue) -> QueueDefined {
        let (at, next) = (key(&op.workspace, &op.queue.name), &op.queue);
        let last = self.definitions.get(&at).cloned();
        let Some(found) = self.queues.get(&at).cloned() else {
            self.definitions.put(at, next.clone());
            self.set_queue(&op.workspace, next);
            return QueueDefined { change: QueueChange::Created, queue: next.clone() };
        };
        if last.as_ref() == Some(next) {
            return QueueDefined { change: QueueChange::Kept, queue: found };
        }
        let (mut queue, last) = (found, last.unwrap_or_default());
        if next.concurrency != last.concurrency {
            queue.concurrency = next.concurrency;
        }
        if next.worker_concurrency != last.worker_concurrency {
            queue.worker_concurrency = next.worker_concurrency;
        }
        if next.rate != last.rate {
            queue.rate = next.rate;
        }
        if next.priorities != last.priorities {
            queue.priorities = next.priorities;
        }
        if next.partitioned != last.partitioned {
            queue.partitioned = next.partitioned;
        }
        if next.paused != last.paused {
            queue.paused = next.paused;
        }
        self.definitions.put(at, next.clone());
        self.set_queue(&op.workspace, &queue);
        QueueDefined { change: QueueChange::Redefined, queue }
    }

    fn set_queue(&mut self, workspace: &str, queue: &QueueRow) {
        self.queues.put(key(workspace, &queue.name), queue.clone());
        if !queue.partitioned {
            let waiting: Vec<_> = self
                .waiting(workspace, &queue.name)
                .filter(|run| !run.partition.is_empty())
                .map(|run| key(workspace, &run.run_id))
                .collect();
            for at in &waiting {
                self.runs.edit(at, |run| run.partition.clear());
            }
        }
    }

    pub(super) fn list_queues(&self, op: &ListQueues) -> Queues {
        let of_workspace = self.queues.iter().filter(|((ws, _), _)| *ws == op.workspace);
        Queues(of_workspace.map(|(_, queue)| queue.clone()).collect())
    }

    pub(super) fn inspect_queue(&self, op: &InspectQueue) -> QueueReport {
        let ws = op.workspace.as_str();
        let queue = self.queues.get(&key(ws, &op.queue)).cloned();
        let partitioned = queue.as_ref().is_some_and(|queue| queue.partitioned);
        let partition = if partitioned { op.partition.as_str() } else { "" };
        let runs = self.held_runs(ws, &op.queue, partition).map(|run| Holder {
            run_id: run.run_id.clone(),
            step: -1,
            worker: run.worker.clone(),
            until: run.wake_at,
        });
        let slots = self.held_slots(ws, &op.queue, partition, op.now);
        let steps = slots.iter().map(|((_, run_id, step), slot)| Holder {
            run_id: run_id.clone(),
            step: *step,
            worker: slot.worker.clone(),
            until: slot.until,
        });
        let mut holders: Vec<Holder> = runs.chain(steps).collect();
        let held = count(holders.len());
        holders.truncate(HOLDERS);
        let recent = queue
            .as_ref()
            .map(|queue| self.recent_starts(ws, queue, partition, op.now))
            .unwrap_or_default();
        let period = queue.as_ref().and_then(|queue| queue.rate).map(|(_, period)| period);
        let oldest = recent.iter().min();
        QueueReport {
            holders,
            held,
            started: count(recent.len()),
            eases_at: oldest.zip(period).map(|(at, period)| at.after(period)),
            waiting: count(
                self.waiting(ws, &op.queue).filter(|run| run.partition == partition).count(),
            ),
            defined: self.definitions.get(&key(ws, &op.queue)).cloned(),
            queue,
        }
    }
}

fn count(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}
