//! Beginning a run: by its id, at most once.
//!
//! Invariants: an id stands for one run for ever; a deduplication id stands for one active run of
//! its queue. The id is looked at first: a repeated request finds its own run even when its
//! deduplication id has gone to another one since.

use std::time::Duration;

use steadfast_core::{RunStatus, Timestamp};
use steadfast_store::op::{DEFAULT_QUEUE, Lease, QueueRow, Rest, RunRow, Start, Started};

use super::{Dedupe, Model, key};

impl Model {
    pub(super) fn start(&mut self, op: &Start) -> Started {
        let Some(queue) = self.queue_or_default(&op.workspace, &op.queue) else {
            return Started::NoQueue;
        };
        if let Some(run) = self.run(&op.workspace, &op.run_id) {
            return met_again(op, run);
        }
        let name = (op.workspace.clone(), op.queue.clone(), op.dedupe_id.clone());
        if let Some(taken) = self.dedupes.get(&name).filter(|_| !op.dedupe_id.is_empty()) {
            return Started::Duplicate(taken.run_id.clone());
        }
        if !op.dedupe_id.is_empty() {
            self.dedupes.put(name, Dedupe { run_id: op.run_id.clone() });
        }
        let claim = op.claim.as_ref().filter(|_| has_no_limits(&queue));
        let partition = if queue.partitioned { op.partition.as_str() } else { "" };
        let mut run = new_run(op, partition);
        if let Some((worker, until)) = claim {
            run.status = RunStatus::Pending;
            run.worker.clone_from(worker);
            (run.epoch, run.attempts) = (1, 1);
            run.started_at = Some(op.now);
            run.wake_at = *until;
            run.deadline_at = first_of(op.deadline_at, op.timeout, op.now);
            if let Some(Rest { wake_at, waits }) = op.rest.clone() {
                run.worker.clear();
                (run.parked, run.wake_at, run.waits) = (true, wake_at, waits);
            }
        }
        run.wake_at = run.wake_at.min(run.deadline_at.unwrap_or(Timestamp::NEVER));
        self.runs.put(key(&op.workspace, &op.run_id), run);
        Started::New(claim.map(|(worker, _)| first_lease(op, worker)))
    }

    /// The queue; the default one is there without having been made.
    pub(super) fn queue_or_default(&self, workspace: &str, name: &str) -> Option<QueueRow> {
        let made = self.queues.get(&key(workspace, name)).cloned();
        made.or_else(|| {
            (name == DEFAULT_QUEUE)
                .then(|| QueueRow { name: name.to_owned(), ..QueueRow::default() })
        })
    }

    /// A run that ends gives its deduplication id back.
    pub(super) fn free_dedupe(&mut self, workspace: &str, run: &RunRow) {
        let name = (workspace.to_owned(), run.queue.clone(), run.dedupe_id.clone());
        if self.dedupes.get(&name).is_some_and(|taken| taken.run_id == run.run_id) {
            self.dedupes.remove(&name);
        }
    }
}

/// The earlier of a deadline and a time limit that begins now.
pub(super) fn first_of(
    deadline: Option<Timestamp>,
    timeout: Option<Duration>,
    now: Timestamp,
) -> Option<Timestamp> {
    let limit = timeout.map_or(Timestamp::NEVER, |timeout| now.after(timeout));
    Some(deadline.unwrap_or(Timestamp::NEVER).min(limit)).filter(|at| *at != Timestamp::NEVER)
}

/// Whether a run may be claimed as it is started, past the queue.
pub(super) fn has_no_limits(queue: &QueueRow) -> bool {
    queue.concurrency.is_none()
        && queue.worker_concurrency.is_none()
        && queue.rate.is_none()
        && !queue.paused
}

/// The id is known. The same request gets the same answer as long as nothing has happened since.
fn met_again(op: &Start, run: &RunRow) -> Started {
    if run.workflow != op.workflow {
        return Started::Conflict("workflow");
    }
    if run.generation == 0 && run.input != op.input {
        return Started::Conflict("input");
    }
    if !op.parent.is_empty() && run.parent != op.parent {
        return Started::Conflict("parent");
    }
    let is_overdue = run.deadline_at.is_some_and(|deadline| deadline <= op.now);
    let status = match is_overdue && !run.status.is_terminal() {
        true => RunStatus::Cancelled,
        false => run.status,
    };
    if run.seed != op.seed || run.parent != op.parent {
        return Started::Existing(status);
    }
    if run.status == RunStatus::Enqueued {
        return Started::New(None);
    }
    let held = |worker: &str| run.epoch == 1 && run.worker == worker;
    match &op.claim {
        // Who rests holds nothing, so it does not matter whether the run has gone on since.
        Some((worker, _)) if op.rest.is_some() || held(worker) => {
            Started::New(Some(first_lease(op, worker)))
        }
        _ => Started::Existing(status),
    }
}

pub(super) fn first_lease(op: &Start, worker: &str) -> Lease {
    Lease {
        workspace: op.workspace.clone(),
        run_id: op.run_id.clone(),
        worker: worker.to_owned(),
        epoch: 1,
    }
}

/// A run that waits on its queue and has never been claimed.
fn new_run(op: &Start, partition: &str) -> RunRow {
    RunRow {
        run_id: op.run_id.clone(),
        workflow: op.workflow.clone(),
        status: RunStatus::Enqueued,
        input: op.input.clone(),
        output: None,
        error: None,
        queue: op.queue.clone(),
        partition: partition.to_owned(),
        priority: op.priority,
        dedupe_id: op.dedupe_id.clone(),
        app_version: op.app_version.clone(),
        worker: String::new(),
        epoch: 0,
        attempts: 0,
        max_attempts: op.max_attempts,
        created_at: op.now,
        updated_at: op.now,
        started_at: None,
        finished_at: None,
        ready_at: op.ready_at,
        wake_at: Timestamp::NEVER,
        parked: false,
        waits: String::new(),
        timeout: op.timeout,
        deadline_at: op.deadline_at.filter(|at| *at != Timestamp::NEVER),
        forked_from: String::new(),
        parent: op.parent.clone(),
        detached: op.detached,
        generation: 0,
        seed: op.seed,
        inbox: 0,
        context: op.context.clone(),
    }
}
