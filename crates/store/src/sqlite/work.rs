//! The caller's own SQL on SQLite: a step in one commit with its record, a start in the caller's
//! commit.

use std::sync::Arc;

use rusqlite::Connection;
use steadfast_core::caught;
use steadfast_core::driver::Outcome;

use super::connection::sorted;
use super::tx::{SqliteTx, now};
use crate::apply;
use crate::error::Error;
use crate::op::{Op, Record, Reply, Start, Started, Written};

type Body = dyn Fn(&Connection) -> Outcome + Send + Sync;

/// SQL to be run in the commit that records its step.
pub struct Work(Box<Body>);

impl Work {
    /// From a function that uses the connection; it must neither begin nor end a transaction.
    pub fn new(body: impl Fn(&Connection) -> Outcome + Send + Sync + 'static) -> Self {
        Self(Box::new(body))
    }

    /// Runs the work and writes the records, inside the writer's transaction.
    pub(super) fn perform(
        &self,
        tx: &mut SqliteTx<'_>,
        records: &Record,
    ) -> Result<(Written, Outcome), Error> {
        tx.batch("SAVEPOINT work")?;
        let outcome = caught::call(records.work(), || (self.0)(tx.connection())).flatten();
        let undone = if outcome.is_err() { tx.batch("ROLLBACK TO work") } else { Ok(()) };
        undone.and_then(|()| tx.batch("RELEASE work")).map_err(|_| ended(&outcome))?;
        let mut records = records.clone();
        if let Some(last) = records.entries.last_mut() {
            last.record.outcome = outcome.clone();
        }
        match now(apply::apply(tx, &Op::Record(records)))? {
            Reply::Record(written) => Ok((written, outcome)),
            other => unreachable!("invariant: {other:?} does not answer a record"),
        }
    }
}

/// The work's savepoint is gone, and everything with it.
fn ended(outcome: &Outcome) -> Error {
    let why = outcome.as_ref().map_or_else(
        |error| error.message(),
        |_| "it must neither begin nor end one, and nothing is recorded",
    );
    Error::Refused(format!("the SQL of the step ended the transaction: {why}"))
}

/// Starts a run inside the caller's own transaction: it exists if and only if that commits.
///
/// A transaction that has read before should have begun as IMMEDIATE: SQLite does not let an old
/// snapshot write once another connection has.
pub fn start_in(connection: &Connection, start: &Start) -> Result<Started, Error> {
    // Takes the write lock, waiting for it, before the first read fixes a snapshot.
    connection.execute("DELETE FROM dedupe WHERE 0", []).map_err(sorted)?;
    now(apply::start(&mut SqliteTx::new(connection, Arc::default()), start))
}
