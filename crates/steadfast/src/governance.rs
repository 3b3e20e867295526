//! What governs a process: who may do what, by which ways out, within which budgets.

use std::sync::Arc;

use futures::future::BoxFuture;
use steadfast_core::command::CommandType;
use steadfast_core::connector::{Connector, Connectors, Inbound, Operation, Outbound};
use steadfast_core::policy::{Grants, Policies, Policy};
use steadfast_core::{Error, ErrorClass, Result, limits};

use crate::budget::Budget;

/// Policies, grants, connectors and budgets of a process.
#[derive(Clone, Default)]
pub struct Governance {
    pub(crate) policies: Policies,
    pub(crate) grants: Grants,
    pub(crate) connectors: Connectors,
    pub(crate) budgets: Vec<Budget>,
}

impl Governance {
    /// Nothing is allowed that needs a grant, and there is no way out.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rules for a stage, instead of its standard ones.
    pub fn policy(mut self, policy: impl Policy) -> Self {
        self.policies.set(Arc::new(policy));
        self
    }

    /// Lets a principal do these things. A `*` at the end of either stands for whatever follows.
    pub fn grant<S: Into<String>>(
        mut self,
        principal: impl Into<String>,
        capabilities: impl IntoIterator<Item = S>,
    ) -> Self {
        self.grants.allow(principal, capabilities);
        self
    }

    /// A budget. Of two that count the same, the lower caps hold.
    pub fn budget(mut self, budget: Budget) -> Self {
        budget.join(&mut self.budgets);
        self
    }

    /// A connector's scope without the connector, to try policies out: nothing can be sent by it.
    pub fn scope(
        mut self,
        connector: impl Into<String>,
        operations: impl IntoIterator<Item = Operation>,
    ) -> Result<Self> {
        let (name, operations) = (connector.into(), operations.into_iter().collect());
        self.connectors.add(Arc::new(ScopeAlone { name, operations }))?;
        Ok(self)
    }

    /// Refuses what could never hold: limits that let nothing through, budgets of connectors that
    /// are not there, and calls that no connector's scope has.
    pub(crate) fn check<'a>(
        &self,
        contracts: impl IntoIterator<Item = &'a CommandType>,
    ) -> Result<()> {
        for connector in self.connectors.all() {
            connector.limits().check(connector.name())?;
            let dear = |operation: &&Operation| operation.cost_units > Some(limits::COST_UNITS);
            if let Some(operation) = connector.scope().iter().find(dear) {
                let (name, of) = (&operation.name, connector.name());
                let text = format!("\"{name}\" of \"{of}\" costs more than anything may");
                return Err(Error::invalid("SF-0805", text));
            }
        }
        self.budgets.iter().try_for_each(|budget| budget.check(&self.connectors))?;
        for contract in contracts {
            for stage in contract.chain() {
                let fields = self.policies.redacts(stage)?;
                fields.iter().try_for_each(|field| contract.check_redacted(field))?;
            }
            for call in &contract.calls {
                let (connector, operation) = call.split_once(' ').unwrap_or((call, ""));
                if self.connectors.operation(connector, operation).is_none() {
                    let text = format!(
                        "command type \"{}\": calls: no connector's scope has \"{call}\"",
                        contract.name
                    );
                    return Err(Error::invalid("SF-0806", text));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn connector(&mut self, connector: Arc<dyn Connector>) -> Result<()> {
        self.connectors.add(connector)
    }
}

/// What a connector is meant for, known here without the way out.
struct ScopeAlone {
    name: String,
    operations: Vec<Operation>,
}

impl Connector for ScopeAlone {
    fn name(&self) -> &str {
        &self.name
    }

    fn scope(&self) -> &[Operation] {
        &self.operations
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        let text = format!(
            "of connector \"{}\" only the scope is known here; \"{}\" was not sent",
            self.name, request.operation
        );
        Box::pin(std::future::ready(Err(Error::invalid("SF-0805", text))))
    }
}

/// A process without policies does not decide on what has some.
pub(crate) fn undecided(command_type: &str) -> Error {
    let text = format!(
        "command type \"{command_type}\" is governed by policies, which this process does not \
         have; submit it through one that does"
    );
    Error::new(ErrorClass::PolicyDenied, "SF-0808", text)
}
