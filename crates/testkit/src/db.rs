//! Databases for tests: a fresh one each, gone when dropped.
//!
//! Invariants: a test never shares a database with another test; where a server is named by the
//! environment it is used, and in CI its absence fails the test instead of skipping it.
//! Deliberately absent: starting servers, which is the work of `cargo xtask test`.

use std::future::Future;
use std::path::Path;

use mysql_async::prelude::Queryable as _;
use tempfile::TempDir;

/// Names the Postgres server for tests.
pub const POSTGRES_URL: &str = "STEADFAST_TEST_POSTGRES_URL";
/// Names the MySQL or MariaDB server for tests.
pub const MYSQL_URL: &str = "STEADFAST_TEST_MYSQL_URL";

/// Which family a test database belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DbKind {
    /// A file.
    Sqlite,
    /// A database of a Postgres server.
    Postgres,
    /// A database of a MySQL or MariaDB server.
    Mysql,
}

/// A database of its own.
#[derive(Debug)]
pub struct TestDb {
    /// Where it is, for [`steadfast_store::open`].
    pub url: String,
    home: Home,
}

#[derive(Debug)]
enum Home {
    Folder(#[allow(dead_code, reason = "removes the folder when dropped")] TempDir),
    Server { kind: DbKind, url: String, name: String },
}

impl TestDb {
    /// A SQLite file in a folder of its own.
    pub fn sqlite() -> Self {
        // In memory where possible: these tests are about answers, not about disks.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
        let folder = folder.expect("a folder for the test database");
        let url = format!("sqlite://{}", folder.path().join("test.db").display());
        Self { url, home: Home::Folder(folder) }
    }

    /// A new database on the Postgres server, if there is one.
    pub fn postgres() -> Option<Self> {
        Self::on(DbKind::Postgres, &server(POSTGRES_URL)?)
    }

    /// A new database on the MySQL or MariaDB server, if there is one.
    pub fn mysql() -> Option<Self> {
        Self::on(DbKind::Mysql, &server(MYSQL_URL)?)
    }

    /// One of each kind that can be had here.
    pub fn all() -> Vec<Self> {
        [Some(Self::sqlite()), Self::postgres(), Self::mysql()].into_iter().flatten().collect()
    }

    /// Its family.
    pub fn kind(&self) -> DbKind {
        match &self.home {
            Home::Folder(_) => DbKind::Sqlite,
            Home::Server { kind, .. } => *kind,
        }
    }

    fn on(kind: DbKind, server: &str) -> Option<Self> {
        let name = format!("sf_test_{}", uuid::Uuid::now_v7().simple());
        let create = format!("CREATE DATABASE {name}");
        command(kind, server, &create)
            .unwrap_or_else(|error| panic!("{kind:?}: cannot create a test database: {error}"));
        let home = Home::Server { kind, url: server.to_owned(), name: name.clone() };
        Some(Self { url: with_database(server, &name), home })
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        let Home::Server { kind, url, name } = &self.home else {
            return;
        };
        let drop = match kind {
            DbKind::Postgres => format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
            DbKind::Sqlite | DbKind::Mysql => format!("DROP DATABASE IF EXISTS {name}"),
        };
        // Best effort: a database that stays behind harms nobody.
        let _ = command(*kind, url, &drop);
    }
}

fn server(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    if url.is_none() && std::env::var_os("CI").is_some() {
        panic!("{variable} is not set: in CI every database is tested (use `cargo xtask test`)");
    }
    url
}

/// The same server, another database.
fn with_database(server: &str, name: &str) -> String {
    let (address, options) = match server.split_once('?') {
        Some((address, options)) => (address, format!("?{options}")),
        None => (server, String::new()),
    };
    let (scheme, rest) = address.split_once("://").expect("a server URL has a scheme");
    let host = rest.split('/').next().unwrap_or(rest);
    format!("{scheme}://{host}/{name}{options}")
}

/// Runs one statement on a connection of its own.
pub fn command(kind: DbKind, url: &str, statement: &str) -> Result<(), String> {
    let (url, statement) = (url.to_owned(), statement.to_owned());
    apart(async move {
        match kind {
            DbKind::Sqlite => sqlite_command(&url, &statement),
            DbKind::Postgres => postgres_command(&url, &statement).await,
            DbKind::Mysql => mysql_command(&url, &statement).await,
        }
    })
}

fn sqlite_command(url: &str, statement: &str) -> Result<(), String> {
    let place = url.strip_prefix("sqlite://").unwrap_or(url);
    let connection = rusqlite::Connection::open(place).map_err(|e| e.to_string())?;
    // SQLite checks foreign keys only for connections that ask for it.
    let text = format!("PRAGMA foreign_keys = ON; PRAGMA busy_timeout = 5000; {statement}");
    connection.execute_batch(&text).map_err(|e| e.to_string())
}

async fn postgres_command(url: &str, statement: &str) -> Result<(), String> {
    let text = |error: tokio_postgres::Error| match error.as_db_error() {
        Some(answer) => format!("{}: {}", answer.code().code(), answer.message()),
        None => error.to_string(),
    };
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.map_err(text)?;
    let driver = tokio::spawn(connection);
    let answer = client.batch_execute(statement).await.map_err(text);
    drop(client);
    let _ = driver.await;
    answer
}

async fn mysql_command(url: &str, statement: &str) -> Result<(), String> {
    let url = url.replacen("mariadb://", "mysql://", 1);
    let options = mysql_async::Opts::from_url(&url).map_err(|e| e.to_string())?;
    let mut connection = mysql_async::Conn::new(options).await.map_err(|e| e.to_string())?;
    let answer = connection.query_drop(statement).await.map_err(|e| e.to_string());
    let _ = connection.disconnect().await;
    answer
}

/// Runs a future on a runtime and a thread of its own, so that `Drop` and tests inside a runtime
/// can wait for it.
fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let thread = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime for the test database").block_on(work)
    });
    thread.join().expect("the test database's thread does not panic")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_its_server_and_options() {
        let url = with_database("postgres://me:pw@127.0.0.1:5433/postgres?x=1", "t");
        assert_eq!(url, "postgres://me:pw@127.0.0.1:5433/t?x=1");
        assert_eq!(
            with_database("mysql://root@localhost:3307", "t"),
            "mysql://root@localhost:3307/t"
        );
    }

    #[test]
    fn a_sqlite_database_takes_statements() {
        let db = TestDb::sqlite();
        assert_eq!(db.kind(), DbKind::Sqlite);
        command(db.kind(), &db.url, "CREATE TABLE t (x INTEGER)").unwrap();
        assert!(command(db.kind(), &db.url, "CREATE TABLE t (x INTEGER)").is_err());
    }
}
