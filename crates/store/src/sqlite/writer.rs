//! The writer thread: gathers tasks, commits them together, then answers.

use std::sync::Arc;

use futures::channel::oneshot;
use rusqlite::Connection;
use steadfast_core::driver::Outcome;
use steadfast_core::limits;
use tokio::sync::mpsc;

use super::connection::{SqliteTx, now};
use super::work::Work;
use crate::apply;
use crate::backend::Job;
use crate::error::Error;
use crate::op::{Op, Record, Reply, Written};

/// Tasks that may wait for the writer; beyond it, callers wait to hand theirs in.
const WAITING: usize = 8192;

/// Something to do in the next commit.
#[allow(clippy::large_enum_variant, reason = "nearly every task is the large one")]
pub(super) enum Task {
    Job(Job),
    Transact(Box<Transact>),
}

/// The caller's own SQL and its record.
pub(super) struct Transact {
    pub(super) records: Record,
    pub(super) work: Arc<Work>,
    pub(super) reply: oneshot::Sender<Result<(Written, Outcome), Error>>,
}

/// An answer that waits for the commit.
enum Answer {
    Job(oneshot::Sender<Result<Reply, Error>>, Result<Reply, Error>),
    Transact(oneshot::Sender<Result<(Written, Outcome), Error>>, Result<(Written, Outcome), Error>),
}

impl Answer {
    /// Sends the answer, or the reason why the commit it waited for did not happen.
    fn send(self, committed: &Result<(), Error>) {
        // A caller that went away does not need its answer.
        match (self, committed) {
            (Answer::Job(reply, answer), Ok(())) => drop(reply.send(answer)),
            (Answer::Job(reply, _), Err(error)) => drop(reply.send(Err(error.clone()))),
            (Answer::Transact(reply, answer), Ok(())) => drop(reply.send(answer)),
            (Answer::Transact(reply, _), Err(error)) => drop(reply.send(Err(error.clone()))),
        }
    }
}

/// Starts the thread that owns the only writing connection. It ends when all senders are gone.
pub(super) fn spawn(connection: Connection) -> Result<mpsc::Sender<Task>, Error> {
    let (tasks, mut waiting) = mpsc::channel(WAITING);
    let body = move || {
        let mut tx = SqliteTx::new(connection);
        while let Some(first) = waiting.blocking_recv() {
            commit(&mut tx, first, &mut waiting);
        }
    };
    std::thread::Builder::new()
        .name("steadfast-writer".to_owned())
        .spawn(body)
        .map_err(|e| Error::Refused(format!("cannot start the writer thread: {e}")))?;
    Ok(tasks)
}

/// One commit: the first task and whatever else waits by then.
fn commit(tx: &mut SqliteTx<Connection>, first: Task, waiting: &mut mpsc::Receiver<Task>) {
    if let Err(error) = tx.batch("BEGIN IMMEDIATE") {
        return perform(first, |_| Err(error.clone())).send(&Err(error.clone()));
    }
    let mut answers = Vec::new();
    let mut next = Some(first);
    while let Some(task) = next {
        answers.push(perform(task, |op| alone(tx, op)));
        next = if answers.len() < limits::COMMIT_BATCH { waiting.try_recv().ok() } else { None };
    }
    let committed = tx.batch("COMMIT");
    if committed.is_err() {
        // A failed commit leaves the transaction open; taking it back cannot fail in a worse way.
        let _ = tx.batch("ROLLBACK");
    }
    for answer in answers {
        answer.send(&committed);
    }
}

/// What a task wants done inside the transaction.
enum Want<'a> {
    Op(&'a Op),
    Work(&'a Record, &'a Work),
}

enum Got {
    Reply(Reply),
    Worked(Written, Outcome),
}

fn perform(task: Task, mut run: impl FnMut(&Want<'_>) -> Result<Got, Error>) -> Answer {
    match task {
        Task::Job(Job { op, reply }) => {
            let got = run(&Want::Op(&op)).map(|got| match got {
                Got::Reply(reply) => reply,
                Got::Worked(..) => unreachable!("invariant: an operation gives a reply"),
            });
            Answer::Job(reply, got)
        }
        Task::Transact(task) => {
            let got = run(&Want::Work(&task.records, &task.work)).map(|got| match got {
                Got::Worked(written, outcome) => (written, outcome),
                Got::Reply(_) => unreachable!("invariant: work gives an outcome"),
            });
            Answer::Transact(task.reply, got)
        }
    }
}

/// Does one thing under a savepoint, so that its failure is its own.
fn alone(tx: &mut SqliteTx<Connection>, want: &Want<'_>) -> Result<Got, Error> {
    tx.batch("SAVEPOINT one")?;
    let got = match want {
        Want::Op(op) => now(apply::apply(tx, op)).map(Got::Reply),
        Want::Work(records, work) => {
            work.perform(tx, records).map(|(written, outcome)| Got::Worked(written, outcome))
        }
    };
    let keep = match &got {
        Ok(Got::Reply(reply)) => !apply::takes_back(reply),
        Ok(Got::Worked(written, _)) => *written == Written::Done,
        Err(_) => false,
    };
    if !keep {
        tx.batch("ROLLBACK TO one")?;
    }
    tx.batch("RELEASE one")?;
    got
}
