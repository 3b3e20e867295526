//! Taking back: in reverse, once each, through crashes, on failure and on cancel.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    Builder, CancellationMode, Command, CommandStatus, Compensation, Contract, Cx, Effect,
    EffectStatus, EffectType, Error, ErrorClass, ListEffects, Result, Steadfast, Truth, Undo,
};
use tokio::sync::Notify;

use super::{Fixture, case_table, dies, doomed, until};

case_table![
    r110_a_failure_takes_back_what_was_done_the_last_first,
    r111_a_crash_in_the_middle_of_taking_back_goes_on,
    x3_a_cancel_that_compensates_takes_back_and_then_stops,
    a_blocked_command_that_is_cancelled_is_taken_back_when_a_person_has_answered,
    x5_a_compensation_that_does_more_than_declared_is_told_of,
    a_compensation_that_fails_halts_the_chain_and_says_how_far_it_came,
    a_command_that_succeeds_takes_nothing_back,
    x4_a_fabric_whose_ways_back_do_not_hold_together_does_not_start,
];

const HARMLESS: Classes = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Deal {
    customer: String,
    how: String,
}

fn deal(how: &str) -> Deal {
    Deal { customer: "c1".to_owned(), how: how.to_owned() }
}

/// The world outside: what was done to it, in order.
#[derive(Clone, Default)]
struct World {
    done: Arc<Mutex<Vec<String>>>,
    reached: Arc<Notify>,
    go_on: Arc<Notify>,
    /// The first so many takings back hang.
    hang: Arc<AtomicU32>,
    fail: Arc<AtomicU32>,
}

impl World {
    fn did(&self, what: &str) {
        self.done.lock().unwrap().push(what.to_owned());
    }

    fn done(&self) -> Vec<String> {
        self.done.lock().unwrap().clone()
    }
}

async fn act(cx: &Cx, name: &'static str) -> Result<String> {
    let world = (*cx.state::<World>()?).clone();
    cx.effect(Effect::of(name).payload(json!({ "of": name })), move |key| {
        let world = world.clone();
        async move {
            world.did(name);
            Ok::<_, Error>(format!("{name} {key}"))
        }
    })
    .await
}

async fn sell(cx: Cx, deal: Deal) -> Result<String> {
    let world = (*cx.state::<World>()?).clone();
    act(&cx, "deal.create").await?;
    act(&cx, "mail.send").await?;
    match deal.how.as_str() {
        "fail" => Err(Error::app("the third step failed")),
        "wait" => {
            world.reached.notify_one();
            cx.wait_signal::<String>("never").await
        }
        "unsure" => {
            let effect = Effect::at_most_once("mail.send", "unsure");
            cx.effect(effect.payload(json!({ "of": "mail.send" })), move |_| {
                let world = world.clone();
                async move {
                    world.did("mail.send");
                    Err::<String, _>(Error::new(ErrorClass::Timeout, "SF-0001", "no answer"))
                }
            })
            .await
        }
        "step" => {
            cx.step("long", move || {
                let world = world.clone();
                async move {
                    world.reached.notify_one();
                    world.go_on.notified().await;
                    world.did("long step");
                    Ok::<_, Error>(String::new())
                }
            })
            .await
        }
        _ => Ok("sold".to_owned()),
    }
}

async fn take_back(cx: Cx, undo: Undo) -> Result<()> {
    assert_eq!(undo.payload["of"], undo.effect_type.as_str());
    assert!(undo.result.as_str().unwrap().starts_with(&undo.effect_type), "{undo:?}");
    let inverse = match undo.effect_type.as_str() {
        "deal.create" => "deal.delete",
        _ => "mail.recall",
    };
    let world = (*cx.state::<World>()?).clone();
    let effect =
        Effect::keyed(inverse, format!("undo {}", undo.key)).payload(json!({ "of": inverse }));
    cx.effect(effect, move |_| {
        let world = world.clone();
        async move {
            if world
                .hang
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok()
            {
                world.reached.notify_one();
                std::future::pending::<()>().await;
            }
            if inverse == "deal.delete" && world.fail.load(Ordering::SeqCst) > 0 {
                return Err(Error::new(ErrorClass::PermanentConnectorError, "SF-0001", "gone"));
            }
            world.did(inverse);
            Ok::<_, Error>(())
        }
    })
    .await
}

fn contract(produces: [&'static str; 2]) -> Contract {
    let made = |name: &str| EffectType::new(name).classes(HARMLESS);
    let inverse = |name: &str, of: &str| made(name).inverse_of(of).not_undone("it takes back");
    Contract::new()
        .key("sell:{customer}:{how}")
        .effect(made("deal.create").undone_by("undo_deal"))
        .effect(made("mail.send").undone_by("undo_mail"))
        .effect(inverse("deal.delete", "deal.create"))
        .effect(inverse("mail.recall", "mail.send"))
        .compensation(Compensation::new("undo_deal", [produces[0]]), take_back)
        .compensation(Compensation::new("undo_mail", [produces[1]]), take_back)
}

const DECLARED: [&str; 2] = ["deal.delete", "mail.recall"];

fn builder(f: &Fixture, world: &World, contract: Contract) -> Builder {
    f.fabric().command(sell, contract).state(world.clone())
}

async fn types(command: &Command<String>) -> Vec<String> {
    let events = command.events().await.unwrap().into_iter();
    events.map(|e| e.event_type).filter(|t| t.starts_with("command.")).collect()
}

async fn undone(fabric: &Steadfast, command: &Command<String>) -> Vec<(String, bool)> {
    let command_id = Some(command.id().to_owned());
    let which = ListEffects { command_id, limit: 100, ..Default::default() };
    let rows = fabric.effects(which).await.unwrap().into_iter();
    let forward = rows.filter(|row| row.compensates.is_none());
    forward.map(|row| (row.effect_type, row.compensated_at.is_some())).collect()
}

/// R110
async fn r110_a_failure_takes_back_what_was_done_the_last_first(f: Fixture) {
    let world = World::default();
    let fabric = builder(&f, &world, contract(DECLARED)).start().await.unwrap();
    let command = fabric.submit(sell, deal("fail")).await.unwrap();
    let error = command.result().await.unwrap_err();
    assert_eq!(error.message(), "the third step failed", "the cause is what is reported");
    assert_eq!(world.done(), ["deal.create", "mail.send", "mail.recall", "deal.delete"]);
    assert_eq!(command.status().await.unwrap(), CommandStatus::Compensated);
    let path = types(&command).await;
    assert_eq!(
        path[path.len() - 3..],
        ["failed", "compensating", "compensated"].map(|s| format!("command.{s}"))
    );
    let all = undone(&fabric, &command).await;
    assert!(all.iter().all(|(_, undone)| *undone), "{all:?}");
    let text = fabric.metrics();
    for step in ["undo_deal", "undo_mail"] {
        let line = format!("workflow_compensations_total{{workflow=\"sell\",step=\"{step}\"}} 1");
        assert!(text.contains(&line), "{text}");
    }
    // The same again is the same command: nothing is taken back twice.
    let again = fabric.submit(sell, deal("fail")).await.unwrap();
    assert!(!again.is_new());
    assert_eq!(world.done().len(), 4);
    fabric.shutdown().await;
}

/// R111
async fn r111_a_crash_in_the_middle_of_taking_back_goes_on(f: Fixture) {
    let world = World::default();
    world.hang.store(1, Ordering::SeqCst);
    let (there, theirs) = (f.clone(), world.clone());
    let command_id = doomed(async move {
        let fabric = builder(&there, &theirs, contract(DECLARED)).start().await.unwrap();
        let command = fabric.submit(sell, deal("fail")).await.unwrap();
        theirs.reached.notified().await;
        let command_id = command.id().to_owned();
        dies(fabric);
        command_id
    })
    .await;
    assert_eq!(world.done(), ["deal.create", "mail.send"]);
    let second = builder(&f, &world, contract(DECLARED)).start().await.unwrap();
    let command = second.command::<String>(command_id);
    assert!(command.result().await.is_err());
    assert_eq!(world.done(), ["deal.create", "mail.send", "mail.recall", "deal.delete"]);
    assert_eq!(command.status().await.unwrap(), CommandStatus::Compensated);
    second.shutdown().await;
}

/// X3
async fn x3_a_cancel_that_compensates_takes_back_and_then_stops(f: Fixture) {
    for how in ["wait", "step"] {
        let world = World::default();
        let mode = contract(DECLARED).on_cancel(CancellationMode::CompensateThenStop);
        let fabric =
            builder(&f, &world, mode).lease(Duration::from_secs(60)).start().await.unwrap();
        let command = fabric.submit(sell, deal(how)).await.unwrap();
        world.reached.notified().await;
        let status = command.cancel("changed our mind", "user:1").await.unwrap();
        assert!(!status.is_terminal(), "{how}: {status}");
        world.go_on.notify_one();
        let info = command.ended().await.unwrap().command;
        assert_eq!(info.status, CommandStatus::Cancelled, "{how}");
        assert_eq!(info.error.unwrap().message(), "changed our mind");
        let mut wanted = vec!["deal.create", "mail.send"];
        if how == "step" {
            wanted.push("long step");
        }
        wanted.extend(["mail.recall", "deal.delete"]);
        assert_eq!(world.done(), wanted, "{how}: what is under way ends first");
        let path = types(&command).await;
        let last = ["cancelling", "compensating", "compensated", "cancelled"];
        assert_eq!(path[path.len() - 4..], last.map(|s| format!("command.{s}")), "{how}");
        fabric.shutdown().await;
    }
}

/// X3, R111: nothing is undone before it is known what was done, and the walk goes on by itself.
async fn a_blocked_command_that_is_cancelled_is_taken_back_when_a_person_has_answered(f: Fixture) {
    let world = World::default();
    let mode = contract(DECLARED).on_cancel(CancellationMode::CompensateThenStop);
    let fabric = builder(&f, &world, mode).start().await.unwrap();
    let command = fabric.submit(sell, deal("unsure")).await.unwrap();
    until("it is blocked", async || command.status().await.unwrap() == CommandStatus::Blocked)
        .await;
    command.cancel("changed our mind", "user:1").await.unwrap();
    let asked = async || {
        let events = command.events().await.unwrap().into_iter();
        events.filter(|event| event.event_type == "effect.unknown").count()
    };
    until("a person is asked again", async || asked().await == 2).await;
    assert_eq!(command.status().await.unwrap(), CommandStatus::Compensating);
    assert_eq!(world.done(), ["deal.create", "mail.send", "mail.send"]);
    let which = ListEffects { status: Some(EffectStatus::Unknown), limit: 9, ..Default::default() };
    let row = fabric.effects(which).await.unwrap().remove(0);
    let truth = Truth::Done("\"mail.send by hand\"".to_owned());
    fabric.resolve_effect(&row.effect_id, truth, "user:op", "they have it").await.unwrap();
    let info = command.ended().await.unwrap().command;
    assert_eq!(info.status, CommandStatus::Cancelled);
    let back = ["mail.recall", "mail.recall", "deal.delete"];
    assert_eq!(world.done()[3..], back);
    fabric.shutdown().await;
}

/// X5
async fn x5_a_compensation_that_does_more_than_declared_is_told_of(f: Fixture) {
    let world = World::default();
    // The way back of the deal does not say that it deletes deals.
    let drifting = contract(["mail.recall", "mail.recall"]);
    let fabric = builder(&f, &world, drifting).start().await.unwrap();
    let command = fabric.submit(sell, deal("fail")).await.unwrap();
    assert!(command.result().await.is_err());
    assert_eq!(command.status().await.unwrap(), CommandStatus::Compensated);
    let events = command.events().await.unwrap();
    let drift: Vec<_> = events.iter().filter(|e| e.event_type == "compensation_drift").collect();
    assert_eq!(drift.len(), 1, "the other one is as declared");
    assert_eq!(drift[0].purpose, "audit");
    assert!(drift[0].payload.contains("deal.delete"), "{}", drift[0].payload);
    fabric.shutdown().await;
}

async fn a_compensation_that_fails_halts_the_chain_and_says_how_far_it_came(f: Fixture) {
    let world = World::default();
    world.fail.store(1, Ordering::SeqCst);
    let fabric = builder(&f, &world, contract(DECLARED)).start().await.unwrap();
    let command = fabric.submit(sell, deal("fail")).await.unwrap();
    let error = command.result().await.unwrap_err();
    assert_eq!(error.code(), "SF-0831");
    assert!(error.message().contains("the third step failed"), "{error}");
    assert!(error.message().contains("1 were undone before"), "{error}");
    assert_eq!(command.status().await.unwrap(), CommandStatus::Failed);
    assert_eq!(world.done(), ["deal.create", "mail.send", "mail.recall"]);
    let all = undone(&fabric, &command).await;
    assert_eq!(all, [("deal.create".to_owned(), false), ("mail.send".to_owned(), true)]);
    // The way back is repaired: it goes on with what is left, and says why it was taken back.
    world.fail.store(0, Ordering::SeqCst);
    command.take_back("user:op").await.unwrap();
    let info = command.ended().await.unwrap().command;
    assert_eq!(info.status, CommandStatus::Compensated);
    assert_eq!(world.done(), ["deal.create", "mail.send", "mail.recall", "deal.delete"]);
    assert_eq!(info.error.unwrap().message(), "the third step failed");
    let events = command.events().await.unwrap();
    assert!(events.iter().any(|e| e.event_type == "command.compensating" && e.actor == "user:op"));
    for id in [command.id(), "nobody"] {
        let refused = fabric.command::<()>(id).take_back("user:op").await.unwrap_err();
        let code = if id == "nobody" { "SF-0505" } else { "SF-0838" };
        assert_eq!(refused.code(), code, "{refused}");
    }
    fabric.shutdown().await;
}

async fn a_command_that_succeeds_takes_nothing_back(f: Fixture) {
    let world = World::default();
    let fabric = builder(&f, &world, contract(DECLARED)).start().await.unwrap();
    let command = fabric.submit(sell, deal("")).await.unwrap();
    assert_eq!(command.result().await.unwrap(), "sold");
    assert_eq!(world.done(), ["deal.create", "mail.send"]);
    // Graceful: what was done stays.
    let waiting = fabric.submit(sell, deal("wait")).await.unwrap();
    world.reached.notified().await;
    waiting.cancel("", "user:1").await.unwrap();
    until("it is over", async || waiting.status().await.unwrap() == CommandStatus::Cancelled).await;
    assert_eq!(world.done().len(), 4);
    fabric.shutdown().await;
}

/// X4, R39, R109: start-up errors, each by name; the rules one by one are core's tests.
async fn x4_a_fabric_whose_ways_back_do_not_hold_together_does_not_start(f: Fixture) {
    let refused = async |contract: Contract| {
        let started = f.fabric().command(sell, contract).start().await;
        started.err().expect("it must not start")
    };
    let bare = refused(Contract::new().effect(EffectType::new("mail.send"))).await;
    assert_eq!(bare.code(), "SF-0803");
    assert!(bare.message().contains("command type \"sell\""), "{bare}");
    let missing = EffectType::new("mail.send").undone_by("nobody");
    let missing = refused(Contract::new().effect(missing)).await;
    assert_eq!(missing.code(), "SF-0804");
    assert!(missing.message().contains("nobody"), "{missing}");
}
