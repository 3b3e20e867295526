//! Approvals: what people are asked, what they say, and what waits for it.

use steadfast_core::approval::Vote;
use steadfast_core::{ApprovalStatus, CommandStatus, Error, Timestamp};

/// A question to people, about to be asked.
#[derive(Debug, Clone, PartialEq)]
pub struct NewApproval {
    /// Its id.
    pub approval_id: String,
    /// What kind of question it is.
    pub approval_type: String,
    /// What will be done.
    pub action: String,
    /// Why people are asked.
    pub reason: String,
    /// What it will be done with, as JSON.
    pub payload: String,
    /// What a yes is bound to.
    pub digest: String,
    /// Who asked for the command: may not approve it.
    pub requested_by: String,
    /// How many different people have to say yes.
    pub approvers: i64,
    /// Who may; anybody if there are none.
    pub among: Vec<String>,
    /// When it is too late.
    pub expires_at: Timestamp,
    /// When more people are told.
    pub escalate_at: Option<Timestamp>,
}

impl NewApproval {
    /// What those who answer are told.
    pub fn told(&self) -> serde_json::Value {
        serde_json::json!({
            "approval_id": self.approval_id, "action": self.action, "reason": self.reason,
            "approvers": self.approvers, "digest": self.digest,
            "expires_at": self.expires_at.iso(),
        })
    }
}

/// A question to people, as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalRow {
    /// The question.
    pub asked: NewApproval,
    /// The command; empty for a plain run.
    pub command_id: String,
    /// The run that waits; empty where the command as a whole does.
    pub run_id: String,
    /// Where it stands.
    pub status: ApprovalStatus,
    /// When it was asked.
    pub created_at: Timestamp,
    /// When it was settled.
    pub decided_at: Option<Timestamp>,
    /// What was said, oldest first.
    pub votes: Vec<VoteRow>,
}

/// What somebody said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteRow {
    /// Who.
    pub approver: String,
    /// What.
    pub vote: Vote,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Timestamp,
}

/// Somebody answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Decide {
    /// The workspace.
    pub workspace: String,
    /// Which question.
    pub approval_id: String,
    /// Who.
    pub approver: String,
    /// What.
    pub vote: Vote,
    /// Why.
    pub reason: String,
    /// The time.
    pub now: Timestamp,
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Decided {
    /// It counts; so many more have to say yes.
    Counted(i64),
    /// It settled the question.
    Settled(ApprovalStatus),
    /// They had said the same before; nothing changed.
    Again(ApprovalStatus),
    /// It is settled already, or too late; nothing changed.
    Late(ApprovalStatus),
    /// Nobody approves what they asked for themselves, or gave the payload of.
    Own,
    /// They are not among those who may.
    NotAsked,
    /// There is none.
    NotFound,
}

/// Which questions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListApprovals {
    /// The workspace.
    pub workspace: String,
    /// Only this one.
    pub approval_id: Option<String>,
    /// Only of this command.
    pub command_id: Option<String>,
    /// Only in this status.
    pub status: Option<ApprovalStatus>,
    /// Most rows.
    pub limit: usize,
}

/// Questions, by id.
#[derive(Debug, Clone, PartialEq)]
pub struct Approvals(pub Vec<ApprovalRow>);

/// Ends questions whose time is up, and tells more people of those that wait long.
#[derive(Debug, Clone, PartialEq)]
pub struct SettleApprovals {
    /// The workspace.
    pub workspace: String,
    /// Most questions.
    pub limit: usize,
    /// The time.
    pub now: Timestamp,
}

/// The questions that were settled or passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledApprovals(pub Vec<String>);

/// Why a new command does not begin.
#[derive(Debug, Clone, PartialEq)]
pub enum Hold {
    /// It may not.
    Denied(Error),
    /// People have to say yes first.
    Approval(Box<NewApproval>),
    /// Something is missing from its payload.
    Input(String),
}

impl Hold {
    /// Where it leaves the command.
    pub fn status(&self) -> CommandStatus {
        match self {
            Self::Denied(_) => CommandStatus::Failed,
            Self::Approval(_) => CommandStatus::WaitingForApproval,
            Self::Input(_) => CommandStatus::WaitingForInput,
        }
    }
}
