//! Events to NATS JetStream.
//!
//! Invariants: an event has arrived when the stream says that it keeps it; its id is the message's
//! id, so that a stream drops a repetition within its window. Deliberately absent: making streams.

use std::sync::Arc;

use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, HeaderMap};
use futures::future::BoxFuture;
use steadfast_core::error::{Error, ErrorClass, Result};
use steadfast_core::event::CloudEvent;
use steadfast_core::sink::{Delivery, SinkTarget};
use steadfast_core::time::Timestamp;
use tokio::sync::Mutex;

use super::NO_TLS;

/// A JetStream server whose stream takes our subjects.
#[derive(Clone)]
pub struct NatsSink {
    url: String,
    prefix: String,
    /// Connected when first needed; the library keeps it so.
    stream: Arc<Mutex<Option<Context>>>,
}

impl NatsSink {
    /// A server: `nats://host:4222`, or `tls://…` with the feature `nats-tls`. Events go to subjects
    /// like `steadfast.command.created`.
    pub fn new(url: &str) -> Self {
        let (url, prefix) = (url.to_owned(), "steadfast".to_owned());
        Self { url, prefix, stream: Arc::default() }
    }

    /// What subjects begin with instead of `steadfast`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    async fn context(&self) -> Result<Context> {
        let mut kept = self.stream.lock().await;
        if let Some(context) = &*kept {
            return Ok(context.clone());
        }
        if self.url.starts_with("tls:") && !cfg!(feature = "nats-tls") {
            return Err(failed(format!("the server {NO_TLS}")));
        }
        let (url, options) = (self.url.clone(), ConnectOptions::new().name("steadfast events"));
        // Apart: where the server insists on TLS and we have none, the library panics.
        let connected = tokio::spawn(async move { options.connect(url).await }).await;
        let client = connected
            .map_err(|_| failed(format!("the server {NO_TLS}")))?
            .map_err(|error| failed(format!("connecting to the server: {error}")))?;
        let context = jetstream::new(client);
        *kept = Some(context.clone());
        Ok(context)
    }

    async fn publish(&self, event: &CloudEvent) -> Result<()> {
        let context = self.context().await?;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", event.id.as_str());
        headers.insert("content-type", "application/cloudevents+json");
        let subject = format!("{}.{}", self.prefix, event.short_type());
        let body = event.to_json().to_string();
        let sent = context.publish_with_headers(subject, headers, body.into()).await;
        let kept = sent.map_err(|error| failed(format!("sending: {error}")))?;
        kept.await.map_err(|error| failed(format!("no stream keeps it: {error}")))?;
        Ok(())
    }
}

impl SinkTarget for NatsSink {
    fn kind(&self) -> &'static str {
        "nats"
    }

    fn place(&self) -> String {
        // Without a password.
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("nats", &self.url));
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        format!("{scheme}://{host}/{}.>", self.prefix)
    }

    fn send<'a>(&'a self, event: &'a CloudEvent, _now: Timestamp) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            match self.publish(event).await {
                Ok(()) => Delivery::Done,
                Err(error) => Delivery::Again { error, after: None },
            }
        })
    }
}

fn failed(text: String) -> Error {
    Error::new(ErrorClass::TransientConnectorError, "SF-0905", format!("NATS: {text}"))
}
