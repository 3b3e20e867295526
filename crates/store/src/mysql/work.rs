//! The caller's own SQL on MySQL: a step in one commit with its record, a start in the caller's commit.
//!
//! Invariants: work runs only under a good lease, and not again once its record is committed, even if
//! the answer to that commit was lost; its failure takes back its writes and is recorded all the same.

use std::sync::Arc;

use futures::future::BoxFuture;
use mysql_async::prelude::Queryable;
use mysql_async::{Transaction, TxOpts};
use steadfast_core::driver::Outcome;

use super::connection::{Guest, MySession, Shared, sorted};
use crate::apply::{self, Due};
use crate::error::Error;
use crate::op::{Op, Record, Reply, Start, Started, Written};
use crate::session::{TRIES, brief_wait};

type Body = dyn for<'a> Fn(&'a mut Transaction<'_>) -> BoxFuture<'a, Outcome> + Send + Sync;

/// SQL to be run in the commit that records its step.
pub struct Work(Box<Body>);

impl Work {
    /// From a function that uses the transaction; it must not end it. Errors of the driver are best
    /// passed on through [`failed`]: the work is then run again when trying again can help.
    pub fn new(
        body: impl for<'a> Fn(&'a mut Transaction<'_>) -> BoxFuture<'a, Outcome> + Send + Sync + 'static,
    ) -> Self {
        Self(Box::new(body))
    }
}

/// A driver's error as a step's error.
pub fn failed(error: mysql_async::Error) -> steadfast_core::Error {
    sorted(error).into()
}

/// Runs the work and writes the records in one commit, on a session of its own.
pub(super) async fn transact(
    pool: Shared,
    work: Arc<Work>,
    records: Arc<Record>,
) -> Result<(Written, Outcome), Error> {
    let attempts = async move {
        let mut tried = 0;
        loop {
            let mut held = pool.take().await?;
            match perform(&mut held.session, &work, &records).await {
                // Whatever is open on a session that failed is taken back by the server.
                Err(Error::Transient(_)) if tried < TRIES => {
                    drop(held);
                    brief_wait(tried).await;
                    tried += 1;
                }
                done => {
                    if done.is_ok() {
                        pool.put_back(held);
                    }
                    return done;
                }
            }
        }
    };
    // A task of its own: a caller that goes away leaves no transaction half done.
    tokio::spawn(attempts).await.map_err(|_| Error::Closed)?
}

async fn perform(
    session: &mut MySession,
    work: &Work,
    records: &Record,
) -> Result<(Written, Outcome), Error> {
    let mut tx = session.conn.start_transaction(TxOpts::default()).await.map_err(sorted)?;
    match apply::due(&mut Guest(&mut tx), records).await? {
        Due::Now => {}
        Due::Before(outcome) => {
            tx.rollback().await.map_err(sorted)?;
            return Ok((Written::Done, outcome));
        }
        Due::Fenced => {
            tx.rollback().await.map_err(sorted)?;
            let last = records.entries.last().map(|entry| entry.record.outcome.clone());
            return Ok((Written::Fenced, last.unwrap_or_else(|| Ok("null".to_owned()))));
        }
    }
    let outcome = under_savepoint(&mut tx, work).await?;
    let mut records = records.clone();
    if let Some(last) = records.entries.last_mut() {
        last.record.outcome = outcome.clone();
    }
    let written = match apply::apply(&mut Guest(&mut tx), &Op::Record(records)).await? {
        Reply::Record(written) => written,
        other => unreachable!("invariant: {other:?} does not answer a record"),
    };
    if written == Written::Done {
        tx.commit().await.map_err(|error| match sorted(error) {
            Error::Transient(text) => Error::Ambiguous(text),
            other => other,
        })?;
    } else {
        tx.rollback().await.map_err(sorted)?;
    }
    Ok((written, outcome))
}

/// Runs the work; if it fails, its writes are taken back.
async fn under_savepoint(tx: &mut Transaction<'_>, work: &Work) -> Result<Outcome, Error> {
    tx.query_drop("SAVEPOINT work").await.map_err(sorted)?;
    let outcome = (work.0)(tx).await;
    let end = match &outcome {
        Ok(_) => "RELEASE SAVEPOINT work",
        Err(error) if passes(error) => return Err(Error::Transient(error.message().to_owned())),
        Err(_) => "ROLLBACK TO SAVEPOINT work",
    };
    tx.query_drop(end).await.map_err(|error| match error {
        // A deadlock inside the work took the whole transaction with it, savepoint and all.
        mysql_async::Error::Server(server) if server.code == 1305 => {
            Error::Transient("the transaction was lost to a deadlock".to_owned())
        }
        other => sorted(other),
    })?;
    Ok(outcome)
}

/// Whether the work failed for a reason of the database's that may pass.
fn passes(error: &steadfast_core::Error) -> bool {
    ["SF-0401", "SF-0402"].contains(&error.code())
}

/// Starts a run inside the caller's own transaction: it exists if and only if that commits.
pub async fn start_in(tx: &mut Transaction<'_>, start: &Start) -> Result<Started, Error> {
    apply::start(&mut Guest(tx), start).await
}
