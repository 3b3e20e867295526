//! Creating the schema where DDL commits by itself.
//!
//! Invariants: one process creates it at a time, by a lock of the server; a statement is skipped if
//! what it creates exists, so an interrupted creation continues where it stopped; the version
//! is written last. Deliberately absent: servers without SKIP LOCKED, which are refused.

use super::bell;
use super::connection::MySession;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::migrate::{self, Ddl, VERSION, VERSION_TABLE};

/// How long to wait for another process's migration, in seconds.
const PATIENCE: u32 = 120;

/// The lock's name: locks belong to the server, so it says which database is meant.
const LOCK: &str = "CONCAT('steadfast_migrate_', SHA1(DATABASE()))";

pub(super) async fn migrate(session: &mut MySession) -> Result<(), Error> {
    check_version(session).await?;
    if session.number(&format!("SELECT GET_LOCK({LOCK}, {PATIENCE})")).await? != Some(1) {
        let why = "another process has been migrating the database for minutes";
        return Err(Error::Transient(why.to_owned()));
    }
    let migrated = migrate_locked(session).await;
    session.number(&format!("SELECT RELEASE_LOCK({LOCK})")).await?;
    migrated
}

async fn check_version(session: &mut MySession) -> Result<(), Error> {
    let (major, minor, patch) = session.conn.server_version();
    let is_mariadb =
        session.number("SELECT VERSION() LIKE '%MariaDB%'").await?.is_some_and(|yes| yes == 1);
    let least = if is_mariadb { (10, 6) } else { (8, 0) };
    if (major, minor) < least {
        let name = if is_mariadb { "MariaDB" } else { "MySQL" };
        return Err(Error::Incompatible(format!(
            "the server is {name} {major}.{minor}.{patch}; at least {}.{} is needed",
            least.0, least.1
        )));
    }
    Ok(())
}

async fn migrate_locked(session: &mut MySession) -> Result<(), Error> {
    let create = format!("CREATE TABLE {VERSION_TABLE} (version BIGINT NOT NULL) ENGINE=InnoDB");
    let table = Ddl { creates: VERSION_TABLE.to_owned(), sql: create };
    run(session, &table).await?;
    for (name, columns) in
        [(bell::NOTICE, bell::NOTICE_COLUMNS), (bell::LISTENER, bell::LISTENER_COLUMNS)]
    {
        let sql = format!("CREATE TABLE {name} ({columns}) ENGINE=InnoDB");
        run(session, &Ddl { creates: name.to_owned(), sql }).await?;
    }
    let newest = format!("SELECT COALESCE(MAX(version), 0) FROM {VERSION_TABLE}");
    let from = session.number(&newest).await?.unwrap_or(0);
    for ddl in migrate::statements(Dialect::Mysql, from)? {
        run(session, &ddl).await?;
    }
    if from < VERSION {
        session.batch(&format!("INSERT INTO {VERSION_TABLE} (version) VALUES ({VERSION})")).await?;
    }
    Ok(())
}

/// Runs a statement, unless what it creates is there.
async fn run(session: &mut MySession, ddl: &Ddl) -> Result<(), Error> {
    // The names are ours: letters and underscores.
    let exists = format!(
        "SELECT (SELECT COUNT(*) FROM information_schema.tables \
            WHERE table_schema = DATABASE() AND table_name = '{name}') \
         + (SELECT COUNT(*) FROM information_schema.statistics \
            WHERE table_schema = DATABASE() AND index_name = '{name}') \
         + (SELECT COUNT(*) FROM information_schema.triggers \
            WHERE trigger_schema = DATABASE() AND trigger_name = '{name}')",
        name = ddl.creates
    );
    if session.number(&exists).await?.unwrap_or(0) > 0 {
        return Ok(());
    }
    match session.batch(&ddl.sql).await {
        // Many hosts let nobody but themselves make triggers. The chain of events still shows what
        // a trigger would have prevented.
        Err(error) if ddl.sql.starts_with("CREATE TRIGGER") && is_forbidden(&error) => {
            tracing::warn!(%error, "the database does not guard its events: no trigger was made");
            Ok(())
        }
        done => done,
    }
}

/// Whether the user lacks a privilege: TRIGGER, or SUPER while the binary log is on.
fn is_forbidden(error: &Error) -> bool {
    const NUMBERS: [u16; 4] = [1044, 1142, 1227, 1419];
    let is = |text: &str| NUMBERS.iter().any(|n| text.contains(&format!("(error {n})")));
    matches!(error, Error::Refused(text) if is(text))
}
