//! Events on a JetStream stream, with a real server.
//!
//! The server is named by `STEADFAST_TEST_NATS_URL`, which `cargo xtask test` sets. Without it the
//! test is skipped, but not in CI.

use async_nats::jetstream::{self, stream};
use steadfast::{CloudEvent, Delivery, ListEvents, Sink, SinkTarget as _, Timestamp};
use steadfast_connectors::NatsSink;
use steadfast_testkit::db::TestDb;

use super::{fabric, greet, to, until};

const URL: &str = "STEADFAST_TEST_NATS_URL";

/// R114: a stream drops a repetition by its id.
#[tokio::test]
async fn r114_a_stream_keeps_each_event_once_however_often_it_is_sent() {
    let url = std::env::var(URL).ok().filter(|url| !url.is_empty());
    assert!(url.is_some() || std::env::var_os("CI").is_none(), "{URL} is not set");
    let Some(url) = url else { return };
    let context = jetstream::new(async_nats::connect(&url).await.unwrap());
    let name = format!("test_{}", uuid::Uuid::now_v7().simple());
    let subjects = vec![format!("{name}.command.>"), format!("{name}.workflow.>")];
    let config = stream::Config { name: name.clone(), subjects, ..stream::Config::default() };
    let stream = context.create_stream(config).await.unwrap();
    let count = async || stream.get_info().await.unwrap().state.messages;
    let target = NatsSink::new(&url).prefix(&name);
    let db = TestDb::sqlite();
    let built = fabric(&db.url, None).sink(Sink::new("stream", target.clone()));
    let fabric = built.start().await.unwrap();
    fabric.submit(greet, to("ann")).await.unwrap().result().await.unwrap();
    until("the stream has them", async || count().await == 7).await;
    let rows = fabric.events(ListEvents { limit: 9, ..Default::default() }).await.unwrap();
    let first = stream.get_raw_message(1).await.unwrap();
    assert_eq!(first.headers.get("Nats-Msg-Id").unwrap().as_str(), rows[0].event_id);
    assert_eq!(first.subject.as_str(), format!("{name}.command.created"));
    for (row, seq) in rows.iter().zip(1..) {
        for event in CloudEvent::of(&row.facts("default"), seq, None) {
            let sent = target.send(&event, Timestamp::from_micros(0)).await;
            assert_eq!(sent, Delivery::Done);
        }
    }
    assert_eq!(count().await, 7, "sent twice, kept once");
    // A subject that no stream takes has not arrived.
    let lost = NatsSink::new(&url).prefix("nobody");
    let event = CloudEvent::of(&rows[0].facts("default"), 1, None).remove(0);
    let sent = lost.send(&event, Timestamp::from_micros(0)).await;
    assert!(matches!(sent, Delivery::Again { .. }), "{sent:?}");
    fabric.shutdown().await;
    context.delete_stream(&name).await.unwrap();
}
