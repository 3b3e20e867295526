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
use super::{Fixture, case_table, until};

case_table![
    r108_a_probe_and_what_it_is_about_are_both_in_the_ledger,
    r108_a_probe_that_leads_to_a_person_is_in_the_ledger,
    r108_a_call_that_nobody_waits_for_is_in_the_ledger,
    r108_a_call_that_outlives_its_command_is_in_the_ledger,
];

const BOOK: &str = "POST /seats";
const LOOK: &str = "GET /seats";

async fn travel(cx: Cx, how: String) -> Result<Value> {
    let look = || cx.call("look", "airline", Outbound::new(LOOK, json!({})));
    match how.as_str() {
        "look" => look().await,
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

async fn fabric(f: &Fixture, way: &Stub) -> Steadfast {
    let harmless = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);
    let book = EffectType::new("seat.book").classes(harmless).not_undone("test");
    let fabric = f.fabric().command(travel, Contract::new().effect(book)).connector(way.clone());
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
