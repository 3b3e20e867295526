//! A trigger becomes a command: the contract checked, the key rendered, one operation made.

use serde_json::Value;
use steadfast_core::command::{CommandType, Context, Ingress};
use steadfast_core::env::new_uuid;
use steadfast_core::{Error, ErrorClass, Result, Timestamp, json, key};
use steadfast_runtime_native::{Client, StartSpec};
use steadfast_store::op;

use super::admit::{self, Asked};
use crate::governance::Governance;

/// What the caller says about a command beyond its type and payload.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) requested_by: String,
    pub(crate) ingress: Ingress,
    /// Instead of the one that the contract's template gives.
    pub(crate) key: Option<String>,
    /// Instead of the command's own id.
    pub(crate) run_id: Option<String>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) trace_id: Option<String>,
    pub(crate) request_id: Option<String>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) priority: i64,
    pub(crate) after: Vec<op::Parent>,
    pub(crate) scheduled_for: Option<Timestamp>,
    pub(crate) window: Option<(Timestamp, Timestamp)>,
    /// The application's version that is to run it; empty for any.
    pub(crate) app_version: String,
    pub(crate) max_attempts: u32,
    /// Whether effects are only planned and shown.
    pub(crate) dry_run: bool,
}

impl Request {
    pub(crate) fn new(requested_by: &str, ingress: Ingress) -> Self {
        Self {
            requested_by: requested_by.to_owned(),
            ingress,
            key: None,
            run_id: None,
            correlation_id: None,
            trace_id: None,
            request_id: None,
            expires_at: None,
            priority: 0,
            after: Vec::new(),
            scheduled_for: None,
            window: None,
            app_version: String::new(),
            max_attempts: steadfast_core::limits::RECOVERY_ATTEMPTS,
            dry_run: false,
        }
    }

    fn check(&self) -> Result<()> {
        key::check("requested_by", &self.requested_by)?;
        self.after.iter().try_for_each(check_parent)?;
        let given = [
            ("idempotency key", &self.key),
            ("run id", &self.run_id),
            ("correlation id", &self.correlation_id),
            ("trace id", &self.trace_id),
            ("request id", &self.request_id),
        ];
        for (what, value) in given {
            if let Some(value) = value {
                key::check(what, value)?;
            }
        }
        Ok(())
    }
}

/// Refuses to wait for something that is not an end: it may be passed unseen.
pub(crate) fn check_parent(parent: &op::Parent) -> Result<()> {
    key::check("command to wait for", &parent.command_id)?;
    match parent.required {
        Some(status) if !status.is_terminal() => Err(Error::invalid(
            "SF-0517",
            format!("a command can wait for another one to end, not for it to be {status}"),
        )),
        _ => Ok(()),
    }
}

/// The operation that submits a command.
pub(crate) fn submit_op(
    client: &Client,
    governance: Option<&Governance>,
    contract: &CommandType,
    payload: &Value,
    request: Request,
) -> Result<op::Submit> {
    request.check()?;
    let mut payload = payload.clone();
    let (env, now) = (client.env(), client.now());
    let command_id = new_uuid(&**env);
    let trace_id =
        request.trace_id.unwrap_or_else(|| Context::new_trace([env.random(), env.random()]));
    let workspace = client.workspace();
    let mut context = Context {
        command_id: command_id.clone(),
        command_type: contract.name.clone(),
        requested_by: request.requested_by.clone(),
        dry_run: request.dry_run,
        needs: contract.needs(&payload)?,
        workspace_id: (workspace != "default").then(|| workspace.to_owned()),
        correlation_id: request.correlation_id.unwrap_or_else(|| trace_id.clone()),
        trace_id: trace_id.clone(),
        request_id: request.request_id,
        scheduled_for: request.scheduled_for.map(Timestamp::iso),
        window: request.window.map(|(first, last)| (first.iso(), last.iso())),
        ..Context::default()
    };
    let mut idempotency_key = match request.key {
        Some(given) => Some(given),
        None if contract.key_template.is_none() => None,
        None => contract.key(&payload, &context)?,
    };
    if request.dry_run {
        // What was only shown must not stand in the way of what is to be done.
        idempotency_key = idempotency_key.map(|_| format!("dry-run:{command_id}"));
    }
    context.idempotency_key.clone_from(&idempotency_key);
    let asked = Asked {
        command_id: &command_id,
        requested_by: &request.requested_by,
        ingress: request.ingress,
        needs: context.needs.clone(),
        now,
    };
    let admitted = admit::admit(governance, contract, &mut payload, &asked)?;
    if matches!(admitted.hold, Some(op::Hold::Denied(_))) {
        // What was denied must not stand in the way of who may do it. Its context names the key.
        idempotency_key = None;
    }
    let mut spec = StartSpec::new(&contract.workflow, json::encode("the payload", &payload)?);
    spec.run_id = Some(request.run_id.unwrap_or_else(|| command_id.clone()));
    spec.queue.clone_from(&contract.queue);
    spec.priority = request.priority;
    spec.timeout = contract.timeout;
    spec.app_version = request.app_version;
    spec.max_attempts = request.max_attempts;
    spec.context = Some(context.to_text());
    let start = Box::new(client.start_op(spec)?);
    Ok(op::Submit {
        command_id,
        command_type: contract.name.clone(),
        requested_by: request.requested_by,
        ingress: request.ingress.as_str().to_owned(),
        trace_id,
        cancellation_mode: contract.cancellation_mode.as_str().to_owned(),
        idempotency_key,
        expires_at: request.expires_at.or(contract.expires_after.map(|d| now.after(d))),
        after: request.after,
        judgement: admitted.judgement.map(|judgement| judgement.to_json().to_string()),
        hold: admitted.hold,
        by_queue: admitted.by_queue,
        start,
    })
}

/// The operation that gives a command what its payload lacked: judged again, and still the same
/// command.
pub(crate) fn supply_op(
    client: &Client,
    governance: Option<&Governance>,
    contract: &CommandType,
    row: &op::CommandRow,
    mut payload: Value,
    actor: &str,
) -> Result<op::Supply> {
    let (context, now) = (Context::parse(&row.context)?, client.now());
    let own_key = row.idempotency_key.is_some() && contract.key_template.is_some();
    let same = !own_key || contract.key(&payload, &context)? == row.idempotency_key;
    let needs = contract.needs(&payload)?;
    if !same || needs != context.needs {
        let text = "what is supplied would make it another command: its key, or what one must be \
                    allowed to do for it, would differ";
        return Err(Error::new(ErrorClass::Conflict, "SF-0501", text));
    }
    let asked = Asked {
        command_id: &row.command_id,
        requested_by: &row.requested_by,
        ingress: Ingress::parse(&row.ingress).unwrap_or(Ingress::ApiRequest),
        needs,
        now,
    };
    let admitted = admit::admit(governance, contract, &mut payload, &asked)?;
    Ok(op::Supply {
        workspace: client.workspace().to_owned(),
        command_id: row.command_id.clone(),
        payload: json::encode("the payload", &payload)?,
        judgement: admitted.judgement.map(|judgement| judgement.to_json().to_string()),
        hold: admitted.hold,
        actor: actor.to_owned(),
        now,
    })
}
