//! Activities: a trigger that starts tasks, and a record of every execution.
//!
//! Invariants: an execution's id follows from its run, and a task's id from its execution, so that
//! replay and redelivery name the same things; what is noted twice is noted once.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use steadfast_core::schedule::{Schedule as Cron, parse_moment};
use steadfast_core::trigger::{EventMatch, When};
use steadfast_core::{CommandStatus, Cx, Error, Result, Timestamp, key};
use steadfast_store::op::{ActivityRow, ListActivities, LogActivity, TaskRow};
use steadfast_store::{OpenStore, StoreExt};

use crate::client::Client;
use crate::contract::{Contract, Contracts, Registered};

/// The command type of every activity.
pub(crate) const COMMAND: &str = "run_activity";

/// A task that an activity starts: a run of a workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskTemplate {
    /// What kind of task it is: part of its id.
    pub task_type: String,
    /// The workflow that does it.
    pub workflow: String,
    /// The workflow's input; may have holes, like the payload of a trigger.
    pub params: Value,
}

/// A versioned definition that binds a trigger to the tasks it starts.
#[derive(Debug, Clone)]
#[must_use = "an activity does nothing until a fabric has it"]
pub struct Activity {
    id: String,
    version: i64,
    enabled: bool,
    when: When,
    context: Value,
    tasks: Vec<TaskTemplate>,
}

impl Activity {
    /// An activity on a schedule, given as its data.
    pub fn scheduled(id: impl Into<String>, schedule: Cron) -> Self {
        Self::new(id.into(), When::Cron(schedule))
    }

    /// An activity for events.
    pub fn on_event(id: impl Into<String>, event: EventMatch) -> Self {
        Self::new(id.into(), When::Event(event))
    }

    fn new(id: String, when: When) -> Self {
        Self { id, version: 1, enabled: true, when, context: json!({}), tasks: Vec::new() }
    }

    /// The definition's version.
    pub fn version(mut self, version: i64) -> Self {
        self.version = version;
        self
    }

    /// Whether it fires at all.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// What is kept with each execution; may have holes.
    pub fn context(mut self, context: Value) -> Self {
        self.context = context;
        self
    }

    /// A task that it starts: its kind, the workflow that does it, and that workflow's input.
    pub fn task(
        mut self,
        kind: impl Into<String>,
        workflow: impl Into<String>,
        params: Value,
    ) -> Self {
        let (task_type, workflow) = (kind.into(), workflow.into());
        self.tasks.push(TaskTemplate { task_type, workflow, params });
        self
    }

    pub(crate) fn define(self, contracts: &Contracts) -> Result<steadfast_core::trigger::Trigger> {
        if let Some(task) = self.tasks.iter().find(|t| t.task_type.contains(':')) {
            let text =
                format!("activity \"{}\": task_type \"{}\" has a colon", self.id, task.task_type);
            return Err(Error::invalid("SF-0603", text));
        }
        let key = match &self.when {
            When::Cron(_) => "{scheduled_for}",
            When::Event(_) => "{event.event_id}",
        };
        let payload = json!({
            "activity_id": self.id,
            "definition_version": self.version,
            "trigger_type": self.when.kind(),
            "trigger_key": key,
            "context": self.context,
            "tasks": self.tasks,
        });
        let command = contracts.get(COMMAND)?.command.clone();
        let trigger = steadfast_core::trigger::Trigger {
            trigger_id: self.id,
            enabled: self.enabled,
            when: self.when,
            command,
            payload,
        };
        trigger.check()?;
        crate::flow::router::check_filter(&trigger)?;
        Ok(trigger)
    }
}

/// What an execution is given.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Execution {
    activity_id: String,
    definition_version: i64,
    trigger_type: String,
    trigger_key: String,
    context: Value,
    tasks: Vec<TaskTemplate>,
}

/// Where executions are noted.
pub(crate) struct Log(pub(crate) OpenStore);

/// Carries out one execution: starts the tasks, then notes what was done. One that cannot start
/// all of them is noted as well, with those that it did start.
pub(crate) async fn run_activity(cx: Cx, execution: Execution) -> Result<Value> {
    let (run_id, begun) = (execution_id(cx.run_id()), cx.now());
    let (mut counts, mut tasks) = (BTreeMap::<&str, i64>::new(), Vec::new());
    let mut failed = None;
    for task in &execution.tasks {
        let next = counts.entry(&task.task_type).or_default();
        let idx = *next;
        *next += 1;
        let place = format!(":{}:{idx}", task.task_type);
        let id = key::derived(&format!("task-{run_id}"), &place);
        let started = cx.spawn_named::<Value>(&task.workflow, &task.params).id(id.clone()).await;
        if let Err(error) = started {
            failed = Some(error);
            break;
        }
        let (task_type, params) = (task.task_type.clone(), task.params.to_string());
        let (run_id, created_at) = (run_id.clone(), cx.now());
        tasks.push(TaskRow { id, run_id, task_type, idx, params, status: None, created_at });
    }
    let ids: Vec<_> = tasks.iter().map(|task| task.id.clone()).collect();
    let done = json!({ "run_id": run_id, "tasks": ids });
    let run = noted(&cx, execution, run_id, tasks.len(), failed.clone(), begun)?;
    cx.step("log_run", {
        let cx = cx.clone();
        move || note(cx.clone(), run.clone(), tasks.clone())
    })
    .await?;
    match failed {
        Some(error) => Err(error),
        None => Ok(done),
    }
}

/// The record of an execution.
fn noted(
    cx: &Cx,
    execution: Execution,
    run_id: String,
    tasks: usize,
    error: Option<Error>,
    started_at: Timestamp,
) -> Result<ActivityRow> {
    let context = cx.context();
    let window = context
        .window
        .as_ref()
        .map(|(first, last)| Ok::<_, Error>((parse_moment(first)?, parse_moment(last)?)));
    let ended = if error.is_some() { CommandStatus::Failed } else { CommandStatus::Succeeded };
    Ok(ActivityRow {
        run_id,
        activity_id: execution.activity_id,
        definition_version: execution.definition_version,
        workflow_id: cx.run_id().to_owned(),
        trigger_type: execution.trigger_type,
        trigger_key: execution.trigger_key,
        context_snapshot: execution.context.to_string(),
        tasks_spawned: i64::try_from(tasks).unwrap_or(i64::MAX),
        scheduled_for: context.scheduled_for.as_deref().map(parse_moment).transpose()?,
        fired_at: started_at,
        window: window.transpose()?,
        status: ended,
        error,
        started_at,
        finished_at: cx.now(),
    })
}

async fn note(cx: Cx, run: ActivityRow, tasks: Vec<TaskRow>) -> Result<u64> {
    let workspace = cx.workspace().to_owned();
    Ok(cx.state::<Log>()?.0.ask(LogActivity { workspace, run, tasks }).await?.0)
}

/// A UUID (version 8) that follows from the run's id.
fn execution_id(run_id: &str) -> String {
    let digest = Sha256::digest(run_id.as_bytes());
    let mut hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    hex.replace_range(12..13, "8");
    hex.replace_range(16..17, "8");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
    parts.join("-")
}

/// The contract of activities.
pub(crate) fn contract() -> Result<Registered> {
    Contract::new().of(&run_activity)
}

impl Client {
    /// The executions of an activity with their tasks, oldest first.
    pub async fn activity_runs(
        &self,
        activity_id: &str,
        most: usize,
    ) -> Result<Vec<(ActivityRow, Vec<TaskRow>)>> {
        let workspace = self.inner.workspace().to_owned();
        let activity_id = activity_id.to_owned();
        Ok(self.inner.ask(ListActivities { workspace, activity_id, limit: most }).await?.0)
    }
}
