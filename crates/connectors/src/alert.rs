//! Alerts to people: PagerDuty's Events API, and messages that Slack and its likes take.
//!
//! Invariants: only what a rule finds is sent; the address of a chat's webhook and the key of a
//! pager are secrets, read anew for each attempt.

use std::path::Path;

use futures::future::BoxFuture;
use reqwest::Client;
use steadfast_core::alert::{Alerts, Notice};
use steadfast_core::error::Result;
use steadfast_core::event::CloudEvent;
use steadfast_core::sink::{Dedup, Delivery, SinkTarget};
use steadfast_core::time::Timestamp;

use crate::post;
use crate::secret::SecretRef;

/// Where PagerDuty takes events.
const PAGERDUTY: &str = "https://events.pagerduty.com/v2/enqueue";

/// Somebody who is told what the rules find.
#[derive(Debug, Clone)]
pub struct Alert {
    client: Client,
    alerts: Alerts,
    channel: Channel,
}

#[derive(Debug, Clone)]
enum Channel {
    PagerDuty { url: String, routing_key: SecretRef },
    Slack { url: SecretRef },
}

impl Alert {
    /// PagerDuty, by the routing key of an integration, which is given by reference.
    pub fn pagerduty(routing_key: &str, alerts: Alerts) -> Result<Self> {
        Self::pagerduty_at(PAGERDUTY, routing_key, alerts)
    }

    /// Something that speaks PagerDuty's Events API, version 2.
    pub fn pagerduty_at(url: &str, routing_key: &str, alerts: Alerts) -> Result<Self> {
        post::address(url)?;
        let routing_key = SecretRef::parse(routing_key)?;
        let channel = Channel::PagerDuty { url: url.to_owned(), routing_key };
        Ok(Self { client: post::client(None)?, alerts, channel })
    }

    /// A chat with an incoming webhook such as Slack's, whose address is given by reference.
    pub fn slack(url: &str, alerts: Alerts) -> Result<Self> {
        let channel = Channel::Slack { url: SecretRef::parse(url)? };
        Ok(Self { client: post::client(None)?, alerts, channel })
    }

    /// Trusts only who is vouched for by an authority of this PEM file, instead of those that the
    /// machine trusts.
    pub fn trusting(mut self, pem_file: impl AsRef<Path>) -> Result<Self> {
        self.client = post::client(Some(pem_file.as_ref()))?;
        Ok(self)
    }

    async fn tell(&self, notice: &Notice, event: &CloudEvent, now: Timestamp) -> Result<Delivery> {
        let (url, body) = match &self.channel {
            Channel::PagerDuty { url, routing_key } => {
                (url.clone(), notice.to_pagerduty(routing_key.read()?.reveal(), event))
            }
            Channel::Slack { url } => (url.read()?.reveal().to_owned(), notice.to_slack(event)),
        };
        let (url, body) = (post::address(&url)?, body.to_string());
        let to = post::To { client: &self.client, url: &url, timeout: post::PATIENCE };
        Ok(post::post(to, "application/json", &[], body, now).await)
    }
}

impl SinkTarget for Alert {
    fn kind(&self) -> &'static str {
        match self.channel {
            Channel::PagerDuty { .. } => "pagerduty",
            Channel::Slack { .. } => "slack",
        }
    }

    fn place(&self) -> String {
        match &self.channel {
            Channel::PagerDuty { url, .. } => url.clone(),
            Channel::Slack { url } => url.to_string(),
        }
    }

    fn wants(&self, event: &CloudEvent) -> bool {
        self.alerts.notice(event).is_some()
    }

    fn dedup(&self, event: &CloudEvent) -> Option<Dedup> {
        self.alerts.dedup(event)
    }

    fn send<'a>(&'a self, event: &'a CloudEvent, now: Timestamp) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let Some(notice) = self.alerts.notice(event) else {
                return Delivery::Done;
            };
            let told = self.tell(&notice, event, now).await;
            told.unwrap_or_else(|error| post::again(error, None))
        })
    }
}
