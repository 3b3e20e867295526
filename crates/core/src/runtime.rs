//! What every runtime offers, so that commands can be carried out elsewhere without noticing.
//!
//! Invariants: a start without a key is refused; the same key is the same workflow, which runs
//! once.
//! Deliberately absent: commands, policies and events. They are ours, wherever the work is done.

use futures::future::BoxFuture;

use crate::command::Capability;
use crate::driver::Outcome;
use crate::error::{Error, Result};
use crate::run::RunStatus;

/// A workflow to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartWorkflow {
    /// The workflow's name.
    pub workflow_name: String,
    /// The input as JSON.
    pub input: String,
    /// What makes two starts the same; it is the workflow's id too.
    pub idempotency_key: String,
    /// What the caller calls the whole affair.
    pub correlation_id: String,
    /// The trace, if there is one already.
    pub trace_id: Option<String>,
}

impl StartWorkflow {
    /// Refuses a start that could not be recognised when it is repeated.
    pub fn check(&self) -> Result<()> {
        if self.idempotency_key.is_empty() {
            let text = "a workflow is not started without an idempotency key";
            return Err(Error::invalid("SF-0512", text));
        }
        Ok(())
    }
}

/// A started workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowHandle {
    /// Its id.
    pub workflow_id: String,
    /// Whether an earlier start had made it.
    pub already_existed: bool,
}

/// Where a workflow stands.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowState {
    /// Its id.
    pub workflow_id: String,
    /// The workflow's name.
    pub name: String,
    /// Its status.
    pub status: RunStatus,
    /// Its value or error, once it is over.
    pub outcome: Option<Outcome>,
    /// What the caller calls the whole affair.
    pub correlation_id: String,
    /// The trace.
    pub trace_id: String,
}

/// A place where workflows run.
pub trait ExecutionRuntime: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn capabilities(&self) -> &'static [Capability];

    /// Starts a workflow, or finds the one with its key.
    fn start(&self, request: StartWorkflow) -> BoxFuture<'_, Result<WorkflowHandle>>;

    /// Sends a workflow a message.
    fn signal<'a>(
        &'a self,
        workflow_id: &'a str,
        name: &'a str,
        payload: String,
    ) -> BoxFuture<'a, Result<()>>;

    /// Stops a workflow before its next step.
    fn cancel<'a>(&'a self, workflow_id: &'a str, reason: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Where a workflow stands.
    fn get<'a>(&'a self, workflow_id: &'a str) -> BoxFuture<'a, Result<WorkflowState>>;
}
