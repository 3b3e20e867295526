//! A fresh database for one test, and the turn to use the machine.
//!
//! Invariants: database and files are gone when the test is over, passed or failed; a server that
//! is missing skips the test, except in CI, where it fails; one test runs at a time.

use steadfast_testkit::db::{DbKind, TestDb};

/// Where a test finds its store, and a directory for its other files.
pub(crate) struct Place {
    pub(crate) kind: DbKind,
    pub(crate) url: String,
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    /// The name printed with the figures.
    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            DbKind::Sqlite => "sqlite",
            DbKind::Postgres => "postgres",
            DbKind::Mysql => "mysql",
        }
    }
}

/// Each test uses all the cores there are, and judges times.
pub(crate) static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Runs a test in a fresh place, if there is a server for it.
pub(crate) async fn with(kind: DbKind, test: impl AsyncFnOnce(&Place)) {
    let _turn = TURN.lock().await;
    let dir = tempfile::tempdir().unwrap();
    let server = match kind {
        // A file on the disk, next to the ledger's: here the real thing is meant.
        DbKind::Sqlite => None,
        DbKind::Postgres => TestDb::postgres(),
        DbKind::Mysql => TestDb::mysql(),
    };
    let url = match &server {
        Some(database) => database.url.clone(),
        None if kind == DbKind::Sqlite => {
            format!("sqlite://{}", dir.path().join("store.db").display())
        }
        None => return eprintln!("skipped: there is no server for {kind:?}"),
    };
    test(&Place { kind, url, dir }).await;
}
