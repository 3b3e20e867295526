//! Notifications on MySQL and MariaDB, which have none: a row with two counters, which processes
//! raise after their commits and read while a caller waits.
//!
//! Invariants: nothing here takes a lock of the whole server; reading takes no lock at all. The
//! counters are raised in commits of their own, after the commits that they announce, so that no
//! other transaction waits for the row. A process that finds no other listener raises nothing. The
//! server's clock decides which listeners are gone. Callers that share this store are woken without
//! the server. A raised counter that is read too late loses nothing: polling finds the work.
//! Deliberately absent: `KILL QUERY` and the process list, which stop every new connection of the
//! server meanwhile (decision 6).

use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::sync::{Mutex, Notify};

use super::connection::{Connector, sorted};
use crate::backend::{Backoff, random};
use crate::bell::{Bell, News, Pauses, Ring};
use crate::error::Error;

/// The table of the counters: one row for the database.
pub(super) const NOTICE: &str = "steadfast_notice";
pub(super) const NOTICE_COLUMNS: &str =
    "notice_id INT NOT NULL PRIMARY KEY, ready BIGINT NOT NULL, ended BIGINT NOT NULL";
/// The table of the processes that read them, until when they count as present.
pub(super) const LISTENER: &str = "steadfast_listener";
pub(super) const LISTENER_COLUMNS: &str =
    "listener_id BIGINT NOT NULL PRIMARY KEY, until_at BIGINT NOT NULL";

const READ: &str = "SELECT ready, ended FROM steadfast_notice WHERE notice_id = 1";
/// Writes nothing, and so waits for no disk, where no other process listens.
const RAISE: &str = "INSERT INTO steadfast_notice (notice_id, ready, ended) \
    SELECT 1, ?, ? FROM DUAL WHERE EXISTS (SELECT 1 FROM steadfast_listener \
        WHERE listener_id <> ? AND until_at > UNIX_TIMESTAMP()) \
    ON DUPLICATE KEY UPDATE ready = ready + ?, ended = ended + ?";
const JOIN: &str = "INSERT INTO steadfast_listener (listener_id, until_at) \
    VALUES (?, UNIX_TIMESTAMP() + ?) ON DUPLICATE KEY UPDATE until_at = UNIX_TIMESTAMP() + ?";
const SWEEP: &str = "DELETE FROM steadfast_listener WHERE until_at <= UNIX_TIMESTAMP()";

/// How long a listener counts as present after it has said so, in seconds.
const PRESENT: u32 = 60;
/// How often it says so.
const REFRESH: Duration = Duration::from_secs(20);
/// The longest between two raises while there is always more to tell: each is a commit.
const FAR_APART: Duration = Duration::from_millis(64);
/// How long a process that found no other listener does not look for one.
const ALONE: Duration = Duration::from_millis(500);

/// Raises and reads for as long as the store is open.
pub(super) async fn ring(connector: Arc<Connector>, bell: Arc<Bell>) {
    let (others, mut backoff) = (Bell::default(), Backoff::new());
    let attend = async {
        loop {
            if let Err(error) = attend(&connector, &bell, &others, &mut backoff).await {
                tracing::debug!(%error, "no notifications for now");
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
    backoff: &mut Backoff,
) -> Result<(), Error> {
    let conn = Mutex::new(connector.connect_set().await?);
    *backoff = Backoff::new();
    let ear = Ear { conn, bell, others, told: Notify::new(), id: identity() };
    ear.join().await?;
    tokio::select! {
        ended = ear.listen() => ended,
        ended = ear.tell() => ended,
        ended = ear.stay() => ended,
    }
}

/// A listener's name among others: 53 random bits.
fn identity() -> i64 {
    #[allow(clippy::cast_possible_truncation, reason = "below 2^53")]
    let id = (random() * (1u64 << 53) as f64) as i64;
    id
}

struct Ear<'a> {
    conn: Mutex<Conn>,
    bell: &'a Bell,
    /// Pulled for those who do not share this store.
    others: &'a Bell,
    /// This process has told something, so that an answer may follow soon.
    told: Notify,
    id: i64,
}

impl Ear<'_> {
    async fn join(&self) -> Result<(), Error> {
        let mut conn = self.conn.lock().await;
        conn.exec_drop(JOIN, (self.id, PRESENT, PRESENT)).await.map_err(sorted)
    }

    /// Stays present, and removes the listeners that are gone.
    async fn stay(&self) -> Result<(), Error> {
        loop {
            tokio::time::sleep(REFRESH).await;
            self.join().await?;
            self.conn.lock().await.query_drop(SWEEP).await.map_err(sorted)?;
        }
    }

    /// Reads the counters while a caller waits, and wakes the callers when they have changed.
    async fn listen(&self) -> Result<(), Error> {
        let (mut known, mut pace) = (None, Pace::new());
        loop {
            self.bell.awaited().await;
            let found: Option<(i64, i64)> =
                self.conn.lock().await.exec_first(READ, ()).await.map_err(sorted)?;
            let found = found.unwrap_or_default();
            // Before the first look anything may have happened.
            let ring = known.map_or(Ring::ALL, |(ready, ended)| Ring {
                ready: ready != found.0,
                ended: ended != found.1,
            });
            known = Some(found);
            self.bell.ring(ring);
            tokio::select! {
                () = tokio::time::sleep(pace.after(ring.ready || ring.ended)) => {}
                () = self.told.notified() => pace = Pace::new(),
            }
        }
    }

    /// Tells others of all commits since the last time, once.
    async fn tell(&self) -> Result<(), Error> {
        let (mut pauses, mut alone) = (Pauses::up_to(FAR_APART), None::<Instant>);
        loop {
            let news = self.others.pulled().await;
            self.told.notify_one();
            if alone.is_none_or(|since| since.elapsed() > ALONE) {
                alone = (!self.raise(news).await?).then(Instant::now);
            }
            pauses.pause(self.others).await;
        }
    }

    /// Whether others listen.
    async fn raise(&self, news: News) -> Result<bool, Error> {
        let News { ready, ended } = news;
        let mut conn = self.conn.lock().await;
        let done = conn.exec_iter(RAISE, (ready, ended, self.id, ready, ended)).await;
        let done = done.map_err(sorted)?;
        let raised = done.affected_rows() > 0;
        done.drop_result().await.map_err(sorted)?;
        Ok(raised)
    }
}

/// The time to the next look: short after news, since more may follow, and half as long again after
/// each look that found none. Where every look finds news there is always more, and a look can wait
/// for several.
struct Pace {
    now: Duration,
    busy: Duration,
}

impl Pace {
    const SHORTEST: Duration = Duration::from_millis(2);
    const BUSY: Duration = Duration::from_millis(16);
    const IDLE: Duration = Duration::from_millis(50);

    fn new() -> Self {
        Self { now: Self::SHORTEST, busy: Self::SHORTEST }
    }

    fn after(&mut self, news: bool) -> Duration {
        if news {
            self.now = self.busy;
            self.busy = (self.busy * 2).min(Self::BUSY);
        } else {
            self.busy = Self::SHORTEST;
            self.now = (self.now * 3 / 2).min(Self::IDLE);
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_rare_while_nothing_happens_and_while_everything_does() {
        let mut pace = Pace::new();
        let silence: Vec<_> = (0..10).map(|_| pace.after(false).as_millis()).collect();
        assert_eq!(silence, [3, 4, 6, 10, 15, 22, 34, 50, 50, 50]);
        let news: Vec<_> = (0..5).map(|_| pace.after(true).as_millis()).collect();
        assert_eq!(news, [2, 4, 8, 16, 16]);
        pace.after(false);
        assert_eq!(pace.after(true), Pace::SHORTEST);
    }
}
