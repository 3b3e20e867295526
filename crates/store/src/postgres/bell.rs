//! The bell on Postgres: LISTEN and NOTIFY.
//!
//! Invariants: after a lost connection everybody is woken, and only after LISTEN is in force again,
//! so nothing falls between. Notifications are sent after the commit, on the listener's own
//! connection and for all lanes together: sent inside the commits they would queue these behind one
//! lock of the whole server.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio_postgres::{AsyncMessage, Client};

use super::connection::Connector;
use crate::backend::{Backoff, random};
use crate::bell::{Bell, Ring};
use crate::error::Error;

/// What a notification says: something is ready, a run has ended, or both.
const READY: char = 'r';
const ENDED: char = 'e';

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
        bell.ring(Ring::ALL);
        send(&client, bell, channel).await
    };
    let hear = async {
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(note) = message {
                let says = |what| note.payload().contains(what);
                bell.ring(Ring { ready: says(READY), ended: says(ENDED) });
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
        let Ring { ready, ended } = bell.pulled().await;
        let says = [ready.then_some(READY), ended.then_some(ENDED)];
        let payload: String = says.into_iter().flatten().collect();
        let sql = format!("NOTIFY {channel}, '{payload}'");
        client.batch_execute(&sql).await.map_err(super::connection::sorted)?;
        tokio::time::sleep(APART).await;
    }
}
