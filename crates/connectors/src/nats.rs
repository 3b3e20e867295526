//! Events from NATS JetStream.
//!
//! Invariants: a message is acknowledged after its event was kept, never before, so that a crash in
//! between means a redelivery with the same event id; a message that is no event is handed over as
//! it is and not asked for again; a message is fetched when somebody has time for it, and while he
//! works the server is told so.
//! Deliberately absent: making streams. How long messages are kept is for their owner to decide.

mod message;
mod sink;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::{self, AckKind, Message};
use async_nats::{Client, ConnectOptions};
use futures::future::{Either, FutureExt, Shared, join_all, select};
use futures::stream::StreamExt;
use steadfast_core::caught::{Code, panicked};
use steadfast_core::error::{Error, ErrorClass, Result};
use steadfast_core::{Envelope, key};

pub use sink::NatsSink;

/// How long one request for a message stays open; after a reconnect it is how long we may wait.
const PULL: Duration = Duration::from_secs(5);
/// The first pause after a failure; it doubles.
const PAUSE: Duration = Duration::from_secs(1);
const NO_TLS: &str = "wants TLS, which the feature `nats-tls` brings";
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// A durable consumer of a JetStream stream.
#[derive(Debug, Clone)]
pub struct NatsSource {
    /// Where the server is: `nats://host:4222`, or `tls://…` with the feature `nats-tls`.
    pub url: String,
    /// The stream, which must exist.
    pub stream: String,
    /// Which of its subjects; none means all. More than one needs a server of version 2.10.
    pub subjects: Vec<String>,
    /// The consumer's name: the server keeps its position under it.
    pub durable: String,
    /// How long the server waits for a sign of life before it delivers a message again.
    pub ack_wait: Duration,
    /// How many events are worked on at a time.
    pub in_flight: usize,
}

/// The user's own work on a message. What panics was not kept.
async fn caught(name: &'static str, work: impl Future<Output = Result<()>>) -> Result<()> {
    let ended = AssertUnwindSafe(work).catch_unwind().await;
    ended.unwrap_or_else(|payload| Err(panicked(Code(name, ""), payload)))
}

impl NatsSource {
    /// A consumer of all subjects of a stream.
    pub fn new(url: &str, stream: &str, durable: &str) -> Self {
        Self {
            url: url.to_owned(),
            stream: stream.to_owned(),
            subjects: Vec::new(),
            durable: durable.to_owned(),
            ack_wait: Duration::from_secs(30),
            in_flight: 16,
        }
    }

    /// Hands every event to `take`, until `stop` resolves; what is being worked on is finished.
    ///
    /// An event that `take` has kept is acknowledged. One that it could not keep comes again later:
    /// after a second at first, after a minute at most. A message that is no event goes to
    /// `reject`, and comes again only if that fails.
    ///
    /// Fails when the consumer cannot be set up at first. Once it was, a lost connection is waited
    /// for.
    pub async fn run<T, Taken, R, Rejected>(
        &self,
        take: T,
        reject: R,
        stop: impl Future<Output = ()>,
    ) -> Result<()>
    where
        T: Fn(Envelope) -> Taken,
        Taken: Future<Output = Result<()>>,
        R: Fn(Vec<u8>, Error) -> Rejected,
        Rejected: Future<Output = Result<()>>,
    {
        let client = self.connect().await?;
        let consumer = self.consumer(&client).await?;
        let handle = |message: Message| {
            let (take, reject) = (&take, &reject);
            async move {
                match message::envelope(&message) {
                    Ok(event) => {
                        let kept = caught("take", async { take(event).await });
                        self.settle(&message, kept, AckKind::Ack).await;
                    }
                    Err(error) => {
                        let payload = message.payload.to_vec();
                        let kept = caught("reject", async { reject(payload, error).await });
                        self.settle(&message, kept, AckKind::Term).await;
                    }
                }
            }
        };
        let stop = stop.shared();
        let lane = |_| self.lane(&client, consumer.clone(), &handle, stop.clone());
        join_all((0..self.in_flight.max(1)).map(lane)).await;
        // The last answers are on their way, and nobody will send them after us.
        client.flush().await.map_err(|error| self.trouble("saying goodbye to", error))
    }

    /// Fetches one message after the other. Whoever fetches only what he has time for never holds
    /// a message that waits.
    async fn lane<Done: Future<Output = ()>>(
        &self,
        client: &Client,
        mut consumer: PullConsumer,
        handle: &impl Fn(Message) -> Done,
        mut stop: Shared<impl Future<Output = ()>>,
    ) {
        let mut failures = 0;
        loop {
            match self.fetch(&consumer, &mut stop).await {
                Fetched::Message(message) => {
                    failures = 0;
                    handle(*message).await;
                }
                Fetched::Nothing => failures = 0,
                Fetched::Failed(error) => {
                    failures += 1;
                    tracing::warn!(stream = self.stream, %error, "cannot fetch from NATS");
                    let pause = pin!(tokio::time::sleep(pause(failures)));
                    select(&mut stop, pause).await;
                    // The consumer may have been deleted meanwhile.
                    if let Ok(again) = self.consumer(client).await {
                        consumer = again;
                    }
                }
                Fetched::Stopped => return,
            }
        }
    }

    async fn fetch(
        &self,
        consumer: &PullConsumer,
        stop: &mut Shared<impl Future<Output = ()>>,
    ) -> Fetched {
        if stop.peek().is_some() {
            return Fetched::Stopped;
        }
        let asked = consumer.batch().max_messages(1).expires(PULL).messages().await;
        let mut messages = match asked {
            Ok(messages) => messages,
            Err(error) => return Fetched::Failed(error.into()),
        };
        match select(messages.next(), stop).await {
            Either::Left((Some(Ok(message)), _)) => Fetched::Message(Box::new(message)),
            Either::Left((Some(Err(error)), _)) => Fetched::Failed(error),
            Either::Left((None, _)) => Fetched::Nothing,
            Either::Right(_) => {
                // What has arrived already goes back at once and not after `ack_wait`.
                if let Some(Some(Ok(message))) = messages.next().now_or_never() {
                    self.answer(&message, AckKind::Nak(None)).await;
                }
                Fetched::Stopped
            }
        }
    }

    /// Waits for the work on a message, and says how it went.
    async fn settle(
        &self,
        message: &Message,
        work: impl Future<Output = Result<()>>,
        success: AckKind,
    ) {
        let mut work = pin!(work);
        loop {
            match tokio::time::timeout(self.ack_wait / 2, &mut work).await {
                Ok(Ok(())) => return self.answer(message, success).await,
                Ok(Err(error)) => {
                    let again = pause(message::deliveries(message));
                    tracing::warn!(stream = self.stream, %error, ?again, "an event was not kept");
                    return self.answer(message, AckKind::Nak(Some(again))).await;
                }
                Err(_) => self.answer(message, AckKind::Progress).await,
            }
        }
    }

    async fn answer(&self, message: &Message, kind: AckKind) {
        // An answer that is lost means a redelivery, which does no harm.
        if let Err(error) = message.ack_with(kind).await {
            tracing::warn!(stream = self.stream, %error, "cannot answer NATS");
        }
    }

    async fn connect(&self) -> Result<Client> {
        // Whoever was first stays: a process must not have two.
        #[cfg(feature = "nats-tls")]
        let _ = async_nats::rustls::crypto::aws_lc_rs::default_provider().install_default();
        if self.url.starts_with("tls:") && !cfg!(feature = "nats-tls") {
            return Err(self.refused(NO_TLS));
        }
        let options = ConnectOptions::new().name(format!("steadfast {}", self.durable));
        let url = self.url.clone();
        // Apart: where the server insists on TLS and we have none, the library panics.
        let connected = tokio::spawn(async move { options.connect(url).await }).await;
        let connected = connected.map_err(|_| self.refused(NO_TLS))?;
        connected.map_err(|error| self.trouble("connecting to", error))
    }

    async fn consumer(&self, client: &Client) -> Result<PullConsumer> {
        key::check("consumer's name", &self.durable)?;
        let mut config = pull::Config {
            durable_name: Some(self.durable.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            ..pull::Config::default()
        };
        match &self.subjects[..] {
            [] => {}
            [subject] => config.filter_subject.clone_from(subject),
            // An older server would not understand, and deliver everything.
            _ if !client.is_server_compatible(2, 10, 0) => {
                return Err(self.refused("takes one subject a consumer before version 2.10"));
            }
            subjects => config.filter_subjects = subjects.to_vec(),
        }
        let stream = jetstream::new(client.clone()).get_stream(&self.stream).await;
        let stream =
            stream.map_err(|error| self.refused(format!("has no such stream: {error}")))?;
        let consumer = stream.create_consumer(config).await;
        consumer.map_err(|error| self.refused(format!("refuses the consumer: {error}")))
    }

    fn refused(&self, why: impl std::fmt::Display) -> Error {
        let message = format!("NATS, stream {}: the server {why}", self.stream);
        Error::new(ErrorClass::PermanentConnectorError, "SF-0702", message)
    }

    fn trouble(&self, doing: &str, error: impl std::fmt::Display) -> Error {
        let message = format!("NATS, stream {}: {doing} the server: {error}", self.stream);
        Error::new(ErrorClass::TransientConnectorError, "SF-0702", message)
    }
}

/// What came of asking for a message.
enum Fetched {
    Message(Box<Message>),
    Nothing,
    Failed(async_nats::Error),
    Stopped,
}

/// How long to wait after so many failures.
fn pause(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(6);
    (PAUSE * 2u32.pow(doublings)).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_a_second_to_a_minute() {
        let seconds: Vec<u64> = (0..9).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(seconds, [1, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }
}
