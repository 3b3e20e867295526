//! From a message on a JetStream stream to a command, with a real server in between: however often
//! a message comes, it is one command.
//!
//! Requirements shown here: R61 (a redelivery makes no second execution) and R67 (an event that was
//! there already is acknowledged, and the next one is taken).
//!
//! The server is named by `STEADFAST_TEST_NATS_URL`, which `cargo xtask test` sets. Without it the
//! tests are skipped, but not in CI.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::{self, Context, stream};
use futures::future::{BoxFuture, select};
use serde::{Deserialize, Serialize};
use serde_json::json;
use steadfast::schemars::{self, JsonSchema};
use steadfast::{
    CommandStatus, Contract, Cx, Envelope, Error, Ingress, ListCommands, OnEvent, Result, Routed,
    Steadfast,
};
use steadfast_connectors::NatsSource;
use steadfast_store::{Op, OpenStore, Reply, Store};
use steadfast_testkit::db::TestDb;

const URL: &str = "STEADFAST_TEST_NATS_URL";
/// Long enough for a busy machine; a test that needs it has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// A stream of its own.
struct Nats {
    url: String,
    context: Context,
    name: String,
}

impl Nats {
    async fn new() -> Option<Self> {
        let url = std::env::var(URL).ok().filter(|url| !url.is_empty());
        if url.is_none() && std::env::var_os("CI").is_some() {
            panic!("{URL} is not set: in CI every server is tested (use `cargo xtask test`)");
        }
        let url = url?;
        let context = jetstream::new(async_nats::connect(&url).await.unwrap());
        let name = format!("test_{}", uuid::Uuid::now_v7().simple());
        let subjects = vec![format!("{name}.>")];
        let config = stream::Config { name: name.clone(), subjects, ..stream::Config::default() };
        context.create_stream(config).await.unwrap();
        Some(Self { url, context, name })
    }

    fn source(&self) -> NatsSource {
        let ack_wait = Duration::from_secs(1);
        NatsSource { ack_wait, in_flight: 3, ..NatsSource::new(&self.url, &self.name, "steadfast") }
    }

    /// A message that says that an order was paid.
    async fn paid(&self, order: u32) {
        let event = json!({
            "event_id": format!("evt_{order}"), "type": "order.paid", "source": "shop",
            "subject": format!("order/{order}"), "payload": { "total": order },
        });
        let sent = self.context.publish(format!("{}.orders", self.name), event.to_string().into());
        sent.await.unwrap().await.unwrap();
    }

    /// Waits until the server has delivered everything, and has every answer.
    async fn settled(&self) {
        let stream = self.context.get_stream(&self.name).await.unwrap();
        until("every message is acknowledged", async || {
            let info = stream.consumer_info("steadfast").await;
            info.is_ok_and(|info| (info.num_ack_pending, info.num_pending) == (0, 0))
        })
        .await;
    }

    async fn end(self) {
        self.context.delete_stream(&self.name).await.unwrap();
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = tokio::time::Instant::now() + LIMIT;
    while !holds().await {
        assert!(tokio::time::Instant::now() < give_up, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Order {
    order: String,
    total: i64,
}

async fn ship(_: Cx, order: Order) -> Result<String> {
    Ok(format!("{} for {}", order.order, order.total))
}

/// A fabric that ships every order that was paid.
async fn shop(store: OpenStore) -> Steadfast {
    let payload = json!({ "order": "{event.subject}", "total": "{event.payload.total}" });
    Steadfast::open("given")
        .store(store)
        .poll(Duration::from_millis(10), Duration::from_millis(100))
        .command(ship, Contract::new())
        .on_event(OnEvent::new("ship", "order.paid").submits("ship", payload))
        .start()
        .await
        .unwrap()
}

/// How often events made their command, and how often they found it.
#[derive(Default)]
struct Count {
    new: AtomicUsize,
    again: AtomicUsize,
}

impl Count {
    fn note(&self, routed: &Routed) {
        let counter = if is_new(routed) { &self.new } else { &self.again };
        counter.fetch_add(1, Ordering::SeqCst);
    }

    fn made(&self) -> usize {
        self.new.load(Ordering::SeqCst)
    }

    fn found(&self) -> usize {
        self.again.load(Ordering::SeqCst)
    }
}

fn is_new(routed: &Routed) -> bool {
    assert!(routed.refused.is_empty(), "{:?}", routed.refused);
    let [(trigger, _, new)] = &routed.commands[..] else {
        panic!("one trigger matches: {routed:?}")
    };
    assert_eq!(trigger, "ship");
    *new
}

async fn reject(_: Vec<u8>, error: Error) -> Result<()> {
    panic!("every message is an event: {error}")
}

/// Exactly one command for each of the orders, all carried out.
async fn judge(fabric: &Steadfast, orders: std::ops::RangeInclusive<u32>) {
    let list = || async {
        let page = ListCommands { limit: 1000, ..Default::default() };
        fabric.commands(page).await.unwrap().commands
    };
    until("every command is over", async || {
        list().await.iter().all(|command| command.status.is_terminal())
    })
    .await;
    let commands = list().await;
    let count = commands.len();
    let mut by_run: BTreeMap<_, _> =
        commands.into_iter().map(|command| (command.workflow_id.clone(), command)).collect();
    assert_eq!(by_run.len(), count, "two commands have the same run");
    for order in orders {
        let command = by_run.remove(&format!("activity-ship:evt_{order}")).unwrap();
        assert_eq!(command.status, CommandStatus::Succeeded);
        assert_eq!(command.result.unwrap(), format!("\"order/{order} for {order}\""));
        assert_eq!(command.ingress, "connector_event");
    }
    assert!(by_run.is_empty(), "commands of no message: {:?}", by_run.keys());
}

/// R61, R67
#[tokio::test]
async fn r067_a_message_is_one_command_and_a_repeated_event_holds_up_nobody() {
    let Some(nats) = Nats::new().await else { return };
    for db in TestDb::all() {
        let fabric = shop(steadfast_store::open(&db.url).await.unwrap()).await;
        let count = Count::default();
        let take = async |event: Envelope| {
            count.note(&fabric.deliver(&event, Ingress::ConnectorEvent).await?);
            Ok(())
        };
        let stop = async {
            for order in 1..=20 {
                nats.paid(order).await;
                if order % 4 == 0 {
                    // The sender repeats himself: another message, the same event.
                    nats.paid(order).await;
                }
            }
            until("all are taken", async || count.made() + count.found() >= 25).await;
            nats.settled().await;
        };
        nats.source().run(take, reject, stop).await.unwrap();
        judge(&fabric, 1..=20).await;
        assert_eq!(count.made(), 20, "{:?}", db.kind());
        fabric.shutdown().await;
    }
    nats.end().await;
}

/// R61, R67
#[tokio::test]
async fn r061_a_message_whose_taker_died_between_commit_and_answer_comes_again_and_makes_nothing() {
    let Some(nats) = Nats::new().await else { return };
    for (n, db) in (0..).zip(TestDb::all()) {
        let orders = 10 * n + 1..=10 * n + 8;
        let fabric = shop(steadfast_store::open(&db.url).await.unwrap()).await;
        for order in orders.clone() {
            nats.paid(order).await;
        }
        let before = Count::default();
        {
            let take = async |event: Envelope| {
                before.note(&fabric.deliver(&event, Ingress::ConnectorEvent).await?);
                std::future::pending().await
            };
            let source = nats.source();
            let run = pin!(source.run(take, reject, std::future::pending()));
            let all_at_work = pin!(until("as many are committed as may be at work", async || {
                before.made() + before.found() == source.in_flight
            }));
            select(run, all_at_work).await;
            // Dropped here: the commands are durable, and the server has heard nothing.
        }
        let count = Count::default();
        let take = async |event: Envelope| {
            count.note(&fabric.deliver(&event, Ingress::ConnectorEvent).await?);
            Ok(())
        };
        let stop = async {
            until("all are taken", async || {
                before.made() + count.made() >= 8 && count.found() >= before.made()
            })
            .await;
            nats.settled().await;
        };
        nats.source().run(take, reject, stop).await.unwrap();
        assert!(before.made() > 0);
        assert_eq!(before.made() + count.made(), 8, "{:?}", db.kind());
        judge(&fabric, orders).await;
        fabric.shutdown().await;
    }
    nats.end().await;
}

/// A store that is away as long as it is told to be.
struct Away {
    inner: OpenStore,
    is_away: AtomicBool,
}

impl Store for Away {
    fn call(&self, op: Op) -> BoxFuture<'_, std::result::Result<Reply, steadfast_store::Error>> {
        if self.is_away.load(Ordering::SeqCst) {
            let error = steadfast_store::Error::Transient("nobody answers".to_owned());
            return Box::pin(std::future::ready(Err(error)));
        }
        self.inner.call(op)
    }
}

/// R61
#[tokio::test]
async fn r061_a_message_that_the_store_could_not_take_comes_again_until_it_can() {
    let Some(nats) = Nats::new().await else { return };
    let db = TestDb::sqlite();
    let inner = steadfast_store::open(&db.url).await.unwrap();
    let store = Arc::new(Away { inner, is_away: AtomicBool::new(false) });
    let fabric = shop(store.clone()).await;
    for order in 1..=3 {
        nats.paid(order).await;
    }
    store.is_away.store(true, Ordering::SeqCst);
    let (refused, count) = (AtomicUsize::new(0), Count::default());
    let take = async |event: Envelope| {
        let routed = fabric.deliver(&event, Ingress::ConnectorEvent).await;
        match &routed {
            Ok(routed) => count.note(routed),
            Err(_) => drop(refused.fetch_add(1, Ordering::SeqCst)),
        }
        routed.map(|_| ())
    };
    let stop = async {
        until("each was refused", async || refused.load(Ordering::SeqCst) >= 3).await;
        assert_eq!(count.made(), 0);
        store.is_away.store(false, Ordering::SeqCst);
        until("each was taken", async || count.made() >= 3).await;
        nats.settled().await;
    };
    nats.source().run(take, reject, stop).await.unwrap();
    assert_eq!(count.made(), 3, "each was taken once it could be");
    judge(&fabric, 1..=3).await;
    fabric.shutdown().await;
    nats.end().await;
}
