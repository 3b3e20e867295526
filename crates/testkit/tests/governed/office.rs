//! Our side: the command, its contract, the node that runs it, and the person who answers.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::connector::Outbound;
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    Client, Compensation, Contract, Cx, Effect, EffectType, Env, Error, Governance, ListApprovals,
    ListEffects, Result, Retry, Steadfast, Truth, Undo, Vote,
};
use steadfast_core::{ApprovalStatus, CommandStatus, EffectStatus};
use steadfast_store::{Store, StoreExt as _, op};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sim::SimEnv;

use super::crm::Crm;

const WORKSPACE: &str = "office";

/// How the sale ends when nothing crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All three steps.
    Sold,
    /// The third is refused for good: the first two are taken back.
    Refused,
    /// People do not allow the second: the first is taken back.
    Rejected,
    /// As sold, by a CRM that does not look at keys: for proving that doubles are seen.
    Forgetful,
}

impl Ending {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sold => "sold",
            Self::Refused => "refused",
            Self::Rejected => "rejected",
            Self::Forgetful => "forgetful",
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Sale {
    customer: String,
}

fn ask(operation: &str) -> Outbound {
    Outbound::new(operation, json!({ "customer": "c1" }))
}

/// A deal, a proposal by mail once people allow it, and a follow-up some time later.
async fn sell(cx: Cx, sale: Sale) -> Result<String> {
    let _: Value = cx.effect_via(Effect::of("deal.create"), "crm", ask("POST /deals")).await?;
    let mail = Effect::of("mail.send").payload(json!({ "to": sale.customer }));
    let _: Value = cx.effect_via(mail, "crm", ask("POST /mails")).await?;
    cx.sleep(Duration::from_secs(20)).await?;
    let later = Effect::of("followup.create");
    let _: Value = cx.effect_via(later, "crm", ask("POST /followups")).await?;
    Ok("sold".to_owned())
}

async fn undo_deal(cx: Cx, undo: Undo) -> Result<()> {
    let effect = Effect::keyed("deal.delete", format!("undo {}", undo.key));
    let _: Value = cx.effect_via(effect, "crm", ask("DELETE /deals")).retry(patient()).await?;
    Ok(())
}

async fn apologise(cx: Cx, undo: Undo) -> Result<()> {
    let effect = Effect::keyed("mail.apologise", format!("sorry {}", undo.key));
    let _: Value = cx.effect_via(effect, "crm", ask("POST /apologies")).retry(patient()).await?;
    Ok(())
}

fn patient() -> Retry {
    Retry::exponential(6, Duration::from_secs(1), 1.0)
}

fn contract() -> Contract {
    let classes = |a| Classes::new(a, Reversibility::R1, Sensitivity::S1);
    let made = |name: &str| EffectType::new(name).classes(classes(ApprovalClass::A0));
    let mail = EffectType::new("mail.send").classes(classes(ApprovalClass::A1));
    Contract::new()
        .key("sell:{customer}")
        .policies(["permission", "connector_scope", "approval_requirement"])
        .requires(["crm.write"])
        .effect(made("deal.create").undone_by("undo_deal"))
        .effect(mail.undone_by("apologise"))
        .effect(made("followup.create").not_undone("it is the last step"))
        .effect(made("deal.delete").inverse_of("deal.create").not_undone("it takes back"))
        .effect(made("mail.apologise").not_undone("it makes amends"))
        .compensation(Compensation::new("undo_deal", ["deal.delete"]), undo_deal)
        .compensation(Compensation::new("apologise", ["mail.apologise"]), apologise)
}

/// A node: the fabric, and the same submission at every start.
pub(crate) async fn boot(env: Arc<SimEnv>, store: Arc<dyn Store>, crm: Crm) {
    let governance = Governance::new().grant("user:seller", ["crm.write"]);
    let name = env.name().to_owned();
    let fabric = Steadfast::open("given")
        .store(store)
        .env(env)
        .workspace(WORKSPACE)
        .worker_name(name)
        .command(sell, contract())
        .govern(governance)
        .connector(crm)
        .start()
        .await;
    let Ok(fabric) = fabric else { return };
    let sale = Sale { customer: "c1".to_owned() };
    let _ = fabric.submit(sell, sale).requested_by("user:seller").await;
    // A node has its program until it dies: the last handle would end it.
    std::future::pending::<()>().await;
}

/// Answers questions, and says what became of mails that nobody knows about.
pub(crate) async fn person(env: Arc<SimEnv>, model: Arc<ModelStore>, crm: Crm) {
    let client = Client::over(env.clone(), model, WORKSPACE).unwrap();
    let vote = if crm.rejects() { Vote::Rejected } else { Vote::Approved };
    loop {
        env.sleep(Duration::from_secs(3)).await;
        let pending = ListApprovals {
            status: Some(ApprovalStatus::Pending),
            limit: 10,
            ..ListApprovals::default()
        };
        for row in client.approvals(pending).await.unwrap() {
            let _ = client.decide(&row.asked.approval_id, "lead:1", vote, "looked at it").await;
        }
        let open = ListEffects {
            status: Some(EffectStatus::Unknown),
            limit: 10,
            ..ListEffects::default()
        };
        for row in client.effects(open).await.unwrap() {
            let truth = match crm.has(&row.idempotency_key) {
                true => Truth::Done("{\"ok\":true}".to_owned()),
                false if row.effect_type == "mail.send" => Truth::Again,
                false => Truth::NotDone,
            };
            let _ = client.resolve_effect(&row.effect_id, truth, "user:op", "asked them").await;
        }
    }
}

pub(crate) fn peek<O: op::Operation + Send + 'static>(store: &ModelStore, op: O) -> O::Reply {
    let reply = store.ask(op).now_or_never().expect("invariant: the model answers at once");
    reply.expect("invariant: a read succeeds")
}

fn command(model: &ModelStore) -> Option<op::CommandRow> {
    let list = op::ListCommands {
        workspace: WORKSPACE.to_owned(),
        limit: 10,
        ..op::ListCommands::default()
    };
    let all = peek(model, list).commands;
    assert!(all.len() <= 1, "one key, one command: {all:?}");
    all.into_iter().next()
}

/// How the command ended, if it has.
pub(crate) fn ended(model: &ModelStore) -> Option<CommandStatus> {
    command(model).filter(|row| row.completed_at.is_some()).map(|row| row.status)
}

/// Where the command stands, for a report.
pub(crate) fn told(model: &ModelStore) -> (Option<CommandStatus>, Option<Error>) {
    let row = command(model);
    (row.as_ref().map(|row| row.status), row.and_then(|row| row.error))
}

/// The ledger says what happened: every effect once, and every call that was sent.
pub(crate) fn check_ledger(model: &ModelStore, crm: &Crm) -> Result<(), String> {
    let list = op::ListEffects {
        workspace: WORKSPACE.to_owned(),
        limit: 100,
        ..op::ListEffects::default()
    };
    let rows = peek(model, list).0;
    let pairs = [
        ("deal.create", "POST /deals"),
        ("mail.send", "POST /mails"),
        ("followup.create", "POST /followups"),
        ("deal.delete", "DELETE /deals"),
        ("mail.apologise", "POST /apologies"),
    ];
    for (effect, operation) in pairs {
        let of: Vec<_> = rows.iter().filter(|row| row.effect_type == effect).collect();
        let succeeded = of.iter().filter(|row| row.status == EffectStatus::Succeeded).count();
        if of.len() > 1 {
            return Err(format!("{} rows for effect {effect}", of.len()));
        }
        if succeeded != crm.count(operation) {
            return Err(format!(
                "the ledger has {succeeded} of {effect}, the world {}",
                crm.count(operation)
            ));
        }
        if of.iter().any(|row| row.status == EffectStatus::Executing) {
            return Err(format!("{effect} is left as executing"));
        }
    }
    Ok(())
}
