//! The NATS source against a real server: what is taken, what comes again, and as what.
//!
//! The server is named by `STEADFAST_TEST_NATS_URL`, which `cargo xtask test` sets. Without it the
//! tests are skipped, but not in CI.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::future::Future;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context, stream};
use steadfast_connectors::NatsSource;
use steadfast_core::{Envelope, Error, Result};

const URL: &str = "STEADFAST_TEST_NATS_URL";
/// Long enough for a busy machine; a test that needs it has failed.
const LIMIT: Duration = Duration::from_secs(30);
/// Longer than the server waits before it delivers again.
const QUIET: Duration = Duration::from_millis(2500);

/// A stream of its own, gone with the test.
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
        // The same again is no other stream: a server whose disk is busy may answer too late.
        for tries in 1.. {
            match context.create_stream(config.clone()).await {
                Ok(_) => break,
                Err(error) => assert!(tries < 5, "no stream: {error}"),
            }
        }
        Some(Self { url, context, name })
    }

    fn source(&self) -> NatsSource {
        let ack_wait = Duration::from_secs(1);
        NatsSource { ack_wait, in_flight: 2, ..NatsSource::new(&self.url, &self.name, "steadfast") }
    }

    async fn send(&self, subject: &str, payload: &str, headers: &[(&str, &str)]) {
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| map.insert(*name, *value));
        let subject = format!("{}.{subject}", self.name);
        let sent = self.context.publish_with_headers(subject, map, payload.to_owned().into());
        sent.await.unwrap().await.unwrap();
    }

    /// An event without an id.
    async fn order(&self, number: u32) {
        let payload =
            format!(r#"{{"type":"order.paid","source":"shop","payload":{{"n":{number}}}}}"#);
        self.send("orders", &payload, &[]).await;
    }

    /// How many messages the server still waits for, and how many it has yet to deliver.
    async fn open(&self) -> (usize, u64) {
        let stream = self.context.get_stream(&self.name).await.unwrap();
        let info = stream.consumer_info("steadfast").await.unwrap();
        (info.num_ack_pending, info.num_pending)
    }

    /// Waits until the server has every answer: they are on their way when a source has ended.
    async fn settled(&self) {
        let all = async {
            while self.open().await != (0, 0) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LIMIT, all).await.expect("the server has every answer");
    }

    async fn end(self) {
        self.context.delete_stream(&self.name).await.unwrap();
    }
}

/// What a source handed over.
#[derive(Default)]
struct Log {
    events: Mutex<Vec<Envelope>>,
    rejected: Mutex<Vec<(String, Error)>>,
}

impl Log {
    fn events(&self) -> Vec<Envelope> {
        self.events.lock().unwrap().clone()
    }

    fn numbers(&self) -> Vec<u64> {
        let mut numbers: Vec<_> =
            self.events().iter().map(|event| event.payload["n"].as_u64().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    }

    fn rejected(&self) -> Vec<String> {
        self.rejected.lock().unwrap().iter().map(|(bytes, _)| bytes.clone()).collect()
    }

    async fn reject(&self, bytes: Vec<u8>, error: Error) -> Result<()> {
        assert_eq!(error.code(), "SF-0701");
        self.rejected.lock().unwrap().push((String::from_utf8(bytes).unwrap(), error));
        Ok(())
    }

    /// Runs a source with a `take` that fails as long as it says so, until something is true, and
    /// then long enough to see what comes again.
    async fn run_until(
        &self,
        source: &NatsSource,
        fails: impl Fn(usize) -> bool,
        until: impl Fn(&Self) -> bool,
        linger: Duration,
    ) {
        let take = async |event: Envelope| {
            let place = self.events().len();
            self.events.lock().unwrap().push(event);
            if fails(place) { Err(Error::app("the store is away")) } else { Ok(()) }
        };
        let stop = async {
            wait(|| until(self)).await;
            tokio::time::sleep(linger).await;
        };
        let run = source.run(take, |bytes, error| self.reject(bytes, error), stop);
        tokio::time::timeout(LIMIT, run).await.expect("the source stops").unwrap();
    }
}

async fn wait(done: impl Fn() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs a test on a stream of its own, where there is a server.
fn with_nats<F: Future<Output = ()>>(test: impl FnOnce(Rc<Nats>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let Some(nats) = Nats::new().await else {
            return;
        };
        let nats = Rc::new(nats);
        test(nats.clone()).await;
        Rc::into_inner(nats).unwrap().end().await;
    });
}

#[test]
fn an_event_that_was_taken_is_not_delivered_again_and_the_next_source_goes_on_from_there() {
    with_nats(async |nats| {
        let log = Log::default();
        for number in 1..=5 {
            nats.order(number).await;
        }
        log.run_until(&nats.source(), |_| false, |log| log.events().len() >= 5, QUIET).await;
        assert_eq!(log.numbers(), [1, 2, 3, 4, 5]);
        nats.settled().await;

        nats.order(6).await;
        let next = Log::default();
        next.run_until(&nats.source(), |_| false, |log| !log.events().is_empty(), QUIET).await;
        assert_eq!(next.numbers(), [6], "the position is the server's");
    });
}

#[test]
fn an_event_that_could_not_be_kept_comes_again_until_it_is() {
    with_nats(async |nats| {
        let log = Log::default();
        nats.order(1).await;
        let started = std::time::Instant::now();
        log.run_until(&nats.source(), |place| place < 2, |log| log.events().len() >= 3, QUIET)
            .await;
        let events = log.events();
        assert_eq!(events.len(), 3, "twice in vain, and then no more");
        assert!(events.iter().all(|event| *event == events[0]), "the same id, the same time");
        assert!(started.elapsed() >= Duration::from_secs(3) + QUIET, "after one second, then two");
        nats.settled().await;
    });
}

/// R68
#[test]
fn r068_an_event_whose_taker_died_goes_to_the_next_with_the_same_id() {
    with_nats(async |nats| {
        nats.order(1).await;
        let seen = Log::default();
        {
            let source = nats.source();
            let take = async |event: Envelope| {
                seen.events.lock().unwrap().push(event);
                std::future::pending().await
            };
            let reject = |bytes, error| seen.reject(bytes, error);
            let mut run = pin!(source.run(take, reject, std::future::pending()));
            let taken = pin!(wait(|| !seen.events().is_empty()));
            let first = futures::future::select(&mut run, taken);
            tokio::time::timeout(LIMIT, first).await.expect("the event arrives");
            // Dropped here, in the middle of it.
        }
        let next = Log::default();
        next.run_until(&nats.source(), |_| false, |log| !log.events().is_empty(), QUIET).await;
        assert_eq!(next.events(), seen.events(), "the same in every way");
        nats.settled().await;
    });
}

#[test]
fn a_message_that_is_no_event_is_rejected_once_and_holds_up_nobody() {
    with_nats(async |nats| {
        let log = Log::default();
        nats.send("orders", "garbage", &[]).await;
        nats.order(1).await;
        let both = |log: &Log| !log.events().is_empty() && !log.rejected().is_empty();
        log.run_until(&nats.source(), |_| false, both, QUIET).await;
        assert_eq!((log.numbers(), log.rejected()), (vec![1], vec!["garbage".to_owned()]));
        nats.settled().await;
    });
}

#[test]
fn slow_work_is_not_mistaken_for_a_dead_worker() {
    with_nats(async |nats| {
        nats.order(1).await;
        let log = Log::default();
        let take = async |event: Envelope| {
            log.events.lock().unwrap().push(event);
            tokio::time::sleep(3 * QUIET / 2).await;
            Ok(())
        };
        let stop = wait(|| !log.events().is_empty());
        let source = nats.source();
        source.run(take, |bytes, error| log.reject(bytes, error), stop).await.unwrap();
        assert_eq!(log.events().len(), 1, "stopping waited for the work, and the server did too");
        nats.settled().await;
    });
}

/// A way to the server that can be cut.
struct Line {
    url: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Line {
    fn to(url: &str) -> Self {
        let server = url.trim_start_matches("nats://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let ends = open.clone();
        thread::spawn(move || {
            for here in listener.incoming() {
                let (here, there) = (here.unwrap(), TcpStream::connect(&server).unwrap());
                for (from, to) in [(&here, &there), (&there, &here)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                ends.lock().unwrap().extend([here, there]);
            }
        });
        Self { url, open }
    }

    fn cut(&self) {
        for end in self.open.lock().unwrap().drain(..) {
            // It may have ended by itself.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn a_lost_connection_and_a_deleted_consumer_are_got_over() {
    with_nats(async |nats| {
        let line = Line::to(&nats.url);
        let source = NatsSource { url: line.url.clone(), ..nats.source() };
        let log = Log::default();
        let disturb = async {
            nats.order(1).await;
            wait(|| log.numbers() == [1]).await;
            nats.settled().await;
            line.cut();
            nats.order(2).await;
            wait(|| log.numbers().contains(&2)).await;
            nats.settled().await;
            let stream = nats.context.get_stream(&nats.name).await.unwrap();
            stream.delete_consumer("steadfast").await.unwrap();
            nats.order(3).await;
        };
        // With the consumer went its position: all of them come again, with the ids they had. One
        // whose answer was cut off may come once more.
        let all = |log: &Log| {
            let times = |number| log.numbers().into_iter().filter(|n| *n == number).count();
            times(1) >= 2 && times(2) >= 2 && times(3) >= 1
        };
        futures::join!(log.run_until(&source, |_| false, all, Duration::ZERO), disturb);
    });
}

#[test]
fn ids_come_from_the_message_and_from_cloud_events_in_its_headers() {
    with_nats(async |nats| {
        let log = Log::default();
        let body = r#"{"type":"a","source":"s"}"#;
        nats.send("x", body, &[("Nats-Msg-Id", "m-1")]).await;
        let cloud =
            [("ce-specversion", "1.0"), ("ce-id", "c-1"), ("ce-type", "a"), ("ce-source", "s")];
        nats.send("x", r#"{"n":1}"#, &cloud).await;
        log.run_until(&nats.source(), |_| false, |log| log.events().len() >= 2, Duration::ZERO)
            .await;
        let mut ids: Vec<_> = log.events().into_iter().map(|event| event.event_id).collect();
        ids.sort();
        assert_eq!(ids, ["c-1@s", "m-1"]);
    });
}

#[test]
fn only_the_subjects_asked_for_are_delivered_and_a_source_that_cannot_be_is_refused() {
    with_nats(async |nats| {
        nats.send("other", "garbage", &[]).await;
        nats.order(1).await;
        let subject = |subject: &str| format!("{}.{subject}", nats.name);
        let log = Log::default();
        let one = NatsSource { subjects: vec![subject("orders")], ..nats.source() };
        log.run_until(&one, |_| false, |log| !log.events().is_empty(), Duration::ZERO).await;
        assert_eq!((log.numbers(), log.rejected().len()), (vec![1], 0));

        let refused = async |source: NatsSource| {
            let run = source.run(async |_| Ok(()), async |_, _| Ok(()), std::future::ready(()));
            run.await.expect_err("refused")
        };
        let absent = refused(NatsSource { stream: "absent".to_owned(), ..nats.source() }).await;
        assert_eq!((absent.code(), absent.is_retryable()), ("SF-0702", false), "{absent}");
        let nowhere = NatsSource { url: "nats://127.0.0.1:1".to_owned(), ..nats.source() };
        let nowhere = refused(nowhere).await;
        assert_eq!((nowhere.code(), nowhere.is_retryable()), ("SF-0702", true), "{nowhere}");
        let secure = NatsSource { url: "tls://127.0.0.1:1".to_owned(), ..nats.source() };
        assert_eq!(refused(secure).await.is_retryable(), cfg!(feature = "nats-tls"));
        if !nats.context.client().is_server_compatible(2, 10, 0) {
            let two = vec![subject("orders"), subject("other")];
            let old = refused(NatsSource { subjects: two, ..nats.source() }).await;
            assert!(old.message().contains("2.10"), "{old}");
        }
    });
}
