//! SQLite: a connection of its own for each request, on threads that may block.
//!
//! Invariants: a file is never made by looking for it; where the scope's tables have a schema, the
//! file is attached under that name, so that the same operations work on every database; whoever
//! writes holds the write lock from the beginning, so two writers wait and do not collide.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};
use serde_json::{Map, Number, Value};
use steadfast_core::error::Result;

use super::failure;

/// How long a lock is waited for before the fabric is asked to come again: so long at most, and for
/// half of a request's time. Who was not given the lock has done nothing, which is good to know;
/// who ran out of time may have.
const BUSY: Duration = Duration::from_secs(10);

pub(super) struct Session {
    /// Away while a thread works with it.
    connection: Option<Connection>,
}

impl Session {
    pub(super) async fn open(
        path: PathBuf,
        schema: Option<String>,
        timeout: Duration,
    ) -> Result<Self> {
        let opened = apart(move || open(&path, schema.as_deref(), BUSY.min(timeout / 2))).await?;
        Ok(Self { connection: Some(opened) })
    }

    pub(super) async fn execute(&mut self, sql: String, values: Vec<Value>) -> Result<u64> {
        self.with(move |connection| {
            let mut statement = connection.prepare(&sql)?;
            statement.execute(params_from_iter(values.iter().map(Bound))).map(|n| n as u64)
        })
        .await
    }

    pub(super) async fn query(
        &mut self,
        sql: String,
        values: Vec<Value>,
    ) -> Result<Vec<Map<String, Value>>> {
        let rows = self.with(move |connection| {
            let mut statement = connection.prepare(&sql)?;
            let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let mut rows = statement.query(params_from_iter(values.iter().map(Bound)))?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let values = (0..names.len()).map(|at| row.get_ref(at).map(read));
                let values: Vec<Option<Value>> = values.collect::<rusqlite::Result<_>>()?;
                found.push((names.clone(), values));
            }
            Ok(found)
        });
        rows.await?.into_iter().map(|(names, values)| named(names, values)).collect()
    }

    /// Lends the connection to a thread. If nobody waits for it any more, it is closed there, and
    /// its transaction with it.
    async fn with<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let Some(connection) = self.connection.take() else {
            return Err(failure::passing("an earlier statement was given up"));
        };
        let (connection, answer) = apart(move || {
            let answer = work(&connection).map_err(|e| failure::sqlite(&e));
            Ok((connection, answer))
        })
        .await?;
        self.connection = Some(connection);
        answer
    }
}

async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(failure::passing(error)))
}

fn open(path: &Path, schema: Option<&str>, busy: Duration) -> Result<Connection> {
    if !path.is_file() {
        return Err(failure::lasting(format!("there is no file {}", path.display())));
    }
    let failed = |error: rusqlite::Error| failure::sqlite(&error);
    let Some(schema) = schema else {
        return ready(Connection::open(path), busy).map_err(failed);
    };
    let connection = ready(Connection::open_in_memory(), busy).map_err(failed)?;
    let Some(text) = path.to_str() else {
        return Err(failure::lasting("the file's name is no text"));
    };
    connection.execute(&format!("ATTACH DATABASE ? AS \"{schema}\""), [text]).map_err(failed)?;
    Ok(connection)
}

/// Without its habit of reading the name of a column that is not there as a text.
fn ready(opened: rusqlite::Result<Connection>, busy: Duration) -> rusqlite::Result<Connection> {
    let connection = opened?;
    connection.busy_timeout(busy)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    Ok(connection)
}

/// Makes the file, so that others can open it. Readers do not wait for writers.
pub(super) fn make(path: &Path) -> Result<()> {
    let made = Connection::open(path).and_then(|connection| {
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.close().map_err(|(_, error)| error)
    });
    made.map_err(|error| failure::sqlite(&error))
}

/// Where the file is, if the URL names one.
pub(super) fn path(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite://")?.split('?').next()?;
    (!path.is_empty()).then(|| path.into())
}

struct Bound<'a>(&'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Value::Null => rusqlite::types::Null.into(),
            Value::Bool(b) => i64::from(*b).into(),
            Value::Number(n) => match (n.as_i64(), n.as_f64()) {
                (Some(n), _) => n.into(),
                (None, Some(n)) => n.into(),
                (None, None) => n.to_string().into(),
            },
            Value::String(text) => text.as_str().into(),
            Value::Array(_) | Value::Object(_) => self.0.to_string().into(),
        })
    }
}

/// A value as JSON; bytes have none.
fn read(value: ValueRef<'_>) -> Option<Value> {
    Some(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => n.into(),
        ValueRef::Real(n) => Number::from_f64(n).map_or(Value::Null, Value::Number),
        ValueRef::Text(text) => Value::String(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(_) => return None,
    })
}

fn named(names: Vec<String>, values: Vec<Option<Value>>) -> Result<Map<String, Value>> {
    let pairs = names.into_iter().zip(values).map(|(name, value)| match value {
        Some(value) => Ok((name, value)),
        None => Err(failure::unfit(format!("column \"{name}\" holds bytes"))),
    });
    pairs.collect()
}
