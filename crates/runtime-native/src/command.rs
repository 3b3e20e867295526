//! Commands, as a client sees them: submitted, found, cancelled, waited for.

use std::time::Duration;

use futures::future::BoxFuture;
use steadfast_core::{CommandStatus, Error, ErrorClass, Result, Timestamp};
use steadfast_store::{StoreExt, op};

use crate::client::{Client, RunEnd};
use crate::hub::Notice;

impl Client {
    /// Carries out an operation of the store.
    pub async fn ask<O: op::Operation + Send + 'static>(&self, op: O) -> Result<O::Reply> {
        Ok(self.hub.store.ask(op).await?)
    }

    /// Hints that something is ready on a queue.
    pub fn ring(&self) {
        self.hub.ready.ring();
    }

    /// The metrics of this process, as OpenMetrics has it.
    pub fn metrics(&self) -> String {
        self.hub.metrics.text(self.hub.store.tally())
    }

    /// Spawns a task of the fabric's that is begun anew whenever it panics.
    pub fn keep(
        &self,
        name: &'static str,
        work: impl Fn() -> BoxFuture<'static, ()> + Send + 'static,
    ) {
        self.hub.keep(name, work);
    }

    /// Counts an event for which the filter of a trigger failed.
    pub fn filter_failed(&self, trigger_id: &str, kind: &str) {
        self.hub.metrics.filter_failed(trigger_id, kind);
    }

    /// The workspace.
    pub fn workspace(&self) -> &str {
        &self.hub.workspace
    }

    /// The world.
    pub fn env(&self) -> &std::sync::Arc<dyn steadfast_core::env::Env> {
        &self.hub.env
    }

    /// What a reply to a submission means: the command's id, whether it is new, and its lease.
    pub fn submitted(
        &self,
        submit: &op::Submit,
        reply: op::Submitted,
    ) -> Result<(String, bool, Option<op::Lease>)> {
        let conflict = |code: &str, text: String| Err(Error::new(ErrorClass::Conflict, code, text));
        match reply {
            op::Submitted::New(_, lease) => {
                if lease.is_none() {
                    self.ring();
                }
                Ok((submit.command_id.clone(), true, lease))
            }
            op::Submitted::Existing(command_id, _) => Ok((command_id, false, None)),
            op::Submitted::Conflict(command_id, field) => conflict(
                "SF-0501",
                format!(
                    "command \"{command_id}\" has the same key (\"{}\") and another {field}; \
                     nothing was changed",
                    submit.idempotency_key.as_deref().unwrap_or(&submit.start.run_id)
                ),
            ),
            op::Submitted::NoQueue => Err(Error::new(
                ErrorClass::NotFound,
                "SF-0112",
                format!("there is no queue \"{}\"", submit.start.queue),
            )),
            op::Submitted::NoParent(parent) => Err(Error::new(
                ErrorClass::NotFound,
                "SF-0506",
                format!("there is no command \"{parent}\" to wait for"),
            )),
            op::Submitted::RunTaken => conflict(
                "SF-0508",
                format!("run \"{}\" exists and belongs to no command", submit.start.run_id),
            ),
        }
    }

    /// One command, if there is one.
    pub async fn find_command(&self, which: op::CommandRef) -> Result<Option<op::CommandDetail>> {
        let get = op::GetCommand { workspace: self.hub.workspace.clone(), which };
        Ok(self.ask(get).await?.0.map(|found| *found))
    }

    /// One command by its id; an error if there is none.
    pub async fn command(&self, command_id: &str) -> Result<op::CommandDetail> {
        let which = op::CommandRef::Id(command_id.to_owned());
        self.find_command(which).await?.ok_or_else(|| no_command(command_id))
    }

    /// Cancels a command: what is under way is let end, nothing else begins. An error says that it
    /// had ended before.
    pub async fn cancel_command(
        &self,
        command_id: &str,
        reason: &str,
        actor: &str,
    ) -> Result<CommandStatus> {
        let text = if reason.is_empty() { "the command was cancelled" } else { reason };
        let reason = Error::new(ErrorClass::Cancelled, "SF-0305", text);
        let run_id = self.command(command_id).await?.command.workflow_id;
        let cancel = op::CancelCommand {
            workspace: self.hub.workspace.clone(),
            command_id: command_id.to_owned(),
            reason: reason.clone(),
            actor: actor.to_owned(),
            now: self.hub.now(),
        };
        match self.ask(cancel).await? {
            op::CommandCancelled::Done(status) => {
                let end =
                    RunEnd { status: steadfast_core::RunStatus::Cancelled, outcome: Err(reason) };
                self.hub.notify(&run_id, Notice::Stopped);
                self.hub.ended(&run_id, &end);
                self.ring();
                Ok(status)
            }
            op::CommandCancelled::AlreadyOver(status) => Err(Error::new(
                ErrorClass::Conflict,
                "SF-0513",
                format!("command \"{command_id}\" has ended before as {status}"),
            )),
            op::CommandCancelled::NotFound => Err(no_command(command_id)),
        }
    }

    /// Gives a command what its payload lacked; where that leaves it.
    pub async fn supply(&self, supply: op::Supply) -> Result<CommandStatus> {
        let command_id = supply.command_id.clone();
        match self.ask(supply).await? {
            op::Supplied::Done(status) => {
                self.ring();
                Ok(status)
            }
            op::Supplied::NotWaiting(status) => Err(Error::new(
                ErrorClass::Conflict,
                "SF-0518",
                format!("command \"{command_id}\" is {status}; it waits for no input"),
            )),
            op::Supplied::NotFound => Err(no_command(&command_id)),
        }
    }

    /// Takes a failed command back: where a compensation has failed and was repaired since, or
    /// where somebody has said since that an effect was done. Gives the run that does it.
    pub async fn take_back(&self, command_id: &str, actor: &str) -> Result<String> {
        let take = op::TakeBack {
            workspace: self.hub.workspace.clone(),
            command_id: command_id.to_owned(),
            actor: actor.to_owned(),
            now: self.hub.now(),
        };
        let conflict = |text: String| Err(Error::new(ErrorClass::Conflict, "SF-0838", text));
        match self.ask(take).await? {
            op::TakenBack::Begun(run_id) => {
                self.ring();
                Ok(run_id)
            }
            op::TakenBack::Nothing => {
                conflict(format!("command \"{command_id}\" has nothing left to take back"))
            }
            op::TakenBack::NotFailed(status) => conflict(format!(
                "command \"{command_id}\" is {status}; only a failed one is taken back by hand"
            )),
            op::TakenBack::NotFound => Err(no_command(command_id)),
        }
    }

    /// Waits until a command is over.
    pub async fn wait_command(&self, command_id: &str) -> Result<op::CommandRow> {
        let mut pause = Duration::from_millis(5);
        loop {
            let command = self.command(command_id).await?.command;
            if command.completed_at.is_some() {
                return Ok(command);
            }
            // A command that waits for others has no run yet; one that is being cancelled, none
            // any more.
            match self.find(&command.workflow_id).await? {
                Some(run) if !run.status.is_terminal() => {
                    self.wait(&command.workflow_id).await?;
                }
                _ => {
                    self.hub.env.sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    /// Ends commands whose time is up; gives how many.
    pub async fn settle_commands(&self, now: Timestamp) -> Result<usize> {
        let limit = steadfast_core::limits::PURGE_BATCH;
        let workspace = self.hub.workspace.clone();
        let settled = self.ask(op::SettleCommands { workspace, left: None, limit, now }).await?;
        if !settled.0.is_empty() {
            self.ring();
        }
        Ok(settled.0.len())
    }
}

fn no_command(command_id: &str) -> Error {
    let text = format!("there is no command \"{command_id}\"");
    Error::new(ErrorClass::NotFound, "SF-0505", text)
}
