//! One connection to whichever database the URL names, with the four things a plan needs.
//!
//! Invariants: a session that did not end well is not used again; a new password or URL is used
//! from the next request on, since both are read for each.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use steadfast_core::error::{Error, Result};

use super::dialect::Dialect;
use super::{failure, mysql, postgres, sqlite};
use crate::secret::SecretRef;

/// Most connections of one process to one warehouse: their server has other guests too.
const CONNECTIONS: usize = 4;

/// Where the database is, as the settings say it.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// A URL without a password, and perhaps where the password is.
    Plain { url: String, password: Option<SecretRef> },
    /// Where the whole URL is.
    Secret(SecretRef),
}

/// The connections to it.
pub(super) struct Database {
    pub(super) place: Place,
    pub(super) timeout: Duration,
    /// Of the scope's tables, for databases that are one file.
    pub(super) schema: Option<String>,
    open: Mutex<Option<(Target, Pool)>>,
}

/// What the settings came to when they were last read.
#[derive(Clone, PartialEq, Eq)]
struct Target {
    url: String,
    password: Option<String>,
}

#[derive(Clone)]
enum Pool {
    Sqlite(PathBuf, Option<String>),
    Postgres(Arc<postgres::Pool>),
    Mysql(mysql_async::Pool),
}

impl Database {
    pub(super) fn new(place: Place, timeout: Duration, schema: Option<String>) -> Self {
        Self { place, timeout, schema, open: Mutex::default() }
    }

    pub(super) async fn session(&self) -> Result<Session> {
        match self.pool()? {
            Pool::Sqlite(path, schema) => {
                sqlite::Session::open(path, schema, self.timeout).await.map(Session::Sqlite)
            }
            Pool::Postgres(pool) => pool.session().await.map(Session::Postgres),
            Pool::Mysql(pool) => match pool.get_conn().await {
                Ok(connection) => Ok(Session::Mysql(mysql::Session(connection))),
                Err(error) => Err(failure::mysql(&error)),
            },
        }
    }

    fn pool(&self) -> Result<Pool> {
        let target = self.target()?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, pool)) = &*open
            && *of == target
        {
            return Ok(pool.clone());
        }
        let pool = self.pool_for(&target)?;
        *open = Some((target, pool.clone()));
        Ok(pool)
    }

    /// Makes the file of a database that is one; others are left alone.
    pub(super) fn make_file(&self) -> Result<()> {
        let Target { url, .. } = self.target()?;
        let path = (dialect(&url) == Some(Dialect::Sqlite)).then(|| sqlite::path(&url)).flatten();
        match path {
            Some(path) => sqlite::make(&path),
            None => Ok(()),
        }
    }

    fn target(&self) -> Result<Target> {
        match &self.place {
            Place::Plain { url, password } => {
                let password = password.as_ref().map(SecretRef::read).transpose()?;
                let password = password.map(|secret| secret.reveal().to_owned());
                Ok(Target { url: url.clone(), password })
            }
            Place::Secret(place) => {
                Ok(Target { url: place.read()?.reveal().to_owned(), password: None })
            }
        }
    }

    fn pool_for(&self, target: &Target) -> Result<Pool> {
        let (url, password) = (&target.url, target.password.as_deref());
        let pool = match dialect(url) {
            Some(Dialect::Sqlite) => {
                sqlite::path(url).map(|path| Pool::Sqlite(path, self.schema.clone()))
            }
            Some(Dialect::Postgres) => {
                let pool = postgres::Pool::new(url, password, CONNECTIONS, self.timeout);
                pool.map(|pool| Pool::Postgres(Arc::new(pool)))
            }
            Some(Dialect::Mysql) => {
                mysql::pool(url, password, CONNECTIONS, self.timeout).map(Pool::Mysql)
            }
            None => None,
        };
        // The URL is not shown: it may have come from a secret.
        pool.ok_or_else(|| Error::invalid("SF-0710", "the URL names no database that is known"))
    }
}

/// The family that a URL names.
pub(super) fn dialect(url: &str) -> Option<Dialect> {
    match url.split_once("://")?.0 {
        "sqlite" => Some(Dialect::Sqlite),
        "postgres" | "postgresql" => Some(Dialect::Postgres),
        "mysql" | "mariadb" => Some(Dialect::Mysql),
        _ => None,
    }
}

pub(super) enum Session {
    Sqlite(sqlite::Session),
    Postgres(postgres::Session),
    Mysql(mysql::Session),
}

impl Session {
    pub(super) fn dialect(&self) -> Dialect {
        match self {
            Self::Sqlite(_) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
            Self::Mysql(_) => Dialect::Mysql,
        }
    }

    pub(super) async fn begin(&mut self) -> Result<()> {
        match self {
            Self::Sqlite(s) => s.execute("BEGIN IMMEDIATE".into(), vec![]).await.map(drop),
            Self::Postgres(s) => s.batch("BEGIN ISOLATION LEVEL READ COMMITTED").await,
            Self::Mysql(s) => s.batch("START TRANSACTION").await,
        }
    }

    pub(super) async fn commit(&mut self) -> Result<()> {
        self.plain("COMMIT").await
    }

    /// A statement without values.
    pub(super) async fn plain(&mut self, sql: &str) -> Result<()> {
        match self {
            Self::Sqlite(s) => s.execute(sql.into(), vec![]).await.map(drop),
            Self::Postgres(s) => s.batch(sql).await,
            Self::Mysql(s) => s.batch(sql).await,
        }
    }

    /// How many rows a statement touched.
    pub(super) async fn execute(&mut self, sql: String, values: Vec<Value>) -> Result<u64> {
        match self {
            Self::Sqlite(s) => s.execute(sql, values).await,
            Self::Postgres(s) => s.execute(&sql, &values).await,
            Self::Mysql(s) => s.execute(&sql, &values).await,
        }
    }

    /// The rows that a statement finds.
    pub(super) async fn query(
        &mut self,
        sql: String,
        values: Vec<Value>,
    ) -> Result<Vec<Map<String, Value>>> {
        match self {
            Self::Sqlite(s) => s.query(sql, values).await,
            Self::Postgres(s) => s.query(&sql, &values).await,
            Self::Mysql(s) => s.query(&sql, &values).await,
        }
    }

    /// Gives a connection back that is in no transaction.
    pub(super) fn end(self) {
        // The others are given back, or closed, when they are dropped.
        if let Self::Postgres(session) = self {
            session.end();
        }
    }
}
