//! A sale in three steps: a deal in the CRM, a proposal by mail once somebody allows it, and a
//! follow-up some time later. If a step fails for good, what was done is taken back.
//!
//! `cargo run -p crm` brings a CRM along that fails on purpose. Kill it and run it again: it goes
//! on where it was, and nothing is done twice.
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use crm::Crm;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::connector::{Operation, Outbound};
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    Command, Compensation, Contract, Cx, Effect, EffectType, Governance, ListEffects, Result,
    Retry, Steadfast, Undo, Vote,
};
use steadfast_connectors::Http;

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Sale {
    customer: String,
}

/// The three steps. Each is judged, keyed and in the ledger before it leaves.
async fn sell(cx: Cx, sale: Sale) -> Result<String> {
    let body = json!({ "body": { "customer": sale.customer } });
    let to = |operation: &str| Outbound::new(operation, body.clone());
    let _: Value = cx.effect_via(Effect::of("deal.create"), "crm", to("POST /deals")).await?;
    let _: Value = cx.effect_via(Effect::of("mail.send"), "crm", to("POST /mails")).await?;
    cx.sleep(Duration::from_secs(1)).await?; // days, in earnest
    let later = Effect::of("followup.create");
    let _: Value = cx.effect_via(later, "crm", to("POST /followups")).await?;
    Ok(format!("sold to {}", sale.customer))
}

/// Takes the deal back, or makes amends for the mail.
async fn take_back(cx: Cx, undo: Undo) -> Result<()> {
    let (effect, operation) = match undo.effect_type.as_str() {
        "deal.create" => ("deal.delete", "POST /deals/cancel"),
        _ => ("mail.apologise", "POST /apologies"),
    };
    let effect = Effect::keyed(effect, format!("undo:{}", undo.key));
    let request = Outbound::new(operation, json!({ "body": undo.payload["body"] }));
    let _: Value = cx.effect_via(effect, "crm", request).retry(patient()).await?;
    Ok(())
}

fn patient() -> Retry {
    Retry::exponential(5, Duration::from_millis(200), 2.0)
}

/// What every sale is held to.
fn contract() -> Contract {
    let classes = |approval| Classes::new(approval, Reversibility::R1, Sensitivity::S1);
    let effect = |name: &str| EffectType::new(name).classes(classes(ApprovalClass::A0));
    let mail = EffectType::new("mail.send").classes(classes(ApprovalClass::A1));
    Contract::new()
        .key("sell:{customer}")
        .policies(["permission", "connector_scope", "rate_limit", "approval_requirement"])
        .requires(["crm.write"])
        .effect(effect("deal.create").undone_by("cancel_deal"))
        .effect(mail.undone_by("apologise"))
        .effect(effect("followup.create").not_undone("it is the last step"))
        .effect(effect("deal.delete").inverse_of("deal.create").not_undone("it takes back"))
        .effect(effect("mail.apologise").not_undone("it makes amends"))
        .compensation(Compensation::new("cancel_deal", ["deal.delete"]), take_back)
        .compensation(Compensation::new("apologise", ["mail.apologise"]), take_back)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let store = args.next().unwrap_or_else(|| "sqlite://crm.db".to_owned());
    let url = match args.next() {
        Some(url) => url,
        None => Crm::default().listen().await.map_err(steadfast::Error::from_any)?,
    };
    let mut ways = Http::new("crm", url).allow_private().retry(patient());
    for operation in ["deals", "mails", "followups", "deals/cancel", "apologies"] {
        ways = ways.allow(Operation::write(format!("POST /{operation}")).keyed());
    }
    let fabric = Steadfast::open(store)
        .worker_name("crm")
        .command(sell, contract())
        .govern(Governance::new().grant("user:seller", ["crm.write"]))
        .connector(ways.build()?)
        .start()
        .await?;
    let sale = Sale { customer: "c1".to_owned() };
    let command = fabric.submit(sell, sale).requested_by("user:seller").await?;
    println!("{} is {}", command.id(), command.status().await?);
    answer_and_tell(&fabric, &command).await?;
    fabric.shutdown().await;
    Ok(())
}

/// Says yes to what is asked, as somebody else would at another desk; then shows the ledger.
async fn answer_and_tell(fabric: &Steadfast, command: &Command<String>) -> Result<()> {
    while command.info().await?.command.completed_at.is_none() {
        for asked in fabric.pending_approvals().await? {
            let id = asked.asked.approval_id;
            println!("{} asks: {} with {}", id, asked.asked.action, asked.asked.payload);
            fabric.decide(&id, "user:lead", Vote::Approved, "looks right").await?;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let info = command.info().await?.command;
    println!("{} is {}", command.id(), info.status);
    if let Some(error) = info.error {
        println!("because: {error}");
    }
    let which = ListEffects { limit: 100, ..ListEffects::default() };
    for row in fabric.effects(which).await? {
        let undone = if row.compensated_at.is_some() { ", undone" } else { "" };
        println!("  {} {}{undone}", row.effect_type, row.status);
    }
    Ok(())
}
