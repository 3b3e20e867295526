//! Ways around the policy that somebody may try from inside the code or from outside, each refused
//! and each to be seen in the audit.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast::connector::{Connectors, Operation, Outbound};
use steadfast::policy::{
    Act, ApprovalClass, Classes, Finding, PolicyFn, Redacting, Reversibility, Sensitivity, Stage,
};
use steadfast::{
    Budget, Command, CommandStatus, Contract, Cx, Effect, EffectType, Error, ErrorClass,
    Governance, ListEffects, Result, Steadfast, Vote,
};

use super::stub::Stub;
use super::{Fixture, case_table, until};

case_table![
    r107_nobody_says_yes_by_a_signal,
    r107_no_connector_writes_without_a_command,
    r107_code_cannot_send_by_a_connector_itself,
    r107_what_is_really_sent_is_judged_and_shown,
    r122_a_serious_operation_is_not_made_harmless_by_its_effect,
    x19_an_effect_that_nobody_classed_is_denied,
    r100_an_agent_neither_writes_nor_sends,
    r012_what_was_denied_does_not_stand_in_the_way,
    r017_a_yes_does_not_lift_a_hard_budget,
    r120_code_does_not_speak_for_the_host,
    r018_what_is_left_out_is_not_in_a_key_either,
    limits_that_cannot_hold_are_refused_at_the_start,
];

const HARMLESS: Classes = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);
const UPSERT: &str = "upsert sales_daily";

fn warehouse(classes: Option<Classes>) -> Stub {
    Stub::new("warehouse", [Operation { classes, ..Operation::write(UPSERT).keyed() }])
}

/// Writes by a connector, as what it is asked says.
async fn write(cx: Cx, how: Value) -> Result<Value> {
    let effect = Effect::of("partition.write").payload(json!({ "rows": 1 }));
    let request = Outbound::new(UPSERT, json!({ "secret": how["secret"] }));
    match how["verb"].as_str().unwrap_or_default() {
        "twice" => {
            for key in ["a", "b"] {
                let effect = Effect::keyed("partition.write", key).payload(json!({ "rows": 1 }));
                let request = Outbound::new(UPSERT, json!({}));
                let _: Value = cx.effect_via(effect, "warehouse", request).await?;
            }
            Ok(Value::Null)
        }
        "state" => {
            let ways = cx.state::<Connectors>()?;
            Ok(json!(ways.get("warehouse").is_some()))
        }
        "emit" => cx.emit("command.failed", json!({})).await.map(|()| Value::Null),
        "audit" => cx.audit("approval.approved", json!({})).await.map(|()| Value::Null),
        "long" => cx.emit(&"v".repeat(65), json!({})).await.map(|()| Value::Null),
        "send" => cx.send("r1", "go", json!({})).await.map(|()| Value::Null),
        "yes" => cx.send("r1", "approval:apr_1", json!({})).await.map(|()| Value::Null),
        "transact" => {
            let work = |db: &steadfast::sqlite::rusqlite::Connection| {
                db.execute_batch("CREATE TABLE agents_own (id INTEGER)")
            };
            steadfast::sqlite::transaction(&cx, "write", work).await.map(|()| Value::Null)
        }
        _ => cx.effect_via(effect, "warehouse", request).await,
    }
}

fn contract(classes: Option<Classes>) -> Contract {
    let effect = EffectType::new("partition.write").not_undone("test");
    Contract::new().effect(match classes {
        Some(classes) => effect.classes(classes),
        None => effect,
    })
}

async fn fabric(f: &Fixture, contract: Contract, way: &Stub, governance: Governance) -> Steadfast {
    let fabric = f.fabric().command(write, contract).govern(governance).connector(way.clone());
    fabric.start().await.unwrap()
}

async fn submit(fabric: &Steadfast, how: Value) -> Command<Value> {
    fabric.submit(write, how).requested_by("user:1").await.unwrap()
}

async fn rules(command: &Command<Value>) -> Vec<String> {
    let events = command.events().await.unwrap().into_iter();
    let judged = events.filter(|event| event.event_type == "policy.evaluated");
    let decisions = judged.flat_map(|event| {
        let payload: Value = serde_json::from_str(&event.payload).unwrap();
        payload["decisions"].as_array().unwrap().clone()
    });
    decisions.map(|decision| decision["rule"].as_str().unwrap().to_owned()).collect()
}

async fn question(fabric: &Steadfast) -> steadfast::ApprovalRow {
    until("people are asked", async || !fabric.pending_approvals().await.unwrap().is_empty()).await;
    fabric.pending_approvals().await.unwrap().remove(0)
}

/// R107, R122: an answer is a vote of somebody who may vote, in the store.
async fn r107_nobody_says_yes_by_a_signal(f: Fixture) {
    let (way, serious) = (warehouse(None), Classes { approval: ApprovalClass::A1, ..HARMLESS });
    let fabric = fabric(&f, contract(Some(serious)), &way, Governance::new()).await;
    let command = submit(&fabric, json!({})).await;
    let asked = question(&fabric).await.asked;
    let name = format!("approval:{}", asked.approval_id);
    let run = command.run().await.unwrap();
    let refused = run.signal(&name, json!({ "status": "approved" })).await.unwrap_err();
    assert_eq!(refused.code(), "SF-0122", "{refused}");
    let refused = fabric.signal_once(run.id(), "other", json!({}), &name).await.unwrap_err();
    assert_eq!(refused.code(), "SF-0122", "the real answer must not be taken for a repetition");
    let other = submit(&fabric, json!({ "verb": "yes" })).await;
    assert_eq!(other.result().await.unwrap_err().code(), "SF-0122");
    assert_eq!(way.sent(), [] as [&str; 0]);
    fabric.decide(&asked.approval_id, "lead:1", Vote::Approved, "").await.unwrap();
    command.result().await.unwrap();
    assert_eq!(way.sent(), [UPSERT]);
    fabric.shutdown().await;
}

async fn plain(cx: Cx, _: ()) -> Result<Value> {
    write(cx, json!({})).await
}

/// R107: a run that belongs to no command has no contract that could declare a write.
async fn r107_no_connector_writes_without_a_command(f: Fixture) {
    let way = warehouse(None);
    let fabric = f.fabric().workflow(plain).connector(way.clone()).start().await.unwrap();
    let error = fabric.start(plain, ()).await.unwrap().result().await.unwrap_err();
    assert_eq!(error.code(), "SF-0809", "{error}");
    assert_eq!(way.sent(), [] as [&str; 0]);
    fabric.shutdown().await;
}

/// R107
async fn r107_code_cannot_send_by_a_connector_itself(f: Fixture) {
    let way = warehouse(None);
    let fabric = fabric(&f, contract(Some(HARMLESS)), &way, Governance::new()).await;
    let command = submit(&fabric, json!({ "verb": "state" })).await;
    command.result().await.unwrap_err();
    fabric.shutdown().await;
}

/// R107: the ledger's payload may be a summary; policies and people see what leaves.
async fn r107_what_is_really_sent_is_judged_and_shown(f: Fixture) {
    let way = warehouse(None);
    let look = |act: &Act| match act.payload["request"]["secret"].as_str() {
        Some("ssn") => Finding::deny("leaks", "it sends what must stay here"),
        Some(_) => Finding::approval("unsure", 1, "somebody should look"),
        None => Finding::allow("clean", "nothing secret"),
    };
    let governance = Governance::new().policy(PolicyFn(Stage::DataSafety, look));
    let contract = contract(Some(HARMLESS)).policies(["data_safety"]);
    let fabric = fabric(&f, contract, &way, governance).await;
    let denied = submit(&fabric, json!({ "secret": "ssn" })).await;
    assert_eq!(denied.result().await.unwrap_err().class(), ErrorClass::PolicyDenied);
    assert!(rules(&denied).await.contains(&"leaks".to_owned()));
    let asked = submit(&fabric, json!({ "secret": "name" })).await;
    let shown: Value = serde_json::from_str(&question(&fabric).await.asked.payload).unwrap();
    assert_eq!(shown, json!({ "rows": 1, "request": { "secret": "name" } }));
    asked.cancel("", "user:1").await.unwrap();
    assert_eq!(way.sent(), [] as [&str; 0]);
    fabric.shutdown().await;
}

/// R122: nobody named the stage that asks, and the effect says it is harmless.
async fn r122_a_serious_operation_is_not_made_harmless_by_its_effect(f: Fixture) {
    let serious = Classes { reversibility: Reversibility::R3, ..HARMLESS };
    let way = warehouse(Some(serious));
    let fabric = fabric(&f, contract(Some(HARMLESS)), &way, Governance::new()).await;
    let command = submit(&fabric, json!({})).await;
    assert_eq!(question(&fabric).await.asked.approvers, 2);
    assert_eq!(way.sent(), [] as [&str; 0]);
    command.cancel("", "user:1").await.unwrap();
    fabric.shutdown().await;
}

/// X19: not to say how serious it is never opens a door, whatever the chain.
async fn x19_an_effect_that_nobody_classed_is_denied(f: Fixture) {
    let way = warehouse(None);
    for policies in [Vec::new(), vec!["permission"]] {
        let contract = contract(None).policies(policies);
        let fabric = fabric(&f, contract, &way, Governance::new()).await;
        let command = submit(&fabric, json!({})).await;
        let error = command.result().await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::PolicyDenied, "{error}");
        assert!(rules(&command).await.contains(&"unclassified".to_owned()));
        fabric.shutdown().await;
    }
    assert_eq!(way.sent(), [] as [&str; 0]);
}

/// R100: a policy of one's own that allows everything changes nothing about it.
async fn r100_an_agent_neither_writes_nor_sends(f: Fixture) {
    let way = warehouse(None);
    let anything = |_: &Act| Finding::allow("anything", "why not");
    let governance = Governance::new().policy(PolicyFn(Stage::AgentRisk, anything));
    let fabric = fabric(&f, contract(Some(HARMLESS)).agent(), &way, governance).await;
    for verb in ["effect", "send", "transact"] {
        let command = submit(&fabric, json!({ "verb": verb })).await;
        let error = command.result().await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::PolicyDenied, "{verb}: {error}");
        assert!(rules(&command).await.contains(&"agent_commits".to_owned()), "{verb}");
    }
    assert_eq!(way.sent(), [] as [&str; 0]);
    fabric.shutdown().await;
}

/// R12: whoever may not do it cannot keep those from it who may.
async fn r012_what_was_denied_does_not_stand_in_the_way(f: Fixture) {
    let way = warehouse(None);
    let contract = contract(Some(HARMLESS)).policies(["permission"]).requires(["write"]);
    let governance = Governance::new().grant("user:writer", ["write"]);
    let fabric = fabric(&f, contract.key("night:{night}"), &way, governance).await;
    let night = json!({ "night": "2026-11-16" });
    let submit =
        async |who: &str| fabric.submit(write, night.clone()).requested_by(who).await.unwrap();
    let denied = submit("user:nobody").await;
    assert_eq!(denied.status().await.unwrap(), CommandStatus::Failed);
    let context = denied.info().await.unwrap().command.context;
    assert!(context.contains("night:2026-11-16"), "what was denied is on record: {context}");
    let done = submit("user:writer").await;
    assert_ne!(denied.id(), done.id());
    done.result().await.unwrap();
    assert_eq!(submit("user:writer").await.id(), done.id());
    assert_eq!(way.sent(), [UPSERT]);
    fabric.shutdown().await;
}

/// R17: beyond a hard cap nobody is asked, also where somebody was asked for another reason.
async fn r017_a_yes_does_not_lift_a_hard_budget(f: Fixture) {
    let (way, serious) = (warehouse(None), Classes { approval: ApprovalClass::A1, ..HARMLESS });
    let governance = Governance::new().budget(Budget::per_command(1).hard());
    let contract = contract(Some(serious)).policies(["cost"]);
    let fabric = fabric(&f, contract, &way, governance).await;
    let command = submit(&fabric, json!({ "verb": "twice" })).await;
    let asked = question(&fabric).await.asked;
    fabric.decide(&asked.approval_id, "lead:1", Vote::Approved, "").await.unwrap();
    // The second one is not even asked for.
    let error = command.result().await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::PolicyDenied, "{error}");
    assert_eq!(way.sent(), [UPSERT]);
    assert!(rules(&command).await.contains(&"cost_cap".to_owned()));
    assert_eq!(fabric.pending_approvals().await.unwrap(), []);
    fabric.shutdown().await;
}

/// R120: what auditors and alerts trust is told by the host alone.
async fn r120_code_does_not_speak_for_the_host(f: Fixture) {
    let way = warehouse(None);
    let fabric = fabric(&f, contract(Some(HARMLESS)), &way, Governance::new()).await;
    for (verb, code) in [("emit", "SF-0123"), ("audit", "SF-0123"), ("long", "SF-0105")] {
        let error: Error =
            submit(&fabric, json!({ "verb": verb })).await.result().await.unwrap_err();
        assert_eq!(error.code(), code, "{verb}: {error}");
    }
    let which = ListEffects { limit: 1, ..Default::default() };
    assert_eq!(fabric.effects(which).await.unwrap(), []);
    fabric.shutdown().await;
}

async fn limits_that_cannot_hold_are_refused_at_the_start(f: Fixture) {
    use steadfast::connector::{Breaker, Limits, Rate};
    let start = async |way: Stub, contract: Contract, governance: Governance| {
        let fabric = f.fabric().command(write, contract).govern(governance).connector(way);
        fabric.start().await.err().expect("it must not start").to_string()
    };
    let second = Duration::from_secs(1);
    for (limits, field) in [
        (Limits { rate: Some(Rate { calls: 0, per: second }), breaker: None }, "rate"),
        (
            Limits { rate: None, breaker: Some(Breaker { failures: 0, cool_down: second }) },
            "breaker",
        ),
    ] {
        let way = warehouse(None).limits(limits);
        let error = start(way, contract(Some(HARMLESS)), Governance::new()).await;
        assert!(error.contains("SF-0805") && error.contains(field), "{error}");
    }
    let budget = Governance::new().budget(Budget::per_day("warehuose", 3));
    let error = start(warehouse(None), contract(Some(HARMLESS)), budget).await;
    assert!(error.contains("warehuose"), "{error}");
    let calls = contract(Some(HARMLESS)).calls(["warehouse upsert users"]);
    let error = start(warehouse(None), calls, Governance::new()).await;
    assert!(error.contains("upsert users"), "{error}");
}

/// R18: what a policy has left out of a payload would be kept in the key that is made of it.
async fn r018_what_is_left_out_is_not_in_a_key_either(f: Fixture) {
    let policy = || {
        let hides = |_: &Act| Finding::redact("hides", ["secret".to_owned()], "not for you");
        PolicyFn(Stage::DataSafety, hides)
    };
    let of = |contract: Contract| contract.policies(["data_safety"]);
    let secret = json!({ "verb": "emit", "secret": "hunter22", "id": 7 });
    for contract in [
        of(Contract::new().key("write:{secret}")),
        of(Contract::new().key("write:{id}").requires(["see/{secret}"])),
    ] {
        let govern = Governance::new().policy(policy());
        let fabric = f.fabric().command(write, contract.clone()).govern(govern);
        let fabric = fabric.start().await.unwrap();
        let refused = fabric.submit(write, secret.clone()).await.err().unwrap();
        assert_eq!((refused.class(), refused.code()), (ErrorClass::PolicyDenied, "SF-0843"));
        assert!(!refused.message().contains("hunter22"), "{refused}");
        let which = steadfast::ListCommands { limit: 9, ..Default::default() };
        assert!(fabric.commands(which).await.unwrap().commands.is_empty(), "nothing is kept");
        fabric.shutdown().await;
        // A policy that says what it hides is compared with the contract before anything runs.
        let govern = Governance::new().policy(Redacting(policy(), vec!["secret".to_owned()]));
        let fabric = f.fabric().command(write, contract).govern(govern);
        assert_eq!(fabric.start().await.err().unwrap().code(), "SF-0843");
    }
    let contract = of(Contract::new().key("write:{id}"));
    let govern = Governance::new().policy(Redacting(policy(), vec!["secret".to_owned()]));
    let fabric = f.fabric().command(write, contract).govern(govern).start().await.unwrap();
    let command = fabric.submit(write, secret).await.unwrap();
    let row = command.info().await.unwrap().command;
    assert!(!format!("{row:?}").contains("hunter22"), "{row:?}");
    fabric.shutdown().await;
}
