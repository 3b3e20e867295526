//! The watch: hints at commits of other connections and processes on the same file, and whether the
//! file is still there.
//!
//! Invariants: a hint says nothing but "look again"; losing all of them costs only latency. SQLite
//! tells of a change by a counter in memory that all processes share, so asking costs microseconds
//! and no disk. The thread ends with its store.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::Notify;

use super::connection;
use super::file::StoreFile;
use crate::error::Error;
use crate::keep::Keeper;

/// How long a change may go unnoticed: where one was noticed lately, and else.
const EVERY: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(5));
/// What is lately. To look costs microseconds, and a store that nobody uses should cost less.
const LATELY: Duration = Duration::from_secs(1);

/// How often it is looked whether the file is there.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Rung after a change of the file, until the store that holds it is gone.
pub(super) fn spawn(
    path: &Path,
    file: Arc<StoreFile>,
    keeper: Keeper,
) -> Result<Arc<Notify>, Error> {
    let connection = connection::prepare(connection::open_again(path)?)?;
    let bell = Arc::new(Notify::new());
    let heard = Arc::downgrade(&bell);
    keeper.thread(move |keeper| watch(&connection, &file, &heard, keeper))?;
    Ok(bell)
}

fn watch(connection: &Connection, file: &StoreFile, bell: &Weak<Notify>, keeper: &Keeper) {
    let (mut seen, mut seen_at) = (None, Instant::now());
    let mut looked_at = Instant::now();
    loop {
        let is_lately = seen_at.elapsed() < LATELY;
        std::thread::sleep(if is_lately { EVERY.0 } else { EVERY.1 });
        let Some(bell) = bell.upgrade() else {
            return;
        };
        keeper.point();
        if looked_at.elapsed() >= LOOK_EVERY {
            looked_at = Instant::now();
            if !file.is_there() {
                // Again and again: whoever waits for a hint asks then, and gets the error.
                bell.notify_waiters();
                continue;
            }
        }
        let version = connection.prepare_cached("PRAGMA data_version").and_then(|mut pragma| {
            // The counter is read together with the file's state, so there has to be a read.
            pragma.query_row([], |row| row.get::<_, i64>(0))
        });
        if version.as_ref().ok() != seen.as_ref() {
            (seen, seen_at) = (version.ok(), Instant::now());
            bell.notify_waiters();
        }
    }
}
