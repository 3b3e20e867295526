//! Events out: at least once, in the order of their key, whoever sends them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    Client, CloudEvent, Contract, Cx, Delivery, Error, ErrorClass, ListEvents, Result, Retention,
    Sink, SinkState, SinkTarget, Steadfast, Timestamp,
};
use steadfast_core::env::Env;

use super::{Clock, Fixture, case_table, until};

case_table![
    r114_what_a_crash_left_is_published_later_with_the_same_ids,
    r120_the_turns_of_a_workflow_are_told,
    r031_every_row_has_its_purpose,
    two_relays_keep_the_order_of_each_key_and_a_stuck_key_holds_up_no_other,
    a_dead_letter_lets_the_next_pass_and_can_be_driven_again,
    r032_a_retention_that_is_too_short_is_refused,
    r030_the_chain_is_whole_after_retention,
];

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Greeting {
    to: String,
}

async fn greet(cx: Cx, greeting: Greeting) -> Result<String> {
    if greeting.to == "nobody" {
        let why = "the other side says no";
        return Err(Error::new(ErrorClass::PermanentConnectorError, "SF-0001", why));
    }
    cx.step("say", || async { Ok::<_, Error>(1) }).await?;
    Ok(greeting.to)
}

fn to(name: &str) -> Greeting {
    Greeting { to: name.to_owned() }
}

type Answer = Arc<dyn Fn(&CloudEvent) -> bool + Send + Sync>;

/// A target that keeps what it took and what it refused.
#[derive(Clone)]
struct Ears {
    answer: Answer,
    heard: Arc<Mutex<Vec<CloudEvent>>>,
    refused: Arc<Mutex<Vec<String>>>,
}

impl Ears {
    fn that(answer: impl Fn(&CloudEvent) -> bool + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), heard: Arc::default(), refused: Arc::default() }
    }

    fn heard(&self) -> Vec<CloudEvent> {
        self.heard.lock().unwrap().clone()
    }

    fn types(&self, command: &str) -> Vec<String> {
        let of = |event: &CloudEvent| event.subject.as_deref() == Some(command);
        self.heard().into_iter().filter(of).map(|event| event.event_type).collect()
    }

    fn has(&self, command: &str, event_type: &str) -> bool {
        self.types(command).iter().any(|heard| heard == event_type)
    }
}

impl SinkTarget for Ears {
    fn kind(&self) -> &'static str {
        "ears"
    }
    fn place(&self) -> String {
        "here".to_owned()
    }
    fn send<'a>(&'a self, event: &'a CloudEvent, _: Timestamp) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            // Others get their turn between the parts of a sending.
            tokio::task::yield_now().await;
            if (self.answer)(event) {
                self.heard.lock().unwrap().push(event.clone());
                return Delivery::Done;
            }
            self.refused.lock().unwrap().push(event.id.clone());
            let error = Error::new(ErrorClass::TransientConnectorError, "SF-0905", "not now");
            Delivery::Again { error, after: None }
        })
    }
}

async fn fabric(f: &Fixture, clock: &Arc<Clock>, sink: Sink) -> Steadfast {
    let built = f.fabric().env(clock.clone()).command(greet, Contract::new().key("greet:{to}"));
    built.sink(sink).start().await.unwrap()
}

async fn all(client: &Client) -> Vec<steadfast::EventRow> {
    client.events(ListEvents { limit: 1000, ..Default::default() }).await.unwrap()
}

fn later(clock: &Clock, by: u64) {
    clock.set(clock.now().after(Duration::from_secs(by)));
}

/// R113, R114
async fn r114_what_a_crash_left_is_published_later_with_the_same_ids(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let deaf = Ears::that(|_| false);
    let first = fabric(&f, &clock, Sink::new("out", deaf.clone())).await;
    let command = first.submit(greet, to("ann")).await.unwrap();
    command.result().await.unwrap();
    let written = all(&first).await;
    // What was not accepted has no event: they are one commit.
    let known = steadfast::ListCommands { limit: 10, ..Default::default() };
    assert_eq!(first.commands(known).await.unwrap().commands.len(), 1);
    assert!(written.iter().all(|event| event.command_id == command.id()), "{written:?}");
    until("somebody tried to send", async || !deaf.refused.lock().unwrap().is_empty()).await;
    first.shutdown().await;
    drop(first);
    later(&clock, 3600);
    let ears = Ears::that(|_| true);
    let second = fabric(&f, &clock, Sink::new("out", ears.clone())).await;
    let last = "steadfast.workflow.completed";
    until("the next process sends", async || ears.has(command.id(), last)).await;
    let rows: Vec<_> = written.iter().map(|event| event.event_id.clone()).collect();
    let heard: Vec<_> = ears.heard().into_iter().map(|event| event.id).collect();
    let own: Vec<_> = heard.iter().filter(|id| !id.ends_with("-workflow")).cloned().collect();
    assert_eq!(own, rows, "every row, in order, under its own id");
    let tried = deaf.refused.lock().unwrap().clone();
    assert!(tried.iter().all(|id| heard.contains(id)), "a repetition has the same id: {tried:?}");
    second.shutdown().await;
}

/// R120, R106
async fn r120_the_turns_of_a_workflow_are_told(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let ears = Ears::that(|_| true);
    let fabric = fabric(&f, &clock, Sink::new("out", ears.clone())).await;
    let good = fabric.submit(greet, to("ann")).correlation_id("affair-7").await.unwrap();
    let bad = fabric.submit(greet, to("nobody")).await.unwrap();
    good.result().await.unwrap();
    bad.result().await.unwrap_err();
    for (command, end) in [(good.id(), "completed"), (bad.id(), "failed")] {
        for turn in ["started", end] {
            let wanted = format!("steadfast.workflow.{turn}");
            until(&wanted, async || ears.has(command, &wanted)).await;
        }
    }
    for event in ears.heard() {
        assert_eq!(event.source, format!("steadfast/{}", f.workspace));
        let correlation = event.extension("correlationid");
        if event.subject.as_deref() == Some(good.id()) {
            assert_eq!(correlation, Some("affair-7"));
        }
        assert!(event.extension("traceparent").is_some_and(|text| text.len() == 55), "{event:?}");
        assert_eq!(event.extension("partitionkey"), event.subject.as_deref());
    }
    fabric.shutdown().await;
}

/// R31
async fn r031_every_row_has_its_purpose(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let fabric = fabric(&f, &clock, Sink::new("out", Ears::that(|_| true))).await;
    fabric.submit(greet, to("ann")).await.unwrap().result().await.unwrap();
    assert!(fabric.set_sink("out", SinkState::Disabled, "test", "user:1").await.unwrap());
    assert!(!fabric.set_sink("out", SinkState::Disabled, "test", "user:1").await.unwrap());
    let none = fabric.set_sink("none", SinkState::Active, "", "user:1").await.unwrap_err();
    assert_eq!(none.code(), "SF-0906");
    for event in all(&fabric).await {
        let wanted = if event.event_type.starts_with("command.") { "event" } else { "audit" };
        assert_eq!(event.purpose, wanted, "{}", event.event_type);
    }
    fabric.shutdown().await;
}

async fn two_relays_keep_the_order_of_each_key_and_a_stuck_key_holds_up_no_other(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let stuck = Arc::new(Mutex::new(String::new()));
    let name = stuck.clone();
    let ears = Ears::that(move |event| {
        let stuck = name.lock().unwrap();
        let is_stuck = stuck.is_empty() || event.subject.as_deref() == Some(&**stuck);
        !(is_stuck && event.event_type == "steadfast.command.queued")
    });
    let one = fabric(&f, &clock, Sink::new("out", ears.clone())).await;
    let two = fabric(&f, &clock, Sink::new("out", ears.clone())).await;
    let mut commands = Vec::new();
    for n in 0..6 {
        commands.push(one.submit(greet, to(&format!("c{n}"))).await.unwrap());
    }
    for command in &commands {
        command.result().await.unwrap();
    }
    // At first nobody gets beyond the third event, then only one does not.
    until("all are stuck", async || {
        let (_, _) = futures::future::join(one.publish(), two.publish()).await;
        commands.iter().all(|c| ears.types(c.id()).len() == 2)
    })
    .await;
    *stuck.lock().unwrap() = commands[2].id().to_owned();
    let done = |id: &str| ears.has(id, "steadfast.workflow.completed");
    until("the others arrive", async || {
        later(&clock, 10);
        let (a, b) = futures::future::join(one.publish(), two.publish()).await;
        a.unwrap();
        b.unwrap();
        commands.iter().filter(|c| done(c.id())).count() == 5
    })
    .await;
    assert_eq!(ears.types(commands[2].id()).len(), 2, "it waits for the one that is stuck");
    let waiting = one.sinks().await.unwrap().sinks[0].parked;
    assert_eq!(waiting, 3, "the one that is stuck, and those behind it");
    *stuck.lock().unwrap() = "nobody".to_owned();
    until("the last one arrives", async || {
        // Less than a lease: what is under way is not taken over.
        later(&clock, 60);
        let _ = futures::future::join(one.publish(), two.publish()).await;
        done(commands[2].id())
    })
    .await;
    let mut last = BTreeMap::<String, String>::new();
    for event in ears.heard() {
        let (key, sequence) = (event.extension("partitionkey"), event.extension("sequence"));
        let (key, sequence) = (key.unwrap().to_owned(), sequence.unwrap().to_owned());
        let before = last.insert(key, sequence.clone()).unwrap_or_default();
        assert!(before <= sequence, "{} came behind number {before}", event.id);
    }
    one.shutdown().await;
    two.shutdown().await;
}

async fn a_dead_letter_lets_the_next_pass_and_can_be_driven_again(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let broken = Arc::new(Mutex::new(true));
    let is_broken = broken.clone();
    let ears = Ears::that(move |event| {
        event.event_type != "steadfast.command.validated" || !*is_broken.lock().unwrap()
    });
    let fabric = fabric(&f, &clock, Sink::new("out", ears.clone()).attempts(3)).await;
    let command = fabric.submit(greet, to("ann")).await.unwrap();
    command.result().await.unwrap();
    until("the others pass", async || {
        later(&clock, 60);
        fabric.publish().await.unwrap();
        ears.has(command.id(), "steadfast.workflow.completed")
    })
    .await;
    assert_eq!(ears.refused.lock().unwrap().len(), 3, "as often as was said");
    let dead = fabric.dead_letters(None, None, 10).await.unwrap();
    let [letter] = &dead[..] else { panic!("{dead:?}") };
    assert_eq!((letter.sink.as_str(), letter.attempt), ("out", 3));
    assert!(letter.error.contains("not now [SF-0905]"), "{}", letter.error);
    assert_eq!(fabric.redrive("none", None, "user:2").await.unwrap_err().code(), "SF-0906");
    *broken.lock().unwrap() = false;
    assert_eq!(fabric.redrive("out", Some(&letter.event_id), "user:2").await.unwrap(), 1);
    until("it arrives", async || {
        fabric.publish().await.unwrap();
        ears.has(command.id(), "steadfast.command.validated")
    })
    .await;
    assert_eq!(fabric.dead_letters(Some("out"), None, 10).await.unwrap(), []);
    fabric.shutdown().await;
}

/// R32
async fn r032_a_retention_that_is_too_short_is_refused(f: Fixture) {
    let short = Retention::new().audit_days(89);
    let refused = f.fabric().retention(short).start().await.err().unwrap();
    assert_eq!(refused.code(), "SF-0901");
    let client = f.client();
    assert_eq!(client.retain_events(&short).await.unwrap_err().code(), "SF-0901");
    let twice = f.fabric().sink(Sink::stdout("out")).sink(Sink::stdout("out"));
    assert_eq!(twice.start().await.err().unwrap().code(), "SF-0903");
}

/// R30, R32
async fn r030_the_chain_is_whole_after_retention(f: Fixture) {
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let ears = Ears::that(|_| true);
    let fabric = fabric(&f, &clock, Sink::new("out", ears.clone())).await;
    fabric.set_sink("out", SinkState::Disabled, "for a while", "user:1").await.unwrap();
    fabric.submit(greet, to("ann")).await.unwrap().result().await.unwrap();
    let noted = fabric.seal_events().await.unwrap();
    assert_eq!(noted.seq, 6);
    later(&clock, 31 * 86_400);
    fabric.submit(greet, to("bob")).await.unwrap().result().await.unwrap();
    fabric.seal_events().await.unwrap();
    assert_eq!(fabric.retain_events(&Retention::new()).await.unwrap(), 5, "of the first command");
    fabric.seal_events().await.unwrap();
    let found = fabric.verify_events(Some(&noted)).await.unwrap();
    assert_eq!((found.broken.as_ref(), found.kept), (None, 7));
    let gone = u64::try_from(found.base.seq).unwrap() + found.removed;
    assert_eq!(gone, 5, "behind the beginning, or a digest in its place");
    assert_eq!(all(&fabric).await.len(), 7, "two of audit, and the five of the second command");
    later(&clock, 91 * 86_400);
    assert_eq!(fabric.retain_events(&Retention::new()).await.unwrap(), 7);
    fabric.seal_events().await.unwrap();
    let found = fabric.verify_events(None).await.unwrap();
    assert_eq!((found.broken, found.base.seq), (None, 12), "everything old is one link");
    fabric.shutdown().await;
}
