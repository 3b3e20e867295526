//! Signed webhooks, as their receiver sees them.

use cloudevents::AttributesReader as _;
use standardwebhooks::Webhook as Verifier;
use steadfast::{Client, ListEvents, Sink, SinkState, Steadfast};
use steadfast_connectors::Webhook;
use steadfast_core::env::Env as _;
use steadfast_testkit::db::TestDb;
use steadfast_testkit::suite::runtime::Clock;

use super::receiver::{Answer, Receiver, Request};
use super::{fabric, greet, later, to, until};

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
pub(crate) const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// A secret in a file, and the reference to it.
pub(crate) fn kept(secret: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), secret).unwrap();
    let reference = format!("file:{}", file.path().display());
    (file, reference)
}

fn verified(secret: &str, request: &Request) -> bool {
    let mut headers = http::HeaderMap::new();
    for (name, value) in &request.headers {
        let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.insert(name, value.parse().unwrap());
    }
    Verifier::new(secret).unwrap().verify(request.body.as_bytes(), &headers).is_ok()
}

/// R106, R120
#[tokio::test]
async fn r106_every_event_is_a_signed_and_valid_cloud_event() {
    let (db, receiver) = (TestDb::sqlite(), Receiver::new([]).await);
    let ((_a, old), (_b, new)) = (kept(OTHER), kept(SECRET));
    let hook = Webhook::new(&receiver.url, &old).unwrap().also_signed_with(&new).unwrap();
    let fabric = fabric(&db.url, None).sink(Sink::new("hook", hook)).start().await.unwrap();
    let good = fabric.submit(greet, to("ann")).await.unwrap();
    good.result().await.unwrap();
    fabric.submit(greet, to("nobody")).await.unwrap().result().await.unwrap_err();
    until("all of both commands", async || receiver.count() == 14).await;
    let mut types = Vec::new();
    for request in receiver.got() {
        assert!(verified(SECRET, &request) && verified(OTHER, &request), "{request:?}");
        assert!(!verified("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", &request));
        assert!(request.header("content-type").starts_with("application/cloudevents+json"));
        // By the SDK of those who make the standard.
        let event: cloudevents::Event = serde_json::from_str(&request.body).unwrap();
        assert_eq!(event.specversion(), cloudevents::event::SpecVersion::V10);
        assert_eq!(event.id(), request.header("webhook-id"));
        assert_eq!(event.source(), "steadfast/default");
        assert!(event.time().is_some() && event.data().is_some());
        assert_eq!(event.datacontenttype(), Some("application/json"));
        for (name, _) in event.iter_extensions() {
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            assert!(name.chars().all(legal) && name.len() <= 20, "{name}");
        }
        types.push(event.ty().to_owned());
    }
    for turn in ["started", "completed", "failed"] {
        assert!(types.contains(&format!("steadfast.workflow.{turn}")), "{types:?}");
    }
    let ids: std::collections::HashSet<_> =
        receiver.got().iter().map(|request| request.header("webhook-id").to_owned()).collect();
    assert_eq!(ids.len(), 14, "each has an id of its own");
    let told = all(&fabric).await;
    assert!(!told.contains(SECRET) && !told.contains("whsec"), "no secret is stored");
    fabric.shutdown().await;
}

async fn all(client: &Client) -> String {
    let events = client.events(ListEvents { limit: 1000, ..Default::default() }).await.unwrap();
    format!("{events:?} {:?}", client.sinks().await.unwrap())
}

fn ids(receiver: &Receiver) -> Vec<String> {
    receiver.got().iter().map(|request| request.header("webhook-id").to_owned()).collect()
}

/// Sends what is due until so many requests have come.
async fn sent(fabric: &Steadfast, receiver: &Receiver, count: usize) {
    until("requests come", async || {
        fabric.publish().await.unwrap();
        receiver.count() >= count
    })
    .await;
}

/// R114
#[tokio::test]
async fn r114_what_failed_is_repeated_under_its_id_and_not_before_its_time() {
    let db = TestDb::sqlite();
    let busy = Answer::Status("503 Service Unavailable\r\nretry-after: 40");
    let many = Answer::Status("429 Too Many Requests\r\nretry-after: 100");
    let script = [Answer::Status("500 Internal Server Error"), busy, many, Answer::Silence];
    let receiver = Receiver::new(script).await;
    let clock = Clock::at("2026-06-01T12:00:00Z");
    let (_file, secret) = kept(SECRET);
    let hook = Webhook::new(&receiver.url, &secret).unwrap();
    let hook = hook.timeout(std::time::Duration::from_millis(200));
    let sink = Sink::new("hook", hook).types(["command.*"]);
    let fabric = fabric(&db.url, Some(&clock)).sink(sink).start().await.unwrap();
    let command = fabric.submit(greet, to("ann")).await.unwrap();
    command.result().await.unwrap();
    let first = format!("evt_{}_000000", command.id());
    sent(&fabric, &receiver, 1).await;
    // A second after a 500; as long as was asked for after a 503 and a 429; eight
    // seconds after silence, the fourth failure.
    for (wait, count) in [(1, 2), (40, 3), (100, 4), (8, 5)] {
        settled(&fabric).await;
        later(&clock, wait - 1);
        fabric.publish().await.unwrap();
        assert_eq!(receiver.count(), count - 1, "not before {wait} s");
        later(&clock, 1);
        sent(&fabric, &receiver, count).await;
    }
    sent(&fabric, &receiver, 9).await;
    let mut wanted = vec![first; 5];
    wanted.extend((1..5).map(|n| format!("evt_{}_{n:06}", command.id())));
    assert_eq!(ids(&receiver), wanted, "the others waited for the first, and kept their order");
    let stamps: Vec<_> = receiver
        .got()
        .iter()
        .map(|request| request.header("webhook-timestamp").to_owned())
        .collect();
    assert!(stamps[0] < stamps[4], "the time is that of the attempt");
    fabric.shutdown().await;
}

/// Waits until the last attempt is noted.
async fn settled(fabric: &Steadfast) {
    until("the attempt is noted", async || {
        let sinks = fabric.sinks().await.unwrap().sinks;
        sinks[0].row.owner.is_empty() && sinks[0].parked > 0
    })
    .await;
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_left_alone_until_somebody_says_otherwise() {
    let (db, receiver) = (TestDb::sqlite(), Receiver::new([Answer::Status("410 Gone")]).await);
    let (_file, secret) = kept(SECRET);
    let hook = Webhook::new(&receiver.url, &secret).unwrap();
    let fabric = fabric(&db.url, None).sink(Sink::new("hook", hook)).start().await.unwrap();
    let command = fabric.submit(greet, to("ann")).await.unwrap();
    command.result().await.unwrap();
    until("it is disabled", async || {
        fabric.sinks().await.unwrap().sinks[0].row.state == SinkState::Disabled
    })
    .await;
    fabric.publish().await.unwrap();
    assert_eq!(receiver.count(), 1);
    let audit = ListEvents { purpose: Some("audit".into()), limit: 9, ..Default::default() };
    let told = fabric.events(audit).await.unwrap();
    assert!(told[0].event_type == "sink.disabled" && told[0].payload.contains("410"), "{told:?}");
    fabric.set_sink("hook", SinkState::Active, "moved", "user:1").await.unwrap();
    until("nothing was lost", async || {
        let rows = ids(&receiver).into_iter().filter(|id| id.starts_with("evt_sink_")).count();
        rows == 2 && ids(&receiver).contains(&format!("evt_{}_000004-workflow", command.id()))
    })
    .await;
    fabric.shutdown().await;
}

#[tokio::test]
async fn a_secret_that_is_not_there_yet_is_waited_for() {
    let (db, receiver) = (TestDb::sqlite(), Receiver::new([]).await);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let clock = Clock::at("2026-06-01T12:00:00Z");
    assert_eq!(Webhook::new(&receiver.url, SECRET).unwrap_err().code(), "SF-0716");
    let hook = Webhook::new(&receiver.url, &format!("file:{}", path.display())).unwrap();
    let sink = Sink::new("hook", hook).types(["command.created"]).attempts(9);
    let fabric = fabric(&db.url, Some(&clock)).sink(sink).start().await.unwrap();
    fabric.submit(greet, to("ann")).await.unwrap().result().await.unwrap();
    settled_or_tried(&fabric).await;
    assert_eq!(receiver.count(), 0);
    std::fs::write(&path, SECRET).unwrap();
    later(&clock, 60);
    sent(&fabric, &receiver, 1).await;
    assert!(clock.now() > steadfast::Timestamp::from_micros(0));
    fabric.shutdown().await;
}

async fn settled_or_tried(fabric: &Steadfast) {
    until("it was tried", async || {
        fabric.publish().await.unwrap();
        fabric.sinks().await.unwrap().sinks[0].parked > 0
    })
    .await;
}
