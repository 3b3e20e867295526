//! The bell: a commit here that makes something ready wakes those who wait there.
//!
//! Invariants: a notification says nothing but "look again", for work or for an end; after a lost
//! connection everybody is woken, and only after LISTEN is in force again, so nothing falls
//! between. Notifications are sent after the commit, on the listener's own connection and for all
//! lanes together: sent inside the commits they would queue these behind one lock of the whole
//! server. Deliberately absent: what or who is meant, and any promise. Polling finds what a lost
//! notification told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio_postgres::{AsyncMessage, Client};

use super::connection::Connector;
use crate::backend::{Backoff, random};
use crate::error::Error;

/// Pulled by our commits, heard by everybody who waits.
#[derive(Default)]
pub(super) struct Bell {
    pulled: Notify,
    /// What the next notification is to say.
    is_ready: AtomicBool,
    has_ended: AtomicBool,
    rung: Notify,
    rung_for_end: Notify,
}

/// What a notification says: something is ready, a run has ended, or both.
const READY: &str = "r";
const ENDED: &str = "e";
const BOTH: &str = "re";

impl Bell {
    /// Asks for a notification to be sent soon.
    pub(super) fn pull(&self, ready: bool, ended: bool) {
        self.is_ready.fetch_or(ready, Ordering::AcqRel);
        self.has_ended.fetch_or(ended, Ordering::AcqRel);
        if ready || ended {
            self.pulled.notify_one();
        }
    }

    fn ring(&self, payload: &str) {
        if payload.contains(READY) {
            self.rung.notify_waiters();
        }
        if payload.contains(ENDED) {
            self.rung_for_end.notify_waiters();
        }
    }

    /// Resolves when the next end of a run is told after this call.
    pub(super) fn end_heard(&self) -> Notified<'_> {
        self.rung_for_end.notified()
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
        bell.ring(BOTH);
        send(&client, bell, channel).await
    };
    let hear = async {
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(note) = message {
                bell.ring(note.payload());
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
    loop {
        bell.pulled.notified().await;
        let ready = bell.is_ready.swap(false, Ordering::AcqRel);
        let payload = match (ready, bell.has_ended.swap(false, Ordering::AcqRel)) {
            (true, true) => BOTH,
            (true, false) => READY,
            (false, true) => ENDED,
            (false, false) => continue,
        };
        let sql = format!("NOTIFY {channel}, '{payload}'");
        client.batch_execute(&sql).await.map_err(super::connection::sorted)?;
        tokio::time::sleep(APART).await;
    }
}
