//! Policy decides on a new command: before it is written, as part of the same commit.

use serde_json::Value;
use steadfast_core::command::{CommandType, Ingress};
use steadfast_core::policy::{Act, Judgement, Ruling};
use steadfast_core::{Result, Timestamp, json};
use steadfast_store::op::{Hold, NewApproval};

use crate::governance::{Governance, undecided};

/// What the chain made of a command.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    /// What each stage decided, if any was asked.
    pub(crate) judgement: Option<Judgement>,
    /// Why it does not begin, if it does not.
    pub(crate) hold: Option<Hold>,
    /// Whether it goes by its queue, even where it could begin at once.
    pub(crate) by_queue: bool,
}

/// Who asks, and how.
pub(crate) struct Asked<'a> {
    pub(crate) command_id: &'a str,
    pub(crate) requested_by: &'a str,
    pub(crate) ingress: Ingress,
    /// What one must be allowed to do for it.
    pub(crate) needs: Vec<String>,
    pub(crate) now: Timestamp,
}

/// Judges a command; takes out of its payload what has to be left out.
pub(crate) fn admit(
    governance: Option<&Governance>,
    contract: &CommandType,
    payload: &mut Value,
    asked: &Asked<'_>,
) -> Result<Admitted> {
    if contract.chain().is_empty() {
        return Ok(Admitted::default());
    }
    let governance = governance.ok_or_else(|| undecided(&contract.name))?;
    let (_, judgement) = judged(governance, contract, payload, asked)?;
    let ruling = judgement.ruling();
    let hold = match ruling {
        Ruling::Deny => judgement.denial().map(Hold::Denied),
        Ruling::RequireApproval | Ruling::Escalate => {
            Some(match question(contract, payload, asked, &judgement) {
                Ok(question) => Hold::Approval(Box::new(question)),
                Err(nobody) => Hold::Denied(nobody),
            })
        }
        Ruling::RequireMoreInput => Some(Hold::Input(why(&judgement))),
        Ruling::Allow | Ruling::RouteSync | Ruling::RouteAsync | Ruling::Redact => None,
    };
    let says = |ruling| judgement.decisions.iter().any(|d| d.finding.ruling == ruling);
    let by_queue = says(Ruling::RouteAsync);
    Ok(Admitted { judgement: Some(judgement), hold, by_queue })
}

/// What the chain makes of a command; what has to be left out of its payload is taken out.
pub(super) fn judged(
    governance: &Governance,
    contract: &CommandType,
    payload: &mut Value,
    asked: &Asked<'_>,
) -> Result<(Act, Judgement)> {
    let act = act(governance, contract, payload, asked);
    let judgement = governance.policies.judge(&contract.chain(), &act)?;
    for field in judgement.redacted() {
        // The key and the needs were made before: what they hold would be kept in any case.
        contract.check_redacted(&field)?;
        redact(payload, &field);
    }
    Ok((act, judgement))
}

fn act(governance: &Governance, contract: &CommandType, payload: &Value, asked: &Asked<'_>) -> Act {
    let in_scope = |call: &&String| {
        call.split_once(' ').is_some_and(|(connector, operation)| {
            governance.connectors.operation(connector, operation).is_some()
        })
    };
    let out_of_scope = contract.calls.iter().filter(|call| !in_scope(call)).cloned().collect();
    let act = Act {
        needs: asked.needs.clone(),
        ingress: asked.ingress.as_str().to_owned(),
        classes: contract.classes,
        agent: contract.agent,
        out_of_scope,
        ..Act::admit(asked.requested_by, &contract.name, payload.clone())
    };
    act.with_grants(&governance.grants)
}

fn why(judgement: &Judgement) -> String {
    judgement.decisive().map(|d| d.finding.reason.clone()).unwrap_or_default()
}

/// The question whether a command may begin; an error if nobody could answer it.
fn question(
    contract: &CommandType,
    payload: &Value,
    asked: &Asked<'_>,
    judgement: &Judgement,
) -> Result<NewApproval> {
    let request = judgement.asks()?.request(&contract.name, &contract.name);
    let request = request.payload(payload.clone());
    Ok(NewApproval {
        approval_id: format!("apr_{}", json::fingerprint(asked.command_id)),
        digest: request.digest(),
        approval_type: request.approval_type,
        action: request.action,
        reason: request.reason,
        payload: request.payload.to_string(),
        requested_by: asked.requested_by.to_owned(),
        approvers: i64::from(request.approvers),
        among: request.among,
        expires_at: asked.now.after(request.ttl),
        escalate_at: request.escalate_after.map(|d| asked.now.after(d)),
    })
}

/// Takes a field out of a payload, by its path; a number, or `*` for all, names items of a list.
fn redact(payload: &mut Value, path: &str) {
    let (part, rest) = path.split_once('.').map_or((path, None), |(part, rest)| (part, Some(rest)));
    let mut found: Vec<&mut Value> = match payload {
        Value::Object(fields) => fields.get_mut(part).into_iter().collect(),
        Value::Array(items) if part == "*" => items.iter_mut().collect(),
        Value::Array(items) => {
            part.parse().ok().and_then(|at: usize| items.get_mut(at)).into_iter().collect()
        }
        _ => Vec::new(),
    };
    for value in &mut found {
        match rest {
            Some(rest) => redact(value, rest),
            None => **value = Value::from("[redacted]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_to_be_left_out_is_found_in_lists_too() {
        let mut payload = json!({
            "ssn": "1", "to": { "ssn": "2", "name": "n" },
            "items": [{ "ssn": "3" }, { "ssn": "4" }, { "id": 5 }],
        });
        for path in ["ssn", "to.ssn", "items.*.ssn", "items.2.id", "not.there", "to.name.deeper"] {
            redact(&mut payload, path);
        }
        let gone = "[redacted]";
        let wanted = json!({
            "ssn": gone, "to": { "ssn": gone, "name": "n" },
            "items": [{ "ssn": gone }, { "ssn": gone }, { "id": gone }],
        });
        assert_eq!(payload, wanted);
    }
}
