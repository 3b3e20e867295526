//! The caller's own SQL on Postgres: a step in one commit with its record, a start in the caller's
//! commit.
//!
//! Invariants: those of `crate::work`; the work has a savepoint of its own. An error of the driver
//! can be told from the work's own only if it is passed on as one, through [`failed`].

use futures::future::BoxFuture;
use steadfast_core::caught;
use steadfast_core::driver::Outcome;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Transaction};

use super::connection::{PgSession, row, sorted};
use crate::apply::{self, Due};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::gate::{Bound, Params, Row, Tx};
use crate::op::{Record, Start, Started, Written};
use crate::statement;
use crate::work::{self, Perform, Performed};

type Body = dyn for<'a> Fn(&'a Transaction<'_>) -> BoxFuture<'a, Outcome> + Send + Sync;

/// SQL to be run in the commit that records its step.
pub struct Work(Box<Body>);

impl Work {
    /// From a function that uses the transaction; it must not end it. Errors of the driver are best
    /// passed on through [`failed`]: the work is then run again when trying again can help.
    pub fn new<F>(body: F) -> Self
    where
        F: for<'a> Fn(&'a Transaction<'_>) -> BoxFuture<'a, Outcome> + Send + Sync + 'static,
    {
        Self(Box::new(body))
    }
}

/// A driver's error as a step's error.
#[allow(clippy::needless_pass_by_value, reason = "made for map_err")]
pub fn failed(error: tokio_postgres::Error) -> steadfast_core::Error {
    sorted(error).into()
}

impl Perform<PgSession> for Work {
    async fn perform(
        &self,
        session: &mut PgSession,
        records: &Record,
        outcome: Option<Outcome>,
    ) -> Result<Performed, Error> {
        let mut tx = session.client.transaction().await.map_err(sorted)?;
        let known = match apply::due(&mut Guest(&tx), records).await? {
            Due::Now => None,
            Due::Before(outcome) => Some((Written::Done, outcome)),
            Due::Fenced => Some(work::fenced(records)),
        };
        if let Some(known) = known {
            tx.rollback().await.map_err(sorted)?;
            return Ok(Performed::Done(known.0, known.1));
        }
        let outcome = match outcome {
            Some(given) => given,
            None => match under_savepoint(&mut tx, self, records).await? {
                Ok(outcome) => outcome,
                Err(panic) => return Ok(Performed::Panicked(panic)),
            },
        };
        let reply = apply::apply(&mut Guest(&tx), &work::settled(records, &outcome)).await?;
        let written = work::written(reply);
        if written == Written::Done {
            tx.commit().await.map_err(|error| work::in_commit(sorted(error)))?;
        } else {
            tx.rollback().await.map_err(sorted)?;
        }
        Ok(Performed::Done(written, outcome))
    }
}

/// Runs the work; if it fails, its writes are taken back. The inner error is its panic.
async fn under_savepoint(
    tx: &mut Transaction<'_>,
    body: &Work,
    records: &Record,
) -> Result<Result<Outcome, steadfast_core::Error>, Error> {
    let point = tx.savepoint("work").await.map_err(sorted)?;
    let outcome = match caught::future(records.work(), || (body.0)(&point)).await {
        Ok(outcome) => outcome,
        Err(panic) => return Ok(Err(panic)),
    };
    match &outcome {
        Ok(_) => point.commit().await.map_err(sorted)?,
        Err(e) if work::passes(e) => return Err(Error::Transient(e.message().to_owned())),
        Err(_) => point.rollback().await.map_err(sorted)?,
    }
    Ok(Ok(outcome))
}

/// Starts a run inside the caller's own transaction: it exists if and only if that commits.
pub async fn start_in(
    client: &(impl GenericClient + Sync),
    start: &Start,
) -> Result<Started, Error> {
    apply::start(&mut Guest(client), start).await
}

/// The gate over somebody else's connection or transaction: nothing is prepared on it.
struct Guest<'a, C>(&'a C);

impl<C: GenericClient + Sync> Tx for Guest<'_, C> {
    async fn execute(&mut self, name: &'static str, params: Params<'_>) -> Result<u64, Error> {
        let rendered = statement::render(Dialect::Postgres, name, "", params);
        let values = rendered.bind(params)?;
        self.0.execute_typed(&rendered.sql, &typed(&values)).await.map_err(sorted)
    }

    async fn query_where(
        &mut self,
        name: &'static str,
        conditions: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Error> {
        let rendered = statement::render(Dialect::Postgres, name, conditions, params);
        let values = rendered.bind(params)?;
        let found = self.0.query_typed(&rendered.sql, &typed(&values)).await;
        found.map_err(sorted)?.iter().map(row).collect()
    }
}

fn typed<'a>(values: &'a [Bound<'a>]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    fn with_type<'a>(value: &'a Bound<'a>) -> (&'a (dyn ToSql + Sync), Type) {
        let ty = match value {
            Bound::Int(_) => Type::INT8,
            Bound::Text(_) => Type::TEXT,
            Bound::IntColumn(_) => Type::INT8_ARRAY,
            Bound::TextColumn(_) | Bound::Texts(_) => Type::TEXT_ARRAY,
            Bound::Rows(_) => unreachable!("invariant: rows go through statements of ours only"),
        };
        (value, ty)
    }
    values.iter().map(with_type).collect()
}
