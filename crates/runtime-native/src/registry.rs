//! The workflows a worker can run, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfast_core::connector::{Breaker, Connectors};
use steadfast_core::gate::Gate;
use steadfast_core::workflow::{AppState, Code, Workflow};
use steadfast_core::{Error, Result, limits};

/// Workflows by name, and the state they share.
#[derive(Default, Clone)]
pub struct Registry {
    workflows: BTreeMap<String, Registered>,
    /// The name under which a workflow was added last.
    latest: Option<String>,
    /// What `cx.state` gives.
    pub state: AppState,
    /// Who decides on what leaves, where anything is governed.
    pub gate: Option<Arc<dyn Gate>>,
    /// The ways out.
    pub connectors: Connectors,
}

#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) code: Code,
    pub(crate) max_attempts: u32,
    /// Whether replay ends the run at a call with another input than the recorded one.
    pub(crate) strict_replay: bool,
}

impl Registry {
    /// Adds a workflow under its function's name.
    pub fn add<W: Workflow<M>, M>(&mut self, workflow: W) -> Result<()> {
        let name = workflow.name()?;
        self.add_named(name, limits::RECOVERY_ATTEMPTS, workflow)
    }

    /// Adds a workflow under a name of its own, with its own number of recoveries.
    pub fn add_named<W: Workflow<M>, M>(
        &mut self,
        name: &str,
        max_attempts: u32,
        workflow: W,
    ) -> Result<()> {
        steadfast_core::key::check("workflow name", name)?;
        let registered = Registered { code: workflow.code(), max_attempts, strict_replay: false };
        if self.workflows.insert(name.to_owned(), registered).is_some() {
            return Err(Error::invalid(
                "SF-0108",
                format!("two workflows are called \"{name}\"; give one of them another name"),
            ));
        }
        self.latest = Some(name.to_owned());
        Ok(())
    }

    /// Replays the workflow that was added last strictly: a recorded call that its code makes with
    /// another input ends the run. Without a workflow it changes nothing.
    pub fn strict_replay(&mut self) {
        let latest = self.latest.as_ref().and_then(|name| self.workflows.get_mut(name));
        if let Some(registered) = latest {
            registered.strict_replay = true;
        }
    }

    pub(crate) fn breaker(&self, connector: &str) -> Option<Breaker> {
        self.connectors.get(connector)?.limits().breaker
    }

    /// The names of the workflows.
    pub(crate) fn names(&self) -> Vec<String> {
        self.workflows.keys().cloned().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Registered> {
        self.workflows.get(name)
    }
}
