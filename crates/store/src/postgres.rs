//! The store on Postgres: lanes of writers, a few readers, and notifications as a hint.
//!
//! Invariants: a write is answered after its commit; a lost connection is replaced without the
//! caller noticing more than a delay; the loss of a notification costs latency, never work.
//! Deliberately absent: stored procedures, and any setting of the server: durability is its
//! `synchronous_commit`, as the operator chose it, but for claims, which need none (decision 20).

mod bell;
mod connection;
mod connector;
mod drive;
mod fault;
mod rows;
mod statistics;
mod ways;
mod wire;
mod work;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use futures::future::BoxFuture;
use steadfast_core::driver::Outcome;

pub use tokio_postgres;
pub use work::{Work, failed, start_in};

use crate::backend::{carry_out, patiently};
use crate::bell::{Bell, News};
use crate::error::Error;
use crate::lane::Lanes;
use crate::op::{Op, Record, Reply, Store, Written};
use crate::session::{self, Chores, Pool};
use crate::tally::{Counters, Tally};
use connector::Connector;

/// Sessions for reading, at most.
const READERS: usize = 4;
/// Sessions for the caller's own transactions, at most.
const WORKERS: usize = 4;

/// A store in a Postgres database.
pub struct Postgres {
    lanes: Lanes,
    readers: Arc<Pool<Connector>>,
    workers: Arc<Pool<Connector>>,
    bell: Arc<Bell>,
    offset: Arc<AtomicI64>,
    counters: Arc<Counters>,
    _chores: Chores,
}

impl Postgres {
    /// Opens the database of a URL (`postgres://user@host/database`), bringing its schema up to
    /// date.
    pub async fn open(url: &str) -> Result<Self, Error> {
        let bell = Arc::new(Bell::default());
        let connector = Arc::new(Connector::new(url, bell.clone())?);
        let counters = connector.counters.clone();
        let prepare = async |session: &mut connection::PgSession| {
            connection::migrate(session).await?;
            Ok((session::clock_offset(session).await?, session.channel().await?))
        };
        let (offset, channel) = session::first(&*connector, prepare).await?;
        let offset = Arc::new(AtomicI64::new(offset));
        let readers = Pool::new(connector.clone(), READERS);
        let mut chores = Chores::new();
        let (pool, clock) = (readers.clone(), offset.clone());
        chores.add("clock", &*connector, move || {
            Box::pin(session::keep_clock(pool.clone(), clock.clone()))
        });
        let pool = readers.clone();
        chores.add("statistics", &*connector, move || Box::pin(statistics::keep(pool.clone())));
        let (to, heard) = (connector.clone(), bell.clone());
        chores.add("notifications", &*connector, move || {
            Box::pin(bell::ring(to.clone(), heard.clone(), channel.clone()))
        });
        Ok(Self {
            lanes: Lanes::spawn(&connector),
            readers,
            workers: Pool::new(connector, WORKERS),
            bell,
            offset,
            counters,
            _chores: chores,
        })
    }

    async fn once(&self, op: Arc<Op>) -> Result<Reply, Error> {
        if op.is_read() { self.readers.read(op).await } else { self.lanes.send(op).await }
    }
}

impl Store for Postgres {
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(carry_out(op, |op| self.once(op)))
    }

    fn tally(&self) -> Tally {
        self.counters.read()
    }

    fn clock_offset_us(&self) -> i64 {
        self.offset.load(Ordering::Relaxed)
    }

    fn announce(&self) {
        self.bell.pull(News::READY);
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.bell.end_heard())
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.bell.heard())
    }

    fn transact(
        &self,
        records: Record,
        work: Box<dyn Any + Send + Sync>,
    ) -> BoxFuture<'_, Result<(Written, Outcome), Error>> {
        Box::pin(async move {
            let work = work.downcast::<Work>().map_err(|_| {
                Error::Refused("the transaction was not written for Postgres".to_owned())
            })?;
            let (records, work) = (Arc::new(records), Arc::new(*work));
            let attempt =
                || crate::work::transact(self.workers.clone(), work.clone(), records.clone());
            patiently("transact", attempt).await
        })
    }
}
