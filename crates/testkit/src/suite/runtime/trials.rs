//! Policies tried out: the same decisions as when it is done, and nothing done.

use serde_json::{Value, json};
use steadfast::connector::{Limits, Operation, Outbound, Rate};
use steadfast::policy::{
    Act, ApprovalClass, Classes, Finding, PolicyFn, Reversibility, Ruling, Sensitivity, Stage,
};
use steadfast::{
    Budget, Contract, Cx, Deed, Effect, EffectType, Governance, ListCommands, Result, Trial,
};

use super::stub::Stub;
use super::{Fixture, case_table};

case_table![
    r107_policies_are_tried_on_past_commands_and_all_they_did,
    r107_what_a_contract_declares_is_tried,
];

const LOOK: &str = "GET /deals";
const CREATE: &str = "POST /deals";

async fn sell(cx: Cx, deal: Value) -> Result<()> {
    let _: Value = cx.call("look", "crm", Outbound::new(LOOK, json!({}))).await?;
    let effect = Effect::of("deal.create");
    let _: Value = cx.effect_via(effect, "crm", Outbound::new(CREATE, deal)).await?;
    Ok(())
}

fn crm() -> Stub {
    let rate = Some(Rate { calls: 100, per: std::time::Duration::from_secs(1) });
    Stub::new("crm", [Operation::read(LOOK), Operation::write(CREATE).keyed()])
        .limits(Limits { rate, breaker: None })
}

fn contract() -> Contract {
    let harmless = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);
    Contract::new()
        .policies(["permission", "rate_limit", "cost", "external_sharing"])
        .requires(["crm.write"])
        .calls(["crm GET /deals"])
        .effect(EffectType::new("deal.create").classes(harmless).not_undone("test"))
}

/// Deals of more than so much are for people.
fn sharing(most: i64) -> PolicyFn<impl Fn(&Act) -> Finding + Send + Sync> {
    PolicyFn(Stage::ExternalSharing, move |act: &Act| match act.payload["amount"].as_i64() {
        Some(amount) if amount > most => Finding::approval("large", 2, "much goes out"),
        _ => Finding::allow("small", "not much goes out"),
    })
}

fn governance(most: i64) -> Governance {
    Governance::new().grant("user:1", ["crm.write"]).policy(sharing(most))
}

/// R107, X6: by the same policies, the same decisions on the same digests; by others, theirs.
async fn r107_policies_are_tried_on_past_commands_and_all_they_did(f: Fixture) {
    let (way, budget) = (crm(), Budget::per_command(10));
    let fabric = f.fabric().command(sell, contract()).connector(way.clone());
    let fabric = fabric.govern(governance(1000).budget(budget)).start().await.unwrap();
    let submit = fabric.submit(sell, json!({ "amount": 900 })).requested_by("user:1");
    let command = submit.await.unwrap();
    command.result().await.unwrap();
    let events = command.events().await.unwrap();
    let which = ListCommands { limit: 10, ..Default::default() };
    let (row, trial) = fabric.past(which).await.unwrap().remove(0);
    assert_eq!(row.command_id, command.id());

    let tried = fabric.try_out("sell", &trial).unwrap();
    let what: Vec<String> = tried.iter().map(steadfast::Tried::what).collect();
    assert_eq!(what, ["admit", "effect deal.create", "call crm GET /deals"]);
    let evaluated = events.iter().filter(|event| event.event_type == "policy.evaluated");
    let digests: Vec<String> = evaluated
        .map(|event| {
            let judged: Value = serde_json::from_str(&event.payload).unwrap();
            judged["decisions"][0]["inputs"].as_str().unwrap().to_owned()
        })
        .collect();
    for tried in &tried[..2] {
        assert_eq!(tried.judgement.ruling(), Ruling::Allow);
        let inputs = &tried.judgement.decisions[0].inputs;
        assert!(digests.contains(inputs), "{} was not what was judged then", tried.what());
    }
    let rules = tried[1].judgement.decisions.iter().map(|d| d.finding.rule.as_str());
    let rules: Vec<&str> = rules.collect();
    let wanted =
        ["has_capabilities", "counted_when_done", "counted_when_done", "small", "in_scope"];
    assert_eq!(rules, wanted);

    // Stricter rules, before anybody has them.
    let stricter = f.fabric().command(sell, contract()).connector(crm()).govern(governance(500));
    let stricter = stricter.start().await.unwrap();
    let tried = stricter.try_out("sell", &trial).unwrap();
    let rulings: Vec<Ruling> = tried.iter().map(|tried| tried.judgement.ruling()).collect();
    assert_eq!(rulings, [Ruling::Escalate, Ruling::Escalate, Ruling::Allow]);
    stricter.shutdown().await;

    assert_eq!(way.sent(), [LOOK, CREATE], "nothing was sent");
    assert_eq!(command.events().await.unwrap(), events, "nothing was written");
    fabric.shutdown().await;
}

/// R107, R12: a command that nobody has submitted.
async fn r107_what_a_contract_declares_is_tried(f: Fixture) {
    let way = crm();
    let fabric = f.fabric().command(sell, contract()).connector(way.clone());
    let fabric = fabric.govern(governance(1000)).start().await.unwrap();
    let rulings = |trial: &Trial| -> Vec<(String, Ruling)> {
        let tried = fabric.try_out("sell", trial).unwrap();
        tried.iter().map(|tried| (tried.what(), tried.judgement.ruling())).collect()
    };
    let named = |rulings: [Ruling; 3]| -> Vec<(String, Ruling)> {
        let acts = ["admit", "effect deal.create", "call crm GET /deals"].map(str::to_owned);
        acts.into_iter().zip(rulings).collect()
    };
    let large = Trial::new(json!({ "amount": 5000 }), "user:1");
    assert_eq!(rulings(&large), named([Ruling::Escalate; 3]), "all with the command's payload");
    let nobody = Trial::new(json!({ "amount": 1 }), "user:2");
    assert_eq!(rulings(&nobody), named([Ruling::Deny; 3]));
    let own = Deed::effect("deal.create").via("crm", CREATE).with(json!({ "amount": 1 }));
    let other = Deed::effect("deal.delete").with(json!({}));
    let said: Vec<Ruling> =
        rulings(&large.does(own).does(other)).into_iter().map(|(_, ruling)| ruling).collect();
    assert_eq!(said, [Ruling::Escalate, Ruling::Allow, Ruling::Deny]);
    assert_eq!(way.sent(), [""; 0]);
    let none = ListCommands { limit: 10, ..Default::default() };
    assert!(fabric.commands(none).await.unwrap().commands.is_empty());
    fabric.shutdown().await;
}
