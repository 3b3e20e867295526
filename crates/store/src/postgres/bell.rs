//! The bell: a commit here that makes something ready wakes those who wait there.
//!
//! Invariants: a notification says nothing but "look again"; after a lost connection everybody is
//! woken, and only after LISTEN is in force again, so nothing falls between. Notifications are sent
//! after the commit, on the listener's own connection and for all lanes together: sent inside the
//! commits they would queue these behind one lock of the whole server.
//! Deliberately absent: payloads, and any promise. Polling finds what a lost notification told.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_postgres::{AsyncMessage, Client};

use super::connection::Connector;
use crate::backend::{Backoff, random};
use crate::error::Error;

/// Pulled by our commits, heard by everybody who waits.
pub(super) struct Bell {
    pulled: Notify,
    rung: Notify,
}

impl Bell {
    pub(super) fn new() -> Self {
        Self { pulled: Notify::new(), rung: Notify::new() }
    }

    /// Asks for a notification to be sent soon.
    pub(super) fn pull(&self) {
        self.pulled.notify_one();
    }

    /// Resolves at the next notification after this call.
    pub(super) fn heard(&self) -> Notified<'_> {
        self.rung.notified()
    }
}

/// Sends and receives notifications for as long as the store is open.
pub(super) async fn ring(connector: Arc<Connector>, bell: Arc<Bell>, channel: String) {
    let mut backoff = Backoff::new();
    loop {
        match attend(&connector, &bell, &channel, &mut backoff).await {
            Ok(()) => tracing::debug!("the notification connection ended"),
            Err(error) => tracing::debug!(%error, "no notifications for now"),
        }
        tokio::time::sleep(backoff.wait(random())).await;
    }
}

/// One connection's worth of notifications.
async fn attend(
    connector: &Connector,
    bell: &Bell,
    channel: &str,
    backoff: &mut Backoff,
) -> Result<(), Error> {
    let (client, mut connection) = connector.connect_raw().await?;
    let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
    let listen = async {
        // The text is ours: letters and digits only. A hint need not wait for the disk.
        let sql = format!("SET synchronous_commit = off; LISTEN {channel}");
        client.batch_execute(&sql).await.map_err(super::connection::sorted)?;
        *backoff = Backoff::new();
        bell.rung.notify_waiters();
        send(&client, bell, channel).await
    };
    let hear = async {
        while let Some(Ok(message)) = messages.next().await {
            if matches!(message, AsyncMessage::Notification(_)) {
                bell.rung.notify_waiters();
            }
        }
    };
    tokio::select! {
        ended = listen => ended,
        () = hear => Ok(()),
    }
}

/// Sends one notification for all commits since the last one.
async fn send(client: &Client, bell: &Bell, channel: &str) -> Result<(), Error> {
    /// Commits closer together than this share a notification.
    const APART: Duration = Duration::from_millis(2);
    let sql = format!("NOTIFY {channel}");
    loop {
        bell.pulled.notified().await;
        client.batch_execute(&sql).await.map_err(super::connection::sorted)?;
        tokio::time::sleep(APART).await;
    }
}
