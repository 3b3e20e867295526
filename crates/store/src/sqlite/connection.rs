//! A SQLite connection: its settings, its schema and its errors.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

use crate::dialect::Dialect;
use crate::error::Error;
use crate::migrate::{self, VERSION, VERSION_TABLE};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Params;
    use crate::statement;

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

    /// Version 1 was this schema without the index by parent, commands and triggers, and
    /// with other keys.
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

    /// The first line of how a statement is carried out.
    fn plan(on: &Connection, name: &'static str, conditions: &str, params: Params<'_>) -> String {
        let rendered = statement::render(Dialect::Sqlite, name, conditions, params);
        let explain = format!("EXPLAIN QUERY PLAN {}", rendered.sql);
        let values = rendered.bind(params);
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

    /// A database of today, but that its keys begin with the workspace, as they once did.
    fn with_keys_of_old() -> Connection {
        let (new, old) = (open_ready(MEMORY).unwrap(), Connection::open_in_memory().unwrap());
        let made =
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type = 'table' DESC";
        let mut made = new.prepare(made).unwrap();
        for sql in made.query_map([], |row| row.get::<_, String>(0)).unwrap() {
            let sql = sql.unwrap().replace("KEY (run_id, workspace", "KEY (workspace, run_id");
            old.execute_batch(&sql).unwrap();
        }
        old
    }

    #[test]
    fn runs_and_records_are_found_by_their_keys_in_databases_made_before_too() {
        let (new, old) = (open_ready(MEMORY).unwrap(), with_keys_of_old());
        let run_ids: Vec<String> = (0..100).map(|n| format!("r{n}")).collect();
        let of = crate::gate::params! {
            workspace: "w", run_id: "r", run_ids: run_ids, worker: "me", epoch: 1i64, from: 0i64,
            limit: 9i64,
        };
        let by_key = [("run_get", "run"), ("run_owned", "run"), ("step_list", "step")];
        for (name, table) in by_key {
            for (on, key) in
                [(&new, "run_id=? AND workspace=?"), (&old, "workspace=? AND run_id=?")]
            {
                let plan = plan(on, name, "", of);
                let wanted = format!("sqlite_autoindex_{table}_1 ({key}");
                assert!(plan.contains(&wanted), "{name}: {plan}");
            }
        }
    }
}
