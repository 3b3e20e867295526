//! Contracts: what every command of a type is held to, and those that a process has.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use steadfast_core::command::{Book, CancellationMode, Capability, CommandType, RetryPolicy};
use steadfast_core::effect::{Compensation, EffectType};
use steadfast_core::policy::Classes;
use steadfast_core::trigger::Trigger;
use steadfast_core::workflow::Workflow;
use steadfast_core::{Cx, Error, Result, json};

use crate::flow::compensate::{self, Undo, Undoer, Undoers};
use crate::governance::undecided;

/// What every command of a type is held to.
#[derive(Clone)]
#[must_use = "a contract does nothing until a fabric has it"]
pub struct Contract {
    pub(crate) command: CommandType,
    undoers: BTreeMap<String, Undoer>,
}

impl Default for Contract {
    fn default() -> Self {
        Self::new()
    }
}

impl Contract {
    /// A contract that asks for nothing.
    pub fn new() -> Self {
        Self { command: CommandType::new("?"), undoers: BTreeMap::new() }
    }

    /// What makes two commands the same, over payload and context:
    /// `sync_vendor_sales:{vendor_name}:{target_date}`. Without it, every submission is a command.
    pub fn key(mut self, template: impl Into<String>) -> Self {
        self.command.key_template = Some(template.into());
        self
    }

    /// The policies that a command must pass, in order.
    pub fn policies<S: Into<String>>(mut self, stages: impl IntoIterator<Item = S>) -> Self {
        self.command.policies = stages.into_iter().map(Into::into).collect();
        self
    }

    /// What one must be allowed to do to ask for it: templates over the payload, such as
    /// `warehouse.write/{vendor_name}`.
    pub fn requires<S: Into<String>>(mut self, needs: impl IntoIterator<Item = S>) -> Self {
        self.command.requires.extend(needs.into_iter().map(Into::into));
        self
    }

    /// The operations of connectors it uses, as `connector operation`: checked when a command is
    /// submitted, not when it is under way.
    pub fn calls<S: Into<String>>(mut self, calls: impl IntoIterator<Item = S>) -> Self {
        self.command.calls.extend(calls.into_iter().map(Into::into));
        self
    }

    /// How serious the command as a whole is: who has to say yes before it begins.
    pub fn classes(mut self, classes: Classes) -> Self {
        self.command.classes = Some(classes);
        self
    }

    /// Its workflow is an agent's own code: it proposes commands, and commits to nothing.
    pub fn agent(mut self) -> Self {
        self.command.agent = true;
        self
    }

    /// An effect it may have. What is not declared is refused.
    pub fn effect(mut self, effect: EffectType) -> Self {
        self.command.effects.insert(effect.name.clone(), effect);
        self
    }

    /// What undoes an effect, and its code.
    pub fn compensation<F, Fut, E>(mut self, what: Compensation, code: F) -> Self
    where
        F: Fn(Cx, Undo) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display + 'static,
    {
        self.undoers.insert(what.name.clone(), compensate::undoer(code));
        self.command.compensations.insert(what.name.clone(), what);
        self
    }

    /// What the runtime must be able to do.
    pub fn needs(mut self, capabilities: impl IntoIterator<Item = Capability>) -> Self {
        self.command.capabilities.extend(capabilities);
        self
    }

    /// How an operation is tried again.
    pub fn retry(mut self, operation: impl Into<String>, policy: RetryPolicy) -> Self {
        self.command.retry.insert(operation.into(), policy);
        self
    }

    /// What a cancel does.
    pub fn on_cancel(mut self, mode: CancellationMode) -> Self {
        self.command.cancellation_mode = mode;
        self
    }

    /// A command that has not begun by then never does.
    pub fn expires_after(mut self, d: Duration) -> Self {
        self.command.expires_after = Some(d);
        self
    }

    /// The queue of its runs.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.command.queue = queue.into();
        self
    }

    /// How long a run may take.
    pub fn timeout(mut self, d: Duration) -> Self {
        self.command.timeout = Some(d);
        self
    }

    pub(crate) fn of<W: Workflow<M>, M>(mut self, workflow: &W) -> Result<Registered>
    where
        W::Input: JsonSchema,
    {
        let name = workflow.name()?;
        self.command.name = name.to_owned();
        self.command.workflow = name.to_owned();
        let schema = schemars::schema_for!(W::Input);
        self.command.payload_schema = schema.to_value();
        self.command.check()?;
        let fits = |payload: &str| json::decode::<W::Input>("the payload", payload).map(|_| ());
        Ok(Registered { command: self.command, fits, undoers: self.undoers })
    }
}

/// A contract, and the check of its payload's type.
pub(crate) struct Registered {
    pub(crate) command: CommandType,
    pub(crate) fits: fn(&str) -> Result<()>,
    undoers: BTreeMap<String, Undoer>,
}

impl Registered {
    /// Refuses a payload that the workflow could not read.
    pub(crate) fn check(&self, payload: &serde_json::Value) -> Result<()> {
        (self.fits)(&payload.to_string()).map_err(|e| {
            let text = format!("command type \"{}\": {}", self.command.name, e.message());
            Error::invalid("SF-0514", text)
        })
    }
}

/// The contracts of a process, by name.
#[derive(Default)]
pub(crate) struct Contracts(BTreeMap<String, Registered>);

impl Contracts {
    pub(crate) fn add(&mut self, registered: Registered) -> Result<()> {
        let name = registered.command.name.clone();
        match self.0.insert(name.clone(), registered) {
            None => Ok(()),
            Some(_) => {
                let text = format!("two command types are called \"{name}\"");
                Err(Error::invalid("SF-0108", text))
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The contracts as workflows see them.
    pub(crate) fn book(&self) -> Book {
        Book(self.0.iter().map(|(name, made)| (name.clone(), made.command.clone())).collect())
    }

    /// The code of all compensations.
    pub(crate) fn undoers(&self) -> Undoers {
        let of = |made: &Registered| {
            let name = made.command.name.clone();
            made.undoers
                .clone()
                .into_iter()
                .map(move |(undoer, code)| ((name.clone(), undoer), code))
        };
        Undoers(self.0.values().flat_map(of).collect())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Registered> {
        self.0.values()
    }

    /// The contract that holds for what a trigger submits: this process' own, whatever whoever
    /// defined the trigger wrote into it. Without one, only what nothing governs.
    pub(crate) fn of<'a>(&'a self, trigger: &'a Trigger) -> Result<&'a CommandType> {
        match self.0.get(&trigger.command.name) {
            Some(registered) => Ok(&registered.command),
            None if trigger.command.chain().is_empty() => Ok(&trigger.command),
            None => Err(undecided(&trigger.command.name)),
        }
    }

    /// Refuses a payload that a type of this process does not take.
    pub(crate) fn check(&self, name: &str, payload: &serde_json::Value) -> Result<()> {
        self.0.get(name).map_or(Ok(()), |registered| registered.check(payload))
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Registered> {
        self.0.get(name).ok_or_else(|| {
            let known: Vec<_> = self.0.keys().map(String::as_str).collect();
            let text = format!(
                "command type \"{name}\" is not registered here; there are: {}",
                known.join(", ")
            );
            Error::invalid("SF-0503", text)
        })
    }
}

/// The contracts that a client without any has.
pub(crate) fn no_contracts() -> Arc<Contracts> {
    Arc::new(Contracts::default())
}
