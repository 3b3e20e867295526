//! A MySQL or MariaDB connection: its settings and the gate over it.
//!
//! Invariants: texts travel as bytes, because keys are `VARBINARY`; counts are of changed rows
//! (the driver's `client_found_rows` stays off), which is what tells an insert from a row that was
//! there; a connection whose fault was its own is not used again.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Params as Positional};

use super::fault;
use crate::apply;
use crate::bell::{Bell, News};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::flight;
use crate::gate::{Bound, Memo, Params, Row, Tx, Value};
use crate::op::{Op, Reply};
use crate::session::{Applied, Begin, Connect, Fault, Session};
use crate::statement::{self, Rendered};
use crate::tally::Counters;

/// What every session is set to. Backslashes must escape in texts (`NO_BACKSLASH_ESCAPES` off), as
/// the `ESCAPE` of our LIKE is written that way.
const SETTINGS: &[&str] = &[
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO'",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET NAMES utf8mb4",
    "SET SESSION time_zone = '+00:00', SESSION autocommit = 1",
    "SET SESSION innodb_lock_wait_timeout = 2",
];
/// Prepared statements a connection keeps.
const STATEMENTS: usize = 256;
/// Batches of ends that are looked at first, once some end was one that others are to be told of.
const TOLD: u32 = 64;
/// A server that does not answer a connection in this time is not there.
const CONNECT: Duration = Duration::from_secs(5);

/// How to connect.
pub(super) struct Connector {
    opts: Opts,
    /// Fit for messages.
    url: String,
    place: String,
    bell: Arc<Bell>,
    pub(super) counters: Arc<Counters>,
}

impl Connector {
    pub(super) fn new(url: &str, bell: Arc<Bell>) -> Result<Self, Error> {
        let shown = steadfast_core::redact::address(url);
        let bad = |why: String| Error::Refused(format!("\"{shown}\" is not a MySQL URL: {why}"));
        let plain = match url.strip_prefix("mariadb://") {
            Some(rest) => format!("mysql://{rest}"),
            None => url.to_owned(),
        };
        let opts = Opts::from_url(&plain).map_err(|e| bad(e.to_string()))?;
        if opts.db_name().is_none_or(str::is_empty) {
            return Err(bad("it names no database, as in mysql://user@host/database".to_owned()));
        }
        let place = format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port());
        let opts = OptsBuilder::from_opts(opts)
            .stmt_cache_size(STATEMENTS)
            .tcp_keepalive(Some(Duration::from_secs(30)))
            .client_found_rows(false)
            // A socket would silently stand in for the host that was asked for.
            .prefer_socket(false);
        Ok(Self { opts: opts.into(), url: shown, place, bell, counters: Arc::default() })
    }

    /// A connection as the server gives it.
    async fn connect_raw(&self) -> Result<Conn, Error> {
        let silent = |_| {
            let place = &self.place;
            Error::Transient(format!("no connection to MySQL at {place}: no answer in {CONNECT:?}"))
        };
        let made = tokio::time::timeout(CONNECT, Conn::new(self.opts.clone())).await;
        made.map_err(silent)?.map_err(|error| self.why(&error))
    }

    /// A connection with our settings.
    pub(super) async fn connect_set(&self) -> Result<Conn, Error> {
        let mut conn = self.connect_raw().await?;
        for sql in SETTINGS {
            conn.query_drop(*sql).await.map_err(|error| self.why(&error))?;
        }
        Ok(conn)
    }

    fn why(&self, error: &mysql_async::Error) -> Error {
        let text = fault::text(error);
        match fault::of(error) {
            Fault::Final if fault::is_login(error) => {
                Error::Refused(format!("the login was refused for {}: {text}", self.url))
            }
            Fault::Final => {
                Error::Refused(format!("the database cannot be used for {}: {text}", self.url))
            }
            Fault::Contended | Fault::Down | Fault::Full => {
                Error::Transient(format!("no connection to MySQL at {}: {text}", self.place))
            }
        }
    }
}

impl Connect for Connector {
    type Session = MySession;
    // Its tables are in the order of their keys, and its batches wait for the disk for longer than
    // they are worked on.
    const JOINS_QUEUES: bool = false;

    async fn connect(&self) -> Result<MySession, Error> {
        let conn = self.connect_set().await?;
        let counters = self.counters.clone();
        let memo = Memo::default();
        Ok(MySession { conn, counters, memo, wrote: false, is_down: false, told: 0 })
    }

    fn database(&self) -> (&str, &Arc<Counters>) {
        (&self.url, &self.counters)
    }

    fn announce(&self, news: News) {
        self.bell.pull(news);
    }
}

/// One connection and what is known of it.
pub(super) struct MySession {
    pub(super) conn: Conn,
    counters: Arc<Counters>,
    memo: Memo,
    /// Whether the current operation has changed anything.
    wrote: bool,
    is_down: bool,
    /// How many more batches of ends are not taken for plain.
    told: u32,
}

impl MySession {
    fn sorted(&mut self, error: &mysql_async::Error) -> Error {
        let fault = fault::of(error);
        self.is_down |= fault == Fault::Down;
        fault.error(fault::text(error))
    }

    pub(super) async fn batch(&mut self, sql: &str) -> Result<(), Error> {
        let done = self.conn.query_drop(sql).await;
        done.map_err(|e| self.sorted(&e))
    }

    /// Begins a transaction and carries out ends as plain ones; `None` if they are not, and then
    /// nothing was done.
    async fn end_plain(&mut self, kind: Begin, ops: &[&Op]) -> Result<Option<Vec<Applied>>, Error> {
        let Some(ends) = apply::locked::Ends::of(ops).filter(|_| ops.len() > 1) else {
            return Ok(None);
        };
        if let Some(less) = self.told.checked_sub(1) {
            self.told = less;
            return Ok(None);
        }
        self.begin(kind).await?;
        if let Some(replies) = ends.plainly(self).await? {
            let applied = |reply| Applied { reply, wrote: false };
            return Ok(Some(replies.into_iter().map(applied).collect()));
        }
        self.told = TOLD;
        self.batch("ROLLBACK").await?;
        Ok(None)
    }

    pub(super) async fn number(&mut self, sql: &str) -> Result<Option<i64>, Error> {
        let found: Result<Option<Option<i64>>, _> = self.conn.query_first(sql).await;
        Ok(found.map_err(|e| self.sorted(&e))?.flatten())
    }
}

impl Session for MySession {
    async fn begin(&mut self, kind: Begin) -> Result<(), Error> {
        self.memo.clear();
        self.batch(match kind {
            Begin::Read => "START TRANSACTION READ ONLY",
            // Deadlocks are found at once here; waits for others' long transactions are short for
            // all.
            Begin::Alone | Begin::Crowd => "START TRANSACTION",
        })
        .await
    }

    async fn apply(&mut self, op: &Op) -> Result<Applied, Error> {
        self.wrote = false;
        let reply = apply::apply(self, op).await?;
        Ok(Applied { reply, wrote: self.wrote })
    }

    async fn transact(&mut self, kind: Begin, ops: &[&Op]) -> Result<Vec<Applied>, Error> {
        if let Some(applied) = Box::pin(self.end_plain(kind, ops)).await? {
            return Ok(applied);
        }
        self.begin(kind).await?;
        let mut applied = Vec::with_capacity(ops.len());
        for flight in flight::flights(ops) {
            let replies = match flight {
                [_] => vec![None],
                _ => Box::pin(apply::locked::together(self, flight)).await?,
            };
            for (op, reply) in flight.iter().zip(replies) {
                applied.push(match reply {
                    // What must be taken back has written nothing: it was left open.
                    Some(reply) => Applied { reply, wrote: false },
                    None => self.apply(op).await?,
                });
            }
        }
        Ok(applied)
    }

    async fn at_once(&mut self, op: &Op) -> Result<Option<Reply>, Error> {
        apply::at_once(self, op).await
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), Error> {
        self.batch(sql).await
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    async fn clock(&mut self) -> Result<i64, Error> {
        // SYSDATE is the time of evaluation, NOW that of the statement's begin.
        let sql = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
        let read = self.number(sql).await?;
        read.ok_or_else(|| Error::Incompatible("the server does not tell its time".to_owned()))
    }

    fn is_usable(&self) -> bool {
        !self.is_down && !self.conn.is_disconnected()
    }

    fn give_up(&mut self) {
        self.is_down = true;
    }
}

impl Tx for MySession {
    fn memo(&mut self) -> Option<&mut Memo> {
        Some(&mut self.memo)
    }

    async fn execute(&mut self, name: &'static str, params: Params<'_>) -> Result<u64, Error> {
        self.counters.statement();
        let rendered = statement::render(Dialect::Mysql, name, "", params);
        let values = bound(rendered.bind(params)?);
        let done = execute(&mut self.conn, rendered, values).await;
        let changed = done.map_err(|e| self.sorted(&e))?;
        self.wrote |= changed > 0;
        Ok(changed)
    }

    async fn query_where(
        &mut self,
        name: &'static str,
        conditions: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        self.counters.statement();
        let rendered = statement::render(Dialect::Mysql, name, conditions, params);
        let values = bound(rendered.bind(params)?);
        let found = self.conn.exec(rendered.sql.as_str(), values).await;
        let found: Vec<_> = found.map_err(|e| self.sorted(&e))?;
        found.into_iter().map(row).collect()
    }
}

/// The gate over somebody else's transaction.
pub(super) struct Guest<'a, Q>(pub(super) &'a mut Q);

impl<Q: Queryable> Tx for Guest<'_, Q> {
    async fn execute(&mut self, name: &'static str, params: Params<'_>) -> Result<u64, Error> {
        let rendered = statement::render(Dialect::Mysql, name, "", params);
        let values = bound(rendered.bind(params)?);
        execute(self.0, rendered, values).await.map_err(sorted)
    }

    async fn query_where(
        &mut self,
        name: &'static str,
        conditions: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        let rendered = statement::render(Dialect::Mysql, name, conditions, params);
        let values = bound(rendered.bind(params)?);
        let found: Vec<_> = self.0.exec(rendered.sql.as_str(), values).await.map_err(sorted)?;
        found.into_iter().map(row).collect()
    }
}

/// Sorts an error met before a commit was sent.
pub(super) fn sorted(error: mysql_async::Error) -> Error {
    fault::of(&error).error(fault::text(&error))
}

async fn execute(
    on: &mut impl Queryable,
    rendered: &'static Rendered,
    values: Positional,
) -> Result<u64, mysql_async::Error> {
    let done = on.exec_iter(rendered.sql.as_str(), values).await?;
    let changed = done.affected_rows();
    done.drop_result().await?;
    Ok(changed)
}

fn bound(values: Vec<Bound<'_>>) -> Positional {
    let value = |value| match value {
        Bound::Int(Some(v)) => mysql_async::Value::Int(v),
        Bound::Text(Some(v)) => mysql_async::Value::Bytes(v.into()),
        Bound::Int(None) | Bound::Text(None) => mysql_async::Value::NULL,
        Bound::IntColumn(_) | Bound::TextColumn(_) | Bound::Rows(_) | Bound::Texts(_) => {
            unreachable!("invariant: MySQL is given no columns")
        }
    };
    Positional::Positional(values.into_iter().map(value).collect())
}

fn row(row: mysql_async::Row) -> Result<Row, Error> {
    Ok(Row::new(row.unwrap().into_iter().map(value).collect::<Result<_, _>>()?))
}

fn value(value: mysql_async::Value) -> Result<Value<'static>, Error> {
    use mysql_async::Value as Theirs;
    let wrong = |what: &str| Error::Incompatible(format!("a column holds {what}"));
    match value {
        Theirs::NULL => Ok(Value::Text(None)),
        Theirs::Int(v) => Ok(Value::from(v)),
        Theirs::UInt(v) => {
            i64::try_from(v).map(Value::from).map_err(|_| wrong("a number beyond 63 bits"))
        }
        Theirs::Bytes(bytes) => {
            String::from_utf8(bytes).map(Value::from).map_err(|_| wrong("text that is not UTF-8"))
        }
        Theirs::Float(_) | Theirs::Double(_) | Theirs::Date(..) | Theirs::Time(..) => {
            Err(wrong("a type this program never writes"))
        }
    }
}
