//! Policy: an ordered chain of named stages that decides whether something may be done.
//!
//! Invariants: stages are asked in the order of the contract; the first denial ends the chain,
//! otherwise the most restrictive ruling holds (see [`judge`]); every stage that was asked leaves a
//! [`Decision`] with its rule, its reason and a digest of what it saw; an act whose classes are not
//! known is denied.
//! Deliberately absent: state. Rates and budgets are counted by the store in one operation, whose
//! answer becomes a decision like any other.

mod act;
mod asks;
mod class;
mod grant;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use act::{Act, Doing};
pub use asks::{Asks, in_both};
pub use class::{ApprovalClass, Classes, Reversibility, Sensitivity};
pub use grant::{Grants, covers};

use crate::caught::{self, Code};
use crate::error::{Error, ErrorClass, Result};

/// A stage of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The principal holds what the act needs.
    Permission,
    /// The connector is meant for this operation.
    ConnectorScope,
    /// Not more than so many in a time, over all workers.
    RateLimit,
    /// Not more attempts or money than planned.
    Cost,
    /// What kind of data it touches.
    DataSafety,
    /// Whether data leaves for others.
    ExternalSharing,
    /// Whether it can be undone.
    DestructiveAction,
    /// Whether somebody agreed to be remembered.
    MemoryConsent,
    /// What an agent may do by itself.
    AgentRisk,
    /// Who has to say yes first.
    ApprovalRequirement,
}

impl Stage {
    /// Every stage.
    pub const ALL: [Stage; 10] = [
        Self::Permission,
        Self::ConnectorScope,
        Self::RateLimit,
        Self::Cost,
        Self::DataSafety,
        Self::ExternalSharing,
        Self::DestructiveAction,
        Self::MemoryConsent,
        Self::AgentRisk,
        Self::ApprovalRequirement,
    ];

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Permission => "permission",
            Self::ConnectorScope => "connector_scope",
            Self::RateLimit => "rate_limit",
            Self::Cost => "cost",
            Self::DataSafety => "data_safety",
            Self::ExternalSharing => "external_sharing",
            Self::DestructiveAction => "destructive_action",
            Self::MemoryConsent => "memory_consent",
            Self::AgentRisk => "agent_risk",
            Self::ApprovalRequirement => "approval_requirement",
        }
    }

    /// Reads the spelling; an unknown one is `None`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == text)
    }
}

/// What a stage says, from the least to the most restrictive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// Go on.
    Allow,
    /// Go on, while the caller waits.
    RouteSync,
    /// Go on, by a queue.
    RouteAsync,
    /// Go on without the marked fields.
    Redact,
    /// Somebody has to add to the payload.
    RequireMoreInput,
    /// Somebody has to say yes.
    RequireApproval,
    /// More people than usual have to say yes.
    Escalate,
    /// No.
    Deny,
}

impl Ruling {
    /// Every ruling.
    pub const ALL: [Ruling; 8] = [
        Self::Allow,
        Self::RouteSync,
        Self::RouteAsync,
        Self::Redact,
        Self::RequireMoreInput,
        Self::RequireApproval,
        Self::Escalate,
        Self::Deny,
    ];

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::RouteSync => "route_sync",
            Self::RouteAsync => "route_async",
            Self::Redact => "redact",
            Self::RequireMoreInput => "require_more_input",
            Self::Escalate => "escalate",
            Self::RequireApproval => "require_approval",
            Self::Deny => "deny",
        }
    }

    /// Whether people have to say yes first.
    pub fn needs_approval(self) -> bool {
        matches!(self, Self::Escalate | Self::RequireApproval)
    }
}

/// What one stage makes of an act.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What it says.
    pub ruling: Ruling,
    /// By which rule.
    pub rule: String,
    /// Why, for people.
    pub reason: String,
    /// How many different people have to say yes, where any do.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub approvers: u32,
    /// The payload's fields to leave out, where the ruling is to redact.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// Who may say yes, where anybody has to; anybody if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub among: Vec<String>,
    /// How long they have, where it is not the usual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// After how long more people are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate_after_ms: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Finding {
    /// A finding.
    pub fn new(ruling: Ruling, rule: &str, reason: impl Into<String>) -> Self {
        let approvers = u32::from(ruling.needs_approval());
        Self {
            ruling,
            rule: rule.to_owned(),
            reason: reason.into(),
            approvers,
            fields: Vec::new(),
            among: Vec::new(),
            ttl_ms: None,
            escalate_after_ms: None,
        }
    }

    /// Go on.
    pub fn allow(rule: &str, reason: impl Into<String>) -> Self {
        Self::new(Ruling::Allow, rule, reason)
    }

    /// No.
    pub fn deny(rule: &str, reason: impl Into<String>) -> Self {
        Self::new(Ruling::Deny, rule, reason)
    }

    /// So many different people have to say yes.
    pub fn approval(rule: &str, approvers: u32, reason: impl Into<String>) -> Self {
        let ruling = if approvers > 1 { Ruling::Escalate } else { Ruling::RequireApproval };
        Self { approvers: approvers.max(1), ..Self::new(ruling, rule, reason) }
    }

    /// Go on without these fields of the payload.
    pub fn redact(
        rule: &str,
        fields: impl IntoIterator<Item = String>,
        reason: impl Into<String>,
    ) -> Self {
        let fields = fields.into_iter().collect();
        Self { fields, ..Self::new(Ruling::Redact, rule, reason) }
    }
}

/// What one stage decided, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Which stage.
    pub stage: Stage,
    /// What it found.
    #[serde(flatten)]
    pub finding: Finding,
    /// The digest of what it saw: the same act gives the same digest.
    pub inputs: String,
}

/// One stage's rules. Pure: what it needs to know is in the act.
pub trait Policy: Send + Sync + 'static {
    /// The stage it speaks for.
    fn stage(&self) -> Stage;
    /// What it makes of an act.
    fn decide(&self, act: &Act) -> Finding;
    /// The payload's fields that it may have left out. A contract whose key, or whose needs, are
    /// made of such a field is refused at the start; of one that is not named here, the command is.
    fn redacts(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A policy made of a function.
pub struct PolicyFn<F>(pub Stage, pub F);

impl<F: Fn(&Act) -> Finding + Send + Sync + 'static> Policy for PolicyFn<F> {
    fn stage(&self) -> Stage {
        self.0
    }
    fn decide(&self, act: &Act) -> Finding {
        (self.1)(act)
    }
}

/// A policy, and the payload's fields that it may have left out.
pub struct Redacting<P>(pub P, pub Vec<String>);

impl<P: Policy> Policy for Redacting<P> {
    fn stage(&self) -> Stage {
        self.0.stage()
    }
    fn decide(&self, act: &Act) -> Finding {
        self.0.decide(act)
    }
    fn redacts(&self) -> Vec<String> {
        self.1.clone()
    }
}

/// The policies of a process, by stage. A stage without one of its own decides by the classes of
/// the act.
#[derive(Clone, Default)]
pub struct Policies {
    stages: BTreeMap<Stage, Arc<dyn Policy>>,
}

impl Policies {
    /// Takes a stage's rules; a second one for the same stage replaces the first.
    pub fn set(&mut self, policy: Arc<dyn Policy>) {
        self.stages.insert(policy.stage(), policy);
    }

    /// What a stage makes of an act; an error if its policy panics.
    pub fn find(&self, stage: Stage, act: &Act) -> Result<Finding> {
        match self.stages.get(&stage) {
            Some(policy) => caught::call(code(stage), || policy.decide(act)),
            None => Ok(class::standard(stage, act)),
        }
    }

    /// The payload's fields that a stage may have left out, as far as it says so.
    pub fn redacts(&self, stage: Stage) -> Result<Vec<String>> {
        let redacts = self.stages.get(&stage).map(|p| caught::call(code(stage), || p.redacts()));
        redacts.unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Asks the stages in their order; ends with the first that denies. Without an answer of each
    /// there is no judgement.
    pub fn judge(&self, chain: &[Stage], act: &Act) -> Result<Judgement> {
        let digest = act.digest();
        let mut decisions = Vec::with_capacity(chain.len());
        for stage in chain {
            let finding = self.find(*stage, act)?;
            let denied = finding.ruling == Ruling::Deny;
            decisions.push(Decision { stage: *stage, finding, inputs: digest.clone() });
            if denied {
                break;
            }
        }
        Ok(Judgement { decisions })
    }
}

fn code(stage: Stage) -> Code<'static> {
    Code("policy", stage.as_str())
}

/// What a chain decided.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Every stage that was asked, in order.
    pub decisions: Vec<Decision>,
}

impl Judgement {
    /// The ruling that holds: the most restrictive one.
    pub fn ruling(&self) -> Ruling {
        self.decisions.iter().map(|d| d.finding.ruling).max().unwrap_or(Ruling::Allow)
    }

    /// The decision that decided.
    pub fn decisive(&self) -> Option<&Decision> {
        let ruling = self.ruling();
        self.decisions.iter().find(|d| d.finding.ruling == ruling)
    }

    /// How many different people have to say yes.
    pub fn approvers(&self) -> u32 {
        let needed = self.decisions.iter().filter(|d| d.finding.ruling.needs_approval());
        needed.map(|d| d.finding.approvers.max(1)).max().unwrap_or(0)
    }

    /// The payload's fields that have to be left out.
    pub fn redacted(&self) -> Vec<String> {
        self.decisions.iter().flat_map(|d| d.finding.fields.clone()).collect()
    }

    /// The denial, as the error of what was denied.
    pub fn denial(&self) -> Option<Error> {
        let denied = self.decisions.iter().find(|d| d.finding.ruling == Ruling::Deny)?;
        let class = match denied.stage {
            Stage::Permission => ErrorClass::PermissionDenied,
            Stage::RateLimit => ErrorClass::RateLimited,
            _ => ErrorClass::PolicyDenied,
        };
        let text = format!(
            "denied by {} (rule {}): {}",
            denied.stage.as_str(),
            denied.finding.rule,
            denied.finding.reason
        );
        Some(Error::new(class, "SF-0801", text))
    }

    /// As the payload of its audit event.
    pub fn to_json(&self) -> Value {
        serde_json::json!({
            "ruling": self.ruling().as_str(),
            "decisions": self.decisions,
        })
    }
}

#[cfg(test)]
mod tests;
