//! Policy: asked at the door and again before everything that leaves, and no way around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::connector::{Limits, Operation, Outbound, Rate};
use steadfast::policy::{
    Act, ApprovalClass, Classes, Finding, PolicyFn, Reversibility, Ruling, Sensitivity, Stage,
};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    ApprovalStatus, Budget, CommandStatus, Contract, Cx, Effect, EffectType, Error, ErrorClass,
    Governance, ListApprovals, ListEffects, ListInvocations, Result,
};

use super::stub::Stub;
use super::{Fixture, case_table, until};

case_table![
    r011_the_chain_is_asked_in_order_and_every_decision_is_kept,
    r012_who_lacks_a_grant_is_denied_and_nothing_runs,
    r014_a_connector_is_asked_only_within_its_scope,
    r016_calls_above_the_rate_are_not_sent,
    r017_a_spent_budget_asks_people_and_is_audited,
    r018_every_stage_can_be_set_and_every_ruling_is_heeded,
    r107_there_is_no_way_around_the_policy,
    r100_an_agent_proposes_and_never_commits,
];

const HARMLESS: Classes = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Order {
    vendor: String,
    #[serde(default)]
    how: String,
}

fn order(how: &str) -> Order {
    Order { vendor: "acme_sales".to_owned(), how: how.to_owned() }
}

/// What a command did before it was stopped, if it was.
#[derive(Clone, Default)]
struct Steps(Arc<AtomicU32>);

async fn pull(cx: Cx, order: Order) -> Result<Value> {
    let steps = cx.state::<Steps>()?;
    cx.step("begin", move || {
        steps.0.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Error>(()) }
    })
    .await?;
    let ask = |operation: &str| Outbound::new(operation, json!({ "vendor": "acme_sales" }));
    match order.how.as_str() {
        "post" => cx.call("fetch", "vendor", ask("POST /sales/daily")).await,
        "twice" => {
            let first: Value = cx.call("fetch", "vendor", ask("GET /sales/daily")).await?;
            let _: Value = cx.call("fetch", "vendor", ask("GET /sales/daily")).await?;
            Ok(first)
        }
        "undeclared" => {
            let effect = Effect::of("mail.send");
            cx.effect(effect, |_| async { Ok::<_, Error>(json!("sent")) }).await
        }
        "write" => {
            let effect = Effect::of("partition.write").payload(json!({ "rows": 1 }));
            cx.effect_via(effect, "warehouse", ask("upsert sales_daily")).await
        }
        "write elsewhere" => {
            let effect = Effect::of("partition.write").payload(json!({ "rows": 1 }));
            cx.effect_via(effect, "warehouse", ask("upsert users")).await
        }
        "write by call" => cx.call("load", "warehouse", ask("upsert sales_daily")).await,
        _ => cx.call("fetch", "vendor", ask("GET /sales/daily")).await,
    }
}

fn contract() -> Contract {
    Contract::new()
        .policies(["permission", "connector_scope", "rate_limit", "cost"])
        .requires(["warehouse.write/{vendor}", "connector.{vendor}.read"])
        .calls(["vendor GET /sales/daily"])
        .effect(
            EffectType::new("partition.write")
                .classes(HARMLESS)
                .not_undone("the next night overwrites it"),
        )
}

fn vendor() -> Stub {
    Stub::new("vendor", [Operation::read("GET /sales/daily")])
}

fn warehouse() -> Stub {
    Stub::new("warehouse", [Operation::write("upsert sales_daily").keyed()])
}

fn governance() -> Governance {
    let all = ["warehouse.write", "connector.acme_sales.read"];
    Governance::new().grant("system:scheduler", all).grant("user:reader", [all[1]])
}

struct World {
    fabric: steadfast::Steadfast,
    vendor: Stub,
    warehouse: Stub,
    steps: Steps,
}

async fn world(f: &Fixture, vendor: Stub, governance: Governance) -> World {
    let (warehouse, steps) = (warehouse(), Steps::default());
    let fabric = f
        .fabric()
        .command(pull, contract())
        .state(steps.clone())
        .govern(governance)
        .connector(vendor.clone())
        .connector(warehouse.clone())
        .start()
        .await
        .unwrap();
    World { fabric, vendor, warehouse, steps }
}

impl World {
    async fn submit(&self, how: &str) -> steadfast::Command<Value> {
        let call = self.fabric.submit(pull, order(how));
        call.requested_by("system:scheduler").await.unwrap()
    }

    async fn refused(&self, how: &str) -> Error {
        self.submit(how).await.result().await.unwrap_err()
    }
}

async fn judgements(command: &steadfast::Command<Value>) -> Vec<Value> {
    let events = command.events().await.unwrap().into_iter();
    let judged = events.filter(|event| event.event_type == "policy.evaluated");
    judged
        .map(|event| {
            assert_eq!(event.purpose, "audit");
            serde_json::from_str(&event.payload).unwrap()
        })
        .collect()
}

fn stages(judgement: &Value) -> Vec<String> {
    let decisions = judgement["decisions"].as_array().unwrap();
    decisions.iter().map(|d| d["stage"].as_str().unwrap().to_owned()).collect()
}

/// R11, X6: at the door, and again before the call.
async fn r011_the_chain_is_asked_in_order_and_every_decision_is_kept(f: Fixture) {
    let world = world(&f, vendor(), governance()).await;
    let command = world.submit("").await;
    command.result().await.unwrap();
    let judged = judgements(&command).await;
    assert_eq!(judged.len(), 2, "{judged:#?}");
    for judgement in &judged {
        let chain = ["permission", "connector_scope", "rate_limit", "cost"];
        assert_eq!(stages(judgement), chain);
        assert_eq!(judgement["ruling"], "allow");
        for decision in judgement["decisions"].as_array().unwrap() {
            assert!(decision["inputs"].as_str().unwrap().starts_with("sha256:"));
            assert!(!decision["rule"].as_str().unwrap().is_empty());
            assert!(!decision["reason"].as_str().unwrap().is_empty());
        }
    }
    world.fabric.shutdown().await;
}

/// R12, R13
async fn r012_who_lacks_a_grant_is_denied_and_nothing_runs(f: Fixture) {
    let world = world(&f, vendor(), governance()).await;
    for (principal, lacks) in [
        ("user:reader", "warehouse.write/acme_sales"),
        ("user:nobody", "warehouse.write/acme_sales"),
    ] {
        let command = world.fabric.submit(pull, order("")).requested_by(principal).await.unwrap();
        let error = command.result().await.unwrap_err();
        assert_eq!((error.class(), error.code()), (ErrorClass::PermissionDenied, "SF-0801"));
        assert!(error.message().contains(lacks), "{error}");
        let row = command.info().await.unwrap().command;
        assert_eq!(row.status, CommandStatus::Failed);
        assert_eq!(judgements(&command).await.len(), 1);
        assert!(world.fabric.get(&row.workflow_id).await.is_err(), "there is no run");
    }
    let writer = Governance::new().grant("user:writer", ["warehouse.write"]);
    world.fabric.shutdown().await;
    let world = self::world(&f, vendor(), writer).await;
    let command = world.fabric.submit(pull, order("")).requested_by("user:writer").await.unwrap();
    let error = command.result().await.unwrap_err();
    assert!(error.message().contains("connector.acme_sales.read"), "{error}");
    assert_eq!((world.steps.0.load(Ordering::SeqCst), world.vendor.sent().len()), (0, 0));
    world.fabric.shutdown().await;
}

/// R14, R15: refused before anything is sent, and entered in the ledger as blocked.
async fn r014_a_connector_is_asked_only_within_its_scope(f: Fixture) {
    let world = world(&f, vendor(), governance()).await;
    let command = world.submit("post").await;
    let error = command.result().await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::PolicyDenied, "{error}");
    assert!(error.message().contains("POST /sales/daily"), "{error}");
    assert_eq!(world.vendor.sent(), [] as [&str; 0]);
    let which = ListInvocations {
        command_id: Some(command.id().to_owned()),
        limit: 10,
        ..Default::default()
    };
    let calls = world.fabric.invocations(which).await.unwrap();
    assert_eq!(calls.len(), 1);
    assert_eq!((calls[0].verification.as_str(), calls[0].actual.as_str()), ("blocked", ""));
    let error = world.refused("write elsewhere").await;
    assert!(error.message().contains("upsert users"), "{error}");
    assert_eq!(world.warehouse.sent(), [] as [&str; 0]);
    world.submit("write").await.result().await.unwrap();
    assert_eq!(world.warehouse.sent(), ["upsert sales_daily"]);
    world.fabric.shutdown().await;
}

/// R16
async fn r016_calls_above_the_rate_are_not_sent(f: Fixture) {
    let rate = Some(Rate { calls: 1, per: Duration::from_secs(3600) });
    let vendor = vendor().limits(Limits { rate, breaker: None });
    let world = world(&f, vendor, governance()).await;
    let error = world.refused("twice").await;
    assert_eq!((error.class(), error.code()), (ErrorClass::RateLimited, "SF-0810"));
    assert!(error.wait_at_least().unwrap() > Duration::from_secs(1800), "{error:?}");
    assert_eq!(world.vendor.sent().len(), 1, "the second was not sent");
    // Another worker shares the bucket.
    let other = self::world(&f, world.vendor.clone(), governance()).await;
    assert_eq!(other.refused("").await.class(), ErrorClass::RateLimited);
    assert_eq!(world.vendor.sent().len(), 1);
    world.fabric.shutdown().await;
    other.fabric.shutdown().await;
}

/// R17
async fn r017_a_spent_budget_asks_people_and_is_audited(f: Fixture) {
    let governance = || governance().budget(Budget::per_command(1));
    let world = world(&f, vendor(), governance()).await;
    let command = world.submit("twice").await;
    let pending = || world.fabric.pending_approvals();
    until("people are asked", async || pending().await.unwrap().len() == 1).await;
    assert_eq!(world.vendor.sent().len(), 1, "nothing is spent while people think");
    let asked = pending().await.unwrap().remove(0).asked;
    assert_eq!(asked.approvers, 2);
    let types: Vec<_> =
        command.events().await.unwrap().into_iter().map(|event| event.event_type).collect();
    assert!(types.iter().any(|t| t == "cost.cap_reached"), "{types:?}");
    for person in ["lead:1", "lead:2"] {
        let vote = steadfast::Vote::Approved;
        world.fabric.decide(&asked.approval_id, person, vote, "worth it").await.unwrap();
    }
    command.result().await.unwrap();
    assert_eq!(world.vendor.sent().len(), 2);
    world.fabric.shutdown().await;
    // A hard cap asks nobody.
    let hard = self::governance().budget(Budget::per_command(1).hard());
    let world = self::world(&f, vendor(), hard).await;
    let error = world.refused("twice").await;
    assert_eq!(error.class(), ErrorClass::PolicyDenied, "{error}");
    assert_eq!(world.vendor.sent().len(), 1);
    world.fabric.shutdown().await;
}

async fn note(cx: Cx, input: Value) -> Result<Value> {
    let _ = cx;
    Ok(input)
}

/// R18, R29: the other stages exist for others, and all eight rulings do what they say.
async fn r018_every_stage_can_be_set_and_every_ruling_is_heeded(f: Fixture) {
    let says = |payload: &Value| -> Finding {
        let ruling = payload["ruling"].as_str().unwrap_or("allow");
        match Ruling::ALL.into_iter().find(|r| r.as_str() == ruling).unwrap() {
            Ruling::Redact => Finding::redact("test", ["secret".to_owned()], "not for you"),
            ruling => Finding::new(ruling, "test", "because"),
        }
    };
    for stage in Stage::ALL {
        let policy = PolicyFn(stage, move |act: &Act| says(&act.payload));
        let fabric = f
            .fabric()
            .command(note, Contract::new().policies([stage.as_str()]))
            .govern(Governance::new().policy(policy))
            .start()
            .await
            .unwrap();
        let submit = async |ruling: &str| {
            let payload = json!({ "ruling": ruling, "secret": "s3", "stage": stage.as_str() });
            fabric.submit(note, payload).await.unwrap()
        };
        for ruling in ["allow", "route_sync", "route_async"] {
            let result = submit(ruling).await.result().await.unwrap();
            assert_eq!(result["secret"], "s3", "{stage:?} {ruling}");
        }
        let redacted = submit("redact").await.result().await.unwrap();
        assert_eq!(redacted["secret"], "[redacted]", "{stage:?}");
        assert!(submit("deny").await.result().await.is_err(), "{stage:?}");
        let lacking = submit("require_more_input").await;
        let waits = CommandStatus::WaitingForInput;
        assert_eq!(lacking.status().await.unwrap(), waits, "{stage:?}");
        let more = |ruling: &str| json!({ "ruling": ruling, "secret": "s4", "more": true });
        let still = lacking.supply(more("require_more_input"), "user:2").await.unwrap();
        assert_eq!(still, waits, "{stage:?}: judged again");
        lacking.supply(more("redact"), "user:2").await.unwrap();
        let done = lacking.result().await.unwrap();
        assert_eq!((&done["more"], &done["secret"]), (&json!(true), &json!("[redacted]")));
        assert_eq!(judgements(&lacking).await.len(), 3, "{stage:?}: each is on record");
        let late = lacking.supply(more("allow"), "user:2").await.unwrap_err();
        assert_eq!(late.code(), "SF-0518", "{late}");
        for ruling in ["require_approval", "escalate"] {
            let status = submit(ruling).await.status().await.unwrap();
            assert_eq!(status, CommandStatus::WaitingForApproval, "{stage:?} {ruling}");
        }
        fabric.shutdown().await;
    }
}

/// R107, X6: every way we could think of.
async fn r107_there_is_no_way_around_the_policy(f: Fixture) {
    let world = world(&f, vendor(), governance()).await;
    // An effect that the contract does not declare.
    let error = world.refused("undeclared").await;
    assert_eq!(error.class(), ErrorClass::PermissionDenied, "{error}");
    assert!(error.message().contains("mail.send"), "{error}");
    // A write that is no effect.
    let error = world.refused("write by call").await;
    assert!(error.message().contains("needs an effect"), "{error}");
    // The workflow without its command.
    for how in ["write", "undeclared"] {
        let run = world.fabric.start(pull, order(how)).await.unwrap();
        let error = run.result().await.unwrap_err();
        assert_eq!(error.code(), "SF-0809", "{how}: {error}");
    }
    // A process that knows the type and not its policies.
    let bare = f.client();
    let submitted = bare.submit_named::<Value>("pull", &order("")).await;
    assert_eq!(submitted.err().unwrap().code(), "SF-0503", "it does not even know the type");
    assert_eq!(world.warehouse.sent(), [] as [&str; 0]);
    let which = ListEffects { limit: 10, ..Default::default() };
    assert_eq!(world.fabric.effects(which).await.unwrap(), []);
    world.fabric.shutdown().await;
}

async fn think(cx: Cx, order: Order) -> Result<Value> {
    let ask = |operation: &str| Outbound::new(operation, json!({}));
    match order.how.as_str() {
        "write" => {
            let effect = Effect::of("partition.write").payload(json!({ "rows": 1 }));
            cx.effect_via(effect, "warehouse", ask("upsert sales_daily")).await
        }
        "send" => {
            let effect = Effect::of("mail.send");
            cx.effect(effect, |_| async { Ok::<_, Error>(json!("sent")) }).await
        }
        "read" => cx.call("fetch", "vendor", ask("GET /sales/daily")).await,
        _ => {
            let thought: u32 = cx.step("think", || async { Ok::<_, Error>(42) }).await?;
            assert_eq!(thought, 42);
            let command_id = steadfast::propose(&cx, "pull", &self::order("write")).await?;
            Ok(json!({ "command_id": command_id }))
        }
    }
}

/// What is told of an agent's steps, in order.
async fn agent_steps(command: &steadfast::Command<Value>) -> Vec<(String, Value)> {
    let events = command.events().await.unwrap().into_iter();
    let steps = events.filter(|event| event.purpose == "agent_step");
    let told = |e: steadfast::EventRow| (e.event_type, serde_json::from_str(&e.payload).unwrap());
    steps.map(told).collect()
}

/// R31, R100: refused and audited, whatever the contract declares; a proposal is judged as any.
async fn r100_an_agent_proposes_and_never_commits(f: Fixture) {
    let (vendor, warehouse) = (vendor(), warehouse());
    let harmless = |name: &str| EffectType::new(name).classes(HARMLESS).not_undone("test");
    let agent =
        Contract::new().agent().effect(harmless("partition.write")).effect(harmless("mail.send"));
    let fabric = f
        .fabric()
        .command(pull, contract())
        .command(think, agent)
        .state(Steps::default())
        .govern(governance().grant("agent:analyst", ["warehouse.write", "connector.*"]))
        .connector(vendor.clone())
        .connector(warehouse.clone())
        .start()
        .await
        .unwrap();
    let submit = async |how: &str| {
        let call = fabric.submit(think, order(how)).requested_by("agent:analyst");
        call.await.unwrap()
    };
    for how in ["write", "send"] {
        let command = submit(how).await;
        let error = command.result().await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::PolicyDenied, "{how}: {error}");
        let judged = judgements(&command).await;
        let last = judged.last().unwrap();
        assert_eq!(last["ruling"], "deny", "{how}");
        assert_eq!(last["decisions"][0]["stage"], "agent_risk");
    }
    assert_eq!(warehouse.sent(), [] as [&str; 0]);
    submit("read").await.result().await.unwrap();
    assert_eq!(vendor.sent().len(), 1, "to look is no commitment");
    let proposing = submit("propose").await;
    let proposed = proposing.result().await.unwrap();
    let steps = agent_steps(&proposing).await;
    assert_eq!(steps.len(), 2, "{steps:?}");
    assert_eq!((steps[0].0.as_str(), &steps[0].1["tool_name"]), ("agent.step", &json!("think")));
    assert_eq!(
        (steps[1].0.as_str(), &steps[1].1["command_type"]),
        ("agent.proposed", &json!("pull"))
    );
    assert_eq!(steps[1].1["command_id"], proposed["command_id"]);
    assert!(steps[1].1["step_index"].as_u64() > steps[0].1["step_index"].as_u64(), "{steps:?}");
    let command = fabric.command::<Value>(proposed["command_id"].as_str().unwrap());
    command.result().await.unwrap();
    assert_eq!(warehouse.sent(), ["upsert sales_daily"]);
    let row = command.info().await.unwrap().command;
    assert_eq!(
        (row.requested_by.as_str(), row.ingress.as_str()),
        ("agent:analyst", "agent_action")
    );
    let which =
        ListApprovals { status: Some(ApprovalStatus::Pending), limit: 1, ..Default::default() };
    assert_eq!(fabric.approvals(which).await.unwrap(), []);
    fabric.shutdown().await;
}
