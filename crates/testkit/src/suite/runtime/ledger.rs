//! The ledger of calls has every one: also those without a clear answer, or nobody to wait for it.

use std::time::Duration;

use futures::future::{Either, select};
use serde_json::{Value, json};
use steadfast::connector::{Inbound, Operation, Outbound, Probe};
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::{
    Command, CommandStatus, Contract, Cx, Effect, EffectType, Error, ErrorClass, InvocationRow,
    ListInvocations, Result, Retry, Steadfast,
};

use super::stub::Stub;
use super::{Fixture, case_table, dies, doomed, until};

case_table![
    r108_a_probe_and_what_it_is_about_are_both_in_the_ledger,
    r108_a_probe_that_leads_to_a_person_is_in_the_ledger,
    r108_a_call_that_nobody_waits_for_is_in_the_ledger,
    r108_a_call_that_outlives_its_command_is_in_the_ledger,
    r108_a_call_that_a_crash_cut_off_is_in_the_ledger_once,
    r108_a_call_that_is_made_again_after_a_crash_has_two_rows,
    r108_a_call_that_was_cut_off_is_entered_when_its_command_is_taken_back,
];

const BOOK: &str = "POST /seats";
const LOOK: &str = "GET /seats";

async fn travel(cx: Cx, how: String) -> Result<Value> {
    let look = || cx.call("look", "airline", Outbound::new(LOOK, json!({})));
    match how.as_str() {
        "look" => look().await,
        "keyed" => {
            let effect = Effect::keyed("seat.book", "seat 7");
            let request = Outbound::new(BOOK, json!({ "seat": 7 }));
            cx.effect_via(effect, "airline", request).await
        }
        "hurry" => {
            let slow = std::pin::pin!(async { look().await });
            let soon = cx.sleep(Duration::from_millis(50));
            Ok(match select(slow, soon).await {
                Either::Left((seats, _)) => seats?,
                Either::Right(_) => json!("no time"),
            })
        }
        _ => {
            let effect = Effect::keyed("seat.book", "seat 7").once();
            let request = Outbound::new(BOOK, json!({ "seat": 7 }));
            let soon = Retry::listed([Duration::from_millis(1); 3]);
            cx.effect_via(effect, "airline", request).retry(soon).await
        }
    }
}

fn airline() -> Stub {
    Stub::new("airline", [Operation::write(BOOK), Operation::read(LOOK)])
}

const HARMLESS: Classes = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);

fn contract() -> Contract {
    let book = EffectType::new("seat.book").classes(HARMLESS).not_undone("test");
    Contract::new().effect(book)
}

async fn fabric(f: &Fixture, way: &Stub) -> Steadfast {
    let fabric = f.fabric().command(travel, contract()).connector(way.clone());
    fabric.start().await.unwrap()
}

async fn submit(fabric: &Steadfast, how: &str) -> Command<Value> {
    fabric.submit(travel, how.to_owned()).await.unwrap()
}

async fn calls(fabric: &Steadfast, command: &Command<Value>) -> Vec<InvocationRow> {
    let command_id = Some(command.id().to_owned());
    let which = ListInvocations { command_id, limit: 10, ..Default::default() };
    fabric.invocations(which).await.unwrap()
}

fn lines(calls: &[InvocationRow]) -> Vec<(&str, &str, bool)> {
    calls.iter().map(|c| (&*c.intended, &*c.verification, c.side_effect)).collect()
}

fn unclear() -> Result<()> {
    Err(Error::new(ErrorClass::Timeout, "SF-0001", "no answer"))
}

fn away() -> Result<Probe> {
    Err(Error::new(ErrorClass::TransientConnectorError, "SF-0001", "away"))
}

/// R108
async fn r108_a_probe_and_what_it_is_about_are_both_in_the_ledger(f: Fixture) {
    let way = airline();
    let fabric = fabric(&f, &way).await;
    way.answers([unclear()]);
    way.remembers([away(), Ok(Probe::Done(Inbound::new(json!({ "seat": 7 }), BOOK, "200")))]);
    let command = submit(&fabric, "book").await;
    assert_eq!(command.result().await.unwrap(), json!({ "seat": 7 }));
    let calls = calls(&fabric, &command).await;
    let probe = "probe POST /seats";
    assert_eq!(
        lines(&calls),
        [(BOOK, "failed", true), (probe, "failed", false), (probe, "verified", false)]
    );
    assert_eq!(calls[0].error.as_ref().unwrap().class(), ErrorClass::Timeout);
    assert!(calls.iter().all(|call| call.idempotency_key == "seat 7"), "{calls:?}");
    assert_eq!(way.sent(), [BOOK], "it was not made again");
    fabric.shutdown().await;
}

/// R108
async fn r108_a_probe_that_leads_to_a_person_is_in_the_ledger(f: Fixture) {
    let way = airline();
    let fabric = fabric(&f, &way).await;
    way.answers([unclear()]);
    let command = submit(&fabric, "book").await;
    let blocked = async || command.status().await.unwrap() == CommandStatus::Blocked;
    until("a person is asked", blocked).await;
    let calls = calls(&fabric, &command).await;
    assert_eq!(lines(&calls), [(BOOK, "failed", true), ("probe POST /seats", "failed", false)]);
    fabric.shutdown().await;
}

/// R108: another branch of the code was faster.
async fn r108_a_call_that_nobody_waits_for_is_in_the_ledger(f: Fixture) {
    let way = airline().slow(Duration::from_secs(600));
    let fabric = fabric(&f, &way).await;
    let command = submit(&fabric, "hurry").await;
    assert_eq!(command.result().await.unwrap(), json!("no time"));
    until("it is entered", async || calls(&fabric, &command).await.len() == 1).await;
    let calls = calls(&fabric, &command).await;
    assert_eq!(lines(&calls), [(LOOK, "failed", false)]);
    assert_eq!(calls[0].error.as_ref().unwrap().code(), "SF-0841");
    fabric.shutdown().await;
}

/// R108, R36: what is under way when a command is cancelled ends, and is on record.
async fn r108_a_call_that_outlives_its_command_is_in_the_ledger(f: Fixture) {
    let way = airline().slow(Duration::from_millis(300));
    let fabric = fabric(&f, &way).await;
    let command = submit(&fabric, "look").await;
    until("it is asked", async || way.sent().len() == 1).await;
    command.cancel("not needed", "user:1").await.unwrap();
    let over = async || command.status().await.unwrap() == CommandStatus::Cancelled;
    until("it is over", over).await;
    until("it is entered", async || calls(&fabric, &command).await.len() == 1).await;
    assert_eq!(lines(&calls(&fabric, &command).await), [(LOOK, "verified", false)]);
    fabric.shutdown().await;
}

/// Begins a call in a process that dies while its answer is awaited.
async fn die_waiting(f: &Fixture, way: Stub, contract: Contract, how: &'static str) -> String {
    let f = f.clone();
    doomed(async move {
        let fabric = f.fabric().command(travel, contract).connector(way.clone());
        let fabric = fabric.start().await.unwrap();
        let command = submit(&fabric, how).await;
        while way.sent().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let command_id = command.id().to_owned();
        dies(fabric);
        command_id
    })
    .await
}

fn codes(calls: &[InvocationRow]) -> Vec<&str> {
    calls.iter().map(|call| call.error.as_ref().map_or("", Error::code)).collect()
}

/// R108: also where a person has it made again.
async fn r108_a_call_that_a_crash_cut_off_is_in_the_ledger_once(f: Fixture) {
    let command_id = die_waiting(&f, airline().slow(FOREVER), contract(), "book").await;
    let way = airline();
    let fabric = fabric(&f, &way).await;
    let command = fabric.command::<Value>(command_id);
    let blocked = async || command.status().await.unwrap() == CommandStatus::Blocked;
    until("a person is asked", blocked).await;
    let (cut, probe) = ((BOOK, "failed", true), ("probe POST /seats", "failed", false));
    let found = calls(&fabric, &command).await;
    assert_eq!(lines(&found), [cut, probe]);
    assert_eq!((codes(&found)[0], &*found[0].idempotency_key), ("SF-0842", "seat 7"));
    let which = steadfast::ListEffects { limit: 1, ..Default::default() };
    let effect_id = fabric.effects(which).await.unwrap().remove(0).effect_id;
    let again = steadfast::Truth::Again;
    fabric.resolve_effect(&effect_id, again, "user:op", "it was not").await.unwrap();
    command.result().await.unwrap();
    let found = calls(&fabric, &command).await;
    assert_eq!(lines(&found), [cut, probe, (BOOK, "verified", true)]);
    fabric.shutdown().await;
}

const FOREVER: Duration = Duration::from_secs(600);

/// R108, R112
async fn r108_a_call_that_is_made_again_after_a_crash_has_two_rows(f: Fixture) {
    let scope = || Stub::new("airline", [Operation::write(BOOK).keyed(), Operation::read(LOOK)]);
    let command_id = die_waiting(&f, scope().slow(FOREVER), contract(), "keyed").await;
    let way = scope();
    let fabric = fabric(&f, &way).await;
    let command = fabric.command::<Value>(command_id);
    command.result().await.unwrap();
    let calls = calls(&fabric, &command).await;
    assert_eq!(lines(&calls), [(BOOK, "failed", true), (BOOK, "verified", true)]);
    assert_eq!(codes(&calls), ["SF-0842", ""]);
    assert_eq!(way.keys(), ["seat 7"], "with the same key");
    fabric.shutdown().await;
}

/// R108, R111
async fn r108_a_call_that_was_cut_off_is_entered_when_its_command_is_taken_back(f: Fixture) {
    let contract = || {
        let book = EffectType::new("seat.book").classes(HARMLESS).undone_by("free");
        let nothing = |_: Cx, _: steadfast::Undo| async { Ok::<_, Error>(()) };
        Contract::new()
            .effect(book)
            .compensation(steadfast::Compensation::new("free", [""; 0]), nothing)
            .on_cancel(steadfast::CancellationMode::CompensateThenStop)
    };
    let command_id = die_waiting(&f, airline().slow(FOREVER), contract(), "book").await;
    f.client().command::<Value>(command_id.clone()).cancel("no", "user:1").await.unwrap();
    let way = airline();
    way.remembers([Ok(Probe::Done(Inbound::new(json!({ "seat": 7 }), BOOK, "200")))]);
    let fabric = f.fabric().command(travel, contract()).connector(way.clone());
    let fabric = fabric.start().await.unwrap();
    let command = fabric.command::<Value>(command_id);
    let over = async || command.status().await.unwrap() == CommandStatus::Cancelled;
    until("it is taken back", over).await;
    let calls = calls(&fabric, &command).await;
    let probe = "probe POST /seats";
    assert_eq!(lines(&calls), [(BOOK, "failed", true), (probe, "verified", false)]);
    assert_eq!(codes(&calls), ["SF-0842", ""]);
    assert_eq!(way.sent(), [""; 0]);
    fabric.shutdown().await;
}
