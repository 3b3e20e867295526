//! Claiming: from a queue, after a wait, or from a worker that is gone.
//!
//! Invariants: a claim raises the epoch by one; attempts count dequeues and recoveries, never
//! wake-ups; a run whose attempts are used up is parked instead of claimed.

use std::collections::BTreeMap;

use steadfast_core::{Error, ErrorClass, RunEvent, RunStatus, Timestamp, limits};
use steadfast_store::op::{Claimed, Dequeue, InLine, QueueRow, RunRow, Wake};

use super::start::first_of;
use super::{Model, key};

/// Who claims, and until when.
struct Claimant<'a> {
    workspace: &'a str,
    worker: &'a str,
    until: Timestamp,
    now: Timestamp,
}

impl Model {
    pub(super) fn dequeue(&mut self, op: &Dequeue) -> Claimed {
        let ws = op.workspace.as_str();
        let mut claimed = Claimed::default();
        let Some(queue) = self.queue_or_default(ws, &op.queue).filter(|queue| !queue.paused) else {
            return claimed;
        };
        let mut left = op.limit;
        let mut eases = Vec::new();
        let partitions = self.partitions(op, &queue);
        let mut looked = partitions.is_empty();
        for partition in partitions {
            if left == 0 {
                break;
            }
            let (free, eases_at) = self.room(ws, &queue, &partition, op.now);
            let free = free.min(worker_room(op, &queue, &partition));
            if free <= 0 {
                eases.extend(eases_at);
                continue;
            }
            looked = true;
            let take = usize::try_from(free).unwrap_or(usize::MAX).min(left);
            let line = self.first_in_line(op, &queue, &partition, take);
            for run_id in &line {
                self.expire(ws, run_id, op.now);
            }
            // What has expired may have taken others with it.
            let waits = |run_id: &String| {
                self.run(ws, run_id).is_some_and(|run| run.status == RunStatus::Enqueued)
            };
            let line: Vec<_> = line.into_iter().filter(waits).collect();
            for run_id in line {
                let by = Claimant::of_dequeue(op);
                if let Some(run) = self.runs.get(&key(ws, &run_id)) {
                    self.log.claim(&queue, &key(ws, &run_id), run);
                }
                claimed.runs.push(self.claim(&by, &run_id, Attempt::Counted));
                self.note_start(ws, &queue, &partition, op.now);
                left -= 1;
            }
        }
        let has: i64 = op.worker_has.iter().map(|(_, runs)| runs).sum();
        let mine = has + i64::try_from(claimed.runs.len()).unwrap_or(i64::MAX);
        let limit = queue.worker_concurrency.filter(|_| !queue.partitioned);
        claimed.full = limit.is_some_and(|limit| limit <= mine);
        let last = claimed.runs.last().filter(|_| !queue.partitioned);
        claimed.last = last.map(|run| in_line(&queue, run));
        claimed.next_at = eases.into_iter().min();
        if looked && claimed.runs.is_empty() && claimed.next_at.is_none() {
            claimed.next_at = self.next_ready(op, &queue);
        }
        claimed
    }

    /// The partitions with waiting runs: those after the one served last, then those before it.
    fn partitions(&self, op: &Dequeue, queue: &QueueRow) -> Vec<String> {
        if !queue.partitioned {
            return vec![String::new()];
        }
        let mut found: Vec<String> =
            self.waiting(&op.workspace, &op.queue).map(|run| run.partition.clone()).collect();
        found.sort();
        found.dedup();
        let next = found.partition_point(|partition| *partition <= op.after_partition);
        found.rotate_left(next);
        // The empty partition is never "after" another one, so it is met where the round begins
        // anew.
        found.truncate(limits::CLAIM_PARTITIONS);
        found
    }

    /// Runs that may be taken now, in the order of the queue.
    fn first_in_line(
        &self,
        op: &Dequeue,
        queue: &QueueRow,
        partition: &str,
        most: usize,
    ) -> Vec<String> {
        let mut line: Vec<_> = self
            .waiting(&op.workspace, &op.queue)
            .filter(|run| run.partition == partition && run.ready_at <= op.now)
            .filter(|run| fits(run, &op.app_version, &op.workflows) && !is_overdue(run, op.now))
            .map(|run| in_line(queue, run))
            .collect();
        line.sort();
        if let Some(behind) = op.behind.as_ref().filter(|_| !queue.partitioned)
            && line.last().is_some_and(|last| last > behind)
        {
            line.retain(|place| place > behind);
        }
        line.into_iter().take(most).map(|place| place.run_id).collect()
    }

    /// A hint: when the first in line whose time has not come is ready. With priorities that need
    /// not be the earliest, and partitions other than the empty one are not looked at.
    fn next_ready(&self, op: &Dequeue, queue: &QueueRow) -> Option<Timestamp> {
        self.waiting(&op.workspace, &op.queue)
            .filter(|run| run.partition.is_empty() && run.ready_at > op.now)
            .map(|run| (rank(queue, run), run.ready_at))
            .min()
            .map(|(_, ready_at)| ready_at)
    }

    fn claim(&mut self, by: &Claimant<'_>, run_id: &str, attempt: Attempt) -> RunRow {
        let at = key(by.workspace, run_id);
        let stride = self.log.stride(by.worker);
        self.runs.edit(&at, |run| {
            let arrow = run.status.on(RunEvent::Claim).expect("invariant: only claimable runs");
            run.status = arrow.to();
            run.worker = by.worker.to_owned();
            run.epoch += stride;
            run.attempts += i64::from(attempt == Attempt::Counted);
            run.started_at = run.started_at.or(Some(by.now));
            run.wake_at = by.until;
            run.parked = false;
            run.waits.clear();
            run.updated_at = by.now;
            run.deadline_at = first_of(run.deadline_at, run.timeout, by.now);
            run.wake_at = run.wake_at.min(run.deadline_at.unwrap_or(Timestamp::NEVER));
        });
        let run = self.runs.get(&at).expect("invariant: a claimed run exists").clone();
        self.command_claimed(by.workspace, &run, by.worker, by.now);
        run
    }

    /// Ends runs whose deadline has passed; gives them and their children, and whether there may be
    /// more.
    fn end_all_overdue(&mut self, op: &Wake) -> (Vec<String>, bool) {
        let ws = op.workspace.as_str();
        let mut overdue: Vec<RunRow> =
            self.runs_of(ws).filter(|run| is_overdue(run, op.now)).cloned().collect();
        overdue.sort_by(|a, b| (a.wake_at, &a.run_id).cmp(&(b.wake_at, &b.run_id)));
        let is_full = overdue.len() >= limits::CLAIM_BATCH;
        overdue.truncate(limits::CLAIM_BATCH);
        let mut ended = Vec::new();
        for run in overdue {
            if self.run(ws, &run.run_id).is_some_and(|run| is_overdue(run, op.now)) {
                let children = self.end_overdue(ws, &run, op.now);
                ended.push(run.run_id);
                ended.extend(children);
            }
        }
        (ended, is_full)
    }

    pub(super) fn wake(&mut self, op: &Wake) -> Claimed {
        let (overdue, more) = self.end_all_overdue(op);
        // Taken in this wake, by the place where each is counted.
        let mut taken: BTreeMap<(String, String), i64> = BTreeMap::new();
        let full =
            |run: &RunRow| self.worker_place(op, run).is_some_and(|(_, has, limit)| has >= limit);
        let mut due: Vec<RunRow> = self
            .runs_of(&op.workspace)
            .filter(|run| run.wake_at <= op.now && !is_overdue(run, op.now) && !full(run))
            .filter(|run| fits(run, &op.app_version, &op.workflows))
            .cloned()
            .collect();
        due.sort_by(|a, b| (a.wake_at, &a.run_id).cmp(&(b.wake_at, &b.run_id)));
        let is_superseded = self.is_superseded(&op.workspace, &op.worker);
        due.truncate(if is_superseded { 0 } else { op.limit });
        let by = Claimant {
            workspace: &op.workspace,
            worker: &op.worker,
            until: op.lease_until,
            now: op.now,
        };
        let mut claimed = Claimed { overdue, ..Claimed::default() };
        let (mut recovered, mut used_up) = (Vec::new(), Vec::new());
        for run in due {
            if !run.parked && run.attempts > run.max_attempts {
                used_up.push(run);
                continue;
            }
            if let Some((place, has, limit)) = self.worker_place(op, &run) {
                let more = taken.entry(place).or_default();
                *more += 1;
                if has + *more > limit {
                    continue;
                }
            }
            if run.parked {
                claimed.runs.push(self.claim(&by, &run.run_id, Attempt::Free));
            } else {
                recovered.push(self.claim(&by, &run.run_id, Attempt::Counted));
            }
        }
        claimed.runs.append(&mut recovered);
        // Last, because a parent may be among the claimed: it learns of the end as of any arrival.
        for run in used_up {
            let (ws, reason) = (op.workspace.as_str(), exhausted(&run));
            if self.run(ws, &run.run_id).is_none_or(|now| now.status.is_terminal()) {
                // It went down with its parent, just now.
                continue;
            }
            self.stop(ws, &run, RunEvent::Exhaust, &reason, op.now);
            let (why, by) = ((None, Some(&reason)), "system:recovery");
            self.command_follows(ws, &run, RunEvent::Exhaust, why, by, op.now);
            claimed.exhausted.push(run.run_id);
        }
        claimed.left = self.runs_of(&op.workspace).any(|run| run.wake_at <= op.now);
        let later = self.runs_of(&op.workspace).map(|run| run.wake_at).filter(|at| *at > op.now);
        claimed.next_at = match more {
            true => Some(op.now),
            false => later.min().filter(|at| *at != Timestamp::NEVER),
        };
        claimed
    }

    /// Where a run counts against its queue's limit per worker, how many the worker has there, and
    /// the limit. `None` without such a limit.
    fn worker_place(&self, op: &Wake, run: &RunRow) -> Option<((String, String), i64, i64)> {
        let queue = self.queues.get(&key(&op.workspace, &run.queue))?;
        let limit = queue.worker_concurrency?;
        let partition = if queue.partitioned { run.partition.as_str() } else { "" };
        let counts = |(name, part, _): &&(String, String, i64)| {
            *name == run.queue && (!queue.partitioned || part == partition)
        };
        let has = op.worker_has.iter().filter(counts).map(|(_, _, runs)| runs).sum();
        Some(((run.queue.clone(), partition.to_owned()), has, limit))
    }
}

impl<'a> Claimant<'a> {
    fn of_dequeue(op: &'a Dequeue) -> Self {
        Self { workspace: &op.workspace, worker: &op.worker, until: op.lease_until, now: op.now }
    }
}

/// Whether a claim uses up one of the run's attempts.
#[derive(PartialEq)]
enum Attempt {
    Counted,
    Free,
}

/// A run is for workers that have its workflow, and if it is pinned to a version, of that version.
fn fits(run: &RunRow, app_version: &str, workflows: &[String]) -> bool {
    let is_version = run.app_version.is_empty() || run.app_version == app_version;
    is_version && workflows.contains(&run.workflow)
}

fn is_overdue(run: &RunRow, now: Timestamp) -> bool {
    !run.status.is_terminal() && run.deadline_at.is_some_and(|deadline| deadline <= now)
}

/// Priorities count only where the queue says so, and from the moment it says so.
fn rank(queue: &QueueRow, run: &RunRow) -> i64 {
    queue.rank(run.priority)
}

fn in_line(queue: &QueueRow, run: &RunRow) -> InLine {
    InLine { rank: rank(queue, run), ready_at: run.ready_at, run_id: run.run_id.clone() }
}

fn worker_room(op: &Dequeue, queue: &QueueRow, partition: &str) -> i64 {
    let counts = |key: &str| !queue.partitioned || key == partition;
    let has: i64 = op.worker_has.iter().filter(|(key, _)| counts(key)).map(|(_, n)| n).sum();
    queue.worker_concurrency.map_or(i64::MAX, |limit| limit - has)
}

fn exhausted(run: &RunRow) -> Error {
    Error::new(
        ErrorClass::RetriesExceeded,
        "SF-0302",
        format!(
            "the run lost its worker {} times (first run and {} recoveries are allowed); \
             resume it once the cause is gone",
            run.attempts, run.max_attempts
        ),
    )
}
