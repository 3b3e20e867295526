//! Where a command came from, and what its runs, children, logs and calls carry with them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// By which door a command came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ingress {
    /// A person asked.
    UserRequest,
    /// A program asked.
    ApiRequest,
    /// Another system called.
    ExternalWebhook,
    /// A schedule fired.
    ScheduledTrigger,
    /// A file appeared or changed.
    FileEvent,
    /// A table changed.
    TableEvent,
    /// A connector reported something.
    ConnectorEvent,
    /// An agent proposed it.
    AgentAction,
    /// An approval was decided.
    ApprovalCallback,
    /// An earlier failure is tried again.
    RetryEvent,
    /// The fabric itself.
    SystemEvent,
}

impl Ingress {
    /// Every door.
    pub const ALL: &'static [Ingress] = &[
        Self::UserRequest,
        Self::ApiRequest,
        Self::ExternalWebhook,
        Self::ScheduledTrigger,
        Self::FileEvent,
        Self::TableEvent,
        Self::ConnectorEvent,
        Self::AgentAction,
        Self::ApprovalCallback,
        Self::RetryEvent,
        Self::SystemEvent,
    ];

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UserRequest => "user_request",
            Self::ApiRequest => "api_request",
            Self::ExternalWebhook => "external_webhook",
            Self::ScheduledTrigger => "scheduled_trigger",
            Self::FileEvent => "file_event",
            Self::TableEvent => "table_event",
            Self::ConnectorEvent => "connector_event",
            Self::AgentAction => "agent_action",
            Self::ApprovalCallback => "approval_callback",
            Self::RetryEvent => "retry_event",
            Self::SystemEvent => "system_event",
        }
    }

    /// Reads the spelling; an unknown one is `None`.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|door| door.as_str() == text)
    }
}

/// What travels with a command to everything it causes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    /// The command, if a command is the cause.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command_id: String,
    /// The command's type: whose contract holds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command_type: String,
    /// Who asked for the command.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub requested_by: String,
    /// The command's key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// What one must be allowed to do for it: asked again before every effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Whether effects are only planned and shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Whether this run takes back what its command has done, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Undoing>,
    /// The tenant; none in the default workspace.
    #[serde(default)]
    pub workspace_id: Option<String>,
    /// The trace: 32 hexadecimal digits.
    pub trace_id: String,
    /// What the caller calls the whole affair; the trace id unless given.
    pub correlation_id: String,
    /// The caller's request, if it was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The nominal time of the schedule's slot, if one was the cause: ISO 8601 with offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_for: Option<String>,
    /// The first and last nominal time that this command covers, if it stands for several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<(String, String)>,
}

/// Why a command's effects are taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undoing {
    /// It failed.
    Failure,
    /// It was cancelled, in the mode that compensates.
    Cancel,
}

impl Context {
    /// What a key's template may use of it: what is there before the command is.
    pub const FIELDS: [&str; 9] = [
        "command_id",
        "command_type",
        "correlation_id",
        "requested_by",
        "request_id",
        "scheduled_for",
        "trace_id",
        "window",
        "workspace_id",
    ];

    /// The context as it is stored.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("invariant: a context is plain data")
    }

    /// A stored context.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|e| Error::invalid("SF-0104", format!("a stored context is damaged: {e}")))
    }

    /// A trace id from 128 random bits: W3C's form, never all zeros.
    pub fn new_trace(bits: [u64; 2]) -> String {
        format!("{:016x}{:016x}", bits[0], bits[1] | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doors_have_one_spelling() {
        for door in Ingress::ALL {
            assert_eq!(Ingress::parse(door.as_str()), Some(*door));
            assert_eq!(serde_json::to_value(door).unwrap(), door.as_str());
        }
        assert_eq!(Ingress::parse("carrier_pigeon"), None);
    }

    #[test]
    fn a_context_survives_the_store() {
        let context = Context {
            trace_id: Context::new_trace([7, 0]),
            correlation_id: "night".to_owned(),
            window: Some(("a".to_owned(), "b".to_owned())),
            ..Context::default()
        };
        assert_eq!(Context::parse(&context.to_text()).unwrap(), context);
        assert_eq!(context.trace_id.len(), 32);
        assert_eq!(Context::parse("{").unwrap_err().code(), "SF-0104");
    }
}
