//! What can be read: runs, records, values, streams.

use steadfast_core::driver::Record;
use steadfast_core::{RunStatus, Timestamp};

use super::run::RunRow;

/// Asks for one run.
#[derive(Debug, Clone, PartialEq)]
pub struct GetRun {
    /// The workspace.
    pub workspace: String,
    /// The run.
    pub run_id: String,
    /// The time: a run past its deadline is shown as ended.
    pub now: Timestamp,
}

/// The run, if there is one.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundRun(pub Option<Box<RunRow>>);

/// Asks which of some runs are over.
#[derive(Debug, Clone, PartialEq)]
pub struct GetEnds {
    /// The workspace.
    pub workspace: String,
    /// The runs.
    pub run_ids: Vec<String>,
    /// The time: a run past its deadline is over.
    pub now: Timestamp,
}

/// Those that are over, by id.
#[derive(Debug, Clone, PartialEq)]
pub struct Ends(pub Vec<RunRow>);

/// Which runs; an empty field does not filter.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunFilter {
    /// Any of these statuses.
    pub status: Vec<RunStatus>,
    /// Of this workflow.
    pub workflow: Option<String>,
    /// Of this queue.
    pub queue: Option<String>,
    /// With ids that begin so.
    pub id_prefix: Option<String>,
    /// Pinned to this version.
    pub app_version: Option<String>,
    /// Started by this run.
    pub parent: Option<String>,
    /// Forked from this run.
    pub forked_from: Option<String>,
    /// Created at or after.
    pub created_from: Option<Timestamp>,
    /// Created before.
    pub created_to: Option<Timestamp>,
}

/// Asks for runs, newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct ListRuns {
    /// The workspace.
    pub workspace: String,
    /// Which.
    pub filter: RunFilter,
    /// Where the last page ended: creation time and id.
    pub after: Option<(Timestamp, String)>,
    /// Most rows.
    pub limit: usize,
    /// The time: a run past its deadline is shown as ended.
    pub now: Timestamp,
}

/// A page of runs.
#[derive(Debug, Clone, PartialEq)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunRow>,
    /// Where to go on, if there is more.
    pub next: Option<(Timestamp, String)>,
}

/// Asks for records of a run, a page at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct ListSteps {
    /// The workspace.
    pub workspace: String,
    /// The run.
    pub run_id: String,
    /// From this step on.
    pub from: i64,
    /// Most rows: 1 to `limits::PAGE_ROWS`. A larger page is refused, not cut.
    pub limit: usize,
}

/// Records of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPage(pub Vec<Record>);

/// Asks what has arrived for a run: signals and the ends of its children.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// The workspace.
    pub workspace: String,
    /// The run.
    pub run_id: String,
    /// Children whose results are waited for.
    pub children: Vec<String>,
    /// Names of the signals that are wanted; of all names if there are none here.
    pub names: Vec<String>,
    /// The time: a child past its deadline is over.
    pub now: Timestamp,
}

/// A signal that waits to be consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingSignal {
    /// Its number in the run.
    pub seq: i64,
    /// Its name.
    pub name: String,
    /// Its payload as JSON.
    pub payload: String,
}

/// What has arrived for a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// Signals of the wanted names that are not consumed yet, in order: at most so many as a load
    /// may have.
    pub signals: Vec<PendingSignal>,
    /// What the inbox counter says, read before the rest.
    pub inbox: i64,
    /// Children of those asked for that are over.
    pub over: Vec<RunRow>,
    /// Children of those asked for that are not there: retention has removed them.
    pub missing: Vec<String>,
}

/// Asks for a published value.
#[derive(Debug, Clone, PartialEq)]
pub struct GetValue {
    /// The workspace.
    pub workspace: String,
    /// The run.
    pub run_id: String,
    /// The key.
    pub key: String,
}

/// The value as JSON, if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundValue(pub Option<String>);

/// Asks for items of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadStream {
    /// The workspace.
    pub workspace: String,
    /// The run.
    pub run_id: String,
    /// The stream.
    pub stream: String,
    /// From this position on, counted from 0.
    pub from: i64,
    /// Most items.
    pub limit: usize,
}

/// Items of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPage {
    /// The items as JSON, in order.
    pub items: Vec<String>,
    /// Whether the stream was closed, or its run is over, and nothing follows these items.
    pub closed: bool,
}

/// Asks for the workers that reported since a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct ListWorkers {
    /// The workspace.
    pub workspace: String,
    /// Since when.
    pub since: Timestamp,
}

/// A worker's last report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRow {
    /// Its id.
    pub worker: String,
    /// Its application version.
    pub app_version: String,
    /// The workflows that it has.
    pub workflows: Vec<String>,
    /// When it reported first.
    pub started_at: Timestamp,
    /// When it reported last.
    pub seen_at: Timestamp,
}

/// Workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers(pub Vec<WorkerRow>);
