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
        let registered = Registered { code: workflow.code(), max_attempts };
        if self.workflows.insert(name.to_owned(), registered).is_some() {
            return Err(Error::invalid(
                "SF-0108",
                format!("two workflows are called \"{name}\"; give one of them another name"),
            ));
        }
        Ok(())
    }

    pub(crate) fn breaker(&self, connector: &str) -> Option<Breaker> {
        self.connectors.get(connector)?.limits().breaker
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Registered> {
        self.workflows.get(name)
    }
}
