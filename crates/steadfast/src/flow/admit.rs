//! Policy decides on a new command: before it is written, as part of the same commit.

use serde_json::Value;
use steadfast_core::approval::ApprovalRequest;
use steadfast_core::command::{CommandType, Ingress};
use steadfast_core::policy::{Act, Judgement, Ruling};
use steadfast_core::{Error, Result, Timestamp, json};
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
    let chain = contract.chain();
    if chain.is_empty() {
        return Ok(Admitted::default());
    }
    let governance = governance.ok_or_else(|| undecided(&contract.name))?;
    let act = act(governance, contract, payload, asked);
    let judgement = governance.policies.judge(&chain, &act);
    for field in judgement.redacted() {
        redact(payload, &field);
    }
    let ruling = judgement.ruling();
    let hold = match ruling {
        Ruling::Deny => judgement.denial().map(Hold::Denied),
        Ruling::RequireApproval | Ruling::Escalate => {
            Some(Hold::Approval(Box::new(question(contract, payload, asked, &judgement))))
        }
        Ruling::RequireMoreInput => Some(Hold::Input(why(&judgement))),
        Ruling::Allow | Ruling::RouteSync | Ruling::RouteAsync | Ruling::Redact => None,
    };
    let says = |ruling| judgement.decisions.iter().any(|d| d.finding.ruling == ruling);
    let by_queue = says(Ruling::RouteAsync);
    Ok(Admitted { judgement: Some(judgement), hold, by_queue })
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

/// The question whether a command may begin.
fn question(
    contract: &CommandType,
    payload: &Value,
    asked: &Asked<'_>,
    judgement: &Judgement,
) -> NewApproval {
    let mut request = ApprovalRequest::new(&contract.name, &contract.name)
        .payload(payload.clone())
        .reason(why(judgement));
    request.approvers = judgement.approvers();
    NewApproval {
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
        escalate_at: None,
    }
}

/// Takes a field out of a payload, by its path.
fn redact(payload: &mut Value, path: &str) {
    let (way, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut parts = way.split('.').filter(|part| !part.is_empty());
    let at = parts.try_fold(payload, |at, part| at.get_mut(part));
    if let Some(Value::Object(fields)) = at
        && let Some(value) = fields.get_mut(last)
    {
        *value = Value::from("[redacted]");
    }
}

/// What a chain decides of a command, without any of it being done: for `policy test`.
pub(crate) fn try_out(
    governance: &Governance,
    contract: &CommandType,
    payload: &Value,
    requested_by: &str,
) -> Result<Judgement, Error> {
    let asked = Asked {
        command_id: "",
        requested_by,
        ingress: Ingress::ApiRequest,
        needs: contract.needs(payload)?,
        now: Timestamp::default(),
    };
    let act = act(governance, contract, payload, &asked);
    Ok(governance.policies.judge(&contract.chain(), &act))
}
