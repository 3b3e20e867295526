//! Commands: contracts, submissions, handles.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use steadfast_core::command::{
    Book, CancellationMode, Capability, CommandType, Context, Ingress, RetryPolicy,
};
use steadfast_core::effect::{Compensation, EffectType};
use steadfast_core::policy::Classes;
use steadfast_core::trigger::Trigger;
use steadfast_core::workflow::Workflow;
use steadfast_core::{CommandStatus, Cx, Error, ErrorClass, Result, Retry, Timestamp, json};
use steadfast_store::op;

use crate::client::Client;
use crate::flow::admit::{Asked, admit};
use crate::flow::compensate::{self, Undo, Undoer, Undoers};
use crate::flow::ingress::{self, Request};
use crate::governance::undecided;
use crate::run::Run;

/// A command as it is stored, with what it waits for and who else wanted it.
pub type CommandInfo = op::CommandDetail;

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

impl Client {
    /// Submits a command of the type that the workflow carries out. When it is there already, by
    /// its key, that one is given; the same key with another payload is an error.
    pub fn submit<W: Workflow<M>, M>(
        &self,
        workflow: W,
        payload: W::Input,
    ) -> SubmitCall<W::Output> {
        match workflow.name() {
            Ok(name) => self.submit_named(name, &payload),
            Err(refusal) => SubmitCall::new(self, Err(refusal)),
        }
    }

    /// Submits a command by the name of its type.
    pub fn submit_named<T>(
        &self,
        command_type: &str,
        payload: &(impl Serialize + ?Sized),
    ) -> SubmitCall<T> {
        let made = || {
            let registered = self.contracts.get(command_type)?;
            let payload = serde_json::to_value(payload).map_err(|e| {
                Error::invalid("SF-0101", format!("the payload cannot be written as JSON: {e}"))
            })?;
            registered.check(&payload)?;
            Ok((registered.command.clone(), payload))
        };
        SubmitCall::new(self, made())
    }

    /// The retry settings of an operation, by the contract of a command type.
    pub fn compile_policy(&self, command_type: &str, operation: &str) -> Result<Retry> {
        self.contracts.get(command_type)?.command.compile_policy(operation)
    }

    /// The contract of a command type.
    pub fn contract(&self, command_type: &str) -> Result<CommandType> {
        Ok(self.contracts.get(command_type)?.command.clone())
    }

    /// A handle to a command by its id, whoever submitted it.
    pub fn command<T>(&self, command_id: impl Into<String>) -> Command<T> {
        let (client, command_id) = (self.clone(), command_id.into());
        Command { client, command_id, new: false, output: PhantomData }
    }

    /// A command by its key, if there is one.
    pub async fn command_by_key(&self, key: &str) -> Result<Option<CommandInfo>> {
        self.inner.find_command(op::CommandRef::Key(key.to_owned())).await
    }

    /// Commands, newest first; with where the next page begins.
    pub async fn commands(&self, mut which: op::ListCommands) -> Result<op::CommandPage> {
        self.inner.workspace().clone_into(&mut which.workspace);
        self.inner.ask(which).await
    }

    /// Events, oldest first.
    pub async fn events(&self, mut which: op::ListEvents) -> Result<Vec<op::EventRow>> {
        self.inner.workspace().clone_into(&mut which.workspace);
        Ok(self.inner.ask(which).await?.0)
    }

    /// Makes a command that has not begun wait for another one. A circle is refused.
    pub async fn depend(&self, command_id: &str, parent: op::Parent) -> Result<()> {
        ingress::check_parent(&parent)?;
        let (on, now) = (parent.command_id.clone(), self.inner.now());
        let workspace = self.inner.workspace().to_owned();
        let depend = op::Depend { workspace, command_id: command_id.to_owned(), parent, now };
        let conflict = |code: &str, text: String| {
            Err(Error::new(steadfast_core::ErrorClass::Conflict, code, text))
        };
        match self.inner.ask(depend).await? {
            op::Depended::Done => Ok(()),
            op::Depended::Cycle(way) => conflict(
                "SF-0515",
                format!(
                    "\"{command_id}\" and \"{on}\" would wait for each other: {}",
                    way.join(" → ")
                ),
            ),
            op::Depended::TooLate(status) => {
                conflict("SF-0516", format!("command \"{command_id}\" is {status} already"))
            }
            op::Depended::NotFound(missing) => {
                let text = format!("there is no command \"{missing}\"");
                Err(Error::new(steadfast_core::ErrorClass::NotFound, "SF-0505", text))
            }
        }
    }

    /// Submits, and executes at once where this process can.
    pub(crate) async fn carry_out(&self, submit: op::Submit) -> Result<(String, bool)> {
        if let Some(worker) = &self.worker {
            return worker.submit_command(submit).await;
        }
        let reply = self.inner.ask(submit.clone()).await?;
        let (command_id, new, _) = self.inner.submitted(&submit, reply)?;
        Ok((command_id, new))
    }
}

/// A command about to be submitted.
#[must_use = "a command is not submitted until this is awaited"]
pub struct SubmitCall<T> {
    client: Client,
    made: Result<(CommandType, serde_json::Value)>,
    request: Request,
    output: PhantomData<fn() -> T>,
}

impl<T> SubmitCall<T> {
    fn new(client: &Client, made: Result<(CommandType, serde_json::Value)>) -> Self {
        let mut request = Request::new("user:unknown", Ingress::ApiRequest);
        request.app_version.clone_from(&client.version);
        if let (Ok((command, _)), Some(worker)) = (&made, &client.worker) {
            request.max_attempts = worker.max_attempts(&command.workflow);
        }
        Self { client: client.clone(), made, request, output: PhantomData }
    }

    fn with(mut self, set: impl FnOnce(&mut Request)) -> Self {
        set(&mut self.request);
        self
    }

    /// Who asks, such as `user:42` or `system:scheduler`.
    pub fn requested_by(self, principal: impl Into<String>) -> Self {
        self.with(|r| r.requested_by = principal.into())
    }

    /// By which door it comes; `api_request` unless given.
    pub fn ingress(self, ingress: Ingress) -> Self {
        self.with(|r| r.ingress = ingress)
    }

    /// A key of the caller's, instead of the one that the contract gives.
    pub fn key(self, key: impl Into<String>) -> Self {
        self.with(|r| r.key = Some(key.into()))
    }

    /// What the caller calls the whole affair.
    pub fn correlation_id(self, id: impl Into<String>) -> Self {
        self.with(|r| r.correlation_id = Some(id.into()))
    }

    /// The trace it belongs to.
    pub fn trace_id(self, id: impl Into<String>) -> Self {
        self.with(|r| r.trace_id = Some(id.into()))
    }

    /// Waits for another command to succeed; if that can no longer be, this one is cancelled.
    pub fn after(self, command_id: impl Into<String>) -> Self {
        let command_id = command_id.into();
        let required = Some(CommandStatus::Succeeded);
        self.after_with(op::Parent { command_id, required, propagate: true })
    }

    /// Waits for another command in a way of its own.
    pub fn after_with(self, parent: op::Parent) -> Self {
        self.with(|r| r.after.push(parent))
    }

    /// Gives it up if it has not begun by then.
    pub fn expires_at(self, at: Timestamp) -> Self {
        self.with(|r| r.expires_at = Some(at))
    }

    /// Lower goes first, on a queue with priorities.
    pub fn priority(self, priority: i64) -> Self {
        self.with(|r| r.priority = priority)
    }

    /// Runs it without any effect: effects are planned and shown, and its key stays free.
    pub fn dry_run(self) -> Self {
        self.with(|r| r.dry_run = true)
    }
}

impl<T: Send + 'static> IntoFuture for SubmitCall<T> {
    type Output = Result<Command<T>>;
    type IntoFuture = BoxFuture<'static, Result<Command<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (client, (contract, payload)) = (self.client, self.made?);
            let governance = client.governance.as_deref();
            let submit =
                ingress::submit_op(&client.inner, governance, &contract, &payload, self.request)?;
            let (command_id, new) = client.carry_out(submit).await?;
            Ok(Command { client, command_id, new, output: PhantomData })
        })
    }
}

/// A handle to one command.
#[derive(Clone)]
pub struct Command<T> {
    client: Client,
    command_id: String,
    new: bool,
    output: PhantomData<fn() -> T>,
}

impl<T> Command<T> {
    /// The command's id.
    pub fn id(&self) -> &str {
        &self.command_id
    }

    /// Whether this submission made the command, rather than found it.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// The command as it is stored.
    pub async fn info(&self) -> Result<CommandInfo> {
        self.client.inner.command(&self.command_id).await
    }

    /// Where it stands.
    pub async fn status(&self) -> Result<CommandStatus> {
        Ok(self.info().await?.command.status)
    }

    /// The run that carries it out. While the command waits for others, there is none yet.
    pub async fn run(&self) -> Result<Run<T>> {
        Ok(self.client.run(self.info().await?.command.workflow_id))
    }

    /// What happened to it, oldest first.
    pub async fn events(&self) -> Result<Vec<op::EventRow>> {
        let command_id = Some(self.command_id.clone());
        self.client.events(op::ListEvents { command_id, limit: 1000, ..Default::default() }).await
    }

    /// Stops it: what is under way is let end, nothing else begins. An error says that it had ended
    /// before.
    pub async fn cancel(&self, reason: &str, actor: &str) -> Result<CommandStatus> {
        self.client.inner.cancel_command(&self.command_id, reason, actor).await
    }

    /// Gives it the payload that a policy found something missing in, whole. It is judged again,
    /// and goes on from there.
    pub async fn supply(&self, payload: impl Serialize, actor: &str) -> Result<CommandStatus> {
        let row = self.info().await?.command;
        let registered = self.client.contracts.get(&row.command_type)?;
        let mut payload = serde_json::to_value(payload).map_err(|e| {
            Error::invalid("SF-0101", format!("the payload cannot be written as JSON: {e}"))
        })?;
        registered.check(&payload)?;
        let (contract, now) = (&registered.command, self.client.inner.now());
        let context = Context::parse(&row.context)?;
        let around = serde_json::to_value(&context).unwrap_or_default();
        let own_key = row.idempotency_key.is_some() && contract.key_template.is_some();
        let same = !own_key || contract.key(&payload, &around)? == row.idempotency_key;
        if !same || contract.needs(&payload)? != context.needs {
            let text = "what is supplied would make it another command: its key, or what one must \
                        be allowed to do for it, would differ";
            return Err(Error::new(ErrorClass::Conflict, "SF-0501", text));
        }
        let asked = Asked {
            command_id: &row.command_id,
            requested_by: &row.requested_by,
            ingress: Ingress::parse(&row.ingress).unwrap_or(Ingress::ApiRequest),
            needs: contract.needs(&payload)?,
            now,
        };
        let governance = self.client.governance.as_deref();
        let admitted = admit(governance, contract, &mut payload, &asked)?;
        let supply = op::Supply {
            workspace: self.client.inner.workspace().to_owned(),
            command_id: row.command_id.clone(),
            payload: json::encode("the payload", &payload)?,
            judgement: admitted.judgement.map(|judgement| judgement.to_json().to_string()),
            hold: admitted.hold,
            actor: actor.to_owned(),
            now,
        };
        self.client.inner.supply(supply).await
    }

    /// Takes it back, where it has failed and something is left to undo: a compensation that failed
    /// was repaired since, say. Gives the run that does it.
    pub async fn take_back(&self, actor: &str) -> Result<String> {
        self.client.inner.take_back(&self.command_id, actor).await
    }

    /// Waits until it is over, whichever way.
    pub async fn ended(&self) -> Result<CommandInfo> {
        self.client.inner.wait_command(&self.command_id).await?;
        self.info().await
    }
}

impl<T: DeserializeOwned> Command<T> {
    /// Waits for its result.
    pub async fn result(&self) -> Result<T> {
        let command = self.client.inner.wait_command(&self.command_id).await?;
        match (command.status, command.result, command.error) {
            (CommandStatus::Succeeded, Some(result), _) => json::decode("the result", &result),
            (_, _, Some(error)) => Err(error),
            (status, _, None) => Err(Error::app(format!("the command ended as {status}"))),
        }
    }
}

/// The contracts that a client without any has.
pub(crate) fn no_contracts() -> Arc<Contracts> {
    Arc::new(Contracts::default())
}
