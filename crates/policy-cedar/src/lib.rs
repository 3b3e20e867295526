//! Stages of the policy chain written in Cedar.
//!
//! A stage is a text of policies over the built-in [`SCHEMA`]: a principal with its grants asks to
//! `admit` a command type, or to perform an `effect` or a `call`.
//!
//! ```
//! use steadfast_core::policy::{Act, Policy, Ruling, Stage};
//! use steadfast_policy_cedar::CedarStage;
//!
//! let stage = CedarStage::load(
//!     Stage::Permission,
//!     r#"
//!     @rule("has_what_it_needs")
//!     permit (principal, action, resource) when { context.granted };
//!
//!     @rule("large_refunds_are_asked_for")
//!     @obligation("approval")
//!     @approvers("2")
//!     permit (principal, action == Action::"admit", resource == CommandType::"refund")
//!     when { context.granted && context.payload has amount && context.payload.amount > 1000 };
//!
//!     @rule("agents_read_only")
//!     forbid (principal, action == Action::"effect", resource) when { context.agent };
//!     "#,
//!     Some("type Payload = { amount?: Long };"),
//! )?;
//! let refund = |amount| {
//!     let act = Act::admit("user:42", "refund", serde_json::json!({ "amount": amount }));
//!     stage.decide(&act)
//! };
//! assert_eq!(refund(10).ruling, Ruling::Allow);
//! assert_eq!((refund(5000).ruling, refund(5000).approvers), (Ruling::Escalate, 2));
//! # Ok::<_, steadfast_core::Error>(())
//! ```
//!
//! - `@rule("…")` (or `@id("…")`) names a policy in decisions; `@reason("…")` says why.
//! - `@obligation("approval")` on a `permit` means that somebody has to say yes first, and
//!   `@approvers("2")` how many. `@among("lead:*, boss:1")` says who, `@ttl("4h")` how long they
//!   have and `@escalate_after("30m")` when more are told. Where several policies permit, the most
//!   demanding one holds, and only those are asked whom all of them name.
//! - The fields of a payload are known to policies when the second text declares them, as
//!   `type Payload = { … };`. Scalars only: what is no scalar cannot be compared with anything.
//!
//! Invariants: policies are validated strictly before the first act is seen; what no policy permits
//! is denied, a `forbid` wins, and an error in any policy denies, since it may have been the one
//! that forbids; an effect without classes is denied by the stages that go by them.
//! Deliberately absent: state and time. What a policy sees is the act.

mod load;
mod request;

use cedar_policy::{Authorizer, Decision, PolicyId, PolicySet, Response};
use steadfast_core::approval::TTL;
use steadfast_core::error::Result;
use steadfast_core::policy::{Act, Doing, Finding, Policy, Stage, in_both};

pub use load::SCHEMA;

/// A stage whose rules are policies in Cedar.
pub struct CedarStage {
    stage: Stage,
    policies: PolicySet,
    authorizer: Authorizer,
}

impl std::fmt::Debug for CedarStage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let policies = self.policies.policies().count();
        f.debug_struct("CedarStage")
            .field("stage", &self.stage)
            .field("policies", &policies)
            .finish_non_exhaustive()
    }
}

impl CedarStage {
    /// Reads policies for a stage and validates them against [`SCHEMA`], together with a schema of
    /// one's own that declares `type Payload`. Without it, policies do not see the payload.
    pub fn load(stage: Stage, policies: &str, schema: Option<&str>) -> Result<Self> {
        let policies = load::policies(policies, schema)?;
        Ok(Self { stage, policies, authorizer: Authorizer::new() })
    }

    fn find(&self, response: &Response) -> Finding {
        // A policy that could not be evaluated may have been the one that forbids.
        if let Some(error) = response.diagnostics().errors().next() {
            return Finding::deny("evaluation_error", error.to_string());
        }
        let mut by: Vec<&PolicyId> = response.diagnostics().reason().collect();
        by.sort();
        match response.decision() {
            Decision::Deny if by.is_empty() => Finding::deny("no_permit", "no policy permits it"),
            Decision::Deny => Finding::deny(&self.names(&by), self.reason("forbidden by", &by)),
            Decision::Allow => self.permit(&by),
        }
    }

    /// The most demanding of the policies that permit.
    fn permit(&self, by: &[&PolicyId]) -> Finding {
        let asked = by.iter().map(|id| (load::approvers(&self.policies, id), *id));
        let asked: Vec<(u32, &PolicyId)> = asked.collect();
        let most = asked.iter().map(|(approvers, _)| *approvers).max().unwrap_or(0);
        let by: Vec<&PolicyId> =
            asked.iter().filter(|(approvers, _)| *approvers == most).map(|(_, id)| *id).collect();
        match most {
            0 => Finding::allow(&self.names(&by), self.reason("permitted by", &by)),
            _ => {
                let asking = asked.iter().filter(|(approvers, _)| *approvers > 0);
                let asking: Vec<&PolicyId> = asking.map(|(_, id)| *id).collect();
                let reason = self.reason("asked for by", &by);
                self.asked_by(&asking, Finding::approval(&self.names(&by), most, reason))
            }
        }
    }

    /// Every policy that wants people asked says whom and for how long; all of it holds.
    fn asked_by(&self, asking: &[&PolicyId], mut all: Finding) -> Finding {
        for id in asking {
            let own = load::ask(&self.policies, id, Finding::approval("", 1, ""));
            let Some(among) = in_both(&all.among, &own.among) else {
                let text = format!("nobody is among all those whom {} want", self.names(asking));
                return Finding::deny("nobody_may", text);
            };
            all.among = among;
            // One that says nothing of it means the usual time, not any.
            let usual = u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX);
            all.ttl_ms = shorter(all.ttl_ms, Some(own.ttl_ms.unwrap_or(usual)));
            all.escalate_after_ms = shorter(all.escalate_after_ms, own.escalate_after_ms);
        }
        let ttl = all.ttl_ms.unwrap_or(u64::MAX);
        // The time may be up before more people would be told.
        all.escalate_after_ms = all.escalate_after_ms.filter(|after| *after < ttl);
        all
    }

    fn names(&self, by: &[&PolicyId]) -> String {
        by.iter().map(|id| load::name(&self.policies, id)).collect::<Vec<_>>().join(", ")
    }

    fn reason(&self, how: &str, by: &[&PolicyId]) -> String {
        let said = by.iter().find_map(|id| self.policies.annotation(id, "reason"));
        match said {
            Some(reason) => reason.to_owned(),
            None => format!("{how} {}", self.names(by)),
        }
    }
}

fn shorter(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Whether nobody said how serious it is, although this stage goes by it.
fn is_unclassified(stage: Stage, act: &Act) -> bool {
    let by_class = matches!(
        stage,
        Stage::DataSafety
            | Stage::ExternalSharing
            | Stage::DestructiveAction
            | Stage::ApprovalRequirement
    );
    let changes = match &act.doing {
        Doing::Admit => false,
        Doing::Effect { .. } => true,
        Doing::Call { mutates, .. } => *mutates,
    };
    by_class && changes && act.classes.is_none()
}

impl Policy for CedarStage {
    fn stage(&self) -> Stage {
        self.stage
    }

    fn decide(&self, act: &Act) -> Finding {
        if is_unclassified(self.stage, act) {
            return Finding::deny("unclassified", "nobody said how serious it is");
        }
        match request::of(act) {
            Ok((request, entities)) => {
                self.find(&self.authorizer.is_authorized(&request, &self.policies, &entities))
            }
            Err(error) => Finding::deny("not_expressible", error),
        }
    }
}

#[cfg(test)]
mod tests;
