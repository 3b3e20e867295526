//! A Postgres connection: its statements, and the gate over it.
//!
//! Invariants: every parameter is `int8` or `text` and says so in its statement; a statement is
//! prepared once per connection; a connection whose fault was its own is not used again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use futures::future::{try_join, try_join_all};
use tokio_postgres::types::{IsNull, ToSql, Type, private::BytesMut};
use tokio_postgres::{Client, Statement};

use super::drive::Drive;
use super::ways::Ways;
use super::{fault, rows};
use crate::apply;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::flight;
use crate::gate::{Bound, Memo, Params, Row, Tx, Value};
use crate::migrate::{self, LOCK, VERSION, VERSION_TABLE};
use crate::op::{Op, Reply};
use crate::session::{Applied, Begin, Fault, Session};
use crate::statement;
use crate::tally::Counters;

/// Prepared statements a connection keeps; rare filters come and go.
const STATEMENTS: usize = 512;

/// How a transaction begins.
fn begin(kind: Begin) -> &'static str {
    match kind {
        Begin::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        Begin::Alone => "BEGIN; SET LOCAL lock_timeout = '300ms'",
        Begin::Crowd => "BEGIN",
    }
}

/// The server keeps the plan of a prepared statement as it was when the tables had another size,
/// and a new database begins with none. So a statement is prepared again each time it was used
/// eight times as often as before.
fn is_time_to_plan_again(uses: u64) -> bool {
    uses.is_power_of_two() && uses.trailing_zeros().is_multiple_of(3) && uses > 8
}

/// One connection and what is known of it.
pub(super) struct PgSession {
    pub(super) client: Client,
    /// The other half, where it is not a task of its own.
    drive: Option<Drive>,
    /// By the address of the statement's text, which lives as long as the process; and how often
    /// each was used.
    statements: Mutex<HashMap<usize, (Statement, u64)>>,
    counters: Arc<Counters>,
    is_down: AtomicBool,
    ways: Ways,
    lost: Arc<AtomicI64>,
    /// By how much a claim raises an epoch.
    stride: i64,
}

/// What each lost session adds to the stride of claims: more than the claims that a run ever sees.
const STRIDE: i64 = 1_000_000;

impl Drop for PgSession {
    fn drop(&mut self) {
        if !self.is_usable() {
            self.lost.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl PgSession {
    /// `lost` counts the sessions of this store that were lost. A server that crashes forgets
    /// claims that it had not flushed, and loses every session with them; a claim over a later
    /// session raises the epoch further, so that it never gives the epoch of a forgotten one again.
    pub(super) fn new(
        client: Client,
        drive: Option<Drive>,
        counters: Arc<Counters>,
        lost: Arc<AtomicI64>,
    ) -> Self {
        let stride = 1 + lost.load(Ordering::Acquire).saturating_mul(STRIDE);
        Self {
            client,
            drive,
            statements: Mutex::default(),
            counters,
            is_down: AtomicBool::new(false),
            ways: Ways::default(),
            lost,
            stride,
        }
    }

    /// Does work of this session.
    pub(super) async fn through<T>(&self, work: Pin<&mut impl Future<Output = T>>) -> T {
        match &self.drive {
            Some(drive) => drive.through(work).await,
            None => work.await,
        }
    }

    /// Does work of this session that is one operation's alone.
    async fn hurry<T>(&self, work: Pin<&mut impl Future<Output = T>>) -> T {
        match &self.drive {
            Some(drive) => drive.hurry(work).await,
            None => work.await,
        }
    }

    fn sorted(&self, error: &tokio_postgres::Error) -> Error {
        let fault = fault::of(error);
        if fault == Fault::Down || fault::is_out_of_date(error) {
            self.is_down.store(true, Ordering::Relaxed);
        }
        fault.error(fault::text(error))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<usize, (Statement, u64)>> {
        self.statements.lock().expect("invariant: not poisoned")
    }

    async fn prepared(&self, sql: &'static str) -> Result<Statement, Error> {
        let key = sql.as_ptr() as usize;
        if let Some((known, uses)) = self.known().get_mut(&key) {
            *uses += 1;
            if !is_time_to_plan_again(*uses) {
                return Ok(known.clone());
            }
        }
        let made = self.client.prepare(sql).await.map_err(|e| self.sorted(&e))?;
        let mut known = self.known();
        if known.len() >= STATEMENTS {
            known.clear();
        }
        let uses = known.get(&key).map_or(1, |(_, uses)| *uses);
        known.insert(key, (made.clone(), uses));
        Ok(made)
    }

    async fn batch(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await.map_err(|e| self.sorted(&e))
    }

    async fn number(&self, sql: &str) -> Result<i64, Error> {
        let row = self.client.query_one(sql, &[]).await.map_err(|e| self.sorted(&e))?;
        row.try_get(0).map_err(|e| self.sorted(&e))
    }

    /// How many pages the table of runs has, and had when the server last counted it.
    pub(super) async fn pages_of_runs(&self) -> Result<(i64, i64), Error> {
        let sql = "SELECT pg_relation_size(oid) / current_setting('block_size')::int8, \
            relpages::int8 FROM pg_class WHERE oid = 'run'::regclass";
        let row = self.client.query_one(sql, &[]).await.map_err(|e| self.sorted(&e))?;
        let page = |at| row.try_get(at).map_err(|e| self.sorted(&e));
        Ok((page(0)?, page(1)?))
    }

    /// Has the server count what the tables hold: roughly, from a tenth of the rows that it would
    /// read by itself.
    pub(super) async fn count(&self) -> Result<(), Error> {
        let sql = "BEGIN; SET LOCAL default_statistics_target = 10; ANALYZE run, step; COMMIT";
        self.batch(sql).await
    }

    /// The channel of this database's schema.
    pub(super) async fn channel(&self) -> Result<String, Error> {
        let sql = "SELECT current_database()::text || '.' || COALESCE(current_schema()::text, '')";
        let row = self.client.query_one(sql, &[]).await.map_err(|e| self.sorted(&e))?;
        let name: String = row.try_get(0).map_err(|e| self.sorted(&e))?;
        let digest = steadfast_core::json::fingerprint(&name);
        let short: String = digest.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
        Ok(format!("steadfast_{short}"))
    }

    /// Carries out operations that cannot meet: the simple ones as a few statements for all, the
    /// others side by side.
    async fn flown(&self, flight: &[&Op]) -> Result<Vec<Applied>, Error> {
        let gate = || Host::on(self);
        let replies = match flight {
            [_] => vec![None],
            _ => apply::together(gate, flight).await?,
        };
        let open = flight.iter().zip(&replies).filter(|(_, reply)| reply.is_none());
        let applied = open.map(|(op, _)| self.applied(op).boxed());
        let mut applied = try_join_all(applied).await?.into_iter();
        let flown = replies.into_iter().map(|reply| match reply {
            // What must be taken back has written nothing: it was left open.
            Some(reply) => Some(Applied { reply, wrote: false }),
            None => applied.next(),
        });
        flown.map(|applied| applied.ok_or(Error::Closed)).collect()
    }

    /// Carries out an operation; several may be under way on one session.
    async fn applied(&self, op: &Op) -> Result<Applied, Error> {
        let mut host = Host::on(self);
        let reply = apply::apply(&mut host, op).await?;
        Ok(Applied { reply, wrote: host.wrote })
    }
}

impl Session for PgSession {
    async fn begin(&mut self, kind: Begin) -> Result<(), Error> {
        self.through(pin!(self.batch(begin(kind)))).await
    }

    async fn apply(&mut self, op: &Op) -> Result<Applied, Error> {
        self.through(pin!(self.applied(op).boxed())).await
    }

    async fn at_once(&mut self, op: &Op) -> Result<Option<Reply>, Error> {
        if !self.ways.is_short(op) {
            return Ok(None);
        }
        let session = &*self;
        let mut host = Host::on(session);
        let done = async {
            match apply::at_once(&mut host, op).await? {
                None => apply::move_at_once(&mut host, op).await,
                done => Ok(done),
            }
        };
        let done = match op {
            Op::Dequeue(_) | Op::Wake(_) => session.through(pin!(done)).await,
            _ => session.hurry(pin!(done)).await,
        };
        let done = match done {
            // Nothing was written then, and the long way finds out why.
            Err(Error::Refused(why)) => {
                tracing::debug!(why, op = op.name(), "not at once");
                None
            }
            done => done?,
        };
        if done.is_none() {
            self.ways.missed(op);
        }
        Ok(done)
    }

    async fn all_at_once(&mut self, ops: &[&Op]) -> Result<Vec<Option<Reply>>, Error> {
        let all_open = || vec![None; ops.len()];
        if !self.ways.is_short_for_batches() {
            return Ok(all_open());
        }
        let Some(batch) = apply::Single::of(ops) else { return Ok(all_open()) };
        let session = &*self;
        let mut host = Host::on(session);
        let done = session.through(pin!(batch.write(&mut host).boxed())).await;
        let is_whole = |replies: &Vec<Option<Reply>>| replies.iter().all(Option::is_some);
        if !done.as_ref().is_ok_and(is_whole) {
            self.ways.missed_batch();
        }
        match done {
            // Nothing was written then, and the long way finds out why.
            Err(Error::Refused(why)) => {
                tracing::debug!(why, ops = ops.len(), "not at once");
                Ok(all_open())
            }
            done => done,
        }
    }

    /// Operations that cannot meet share round trips: the driver sends what is ready without
    /// waiting for earlier answers, and the server works it off in that order.
    async fn transact(&mut self, kind: Begin, ops: &[&Op]) -> Result<Vec<Applied>, Error> {
        let session = &*self;
        let apply = async {
            let mut applied = Vec::with_capacity(ops.len());
            for flight in flight::flights(ops) {
                applied.extend(session.flown(flight).await?);
            }
            Ok(applied)
        };
        // Polled in this order, so sent in this order.
        let both = try_join(session.batch(begin(kind)), apply.boxed());
        let (_, applied): (_, Vec<Applied>) = session.through(pin!(both)).await?;
        self.ways.learn(&applied);
        Ok(applied)
    }

    async fn rehearse(&mut self) -> Result<(), Error> {
        let mut host = Host { is_rehearsal: true, ..Host::on(self) };
        let rehearsal = apply::Single::nothing();
        self.through(pin!(rehearsal.write(&mut host).boxed())).await.map(drop)
    }

    async fn run(&mut self, sql: &'static str) -> Result<(), Error> {
        self.through(pin!(self.batch(sql))).await
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    async fn clock(&mut self) -> Result<i64, Error> {
        let sql = "SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::int8";
        self.through(pin!(self.number(sql))).await
    }

    fn is_usable(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed)
            && self.drive.as_ref().is_none_or(Drive::is_open)
            && !self.client.is_closed()
    }

    fn give_up(&mut self) {
        self.is_down.store(true, Ordering::Relaxed);
    }
}

/// Brings the schema up to date in one transaction; other processes wait at its lock.
pub(super) async fn migrate(session: &PgSession) -> Result<(), Error> {
    // An index over many runs takes its time, and so does waiting for another process's.
    session.batch("BEGIN; SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0").await?;
    let migrated = migrate_inside(session).await;
    session.batch(if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
    migrated
}

async fn migrate_inside(session: &PgSession) -> Result<(), Error> {
    session.batch(&format!("SELECT pg_advisory_xact_lock({LOCK})")).await?;
    session
        .batch(&format!("CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version BIGINT NOT NULL)"))
        .await?;
    let from =
        session.number(&format!("SELECT COALESCE(MAX(version), 0) FROM {VERSION_TABLE}")).await?;
    for ddl in migrate::statements(Dialect::Postgres, from)? {
        session.batch(&ddl.sql).await?;
    }
    if from < VERSION {
        session.batch(&format!("INSERT INTO {VERSION_TABLE} (version) VALUES ({VERSION})")).await?;
    }
    Ok(())
}

/// The gate over our own session.
struct Host<'a> {
    session: &'a PgSession,
    wrote: bool,
    /// Whether it is for nobody, and so does not count.
    is_rehearsal: bool,
    memo: Memo,
}

impl<'a> Host<'a> {
    fn on(session: &'a PgSession) -> Self {
        Self { session, wrote: false, is_rehearsal: false, memo: Memo::default() }
    }

    async fn prepared(&self, sql: &'static str) -> Result<Statement, Error> {
        if !self.is_rehearsal {
            self.session.counters.statement();
        }
        self.session.prepared(sql).await
    }
}

impl Tx for Host<'_> {
    fn memo(&mut self) -> Option<&mut Memo> {
        Some(&mut self.memo)
    }

    fn claim_stride(&self) -> i64 {
        self.session.stride
    }

    async fn execute(&mut self, name: &'static str, params: Params<'_>) -> Result<u64, Error> {
        let rendered = statement::render(Dialect::Postgres, name, "", params);
        let values = rendered.bind(params)?;
        let prepared = self.prepared(&rendered.sql).await?;
        let done = self.session.client.execute_raw(&prepared, &values).await;
        let changed = done.map_err(|e| self.session.sorted(&e))?;
        self.wrote |= changed > 0;
        Ok(changed)
    }

    async fn query_where(
        &mut self,
        name: &'static str,
        conditions: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        let rendered = statement::render(Dialect::Postgres, name, conditions, params);
        let values = rendered.bind(params)?;
        let prepared = self.prepared(&rendered.sql).await?;
        let found = self.session.client.query(&prepared, &borrowed(&values)).await;
        found.map_err(|e| self.session.sorted(&e))?.iter().map(row).collect()
    }
}

fn borrowed<'a>(values: &'a [Bound<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

/// Sorts an error met before a commit was sent.
pub(super) fn sorted(error: tokio_postgres::Error) -> Error {
    fault::of(&error).error(fault::text(&error))
}

pub(super) fn row(row: &tokio_postgres::Row) -> Result<Row, Error> {
    let value = |(at, column): (usize, &tokio_postgres::Column)| {
        let wrong = |e: tokio_postgres::Error| Error::Incompatible(fault::text(&e));
        match *column.type_() {
            Type::INT8 => row.try_get(at).map(Value::Int).map_err(wrong),
            Type::INT4 => {
                row.try_get(at).map(|v: Option<i32>| Value::Int(v.map(i64::from))).map_err(wrong)
            }
            _ => row
                .try_get(at)
                .map(|v: Option<String>| Value::Text(v.map(Cow::Owned)))
                .map_err(wrong),
        }
    };
    Ok(Row::new(row.columns().iter().enumerate().map(value).collect::<Result<_, _>>()?))
}

impl ToSql for Bound<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Bound::Int(v) => v.to_sql(ty, out),
            Bound::Text(v) => v.to_sql(ty, out),
            Bound::IntColumn(v) => v.to_sql(ty, out),
            Bound::TextColumn(v) => v.to_sql(ty, out),
            Bound::Texts(v) => v.to_sql(ty, out),
            Bound::Rows(v) => rows::write(v, ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        [Type::INT8, Type::TEXT, Type::INT8_ARRAY, Type::TEXT_ARRAY].contains(ty)
            || rows::columns(ty).is_some()
    }

    tokio_postgres::types::to_sql_checked!();
}
