//! The native runtime, as one runtime among others.

use futures::future::BoxFuture;
use steadfast_core::Result;
use steadfast_core::command::{Capability, Context};
use steadfast_core::runtime::{ExecutionRuntime, StartWorkflow, WorkflowHandle, WorkflowState};

use crate::client::{Client, RunEnd, StartSpec};

/// What the native runtime can do: all but undoing effects by itself, which is the fabric's.
pub const CAPABILITIES: &[Capability] = &[
    Capability::DurableWorkflows,
    Capability::DurableSteps,
    Capability::Queues,
    Capability::Schedules,
    Capability::Signals,
    Capability::Subworkflows,
    Capability::EffectInterception,
    Capability::WorkflowVersioning,
];

impl ExecutionRuntime for Client {
    fn name(&self) -> &'static str {
        "the native runtime"
    }

    fn capabilities(&self) -> &'static [Capability] {
        CAPABILITIES
    }

    fn start(&self, request: StartWorkflow) -> BoxFuture<'_, Result<WorkflowHandle>> {
        Box::pin(async move {
            request.check()?;
            let env = self.env();
            let trace = request.trace_id;
            let context = Context {
                trace_id: trace.unwrap_or_else(|| Context::new_trace([env.random(), env.random()])),
                correlation_id: request.correlation_id,
                ..Context::default()
            };
            let mut spec = StartSpec::new(&request.workflow_name, request.input);
            spec.run_id = Some(request.idempotency_key);
            spec.context = Some(context.to_text());
            let (workflow_id, new) = Client::start(self, spec).await?;
            Ok(WorkflowHandle { workflow_id, already_existed: !new })
        })
    }

    fn signal<'a>(
        &'a self,
        workflow_id: &'a str,
        name: &'a str,
        payload: String,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(Client::signal(self, workflow_id, name, payload, None))
    }

    fn cancel<'a>(&'a self, workflow_id: &'a str, reason: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(Client::cancel(self, workflow_id, reason))
    }

    fn get<'a>(&'a self, workflow_id: &'a str) -> BoxFuture<'a, Result<WorkflowState>> {
        Box::pin(async move {
            let run = Client::get(self, workflow_id).await?;
            let context = crate::context_of(&run);
            Ok(WorkflowState {
                workflow_id: run.run_id.clone(),
                name: run.workflow.clone(),
                status: run.status,
                outcome: RunEnd::of(&run).map(|end| end.outcome),
                correlation_id: context.correlation_id,
                trace_id: context.trace_id,
            })
        })
    }
}
