//! Approvals: a durable question to people, bound to exactly what will be done.
//!
//! Invariants: only a pending approval takes votes; the same person counts once, and nobody
//! approves what they asked for themselves; a no settles it at once, a yes when enough different
//! people have said so; after its time it is expired and takes nothing more.
//! Deliberately absent: how people are told. That is an event's delivery.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::key;

/// How long people have, unless said otherwise.
pub const TTL: Duration = Duration::from_secs(48 * 3600);

lifecycle! {
    /// Where an approval stands.
    pub ApprovalStatus on ApprovalEvent as "approval";
    start { Pending }
    terminal { Approved | Rejected | Expired | Cancelled }
    arrows {
        Pending --(Approve)--> Approved;
        Pending --(Reject)--> Rejected;
        Pending --(Expire)--> Expired;
        Pending --(Cancel)--> Cancelled;
    }
    states {
        /// Waits for people.
        Pending = "pending",
        /// Enough said yes.
        Approved = "approved",
        /// Somebody said no, or wants it changed first.
        Rejected = "rejected",
        /// Nobody said enough in time.
        Expired = "expired",
        /// What it was for was stopped.
        Cancelled = "cancelled",
    }
    events {
        /// Enough said yes.
        Approve,
        /// Somebody said no.
        Reject,
        /// Its time is up.
        Expire,
        /// Nobody needs it any more.
        Cancel,
    }
}

/// What somebody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vote {
    /// Yes.
    Approved,
    /// No.
    Rejected,
    /// Not like this.
    RequestChanges,
}

impl Vote {
    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Rejected => "rejected",
            Self::RequestChanges => "request_changes",
        }
    }

    /// Reads the spelling; an unknown one is `None`.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Approved, Self::Rejected, Self::RequestChanges]
            .into_iter()
            .find(|vote| vote.as_str() == text)
    }
}

/// Somebody's answer, as it comes over a wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// The question.
    pub approval_id: String,
    /// The digest of what its giver was shown.
    pub digest: String,
    /// Who answers.
    pub approver: String,
    /// What they say.
    pub vote: Vote,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// What people are asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// What kind of question it is, such as `send_proposal`.
    pub approval_type: String,
    /// What will be done.
    pub action: String,
    /// Why people are asked: the rule or the code that wants it.
    pub reason: String,
    /// What it will be done with.
    pub payload: Value,
    /// How many different people have to say yes.
    pub approvers: u32,
    /// Who may say so, by name or with a `*` at the end; anybody if there are none.
    #[serde(default)]
    pub among: Vec<String>,
    /// How long they have.
    pub ttl: Duration,
    /// After this long more people are told.
    #[serde(default)]
    pub escalate_after: Option<Duration>,
}

impl ApprovalRequest {
    /// A question to one person, for two days.
    pub fn new(approval_type: impl Into<String>, action: impl Into<String>) -> Self {
        Self {
            approval_type: approval_type.into(),
            action: action.into(),
            reason: String::new(),
            payload: Value::Null,
            approvers: 1,
            among: Vec::new(),
            ttl: TTL,
            escalate_after: None,
        }
    }

    /// What it will be done with: the approval is bound to it.
    pub fn payload(mut self, payload: impl Into<Value>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Why people are asked.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// So many different people have to say yes.
    pub fn approvers(mut self, approvers: u32) -> Self {
        self.approvers = approvers;
        self
    }

    /// Only these may say so.
    pub fn among<S: Into<String>>(mut self, people: impl IntoIterator<Item = S>) -> Self {
        self.among = people.into_iter().map(Into::into).collect();
        self
    }

    /// How long they have.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// More people are told after this long.
    pub fn escalate_after(mut self, d: Duration) -> Self {
        self.escalate_after = Some(d);
        self
    }

    /// Refuses a question that nobody could answer.
    pub fn check(&self) -> Result<()> {
        key::check("approval type", &self.approval_type)?;
        if !(1..=100).contains(&self.approvers) {
            let text = format!("an approval by {} people cannot be", self.approvers);
            return Err(Error::invalid("SF-0811", text));
        }
        let most = u32::try_from(self.among.len()).unwrap_or(u32::MAX);
        let is_open = self.among.iter().any(|who| who.ends_with('*'));
        if most > 0 && !is_open && most < self.approvers {
            let text = format!("{} have to say yes, of only {most} who may", self.approvers);
            return Err(Error::invalid("SF-0811", text));
        }
        if self.ttl.is_zero() {
            return Err(Error::invalid("SF-0811", "an approval needs some time"));
        }
        if self.escalate_after.is_some_and(|after| after >= self.ttl) {
            let text = "more people would be told only after the time is up";
            return Err(Error::invalid("SF-0811", text));
        }
        Ok(())
    }

    /// What the approval is bound to.
    pub fn digest(&self) -> String {
        let mut payload = self.payload.clone();
        crate::json::sort(&mut payload);
        crate::json::digest(format!("{}\n{}\n{payload}", self.approval_type, self.action))
    }
}

/// That enough people said yes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approved {
    /// The approval.
    pub approval_id: String,
    /// Who said yes.
    pub by: Vec<String>,
}
