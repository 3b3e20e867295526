//! MySQL and MariaDB: the driver's own pool.
//!
//! Invariants: sessions are strict, so that what does not fit is an error and not a cut value; a
//! connection that comes back is reset, and with it whatever an abandoned request left open: its
//! transaction, its locks.

use std::time::Duration;

use mysql_async::consts::ColumnType;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, PoolConstraints, PoolOpts, Row};
use serde_json::{Map, Number, Value};
use steadfast_core::error::Result;

use super::failure;

/// How long a statement waits for a lock, in seconds.
const LOCK_WAIT: u64 = 20;

/// The pool for a URL; nothing is connected to yet.
pub(super) fn pool(
    url: &str,
    password: Option<&str>,
    connections: usize,
    timeout: Duration,
) -> Option<mysql_async::Pool> {
    let url = url.replacen("mariadb://", "mysql://", 1);
    let options = OptsBuilder::from_opts(Opts::from_url(&url).ok()?);
    let constraints = PoolConstraints::new(0, connections.max(1))?;
    let mut options =
        options.pool_opts(PoolOpts::default().with_constraints(constraints)).setup(vec![
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,\
         ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"
                .to_owned(),
            "SET SESSION time_zone = '+00:00'".to_owned(),
            format!(
                "SET SESSION innodb_lock_wait_timeout = {}",
                LOCK_WAIT.min(timeout.as_secs().max(1))
            ),
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
        ]);
    if let Some(password) = password {
        options = options.pass(Some(password));
    }
    Some(mysql_async::Pool::new(options))
}

pub(super) struct Session(pub(super) Conn);

impl Session {
    pub(super) async fn batch(&mut self, sql: &str) -> Result<()> {
        self.0.query_drop(sql).await.map_err(|e| failure::mysql(&e))
    }

    pub(super) async fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64> {
        let bound = values.iter().map(bound).collect::<Vec<_>>();
        self.0.exec_drop(sql, bound).await.map_err(|e| failure::mysql(&e))?;
        Ok(self.0.affected_rows())
    }

    pub(super) async fn query(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> Result<Vec<Map<String, Value>>> {
        let bound = values.iter().map(bound).collect::<Vec<_>>();
        let rows: Vec<Row> = self.0.exec(sql, bound).await.map_err(|e| failure::mysql(&e))?;
        rows.into_iter().map(read).collect()
    }
}

fn bound(value: &Value) -> mysql_async::Value {
    use mysql_async::Value as V;
    match value {
        Value::Null => V::NULL,
        Value::Bool(b) => V::Int(i64::from(*b)),
        Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(n), ..) => V::Int(n),
            (None, Some(n), _) => V::UInt(n),
            (None, None, Some(n)) => V::Double(n),
            (None, None, None) => V::Bytes(n.to_string().into()),
        },
        Value::String(text) => V::Bytes(text.clone().into()),
        Value::Array(_) | Value::Object(_) => V::Bytes(value.to_string().into()),
    }
}

fn read(row: Row) -> Result<Map<String, Value>> {
    let columns = row.columns();
    let pairs = columns.iter().zip(row.unwrap()).map(|(column, value)| {
        let name = column.name_str().into_owned();
        match json(column.column_type(), value) {
            Some(value) => Ok((name, value)),
            None => Err(failure::unfit(format!("column \"{name}\" holds bytes"))),
        }
    });
    pairs.collect()
}

/// A value as JSON, times in the form that Postgres gives them; bytes have none.
fn json(kind: ColumnType, value: mysql_async::Value) -> Option<Value> {
    use mysql_async::Value as V;
    let float = |n: f64| Number::from_f64(n).map_or(Value::Null, Value::Number);
    let part = |us: u32| if us == 0 { String::new() } else { format!(".{us:06}") };
    Some(match value {
        V::NULL => Value::Null,
        V::Int(n) => n.into(),
        V::UInt(n) => n.into(),
        // By its text: 0.1 as a float is another number as a double.
        V::Float(n) => float(n.to_string().parse().ok()?),
        V::Double(n) => float(n),
        V::Date(y, m, d, ..) if kind == ColumnType::MYSQL_TYPE_DATE => {
            format!("{y:04}-{m:02}-{d:02}").into()
        }
        V::Date(y, m, d, h, min, s, us) => {
            format!("{y:04}-{m:02}-{d:02}T{h:02}:{min:02}:{s:02}{}", part(us)).into()
        }
        V::Time(negative, days, h, min, s, us) => {
            let sign = if negative { "-" } else { "" };
            let hours = u64::from(days) * 24 + u64::from(h);
            format!("{sign}{hours:02}:{min:02}:{s:02}{}", part(us)).into()
        }
        V::Bytes(bytes) => {
            let text = String::from_utf8(bytes).ok()?;
            match kind {
                ColumnType::MYSQL_TYPE_DECIMAL | ColumnType::MYSQL_TYPE_NEWDECIMAL => {
                    serde_json::from_str(&text).ok()?
                }
                _ => Value::String(text),
            }
        }
    })
}
