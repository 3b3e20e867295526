//! A run as a row, a lease on it, and the operations that begin or move it from outside.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast_core::driver::{Outcome, Record};
use steadfast_core::{Error, RunStatus, Timestamp, json};

/// The queue of runs that name none.
pub const DEFAULT_QUEUE: &str = "default";

/// The right to write as a run's owner. A newer claim makes it void.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// The workspace.
    pub workspace: String,
    /// The run.
    pub run_id: String,
    /// The owner: one incarnation of one worker.
    pub worker: String,
    /// Raised by every claim; a write with an older one is refused.
    pub epoch: i64,
}

/// A run, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// Its id, unique in the workspace.
    pub run_id: String,
    /// The workflow's name.
    pub workflow: String,
    /// Where it stands.
    pub status: RunStatus,
    /// The input as JSON.
    pub input: String,
    /// The result as JSON, once it succeeded.
    pub output: Option<String>,
    /// Why it failed or was stopped.
    pub error: Option<Error>,
    /// The queue it came by.
    pub queue: String,
    /// The partition of the queue, empty for none.
    pub partition: String,
    /// Lower goes first, where the queue has priorities.
    pub priority: i64,
    /// Unique on its queue while the run is not over; empty for none.
    pub dedupe_id: String,
    /// The application version it is pinned to; empty for any.
    pub app_version: String,
    /// Who executes it; empty when nobody does.
    pub worker: String,
    /// The fence.
    pub epoch: i64,
    /// Claims that were neither wake-ups nor given back.
    pub attempts: i64,
    /// Recoveries allowed.
    pub max_attempts: i64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its row last changed.
    pub updated_at: Timestamp,
    /// When it was first claimed, or last continued as new: where its logical clock begins.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Not to be dequeued before.
    pub ready_at: Timestamp,
    /// When a lease runs out or a wait is over; `NEVER` when neither.
    pub wake_at: Timestamp,
    /// Whether it is suspended.
    pub parked: bool,
    /// What it waits for while suspended, as JSON; empty otherwise.
    pub waits: String,
    /// How long it may run, from its first claim.
    pub timeout: Option<Duration>,
    /// When it is stopped.
    pub deadline_at: Option<Timestamp>,
    /// The run it was forked from; empty for none.
    pub forked_from: String,
    /// The run that started it; empty for none.
    pub parent: String,
    /// Whether it outlives a cancelled parent.
    pub detached: bool,
    /// How often it continued as new.
    pub generation: i64,
    /// Seeds its random numbers.
    pub seed: i64,
    /// Counts what has arrived for it (signals, finished children).
    pub inbox: i64,
    /// What travels with it from its cause, as JSON: the command, the trace.
    pub context: Option<String>,
}

impl RunRow {
    /// Whether it is still active after its deadline. Such a run has ended, although the row may
    /// not say so yet.
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        !self.status.is_terminal() && self.deadline_at.is_some_and(|deadline| deadline <= now)
    }

    /// When a claim at this moment has the run end: by its deadline or its time limit, whichever is
    /// earlier.
    pub fn deadline_by(&self, now: Timestamp) -> Option<Timestamp> {
        earlier(self.deadline_at, self.timeout, now)
    }

    /// The run as every read shows it: one past its deadline has been cancelled at that moment,
    /// whether or not a worker has written so.
    #[must_use]
    pub fn as_of(mut self, now: Timestamp) -> Self {
        if let Some(deadline) = self.deadline_at.filter(|_| self.is_overdue(now)) {
            self.status = RunStatus::Cancelled;
            self.error = Some(steadfast_core::run::overdue(deadline));
            self.worker.clear();
            self.waits.clear();
            self.parked = false;
            self.wake_at = Timestamp::NEVER;
            self.finished_at = Some(deadline);
            self.updated_at = self.updated_at.max(deadline);
        }
        self
    }
}

/// The earlier of a deadline and a time limit that begins now; `None` for never.
pub(crate) fn earlier(
    deadline: Option<Timestamp>,
    timeout: Option<Duration>,
    now: Timestamp,
) -> Option<Timestamp> {
    let ends = [deadline, timeout.map(|timeout| now.after(timeout))];
    ends.into_iter().flatten().filter(|at| *at != Timestamp::NEVER).min()
}

impl Start {
    /// When the run has to end if it is claimed as it is started.
    pub fn deadline_by(&self) -> Option<Timestamp> {
        earlier(self.deadline_at, self.timeout, self.now)
    }
}

/// Creates a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// The workspace.
    pub workspace: String,
    /// The id; the same id means the same run.
    pub run_id: String,
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
    /// Version to pin to; empty for any.
    pub app_version: String,
    /// Recoveries allowed.
    pub max_attempts: i64,
    /// Not to be dequeued before.
    pub ready_at: Timestamp,
    /// How long it may run, from its first claim.
    pub timeout: Option<Duration>,
    /// When it is stopped, if that is known already.
    pub deadline_at: Option<Timestamp>,
    /// The run that starts it; empty for none.
    pub parent: String,
    /// Whether it outlives a cancelled parent.
    pub detached: bool,
    /// Random; seeds the run's numbers, and tells a repeated request from another one.
    pub seed: i64,
    /// What travels with it from its cause, as JSON.
    pub context: Option<String>,
    /// Who takes it in the same commit, and until when. Only where the queue has no limits.
    pub claim: Option<(String, Timestamp)>,
    /// Where its code has come to rest before it was started: what is claimed is suspended in the
    /// same commit.
    pub rest: Option<Rest>,
    /// The time.
    pub now: Timestamp,
}

/// What a run waits for from its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rest {
    /// When it is to be woken at the latest; `NEVER` for a signal without a time limit.
    pub wake_at: Timestamp,
    /// What it waits for, as JSON.
    pub waits: String,
}

/// What became of a start.
#[derive(Debug, Clone, PartialEq)]
pub enum Started {
    /// A new run; with a lease when it was claimed at once, which is over if it rests.
    New(Option<Lease>),
    /// The id was taken by the same request before.
    Existing(RunStatus),
    /// The id is taken by something else: which field differs.
    Conflict(&'static str),
    /// Another active run has the deduplication id.
    Duplicate(String),
    /// No such queue.
    NoQueue,
}

/// Starts a run after a quiet time; each call before that replaces the input and waits anew. A call
/// while the run executes, or after it, starts the next run.
#[derive(Debug, Clone, PartialEq)]
pub struct Debounce {
    /// The run to start; `ready_at` is the end of the quiet time. Where a run waits already, its
    /// input and `ready_at` are replaced, and nothing else of it.
    pub start: Start,
    /// What the calls have in common. Each workflow has keys of its own.
    pub key: String,
    /// However often it is called, it starts this long after the first call at the latest.
    pub max_wait: Option<Duration>,
}

/// What became of a debounced start.
#[derive(Debug, Clone, PartialEq)]
pub enum Debounced {
    /// A new run will start.
    New,
    /// The waiting run has the new input.
    Replaced(String),
    /// Another active run has the deduplication id.
    Duplicate(String),
    /// The id is taken: which field differs, or `id` if only the run has begun.
    Conflict(&'static str),
    /// No such queue.
    NoQueue,
}

/// Takes runs from a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Dequeue {
    /// The workspace.
    pub workspace: String,
    /// The queue.
    pub queue: String,
    /// Who takes them.
    pub worker: String,
    /// The worker's application version; takes runs pinned to it or to none.
    pub app_version: String,
    /// The workflows that the worker has. Runs of others are left to other workers.
    pub workflows: Vec<String>,
    /// Most runs to take.
    pub limit: usize,
    /// Runs of this queue the worker has already, by partition: its own limit counts them, all
    /// together when the queue is not partitioned.
    pub worker_has: Vec<(String, i64)>,
    /// Partitions up to this one were served last: begin after it.
    pub after_partition: String,
    /// Where the last claim ended. What waits behind it goes first; only where nothing does, the
    /// whole line is looked at. Without it, what is first in line goes first, and the database
    /// passes by what was claimed of late. Not for queues with partitions.
    pub behind: Option<InLine>,
    /// Until when they are leased.
    pub lease_until: Timestamp,
    /// The time.
    pub now: Timestamp,
}

/// A place in the line of a queue without partitions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct InLine {
    /// The rank that its priority has there.
    pub rank: i64,
    /// Since when it is ready.
    pub ready_at: Timestamp,
    /// The run.
    pub run_id: String,
}

/// Takes runs whose lease ran out or whose wait is over, of any queue, and ends runs whose deadline
/// has passed, whichever worker has them. A worker that was superseded takes none.
#[derive(Debug, Clone, PartialEq)]
pub struct Wake {
    /// The workspace.
    pub workspace: String,
    /// Who takes them.
    pub worker: String,
    /// The worker's application version; takes runs pinned to it or to none.
    pub app_version: String,
    /// The workflows that the worker has. Runs of others are left to other workers.
    pub workflows: Vec<String>,
    /// Most runs to take; with 0, only overdue runs are ended.
    pub limit: usize,
    /// Runs the worker has already, by queue and partition: limits per worker count them.
    pub worker_has: Vec<(String, String, i64)>,
    /// Until when they are leased.
    pub lease_until: Timestamp,
    /// The time.
    pub now: Timestamp,
}

/// Fences a worker's earlier incarnations off, after a restart or beside them: what they write to
/// their runs is refused from now on, and the runs are due at once.
#[derive(Debug, Clone, PartialEq)]
pub struct TakeOver {
    /// The workspace.
    pub workspace: String,
    /// The worker's name: its incarnations are `name#...`.
    pub name: String,
    /// The incarnation that lives now.
    pub worker: String,
    /// The time.
    pub now: Timestamp,
}

/// What was taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenOver {
    /// How many runs the earlier incarnations had.
    pub runs: u64,
    /// The earlier incarnations that may still be alive, and when each reported last.
    pub former: Vec<(String, Timestamp)>,
}

/// What was claimed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Claimed {
    /// The runs, now owned by the caller.
    pub runs: Vec<RunRow>,
    /// Runs that were parked as RETRIES_EXCEEDED instead.
    pub exhausted: Vec<String>,
    /// Runs that were ended because their deadline had passed, with their attached children.
    pub overdue: Vec<String>,
    /// When more becomes ready, as far as is known; `None` if nothing is known to.
    pub next_at: Option<Timestamp>,
    /// Whether the worker has now as many runs of the queue as it may. Partitions are not looked
    /// at.
    pub full: bool,
    /// Whether something that is due was left: for want of a place, or for another worker.
    pub left: bool,
    /// Where the last of the runs stood in line, if they are of a queue without partitions.
    pub last: Option<InLine>,
}

/// Stops a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Cancel {
    /// The workspace.
    pub workspace: String,
    /// The run.
    pub run_id: String,
    /// Why: kept as the run's error.
    pub reason: Error,
    /// The time.
    pub now: Timestamp,
}

/// What became of a cancel.
#[derive(Debug, Clone, PartialEq)]
pub enum Cancelled {
    /// It was stopped, and these attached descendants with it.
    Done(Vec<String>),
    /// It had ended before.
    AlreadyOver(RunStatus),
    /// No such run.
    NotFound,
}

/// Ends a run and its attached children because the run's deadline has passed: what its owner asks
/// for. The store compares the deadline itself, so an owner with an old row changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeOut {
    /// The right to.
    pub lease: Lease,
    /// The time.
    pub now: Timestamp,
}

/// What became of a time-out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimedOut {
    /// The run ended, and these attached descendants with it.
    Done(Vec<String>),
    /// Its deadline is later, or it has none. The lease stays.
    NotDue(Option<Timestamp>),
    /// The lease is void. Nothing was written.
    Fenced,
}

/// Puts a stopped run back on its queue, with a new budget of attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct Resume {
    /// The workspace.
    pub workspace: String,
    /// The run.
    pub run_id: String,
    /// The time.
    pub now: Timestamp,
}

/// What became of a resume.
#[derive(Debug, Clone, PartialEq)]
pub enum Resumed {
    /// It is on its queue.
    Done,
    /// Nothing to resume: it is active, or ended for good.
    NotStopped(RunStatus),
    /// Effects of its command were taken back: what it has on record is no longer so.
    TakenBack,
    /// No such run.
    NotFound,
}

/// Makes a run from the first steps of another.
#[derive(Debug, Clone, PartialEq)]
pub struct Fork {
    /// The workspace.
    pub workspace: String,
    /// The run to copy from; it is not changed.
    pub source: String,
    /// Steps before this one are copied.
    pub from_step: i64,
    /// The new run's id.
    pub run_id: String,
    /// Another input than the source's.
    pub input: Option<String>,
    /// Other outcomes for copied steps.
    pub patches: Vec<Record>,
    /// Another version than the source's.
    pub app_version: Option<String>,
    /// Another timeout than the source's.
    pub timeout: Option<Duration>,
    /// Random; tells a repeated request from another one.
    pub seed: i64,
    /// The time.
    pub now: Timestamp,
}

impl Fork {
    /// A digest of what is asked for: two requests for one id mean the same fork if it is equal.
    /// The order of the patches does not count.
    pub fn digest(&self) -> String {
        let patches: BTreeMap<u64, &Outcome> =
            self.patches.iter().map(|patch| (patch.id, &patch.outcome)).collect();
        let timeout = self.timeout.map(|timeout| timeout.as_micros().to_string());
        let asked =
            (&self.source, self.from_step, &self.input, &self.app_version, timeout, patches);
        let text = serde_json::to_string(&asked).expect("invariant: a fork is plain data");
        json::fingerprint(&text)
    }
}

/// What became of a fork.
#[derive(Debug, Clone, PartialEq)]
pub enum Forked {
    /// The new run is on its queue.
    Done,
    /// The id was taken by the same fork before.
    Existing,
    /// The id is taken by something else: what differs.
    Conflict(&'static str),
    /// A patch names a step that is not copied.
    NoSuchStep(i64),
    /// No such source.
    NotFound,
}

/// Removes runs that ended before a moment, a batch at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct Purge {
    /// The workspace.
    pub workspace: String,
    /// Runs that finished before this go.
    pub before: Timestamp,
    /// Most runs to remove.
    pub limit: usize,
}

/// How many runs were removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purged(pub u64);
