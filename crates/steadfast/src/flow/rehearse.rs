//! A command and all that it does, judged as if it were done; nothing is.

use serde_json::Value;
use steadfast_core::command::{CommandType, Context};
use steadfast_core::connector::Limits;
use steadfast_core::driver::EffectClass;
use steadfast_core::effect::EffectSpec;
use steadfast_core::gate::{Calling, Leaving};
use steadfast_core::policy::{Finding, Judgement, Stage};
use steadfast_core::{Result, Timestamp};

use super::admit::{self, Asked};
use super::perform;
use crate::governance::Governance;
use crate::trial::{Deed, Trial, Tried};

/// Admission first, then each thing that it does.
pub(crate) fn try_out(
    governance: &Governance,
    contract: &CommandType,
    trial: &Trial,
) -> Result<Vec<Tried>> {
    let mut payload = trial.payload.clone();
    let asked = Asked {
        command_id: "",
        requested_by: &trial.context.requested_by,
        ingress: trial.ingress,
        needs: contract.needs(&payload)?,
        now: Timestamp::default(),
    };
    let (act, judgement) = admit::judged(governance, contract, &mut payload, &asked)?;
    let mut tried = vec![Tried { doing: act.doing, judgement }];
    let mut context = Context {
        command_id: "trial".to_owned(),
        command_type: contract.name.clone(),
        needs: asked.needs,
        ..trial.context.clone()
    };
    if context.idempotency_key.is_none() {
        context.idempotency_key = contract.key(&trial.payload, &context)?;
    }
    let declared;
    let deeds = match trial.deeds.is_empty() {
        true => {
            declared = all_of(governance, contract);
            &declared
        }
        false => &trial.deeds,
    };
    for deed in deeds {
        tried.push(one(governance, contract, &context, &payload, deed)?);
    }
    Ok(tried)
}

/// What a contract declares. Writes by connectors are performed by effects, and tried with those.
fn all_of(governance: &Governance, contract: &CommandType) -> Vec<Deed> {
    let reads = contract.calls.iter().filter_map(|call| {
        let (connector, operation) = call.split_once(' ')?;
        let known = governance.connectors.operation(connector, operation);
        let writes = known.is_some_and(|operation| operation.mutates);
        (!writes).then(|| Deed::call(connector, operation))
    });
    contract.effects.keys().map(Deed::effect).chain(reads).collect()
}

fn one(
    governance: &Governance,
    contract: &CommandType,
    context: &Context,
    whole: &Value,
    deed: &Deed,
) -> Result<Tried> {
    let payload = deed.payload.as_ref().unwrap_or(whole);
    let effect = match &deed.effect {
        Some(effect_type) => {
            let by_contract = || contract.effect_key(effect_type, payload, context);
            let key = match (&deed.key, &deed.payload) {
                (Some(key), _) => key.clone(),
                (None, Some(_)) => by_contract()?,
                // The command's payload only stands for the effect's, which may have other fields.
                (None, None) => by_contract().unwrap_or_default(),
            };
            Some(EffectSpec {
                effect_type: effect_type.clone(),
                key,
                class: EffectClass::AtMostOnce,
                payload: payload.to_string(),
                undoes: None,
                compensation: None,
                dry: None,
            })
        }
        None => None,
    };
    let call = deed.via.as_ref().map(|(connector, operation)| Calling {
        connector: connector.clone(),
        operation: operation.clone(),
        input: payload.to_string(),
    });
    let leaving = Leaving {
        context,
        run_id: &context.command_id,
        workflow: &contract.workflow,
        effect: effect.as_ref(),
        call: call.as_ref(),
        attempt: 1,
        approved: false,
        child: false,
        owed: Vec::new(),
        now: Timestamp::default(),
    };
    let (act, mut judgement) = perform::judged(governance, contract, &leaving)?;
    uncounted(governance, &leaving, &mut judgement);
    Ok(Tried { doing: act.doing, judgement })
}

/// That nothing limits it is not what a stage says whose counters were not asked.
fn uncounted(governance: &Governance, leaving: &Leaving<'_>, judgement: &mut Judgement) {
    let limits = leaving.call.and_then(|call| governance.connectors.get(&call.connector));
    let limited = limits.is_some_and(|connector| connector.limits() != Limits::default());
    for decision in &mut judgement.decisions {
        let counted = match (decision.stage, decision.finding.rule.as_str()) {
            (Stage::RateLimit, "no_bucket") => limited,
            (Stage::Cost, "no_budget") => !governance.budgets.is_empty(),
            _ => false,
        };
        if counted {
            let text = "it is counted when it is done; what is left then is not known now";
            decision.finding = Finding::allow("counted_when_done", text);
        }
    }
}
