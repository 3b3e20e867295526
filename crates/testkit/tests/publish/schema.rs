//! What leaves, judged by the schema of those who make the standard.
//!
//! `cargo xtask test` fetches it; without it there is nothing to judge by, and in CI that fails.

use jsonschema::Validator;
use serde_json::{Value, json};
use steadfast::{Cx, Governance, Result, Sink};
use steadfast_connectors::Webhook;
use steadfast_testkit::db::TestDb;

use super::receiver::Receiver;
use super::webhooks::{SECRET, kept};
use super::{fabric, greet, to, until};

const VARIABLE: &str = "STEADFAST_TEST_CLOUDEVENTS_SCHEMA";

fn official() -> Option<Validator> {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
        assert!(std::env::var_os("CI").is_none(), "{VARIABLE} is not set: use `cargo xtask test`");
        return None;
    };
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    Some(jsonschema::options().should_validate_formats(true).build(&schema).unwrap())
}

/// Without a member, or with another value of it.
fn spoilt(event: &Value, member: &str, value: Option<Value>) -> Value {
    let mut event = event.clone();
    let members = event.as_object_mut().unwrap();
    match value {
        Some(value) => drop(members.insert(member.to_owned(), value)),
        None => drop(members.remove(member)),
    }
    event
}

async fn think(cx: Cx, _: u32) -> Result<()> {
    cx.emit("thought", json!("a text")).await?;
    cx.emit("thoughts", json!([1, 2.5, null])).await?;
    cx.audit("large", json!({ "text": "x".repeat(100_000) })).await
}

/// R106: of purposes, outcomes and payloads of all kinds.
#[tokio::test]
async fn r106_every_published_event_is_valid_by_the_official_schema() {
    let Some(schema) = official() else { return };
    let (db, receiver) = (TestDb::sqlite(), Receiver::new([]).await);
    let (_file, secret) = kept(SECRET);
    let hook = Webhook::new(&receiver.url, &secret).unwrap();
    let agent = steadfast::Contract::new().agent();
    let fabric = fabric(&db.url, None)
        .command(think, agent)
        .govern(Governance::new())
        .sink(Sink::new("hook", hook))
        .start()
        .await
        .unwrap();
    fabric.submit(greet, to("ann")).await.unwrap().result().await.unwrap();
    fabric.submit(greet, to("nobody")).await.unwrap().result().await.unwrap_err();
    let thought = fabric.submit(think, 1).requested_by("agent:a/ü %").await.unwrap();
    thought.result().await.unwrap();
    let types = || -> Vec<String> {
        let bodies = receiver.got().into_iter().map(|request| request.body);
        let events = bodies.map(|body| serde_json::from_str::<Value>(&body).unwrap());
        events.map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    };
    let ends = ["command.succeeded", "command.failed", "workflow.completed", "large", "thoughts"];
    until("the last of all", async || {
        let came = types();
        let completed = came.iter().filter(|t| *t == "steadfast.workflow.completed").count();
        let told = |end: &&str| came.contains(&format!("steadfast.{end}"));
        completed == 2 && ends.iter().all(told)
    })
    .await;
    for request in receiver.got() {
        let event: Value = serde_json::from_str(&request.body).unwrap();
        if let Err(error) = schema.validate(&event) {
            panic!("{error} at {}: {event}", error.instance_path());
        }
        // It would have said so.
        for (member, value) in [
            ("id", None),
            ("source", None),
            ("specversion", None),
            ("type", None),
            ("id", Some(json!(""))),
            ("type", Some(json!(7))),
            ("source", Some(json!("not a reference: %zz"))),
            ("time", Some(json!("yesterday"))),
            ("subject", Some(json!({}))),
        ] {
            let spoilt = spoilt(&event, member, value);
            assert!(!schema.is_valid(&spoilt), "{spoilt}");
        }
    }
    fabric.shutdown().await;
}
