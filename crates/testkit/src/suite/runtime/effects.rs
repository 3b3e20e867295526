//! Effects: declared, keyed, in the ledger before they begin; and what happens when nobody knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::connector::{Breaker, Limits, Operation, Outbound};
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    Builder, Command, CommandStatus, Contract, Cx, Effect, EffectRow, EffectStatus, EffectType,
    Error, ErrorClass, InvocationRow, ListEffects, ListInvocations, Result, Retry, Steadfast,
    Truth,
};
use tokio::sync::Notify;

use super::stub::Stub;
use super::{Fixture, case_table, dies, doomed, until};

case_table![
    r025_an_effect_passes_its_statuses_with_the_commands_key,
    r108_every_call_is_in_the_ledger_and_a_contradiction_is_flagged,
    r112_the_same_key_on_every_attempt,
    an_effect_that_nobody_knows_about_waits_for_a_person,
    an_effect_that_its_receiver_remembers_is_not_repeated,
    two_effects_with_one_key_and_different_payloads_are_refused,
    r112_a_receiver_without_a_memory_is_not_asked_twice_for_one_key,
    r112_two_commands_at_once_ask_a_receiver_without_a_memory_once,
    r026_what_may_have_been_done_is_not_booked_as_failed,
    an_effect_that_got_no_answer_is_not_repeated_but_asked_about,
    a_dry_run_shows_its_effects_and_has_none,
    a_breaker_opens_after_failures_and_lets_one_through_later,
];

const HARMLESS: Classes = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Load {
    day: String,
    #[serde(default)]
    how: String,
}

fn load_of(how: &str) -> Load {
    Load { day: "2026-06-01".to_owned(), how: how.to_owned() }
}

/// A door that a body waits at, and how often bodies came to it.
#[derive(Clone, Default)]
struct Door {
    came: Arc<AtomicU32>,
    at: Arc<Notify>,
    closed: Arc<AtomicU32>,
}

impl Door {
    async fn pass(&self) -> Result<Value> {
        let n = self.came.fetch_add(1, Ordering::SeqCst) + 1;
        self.at.notify_one();
        if n <= self.closed.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(json!({ "written": n }))
    }

    fn count(&self) -> u32 {
        self.came.load(Ordering::SeqCst)
    }
}

async fn load(cx: Cx, load: Load) -> Result<Value> {
    let door = (*cx.state::<Door>()?).clone();
    let write = Effect::of("partition.write").payload(json!({ "day": load.day }));
    match load.how.as_str() {
        "once" => cx.effect(write.once(), move |_| {
            let door = door.clone();
            async move { door.pass().await }
        }),
        "again" => {
            let other = Effect::of("partition.write").payload(json!({ "day": "another" }));
            let first: Value = cx.effect(write, |_| async { Ok::<_, Error>(json!(1)) }).await?;
            cx.effect(other, move |_| {
                let first = first.clone();
                async move { Ok::<_, Error>(first) }
            })
        }
        "connector" => {
            let request = Outbound::new("upsert sales_daily", json!({ "rows": 2 }));
            cx.effect_via(write, "warehouse", request).retry(Retry::exponential(
                3,
                Duration::from_millis(1),
                1.0,
            ))
        }
        "read" => {
            let request = Outbound::new("select sales_daily", json!({}));
            cx.call("look", "warehouse", request)
        }
        _ => cx.effect(write.dry(json!({ "written": 0 })), |key| async move {
            Ok::<_, Error>(json!({ "key": key }))
        }),
    }
    .await
}

fn contract() -> Contract {
    let write = EffectType::new("partition.write").key("{idempotency_key}").classes(HARMLESS);
    Contract::new().key("load:{day}:{how}").effect(write.not_undone("the next night overwrites it"))
}

fn warehouse() -> Stub {
    Stub::new(
        "warehouse",
        [Operation::write("upsert sales_daily").keyed(), Operation::read("select sales_daily")],
    )
}

async fn fabric(f: &Fixture, door: &Door, warehouse: &Stub) -> Steadfast {
    f.fabric()
        .command(load, contract())
        .state(door.clone())
        .connector(warehouse.clone())
        .start()
        .await
        .unwrap()
}

async fn effects(fabric: &Steadfast, command: &Command<Value>) -> Vec<EffectRow> {
    let command_id = Some(command.id().to_owned());
    fabric.effects(ListEffects { command_id, limit: 100, ..Default::default() }).await.unwrap()
}

async fn calls(fabric: &Steadfast, command: &Command<Value>) -> Vec<InvocationRow> {
    let command_id = Some(command.id().to_owned());
    let which = ListInvocations { command_id, limit: 100, ..Default::default() };
    fabric.invocations(which).await.unwrap()
}

/// R25, R26
async fn r025_an_effect_passes_its_statuses_with_the_commands_key(f: Fixture) {
    let fabric = fabric(&f, &Door::default(), &warehouse()).await;
    let command = fabric.submit(load, load_of("")).await.unwrap();
    let result = command.result().await.unwrap();
    let key = command.info().await.unwrap().command.idempotency_key.unwrap();
    assert_eq!(result["key"], key.as_str(), "the body gets the key");
    let rows = effects(&fabric, &command).await;
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!(row.status, EffectStatus::Succeeded);
    assert_eq!((row.effect_type.as_str(), &row.idempotency_key), ("partition.write", &key));
    assert_eq!(row.payload, "{\"day\":\"2026-06-01\"}");
    assert_eq!(row.result.as_deref(), Some(result.to_string().as_str()));
    let events = command.events().await.unwrap();
    let told: Vec<_> = events.iter().filter(|e| e.event_type.starts_with("effect.")).collect();
    assert_eq!(told[0].event_type, "effect.executing");
    assert_eq!(told[1].event_type, "effect.succeeded");
    assert!(told.iter().all(|event| event.purpose == "event"));
    fabric.shutdown().await;
}

/// R108, X12
async fn r108_every_call_is_in_the_ledger_and_a_contradiction_is_flagged(f: Fixture) {
    let stub = warehouse();
    let failed = Error::new(ErrorClass::TransientConnectorError, "SF-0001", "503");
    stub.answers([Err(failed), Ok(())]);
    let fabric = fabric(&f, &Door::default(), &stub).await;
    let command = fabric.submit(load, load_of("connector")).await.unwrap();
    command.result().await.unwrap();
    let rows = calls(&fabric, &command).await;
    let seen: Vec<_> = rows.iter().map(|row| row.verification.as_str()).collect();
    assert_eq!(seen, ["failed", "verified"]);
    assert!(rows.iter().all(|row| row.side_effect && row.inputs.starts_with("sha256:")));
    assert_eq!(rows[0].error.as_ref().unwrap().class(), ErrorClass::TransientConnectorError);
    assert_eq!(
        (rows[1].intended.as_str(), rows[1].outputs.as_str()),
        ("upsert sales_daily", "200")
    );
    fabric.shutdown().await;
    let fabric = self::fabric(&f, &Door::default(), &warehouse().lying("select users")).await;
    let command = fabric.submit(load, load_of("read")).await.unwrap();
    command.result().await.unwrap();
    let rows = calls(&fabric, &command).await;
    assert_eq!(rows[0].verification, "contradicted");
    assert_eq!(rows[0].actual, "select users");
    fabric.shutdown().await;
}

/// R112
async fn r112_the_same_key_on_every_attempt(f: Fixture) {
    let stub = warehouse();
    let failed = || Err(Error::new(ErrorClass::Timeout, "SF-0001", "no answer"));
    stub.answers([failed(), failed(), Ok(())]);
    let fabric = fabric(&f, &Door::default(), &stub).await;
    let command = fabric.submit(load, load_of("connector")).await.unwrap();
    command.result().await.unwrap();
    let key = command.info().await.unwrap().command.idempotency_key.unwrap();
    assert_eq!(stub.keys(), [key.clone(), key.clone(), key]);
    assert_eq!(effects(&fabric, &command).await.len(), 1, "one effect, however many attempts");
    fabric.shutdown().await;
}

/// A worker that dies in the middle of an effect that may not be repeated; gives the command's id.
async fn die_in_the_middle(f: &Fixture, door: &Door, how: &'static str) -> String {
    door.closed.store(1, Ordering::SeqCst);
    let (f, door) = (f.clone(), door.clone());
    doomed(async move {
        let fabric = fabric(&f, &door, &warehouse()).await;
        let command = fabric.submit(load, load_of(how)).await.unwrap();
        door.at.notified().await;
        let command_id = command.id().to_owned();
        dies(fabric);
        command_id
    })
    .await
}

/// R111, R26: `unknown` after a crash, and each of the three things a person can say.
async fn an_effect_that_nobody_knows_about_waits_for_a_person(f: Fixture) {
    for (truth, day) in [
        (Truth::Done("{\"written\":7}".to_owned()), "done"),
        (Truth::NotDone, "not done"),
        (Truth::Again, "again"),
    ] {
        let door = Door::default();
        let f = Fixture { workspace: format!("{}-{day}", f.workspace), ..f.clone() };
        let command_id = die_in_the_middle(&f, &door, "once").await;
        let fabric = fabric(&f, &door, &warehouse()).await;
        let command = fabric.command::<Value>(command_id);
        until("it is found open", async || {
            command.status().await.unwrap() == CommandStatus::Blocked
        })
        .await;
        let row = effects(&fabric, &command).await.remove(0);
        assert_eq!(row.status, EffectStatus::Unknown);
        assert_eq!(door.count(), 1, "it is not repeated");
        let why = "seen in the warehouse";
        fabric.resolve_effect(&row.effect_id, truth.clone(), "user:op", why).await.unwrap();
        let result = command.result().await;
        let after = effects(&fabric, &command).await.remove(0).status;
        match truth {
            Truth::Done(_) => {
                assert_eq!(result.unwrap()["written"], 7);
                assert_eq!((after, door.count()), (EffectStatus::Succeeded, 1));
            }
            Truth::NotDone => {
                assert_eq!(result.unwrap_err().code(), "SF-0832");
                assert_eq!((after, door.count()), (EffectStatus::Failed, 1));
            }
            Truth::Again => {
                assert_eq!(result.unwrap()["written"], 2);
                assert_eq!((after, door.count()), (EffectStatus::Succeeded, 2));
            }
        }
        // The same again by the same person is no news; by somebody else it comes late.
        let again = fabric.resolve_effect(&row.effect_id, truth.clone(), "user:op", why).await;
        assert_eq!(again, Ok(()), "{day}");
        let late = fabric.resolve_effect(&row.effect_id, Truth::NotDone, "user:late", "").await;
        assert_eq!(late.unwrap_err().code(), "SF-0835");
        let types: Vec<_> =
            command.events().await.unwrap().into_iter().map(|e| e.event_type).collect();
        for wanted in ["effect.unknown", "command.blocked", "effect.resolved"] {
            assert!(types.iter().any(|t| t == wanted), "{wanted}: {types:?}");
        }
        fabric.shutdown().await;
    }
}

async fn pay(cx: Cx, how: String) -> Result<Value> {
    let door = (*cx.state::<Door>()?).clone();
    let asked = door.clone();
    let effect = Effect::of("pay").once().payload(json!(how)).probe(move |key: String| {
        let (asked, how) = (asked.clone(), how.clone());
        async move {
            assert!(!key.is_empty());
            asked.at.notify_one();
            Ok::<_, Error>((how == "done").then(|| json!({ "found": true })))
        }
    });
    cx.effect(effect, move |_| {
        let door = door.clone();
        async move { door.pass().await }
    })
    .await
}

fn payments(f: &Fixture, door: &Door) -> Builder {
    let effect = EffectType::new("pay").classes(HARMLESS);
    let contract = Contract::new().effect(effect.not_undone("refunds are commands of their own"));
    f.fabric().command(pay, contract).state(door.clone())
}

/// The effect's own probe is asked before anything is repeated.
async fn an_effect_that_its_receiver_remembers_is_not_repeated(f: Fixture) {
    for (how, times) in [("done", 1), ("not done", 2)] {
        let f = Fixture { workspace: format!("{}-{times}", f.workspace), ..f.clone() };
        let door = Door::default();
        door.closed.store(1, Ordering::SeqCst);
        let (there, theirs) = (f.clone(), door.clone());
        let command_id = doomed(async move {
            let fabric = payments(&there, &theirs).start().await.unwrap();
            let command = fabric.submit(pay, how.to_owned()).await.unwrap();
            theirs.at.notified().await;
            let command_id = command.id().to_owned();
            dies(fabric);
            command_id
        })
        .await;
        let fabric = payments(&f, &door).start().await.unwrap();
        let command = fabric.command::<Value>(command_id);
        let result = command.result().await.unwrap();
        assert_eq!(result["found"].as_bool().unwrap_or(false), how == "done", "{result}");
        assert_eq!(door.count(), times, "{how}");
        assert_eq!(effects(&fabric, &command).await[0].status, EffectStatus::Succeeded);
        fabric.shutdown().await;
    }
}

async fn text(cx: Cx, number: u32) -> Result<Value> {
    let door = (*cx.state::<Door>()?).clone();
    let effect = Effect::at_most_once("sms.send", "sms:welcome:c1").payload(json!("welcome"));
    let sent: Value = cx
        .effect(effect, move |_| {
            let door = door.clone();
            async move { door.pass().await }
        })
        .await?;
    Ok(json!({ "number": number, "sent": sent }))
}

/// R112: the ledger is the memory that the receiver lacks, across commands.
async fn r112_a_receiver_without_a_memory_is_not_asked_twice_for_one_key(f: Fixture) {
    let door = Door::default();
    let sms = EffectType::new("sms.send").classes(HARMLESS).not_undone("it cannot be unsent");
    let contract = Contract::new().effect(sms);
    let fabric = f.fabric().command(text, contract).state(door.clone()).start().await.unwrap();
    let first = fabric.submit(text, 1).await.unwrap().result().await.unwrap();
    let second = fabric.submit(text, 2).await.unwrap().result().await.unwrap();
    assert_eq!(first["sent"], second["sent"], "the first result");
    assert_eq!((second["number"].as_u64(), door.count()), (Some(2), 1), "and one call");
    fabric.shutdown().await;
}

/// R112: also where both want it at the same time.
async fn r112_two_commands_at_once_ask_a_receiver_without_a_memory_once(f: Fixture) {
    let stub = Stub::new("sms", [Operation::write("POST /sms")]);
    let sms = EffectType::new("sms.send").key("sms:{day}").classes(HARMLESS);
    let contract = Contract::new().effect(sms.not_undone("it cannot be unsent"));
    let fabric = f.fabric().command(remind, contract).connector(stub.clone());
    let fabric = fabric.start().await.unwrap();
    let remind = |n: u32| fabric.submit(remind, Reminder { n, day: "2026-06-01".to_owned() });
    let commands = futures::future::try_join_all((0..4).map(|n| remind(n).into_future()));
    for command in commands.await.unwrap() {
        assert_eq!(command.result().await.unwrap()["ok"], true);
    }
    let which = ListEffects { limit: 10, ..Default::default() };
    let ledger = fabric.effects(which).await.unwrap();
    assert_eq!(stub.sent(), ["POST /sms"], "{ledger:#?}");
    fabric.shutdown().await;
}

async fn remind_all(cx: Cx, day: String) -> Result<Value> {
    let request = Outbound::new("POST /sms", json!({ "day": day }));
    // Long enough that the run is put away between.
    let retry = Retry::exponential(3, Duration::from_millis(120), 1.0);
    cx.effect_via(Effect::keyed("sms.send", day), "sms", request).retry(retry).await
}

/// R26: each attempt counts, not only the last one, and what never left has not been done.
async fn r026_what_may_have_been_done_is_not_booked_as_failed(f: Fixture) {
    let stub = Stub::new("sms", [Operation::write("POST /sms").keyed()]);
    let sms = EffectType::new("sms.send").classes(HARMLESS).not_undone("it cannot be unsent");
    let contract = Contract::new().effect(sms);
    let fabric = f.fabric().command(remind_all, contract).connector(stub.clone());
    let fabric = fabric.start().await.unwrap();
    let error = |class| Error::new(class, "SF-0001", "no");
    let refused = || error(ErrorClass::TransientConnectorError).without_effect();
    let slow = || error(ErrorClass::RateLimited);
    let denied = || error(ErrorClass::PermanentConnectorError);
    let lost = || error(ErrorClass::Timeout);
    for (n, (answers, wanted)) in [
        ([refused(), refused(), refused()], EffectStatus::Failed),
        ([slow(), refused(), denied()], EffectStatus::Failed),
        ([lost(), slow(), denied()], EffectStatus::Unknown),
        ([slow(), slow(), lost()], EffectStatus::Unknown),
    ]
    .into_iter()
    .enumerate()
    {
        stub.answers(answers.map(Err));
        let command = fabric.submit(remind_all, format!("day {n}")).await.unwrap();
        command.result().await.unwrap_err();
        assert_eq!(effects(&fabric, &command).await[0].status, wanted, "{n}");
    }
    fabric.shutdown().await;
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Reminder {
    n: u32,
    day: String,
}

async fn remind(cx: Cx, reminder: Reminder) -> Result<Value> {
    let request = Outbound::new("POST /sms", json!({ "day": reminder.day }));
    let effect = Effect::keyed("sms.send", format!("sms:{}", reminder.day));
    let retry = Retry::exponential(20, Duration::from_millis(10), 1.0);
    cx.effect_via(effect, "sms", request).retry(retry).await
}

async fn two_effects_with_one_key_and_different_payloads_are_refused(f: Fixture) {
    let fabric = fabric(&f, &Door::default(), &warehouse()).await;
    let command = fabric.submit(load, load_of("again")).await.unwrap();
    let error = command.result().await.unwrap_err();
    assert_eq!((error.code(), error.class()), ("SF-0807", ErrorClass::Conflict));
    assert_eq!(effects(&fabric, &command).await.len(), 1);
    fabric.shutdown().await;
}

async fn post(cx: Cx, day: String) -> Result<Value> {
    let effect = Effect::of("sms.send").payload(json!(day));
    let request = Outbound::new("POST /sms", json!({ "day": day }));
    let retry = Retry::exponential(5, Duration::from_millis(1), 1.0);
    cx.effect_via(effect, "sms", request).retry(retry).await
}

/// A receiver without a memory that timed out may have done it: a person is asked, whatever the
/// retry policy says.
async fn an_effect_that_got_no_answer_is_not_repeated_but_asked_about(f: Fixture) {
    let stub = Stub::new("sms", [Operation::write("POST /sms")]);
    stub.answers([Err(Error::new(ErrorClass::Timeout, "SF-0001", "no answer"))]);
    let sms = EffectType::new("sms.send").classes(HARMLESS).not_undone("it cannot be unsent");
    let contract = Contract::new().effect(sms);
    let fabric = f.fabric().command(post, contract).connector(stub.clone()).start().await.unwrap();
    let command = fabric.submit(post, "2026-06-01".to_owned()).await.unwrap();
    until("a person is asked", async || command.status().await.unwrap() == CommandStatus::Blocked)
        .await;
    assert_eq!(stub.sent().len(), 1);
    let row = effects(&fabric, &command).await.remove(0);
    assert_eq!(row.status, EffectStatus::Unknown);
    let truth = Truth::Done("{\"ok\":true}".to_owned());
    fabric.resolve_effect(&row.effect_id, truth, "user:op", "they have it").await.unwrap();
    assert_eq!(command.result().await.unwrap()["ok"], true);
    assert_eq!(stub.sent().len(), 1, "it was sent once");
    fabric.shutdown().await;
}

async fn a_dry_run_shows_its_effects_and_has_none(f: Fixture) {
    let stub = warehouse();
    let fabric = fabric(&f, &Door::default(), &stub).await;
    let command = fabric.submit(load, load_of("")).dry_run().await.unwrap();
    assert_eq!(command.result().await.unwrap()["written"], 0);
    let shown = effects(&fabric, &command).await;
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].status, EffectStatus::Planned);
    // What was only shown does not stand in the way.
    let real = fabric.submit(load, load_of("")).await.unwrap();
    assert!(real.is_new());
    real.result().await.unwrap();
    assert_eq!(effects(&fabric, &real).await[0].status, EffectStatus::Succeeded);
    fabric.shutdown().await;
}

async fn a_breaker_opens_after_failures_and_lets_one_through_later(f: Fixture) {
    let breaker = Some(Breaker { failures: 2, cool_down: Duration::from_secs(3600) });
    let stub = warehouse().limits(Limits { rate: None, breaker });
    let failed = || Err(Error::new(ErrorClass::TransientConnectorError, "SF-0001", "503"));
    stub.answers([failed(), failed()]);
    let fabric = fabric(&f, &Door::default(), &stub).await;
    for n in 0..3 {
        let mut read = load_of("read");
        read.day = format!("day {n}");
        let error = fabric.submit(load, read).await.unwrap().result().await.unwrap_err();
        let class =
            if n < 2 { ErrorClass::TransientConnectorError } else { ErrorClass::RateLimited };
        assert_eq!(error.class(), class, "{n}: {error}");
    }
    assert_eq!(stub.sent().len(), 2, "the third was not sent");
    fabric.shutdown().await;
}
