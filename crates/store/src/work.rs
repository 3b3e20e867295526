//! The caller's own SQL on a server: what Postgres and MySQL do alike to commit it with its
//! record.
//!
//! Invariants: work runs only under a good lease, and not again once its record is committed, even
//! if the answer to that commit was lost; its failure takes back its writes and is recorded all
//! the same, and so is its panic; what may pass (a deadlock, a lost connection) runs the work
//! again instead.

use std::sync::Arc;

use steadfast_core::driver::Outcome;

use crate::error::Error;
use crate::op::{Op, Record, Reply, Written};
use crate::session::{Connect, Pool, TRIES, brief_wait};

/// Work that a session can do.
pub(crate) trait Perform<S>: Send + Sync + 'static {
    /// Runs the work, unless its outcome is given, and writes the records in one transaction.
    fn perform(
        &self,
        session: &mut S,
        records: &Record,
        outcome: Option<Outcome>,
    ) -> impl Future<Output = Result<Performed, Error>> + Send;
}

/// What work came to.
pub(crate) enum Performed {
    /// It is recorded, or was refused.
    Done(Written, Outcome),
    /// It panicked, nothing is recorded, and the session may be in the middle of a statement.
    Panicked(steadfast_core::Error),
}

/// Does the work on a session of its own, again as long as somebody else is in the way.
pub(crate) async fn transact<C: Connect>(
    pool: Arc<Pool<C>>,
    work: Arc<impl Perform<C::Session>>,
    records: Arc<Record>,
) -> Result<(Written, Outcome), Error> {
    let home = pool.clone();
    let attempts = async move {
        let (mut tried, mut outcome) = (0, None);
        loop {
            let mut held = pool.take().await?;
            match work.perform(&mut held.session, &records, outcome.clone()).await {
                Ok(Performed::Done(written, outcome)) => {
                    pool.put_back(held);
                    return Ok((written, outcome));
                }
                // The server takes back what it has done; the error is recorded on another session.
                Ok(Performed::Panicked(error)) => {
                    drop(held);
                    outcome = Some(Err(error));
                }
                // Whatever is open on a session that failed is taken back by the server.
                Err(Error::Transient(_)) if tried < TRIES => {
                    drop(held);
                    brief_wait(tried).await;
                    tried += 1;
                }
                Err(error) => return Err(error),
            }
        }
    };
    // A caller that goes away leaves no transaction half done.
    home.on_a_task(attempts).await
}

/// Whether the work failed for a reason of the database's that may pass. The codes are those of
/// [`Error::Transient`], [`Error::Ambiguous`] and [`Error::Full`].
pub(crate) fn passes(error: &steadfast_core::Error) -> bool {
    ["SF-0401", "SF-0402", "SF-0407"].contains(&error.code())
}

/// What is answered under a void lease: nothing was run, so the outcome is what the caller had.
pub(crate) fn fenced(records: &Record) -> (Written, Outcome) {
    let last = records.entries.last().map(|entry| entry.record.outcome.clone());
    (Written::Fenced, last.unwrap_or_else(|| Ok("null".to_owned())))
}

/// The records to write, the last of them with the work's outcome.
pub(crate) fn settled(records: &Record, outcome: &Outcome) -> Op {
    let mut records = records.clone();
    if let Some(last) = records.entries.last_mut() {
        last.record.outcome = outcome.clone();
    }
    Op::Record(records)
}

/// The reply to [`settled`].
pub(crate) fn written(reply: Reply) -> Written {
    match reply {
        Reply::Record(written) => written,
        other => unreachable!("invariant: {other:?} does not answer a record"),
    }
}

/// An error of a commit: unlike before it, a fault of the connection leaves the outcome unknown.
pub(crate) fn in_commit(error: Error) -> Error {
    match error {
        Error::Transient(text) | Error::Full(text) => Error::Ambiguous(text),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_run_again_for_what_may_pass_only() {
        assert!(passes(&Error::Transient("deadlock".into()).into()));
        assert!(passes(&Error::Ambiguous("cut".into()).into()));
        assert!(!passes(&Error::Refused("duplicate".into()).into()));
        assert!(!passes(&steadfast_core::Error::app("no")));
    }
}
