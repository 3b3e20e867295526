//! The bell on Postgres: LISTEN and NOTIFY.
//!
//! Invariants: after a lost connection everybody is woken, and only after LISTEN is in force again,
//! so nothing falls between. Notifications are sent after the commit, on the listener's own
//! connection and for all lanes together: sent inside the commits they would queue these behind one
//! lock of the whole server. Who listens holds a shared lock, so that one who is alone can know it
//! and spare the server; one who comes says so, and is told to look at what it may have missed.
//! Those who share this store are told without the server.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio_postgres::{AsyncMessage, Client};

use super::connection::sorted;
use super::connector::Connector;
use crate::backend::{Backoff, random};
use crate::bell::{Bell, News, Pauses, Ring};
use crate::error::Error;

/// What a notification says: something is ready, a run has ended, both, or that somebody has come.
const READY: char = 'r';
const ENDED: char = 'e';
const HERE: char = 'h';
/// The lock of all who listen; its second part is the channel.
const LISTENERS: i32 = 0x5EAD_FA57;
/// The longest that others wait for news while there is always more.
const FAR_APART: Duration = Duration::from_millis(16);
/// How often it is looked whether others listen.
const LOOK: Duration = Duration::from_secs(1);

/// Sends and receives notifications for as long as the store is open.
pub(super) async fn ring(connector: Arc<Connector>, bell: Arc<Bell>, channel: String) {
    let (others, mut backoff) = (Bell::default(), Backoff::new());
    let attend = async {
        loop {
            match attend(&connector, &bell, &others, &channel, &mut backoff).await {
                Ok(()) => tracing::debug!("the notification connection ended"),
                Err(error) => tracing::debug!(%error, "no notifications for now"),
            }
            tokio::time::sleep(backoff.wait(random())).await;
        }
    };
    tokio::join!(bell.tell_here(&others), attend);
}

/// One connection's worth of notifications.
async fn attend(
    connector: &Connector,
    bell: &Bell,
    others: &Bell,
    channel: &str,
    backoff: &mut Backoff,
) -> Result<(), Error> {
    let (client, mut connection) = connector.connect_raw().await?;
    let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
    let ear = Ear { client: &client, bell, others, channel, company: Mutex::default() };
    let listen = async {
        ear.listen().await?;
        *backoff = Backoff::new();
        tokio::select! {
            ended = ear.tell() => ended,
            never = ear.look_around() => match never {},
        }
    };
    let hear = async {
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(note) = message {
                ear.hear(note.payload(), note.process_id());
            }
        }
    };
    tokio::select! {
        ended = listen => ended,
        () = hear => Ok(()),
    }
}

/// What is known of others who listen.
#[derive(Default)]
struct Company {
    /// The server's name for our connection.
    me: i32,
    is_alone: bool,
    /// How many have said that they are here.
    came: u64,
}

struct Ear<'a> {
    client: &'a Client,
    bell: &'a Bell,
    /// Pulled for those who do not share this store.
    others: &'a Bell,
    channel: &'a str,
    company: Mutex<Company>,
}

impl Ear<'_> {
    fn company(&self) -> MutexGuard<'_, Company> {
        self.company.lock().expect("invariant: not poisoned")
    }

    async fn listen(&self) -> Result<(), Error> {
        // The text is ours: letters and digits only. A hint need not wait for the disk.
        let sql = format!(
            "SET synchronous_commit = off; LISTEN {0}; \
             SELECT pg_advisory_lock_shared({LISTENERS}, hashtext('{0}')); NOTIFY {0}, '{HERE}'",
            self.channel
        );
        let row = self.client.query_one("SELECT pg_backend_pid()", &[]).await.map_err(sorted)?;
        self.company().me = row.try_get(0).map_err(sorted)?;
        self.client.batch_execute(&sql).await.map_err(sorted)?;
        self.bell.ring(Ring::ALL);
        Ok(())
    }

    fn hear(&self, payload: &str, from: i32) {
        if from == self.company().me {
            return;
        }
        let says = |what| payload.contains(what);
        self.bell.ring(Ring { ready: says(READY), ended: says(ENDED) });
        if says(HERE) {
            let was_alone = {
                let mut company = self.company();
                company.came += 1;
                std::mem::replace(&mut company.is_alone, false)
            };
            // Who comes back may have told something that was lost with its connection.
            self.bell.ring(Ring::ALL);
            if was_alone {
                // What was not told because nobody was there is told now.
                self.bell.pull(News::ALL);
            }
        }
    }

    /// Tells others of all commits since the last time, once.
    async fn tell(&self) -> Result<(), Error> {
        let mut pauses = Pauses::up_to(FAR_APART);
        loop {
            let ring = self.others.pulled().await.ring();
            let is_alone = self.company().is_alone;
            if !is_alone {
                let says = [ring.ready.then_some(READY), ring.ended.then_some(ENDED)];
                let payload: String = says.into_iter().flatten().collect();
                let sql = format!("NOTIFY {}, '{payload}'", self.channel);
                self.client.batch_execute(&sql).await.map_err(sorted)?;
            }
            pauses.pause(self.others).await;
        }
    }

    /// Finds out whether others listen.
    async fn look_around(&self) -> Infallible {
        let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 \
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
            AND classid::int8 = $1 AND objid::int8 = (hashtext($2)::int8 & 4294967295)";
        let lock = i64::from(LISTENERS);
        loop {
            let came = self.company().came;
            let counted = self.client.query_one(sql, &[&lock, &self.channel]).await;
            // A server that does not say may have others.
            let others = counted.and_then(|row| row.try_get::<_, i64>(0)).map_or(1, |all| all - 1);
            {
                let mut company = self.company();
                // Somebody may have come while the server counted.
                company.is_alone = others < 1 && company.came == came;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
