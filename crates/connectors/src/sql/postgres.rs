//! Postgres: a few connections, kept between requests.
//!
//! Invariants: a connection goes back to the others only after its transaction has ended well; one
//! that was given up in between is closed, and the server undoes what was open. Values travel as
//! text, so that the server reads them as what the column is.
//! Deliberately absent: TLS, until somebody needs a warehouse beyond a trusted network.

use std::error::Error as StdError;
use std::io::Cursor;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::SinkExt as _;
use serde_json::{Map, Value};
use steadfast_core::error::Result;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, NoTls};

use super::failure;
use super::load::Pieces;

const CONNECT: Duration = Duration::from_secs(10);

pub(super) struct Pool {
    config: Config,
    idle: Mutex<Vec<Client>>,
    places: Arc<Semaphore>,
}

impl Pool {
    /// The pool for a URL; nothing is connected to yet.
    pub(super) fn new(
        url: &str,
        password: Option<&str>,
        connections: usize,
        timeout: Duration,
    ) -> Option<Self> {
        let mut config = Config::from_str(url).ok()?;
        config.connect_timeout(CONNECT.min(timeout)).application_name("steadfast");
        // The server must not go on with what nobody waits for.
        let options = config.get_options().unwrap_or_default();
        // Moments without an offset are in UTC, on every database.
        let patience = timeout.as_millis();
        let options = format!("{options} -c timezone=UTC -c statement_timeout={patience}");
        config.options(options.trim());
        if let Some(password) = password {
            config.password(password);
        }
        let places = Arc::new(Semaphore::new(connections));
        Some(Self { config, idle: Mutex::default(), places })
    }

    pub(super) async fn session(self: &Arc<Self>) -> Result<Session> {
        let place = self.places.clone().acquire_owned().await.map_err(failure::passing)?;
        let idle = loop {
            let client = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match client {
                Some(client) if client.is_closed() => {}
                other => break other,
            }
        };
        let client = match idle {
            Some(client) => client,
            None => self.connect().await?,
        };
        Ok(Session { client, pool: self.clone(), _place: place })
    }

    async fn connect(&self) -> Result<Client> {
        let connected = self.config.connect(NoTls).await;
        let refused = |e| failure::postgres(&e).without_effect();
        let (client, connection) = connected.map_err(refused)?;
        // Its end is seen by whoever uses the client.
        tokio::spawn(connection);
        Ok(client)
    }
}

pub(super) struct Session {
    client: Client,
    pool: Arc<Pool>,
    _place: OwnedSemaphorePermit,
}

impl Session {
    pub(super) async fn batch(&mut self, sql: &str) -> Result<()> {
        self.client.batch_execute(sql).await.map_err(|e| failure::postgres(&e))
    }

    pub(super) async fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64> {
        let bound: Vec<Bound<'_>> = values.iter().map(Bound).collect();
        let bound: Vec<&(dyn ToSql + Sync)> = bound.iter().map(|b| b as _).collect();
        self.client.execute(sql, &bound).await.map_err(|e| failure::postgres(&e))
    }

    /// The server makes JSON of the rows: it knows how its own types are written.
    pub(super) async fn query(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> Result<Vec<Map<String, Value>>> {
        let bound: Vec<Bound<'_>> = values.iter().map(Bound).collect();
        let bound: Vec<&(dyn ToSql + Sync)> = bound.iter().map(|b| b as _).collect();
        let sql = format!("SELECT row_to_json(r)::text FROM ({sql}) r");
        let rows = self.client.query(&sql, &bound).await.map_err(|e| failure::postgres(&e))?;
        let read = |row: tokio_postgres::Row| {
            let text: String = row.try_get(0).map_err(|e| failure::postgres(&e))?;
            serde_json::from_str(&text).map_err(failure::unfit)
        };
        rows.into_iter().map(read).collect()
    }

    /// Writes rows by COPY, which is the fastest way in; gives how many they were. What was begun
    /// is taken back by the server unless all pieces came.
    pub(super) async fn copy(&mut self, sql: &str, mut pieces: Pieces<Vec<u8>>) -> Result<u64> {
        let failed = |error: tokio_postgres::Error| failure::postgres(&error);
        let sink = self.client.copy_in::<_, Cursor<Vec<u8>>>(sql).await.map_err(failed)?;
        futures::pin_mut!(sink);
        while let Some(piece) = pieces.next().await {
            sink.send(Cursor::new(piece)).await.map_err(failed)?;
        }
        let rows = pieces.end().await?;
        sink.finish().await.map(|_| rows).map_err(failed)
    }

    /// Gives the connection back for the next one.
    pub(super) fn end(self) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(self.client);
    }
}

#[derive(Debug)]
struct Bound<'a>(&'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self.0 {
            Value::Null => return Ok(IsNull::Yes),
            Value::String(text) => out.extend_from_slice(text.as_bytes()),
            other => out.extend_from_slice(other.to_string().as_bytes()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}
