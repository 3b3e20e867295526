//! A SQLite connection: its settings, its errors, and the gate over it.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, PrepFlags, Statement, ToSql};

use crate::dialect::Dialect;
use crate::error::Error;
use crate::gate::{Bound, Memo, Params, Row, Tx, Value};
use crate::migrate::{self, VERSION, VERSION_TABLE};
use crate::statement::{self, Rendered};
use crate::tally::Counters;

/// The place of a database that lives in memory alone.
pub(super) const MEMORY: &str = ":memory:";

/// Opens a database and brings its schema up to date. Others may be doing the same: switching a new
/// file to its journal is not waited for by SQLite's own timeout, so it is tried again for a while.
pub(super) fn open_ready(place: &str) -> Result<Connection, Error> {
    const PATIENCE: Duration = Duration::from_secs(15);
    let give_up = Instant::now() + PATIENCE;
    loop {
        let opened = match place {
            MEMORY => Connection::open_in_memory().map_err(sorted),
            file => open_file(Path::new(file)),
        };
        let named = |error| in_file(error, place);
        match opened.and_then(|c| prepare(c).and_then(migrate).map_err(named)) {
            Err(Error::Transient(_)) if Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

/// Says which file it was: a file that is no database shows that only when it is first read.
fn in_file(error: Error, place: &str) -> Error {
    match error {
        Error::Refused(why) => Error::Refused(format!("cannot use the SQLite file {place}: {why}")),
        Error::Transient(why) => {
            Error::Transient(format!("cannot use the SQLite file {place} yet: {why}"))
        }
        other => other,
    }
}

pub(super) fn open_file(path: &Path) -> Result<Connection, Error> {
    Connection::open(path)
        .map_err(|e| Error::Refused(format!("cannot open the SQLite file {}: {e}", path.display())))
}

/// The settings that the promises rest on, and some for speed. The journal is copied into the file
/// every 4000 pages, not every 1000 as it comes: a full batch of slots has about 1000, and a page
/// that many batches write is copied once. 4000 are still found through one table of its index.
/// Pages are kept up to 24 MiB: more is the system's to keep, and would look like memory of runs.
/// Plans do not depend on values: otherwise a statement whose values a partial index was compared
/// with is made anew each time it is used.
pub(super) fn prepare(connection: Connection) -> Result<Connection, Error> {
    connection.busy_timeout(Duration::from_secs(5)).map_err(sorted)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; \
             PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -24576; \
             PRAGMA wal_autocheckpoint = 4000;",
        )
        .map_err(sorted)?;
    let stable = DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG;
    connection.set_db_config(stable, true).map_err(sorted)?;
    connection.set_prepared_statement_cache_capacity(256);
    Ok(connection)
}

/// Whether the schema is there and of this program's version.
fn is_current(connection: &Connection) -> Result<bool, Error> {
    let number =
        |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(sorted);
    let there = format!("SELECT COUNT(*) FROM sqlite_master WHERE name = '{VERSION_TABLE}'");
    let version = format!("SELECT COALESCE(MAX(version), 0) FROM {VERSION_TABLE}");
    Ok(number(&there)? == 1 && number(&version)? == VERSION)
}

/// Brings the schema up to date in one transaction; other processes wait at its lock. A schema that
/// is up to date is only read, so a process can open the store while another is busy writing.
pub(super) fn migrate(connection: Connection) -> Result<Connection, Error> {
    if is_current(&connection)? {
        return Ok(connection);
    }
    let run = |sql: &str| connection.execute_batch(sql).map_err(sorted);
    run("BEGIN IMMEDIATE")?;
    let migrated = (|| {
        run(&format!(
            "CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version INTEGER NOT NULL) STRICT"
        ))?;
        let query = format!("SELECT COALESCE(MAX(version), 0) FROM {VERSION_TABLE}");
        let from: i64 = connection.query_row(&query, [], |row| row.get(0)).map_err(sorted)?;
        for ddl in migrate::statements(Dialect::Sqlite, from)? {
            run(&ddl.sql)?;
        }
        if from < VERSION {
            run(&format!("INSERT INTO {VERSION_TABLE} (version) VALUES ({VERSION})"))?;
        }
        Ok(())
    })();
    match migrated {
        Ok(()) => run("COMMIT")?,
        Err(error) => {
            run("ROLLBACK")?;
            return Err(error);
        }
    }
    Ok(connection)
}

/// Sorts a driver error by what to do about it.
pub(super) fn sorted(error: rusqlite::Error) -> Error {
    let text = error.to_string();
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SchemaChanged
            | ErrorCode::OperationInterrupted
            | ErrorCode::DiskFull
            | ErrorCode::OutOfMemory
            | ErrorCode::SystemIoFailure,
        ) => Error::Transient(text),
        _ => Error::Refused(text),
    }
}

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
    /// Set by every statement that changed something or failed; whoever asks resets it.
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
/// Values up to this size may stay with a statement until it is used again.
const SMALL: usize = 4096;

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
        let done = self.batch("COMMIT");
        match (&done, self.disk) {
            (Ok(()), Disk::Runs) => self.runs_ahead |= self.has_written,
            // Who writes nothing does not wait for the disk.
            (Ok(()), Disk::Waits) => self.runs_ahead &= !self.has_written,
            (Err(_), _) => {
                self.is_doubtful = self.runs_ahead;
                self.roll_back();
            }
        }
        done
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
        let mut statement = self.connection.prepare_cached(sql).map_err(sorted)?;
        statement.raw_execute().map_err(sorted)?;
        Ok(())
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

/// Gives a statement its values.
fn bind(statement: &mut Statement<'_>, values: &[Bound<'_>]) -> rusqlite::Result<()> {
    for (place, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(place + 1, value)?;
    }
    Ok(())
}

/// Takes values back that are too large to be kept until the statement is used again.
fn unbind(statement: &mut Statement<'_>, values: &[Bound<'_>]) {
    let size = |value: &Bound<'_>| match value {
        Bound::Text(Some(text)) => text.len(),
        _ => 0,
    };
    if values.iter().map(size).sum::<usize>() > SMALL {
        statement.clear_bindings();
    }
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
        let values = rendered.bind(params);
        let changed = self.with(rendered, |statement| {
            bind(statement, &values)?;
            let changed = statement.raw_execute();
            unbind(statement, &values);
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
        let values = rendered.bind(params);
        self.with(rendered, |statement| {
            bind(statement, &values)?;
            let found = read(statement);
            unbind(statement, &values);
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
    use super::*;

    fn number(connection: &Connection, sql: &str) -> i64 {
        connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_file_that_is_no_database_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notes.txt");
        std::fs::write(&file, "not a database, ".repeat(200)).unwrap();
        let refused = open_ready(file.to_str().unwrap()).unwrap_err();
        assert!(matches!(&refused, Error::Refused(why) if why.contains("notes.txt")), "{refused}");
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 3200, "it is left alone");
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
        assert_eq!(number(&connection, "SELECT SUM(id) FROM one"), 24);
    }

    /// A plan that depended on the values would be made anew for every run that is taken up.
    #[test]
    fn a_statement_is_planned_once_whatever_its_values() {
        let connection = open_ready(MEMORY).unwrap();
        let step_list = |run_id: &str| {
            let at = crate::gate::params! {
                workspace: "w", run_id: run_id, from: 0i64, limit: 10i64,
            };
            let rendered = statement::render(Dialect::Sqlite, "step_list", "", at);
            let mut prepared = connection.prepare_cached(&rendered.sql).unwrap();
            for (place, value) in rendered.bind(at).iter().enumerate() {
                prepared.raw_bind_parameter(place + 1, value).unwrap();
            }
            assert!(prepared.raw_query().next().unwrap().is_none());
            prepared.get_status(rusqlite::StatementStatus::RePrepare)
        };
        assert_eq!(["a", "b", "c"].map(step_list), [0, 0, 0]);
    }

    const NEW_IN_5: &str = "DROP INDEX triggers_kind; \
        ALTER TABLE activity_runs DROP COLUMN scheduled_for; \
        ALTER TABLE activity_runs DROP COLUMN fired_at; \
        ALTER TABLE activity_runs DROP COLUMN window_start; \
        ALTER TABLE activity_runs DROP COLUMN window_end; \
        ALTER TABLE activity_runs DROP COLUMN status; \
        ALTER TABLE activity_runs DROP COLUMN error; \
        ALTER TABLE activity_runs DROP COLUMN finished_at;";

    const NEW_IN_6: &str = "DROP INDEX meters_past; \
        ALTER TABLE meters DROP COLUMN past_at; \
        ALTER TABLE connector_invocations DROP COLUMN cost_units;";

    /// Version 5 looked at every meter to find those past their time.
    #[test]
    fn a_schema_of_version_5_is_brought_up_to_date() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("old.db");
        let file = file.to_str().unwrap();
        let old = open_ready(file).unwrap();
        let age = format!(
            "{NEW_IN_6} INSERT INTO meters VALUES ('w', 'cost:a', 1, 7), ('w', 'cost:b', 1, 0); \
             UPDATE {VERSION_TABLE} SET version = 5"
        );
        old.execute_batch(&age).unwrap();
        drop(old);
        let new = open_ready(file).unwrap();
        assert_eq!(number(&new, &format!("SELECT MAX(version) FROM {VERSION_TABLE}")), VERSION);
        assert_eq!(number(&new, "SELECT SUM(past_at) FROM meters"), 7);
        assert_eq!(number(&new, "SELECT COUNT(cost_units) FROM connector_invocations"), 0);
        let index = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'meters_past'";
        assert_eq!(number(&new, index), 1);
    }

    #[test]
    fn meters_past_their_time_are_found_by_their_index() {
        let connection = open_ready(MEMORY).unwrap();
        let of = crate::gate::params! {
            workspace: "w", now: 9i64, limit: 9i64, first: "cost:", last: "cost;",
        };
        let rendered = statement::render(Dialect::Sqlite, "meter_past", "", of);
        let explain = format!("EXPLAIN QUERY PLAN {}", rendered.sql);
        let values = rendered.bind(of);
        let mut statement = connection.prepare(&explain).unwrap();
        let rows = statement.query_map(rusqlite::params_from_iter(&values), |row| row.get(3));
        let plan: Vec<String> = rows.unwrap().collect::<Result<_, _>>().unwrap();
        assert!(plan[0].contains("meters_past (workspace=? AND past_at<?)"), "{plan:?}");
    }

    const NEW_IN_4: &str = "DROP TABLE domain_effects; DROP TABLE connector_invocations; \
        DROP TABLE approvals; DROP TABLE approval_votes; DROP TABLE meters;";

    /// Version 3 had events without numbers, and no governance.
    #[test]
    fn a_schema_of_version_3_is_brought_up_to_date() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("old.db");
        let file = file.to_str().unwrap();
        let old = open_ready(file).unwrap();
        let triggers: Vec<String> = {
            let sql = "SELECT name FROM sqlite_master WHERE type = 'trigger'";
            let mut statement = old.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| row.get(0)).unwrap();
            rows.collect::<Result<_, _>>().unwrap()
        };
        assert!(!triggers.is_empty(), "events are append only");
        for name in triggers {
            old.execute_batch(&format!("DROP TRIGGER {name}")).unwrap();
        }
        let age = format!(
            "DROP INDEX domain_events_seq; DROP INDEX domain_events_unsealed; \
             ALTER TABLE domain_events DROP COLUMN seq; \
             ALTER TABLE domain_events DROP COLUMN hash; \
             DROP TABLE event_chain; DROP TABLE event_tombstones; DROP TABLE event_sinks; \
             DROP TABLE event_parked; DROP TABLE event_marks; {NEW_IN_4} {NEW_IN_5} \
             INSERT INTO domain_events VALUES ('w', 'e', '', 'event', 't', '{{}}', 'a', '', 1); \
             UPDATE {VERSION_TABLE} SET version = 3"
        );
        old.execute_batch(&age).unwrap();
        drop(old);
        let new = open_ready(file).unwrap();
        assert_eq!(number(&new, "SELECT COUNT(*) FROM domain_events WHERE seq IS NULL"), 1);
        assert_eq!(number(&new, "SELECT COUNT(*) FROM approvals"), 0);
        assert_eq!(number(&new, "SELECT COUNT(finished_at) FROM activity_runs"), 0);
        assert!(new.execute_batch("DELETE FROM domain_events").is_err(), "append only again");
    }

    /// Version 1 was this schema without the index by parent, commands and triggers.
    #[test]
    fn a_schema_of_version_1_is_brought_up_to_date() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("old.db");
        let file = file.to_str().unwrap();
        let old = open_ready(file).unwrap();
        let age = format!(
            "DROP INDEX run_parent; ALTER TABLE run DROP COLUMN context; \
             DROP TABLE commands; DROP TABLE command_dependencies; DROP TABLE command_duplicates; \
             DROP TABLE domain_events; DROP TABLE triggers; DROP TABLE trigger_slots; \
             DROP TABLE activity_runs; DROP TABLE task_instances; DROP TABLE event_chain; \
             DROP TABLE event_tombstones; DROP TABLE event_sinks; DROP TABLE event_parked; \
             DROP TABLE event_marks; {NEW_IN_4} \
             UPDATE {VERSION_TABLE} SET version = 1"
        );
        old.execute_batch(&age).unwrap();
        drop(old);
        let new = open_ready(file).unwrap();
        assert_eq!(number(&new, &format!("SELECT MAX(version) FROM {VERSION_TABLE}")), VERSION);
        let index = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'run_parent'";
        assert_eq!(number(&new, index), 1);
        assert_eq!(number(&new, "SELECT COUNT(context) FROM run"), 0);
        assert_eq!(number(&new, "SELECT COUNT(*) FROM trigger_slots"), 0);
    }

    /// As SQLite does for a list of more than two, anew for every statement that writes.
    #[test]
    fn a_write_is_checked_without_making_a_tree() {
        let connection = open_ready(MEMORY).unwrap();
        let texts = |sql: &str, column: usize| -> Vec<String> {
            let mut statement = connection.prepare(sql).unwrap();
            let rows = statement.query_map([], |row| row.get(column)).unwrap();
            rows.collect::<Result<_, _>>().unwrap()
        };
        for table in texts("SELECT name FROM sqlite_master WHERE type = 'table'", 0) {
            let opcodes = texts(&format!("EXPLAIN INSERT INTO {table} DEFAULT VALUES"), 1);
            assert!(!opcodes.iter().any(|code| code == "OpenEphemeral"), "{table}");
        }
    }

    /// Not by reading every run of the workspace in the wanted order, which SQLite likes to do.
    #[test]
    fn children_are_found_by_their_index() {
        let connection = open_ready(MEMORY).unwrap();
        let plan = |name, conditions: &str, params: Params<'_>| {
            let rendered = statement::render(Dialect::Sqlite, name, conditions, params);
            let explain = format!("EXPLAIN QUERY PLAN {}", rendered.sql);
            let values = rendered.bind(params);
            connection
                .query_row(&explain, rusqlite::params_from_iter(&values), |row| row.get(3))
                .unwrap()
        };
        let of = crate::gate::params! { workspace: "w", run_id: "p", parent: "p", limit: 9i64 };
        let cancel: String = plan("run_attached_children", "", of);
        assert!(cancel.contains("run_parent"), "{cancel}");
        let list: String = plan("run_list", crate::apply::CHILDREN_OF, of);
        assert!(list.contains("run_parent"), "{list}");
    }
}
