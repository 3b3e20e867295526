//! A command type: the contract that every command of it is held to, as data.
//!
//! Invariants: a contract that does not fit together is refused when it is registered, by the name
//! of its field; an operation gets its retry settings from [`CommandType::compile_policy`] alone.
//! Deliberately absent: code. What runs is a workflow's name, so that a process without it can
//! still submit.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::context::Context;
use super::template::Template;
use crate::effect::{Catalog, Compensation, EffectType};
use crate::error::{Error, ErrorClass, Result};
use crate::policy::{Classes, Stage};
use crate::retry::Retry;
use crate::{json, key, limits};

/// What a runtime can do. The spelling is the one used on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Workflows that survive crashes.
    DurableWorkflows,
    /// Steps whose results are recorded.
    DurableSteps,
    /// Queues with limits.
    Queues,
    /// Schedules.
    Schedules,
    /// Messages to running workflows.
    Signals,
    /// Workflows started by workflows.
    Subworkflows,
    /// A hook before each effect.
    EffectInterception,
    /// Compensations run by the runtime itself.
    SagaCompensationNative,
    /// Old runs on old code.
    WorkflowVersioning,
}

/// What a cancel does to a command under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancellationMode {
    /// The step under way ends, its result is discarded, nothing else begins.
    #[default]
    Graceful,
    /// The same, and then the effects are undone.
    CompensateThenStop,
}

impl CancellationMode {
    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Graceful => "graceful",
            Self::CompensateThenStop => "compensate_then_stop",
        }
    }
}

/// How often an operation is tried, and after which errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryPolicy {
    /// Only these classes are tried again; of those, only the ones that can be.
    pub retryable: Vec<ErrorClass>,
    /// Attempts in all.
    #[serde(default = "three")]
    pub max_attempts: u32,
    /// After failed attempt n, wait the n-th of these.
    #[serde(default = "standard_backoff")]
    pub backoff_seconds: Vec<u64>,
    /// Whether a call without a key is refused.
    #[serde(default)]
    pub requires_idempotency_key: bool,
}

fn three() -> u32 {
    3
}

fn standard_backoff() -> Vec<u64> {
    vec![30, 120, 600]
}

impl RetryPolicy {
    /// Three attempts, with waits of 30 s and 120 s, for these classes.
    pub fn on(retryable: impl IntoIterator<Item = ErrorClass>) -> Self {
        Self {
            retryable: retryable.into_iter().collect(),
            max_attempts: three(),
            backoff_seconds: standard_backoff(),
            requires_idempotency_key: false,
        }
    }

    /// Attempts in all.
    pub fn attempts(mut self, most: u32) -> Self {
        self.max_attempts = most;
        self
    }

    /// The waits between attempts, in seconds.
    pub fn backoff(mut self, seconds: impl IntoIterator<Item = u64>) -> Self {
        self.backoff_seconds = seconds.into_iter().collect();
        self
    }

    /// Refuses calls without a key.
    pub fn keyed(mut self) -> Self {
        self.requires_idempotency_key = true;
        self
    }

    fn compile(&self) -> Retry {
        let waits = (1..self.max_attempts as usize).map(|attempt| {
            // The last wait is repeated where there are more attempts than waits.
            let at = (attempt - 1).min(self.backoff_seconds.len().saturating_sub(1));
            Duration::from_secs(self.backoff_seconds.get(at).copied().unwrap_or(0))
        });
        Retry::listed(waits).only(self.retryable.iter().copied())
    }

    fn check(&self, operation: &str) -> Result<()> {
        let field = format!("retry.{operation}");
        if !(1..=limits::RETRY_ATTEMPTS).contains(&self.max_attempts) {
            let most = limits::RETRY_ATTEMPTS;
            return Err(wrong(&format!("{field}.max_attempts"), &format!("is not in 1..={most}")));
        }
        match self.retryable.iter().find(|class| !class.is_retryable()) {
            Some(class) => {
                let why = format!("{class:?} is never worth another try");
                Err(wrong(&format!("{field}.retryable"), &why))
            }
            None => Ok(()),
        }
    }
}

/// The contracts of a process, by name.
#[derive(Debug, Clone, Default)]
pub struct Book(pub BTreeMap<String, CommandType>);

/// A contract. [`CommandType::check`] says whether it fits together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandType {
    /// Its name, unique in the fabric.
    pub name: String,
    /// The workflow that carries it out.
    pub workflow: String,
    /// The JSON schema of the payload; `true` takes anything.
    pub payload_schema: Value,
    /// What makes two commands the same, over payload and context; none for never.
    pub key_template: Option<String>,
    /// The policies it must pass, in order.
    pub policies: Vec<String>,
    /// What one must be allowed to do to ask for it: templates over the payload, such as
    /// `warehouse.write/{vendor_name}`.
    #[serde(default)]
    pub requires: Vec<String>,
    /// The operations of connectors it uses, as `connector operation`.
    #[serde(default)]
    pub calls: Vec<String>,
    /// How serious the command as a whole is; its effects have classes of their own.
    #[serde(default)]
    pub classes: Option<Classes>,
    /// Whether its workflow is an agent's own code, which proposes and never commits.
    #[serde(default)]
    pub agent: bool,
    /// The effects it may have, by name.
    #[serde(default)]
    pub effects: BTreeMap<String, EffectType>,
    /// What undoes them, by name.
    #[serde(default)]
    pub compensations: BTreeMap<String, Compensation>,
    /// What the runtime must be able to do.
    pub capabilities: Vec<Capability>,
    /// What a cancel does.
    pub cancellation_mode: CancellationMode,
    /// Retries by operation.
    pub retry: BTreeMap<String, RetryPolicy>,
    /// A command that has not begun by then never does.
    pub expires_after: Option<Duration>,
    /// The queue of its runs.
    pub queue: String,
    /// How long a run may take.
    pub timeout: Option<Duration>,
}

impl CommandType {
    /// A contract with nothing but a name, carried out by the workflow of that name.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            workflow: name.to_owned(),
            payload_schema: Value::Bool(true),
            key_template: None,
            policies: Vec::new(),
            requires: Vec::new(),
            calls: Vec::new(),
            classes: None,
            agent: false,
            effects: BTreeMap::new(),
            compensations: BTreeMap::new(),
            capabilities: Vec::new(),
            cancellation_mode: CancellationMode::default(),
            retry: BTreeMap::new(),
            expires_after: None,
            queue: "default".to_owned(),
            timeout: None,
        }
    }

    /// Refuses a contract that does not fit together, naming the field.
    pub fn check(&self) -> Result<()> {
        key::check("command type", &self.name).map_err(|e| self.at(&wrong("name", e.message())))?;
        for (field, value) in [("workflow", &self.workflow), ("queue", &self.queue)] {
            key::check(field, value).map_err(|e| self.at(&wrong(field, e.message())))?;
        }
        if !(self.payload_schema.is_object() || self.payload_schema.is_boolean()) {
            return Err(self.at(&wrong("payload_schema", "is neither an object nor a boolean")));
        }
        self.check_key().map_err(|e| self.at(&e))?;
        for (place, stage) in self.policies.iter().enumerate() {
            if Stage::parse(stage).is_none() {
                let known = Stage::ALL.map(Stage::as_str).join(", ");
                let why = format!("\"{stage}\" is no stage; there are {known}");
                return Err(self.at(&wrong("policies", &why)));
            }
            if self.policies[..place].contains(stage) {
                return Err(self.at(&wrong("policies", &format!("\"{stage}\" is named twice"))));
            }
        }
        for need in &self.requires {
            // What one must be allowed is asked before there is a context.
            self.check_holes("requires", need, false).map_err(|e| self.at(&e))?;
        }
        for (operation, policy) in &self.retry {
            policy.check(operation).map_err(|e| self.at(&e))?;
        }
        for (field, time) in [("expires_after", self.expires_after), ("timeout", self.timeout)] {
            if time.is_some_and(|d| d.is_zero()) {
                return Err(self.at(&wrong(field, "is zero")));
            }
        }
        Ok(())
    }

    fn check_key(&self) -> Result<()> {
        match &self.key_template {
            Some(text) => self.check_holes("key_template", text, true),
            None => Ok(()),
        }
    }

    /// A hole that neither payload nor context can fill would fail every command.
    fn check_holes(&self, field: &str, text: &str, context: bool) -> Result<()> {
        let template = Template::parse(text).map_err(|e| wrong(field, e.message()))?;
        let known = self.payload_schema.get("properties").and_then(Value::as_object);
        for hole in template.holes() {
            let mut parts = hole.split('.');
            let (first, second) = (parts.next().unwrap_or(hole), parts.next());
            if context && first == "context" {
                if !second.is_some_and(|name| Context::FIELDS.contains(&name)) {
                    let why = format!(
                        "{{{hole}}} is nothing of a context; there are {}",
                        Context::FIELDS.join(", ")
                    );
                    return Err(wrong(field, &why));
                }
            } else if known.is_some_and(|known| !known.contains_key(first)) {
                return Err(wrong(field, &format!("{{{hole}}} is no field of the payload")));
            }
        }
        Ok(())
    }

    fn at(&self, error: &Error) -> Error {
        Error::invalid("SF-0502", format!("command type \"{}\": {}", self.name, error.message()))
    }

    /// The key of a command with this payload and context: its own by the template, with the
    /// workspace before it where there is one that is not the default.
    pub fn key(&self, payload: &Value, context: &Context) -> Result<Option<String>> {
        let Some(text) = &self.key_template else {
            return Ok(None);
        };
        let template = Template::parse(text)?;
        // Most keys are of the payload alone, and a context is long.
        let around = match template.holes().any(|hole| hole.starts_with("context")) {
            true => serde_json::json!({ "context": context }),
            false => Value::Null,
        };
        let mut rendered = template.render(&[payload, &around])?;
        if let Some(workspace) = &context.workspace_id {
            rendered = format!("{workspace}/{rendered}");
        }
        key::check("idempotency key", &rendered)?;
        Ok(Some(rendered))
    }

    /// The stages of its chain, in order. An agent's code is always watched.
    pub fn chain(&self) -> Vec<Stage> {
        let named = self.policies.iter().filter_map(|stage| Stage::parse(stage));
        let mut chain: Vec<Stage> = named.collect();
        if self.agent && !chain.contains(&Stage::AgentRisk) {
            chain.insert(0, Stage::AgentRisk);
        }
        chain
    }

    /// What one must be allowed to do to ask for a command with this payload.
    pub fn needs(&self, payload: &Value) -> Result<Vec<String>> {
        self.requires.iter().map(|need| Template::parse(need)?.render(&[payload])).collect()
    }

    /// Refuses a field of the payload that has to be left out, where the key or the needs are made
    /// of it: they are kept, and shown to everybody.
    pub fn check_redacted(&self, field: &str) -> Result<()> {
        let key = self.key_template.iter().map(|text| ("key_template", text));
        for (name, text) in key.chain(self.requires.iter().map(|text| ("requires", text))) {
            let template = Template::parse(text)?;
            if let Some(hole) = template.holes().find(|hole| overlap(hole, field)) {
                let text = format!(
                    "command type \"{}\": {name}: {{{hole}}} is made of \"{field}\", which policy \
                     has left out of payloads",
                    self.name
                );
                return Err(Error::new(ErrorClass::PolicyDenied, "SF-0843", text));
            }
        }
        Ok(())
    }

    /// The key of one of its effects.
    pub fn effect_key(
        &self,
        effect_type: &str,
        payload: &Value,
        context: &Context,
    ) -> Result<String> {
        let own = context.idempotency_key.as_deref().unwrap_or(&context.command_id);
        let declared = self.effects.get(effect_type);
        let Some(text) = declared.and_then(|effect| effect.key_template.as_ref()) else {
            return Ok(key::derived(own, &format!(":{effect_type}")));
        };
        let around = serde_json::json!({
            "context": context, "idempotency_key": own, "command_id": context.command_id,
        });
        let rendered = Template::parse(text)?.render(&[payload, &around])?;
        key::check("effect key", &rendered)?;
        Ok(rendered)
    }

    /// Refuses effects without a way back, and ways back that do not hold together.
    pub fn check_effects(&self, runtime: &str, has: &[Capability]) -> Result<()> {
        let catalog = Catalog::new(self.effects.values(), self.compensations.values());
        catalog.check(runtime, has).map_err(|e| {
            let text = format!("command type \"{}\": {}", self.name, e.message());
            Error::invalid(e.code(), text)
        })
    }

    /// The retry settings of an operation. The only way an operation gets them.
    pub fn compile_policy(&self, operation: &str) -> Result<Retry> {
        let policy = self.retry.get(operation).ok_or_else(|| {
            let known: Vec<_> = self.retry.keys().map(String::as_str).collect();
            Error::invalid(
                "SF-0509",
                format!(
                    "command type \"{}\" has no retry policy for operation \"{operation}\"; it \
                     has: {}",
                    self.name,
                    known.join(", ")
                ),
            )
        })?;
        Ok(policy.compile())
    }

    /// Refuses a call that must have a key and has none.
    pub fn check_call(&self, operation: &str, key: Option<&str>) -> Result<()> {
        let keyed = self.retry.get(operation).is_some_and(|p| p.requires_idempotency_key);
        if keyed && key.is_none_or(str::is_empty) {
            return Err(Error::invalid(
                "SF-0512",
                format!("operation \"{operation}\" must not be called without an idempotency key"),
            ));
        }
        Ok(())
    }

    /// Refuses a runtime that lacks something this type needs, naming all of it.
    pub fn check_runtime(&self, runtime: &str, has: &[Capability]) -> Result<()> {
        let missing: Vec<_> = self.capabilities.iter().filter(|c| !has.contains(c)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let names = json::encode("capabilities", &missing)?;
        Err(Error::invalid(
            "SF-0511",
            format!("command type \"{}\" needs {names}, which {runtime} lacks", self.name),
        ))
    }
}

/// Whether one path is the other, or leads into what the other names; `*` is any item of a list.
fn overlap(one: &str, other: &str) -> bool {
    let same = |(a, b): (&str, &str)| a == b || a == "*" || b == "*";
    one.split('.').zip(other.split('.')).all(same)
}

fn wrong(field: &str, why: &str) -> Error {
    Error::invalid("SF-0502", format!("{field}: {why}"))
}

#[cfg(test)]
mod tests;
