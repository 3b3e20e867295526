//! A SQLite connection: its settings, its schema and its errors.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::dialect::Dialect;
use crate::error::Error;
use crate::migrate::{self, VERSION, VERSION_TABLE};

/// The place of a database that lives in memory alone.
pub(super) const MEMORY: &str = ":memory:";

/// Opens a database and creates its schema if it has none. Others may be doing the same: switching
/// a new file to its journal is not waited for by SQLite's own timeout, so it is tried again for a
/// while.
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
            Err(Error::Transient(_) | Error::Full(_)) if Instant::now() < give_up => {
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

/// Opens a file that is there already: one that was removed is not made anew.
pub(super) fn open_again(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::default() & !OpenFlags::SQLITE_OPEN_CREATE;
    Connection::open_with_flags(path, flags)
        .map_err(|e| Error::Refused(format!("cannot open the SQLite file {}: {e}", path.display())))
}

/// The settings that the promises rest on, and some for speed. The journal is copied into the file
/// every 4000 pages, not every 1000 as it comes: a full batch of slots has about 1000, and a page
/// that many batches write is copied once. 4000 are still found through one table of its index.
/// Pages are kept up to 24 MiB: more is the system's to keep, and would look like memory of runs.
/// `fullfsync`: on macOS, `fsync` alone leaves what was written in the drive's own memory;
/// elsewhere the setting changes nothing. Plans do not depend on values: otherwise a statement
/// whose values a partial index was compared with is prepared again each time it is used.
pub(super) fn prepare(connection: Connection) -> Result<Connection, Error> {
    connection.busy_timeout(Duration::from_secs(5)).map_err(sorted)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; \
             PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -24576; \
             PRAGMA wal_autocheckpoint = 4000; PRAGMA fullfsync = ON; \
             PRAGMA checkpoint_fullfsync = ON;",
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

/// Creates the schema in one transaction; other processes wait at its lock. A schema of this
/// version is only read, so a process can open the store while another one is busy writing.
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
    // The index of the journal is a file of its own, and has an error of its own.
    let cannot_grow =
        |e: &rusqlite::ffi::Error| e.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE;
    if error.sqlite_error().is_some_and(cannot_grow) {
        return Error::Full(text);
    }
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            // Others were at the journal's locks for as long as SQLite tried.
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::SchemaChanged
            | ErrorCode::OperationInterrupted
            | ErrorCode::OutOfMemory
            | ErrorCode::SystemIoFailure,
        ) => Error::Transient(text),
        Some(ErrorCode::DiskFull) => Error::Full(text),
        _ => Error::Refused(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Params;
    use crate::statement;

    /// A commit waits until the drive has it, on macOS as well.
    #[test]
    fn a_connection_waits_for_the_drive_itself() {
        let dir = tempfile::tempdir().unwrap();
        let connection = open_ready(dir.path().join("store.db").to_str().unwrap()).unwrap();
        for (setting, wanted) in [("synchronous", 2), ("fullfsync", 1), ("checkpoint_fullfsync", 1)]
        {
            let query = format!("PRAGMA {setting}");
            let value = connection.query_row(&query, [], |row| row.get::<_, i64>(0)).unwrap();
            assert_eq!(value, wanted, "{setting}");
        }
    }

    /// R83: what passes is somebody else's lock, a lack of room, and a disk that could not be read
    /// or written once.
    #[test]
    fn r083_what_passes_is_tried_again_and_what_does_not_is_final() {
        use rusqlite::ffi;
        let sorts = |code: i32| sorted(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        let passing = [
            (ffi::SQLITE_BUSY, [ffi::SQLITE_BUSY_RECOVERY, ffi::SQLITE_BUSY_SNAPSHOT]),
            (ffi::SQLITE_LOCKED, [ffi::SQLITE_LOCKED_SHAREDCACHE, ffi::SQLITE_PROTOCOL]),
            (ffi::SQLITE_FULL, [ffi::SQLITE_NOMEM, ffi::SQLITE_IOERR_NOMEM]),
            (ffi::SQLITE_IOERR, [ffi::SQLITE_IOERR_READ, ffi::SQLITE_IOERR_WRITE]),
            (ffi::SQLITE_SCHEMA, [ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_LOCK]),
            (ffi::SQLITE_INTERRUPT, [ffi::SQLITE_IOERR_SHMMAP, ffi::SQLITE_IOERR_SHORT_READ]),
        ];
        for code in passing.into_iter().flat_map(|(code, more)| [code, more[0], more[1]]) {
            assert!(sorts(code).is_retryable(), "{code}: {}", sorts(code));
        }
        let lasting = [
            (ffi::SQLITE_CORRUPT, [ffi::SQLITE_CORRUPT_INDEX, ffi::SQLITE_NOTADB]),
            (ffi::SQLITE_READONLY, [ffi::SQLITE_READONLY_ROLLBACK, ffi::SQLITE_PERM]),
            (ffi::SQLITE_CONSTRAINT, [ffi::SQLITE_CONSTRAINT_UNIQUE, ffi::SQLITE_CONSTRAINT_CHECK]),
            (ffi::SQLITE_ERROR, [ffi::SQLITE_INTERNAL, ffi::SQLITE_MISUSE]),
            (ffi::SQLITE_TOOBIG, [ffi::SQLITE_MISMATCH, ffi::SQLITE_RANGE]),
            (ffi::SQLITE_AUTH, [ffi::SQLITE_CANTOPEN, ffi::SQLITE_NOLFS]),
        ];
        for code in lasting.into_iter().flat_map(|(code, more)| [code, more[0], more[1]]) {
            assert!(!sorts(code).is_retryable(), "{code}: {}", sorts(code));
        }
    }

    /// R83: the same for errors as SQLite makes them.
    #[test]
    fn r083_errors_that_sqlite_makes_are_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let open = || {
            let connection = open_ready(path.to_str().unwrap()).unwrap();
            connection.busy_timeout(Duration::ZERO).unwrap();
            connection
        };
        let (one, two) = (open(), open());
        let fails = |on: &Connection, sql: &str| sorted(on.execute_batch(sql).unwrap_err());
        let busy = {
            one.execute_batch("BEGIN IMMEDIATE").unwrap();
            let busy = fails(&two, "BEGIN IMMEDIATE");
            one.execute_batch("ROLLBACK").unwrap();
            busy
        };
        let locked = {
            let mut reading = one.prepare(&format!("SELECT * FROM {VERSION_TABLE}")).unwrap();
            let mut rows = reading.query([]).unwrap();
            assert!(rows.next().unwrap().is_some());
            fails(&one, "DROP TABLE debounce")
        };
        two.query_row("PRAGMA max_page_count = 1", [], |_| Ok(())).unwrap();
        let full = fails(&two, "CREATE TABLE t AS SELECT zeroblob(1048576)");
        let words = [(busy, "locked"), (locked, "table is locked"), (full, "full")];
        for (error, word) in words {
            assert!(error.is_retryable() && error.to_string().contains(word), "{word}: {error}");
        }
        drop((one, two));
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let read_only = Connection::open_with_flags(&path, flags).unwrap();
        let refused = fails(&read_only, "DELETE FROM run");
        drop(read_only);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4096..].fill(0xff);
        std::fs::write(&path, bytes).unwrap();
        let damaged = fails(&Connection::open(&path).unwrap(), "SELECT * FROM run");
        for (error, word) in [(refused, "readonly"), (damaged, "malformed")] {
            assert!(!error.is_retryable() && error.to_string().contains(word), "{word}: {error}");
        }
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
            for (place, value) in rendered.bind(at).unwrap().iter().enumerate() {
                prepared.raw_bind_parameter(place + 1, value).unwrap();
            }
            assert!(prepared.raw_query().next().unwrap().is_none());
            prepared.get_status(rusqlite::StatementStatus::RePrepare)
        };
        assert_eq!(["a", "b", "c"].map(step_list), [0, 0, 0]);
    }

    #[test]
    fn meters_past_their_time_are_found_by_their_index() {
        let connection = open_ready(MEMORY).unwrap();
        let of = crate::gate::params! {
            workspace: "w", now: 9i64, limit: 9i64, first: "cost:", last: "cost;",
        };
        let rendered = statement::render(Dialect::Sqlite, "meter_past", "", of);
        let explain = format!("EXPLAIN QUERY PLAN {}", rendered.sql);
        let values = rendered.bind(of).unwrap();
        let mut statement = connection.prepare(&explain).unwrap();
        let rows = statement.query_map(rusqlite::params_from_iter(&values), |row| row.get(3));
        let plan: Vec<String> = rows.unwrap().collect::<Result<_, _>>().unwrap();
        assert!(plan[0].contains("meters_past (workspace=? AND past_at<?)"), "{plan:?}");
    }

    /// Until 0.1.0 there are no upgrades, so a store of another build is not written to.
    #[test]
    fn a_store_of_another_schema_version_is_refused_and_left_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        for version in [1, VERSION - 1, VERSION + 1] {
            let file = dir.path().join(format!("{version}.db"));
            let file = file.to_str().unwrap();
            let made = open_ready(file).unwrap();
            let age = format!("UPDATE {VERSION_TABLE} SET version = {version}");
            made.execute_batch(&age).unwrap();
            drop(made);
            let before = std::fs::read(file).unwrap();
            let refused = open_ready(file).unwrap_err();
            let wanted = format!("schema version {version}");
            assert!(
                matches!(&refused, Error::Incompatible(why) if why.contains(&wanted)),
                "{refused}"
            );
            assert_eq!(std::fs::read(file).unwrap(), before);
        }
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

    /// The first line of how a statement is carried out.
    fn plan(on: &Connection, name: &'static str, conditions: &str, params: Params<'_>) -> String {
        let rendered = statement::render(Dialect::Sqlite, name, conditions, params);
        let explain = format!("EXPLAIN QUERY PLAN {}", rendered.sql);
        let values = rendered.bind(params).unwrap();
        on.query_row(&explain, rusqlite::params_from_iter(&values), |row| row.get(3)).unwrap()
    }

    /// Not by reading every run of the workspace in the wanted order, which SQLite likes to do.
    #[test]
    fn children_are_found_by_their_index() {
        let connection = open_ready(MEMORY).unwrap();
        let of = crate::gate::params! { workspace: "w", run_id: "p", parent: "p", limit: 9i64 };
        let cancel = plan(&connection, "run_attached_children", "", of);
        assert!(cancel.contains("run_parent"), "{cancel}");
        let list = plan(&connection, "run_list", crate::apply::CHILDREN_OF, of);
        assert!(list.contains("run_parent"), "{list}");
    }

    #[test]
    fn runs_and_records_are_found_by_their_keys() {
        let connection = open_ready(MEMORY).unwrap();
        let run_ids: Vec<String> = (0..100).map(|n| format!("r{n}")).collect();
        let of = crate::gate::params! {
            workspace: "w", run_id: "r", run_ids: run_ids, worker: "me", epoch: 1i64, from: 0i64,
            limit: 9i64,
        };
        for (name, table) in [("run_get", "run"), ("run_owned", "run"), ("step_list", "step")] {
            let plan = plan(&connection, name, "", of);
            let wanted = format!("sqlite_autoindex_{table}_1 (run_id=? AND workspace=?");
            assert!(plan.contains(&wanted), "{name}: {plan}");
        }
    }
}
