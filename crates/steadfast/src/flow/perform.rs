//! The gate: policy decides again before every effect and every call of a connector.
//!
//! Invariants: what a contract does not declare is refused, and so is everything once the command
//! is stopped; a connector's scope and limits hold
//! whether or not a chain names them; a write goes by an effect; counters are taken only when every
//! other stage has let it pass, and then all of them at once.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use steadfast_core::command::{Book, CommandType, Context};
use steadfast_core::env::Env;
use steadfast_core::gate::{Gate, Leaving, Passage, Verdict, effect_seen};
use steadfast_core::policy::{Act, Decision, Doing, Finding, Judgement, Ruling, Stage};
use steadfast_core::{Error, ErrorClass, Result};
use steadfast_store::op::{CommandRef, GetCommand, is_stopped, not_begun};
use steadfast_store::{OpenStore, StoreExt};

use super::spend::after;
use crate::governance::Governance;

/// Decides on what leaves.
pub(crate) struct Gatekeeper {
    pub(crate) governance: Arc<Governance>,
    pub(crate) book: Arc<Book>,
    pub(crate) store: OpenStore,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) workspace: String,
}

impl Gate for Gatekeeper {
    fn judge<'a>(&'a self, leaving: Leaving<'a>) -> BoxFuture<'a, Result<Verdict>> {
        Box::pin(self.decide(leaving))
    }

    fn refuses(&self, context: &Context, verb: &str) -> Option<Judgement> {
        if context.command_id.is_empty() {
            return None;
        }
        let payload = Value::from(verb);
        let mut act = Act::admit(&context.requested_by, &context.command_type, payload);
        match self.book.0.get(&context.command_type) {
            Some(contract) if !contract.agent => None,
            Some(_) => {
                act.agent = true;
                Some(one(Stage::AgentRisk, agent_commits(), &act))
            }
            None => {
                let text = format!("\"{}\" is not registered here", context.command_type);
                Some(one(Stage::Permission, Finding::deny("not_registered", text), &act))
            }
        }
    }

    fn is_agent(&self, context: &Context) -> bool {
        self.book.0.get(&context.command_type).is_some_and(|contract| contract.agent)
    }

    fn drift(&self, context: &Context, compensation: &str, effect_type: &str) -> bool {
        let contract = self.book.0.get(&context.command_type);
        let declared = contract.and_then(|contract| contract.compensations.get(compensation));
        declared.is_none_or(|c| !c.produces.iter().any(|made| made == effect_type))
    }
}

impl Gatekeeper {
    async fn decide(&self, leaving: Leaving<'_>) -> Result<Verdict> {
        if leaving.context.command_id.is_empty() {
            return self.plain(&leaving).await;
        }
        let Some(contract) = self.book.0.get(&leaving.context.command_type) else {
            let text = format!(
                "command type \"{}\" is not registered here, so nothing of it may leave",
                leaving.context.command_type
            );
            let error = Error::new(ErrorClass::PolicyDenied, "SF-0809", text);
            return Ok(refused("not_registered", error, &leaving));
        };
        if let Some(stopped) = self.stopped(&leaving).await? {
            return Ok(refused("command_stopped", stopped, &leaving));
        }
        let (act, judgement) = judged(&self.governance, contract, &leaving)?;
        // What undoes another effect is not undone itself.
        let forward = leaving.effect.filter(|spec| spec.undoes.is_none());
        let declared = forward.and_then(|spec| contract.effects.get(&spec.effect_type));
        let compensation = declared.and_then(|effect| effect.compensation.clone());
        let mut verdict = Verdict { compensation, ..plain(judgement, Passage::Go) };
        self.pass(contract, &leaving, &act, &mut verdict).await?;
        Ok(verdict)
    }

    /// Why nothing of the command begins any more, if so. The command's own run is fenced off when
    /// the command stops; only children can outlive it, so only they cost a look. The ledger looks
    /// by itself when an effect is entered.
    async fn stopped(&self, leaving: &Leaving<'_>) -> Result<Option<Error>> {
        if !leaving.child || leaving.effect.is_some() && !leaving.context.dry_run {
            return Ok(None);
        }
        let command_id = &leaving.context.command_id;
        let which = CommandRef::Id(command_id.clone());
        let get = GetCommand { workspace: self.workspace.clone(), which };
        let found = self.store.ask(get).await?.0;
        let status = found.map(|found| found.command.status).filter(|status| is_stopped(*status));
        Ok(status.map(|status| {
            Error::new(ErrorClass::Cancelled, "SF-0836", not_begun(command_id, status))
        }))
    }

    /// A run without a command: no contract, so no effects in the ledger; connectors keep their
    /// scope and limits.
    async fn plain(&self, leaving: &Leaving<'_>) -> Result<Verdict> {
        if self.book.0.contains_key(leaving.workflow) {
            let text = format!(
                "\"{}\" carries out commands: started without one, it has no effects",
                leaving.workflow
            );
            let error = Error::new(ErrorClass::PolicyDenied, "SF-0809", text);
            return Ok(refused("no_command", error, leaving));
        }
        let Some(calling) = leaving.call else {
            return Ok(plain(Judgement::default(), Passage::Open));
        };
        let known = self.governance.connectors.operation(&calling.connector, &calling.operation);
        if known.is_some_and(|operation| operation.mutates) {
            let text = format!(
                "\"{}\" of \"{}\" writes: it needs a command that declares it",
                calling.operation, calling.connector
            );
            let error = Error::new(ErrorClass::PolicyDenied, "SF-0809", text);
            return Ok(refused("no_command", error, leaving));
        }
        if known.is_none() {
            let error =
                steadfast_core::connector::out_of_scope(&calling.connector, &calling.operation);
            return Ok(refused("out_of_scope", error, leaving));
        }
        let mut verdict = plain(Judgement::default(), Passage::Go);
        self.spend(self.limits(leaving), leaving.now, &mut verdict).await?;
        if verdict.passage == Passage::Go && leaving.effect.is_some() {
            // Without a command there is no ledger to enter an effect in.
            verdict.passage = Passage::Open;
        }
        Ok(verdict)
    }

    /// What follows from a judgement, with the counters taken.
    async fn pass(
        &self,
        contract: &CommandType,
        leaving: &Leaving<'_>,
        act: &Act,
        verdict: &mut Verdict,
    ) -> Result<()> {
        let judgement = &verdict.judgement;
        let ruling = judgement.ruling();
        if let Some(denial) = judgement.denial() {
            verdict.passage = Passage::Refused(denial);
        } else if matches!(ruling, Ruling::RequireMoreInput | Ruling::Redact) {
            let by = judgement.decisive().map_or_else(String::new, |decision| {
                format!("{} ({})", decision.stage.as_str(), decision.finding.rule)
            });
            let text = format!("stage {by} wants it changed, which cannot be at this point");
            let error = Error::new(ErrorClass::PolicyDenied, "SF-0801", text);
            verdict.passage = Passage::Refused(error);
        } else if leaving.context.dry_run && matches!(act.doing, Doing::Effect { .. }) {
            verdict.passage = Passage::Plan;
        } else if ruling.needs_approval() && !leaving.approved {
            // One question for everything that wants one: a yes to less would not be a yes to this.
            self.foresee(&self.costs(contract, leaving), leaving.now, verdict).await?;
            verdict.passage = after(&verdict.judgement);
        } else {
            let mut wants = self.limits(leaving);
            wants.extend(self.costs(contract, leaving));
            self.spend(wants, leaving.now, verdict).await?;
        }
        Ok(())
    }
}

/// What the contract and its chain make of something about to leave: all of it that needs no store.
pub(super) fn judged(
    governance: &Governance,
    contract: &CommandType,
    leaving: &Leaving<'_>,
) -> Result<(Act, Judgement)> {
    let act = act(governance, contract, leaving);
    let judgement = match forbidden(contract, leaving, &act) {
        Some((stage, finding)) => one(stage, finding, &act),
        None => governance.policies.judge(&chain(contract, leaving, &act), &act)?,
    };
    Ok((act, judgement))
}

fn act(governance: &Governance, contract: &CommandType, leaving: &Leaving<'_>) -> Act {
    let connectors = &governance.connectors;
    let operation = leaving.call.map(|c| (c, connectors.operation(&c.connector, &c.operation)));
    let payload = seen(leaving);
    let mut act = Act::admit(&leaving.context.requested_by, &contract.name, payload);
    act.agent = contract.agent;
    act.needs.clone_from(&leaving.context.needs);
    if let Some((calling, found)) = &operation {
        act.classes = found.and_then(|operation| operation.classes);
        act.doing = Doing::Call {
            connector: calling.connector.clone(),
            operation: calling.operation.clone(),
            in_scope: found.is_some(),
            mutates: found.is_some_and(|operation| operation.mutates),
        };
    }
    if let Some(spec) = leaving.effect {
        let declared = contract.effects.get(&spec.effect_type);
        // Calling a serious operation harmless does not make it so.
        let own = declared.and_then(|effect| effect.classes);
        act.classes = match (own, act.classes) {
            (Some(own), Some(operation)) => Some(own.or_worse(operation)),
            (own, operation) => own.or(operation),
        };
        if let Some((calling, None)) = &operation {
            let out = format!("{} {}", calling.connector, calling.operation);
            act.out_of_scope.push(out);
        }
        act.doing = Doing::Effect {
            effect_type: spec.effect_type.clone(),
            key: spec.key.clone(),
            declared: declared.is_some(),
            via: leaving.call.map(|c| (c.connector.clone(), c.operation.clone())),
        };
    }
    act.with_grants(&governance.grants)
}

/// The contract's chain; a connector's scope, and whether people have to say yes, is asked in any
/// case.
fn chain(contract: &CommandType, leaving: &Leaving<'_>, act: &Act) -> Vec<Stage> {
    let mut chain = contract.chain();
    let mut always = |stage| {
        if !chain.contains(&stage) {
            chain.push(stage);
        }
    };
    if leaving.call.is_some() {
        always(Stage::ConnectorScope);
    }
    if leaving.effect.is_some() && act.classes.is_some_and(|classes| !classes.asks_nobody()) {
        always(Stage::ApprovalRequirement);
    }
    chain
}

/// What policies and people look at: what the ledger will have, and what is really sent where that
/// is something else.
fn seen(leaving: &Leaving<'_>) -> Value {
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    match (leaving.effect, leaving.call) {
        (Some(spec), Some(calling)) => effect_seen(&spec.payload, &calling.input),
        (Some(spec), None) => read(&spec.payload),
        (None, Some(calling)) => read(&calling.input),
        (None, None) => Value::Null,
    }
}

fn agent_commits() -> Finding {
    Finding::deny("agent_commits", "an agent proposes commands; it commits to nothing")
}

/// What no policy can allow: an effect that nobody declared or classed, a write that is no effect,
/// and anything of the kind by an agent.
fn forbidden(contract: &CommandType, leaving: &Leaving<'_>, act: &Act) -> Option<(Stage, Finding)> {
    Some(match &act.doing {
        Doing::Effect { .. } | Doing::Call { mutates: true, .. } if act.agent => {
            (Stage::AgentRisk, agent_commits())
        }
        Doing::Effect { effect_type, declared: false, .. } => {
            let text = format!(
                "the contract of \"{}\" does not declare effect \"{effect_type}\"",
                contract.name
            );
            (Stage::Permission, Finding::deny("undeclared_effect", text))
        }
        Doing::Effect { .. } if act.classes.is_none() => {
            let text = "nobody said how serious it is";
            (Stage::ApprovalRequirement, Finding::deny("unclassified", text))
        }
        Doing::Call { connector, operation, mutates: true, .. } if leaving.effect.is_none() => {
            let text = format!("\"{operation}\" of \"{connector}\" writes: it needs an effect");
            (Stage::ConnectorScope, Finding::deny("write_without_effect", text))
        }
        _ => return None,
    })
}

/// A judgement of one decision.
fn one(stage: Stage, finding: Finding, act: &Act) -> Judgement {
    Judgement { decisions: vec![Decision { stage, finding, inputs: act.digest() }] }
}

/// Puts a finding in the place of its stage, or at the end.
pub(super) fn set(judgement: &mut Judgement, stage: Stage, finding: Finding) {
    let inputs = judgement.decisions.first().map(|d| d.inputs.clone()).unwrap_or_default();
    match judgement.decisions.iter_mut().find(|d| d.stage == stage) {
        Some(decision) => decision.finding = finding,
        None => judgement.decisions.push(Decision { stage, finding, inputs }),
    }
}

pub(super) fn ask(judgement: &Judgement) -> Passage {
    match judgement.asks() {
        Ok(asks) => Passage::Ask(Box::new(asks)),
        Err(nobody) => Passage::Refused(nobody),
    }
}

/// A refusal before any stage was asked; the audit has it as a decision all the same.
fn refused(rule: &str, error: Error, leaving: &Leaving<'_>) -> Verdict {
    let (context, finding) = (leaving.context, Finding::deny(rule, error.message()));
    let act = Act::admit(&context.requested_by, &context.command_type, seen(leaving));
    plain(one(Stage::Permission, finding, &act), Passage::Refused(error))
}

fn plain(judgement: Judgement, passage: Passage) -> Verdict {
    Verdict { judgement, passage, compensation: None, taken: Vec::new(), cap: None }
}
