//! Signed webhooks, as Standard Webhooks has them.
//!
//! Invariants: `webhook-id` is the event's id and stays the same over all attempts, by which a
//! receiver knows a repetition; the signature covers id, time of the attempt and body; the secret
//! is read anew for each attempt.

use std::path::Path;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::{Client, Url};
use standardwebhooks::Webhook as Signer;
use steadfast_core::error::{Error, Result};
use steadfast_core::event::CloudEvent;
use steadfast_core::sink::{Delivery, SinkTarget};
use steadfast_core::time::Timestamp;

use crate::post;
use crate::secret::SecretRef;

/// A receiver of signed events, each one request.
#[derive(Debug, Clone)]
pub struct Webhook {
    client: Client,
    url: Url,
    secrets: Vec<SecretRef>,
    timeout: Duration,
}

impl Webhook {
    /// A receiver at an address. The secret (`whsec_…`) is given by reference: `env:NAME` or
    /// `file:PATH`.
    pub fn new(url: &str, secret: &str) -> Result<Self> {
        let secrets = vec![SecretRef::parse(secret)?];
        let (client, url) = (post::client(None)?, post::address(url)?);
        Ok(Self { client, url, secrets, timeout: post::PATIENCE })
    }

    /// A second secret: while receivers change theirs, requests are signed with both.
    pub fn also_signed_with(mut self, secret: &str) -> Result<Self> {
        self.secrets.push(SecretRef::parse(secret)?);
        Ok(self)
    }

    /// Trusts only who is vouched for by an authority of this PEM file, instead of those that the
    /// machine trusts.
    pub fn trusting(mut self, pem_file: impl AsRef<Path>) -> Result<Self> {
        self.client = post::client(Some(pem_file.as_ref()))?;
        Ok(self)
    }

    /// How long the receiver may take to answer (15 s by default).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn signatures(&self, id: &str, at: i64, body: &str) -> Result<String> {
        let mut signed = Vec::new();
        for secret in &self.secrets {
            let wrong = |_| {
                let text = format!("the secret at {secret} is not a webhook's: whsec_ and base64");
                Error::invalid("SF-0904", text)
            };
            let signer = Signer::new(secret.read()?.reveal()).map_err(wrong)?;
            signed.push(signer.sign(id, at, body.as_bytes()).map_err(wrong)?);
        }
        Ok(signed.join(" "))
    }
}

impl SinkTarget for Webhook {
    fn kind(&self) -> &'static str {
        "webhook"
    }

    fn place(&self) -> String {
        post::shown(&self.url)
    }

    fn send<'a>(&'a self, event: &'a CloudEvent, now: Timestamp) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let (body, at) = (event.to_json().to_string(), now.as_millis() / 1000);
            let signature = match self.signatures(&event.id, at, &body) {
                Ok(signature) => signature,
                Err(error) => return post::again(error, None),
            };
            let headers = [
                ("webhook-id", event.id.clone()),
                ("webhook-timestamp", at.to_string()),
                ("webhook-signature", signature),
            ];
            let kind = "application/cloudevents+json; charset=utf-8";
            let to = post::To { client: &self.client, url: &self.url, timeout: self.timeout };
            post::post(to, kind, &headers, body, now).await
        })
    }
}
