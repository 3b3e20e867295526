//! Contracts: what is refused, by its field, and what an operation gets.

use serde_json::json;

use super::*;

fn sync() -> CommandType {
    let fetch = RetryPolicy::on([
        ErrorClass::TransientConnectorError,
        ErrorClass::RateLimited,
        ErrorClass::Timeout,
    ]);
    CommandType {
        key_template: Some("sync_vendor_sales:{vendor_name}:{target_date}".to_owned()),
        payload_schema: json!({"properties": {"vendor_name": {}, "target_date": {}}}),
        policies: ["permission", "connector_scope", "rate_limit", "cost"].map(String::from).into(),
        capabilities: vec![
            Capability::DurableWorkflows,
            Capability::DurableSteps,
            Capability::Queues,
            Capability::Schedules,
        ],
        retry: BTreeMap::from([("fetch_vendor_snapshot".to_owned(), fetch.attempts(4))]),
        ..CommandType::new("sync_vendor_sales")
    }
}

fn refusal(change: impl FnOnce(&mut CommandType)) -> String {
    let mut changed = sync();
    change(&mut changed);
    let error = changed.check().unwrap_err();
    assert_eq!(error.code(), "SF-0502");
    error.message().to_owned()
}

#[test]
fn a_field_that_is_left_out_is_not_part_of_a_key() {
    let contract = CommandType {
        key_template: Some("sell:{customer.id}:{context.request_id}".to_owned()),
        requires: vec!["crm.write/{region}".to_owned()],
        ..CommandType::new("sell")
    };
    for field in ["customer.name", "note", "customer.id_card", "items.*.region"] {
        contract.check_redacted(field).unwrap();
    }
    for (field, at) in [
        ("customer", "key_template"),
        ("customer.id", "key_template"),
        ("customer.*", "key_template"),
        ("region", "requires"),
        ("region.code", "requires"),
    ] {
        let refused = contract.check_redacted(field).unwrap_err();
        assert_eq!(refused.code(), "SF-0843");
        assert!(refused.message().contains(at), "{refused}");
    }
}

#[test]
fn a_contract_that_does_not_fit_together_is_refused_by_its_field() {
    sync().check().unwrap();
    let named = |change: fn(&mut CommandType), field: &str| {
        let text = refusal(change);
        assert!(text.starts_with("command type") && text.contains(field), "{text}");
    };
    named(|c| c.name = String::new(), "name: ");
    named(|c| c.workflow = "a\nb".to_owned(), "workflow: ");
    named(|c| c.payload_schema = json!(7), "payload_schema: ");
    named(|c| c.key_template = Some("{oops".to_owned()), "key_template: ");
    named(|c| c.key_template = Some("{vendor}".to_owned()), "{vendor} is no field of the payload");
    named(|c| c.key_template = Some("{context.who}".to_owned()), "nothing of a context");
    named(|c| c.requires.push("write/{vendor}".to_owned()), "requires: {vendor} is no field");
    named(|c| c.timeout = Some(Duration::ZERO), "timeout: ");
    named(|c| c.policies.push("vibes".to_owned()), "\"vibes\" is no stage");
    named(|c| c.policies.push("cost".to_owned()), "\"cost\" is named twice");
    named(|c| c.expires_after = Some(Duration::ZERO), "expires_after: ");
    named(
        |c| c.retry.values_mut().for_each(|p| p.max_attempts = 0),
        "retry.fetch_vendor_snapshot.max_attempts",
    );
    named(
        |c| c.retry.values_mut().for_each(|p| p.retryable.push(ErrorClass::ValidationError)),
        "retry.fetch_vendor_snapshot.retryable",
    );
}

/// R42, R43, R46
#[test]
fn r042_an_operation_gets_its_retries_from_its_policy_and_from_nowhere_else() {
    let retry = sync().compile_policy("fetch_vendor_snapshot").unwrap();
    assert_eq!(retry.max_attempts(), 4);
    let waits = |class| -> Vec<_> {
        let error = Error::new(class, "SF-0001", "x");
        (1..=4).map(|n| retry.wait_after(n, &error).map(|d| d.as_secs())).collect()
    };
    for class in [ErrorClass::TransientConnectorError, ErrorClass::RateLimited, ErrorClass::Timeout]
    {
        assert_eq!(waits(class), [Some(30), Some(120), Some(600), None]);
    }
    for class in [ErrorClass::ValidationError, ErrorClass::PermanentConnectorError] {
        assert_eq!(waits(class), [None; 4], "never retried, whatever max_attempts says");
    }
    assert_eq!(waits(ErrorClass::Application), [None; 4], "not among the retryable ones");
    let unknown = sync().compile_policy("fetch").unwrap_err();
    assert_eq!(unknown.code(), "SF-0509");
    assert!(unknown.message().contains("fetch_vendor_snapshot"), "{unknown}");
}

/// R44
#[test]
fn r044_a_call_that_needs_a_key_is_refused_without_one() {
    let mut keyed = sync();
    keyed.retry.insert("pay".to_owned(), RetryPolicy::on([]).keyed());
    assert_eq!(keyed.check_call("pay", None).unwrap_err().code(), "SF-0512");
    assert_eq!(keyed.check_call("pay", Some("")).unwrap_err().code(), "SF-0512");
    keyed.check_call("pay", Some("k")).unwrap();
    keyed.check_call("fetch_vendor_snapshot", None).unwrap();
}

/// R40, R41
#[test]
fn r040_a_runtime_that_lacks_a_capability_is_refused_by_name() {
    use Capability::{DurableSteps, DurableWorkflows, Queues, Schedules};
    let refused = sync().check_runtime("toy", &[DurableWorkflows, Queues]).unwrap_err();
    assert_eq!(refused.code(), "SF-0511");
    assert!(refused.message().contains("[\"durable_steps\",\"schedules\"]"), "{refused}");
    sync().check_runtime("plain", &[DurableWorkflows, DurableSteps, Queues, Schedules]).unwrap();
}

/// R3, R56
#[test]
fn r056_the_key_holds_the_workspace_where_there_is_one() {
    let payload = json!({"vendor_name": "acme_sales", "target_date": "2026-06-01"});
    let key = |context| sync().key(&payload, &context).unwrap().unwrap();
    let plain = "sync_vendor_sales:acme_sales:2026-06-01";
    assert_eq!(key(Context::default()), plain);
    assert_eq!(
        key(Context { workspace_id: Some("north".to_owned()), ..Context::default() }),
        format!("north/{plain}")
    );
    let lacking =
        sync().key(&json!({"vendor_name": "acme_sales"}), &Context::default()).unwrap_err();
    assert_eq!(lacking.code(), "SF-0504");
    let endless = json!({"vendor_name": "v".repeat(300), "target_date": "d"});
    assert_eq!(sync().key(&endless, &Context::default()).unwrap_err().code(), "SF-0105");
}
