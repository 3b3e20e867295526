//! The cost stage: retries and money, per command, connector and day, shared by all workers.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast::connector::{Operation, Outbound};
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::{
    Budget, Builder, Command, CommandStatus, Contract, Cx, Effect, EffectType, Error, ErrorClass,
    EventRow, Governance, ListBudgets, ListEvents, ListInvocations, Result, Retry, Steadfast, Vote,
};

use super::stub::Stub;
use super::{Clock, Fixture, case_table, until};

case_table![
    r017_retries_beyond_the_budget_ask_people_once,
    r017_a_hard_retry_budget_ends_the_tries,
    r017_money_asks_people_at_the_soft_cap_and_is_denied_at_the_hard_one,
    r017_a_day_is_shared_by_commands_and_workers,
    r017_what_the_other_side_charges_counts_instead_of_the_price,
    r017_what_was_not_sent_costs_nothing,
    r017_an_effect_without_a_connector_has_a_price_too,
    r017_a_new_day_has_a_new_budget_and_the_old_one_is_swept_away,
    r017_one_question_is_for_the_class_and_for_the_budgets,
    r017_what_ends_after_a_cancel_has_its_price,
    budgets_that_cannot_hold_are_refused_at_the_start,
];

const HARMLESS: Classes = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);
const SEND: &str = "POST /mails";
const LOOK: &str = "GET /mails";

/// Sends so many mails, and looks how many there are in between.
async fn mails(cx: Cx, order: Value) -> Result<Value> {
    let soon = || Retry::listed([Duration::from_millis(1); 5]);
    for n in 0..order["mails"].as_u64().unwrap_or_default() {
        let key = format!("{}-{n}", order["key"].as_str().unwrap_or("mail"));
        let effect = Effect::keyed("mail.send", key).payload(json!({ "n": n }));
        let effect = if order["once"] == json!(true) { effect.once() } else { effect };
        let request = Outbound::new(SEND, json!({ "n": n }));
        let _: Value = cx.effect_via(effect, "mailer", request).retry(soon()).await?;
        if order["look"] == json!(true) {
            let _: Value = cx.call("look", "mailer", Outbound::new(LOOK, json!({}))).await?;
        }
    }
    for _ in 0..order["looks"].as_u64().unwrap_or_default() {
        let _: Value = cx.call("look", "mailer", Outbound::new(LOOK, json!({}))).await?;
    }
    if order["letter"] == json!(true) {
        for n in 0..2 {
            let effect = Effect::keyed("letter.send", format!("letter-{n}"));
            let body = |_| async { Ok::<_, Error>(json!("sent")) };
            let _: Value = cx.effect(effect, body).await?;
        }
    }
    Ok(order["mails"].clone())
}

fn mailer(send: Operation) -> Stub {
    Stub::new("mailer", [send.keyed(), Operation::read(LOOK).costs(0)])
}

fn priced(units: u64) -> Stub {
    mailer(Operation::write(SEND).costs(units))
}

async fn fabric(f: &Fixture, way: &Stub, budget: Budget) -> Steadfast {
    contracted(f, way, budget).start().await.unwrap()
}

fn contracted(f: &Fixture, way: &Stub, budget: Budget) -> Builder {
    let harmless = |name: &str| EffectType::new(name).classes(HARMLESS).not_undone("test");
    let contract = Contract::new()
        .policies(["cost"])
        .effect(harmless("mail.send"))
        .effect(harmless("letter.send").costs(30));
    let governance = Governance::new().budget(budget);
    f.fabric().command(mails, contract).govern(governance).connector(way.clone())
}

async fn submit(fabric: &Steadfast, order: Value) -> Command<Value> {
    fabric.submit(mails, order).requested_by("user:1").await.unwrap()
}

/// Waits until people are asked, and lets two of them say yes; what they were told.
async fn say_yes(fabric: &Steadfast) -> String {
    until("people are asked", async || !fabric.pending_approvals().await.unwrap().is_empty()).await;
    let asked = fabric.pending_approvals().await.unwrap().remove(0).asked;
    assert_eq!(asked.approvers, 2, "it escalates");
    for person in ["lead:1", "lead:2"] {
        let vote = Vote::Approved;
        fabric.decide(&asked.approval_id, person, vote, "worth it").await.unwrap();
    }
    asked.reason
}

/// What the audit says of caps that were reached, in order.
async fn caps(fabric: &Steadfast) -> Vec<Value> {
    let event_type = Some("cost.cap_reached".to_owned());
    let which = ListEvents { event_type, limit: 100, ..Default::default() };
    let told: Vec<EventRow> = fabric.events(which).await.unwrap();
    assert!(told.iter().all(|event| event.purpose == "audit"), "{told:?}");
    told.iter().map(|event| serde_json::from_str(&event.payload).unwrap()).collect()
}

fn lost() -> Result<()> {
    Err(Error::new(ErrorClass::TransientConnectorError, "SF-0001", "503").without_effect())
}

/// R17: the third attempt would be the second retry.
async fn r017_retries_beyond_the_budget_ask_people_once(f: Fixture) {
    let way = priced(1);
    let fabric = fabric(&f, &way, Budget::per_command(1).retries()).await;
    way.answers([lost(), lost(), lost()]);
    let command = submit(&fabric, json!({ "mails": 2 })).await;
    let told = say_yes(&fabric).await;
    assert_eq!(told, "1 of 1 retries of this command are spent");
    assert_eq!(way.sent().len(), 2, "nothing more is spent while people think");
    // They said yes to this mail, however often it is tried; the other one needs no retry.
    command.result().await.unwrap();
    assert_eq!(way.sent().len(), 5);
    let caps = caps(&fabric).await;
    assert_eq!(caps.len(), 1, "{caps:?}");
    assert_eq!((&caps[0]["bound"], &caps[0]["cap"]), (&json!("soft"), &json!(1)));
    fabric.shutdown().await;
}

/// R17, R51
async fn r017_a_hard_retry_budget_ends_the_tries(f: Fixture) {
    let way = priced(1);
    let fabric = fabric(&f, &way, Budget::per_command(2).of("mailer").retries().hard()).await;
    way.answers((0..9).map(|_| lost()));
    let command = submit(&fabric, json!({ "mails": 1 })).await;
    let error = command.result().await.unwrap_err();
    assert_eq!((error.class(), error.code()), (ErrorClass::PolicyDenied, "SF-0801"), "{error}");
    assert_eq!(way.sent().len(), 3, "the first and two more");
    let caps = caps(&fabric).await;
    assert_eq!(caps.len(), 1, "{caps:?}");
    assert_eq!(caps[0]["bound"], "hard");
    assert_eq!(fabric.pending_approvals().await.unwrap(), []);
    fabric.shutdown().await;
}

/// R17: 40 each: two go by themselves, a third if people say so, a fourth in no case.
async fn r017_money_asks_people_at_the_soft_cap_and_is_denied_at_the_hard_one(f: Fixture) {
    let way = priced(40);
    let budget = Budget::per_command(100).cost_units().hard_at(150);
    let fabric = fabric(&f, &way, budget).await;
    let command = submit(&fabric, json!({ "mails": 4, "look": true })).await;
    let told = say_yes(&fabric).await;
    assert_eq!(told, "80 of 100 cost units of this command are spent, and this costs 40");
    let error = command.result().await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::PolicyDenied, "{error}");
    assert!(error.message().contains("120 of 150 cost units"), "{error}");
    let mails = way.sent().iter().filter(|operation| *operation == SEND).count();
    assert_eq!(mails, 3);
    let bounds: Vec<_> = caps(&fabric).await.iter().map(|cap| cap["bound"].clone()).collect();
    assert_eq!(bounds, ["soft", "hard"]);
    // Another command has a budget of its own.
    submit(&fabric, json!({ "mails": 2, "key": "other" })).await.result().await.unwrap();
    fabric.shutdown().await;
}

/// R17: whoever sends them.
async fn r017_a_day_is_shared_by_commands_and_workers(f: Fixture) {
    let way = priced(40);
    let budget = || Budget::per_day("mailer", 100).cost_units().hard();
    let (one, two) = (fabric(&f, &way, budget()).await, fabric(&f, &way, budget()).await);
    for (fabric, key) in [(&one, "a"), (&two, "b")] {
        submit(fabric, json!({ "mails": 1, "key": key })).await.result().await.unwrap();
    }
    for (fabric, key) in [(&one, "c"), (&two, "d"), (&one, "e")] {
        let command = submit(fabric, json!({ "mails": 1, "key": key })).await;
        let error = command.result().await.unwrap_err();
        assert!(error.message().contains("80 of 100 cost units of \"mailer\""), "{error}");
        assert_eq!(command.status().await.unwrap(), CommandStatus::Failed);
    }
    assert_eq!(way.sent().len(), 2);
    let day = two.budgets(None).await.unwrap().remove(0);
    assert_eq!((day.spent, day.left(), day.hard), (80, Some(20), Some(100)));
    assert_eq!(day.counts, "cost units of \"mailer\" of today");
    // Who has no budgets of his own sees what is spent all the same.
    let which = ListBudgets { limit: 9, ..Default::default() };
    let spent = f.client().spent(which).await.unwrap();
    assert_eq!((spent.len(), &spent[0].meter, spent[0].spent), (1, &day.meter, 80));
    assert!(spent[0].until.is_some());
    let which = ListInvocations { limit: 10, ..Default::default() };
    let sent = one.invocations(which).await.unwrap();
    let costs: Vec<_> = sent.iter().filter_map(|call| call.cost_units).collect();
    assert_eq!(costs, [40, 40], "the price, where the other side says nothing");
    let caps = caps(&one).await;
    assert_eq!(caps.len(), 3, "each that is held up has it on record, once: {caps:?}");
    one.shutdown().await;
    two.shutdown().await;
}

/// R17, R108: what is said to have been charged is in the ledger of calls, and counts.
async fn r017_what_the_other_side_charges_counts_instead_of_the_price(f: Fixture) {
    // Less than the price: 10 instead of 90.
    let way = priced(90).billing(10);
    let budget = || Budget::per_command(100).cost_units();
    let cheap = fabric(&f, &way, budget()).await;
    let command = submit(&cheap, json!({ "mails": 3 })).await;
    let told = say_yes(&cheap).await;
    assert_eq!(told, "20 of 100 cost units of this command are spent, and this costs 90");
    assert_eq!(way.sent().len(), 2);
    command.result().await.unwrap();
    let command_id = Some(command.id().to_owned());
    let which = ListInvocations { command_id, limit: 10, ..Default::default() };
    let calls = cheap.invocations(which).await.unwrap();
    assert!(calls.iter().all(|call| call.cost_units == Some(10)), "{calls:?}");
    assert_eq!(cheap.budgets(None).await.unwrap(), [], "each command has its own");
    let own = cheap.budgets(Some(command.id())).await.unwrap().remove(0);
    assert_eq!((own.spent, own.left(), own.hard), (30, Some(70), None));
    cheap.shutdown().await;
    // Nobody knew the price before.
    let way = mailer(Operation::write(SEND)).billing(70);
    let dear = fabric(&f, &way, budget()).await;
    let command = submit(&dear, json!({ "mails": 3, "key": "dear" })).await;
    assert_eq!(say_yes(&dear).await, "140 of 100 cost units of this command are spent");
    assert_eq!(way.sent().len(), 2);
    command.result().await.unwrap();
    dear.shutdown().await;
}

/// R17, R112: what another command has done already is not done, and not paid, again.
async fn r017_what_was_not_sent_costs_nothing(f: Fixture) {
    let way = Stub::new("mailer", [Operation::write(SEND).costs(40)]);
    let fabric = fabric(&f, &way, Budget::daily(100).cost_units().hard()).await;
    for note in 0..4 {
        let order = json!({ "mails": 1, "key": "same", "once": true, "note": note });
        submit(&fabric, order).await.result().await.unwrap();
    }
    assert_eq!(way.sent().len(), 1);
    let order = json!({ "mails": 1, "key": "other", "once": true });
    submit(&fabric, order).await.result().await.unwrap();
    assert_eq!(way.sent().len(), 2, "there was enough left for it");
    fabric.shutdown().await;
}

/// R17
async fn r017_an_effect_without_a_connector_has_a_price_too(f: Fixture) {
    let way = priced(1);
    let fabric = fabric(&f, &way, Budget::per_command(50).cost_units().hard()).await;
    let error = submit(&fabric, json!({ "letter": true })).await.result().await.unwrap_err();
    assert!(error.message().contains("30 of 50 cost units"), "{error}");
    // What is free goes through also when all is spent.
    let order = json!({ "mails": 50, "look": true });
    submit(&fabric, order).await.result().await.unwrap();
    fabric.shutdown().await;
}

/// R17: and what was counted for a day that is over is not kept.
async fn r017_a_new_day_has_a_new_budget_and_the_old_one_is_swept_away(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let way = priced(40);
    let budget = Budget::per_day("mailer", 50).cost_units().hard();
    let fabric = contracted(&f, &way, budget).env(clock.clone()).start().await.unwrap();
    let send =
        async |key: &str| submit(&fabric, json!({ "mails": 1, "key": key })).await.result().await;
    send("a").await.unwrap();
    assert_eq!(send("b").await.unwrap_err().class(), ErrorClass::PolicyDenied);
    assert_eq!(fabric.sweep_meters().await.unwrap(), 0, "the day is not over");
    clock.go("2026-06-02T00:00:01Z");
    send("c").await.unwrap();
    assert_eq!(fabric.sweep_meters().await.unwrap(), 0, "calls of yesterday may still end");
    clock.go("2026-06-03T00:00:01Z");
    assert_eq!(fabric.sweep_meters().await.unwrap(), 2, "the budget, and the mark of its request");
    assert_eq!(fabric.sweep_meters().await.unwrap(), 0);
    send("d").await.unwrap();
    assert_eq!(way.sent().len(), 3);
    fabric.shutdown().await;
}

async fn budgets_that_cannot_hold_are_refused_at_the_start(f: Fixture) {
    for (budget, word) in [
        (Budget::per_command(10).hard_at(5), "before people are asked"),
        (Budget::per_command(u64::MAX), "no end"),
        (Budget::per_command(1).of("mialer"), "mialer"),
    ] {
        let governance = Governance::new().budget(budget);
        let fabric = f.fabric().command(mails, Contract::new()).govern(governance);
        let error = fabric.connector(priced(1)).start().await.err().expect("it must not start");
        assert!(error.to_string().contains("SF-0805"), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let dear = f.fabric().command(mails, Contract::new()).govern(Governance::new());
    let error = dear.connector(priced(u64::MAX)).start().await.err().expect("it must not start");
    assert!(error.to_string().contains("costs more"), "{error}");
}

/// R17, X11: a yes of anybody to the mail is none to what it would overdraw.
async fn r017_one_question_is_for_the_class_and_for_the_budgets(f: Fixture) {
    let way = priced(40);
    let serious = Classes::new(ApprovalClass::A1, Reversibility::R1, Sensitivity::S1);
    let effect = EffectType::new("mail.send").classes(serious).not_undone("test");
    let contract = Contract::new().policies(["cost"]).effect(effect);
    let governance = Governance::new()
        .budget(Budget::per_command(50).cost_units().asking(1, ["finance:*"]))
        .budget(Budget::per_command(1).asking(1, ["finance:*", "boss:*"]));
    let built = f.fabric().command(mails, contract).govern(governance).connector(way.clone());
    let fabric = built.start().await.unwrap();
    let command = submit(&fabric, json!({ "mails": 2 })).await;
    let asked = async || {
        until("people are asked", async || !fabric.pending_approvals().await.unwrap().is_empty())
            .await;
        fabric.pending_approvals().await.unwrap().remove(0).asked
    };
    let yes = async |id: &str, who: &str| fabric.decide(id, who, Vote::Approved, "").await;
    let first = asked().await;
    assert!(first.among.is_empty(), "within its budgets: {first:?}");
    yes(&first.approval_id, "lead:1").await.unwrap();
    let said = async || fabric.pending_approvals().await.unwrap().is_empty();
    until("the answer is taken", said).await;
    let second = asked().await;
    assert_eq!(second.among, ["finance:*"], "whom both budgets allow");
    for nobody in ["lead:1", "boss:1"] {
        assert_eq!(yes(&second.approval_id, nobody).await.unwrap_err().code(), "SF-0817");
    }
    yes(&second.approval_id, "finance:1").await.unwrap();
    assert_eq!(command.result().await.unwrap(), json!(2));
    assert_eq!((way.sent().len(), caps(&fabric).await.len()), (2, 1));
    fabric.shutdown().await;
}

/// R17: nobody waits for the answer any more, and the other side bills it all the same.
async fn r017_what_ends_after_a_cancel_has_its_price(f: Fixture) {
    let way = Stub::new("mailer", [Operation::read(LOOK)]).billing(70);
    let way = way.slow(Duration::from_millis(300));
    let fabric = fabric(&f, &way, Budget::daily(100).cost_units().hard()).await;
    for nth in 1..=2 {
        let command = submit(&fabric, json!({ "looks": 1, "nth": nth })).await;
        until("it is under way", async || way.sent().len() == nth).await;
        command.cancel("not wanted", "user:1").await.unwrap();
        let which = || ListInvocations {
            command_id: Some(command.id().to_owned()),
            limit: 10,
            ..Default::default()
        };
        let entered = async || fabric.invocations(which()).await.unwrap().len() == 1;
        until("its call is on record", entered).await;
    }
    let refused = submit(&fabric, json!({ "looks": 1 })).await.result().await.unwrap_err();
    assert_eq!(refused.class(), ErrorClass::PolicyDenied, "{refused}");
    assert!(refused.message().contains("140 of 100 cost units"), "{refused}");
    assert_eq!(way.sent().len(), 2);
    fabric.shutdown().await;
}
