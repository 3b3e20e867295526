//! What a program does in the background: schedules, approvals, commands whose time is up, old
//! events, and sinks.
//!
//! Invariant: each task ends with the program, and is started again after a panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Steadfast;
use crate::client::Client;
use crate::event::Retention;
use crate::flow::publish::Relay;

impl Steadfast {
    /// Ticks until the shutdown: schedules each second, commands whose time is up each fifth, old
    /// events and meters each six-hundredth.
    pub(super) fn keep_ticking(&self) {
        const PAUSE: Duration = Duration::from_secs(1);
        let (client, is_over) = (self.client.clone(), self.is_over());
        let (retention, rounds) = (self.retention, Arc::new(AtomicU64::new(0)));
        self.client.inner.keep("ticks", move || {
            let (client, is_over, rounds) = (client.clone(), is_over.clone(), rounds.clone());
            Box::pin(async move {
                while !is_over() {
                    tick(&client, &retention, rounds.fetch_add(1, Ordering::Relaxed)).await;
                    client.inner.env().sleep(PAUSE).await;
                }
            })
        });
    }

    /// Publishes to one sink until the shutdown, each second. Apart from the other ticks, because a
    /// sink may be slow.
    pub(super) fn keep_publishing(&self, relay: Relay) {
        const PAUSE: Duration = Duration::from_secs(1);
        let (clock, is_over) = (self.client.inner.env().clone(), self.is_over());
        self.client.inner.keep("events", move || {
            let (relay, clock, is_over) = (relay.clone(), clock.clone(), is_over.clone());
            Box::pin(async move {
                while !is_over() {
                    if let Err(error) = relay.tick().await {
                        tracing::error!(%error, "events cannot be published");
                    }
                    clock.sleep(PAUSE).await;
                }
            })
        });
    }
}

/// What is to be done in one round of the ticks.
async fn tick(client: &Client, retention: &Retention, round: u64) {
    if let Err(error) = client.tick().await {
        tracing::error!(%error, "the scheduler cannot tick");
    }
    if round.is_multiple_of(5)
        && let Err(error) = client.settle_approvals().await
    {
        tracing::error!(%error, "approvals cannot be settled");
    }
    if round.is_multiple_of(5)
        && let Err(error) = client.inner.settle_commands(client.inner.now()).await
    {
        tracing::error!(%error, "commands cannot be settled");
    }
    // Not at once: a start has enough to do.
    if round % 600 == 300
        && let Err(error) = client.retain_events(retention).await
    {
        tracing::error!(%error, "old events cannot be removed");
    }
    if round % 600 == 310
        && let Err(error) = client.sweep_meters().await
    {
        tracing::error!(%error, "old meters cannot be removed");
    }
}
