//! What each kind of policy makes of an act, and which policies are not loaded.

use serde_json::{Value, json};
use steadfast_core::json;
use steadfast_core::policy::{
    ApprovalClass, Classes, Grants, Policies, Reversibility, Ruling, Sensitivity,
};

use super::*;

fn stage(policies: &str, payload: Option<&str>) -> CedarStage {
    CedarStage::load(Stage::Permission, policies, payload).unwrap()
}

fn admit(payload: Value) -> Act {
    let mut act = Act::admit("user:42", "sync_vendor_sales", payload);
    act.needs = vec!["warehouse.write/acme_sales".into(), "connector.acme_sales.read".into()];
    act
}

fn granted(mut act: Act, grants: &[&str]) -> Act {
    act.grants = grants.iter().map(ToString::to_string).collect();
    act
}

fn effect(classes: Option<Classes>) -> Act {
    let doing = Doing::Effect {
        effect_type: "mail.send".into(),
        key: "k".into(),
        declared: true,
        via: None,
    };
    Act { doing, classes, ..admit(json!({})) }
}

const GRANTED: &str = "permit (principal, action, resource) when { context.granted };";

/// R12, R13
#[test]
fn r012_who_lacks_a_capability_is_denied() {
    let stage = stage(&format!("@rule(\"granted\") {GRANTED}"), None);
    let both = ["warehouse.write", "connector.acme_sales.read"];
    let found = stage.decide(&granted(admit(json!({})), &both));
    assert_eq!((found.ruling, found.rule.as_str()), (Ruling::Allow, "granted"));
    assert_eq!(found.reason, "permitted by granted");
    for lacking in [&both[..1], &both[1..], &[]] {
        let found = stage.decide(&granted(admit(json!({})), lacking));
        assert_eq!((found.ruling, found.rule.as_str()), (Ruling::Deny, "no_permit"));
    }
}

/// R11
#[test]
fn r011_a_stage_in_cedar_is_one_of_the_chain() {
    let mut policies = Policies::default();
    policies.set(std::sync::Arc::new(stage(GRANTED, None)));
    let mut grants = Grants::default();
    grants.allow("user:*", ["warehouse.write", "connector.*"]);
    let chain = [Stage::Permission, Stage::ConnectorScope, Stage::RateLimit, Stage::Cost];
    let judged = policies.judge(&chain, &admit(json!({})).with_grants(&grants)).unwrap();
    assert_eq!((judged.ruling(), judged.decisions.len()), (Ruling::Allow, 4));
    let denied = policies.judge(&chain, &admit(json!({}))).unwrap();
    assert_eq!(denied.decisions.len(), 1);
    assert!(denied.denial().unwrap().message().contains("no_permit"));
}

#[test]
fn principals_actions_and_resources_are_told_apart() {
    let stage = stage(
        r#"
        permit (principal == Principal::"user:42", action == Action::"call",
                resource == Operation::"GET /sales/daily")
        when { context has connector && context.connector == "acme_sales" && principal.grants.contains("read") };
        "#,
        None,
    );
    let call = |operation: &str, connector: &str| {
        let (operation, connector) = (operation.to_owned(), connector.to_owned());
        let doing = Doing::Call { connector, operation, in_scope: true, mutates: false };
        granted(Act { doing, ..admit(json!({})) }, &["read"])
    };
    assert_eq!(stage.decide(&call("GET /sales/daily", "acme_sales")).ruling, Ruling::Allow);
    assert_eq!(stage.decide(&call("POST /sales/daily", "acme_sales")).ruling, Ruling::Deny);
    let other = Act { principal: "user:7".into(), ..call("GET /sales/daily", "acme_sales") };
    assert_eq!(stage.decide(&other).ruling, Ruling::Deny);
}

#[test]
fn a_forbid_wins_and_names_itself() {
    let stage = stage(
        r#"
        permit (principal, action, resource);
        @rule("agents_propose") @reason("an agent commits to nothing")
        forbid (principal, action == Action::"effect", resource) when { context.agent };
        "#,
        None,
    );
    let mut act = effect(None);
    assert_eq!(stage.decide(&act).ruling, Ruling::Allow);
    assert_eq!(stage.decide(&act).rule, "policy0");
    act.agent = true;
    let found = stage.decide(&act);
    assert_eq!((found.ruling, found.rule.as_str()), (Ruling::Deny, "agents_propose"));
    assert_eq!(found.reason, "an agent commits to nothing");
}

#[test]
fn of_several_that_permit_the_most_demanding_holds() {
    let stage = stage(
        r#"
        @rule("anyone") permit (principal, action, resource);
        @rule("some") @obligation("approval")
        permit (principal, action, resource)
        when { context.payload has amount && context.payload.amount > 100 };
        @rule("much") @obligation("approval") @approvers("3")
        permit (principal, action, resource)
        when { context.payload has amount && context.payload.amount > 1000 };
        "#,
        Some("type Payload = { amount?: Long };"),
    );
    let found = |payload| {
        let found = stage.decide(&admit(payload));
        (found.ruling, found.approvers, found.rule)
    };
    assert_eq!(found(json!({})), (Ruling::Allow, 0, "anyone".into()));
    assert_eq!(found(json!({"amount": 100, "other": 1})), (Ruling::Allow, 0, "anyone".into()));
    assert_eq!(found(json!({"amount": 101})), (Ruling::RequireApproval, 1, "some".into()));
    assert_eq!(found(json!({"amount": 1001})), (Ruling::Escalate, 3, "much".into()));
}

/// X19
#[test]
fn x19_what_cannot_be_evaluated_is_denied() {
    let stage = stage(
        r#"
        permit (principal, action, resource);
        forbid (principal, action, resource)
        when { context.payload has amount && context.payload.amount > 100 };
        "#,
        Some("type Payload = { amount?: Long };"),
    );
    assert_eq!(stage.decide(&admit(json!({"amount": 1, "note": [1]}))).ruling, Ruling::Allow);
    for amount in [json!("1"), json!([]), json!({}), json!(1.5), json!(true), json!(1e300)] {
        let found = stage.decide(&admit(json!({ "amount": amount })));
        assert_eq!((found.ruling, found.rule.as_str()), (Ruling::Deny, "evaluation_error"));
    }
}

/// X19, R18
#[test]
fn x19_what_nobody_classified_is_denied_by_stages_that_go_by_classes() {
    let all = "permit (principal, action, resource);";
    for stage in [
        Stage::DataSafety,
        Stage::ExternalSharing,
        Stage::DestructiveAction,
        Stage::ApprovalRequirement,
    ] {
        let stage = CedarStage::load(stage, all, None).unwrap();
        assert_eq!(stage.decide(&effect(None)).rule, "unclassified");
        assert_eq!(stage.decide(&admit(json!({}))).ruling, Ruling::Allow);
    }
    let stage = CedarStage::load(
        Stage::DestructiveAction,
        r#"permit (principal, action, resource)
           when { context has classes && context.classes.reversibility != "R3" };"#,
        None,
    )
    .unwrap();
    let classes = |r| Some(Classes::new(ApprovalClass::A0, r, Sensitivity::S0));
    assert_eq!(stage.decide(&effect(classes(Reversibility::R1))).ruling, Ruling::Allow);
    assert_eq!(stage.decide(&effect(classes(Reversibility::R3))).ruling, Ruling::Deny);
}

#[test]
fn policies_that_are_not_valid_are_not_loaded() {
    let why = |policies: &str, payload: Option<&str>| {
        let error = CedarStage::load(Stage::Permission, policies, payload).unwrap_err();
        assert_eq!(error.code(), "SF-0821");
        error.message().to_owned()
    };
    let typo = why(
        "permit (principal, action, resource);\n\n@rule(\"typo\")\n\
         permit (principal, action, resource) when { context.granted && context.agnet };",
        None,
    );
    assert!(typo.contains("\"typo\"") && typo.contains("agnet"), "{typo}");
    assert!(typo.contains("line 4"), "{typo}");
    let syntax = why("permit (principal, action, resource);\npermit (nobody);", None);
    assert!(syntax.contains("line 2"), "{syntax}");
    for (policies, word) in [
        ("permit (principal, action == Action::\"delete\", resource);", "delete"),
        ("permit (principal, action, resource) when { context.payload.amount > 1 };", "amount"),
        ("permit (principal, action, resource) when { context.agent == 1 };", "policy0"),
        ("permit (principal == ?principal, action, resource);", "slot"),
        ("", "none"),
        ("@obligation(\"prayer\") permit (principal, action, resource);", "obligation"),
        ("@approvers(\"2\") permit (principal, action, resource);", "approvers"),
        (
            "@obligation(\"approval\") @approvers(\"0\") permit (principal, action, resource);",
            "number",
        ),
        ("@obligation(\"approval\") forbid (principal, action, resource);", "forbids"),
        ("@role(\"x\") permit (principal, action, resource);", "@role"),
    ] {
        let why = why(policies, None);
        assert!(why.contains(word), "{why}");
    }
    assert!(why(GRANTED, Some("type Payload = { amount: Money };")).contains("schema"));
}

/// The policy library has the JSON library keep the order in which members came. Whoever links it
/// must still get one spelling of equal values.
#[test]
fn equal_values_have_equal_bytes_beside_cedar_too() {
    let one: Value = serde_json::from_str(r#"{"a":1,"b":{"c":2,"d":[{"e":3,"f":4}]}}"#).unwrap();
    let two: Value = serde_json::from_str(r#"{"b":{"d":[{"f":4,"e":3}],"c":2},"a":1}"#).unwrap();
    assert_ne!(one.to_string(), two.to_string(), "or there would be nothing to prove");
    assert_eq!(json::encode("v", &one).unwrap(), json::encode("v", &two).unwrap());
    assert_eq!(admit(one).digest(), admit(two).digest());
}

/// X11
#[test]
fn x11_an_obligation_says_who_is_asked_and_for_how_long() {
    let asks = |terms: &str| format!("@obligation(\"approval\") {terms} {GRANTED}");
    let leads = r#"@approvers("2") @among("lead:*, boss:1") @ttl("4h") @escalate_after("30m")"#;
    let one = stage(&asks(leads), None);
    let both = ["warehouse.write", "connector.acme_sales.read"];
    let act = || granted(admit(json!({})), &both);
    let found = one.decide(&act());
    assert_eq!((found.approvers, found.among), (2, vec!["lead:*".into(), "boss:1".into()]));
    assert_eq!((found.ttl_ms, found.escalate_after_ms), (Some(14_400_000), Some(1_800_000)));
    let second = asks(r#"@among("boss:*") @ttl("1h")"#);
    let found = stage(&format!("{} {second}", asks(leads)), None).decide(&act());
    assert_eq!((found.approvers, found.among), (2, vec!["boss:1".to_owned()]));
    assert_eq!((found.ttl_ms, found.escalate_after_ms), (Some(3_600_000), Some(1_800_000)));
    let apart = asks(r#"@among("officer:*")"#);
    let found = stage(&format!("{} {apart}", asks(leads)), None).decide(&act());
    assert_eq!((found.ruling, found.rule.as_str()), (Ruling::Deny, "nobody_may"));
    for wrong in [
        r#"@ttl("soon")"#,
        r#"@ttl("0s")"#,
        r#"@ttl("1h") @escalate_after("1h")"#,
        r#"@among("lead:*,,")"#,
        r#"@approvers("2") @among("boss:1")"#,
    ] {
        let refused = CedarStage::load(Stage::Permission, &asks(wrong), None).err();
        assert_eq!(refused.expect(wrong).code(), "SF-0821", "{wrong}");
    }
    let alone = format!("@ttl(\"1h\") {GRANTED}");
    let refused = CedarStage::load(Stage::Permission, &alone, None).err();
    assert!(refused.expect("it is refused").message().contains("without @obligation"));
}
