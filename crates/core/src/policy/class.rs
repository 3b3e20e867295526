//! Classes: how serious an act is, and what each stage makes of that unless told otherwise.
//!
//! Invariants: an effect without all three classes is denied by every stage that goes by them, so
//! forgetting to classify never opens a door.

use serde::{Deserialize, Serialize};

use super::act::{Act, Doing};
use super::{Finding, Ruling, Stage};

/// Who has to say yes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ApprovalClass {
    /// Nobody.
    A0,
    /// One of the team.
    A1,
    /// Two: the department, and legal or finance.
    A2,
    /// Two executives.
    A3,
}

/// How well it can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reversibility {
    /// By itself.
    R0,
    /// By a compensation.
    R1,
    /// With effort, or within a time.
    R2,
    /// Not at all.
    R3,
}

/// What its data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Sensitivity {
    /// Public.
    S0,
    /// Internal.
    S1,
    /// Confidential.
    S2,
    /// Regulated or personal.
    S3,
}

/// The three classes of an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    /// Who has to say yes.
    pub approval: ApprovalClass,
    /// How well it can be undone.
    pub reversibility: Reversibility,
    /// What its data is.
    pub sensitivity: Sensitivity,
}

impl Classes {
    /// The classes.
    pub const fn new(
        approval: ApprovalClass,
        reversibility: Reversibility,
        sensitivity: Sensitivity,
    ) -> Self {
        Self { approval, reversibility, sensitivity }
    }

    /// The more serious of each.
    pub fn or_worse(self, other: Self) -> Self {
        Self {
            approval: self.approval.max(other.approval),
            reversibility: self.reversibility.max(other.reversibility),
            sensitivity: self.sensitivity.max(other.sensitivity),
        }
    }

    /// Whether nobody has to say yes to it.
    pub fn asks_nobody(self) -> bool {
        self.approval == ApprovalClass::A0 && self.reversibility < Reversibility::R3
    }
}

/// What a stage without rules of its own makes of an act.
pub(super) fn standard(stage: Stage, act: &Act) -> Finding {
    match stage {
        Stage::Permission => match act.lacks() {
            Some(need) => {
                Finding::deny("lacks_capability", format!("{} lacks \"{need}\"", act.principal))
            }
            None => Finding::allow("has_capabilities", format!("{} may do it", act.principal)),
        },
        Stage::ConnectorScope => connector_scope(act),
        Stage::RateLimit => Finding::allow("no_bucket", "nothing limits its rate"),
        Stage::Cost => Finding::allow("no_budget", "nothing limits its cost"),
        Stage::AgentRisk => agent_risk(act),
        Stage::MemoryConsent => Finding::allow("no_memory", "nothing is remembered about anyone"),
        Stage::DataSafety
        | Stage::ExternalSharing
        | Stage::DestructiveAction
        | Stage::ApprovalRequirement => by_class(stage, act),
    }
}

fn connector_scope(act: &Act) -> Finding {
    match &act.doing {
        Doing::Call { connector, operation, in_scope: false, .. } => Finding::deny(
            "out_of_scope",
            format!("connector \"{connector}\" is not meant for \"{operation}\""),
        ),
        _ => match act.out_of_scope.first() {
            Some(operation) => Finding::deny(
                "out_of_scope",
                format!("no connector's scope has \"{operation}\", which the contract names"),
            ),
            None => Finding::allow("in_scope", "every operation is in its connector's scope"),
        },
    }
}

/// An agent proposes; what it proposes, others carry out.
fn agent_risk(act: &Act) -> Finding {
    let commits = match &act.doing {
        Doing::Admit => false,
        Doing::Effect { .. } => true,
        Doing::Call { mutates, .. } => *mutates,
    };
    match act.agent && commits {
        true => Finding::deny("agent_commits", "an agent proposes commands; it commits to nothing"),
        false => Finding::allow("no_agent_commits", "no agent commits to anything by it"),
    }
}

fn by_class(stage: Stage, act: &Act) -> Finding {
    let Some(classes) = act.classes else {
        // Reads and submissions have no classes; an effect must.
        return match &act.doing {
            Doing::Effect { .. } | Doing::Call { mutates: true, .. } => {
                Finding::deny("unclassified", "nobody said how serious it is")
            }
            _ => Finding::allow("no_effect", "it changes nothing outside"),
        };
    };
    match stage {
        Stage::DataSafety if classes.sensitivity == Sensitivity::S3 => {
            Finding::approval("s3_needs_check", 2, "it handles regulated or personal data")
        }
        Stage::ExternalSharing if classes.sensitivity >= Sensitivity::S2 => {
            Finding::approval("confidential_leaves", 1, "confidential data leaves for others")
        }
        Stage::DestructiveAction if classes.reversibility == Reversibility::R3 => {
            Finding::approval("r3_never_by_itself", 2, "it cannot be undone")
        }
        Stage::ApprovalRequirement if classes.reversibility == Reversibility::R3 => {
            Finding::approval("r3_never_by_itself", 2, "it cannot be undone")
        }
        Stage::ApprovalRequirement => match classes.approval {
            ApprovalClass::A0 => Finding::allow("a0", "nobody has to say yes"),
            ApprovalClass::A1 => Finding::approval("a1_team", 1, "one of the team has to say yes"),
            ApprovalClass::A2 => Finding::approval("a2_department", 2, "two have to say yes"),
            ApprovalClass::A3 => Finding::approval("a3_executive", 2, "two have to say yes"),
        },
        _ => Finding::new(Ruling::Allow, "within_class", "its classes are harmless here"),
    }
}
