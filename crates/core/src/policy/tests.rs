//! Policies: order, composition, classes, grants.

use serde_json::json;

use super::*;

fn effect(classes: Option<Classes>) -> Act {
    let doing = Doing::Effect {
        effect_type: "mail.send".into(),
        key: "k".into(),
        declared: true,
        via: None,
    };
    Act { doing, classes, ..Act::admit("user:1", "quote", json!({})) }
}

fn classes(a: ApprovalClass, r: Reversibility, s: Sensitivity) -> Option<Classes> {
    Some(Classes::new(a, r, s))
}

fn ruling(stage: Stage, act: &Act) -> (Ruling, u32) {
    let finding = Policies::default().find(stage, act).unwrap();
    (finding.ruling, finding.approvers)
}

#[test]
fn stages_and_rulings_have_one_spelling() {
    for stage in Stage::ALL {
        assert_eq!(Stage::parse(stage.as_str()), Some(stage));
        assert_eq!(serde_json::to_value(stage).unwrap(), stage.as_str());
    }
    for ruling in Ruling::ALL {
        assert_eq!(serde_json::to_value(ruling).unwrap(), ruling.as_str());
    }
}

/// R11, R12
#[test]
fn the_chain_ends_with_the_first_denial_and_keeps_every_decision() {
    let mut act = Act::admit("user:1", "sync", json!({}));
    act.needs = vec!["warehouse.write/acme_sales".into()];
    let chain = [Stage::ConnectorScope, Stage::Permission, Stage::Cost];
    let denied = Policies::default().judge(&chain, &act).unwrap();
    let asked: Vec<_> = denied.decisions.iter().map(|d| d.stage).collect();
    assert_eq!(asked, [Stage::ConnectorScope, Stage::Permission]);
    let error = denied.denial().unwrap();
    assert_eq!((error.class(), error.code()), (ErrorClass::PermissionDenied, "SF-0801"));
    assert!(error.message().contains("warehouse.write/acme_sales"), "{error}");

    let mut grants = Grants::default();
    grants.allow("user:*", ["warehouse.write"]);
    let allowed = Policies::default().judge(&chain, &act.with_grants(&grants)).unwrap();
    assert_eq!((allowed.ruling(), allowed.decisions.len()), (Ruling::Allow, 3));
}

#[test]
fn the_most_restrictive_ruling_holds() {
    let mut policies = Policies::default();
    let says = |stage, ruling| {
        Arc::new(PolicyFn(stage, move |_: &Act| Finding::new(ruling, "test", "because")))
    };
    policies.set(says(Stage::Cost, Ruling::Redact));
    policies.set(says(Stage::DataSafety, Ruling::Escalate));
    policies.set(says(Stage::AgentRisk, Ruling::RequireApproval));
    let chain = [Stage::Cost, Stage::DataSafety, Stage::AgentRisk];
    let judged = policies.judge(&chain, &effect(None)).unwrap();
    assert_eq!(judged.ruling(), Ruling::Escalate);
    assert_eq!(judged.decisions.len(), 3);
    assert_eq!(judged.denial(), None);
}

/// X19
#[test]
fn x19_what_nobody_classified_is_denied() {
    for stage in [
        Stage::DataSafety,
        Stage::ExternalSharing,
        Stage::DestructiveAction,
        Stage::ApprovalRequirement,
    ] {
        assert_eq!(ruling(stage, &effect(None)).0, Ruling::Deny, "{stage:?}");
    }
}

#[test]
fn classes_decide_who_is_asked() {
    use ApprovalClass::{A0, A1, A2, A3};
    use Reversibility::{R0, R3};
    use Sensitivity::{S1, S2, S3};
    let requirement = |c| ruling(Stage::ApprovalRequirement, &effect(c));
    assert_eq!(requirement(classes(A0, R0, S1)), (Ruling::Allow, 0));
    assert_eq!(requirement(classes(A1, R0, S1)), (Ruling::RequireApproval, 1));
    assert_eq!(requirement(classes(A2, R0, S1)), (Ruling::Escalate, 2));
    assert_eq!(requirement(classes(A3, R0, S1)), (Ruling::Escalate, 2));
    assert_eq!(requirement(classes(A0, R3, S1)), (Ruling::Escalate, 2));
    assert_eq!(ruling(Stage::DataSafety, &effect(classes(A0, R0, S3))), (Ruling::Escalate, 2));
    let shared = ruling(Stage::ExternalSharing, &effect(classes(A0, R0, S2)));
    assert_eq!(shared, (Ruling::RequireApproval, 1));
    assert_eq!(ruling(Stage::DestructiveAction, &effect(classes(A0, R0, S3))).0, Ruling::Allow);
}

/// R100
#[test]
fn r100_an_agent_commits_to_nothing() {
    let mut act = effect(classes(ApprovalClass::A0, Reversibility::R0, Sensitivity::S0));
    assert_eq!(ruling(Stage::AgentRisk, &act).0, Ruling::Allow);
    act.agent = true;
    assert_eq!(ruling(Stage::AgentRisk, &act).0, Ruling::Deny);
    act.doing = Doing::Admit;
    assert_eq!(ruling(Stage::AgentRisk, &act).0, Ruling::Allow);
}

#[test]
fn a_grant_covers_its_parts_only() {
    assert!(covers("warehouse.write", "warehouse.write"));
    assert!(covers("warehouse.write", "warehouse.write/acme_sales"));
    assert!(covers("connector.*", "connector.acme_sales.read"));
    assert!(!covers("warehouse.write", "warehouse.write_all"));
    assert!(!covers("warehouse.write/acme_sales", "warehouse.write"));
}

#[test]
fn the_digest_is_of_all_that_is_seen() {
    let act = effect(None);
    assert_eq!(act.digest(), effect(None).digest());
    let other = Act { payload: json!({ "to": "x" }), ..effect(None) };
    assert_ne!(act.digest(), other.digest());
}
