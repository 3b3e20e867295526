//! Panics in what governs: policies, connectors, probes and compensations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::connector::{Connector, Inbound, Limits, Operation, Outbound};
use steadfast::policy::{
    Act, ApprovalClass, Classes, Doing, Finding, Policy, PolicyFn, Reversibility, Sensitivity,
    Stage,
};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    Command, CommandStatus, Compensation, Contract, Cx, Effect, EffectType, Error, ErrorClass,
    Governance, ListCommands, Result, Retry, Truth, Undo,
};

use super::super::{Fixture, SOON, case_table, until};
use super::{assert_panic, boom, narrow, unharmed};

case_table![
    a_policy_that_panics_lets_nothing_pass_and_holds_nothing,
    a_policy_whose_declaration_panics_refuses_the_start,
    a_connector_that_panics_fails_its_call,
    a_connector_whose_declaration_panics_is_refused,
    a_probe_that_panics_leads_to_a_person,
    a_compensation_that_panics_halts_the_way_back,
];

const HARMLESS: Classes = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Order {
    how: String,
}

fn order(how: &str) -> Order {
    Order { how: how.to_owned() }
}

/// Gives the code and the message of what went wrong.
async fn trade(cx: Cx, order: Order) -> Result<(String, String)> {
    let request = Outbound::new("POST /trades", json!({ "how": order.how }));
    let effect = Effect::of("trade").payload(json!({ "how": order.how }));
    let failed: Result<Value> = match order.how.as_str() {
        "effect" => cx.effect(effect, |_| async { Ok::<_, Error>(json!(1)) }).await,
        "send" => cx.effect_via(effect, "market", request).await,
        _ => {
            let request = Outbound::new("GET /trades", json!({ "how": order.how }));
            cx.call("look", "market", request).await
        }
    };
    match failed {
        Ok(value) => Ok(("none".to_owned(), value.to_string())),
        Err(error) => Ok((error.code().to_owned(), error.message().to_owned())),
    }
}

fn contract() -> Contract {
    let effect = EffectType::new("trade").classes(HARMLESS).not_undone("a trade is a trade");
    Contract::new().policies(["data_safety"]).calls(["market GET /trades"]).effect(effect)
}

/// A connector that panics as it is told by the input, or by its own name for what is declared.
struct Market {
    declaration: &'static str,
    scope: Vec<Operation>,
}

impl Market {
    fn new(declaration: &'static str) -> Self {
        let scope = vec![Operation::read("GET /trades"), Operation::write("POST /trades").keyed()];
        Self { declaration, scope }
    }

    fn declare(&self, what: &str) {
        assert!(self.declaration != what, "no {what}");
    }
}

impl Connector for Market {
    fn name(&self) -> &str {
        self.declare("name");
        "market"
    }

    fn scope(&self) -> &[Operation] {
        self.declare("scope");
        &self.scope
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        assert!(request.input["how"] != "at once", "boom at once");
        Box::pin(async {
            tokio::task::yield_now().await;
            assert!(request.input["how"] == "well", "boom later");
            Ok(Inbound::new(json!("well"), request.operation.clone(), "200"))
        })
    }

    fn limits(&self) -> Limits {
        self.declare("limits");
        Limits::default()
    }

    fn retry(&self) -> Retry {
        self.declare("retry");
        Retry::none()
    }
}

fn because(stage: Stage, panics: fn(&Act) -> bool) -> impl Policy {
    PolicyFn(stage, move |act: &Act| {
        assert!(!panics(act), "boom");
        Finding::allow("calm", "it does not panic")
    })
}

async fn a_policy_that_panics_lets_nothing_pass_and_holds_nothing(f: Fixture) {
    let policy = because(Stage::DataSafety, |act| match &act.doing {
        Doing::Admit => act.payload["how"] == "admission",
        Doing::Effect { .. } | Doing::Call { .. } => act.payload["how"] != "well",
    });
    let fabric = narrow(&f).command(trade, contract()).connector(Market::new(""));
    let fabric = fabric.govern(Governance::new().policy(policy)).start().await.unwrap();
    let message = "policy \"data_safety\" panicked: boom";
    let refused = fabric.submit(trade, order("admission")).await.err().unwrap();
    assert_panic(&refused, message);
    let page = ListCommands { limit: 10, ..Default::default() };
    assert_eq!(fabric.commands(page).await.unwrap().commands, [], "nothing is written");
    for how in ["effect", "send", "look"] {
        let command = fabric.submit(trade, order(how)).await.unwrap();
        let failed = tokio::time::timeout(SOON, command.result()).await.unwrap().unwrap();
        assert_eq!(failed, ("SF-0205".to_owned(), message.to_owned()), "{how}");
    }
    let command = fabric.submit(trade, order("well")).await.unwrap();
    assert_eq!(command.result().await.unwrap().1, "\"well\"");
    unharmed(&fabric).await;
}

/// A policy that panics when it is asked what it may have left out.
struct Shy;

impl Policy for Shy {
    fn stage(&self) -> Stage {
        Stage::DataSafety
    }

    fn decide(&self, _: &Act) -> Finding {
        Finding::allow("calm", "it does not panic")
    }

    fn redacts(&self) -> Vec<String> {
        panic!("boom")
    }
}

async fn a_policy_whose_declaration_panics_refuses_the_start(f: Fixture) {
    let fabric = narrow(&f).command(trade, contract()).connector(Market::new(""));
    let refused = fabric.govern(Governance::new().policy(Shy)).start().await.err().unwrap();
    assert_panic(&refused, "policy \"data_safety\" panicked: boom");
}

async fn a_connector_that_panics_fails_its_call(f: Fixture) {
    let fabric = narrow(&f).command(trade, contract().policies([] as [&str; 0]));
    let fabric = fabric.connector(Market::new("")).start().await.unwrap();
    for (how, message) in [
        ("send", "connector \"market\" panicked: boom later"),
        ("at once", "connector \"market\" panicked: boom at once"),
        ("later", "connector \"market\" panicked: boom later"),
    ] {
        let command = fabric.submit(trade, order(how)).await.unwrap();
        let failed = tokio::time::timeout(SOON, command.result()).await.unwrap().unwrap();
        assert_eq!(failed, ("SF-0205".to_owned(), message.to_owned()), "{how}");
    }
    let command = fabric.submit(trade, order("well")).await.unwrap();
    assert_eq!(command.result().await.unwrap().1, "\"well\"");
    unharmed(&fabric).await;
}

async fn a_connector_whose_declaration_panics_is_refused(f: Fixture) {
    for what in ["name", "scope", "limits", "retry"] {
        let refused = narrow(&f).connector(Market::new(what)).start().await.err().unwrap();
        let of = if what == "name" { "the name of a connector" } else { "connector \"market\"" };
        assert_panic(&refused, &format!("{of} panicked: no {what}"));
    }
}

/// How often a receiver was asked whether it did what it was sent.
#[derive(Clone, Default)]
struct Asked(Arc<AtomicU32>);

async fn pay(cx: Cx, _: Order) -> Result<Value> {
    let asked = (*cx.state::<Asked>()?).clone();
    let effect = Effect::of("pay").once().payload(json!(1)).probe(move |_| {
        asked.0.fetch_add(1, Ordering::SeqCst);
        async { boom::<Result<Option<Value>>>() }
    });
    let unclear = || Error::new(ErrorClass::Timeout, "SF-0001", "no answer");
    cx.effect(effect, move |_| async move { Err::<Value, _>(unclear()) })
        .retry(Retry::exponential(2, std::time::Duration::from_millis(1), 1.0))
        .await
}

async fn a_probe_that_panics_leads_to_a_person(f: Fixture) {
    let effect = EffectType::new("pay").classes(HARMLESS).not_undone("money is gone");
    let asked = Asked::default();
    let fabric = narrow(&f).command(pay, Contract::new().effect(effect)).state(asked.clone());
    let fabric = fabric.start().await.unwrap();
    let command = fabric.submit(pay, order("")).await.unwrap();
    let blocked = CommandStatus::Blocked;
    until("a person is asked", async || command.status().await.unwrap() == blocked).await;
    assert_eq!(asked.0.load(Ordering::SeqCst), 2, "as often as its policy says");
    let open = effects(&fabric, &command).await.remove(0);
    let truth = Truth::Done("\"paid\"".to_owned());
    fabric.resolve_effect(&open.effect_id, truth, "user:1", "").await.unwrap();
    assert_eq!(command.result().await.unwrap(), json!("paid"));
    unharmed(&fabric).await;
}

async fn effects(
    fabric: &steadfast::Steadfast,
    command: &Command<Value>,
) -> Vec<steadfast::EffectRow> {
    let command_id = Some(command.id().to_owned());
    let which = steadfast::ListEffects { command_id, limit: 10, ..Default::default() };
    fabric.effects(which).await.unwrap()
}

async fn sell(cx: Cx, _: Order) -> Result<Value> {
    let _: Value = cx.effect(Effect::of("sale"), |_| async { Ok::<_, Error>(json!(1)) }).await?;
    Err(Error::app("the next step failed"))
}

async fn take_back(_: Cx, _: Undo) -> Result<()> {
    panic!("boom")
}

async fn a_compensation_that_panics_halts_the_way_back(f: Fixture) {
    let effect = EffectType::new("sale").classes(HARMLESS).undone_by("undo");
    let none: [&str; 0] = [];
    let contract =
        Contract::new().effect(effect).compensation(Compensation::new("undo", none), take_back);
    let fabric = narrow(&f).command(sell, contract).start().await.unwrap();
    let command = fabric.submit(sell, order("")).await.unwrap();
    let error = tokio::time::timeout(SOON, command.result()).await.unwrap().unwrap_err();
    assert_eq!(error.code(), "SF-0831");
    assert!(error.message().contains("the next step failed"), "{error}");
    assert!(error.message().contains("compensation \"undo\" panicked: boom"), "{error}");
    assert_eq!(command.status().await.unwrap(), CommandStatus::Failed);
    unharmed(&fabric).await;
}
