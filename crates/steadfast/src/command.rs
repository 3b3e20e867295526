//! Commands: submissions and handles.

use std::future::IntoFuture;
use std::marker::PhantomData;

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use steadfast_core::command::{CommandType, Ingress};
use steadfast_core::workflow::Workflow;
use steadfast_core::{CommandStatus, Error, Result, Retry, Timestamp, json};
use steadfast_store::op;

use crate::client::Client;
use crate::flow::ingress::{self, Request};
use crate::run::Run;

/// A command as it is stored, with what it waits for and who else wanted it.
pub type CommandInfo = op::CommandDetail;

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
            let payload = written(payload)?;
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
        let client = &self.client;
        let registered = client.contracts.get(&row.command_type)?;
        let payload = written(payload)?;
        registered.check(&payload)?;
        let (governance, contract) = (client.governance.as_deref(), &registered.command);
        let supply = ingress::supply_op(&client.inner, governance, contract, &row, payload, actor)?;
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

fn written(payload: impl Serialize) -> Result<serde_json::Value> {
    json::value("the payload", &payload)
}
