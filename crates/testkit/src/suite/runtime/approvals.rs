//! Approvals: people are asked once, the run waits without a worker, and the answer is bound to
//! what was shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::policy::{
    Act, ApprovalClass, Classes, Doing, Finding, PolicyFn, Reversibility, Ruling, Sensitivity,
    Stage,
};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    ApprovalRequest, ApprovalRow, ApprovalStatus, Approved, Builder, Client, Command,
    CommandStatus, Contract, Cx, Effect, EffectStatus, EffectType, Error, ErrorClass, Governance,
    ListEffects, Result, Steadfast, Vote,
};
use steadfast_core::Timestamp;
use steadfast_store::op::NewApproval;

use super::{Clock, Fixture, case_table, until};

case_table![
    r115_a_run_waits_for_people_without_a_worker_and_through_a_restart,
    r122_an_effect_of_a_class_is_not_performed_before_people_say_yes,
    x11_different_people_each_once_and_never_for_oneself,
    x11_time_runs_out_and_late_answers_change_nothing,
    a_no_ends_it_and_so_does_a_wish_for_changes,
    a_command_as_a_whole_waits_for_people,
    a_cancel_withdraws_the_question,
    a_dry_run_asks_nobody,
    x11_a_rule_says_who_is_asked_how_many_and_for_how_long,
    x11_a_rule_that_nobody_could_satisfy_denies,
    x11_who_would_not_be_asked_now_does_not_count,
    x11_who_gave_the_payload_does_not_approve_it,
];

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Proposal {
    to: String,
    how: String,
}

fn proposal(how: &str) -> Proposal {
    Proposal { to: "customer".to_owned(), how: how.to_owned() }
}

#[derive(Clone, Default)]
struct Sent(Arc<AtomicU32>);

async fn send_proposal(cx: Cx, what: Proposal) -> Result<Value> {
    if what.how == "ask" {
        let request = ApprovalRequest::new("send_proposal", "send the proposal")
            .payload(json!({ "to": what.to }))
            .approvers(2)
            .among(["lead:*", "user:asker"])
            .ttl(Duration::from_secs(3600))
            .escalate_after(Duration::from_secs(600));
        let yes: Approved = cx.approval(request).await?;
        return Ok(json!(yes.by));
    }
    let sent = (*cx.state::<Sent>()?).clone();
    let effect = Effect::of("mail.send").payload(json!({ "to": what.to }));
    cx.effect(effect, move |_| {
        let sent = sent.clone();
        async move { Ok::<_, Error>(json!(sent.0.fetch_add(1, Ordering::SeqCst) + 1)) }
    })
    .await
}

fn contract(approval: ApprovalClass) -> Contract {
    let classes = Classes::new(approval, Reversibility::R2, Sensitivity::S1);
    let mail = EffectType::new("mail.send").classes(classes);
    Contract::new()
        .policies(["approval_requirement"])
        .effect(mail.not_undone("mail cannot be unsent"))
}

fn builder(f: &Fixture, sent: &Sent) -> Builder {
    f.fabric().command(send_proposal, contract(ApprovalClass::A1)).state(sent.clone())
}

async fn submit(fabric: &Steadfast, how: &str) -> Command<Value> {
    let call = fabric.submit(send_proposal, proposal(how));
    call.requested_by("user:asker").await.unwrap()
}

async fn asked(fabric: &Steadfast) -> ApprovalRow {
    until("people are asked", async || !fabric.pending_approvals().await.unwrap().is_empty()).await;
    fabric.pending_approvals().await.unwrap().remove(0)
}

async fn yes(fabric: &Steadfast, id: &str, who: &str) -> Result<ApprovalStatus> {
    fabric.decide(id, who, Vote::Approved, "fine").await
}

/// R115
async fn r115_a_run_waits_for_people_without_a_worker_and_through_a_restart(f: Fixture) {
    let sent = Sent::default();
    let first = builder(&f, &sent).start().await.unwrap();
    let command_id = submit(&first, "ask").await.id().to_owned();
    let question = asked(&first).await;
    until("it holds no worker", async || first.live_runs() == 0).await;
    first.shutdown().await;
    // Answered while nobody runs anything.
    let client = f.client();
    let id = question.asked.approval_id.as_str();
    let counted = client.decide(id, "lead:1", Vote::Approved, "").await.unwrap();
    assert_eq!(counted, ApprovalStatus::Pending);
    client.decide(id, "lead:2", Vote::Approved, "").await.unwrap();
    let second = builder(&f, &sent).start().await.unwrap();
    let command = second.command::<Value>(command_id);
    assert_eq!(command.result().await.unwrap(), json!(["lead:1", "lead:2"]));
    let types: Vec<_> = command.events().await.unwrap().into_iter().map(|e| e.event_type).collect();
    for wanted in ["approval.requested", "approval.voted", "approval.approved"] {
        assert!(types.iter().any(|t| t == wanted), "{wanted}: {types:?}");
    }
    second.shutdown().await;
}

/// R122
async fn r122_an_effect_of_a_class_is_not_performed_before_people_say_yes(f: Fixture) {
    let sent = Sent::default();
    let fabric = builder(&f, &sent).start().await.unwrap();
    let command = submit(&fabric, "").await;
    let question = asked(&fabric).await;
    let which = ListEffects { limit: 10, ..Default::default() };
    let rows = fabric.effects(which.clone()).await.unwrap();
    assert_eq!(rows[0].status, EffectStatus::Planned, "on record while people think");
    assert_eq!((question.asked.action.as_str(), question.asked.approvers), ("mail.send", 1));
    assert_eq!(question.asked.payload, "{\"to\":\"customer\"}", "they see what will be done");
    assert!(question.asked.digest.starts_with("sha256:"));
    assert_eq!(sent.0.load(Ordering::SeqCst), 0);
    yes(&fabric, &question.asked.approval_id, "lead:1").await.unwrap();
    assert_eq!(command.result().await.unwrap(), json!(1));
    assert_eq!(fabric.effects(which).await.unwrap()[0].status, EffectStatus::Succeeded);
    fabric.shutdown().await;
}

/// X11
async fn x11_different_people_each_once_and_never_for_oneself(f: Fixture) {
    let fabric = builder(&f, &Sent::default()).start().await.unwrap();
    let command = submit(&fabric, "ask").await;
    let id = asked(&fabric).await.asked.approval_id;
    assert_eq!(yes(&fabric, &id, "lead:1").await.unwrap(), ApprovalStatus::Pending);
    assert_eq!(yes(&fabric, &id, "lead:1").await.unwrap(), ApprovalStatus::Pending, "counts once");
    let own = yes(&fabric, &id, "user:asker").await.unwrap_err();
    assert_eq!((own.code(), own.class()), ("SF-0816", ErrorClass::PermissionDenied));
    assert_eq!(yes(&fabric, &id, "user:other").await.unwrap_err().code(), "SF-0817");
    assert_eq!(yes(&fabric, "nothing", "lead:1").await.unwrap_err().code(), "SF-0818");
    assert_eq!(yes(&fabric, &id, "lead:2").await.unwrap(), ApprovalStatus::Approved);
    command.result().await.unwrap();
    assert_eq!(yes(&fabric, &id, "lead:3").await.unwrap_err().code(), "SF-0815", "too late");
    fabric.shutdown().await;
}

/// X11: expiry is audited; a late answer changes nothing; before it, more people are told.
async fn x11_time_runs_out_and_late_answers_change_nothing(f: Fixture) {
    let clock = Clock::at("2026-06-01T08:00:00Z");
    let fabric = builder(&f, &Sent::default()).env(clock.clone()).start().await.unwrap();
    let command = submit(&fabric, "ask").await;
    let id = asked(&fabric).await.asked.approval_id;
    let told = async |wanted: &str| {
        let events = command.events().await.unwrap();
        events.iter().filter(|e| e.event_type == wanted && e.purpose == "audit").count()
    };
    clock.go("2026-06-01T08:11:00Z");
    until("more people are told", async || {
        fabric.settle_approvals().await.unwrap();
        told("approval.escalated").await == 1
    })
    .await;
    clock.go("2026-06-01T09:00:01Z");
    assert_eq!(yes(&fabric, &id, "lead:1").await.unwrap_err().code(), "SF-0815");
    fabric.settle_approvals().await.unwrap();
    let error = command.result().await.unwrap_err();
    assert_eq!((error.class(), error.code()), (ErrorClass::ApprovalRejected, "SF-0813"));
    assert!(error.message().contains("expired"), "{error}");
    assert_eq!((told("approval.expired").await, told("approval.escalated").await), (1, 1));
    assert_eq!(yes(&fabric, &id, "lead:1").await.unwrap_err().code(), "SF-0815");
    fabric.shutdown().await;
}

async fn a_no_ends_it_and_so_does_a_wish_for_changes(f: Fixture) {
    let sent = Sent::default();
    let fabric = builder(&f, &sent).start().await.unwrap();
    for vote in [Vote::Rejected, Vote::RequestChanges] {
        let command = submit(&fabric, "").await;
        let id = asked(&fabric).await.asked.approval_id;
        let status = fabric.decide(&id, "lead:1", vote, "too dear").await.unwrap();
        assert_eq!(status, ApprovalStatus::Rejected);
        let error = command.result().await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::ApprovalRejected);
        assert!(error.message().contains("too dear"), "{error}");
    }
    assert_eq!(sent.0.load(Ordering::SeqCst), 0);
    let which = ListEffects { limit: 10, ..Default::default() };
    let rows = fabric.effects(which).await.unwrap();
    assert!(rows.iter().all(|row| row.status == EffectStatus::Failed), "{rows:?}");
    fabric.shutdown().await;
}

async fn a_command_as_a_whole_waits_for_people(f: Fixture) {
    let sent = Sent::default();
    let serious = Classes::new(ApprovalClass::A2, Reversibility::R1, Sensitivity::S1);
    let contract = contract(ApprovalClass::A0).classes(serious);
    let builder = f.fabric().command(send_proposal, contract).state(sent.clone());
    let fabric = builder.start().await.unwrap();
    let mut commands = Vec::new();
    for _ in 0..2 {
        commands.push(submit(&fabric, "").await);
    }
    for command in &commands {
        assert_eq!(command.status().await.unwrap(), CommandStatus::WaitingForApproval);
    }
    assert_eq!(fabric.live_runs(), 0);
    let of = async |command: &Command<Value>| {
        let pending = fabric.pending_approvals().await.unwrap();
        pending.into_iter().find(|row| row.command_id == command.id()).unwrap().asked.approval_id
    };
    let id = of(&commands[0]).await;
    yes(&fabric, &id, "lead:1").await.unwrap();
    assert_eq!(yes(&fabric, &id, "lead:2").await.unwrap(), ApprovalStatus::Approved);
    assert_eq!(commands[0].result().await.unwrap(), json!(1));
    let types: Vec<_> =
        commands[0].events().await.unwrap().into_iter().map(|e| e.event_type).collect();
    assert!(types.iter().any(|t| t == "approval.requested"), "who answers is told: {types:?}");
    let path: Vec<_> = types.iter().filter(|t| t.starts_with("command.")).collect();
    let wanted = [
        "created",
        "validated",
        "waiting_for_approval",
        "approved",
        "queued",
        "running",
        "succeeded",
    ];
    assert_eq!(path, wanted.map(|status| format!("command.{status}")).iter().collect::<Vec<_>>());
    let id = of(&commands[1]).await;
    fabric.decide(&id, "lead:1", Vote::Rejected, "not now").await.unwrap();
    let error = commands[1].result().await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::ApprovalRejected);
    assert_eq!(commands[1].status().await.unwrap(), CommandStatus::Failed);
    assert_eq!(sent.0.load(Ordering::SeqCst), 1);
    fabric.shutdown().await;
}

async fn a_cancel_withdraws_the_question(f: Fixture) {
    let fabric = builder(&f, &Sent::default()).start().await.unwrap();
    let command = submit(&fabric, "ask").await;
    let id = asked(&fabric).await.asked.approval_id;
    command.cancel("not needed", "user:asker").await.unwrap();
    until("it is over", async || command.status().await.unwrap() == CommandStatus::Cancelled).await;
    assert_eq!(fabric.pending_approvals().await.unwrap(), []);
    assert_eq!(yes(&fabric, &id, "lead:1").await.unwrap_err().code(), "SF-0815");
    fabric.shutdown().await;
}

async fn a_dry_run_asks_nobody(f: Fixture) {
    let sent = Sent::default();
    let fabric = builder(&f, &sent).start().await.unwrap();
    for how in ["ask", ""] {
        let call = fabric.submit(send_proposal, proposal(how)).requested_by("user:asker");
        call.dry_run().await.unwrap().result().await.unwrap();
    }
    assert_eq!(fabric.pending_approvals().await.unwrap(), []);
    assert_eq!(sent.0.load(Ordering::SeqCst), 0);
    fabric.shutdown().await;
}

/// A fabric whose rules ask leads, for an hour, before anything is sent or even begun.
async fn strict(f: &Fixture, clock: &Arc<Clock>, stages: &[(Stage, &'static str)]) -> Steadfast {
    let hour = Duration::from_secs(3600);
    let mut governance = Governance::new();
    let mut names = Vec::new();
    for (stage, who) in stages.iter().copied() {
        names.push(stage.as_str());
        let rule = move |act: &Act| match (&act.doing, act.payload["how"].as_str()) {
            (Doing::Admit, Some("begin")) | (Doing::Effect { .. }, _) => {
                let asked = Finding::approval("leads_decide", 2, "it goes to a customer");
                asked.among([who]).ttl(hour).escalate_after(hour / 6)
            }
            _ => Finding::allow("harmless", "nothing is sent by it"),
        };
        governance = governance.policy(PolicyFn(stage, rule));
    }
    let classes = Classes::new(ApprovalClass::A0, Reversibility::R2, Sensitivity::S1);
    let mail = EffectType::new("mail.send").classes(classes);
    let contract = Contract::new().policies(names).effect(mail.not_undone("it is read"));
    let fabric = f.fabric().command(send_proposal, contract).state(Sent::default());
    fabric.govern(governance).env(clock.clone()).start().await.unwrap()
}

/// X11, R122: what a rule asks has a group, a number, a time and an escalation, at the door as well
/// as before an effect.
async fn x11_a_rule_says_who_is_asked_how_many_and_for_how_long(f: Fixture) {
    for how in ["begin", ""] {
        let clock = Clock::at("2026-06-01T08:00:00Z");
        let fabric = strict(&f, &clock, &[(Stage::ExternalSharing, "lead:*")]).await;
        let command = submit(&fabric, how).await;
        let question = asked(&fabric).await;
        let NewApproval { approval_id: id, approvers, among, .. } = question.asked.clone();
        assert_eq!((approvers, among), (2, vec!["lead:*".to_owned()]));
        let after = |at: Timestamp| question.created_at.until(at).as_secs();
        assert_eq!(after(question.asked.expires_at), 3600);
        assert_eq!(question.asked.escalate_at.map(after), Some(600));
        assert_eq!(yes(&fabric, &id, "user:other").await.unwrap_err().code(), "SF-0817");
        clock.go("2026-06-01T08:11:00Z");
        let told = async |wanted: &str| {
            let events = command.events().await.unwrap();
            events.iter().any(|e| e.event_type == wanted && e.purpose == "audit")
        };
        fabric.settle_approvals().await.unwrap();
        until("more people are told", async || told("approval.escalated").await).await;
        match how {
            "begin" => {
                clock.go("2026-06-01T09:00:01Z");
                fabric.settle_approvals().await.unwrap();
                let error = command.result().await.unwrap_err();
                assert_eq!(error.class(), ErrorClass::ApprovalRejected, "{error}");
                assert!(told("approval.expired").await);
            }
            _ => {
                for lead in ["lead:1", "lead:2"] {
                    yes(&fabric, &id, lead).await.unwrap();
                }
                assert_eq!(command.result().await.unwrap(), json!(1));
            }
        }
        fabric.shutdown().await;
    }
}

/// X11: two rules want people of different groups, and nobody is in both.
async fn x11_a_rule_that_nobody_could_satisfy_denies(f: Fixture) {
    let clock = Clock::at("2026-06-01T08:00:00Z");
    let stages = [(Stage::ExternalSharing, "lead:*"), (Stage::DataSafety, "officer:*")];
    let fabric = strict(&f, &clock, &stages).await;
    for how in ["begin", ""] {
        let error = submit(&fabric, how).await.result().await.unwrap_err();
        assert_eq!((error.class(), error.code()), (ErrorClass::PolicyDenied, "SF-0811"), "{error}");
        assert!(error.message().contains("external_sharing and data_safety"), "{error}");
    }
    assert_eq!(fabric.pending_approvals().await.unwrap(), []);
    fabric.shutdown().await;
}

/// X11, R107: rules may have become stricter between the question and the answer's use.
async fn x11_who_would_not_be_asked_now_does_not_count(f: Fixture) {
    let clock = Clock::at("2026-06-01T08:00:00Z");
    let lax = strict(&f, &clock, &[(Stage::ExternalSharing, "*")]).await;
    let command_id = submit(&lax, "").await.id().to_owned();
    let id = asked(&lax).await.asked.approval_id;
    until("it holds no worker", async || lax.live_runs() == 0).await;
    lax.shutdown().await;
    let client = Client::over(clock.clone(), f.store.clone(), &f.workspace).unwrap();
    for anybody in ["user:1", "lead:1"] {
        client.decide(&id, anybody, Vote::Approved, "").await.unwrap();
    }
    let fabric = strict(&f, &clock, &[(Stage::ExternalSharing, "lead:*")]).await;
    let error = fabric.command::<Value>(command_id).result().await.unwrap_err();
    assert_eq!((error.class(), error.code()), (ErrorClass::ApprovalRejected, "SF-0814"), "{error}");
    fabric.shutdown().await;
}

/// X11: what somebody has filled in is for others to judge.
async fn x11_who_gave_the_payload_does_not_approve_it(f: Fixture) {
    let rule = |act: &Act| match (&act.doing, act.payload["how"].as_str()) {
        (Doing::Admit, Some("")) => Finding::new(Ruling::RequireMoreInput, "how", "say how"),
        (Doing::Admit, _) => Finding::approval("look", 1, "somebody looks at it"),
        _ => Finding::allow("admitted", "people have seen it"),
    };
    let contract = contract(ApprovalClass::A0).policies(["data_safety"]);
    let governance = Governance::new().policy(PolicyFn(Stage::DataSafety, rule));
    let fabric = f.fabric().command(send_proposal, contract).state(Sent::default());
    let fabric = fabric.govern(governance).start().await.unwrap();
    let command = submit(&fabric, "").await;
    let status = command.supply(json!(proposal("by mail")), "user:editor").await.unwrap();
    assert_eq!(status, CommandStatus::WaitingForApproval);
    let id = asked(&fabric).await.asked.approval_id;
    for own in ["user:editor", "user:asker"] {
        assert_eq!(yes(&fabric, &id, own).await.unwrap_err().code(), "SF-0816", "{own}");
    }
    yes(&fabric, &id, "lead:1").await.unwrap();
    command.result().await.unwrap();
    let events = command.events().await.unwrap();
    let told = events.iter().find(|e| e.event_type == "command.supplied").unwrap();
    assert_eq!((told.purpose.as_str(), told.actor.as_str()), ("audit", "user:editor"));
    fabric.shutdown().await;
}
