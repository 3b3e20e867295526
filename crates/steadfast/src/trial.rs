//! Trying policies out: what a chain would decide of a command, and of all that it would do.
//!
//! Invariants: nothing is written, taken or sent; what is judged is judged by the same code as when
//! it is done. Deliberately absent: what depends on the moment. Rates and budgets are counted when
//! something is done, so a trial says that they will be asked, not what they will say.

use serde_json::Value;
use steadfast_core::command::{CommandType, Context, Ingress};
use steadfast_core::policy::{Doing, Judgement};
use steadfast_core::{Result, limits};
use steadfast_store::op::{
    CommandRow, EffectRow, InvocationRow, ListCommands, ListEffects, ListInvocations, PROBE,
};

use crate::client::Client;
use crate::flow::rehearse;
use crate::governance::{Governance, undecided};

/// A command to try policies on, and what it does.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a trial does nothing until policies are tried on it"]
pub struct Trial {
    pub(crate) context: Context,
    pub(crate) ingress: Ingress,
    pub(crate) payload: Value,
    pub(crate) deeds: Vec<Deed>,
}

impl Trial {
    /// A command with this payload. Unless it is said what it does, every effect that its contract
    /// declares, and every read that it names, is tried with the command's own payload.
    pub fn new(payload: Value, requested_by: impl Into<String>) -> Self {
        let context = Context { requested_by: requested_by.into(), ..Context::default() };
        Self { context, ingress: Ingress::ApiRequest, payload, deeds: Vec::new() }
    }

    /// By which door it comes.
    pub fn ingress(mut self, ingress: Ingress) -> Self {
        self.ingress = ingress;
        self
    }

    /// Something that it does.
    pub fn does(mut self, deed: Deed) -> Self {
        self.deeds.push(deed);
        self
    }

    fn past(row: &CommandRow, effects: &[EffectRow], calls: &[InvocationRow]) -> Result<Self> {
        let read = |text: &str| steadfast_core::json::decode::<Value>("the ledger's payload", text);
        let mut deeds = Vec::new();
        for effect in effects {
            let mine = |call: &&InvocationRow| {
                call.side_effect && call.idempotency_key == effect.idempotency_key
            };
            let deed = Deed::effect(&effect.effect_type).with(read(&effect.payload)?);
            let deed = deed.key(&effect.idempotency_key);
            deeds.push(match calls.iter().find(mine) {
                Some(call) => deed.via(&call.connector, &call.intended),
                None => deed,
            });
        }
        let reads = |call: &&InvocationRow| !call.side_effect && !call.intended.starts_with(PROBE);
        for call in calls.iter().filter(reads) {
            let deed = Deed::call(&call.connector, &call.intended).with(Value::Null);
            if !deeds.contains(&deed) {
                deeds.push(deed);
            }
        }
        Ok(Self {
            context: Context { undo: None, dry_run: false, ..Context::parse(&row.context)? },
            ingress: Ingress::parse(&row.ingress).unwrap_or(Ingress::ApiRequest),
            payload: read(&row.payload)?,
            deeds,
        })
    }
}

/// Something that a command does: an effect, or a call of a connector that changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Deed {
    pub(crate) effect: Option<String>,
    pub(crate) via: Option<(String, String)>,
    pub(crate) payload: Option<Value>,
    pub(crate) key: Option<String>,
}

impl Deed {
    /// An effect of this type.
    pub fn effect(effect_type: impl Into<String>) -> Self {
        Self { effect: Some(effect_type.into()), via: None, payload: None, key: None }
    }

    /// A call of a connector, such as `GET /sales/daily`.
    pub fn call(connector: impl Into<String>, operation: impl Into<String>) -> Self {
        let via = Some((connector.into(), operation.into()));
        Self { effect: None, via, payload: None, key: None }
    }

    /// The connector that performs the effect, and what it is asked.
    pub fn via(mut self, connector: impl Into<String>, operation: impl Into<String>) -> Self {
        self.via = Some((connector.into(), operation.into()));
        self
    }

    /// The key by which the effect's receiver knows it, instead of the one that its contract gives.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// What it is done with, instead of the command's own payload.
    pub fn with(mut self, payload: Value) -> Self {
        self.payload = Some(payload);
        self
    }
}

/// What a chain decided of one thing in a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// What would have been done.
    pub doing: Doing,
    /// What each stage said.
    pub judgement: Judgement,
}

impl Tried {
    /// What would have been done, in words: `admit`, `effect mail.send`, `call crm GET /deals`.
    pub fn what(&self) -> String {
        match &self.doing {
            Doing::Admit => "admit".to_owned(),
            Doing::Effect { effect_type, .. } => format!("effect {effect_type}"),
            Doing::Call { connector, operation, .. } => format!("call {connector} {operation}"),
        }
    }
}

impl Governance {
    /// What the chain of a contract decides of a command: first whether it is admitted, then of
    /// each thing that it does. Nothing is written, and nothing is done.
    pub fn try_out(&self, contract: &CommandType, trial: &Trial) -> Result<Vec<Tried>> {
        rehearse::try_out(self, contract, trial)
    }
}

impl Client {
    /// What the policies of this process would decide of a command of this type. Nothing is
    /// written, and nothing is done.
    pub fn try_out(&self, command_type: &str, trial: &Trial) -> Result<Vec<Tried>> {
        let contract = &self.contracts.get(command_type)?.command;
        let governance = self.governance.as_deref().ok_or_else(|| undecided(command_type))?;
        governance.try_out(contract, trial)
    }

    /// Past commands, newest first, with what the ledger has of their doings, to try policies on.
    /// The ledger keeps what effects were performed with, and digests of what was read with.
    pub async fn past(&self, which: ListCommands) -> Result<Vec<(CommandRow, Trial)>> {
        let (mut left, mut after, mut past) = (which.limit, which.after.clone(), Vec::new());
        loop {
            // In pages, up to as many as were asked for; none at all is refused by the store.
            let limit = left.min(limits::PAGE_ROWS);
            let page = self.commands(ListCommands { after, limit, ..which.clone() }).await?;
            left -= page.commands.len().min(left);
            for row in page.commands {
                let trial = self.trial_of(&row).await?;
                past.push((row, trial));
            }
            after = page.next;
            if after.is_none() || left == 0 {
                return Ok(past);
            }
        }
    }

    async fn trial_of(&self, row: &CommandRow) -> Result<Trial> {
        let (command_id, limit) = (Some(row.command_id.clone()), limits::PAGE_ROWS);
        let effects = ListEffects { command_id: command_id.clone(), limit, ..Default::default() };
        let calls = ListInvocations { command_id, limit, ..Default::default() };
        Trial::past(row, &self.effects(effects).await?, &self.invocations(calls).await?)
    }
}
