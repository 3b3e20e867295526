//! The caller's own SQL on MySQL: a step in one commit with its record, a start in the caller's
//! commit.
//!
//! Invariants: those of `crate::work`; the work has a savepoint of its own. An error of the driver
//! can be told from the work's own only if it is passed on as one, through [`failed`].

use futures::future::BoxFuture;
use mysql_async::prelude::Queryable;
use mysql_async::{Transaction, TxOpts};
use steadfast_core::caught;
use steadfast_core::driver::Outcome;

use super::connection::{Guest, MySession, sorted};
use crate::apply::{self, Due};
use crate::error::Error;
use crate::op::{Record, Start, Started, Written};
use crate::work::{self, Perform, Performed};

type Body = dyn for<'a> Fn(&'a mut Transaction<'_>) -> BoxFuture<'a, Outcome> + Send + Sync;

/// SQL to be run in the commit that records its step.
pub struct Work(Box<Body>);

impl Work {
    /// From a function that uses the transaction; it must not end it. Errors of the driver are best
    /// passed on through [`failed`]: the work is then run again when trying again can help.
    pub fn new<F>(body: F) -> Self
    where
        F: for<'a> Fn(&'a mut Transaction<'_>) -> BoxFuture<'a, Outcome> + Send + Sync + 'static,
    {
        Self(Box::new(body))
    }
}

/// A driver's error as a step's error.
pub fn failed(error: mysql_async::Error) -> steadfast_core::Error {
    sorted(error).into()
}

impl Perform<MySession> for Work {
    async fn perform(
        &self,
        session: &mut MySession,
        records: &Record,
        outcome: Option<Outcome>,
    ) -> Result<Performed, Error> {
        let mut tx = session.conn.start_transaction(TxOpts::default()).await.map_err(sorted)?;
        let known = match apply::due(&mut Guest(&mut tx), records).await? {
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
        let reply = apply::apply(&mut Guest(&mut tx), &work::settled(records, &outcome)).await?;
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
    tx.query_drop("SAVEPOINT work").await.map_err(sorted)?;
    let outcome = match caught::future(records.work(), || (body.0)(tx)).await {
        Ok(outcome) => outcome,
        Err(panic) => return Ok(Err(panic)),
    };
    let end = match &outcome {
        Ok(_) => "RELEASE SAVEPOINT work",
        Err(error) if work::passes(error) => {
            return Err(Error::Transient(error.message().to_owned()));
        }
        Err(_) => "ROLLBACK TO SAVEPOINT work",
    };
    tx.query_drop(end).await.map_err(|error| match error {
        // A deadlock inside the work took the whole transaction with it, savepoint and all.
        mysql_async::Error::Server(server) if server.code == 1305 => {
            Error::Transient("the transaction was lost to a deadlock".to_owned())
        }
        other => sorted(other),
    })?;
    Ok(Ok(outcome))
}

/// Starts a run inside the caller's own transaction: it exists if and only if that commits.
pub async fn start_in(tx: &mut Transaction<'_>, start: &Start) -> Result<Started, Error> {
    apply::start(&mut Guest(tx), start).await
}
