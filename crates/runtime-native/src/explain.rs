//! Why a run is where it is: the rule that holds it, who holds what it needs, and until when.

use std::fmt;
use std::time::Duration;

use steadfast_core::{Result, RunStatus, Timestamp};
use steadfast_store::StoreExt;
use steadfast_store::op::{self, Holder};

use crate::client::Client;

/// The rule that decides what happens next to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// It is over.
    Over,
    /// It is being executed.
    Executing,
    /// Its worker no longer reports; any worker takes it over when the lease runs out.
    LeaseExpired,
    /// It waits for something durable.
    Waiting,
    /// Its start was delayed.
    Delayed,
    /// Its queue is paused.
    QueuePaused,
    /// Its queue has no free slot.
    QueueFull,
    /// Its queue started as many as it may in this period.
    RateLimited,
    /// It is pinned to a version that no worker has.
    NoWorkerOfVersion,
    /// No worker has its workflow.
    NoWorkerOfWorkflow,
    /// No worker reports at all.
    NoWorker,
    /// It is its turn at the next poll.
    NextPoll,
}

impl Rule {
    /// The rule's one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Rule::Over => "over",
            Rule::Executing => "executing",
            Rule::LeaseExpired => "lease_expired",
            Rule::Waiting => "waiting",
            Rule::Delayed => "delayed",
            Rule::QueuePaused => "queue_paused",
            Rule::QueueFull => "queue_full",
            Rule::RateLimited => "rate_limited",
            Rule::NoWorkerOfVersion => "no_worker_of_version",
            Rule::NoWorkerOfWorkflow => "no_worker_of_workflow",
            Rule::NoWorker => "no_worker",
            Rule::NextPoll => "next_poll",
        }
    }
}

/// What a run waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The run.
    pub run_id: String,
    /// Its status.
    pub status: RunStatus,
    /// The rule that holds it.
    pub rule: Rule,
    /// The same in a sentence.
    pub detail: String,
    /// Who holds what it needs.
    pub holders: Vec<Holder>,
    /// Until when, if that is known.
    pub until: Option<Timestamp>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}: {}", self.run_id, self.status, self.detail)?;
        if let Some(until) = self.until {
            write!(f, " (until {until})")?;
        }
        for holder in &self.holders {
            let worker = if holder.worker.is_empty() { "suspended" } else { &holder.worker };
            write!(f, "\n  held by {}", holder.run_id)?;
            if holder.step >= 0 {
                write!(f, " step {}", holder.step)?;
            }
            write!(f, " on {worker}")?;
            if holder.until != Timestamp::NEVER {
                write!(f, " until {}", holder.until)?;
            }
        }
        Ok(())
    }
}

/// A worker that has not reported for this long is not counted on.
const ALIVE: Duration = Duration::from_secs(60);

impl Client {
    /// Explains what a run waits for.
    pub async fn explain(&self, run_id: &str) -> Result<Explanation> {
        let run = self.get(run_id).await?;
        let now = self.hub.now();
        let (rule, detail, until) = match run.status {
            RunStatus::Enqueued => return self.explain_enqueued(run, now).await,
            RunStatus::Pending if run.wake_at <= now => match self.nobody_for(&run, now).await? {
                Some((rule, text)) => (rule, text, None),
                None if run.parked => {
                    (Rule::NextPoll, format!("{}; it is due", waits(&run.waits)), None)
                }
                None => {
                    let by = &run.worker;
                    let text = format!("its worker {by} is gone; any worker may take it over");
                    (Rule::LeaseExpired, text, None)
                }
            },
            RunStatus::Pending if run.parked => {
                let until = Some(run.wake_at).filter(|at| *at != Timestamp::NEVER);
                (Rule::Waiting, waits(&run.waits), until)
            }
            RunStatus::Pending => {
                (Rule::Executing, format!("executed by {}", run.worker), Some(run.wake_at))
            }
            RunStatus::Success => (Rule::Over, "it succeeded".to_owned(), None),
            RunStatus::Error | RunStatus::RetriesExceeded | RunStatus::Cancelled => {
                let why = run.error.as_ref().map(ToString::to_string).unwrap_or_default();
                (Rule::Over, why, None)
            }
        };
        let (run_id, status) = (run.run_id, run.status);
        Ok(Explanation { run_id, status, rule, detail, holders: Vec::new(), until })
    }

    /// The rule that holds a run which is due and which no worker that reports can take: none has
    /// its version, or none its workflow.
    async fn nobody_for(&self, run: &op::RunRow, now: Timestamp) -> Result<Option<(Rule, String)>> {
        let workspace = self.hub.workspace.clone();
        let alive = op::ListWorkers { workspace, since: now.before(ALIVE) };
        let mut workers = self.hub.store.ask(alive).await?.0;
        if workers.is_empty() {
            let text = "no worker has reported in the last minute".to_owned();
            return Ok(Some((Rule::NoWorker, text)));
        }
        let (version, workflow) = (&run.app_version, &run.workflow);
        workers.retain(|worker| version.is_empty() || worker.app_version == *version);
        if workers.is_empty() {
            let text = format!("no worker of version {version} reports");
            return Ok(Some((Rule::NoWorkerOfVersion, text)));
        }
        if workers.iter().any(|worker| worker.workflows.contains(workflow)) {
            return Ok(None);
        }
        let of = if version.is_empty() { String::new() } else { format!(" of version {version}") };
        let text = format!("no worker{of} that reports has workflow \"{workflow}\"");
        Ok(Some((Rule::NoWorkerOfWorkflow, text)))
    }

    async fn explain_enqueued(&self, run: op::RunRow, now: Timestamp) -> Result<Explanation> {
        let inspect = op::InspectQueue {
            workspace: self.hub.workspace.clone(),
            queue: run.queue.clone(),
            partition: run.partition.clone(),
            now,
        };
        let report = self.hub.store.ask(inspect).await?;
        let queue = report.queue.unwrap_or_default();
        let mut holders = Vec::new();
        let (rule, detail, until) = if run.ready_at > now {
            (Rule::Delayed, "its start is delayed".to_owned(), Some(run.ready_at))
        } else if queue.paused {
            (Rule::QueuePaused, format!("queue {} is paused", run.queue), None)
        } else if queue.concurrency.is_some_and(|limit| report.held >= limit) {
            holders = report.holders;
            let until = holders.iter().map(|h| h.until).min().filter(|at| *at != Timestamp::NEVER);
            let text = format!("queue {} is full with {} runs", run.queue, report.held);
            (Rule::QueueFull, text, until)
        } else if queue.rate.is_some_and(|(limit, _)| report.started >= limit) {
            let text = format!("queue {} has started {} in its period", run.queue, report.started);
            (Rule::RateLimited, text, report.eases_at)
        } else if let Some((rule, text)) = self.nobody_for(&run, now).await? {
            (rule, text, None)
        } else {
            let text = format!("{} wait on queue {}; a worker polls it", report.waiting, run.queue);
            (Rule::NextPoll, text, None)
        };
        let (run_id, status) = (run.run_id, run.status);
        Ok(Explanation { run_id, status, rule, detail, holders, until })
    }
}

/// The waits of a suspended run, in words.
fn waits(text: &str) -> String {
    let waits: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
    let word = |wait: &serde_json::Value| {
        let field = |name: &str| wait[name].as_str().unwrap_or_default().to_owned();
        match field("for").as_str() {
            "signal" => format!("a signal \"{}\"", field("name")),
            "child" => format!("its child {}", field("run_id")),
            "answer" => match field("name").split_once(':') {
                Some(("effect", id)) => {
                    format!("somebody to say what became of effect {id} (effect resolve)")
                }
                Some(("approval", id)) => format!("people to decide approval {id}"),
                _ => format!("an answer \"{}\"", field("name")),
            },
            "retry" => format!("the next attempt of step \"{}\"", field("name")),
            _ => "a moment".to_owned(),
        }
    };
    let words: Vec<String> = waits.iter().map(word).collect();
    if words.is_empty() {
        "it was given back".to_owned()
    } else {
        format!("waits for {}", words.join(", "))
    }
}
