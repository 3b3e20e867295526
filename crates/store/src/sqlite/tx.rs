//! The gate over a SQLite connection: transactions, statements and their values.
//!
//! Invariants: what is committed without waiting for the disk, here or by another process, is on
//! disk before anything that waits is acknowledged, or the journal begins anew; a cached statement
//! is reset after each use and its values are cleared: they would take the slots that a connection
//! has for small pieces of memory, and every statement would have to ask the system for its own.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, PrepFlags, Statement, ToSql};

use super::connection::sorted;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::gate::{Bound, Memo, Params, Row, Tx, Value};
use crate::statement::{self, Rendered};
use crate::tally::Counters;

/// The value of a future that never waits: over this gate every statement is done when it returns.
pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("invariant: SQLite statements complete at once"),
    }
}

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disk {
    /// Until it is on disk: `synchronous=FULL`.
    Waits,
    /// Nothing. It is on disk with the next that waits, or lost with all that came after it.
    Runs,
}

/// The gate over a connection.
pub(super) struct SqliteTx<'c> {
    connection: &'c Connection,
    counters: Arc<Counters>,
    /// Set by every statement that changed something or failed to; whoever asks resets it.
    pub(super) wrote: bool,
    /// The same, but for claims.
    pub(super) wrote_more: bool,
    /// Whether anything was changed since the transaction began.
    has_written: bool,
    memo: Memo,
    disk: Disk,
    /// Whether something was committed that is perhaps not on disk yet.
    runs_ahead: bool,
    /// Whether a commit failed that should have brought it there.
    is_doubtful: bool,
    /// Statements by the address of their text, which is looked up sooner than the text.
    kept: HashMap<usize, Statement<'c>>,
    keeps: usize,
}

/// Statements that a writer keeps; others are the connection's to keep.
const KEPT: usize = 256;

impl<'c> SqliteTx<'c> {
    pub(super) fn new(connection: &'c Connection, counters: Arc<Counters>) -> Self {
        Self {
            connection,
            counters,
            wrote: false,
            wrote_more: false,
            has_written: false,
            memo: Memo::default(),
            disk: Disk::Waits,
            runs_ahead: false,
            is_doubtful: false,
            kept: HashMap::new(),
            keeps: 0,
        }
    }

    /// For somebody who runs the same statements again and again.
    pub(super) fn keeping(connection: &'c Connection, counters: Arc<Counters>) -> Self {
        Self { keeps: KEPT, ..Self::new(connection, counters) }
    }

    pub(super) fn connection(&self) -> &'c Connection {
        self.connection
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Begins a transaction that may write.
    pub(super) fn begin(&mut self, disk: Disk) -> Result<(), Error> {
        if self.is_doubtful {
            self.begin_journal_anew()?;
        }
        if self.disk != disk {
            // It takes effect when it is prepared, and so is prepared anew each time.
            let level = match disk {
                Disk::Waits => "PRAGMA synchronous = FULL",
                Disk::Runs => "PRAGMA synchronous = NORMAL",
            };
            self.connection.execute_batch(level).map_err(sorted)?;
            self.disk = disk;
        }
        self.memo.clear();
        (self.wrote, self.wrote_more, self.has_written) = (false, false, false);
        self.batch("BEGIN IMMEDIATE")
    }

    /// Ends a transaction, by taking it back if it cannot be committed.
    pub(super) fn commit(&mut self) -> Result<(), Error> {
        let done = self.statement("COMMIT");
        match (&done, self.disk) {
            (Ok(()), Disk::Runs) => self.runs_ahead |= self.has_written,
            // Who writes nothing does not wait for the disk.
            (Ok(()), Disk::Waits) => self.runs_ahead &= !self.has_written,
            (Err(error), _) => {
                self.is_doubtful = doubts(self.runs_ahead, error);
                self.roll_back();
            }
        }
        done.map_err(sorted)
    }

    /// Takes a connection over from a gate that panicked, about which nothing is known any more:
    /// whether it waits for the disk, and whether all that it has committed is there.
    pub(super) fn take_over(&mut self) {
        if !self.is_over() {
            self.roll_back();
        }
        (self.disk, self.is_doubtful) = (Disk::Runs, true);
    }

    /// Lets go of what a panic may have left half done: statements, and what was remembered.
    pub(super) fn after_panic(&mut self) {
        self.kept.clear();
        self.memo.clear();
        self.wrote = true;
    }

    /// Whether no transaction is open any more: out of space or memory, SQLite takes all of it back
    /// with the statement that failed.
    pub(super) fn is_over(&self) -> bool {
        self.connection.is_autocommit()
    }

    pub(super) fn roll_back(&self) {
        // A severe failure may have ended the transaction by itself, and taking it back cannot fail
        // in a worse way.
        let _ = self.batch("ROLLBACK");
    }

    /// Copies the journal into the file and empties it. The system tells once that it could not
    /// write, and then takes what it has for written: what was committed before and had not waited
    /// would be missing under all that follows.
    fn begin_journal_anew(&mut self) -> Result<(), Error> {
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy = self.connection.query_row(checkpoint, [], |row| row.get::<_, bool>(0));
        if is_busy.map_err(sorted)? {
            return Err(Error::Transient("the journal is in use and cannot be emptied".into()));
        }
        (self.is_doubtful, self.runs_ahead) = (false, false);
        Ok(())
    }

    pub(super) fn batch(&self, sql: &str) -> Result<(), Error> {
        self.statement(sql).map_err(sorted)
    }

    fn statement(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.raw_execute().map(drop)
    }

    /// Has a statement run by somebody.
    fn with<T>(
        &mut self,
        rendered: &'static Rendered,
        run: impl FnOnce(&mut Statement<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let address = rendered.sql.as_ptr() as usize;
        if !self.kept.contains_key(&address) {
            if self.kept.len() >= self.keeps {
                let mut statement =
                    self.connection.prepare_cached(&rendered.sql).map_err(sorted)?;
                return run(&mut statement).map_err(sorted);
            }
            let flags = PrepFlags::SQLITE_PREPARE_PERSISTENT;
            let made = self.connection.prepare_with_flags(&rendered.sql, flags).map_err(sorted)?;
            self.kept.insert(address, made);
        }
        let statement = self.kept.get_mut(&address).expect("invariant: it was just kept");
        run(statement).map_err(sorted)
    }
}

/// Whether a commit that failed leaves the journal in doubt: a claim that had not waited may be
/// missing under what follows. The system reports a write that failed once, to the process whose
/// `fsync` comes next, so after a fault of the disk the claim may also be another process's.
fn doubts(runs_ahead: bool, error: &rusqlite::Error) -> bool {
    runs_ahead || error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}

/// Gives a statement its values.
fn bind(statement: &mut Statement<'_>, values: &[Bound<'_>]) -> rusqlite::Result<()> {
    for (place, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(place + 1, value)?;
    }
    Ok(())
}

impl Tx for SqliteTx<'_> {
    fn memo(&mut self) -> Option<&mut Memo> {
        Some(&mut self.memo)
    }

    fn is_near(&self) -> bool {
        true
    }

    async fn execute(&mut self, name: &'static str, params: Params<'_>) -> Result<u64, Error> {
        self.counters.statement();
        let rendered = statement::render(Dialect::Sqlite, name, "", params);
        let values = rendered.bind(params)?;
        let changed = self.with(rendered, |statement| {
            bind(statement, &values)?;
            let changed = statement.raw_execute();
            statement.clear_bindings();
            changed
        });
        // A statement that failed may have written some of its rows.
        if !matches!(changed, Ok(0)) {
            (self.wrote, self.has_written) = (true, true);
            self.wrote_more |= name != "run_claim";
        }
        Ok(changed? as u64)
    }

    async fn query_where(
        &mut self,
        name: &'static str,
        conditions: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        self.counters.statement();
        let rendered = statement::render(Dialect::Sqlite, name, conditions, params);
        let values = rendered.bind(params)?;
        self.with(rendered, |statement| {
            bind(statement, &values)?;
            let found = read(statement);
            statement.clear_bindings();
            found
        })?
    }
}

/// The rows of a statement that has its values.
fn read(statement: &mut Statement<'_>) -> rusqlite::Result<Result<Vec<Row>, Error>> {
    let columns = statement.column_count();
    let (mut rows, mut found) = (statement.raw_query(), Vec::new());
    while let Some(row) = rows.next()? {
        let mut read = Vec::with_capacity(columns);
        for column in 0..columns {
            match value(row.get_ref(column)?) {
                Ok(value) => read.push(value),
                Err(error) => return Ok(Err(error)),
            }
        }
        found.push(Row::new(read));
    }
    Ok(Ok(found))
}

fn value(value: ValueRef<'_>) -> Result<Value<'static>, Error> {
    Ok(match value {
        ValueRef::Null => Value::Text(None),
        ValueRef::Integer(v) => Value::Int(Some(v)),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Value::from(text.to_owned()),
            Err(_) => return Err(Error::Incompatible("a text is not UTF-8".to_owned())),
        },
        ValueRef::Real(_) | ValueRef::Blob(_) => {
            return Err(Error::Incompatible(
                "a column has a type this program never writes".to_owned(),
            ));
        }
    })
}

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Bound::Int(Some(v)) => ValueRef::Integer(*v),
            Bound::Text(Some(v)) => ValueRef::Text(v.as_bytes()),
            Bound::Int(None) | Bound::Text(None) => ValueRef::Null,
            Bound::IntColumn(_) | Bound::TextColumn(_) | Bound::Rows(_) | Bound::Texts(_) => {
                unreachable!("invariant: SQLite is given no columns")
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;
    use crate::sqlite::connection::open_ready;

    /// A process that has claimed nothing finds out first that the disk lost another's claim.
    #[test]
    fn a_fault_of_the_disk_leaves_the_journal_in_doubt_whoever_claimed() {
        let failed =
            |code: i32| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        for code in [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR] {
            assert!(doubts(false, &failed(code)), "{code}");
        }
        for code in [ffi::SQLITE_CONSTRAINT_FOREIGNKEY, ffi::SQLITE_BUSY, ffi::SQLITE_FULL] {
            assert!(!doubts(false, &failed(code)) && doubts(true, &failed(code)), "{code}");
        }
    }

    #[test]
    fn a_connection_that_was_taken_over_waits_for_the_disk_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.db");
        let connection = open_ready(file.to_str().unwrap()).unwrap();
        connection.execute_batch("CREATE TABLE one (id INTEGER PRIMARY KEY)").unwrap();
        let mut lost = SqliteTx::new(&connection, Arc::default());
        lost.begin(Disk::Runs).unwrap();
        lost.batch("INSERT INTO one VALUES (7)").unwrap();
        drop(lost);
        let mut tx = SqliteTx::new(&connection, Arc::default());
        tx.take_over();
        tx.begin(Disk::Waits).unwrap();
        let read = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(read("PRAGMA synchronous"), 2);
        assert_eq!(read("SELECT COUNT(*) FROM one"), 0, "its transaction was taken back");
        let journal = std::fs::metadata(dir.path().join("store.db-wal")).unwrap().len();
        assert_eq!(journal, 0, "what may have run ahead is in the file");
        tx.roll_back();
    }

    /// A disk that refuses once cannot be had in a test; a commit that fails can.
    #[test]
    fn the_journal_begins_anew_after_a_commit_that_failed_if_something_ran_ahead() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.db");
        let connection = open_ready(file.to_str().unwrap()).unwrap();
        let tables = "CREATE TABLE one (id INTEGER PRIMARY KEY); CREATE TABLE other \
                      (id INTEGER REFERENCES one DEFERRABLE INITIALLY DEFERRED);";
        connection.execute_batch(tables).unwrap();
        let journal = || std::fs::metadata(dir.path().join("store.db-wal")).unwrap().len();
        let mut tx = SqliteTx::new(&connection, Arc::default());
        let fail = |tx: &mut SqliteTx<'_>| {
            tx.begin(Disk::Waits).unwrap();
            connection.execute("INSERT INTO other VALUES (1)", []).unwrap();
            assert!(tx.commit().is_err());
        };
        let put = |tx: &mut SqliteTx<'_>, id: i64, disk| {
            tx.begin(disk).unwrap();
            connection.execute("INSERT INTO one VALUES (?1)", [id]).unwrap();
            tx.has_written = true;
            tx.commit().unwrap();
        };
        fail(&mut tx);
        put(&mut tx, 7, Disk::Runs);
        assert!(journal() > 0, "nothing ran ahead of the one that failed");
        fail(&mut tx);
        tx.begin(Disk::Waits).unwrap();
        assert_eq!(journal(), 0);
        tx.roll_back();
        put(&mut tx, 8, Disk::Runs);
        put(&mut tx, 9, Disk::Waits);
        fail(&mut tx);
        tx.begin(Disk::Waits).unwrap();
        assert!(journal() > 0, "the one before has waited for all of it");
        tx.roll_back();
        let sum = connection.query_row("SELECT SUM(id) FROM one", [], |row| row.get::<_, i64>(0));
        assert_eq!(sum.unwrap(), 24);
    }
}
