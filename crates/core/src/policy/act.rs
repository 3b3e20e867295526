//! An act: what is about to be done, by whom, to what. All that a policy sees.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::class::Classes;
use super::grant::{Grants, covers};
use crate::json;

/// What is about to be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// A command is submitted.
    Admit,
    /// An effect is about to be performed.
    Effect {
        /// Its type.
        effect_type: String,
        /// The key by which its receiver knows it.
        key: String,
        /// Whether its contract declares it.
        declared: bool,
        /// The connector that performs it and what that is asked, if one does.
        via: Option<(String, String)>,
    },
    /// A connector is about to be called.
    Call {
        /// The connector.
        connector: String,
        /// What is asked of it, such as `GET /sales/daily`.
        operation: String,
        /// Whether the connector's scope has it.
        in_scope: bool,
        /// Whether it changes anything over there.
        mutates: bool,
    },
}

/// An act.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Act {
    /// What is about to be done.
    pub doing: Doing,
    /// Who asked for the command.
    pub principal: String,
    /// What the principal may do.
    pub grants: Vec<String>,
    /// What the contract says one must be allowed to do.
    pub needs: Vec<String>,
    /// The command's type.
    pub command_type: String,
    /// By which door it came.
    pub ingress: String,
    /// The command's payload; of an effect or a call, what it is performed with.
    pub payload: Value,
    /// How serious it is; none where nobody said.
    pub classes: Option<Classes>,
    /// The operations of connectors that the contract names and no scope has.
    pub out_of_scope: Vec<String>,
    /// Whether it is an agent's own code that acts.
    pub agent: bool,
}

impl Act {
    /// The submission of a command.
    pub fn admit(principal: &str, command_type: &str, payload: Value) -> Self {
        Self {
            doing: Doing::Admit,
            principal: principal.to_owned(),
            grants: Vec::new(),
            needs: Vec::new(),
            command_type: command_type.to_owned(),
            ingress: String::new(),
            payload,
            classes: None,
            out_of_scope: Vec::new(),
            agent: false,
        }
    }

    /// The first thing needed that the principal may not do.
    pub fn lacks(&self) -> Option<&str> {
        let held = |need: &&String| self.grants.iter().any(|grant| covers(grant, need));
        self.needs.iter().find(|need| !held(need)).map(String::as_str)
    }

    /// The act with what its principal may do.
    pub fn with_grants(mut self, grants: &Grants) -> Self {
        self.grants = grants.of(&self.principal);
        self
    }

    /// A digest of everything a policy sees.
    pub fn digest(&self) -> String {
        let mut seen = json!({
            "doing": self.doing, "principal": self.principal, "grants": self.grants,
            "needs": self.needs, "command_type": self.command_type, "ingress": self.ingress,
            "payload": self.payload, "classes": self.classes, "out_of_scope": self.out_of_scope,
            "agent": self.agent,
        });
        json::sort(&mut seen);
        json::digest(seen.to_string())
    }
}
