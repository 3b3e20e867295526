//! SQL: the tables of one database, as things to write to and to read from.
//!
//! Invariants: nobody hands in SQL; an operation is `upsert`, `replace`, `load` or `select` and a
//! table of the scope, its input describes rows, and every value is bound; a write is one
//! transaction; a keyed write leaves a record of itself in the same database and the same
//! transaction, so that repeating it returns the first result, and [`Connector::probe`] can say
//! whether it was done.
//! Deliberately absent: making tables by an operation. The warehouse is its owner's, who may have
//! them made by [`SqlConnector::create`].

mod dialect;
mod failure;
mod load;
mod mysql;
mod postgres;
mod request;
mod session;
mod shape;
mod sqlite;
mod write;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use steadfast_core::connector::{
    self, Breaker, Connector, Inbound, Limits, Operation, Outbound, Probe, Rate,
};
use steadfast_core::error::{Error, Result};
use steadfast_core::{Retry, key};

use self::dialect::Dialect;
use self::load::Load;
use self::request::{Plan, Select};
use self::session::{Database, Place, Session};
pub use self::shape::{Column, ColumnKind, Shape};
use self::write::{Record, Work};
use crate::secret::SecretRef;
use crate::spool::Spool;

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Where keyed writes are on record.
const RECORDS: &str = "steadfast_outbound";

/// The settings of a SQL connector.
///
/// ```
/// use steadfast_connectors::Sql;
/// use steadfast_core::connector::Operation;
///
/// let warehouse = Sql::connect("warehouse", "postgres://etl@db.internal/warehouse")
///     .password("env:WAREHOUSE_PASSWORD")
///     .allow(Operation::write("replace warehouse.sales_daily").keyed())
///     .allow(Operation::read("select warehouse.sales_daily"))
///     .build()?;
/// # Ok::<_, steadfast_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Sql {
    name: String,
    url: String,
    password: Option<String>,
    scope: Vec<Operation>,
    records: String,
    timeout: Duration,
    limits: Limits,
    retry: Retry,
    spool: Spool,
}

impl fmt::Debug for Sql {
    /// Nobody has looked at the settings yet: any of them may hold a secret by mistake.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sql").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Sql {
    /// A connector of this name for a database: `postgres://…`, `mysql://…` or `sqlite:///path`
    /// without a password, or `env:NAME` or `file:/path` where the URL is a secret.
    pub fn connect(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            url: url.into(),
            password: None,
            scope: Vec::new(),
            records: RECORDS.to_owned(),
            timeout: TIMEOUT,
            limits: Limits::default(),
            retry: connector::default_retry(),
            spool: Spool::at(std::env::temp_dir().join("steadfast-spool")),
        }
    }

    /// Where the password is: `env:NAME` or `file:/path`.
    pub fn password(mut self, secret_ref: impl Into<String>) -> Self {
        self.password = Some(secret_ref.into());
        self
    }

    /// Adds an operation, such as `upsert warehouse.sales_daily`, to what it is meant for.
    pub fn allow(mut self, operation: Operation) -> Self {
        self.scope.push(operation);
        self
    }

    /// The table for the records of keyed writes, where `steadfast_outbound` is no good.
    pub fn records(mut self, table: impl Into<String>) -> Self {
        self.records = table.into();
        self
    }

    /// Where the pages of loads are.
    pub fn spool(mut self, spool: Spool) -> Self {
        self.spool = spool;
        self
    }

    /// How long one request may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many calls all workers together may make in a time.
    pub fn rate(mut self, calls: u32, per: Duration) -> Self {
        self.limits.rate = Some(Rate { calls, per });
        self
    }

    /// After how many failures in a row nobody asks for how long.
    pub fn breaker(mut self, failures: u32, cool_down: Duration) -> Self {
        self.limits.breaker = Some(Breaker { failures, cool_down });
        self
    }

    /// How its operations are tried again where the contract does not say.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Checks the settings; nothing is connected to.
    pub fn build(self) -> Result<SqlConnector> {
        key::check("connector", &self.name)?;
        let place = self.place()?;
        let mut schemas = BTreeSet::new();
        for operation in &self.scope {
            request::check_operation(operation).map_err(|e| self.wrong(e.message()))?;
            let (_, table) = request::target(&operation.name)?;
            schemas.extend(table.split_once('.').map(|(schema, _)| schema.to_owned()));
        }
        request::target(&format!("upsert {}", self.records))
            .map_err(|e| self.wrong(e.message()))?;
        let file = matches!(&place, Place::Plain { url, .. }
            if session::dialect(url) == Some(Dialect::Sqlite));
        if file && schemas.len() > 1 {
            return Err(self.wrong("a SQLite file has one schema, and the scope names several"));
        }
        // `main` is what SQLite calls a file that it opens.
        let schema = schemas.into_iter().next().filter(|schema| schema != "main");
        let database = Database::new(place, self.timeout, schema);
        let Self { name, scope, records, timeout, limits, retry, spool, .. } = self;
        let prepared = AtomicBool::new(false);
        Ok(SqlConnector { name, scope, records, timeout, limits, retry, spool, database, prepared })
    }

    /// The text of the URL is shown nowhere before it is known to have no password in it.
    fn place(&self) -> Result<Place> {
        let password = self.password.as_deref().map(SecretRef::parse).transpose()?;
        if SecretRef::is_meant(&self.url) {
            return SecretRef::parse(&self.url).map(Place::Secret);
        }
        let Some((_, rest)) = self.url.split_once("://") else {
            return Err(self.wrong("the database's URL has no scheme"));
        };
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
        let query = rest.split_once('?').map_or("", |(_, query)| query).to_ascii_lowercase();
        if user.contains(':') || query.contains("pass") {
            let why = "the URL has a password in it; use .password(), or give the whole URL, with \
                       env: or file:";
            return Err(Error::invalid("SF-0716", format!("connector \"{}\": {why}", self.name)));
        }
        match session::dialect(&self.url) {
            Some(_) => Ok(Place::Plain { url: self.url.clone(), password }),
            None => Err(self.wrong("the URL is none of postgres://, mysql://, sqlite://")),
        }
    }

    fn wrong(&self, why: impl fmt::Display) -> Error {
        Error::invalid("SF-0710", format!("connector \"{}\": {why}", self.name))
    }
}

/// A way out to the tables of a database.
pub struct SqlConnector {
    name: String,
    scope: Vec<Operation>,
    records: String,
    timeout: Duration,
    limits: Limits,
    retry: Retry,
    spool: Spool,
    database: Database,
    /// Whether the table for records was seen.
    prepared: AtomicBool,
}

impl fmt::Debug for SqlConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = &self.database.place;
        f.debug_struct("SqlConnector")
            .field("name", &self.name)
            .field("place", place)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl SqlConnector {
    fn operation(&self, asked: &Outbound) -> Result<&Operation> {
        let operation = self.scope.iter().find(|operation| operation.is(&asked.operation));
        operation.ok_or_else(|| connector::out_of_scope(&self.name, &asked.operation))
    }

    async fn carry(&self, asked: &Outbound) -> Result<Inbound> {
        let operation = self.operation(asked)?;
        let plan = request::plan(&asked.operation, &asked.input)?;
        let key = self.key(operation, asked)?;
        let mut session = self.database.session().await?;
        let work = match &plan {
            Plan::Select(plan) => {
                let answer = select(&mut session, plan, &asked.operation).await?;
                session.end();
                return Ok(answer);
            }
            Plan::Write(plan) => Work::Rows(plan),
            Plan::Load(plan) => {
                self.check_also(plan)?;
                Work::Pages(plan, &self.spool)
            }
        };
        let table = self.records_of(&session);
        let record = match key {
            Some(key) => {
                self.prepare(&mut session, &table).await?;
                Some(Record { table: &table, key, digest: write::digest(asked) })
            }
            None => None,
        };
        let answer = write::carry(&mut session, &work, &asked.operation, record.as_ref()).await?;
        session.end();
        if let Plan::Load(load) = &plan {
            // They are where they were meant to be.
            self.spool.remove(load.page_names());
        }
        Ok(answer)
    }

    /// What a load writes besides is in the scope, or the load is not.
    fn check_also(&self, load: &Load) -> Result<()> {
        let Some(also) = &load.also else { return Ok(()) };
        let needed = format!("upsert {}", also.table);
        match self.scope.iter().any(|operation| operation.is(&needed)) {
            true => Ok(()),
            false => Err(connector::out_of_scope(&self.name, &needed)),
        }
    }

    /// Makes tables that are missing, and the file where the database is one. Not for a workflow:
    /// for whoever sets things up.
    pub async fn create(&self, shapes: &[Shape]) -> Result<()> {
        self.database.make_file()?;
        let work = async {
            let mut session = self.database.session().await?;
            for shape in shapes {
                shape::create(&mut session, shape).await?;
            }
            let records = self.records_of(&session);
            self.prepare(&mut session, &records).await?;
            session.end();
            Ok(())
        };
        self.in_time(work).await
    }

    /// The key under which a write is on record; none for others.
    fn key<'a>(&self, operation: &Operation, asked: &'a Outbound) -> Result<Option<&'a str>> {
        if !operation.keyed {
            return Ok(None);
        }
        let Some(asked) = asked.key.as_deref() else {
            let text = format!("\"{}\" needs an idempotency key and has none", operation.name);
            return Err(Error::invalid("SF-0713", text));
        };
        key::check("outbound key", asked)?;
        Ok(Some(asked))
    }

    /// A file that is attached under a name has the records beside its tables.
    fn records_of(&self, session: &Session) -> String {
        match (&self.database.schema, session.dialect()) {
            (Some(schema), Dialect::Sqlite) if !self.records.contains('.') => {
                format!("{schema}.{}", self.records)
            }
            _ => self.records.clone(),
        }
    }

    async fn prepare(&self, session: &mut Session, table: &str) -> Result<()> {
        if !self.prepared.load(Ordering::Relaxed) {
            write::prepare(session, table).await?;
            self.prepared.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn look(&self, asked: &Outbound) -> Result<Probe> {
        let operation = self.operation(asked)?;
        let Some(key) = self.key(operation, asked)? else {
            return Ok(Probe::CannotTell);
        };
        let mut session = self.database.session().await?;
        let table = self.records_of(&session);
        self.prepare(&mut session, &table).await?;
        let record = Record { table: &table, key, digest: write::digest(asked) };
        let found = write::find(&mut session, &record).await?;
        session.end();
        Ok(found.map_or(Probe::NotDone, Probe::Done))
    }

    /// A request that takes too long is given up, and its transaction with it.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(answer) => answer,
            Err(_) => Err(failure::late(format!("{} took longer than agreed", self.name))),
        }
    }
}

async fn select(session: &mut Session, plan: &Select, operation: &str) -> Result<Inbound> {
    let sql = session.dialect().select(plan);
    let values = plan.filter.values().chain(plan.up_to.values());
    let values = values.filter(|value| !value.is_null()).cloned().collect();
    let mut rows = session.query(sql, values).await?;
    let more = rows.len() > plan.limit;
    rows.truncate(plan.limit);
    let summary = format!("{} rows{}", rows.len(), if more { " and more" } else { "" });
    let rows: Vec<Value> = rows.into_iter().map(Value::Object).collect();
    let output = json!({ "rows": rows, "more": more });
    Ok(Inbound::new(output, operation, summary))
}

impl Connector for SqlConnector {
    fn name(&self) -> &str {
        &self.name
    }

    fn scope(&self) -> &[Operation] {
        &self.scope
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        Box::pin(self.in_time(self.carry(request)))
    }

    fn probe<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Probe>> {
        Box::pin(self.in_time(self.look(request)))
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn retry(&self) -> Retry {
        self.retry.clone()
    }
}
