//! The writer thread: gathers tasks, commits them together, then answers.
//!
//! Invariants: an answer goes out after its commit; a failing task takes back its own writes and
//! nobody else's. A batch is first applied as it is, because nearly always nothing fails; if one
//! of it does, all of it is taken back and applied again with a savepoint around each task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use rusqlite::Connection;
use steadfast_core::driver::Outcome;
use steadfast_core::limits;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::connection::{SqliteTx, now};
use super::work::Work;
use crate::apply;
use crate::backend::Job;
use crate::error::Error;
use crate::op::{Record, Reply, Written};
use crate::tally::Counters;

/// Tasks that may wait for the writer; beyond it, callers wait to hand theirs in.
const WAITING: usize = 8192;
/// How long the writer stays awake for the next task: about what being woken takes.
const AWAKE: Duration = Duration::from_micros(60);

/// Something to do in the next commit.
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

/// What a task came to inside the transaction.
enum Got {
    Reply(Reply),
    Worked(Written, Outcome),
}

impl Got {
    /// Whether the task's own writes, if it made any, are to stay.
    fn stays(&self) -> bool {
        match self {
            Got::Reply(reply) => !apply::takes_back(reply),
            Got::Worked(written, _) => *written == Written::Done,
        }
    }
}

type Answers = Vec<Result<Got, Error>>;

/// Starts the thread that owns the only writing connection. It ends when all senders are gone.
pub(super) fn spawn(
    connection: Connection,
    counters: Arc<Counters>,
) -> Result<mpsc::Sender<Task>, Error> {
    let (tasks, mut waiting) = mpsc::channel(WAITING);
    let body = move || {
        let mut tx = SqliteTx::new(connection, counters);
        while let Some(first) = next(&mut waiting) {
            let (batch, committed) = commit(&mut tx, first, &mut waiting);
            answer(batch, committed);
        }
    };
    std::thread::Builder::new()
        .name("steadfast-writer".to_owned())
        .spawn(body)
        .map_err(|e| Error::Refused(format!("cannot start the writer thread: {e}")))?;
    Ok(tasks)
}

/// The next task. Whoever was answered last often sends one within microseconds, and to be woken
/// for it takes longer than to stay awake that long.
fn next(waiting: &mut mpsc::Receiver<Task>) -> Option<Task> {
    let answered = Instant::now();
    while answered.elapsed() < AWAKE {
        match waiting.try_recv() {
            Ok(task) => return Some(task),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
    waiting.blocking_recv()
}

/// One commit: the first task and whatever else waits by then.
fn commit(
    tx: &mut SqliteTx<Connection>,
    first: Task,
    waiting: &mut mpsc::Receiver<Task>,
) -> (Vec<Task>, Result<Answers, Error>) {
    let mut batch = Vec::new();
    let mut next = Some(first);
    let trusting = transaction(tx, |tx| {
        let mut answers = Answers::new();
        while let Some(task) = next.take() {
            tx.wrote = false;
            let got = perform(tx, &task);
            let spoils = tx.wrote && !got.as_ref().is_ok_and(Got::stays);
            batch.push(task);
            if spoils {
                return Ok(None);
            }
            answers.push(got);
            if answers.len() < limits::COMMIT_BATCH {
                next = waiting.try_recv().ok();
            }
        }
        Ok(Some(answers))
    });
    // The first task is still there if not even a transaction could be begun.
    batch.extend(next);
    let answers = match trusting {
        Ok(Some(answers)) => Ok(answers),
        Ok(None) => {
            transaction(tx, |tx| Ok(Some(batch.iter().map(|task| alone(tx, task)).collect())))
                .map(Option::unwrap_or_default)
        }
        Err(error) => Err(error),
    };
    (batch, answers)
}

/// Commits what the body did, or takes all of it back if it gives nothing.
fn transaction(
    tx: &mut SqliteTx<Connection>,
    body: impl FnOnce(&mut SqliteTx<Connection>) -> Result<Option<Answers>, Error>,
) -> Result<Option<Answers>, Error> {
    tx.begin()?;
    let done = body(tx);
    if let Ok(Some(_)) = &done {
        match tx.batch("COMMIT") {
            Ok(()) => tx.counters().commit(),
            Err(error) => {
                // A failed commit leaves the transaction open; taking it back cannot fail in a
                // worse way.
                let _ = tx.batch("ROLLBACK");
                return Err(error);
            }
        }
    } else {
        // A severe failure may have ended the transaction by itself.
        let _ = tx.batch("ROLLBACK");
    }
    done
}

/// Answers a batch, or tells everybody in it why the commit did not happen.
fn answer(batch: Vec<Task>, committed: Result<Answers, Error>) {
    let (mut answers, failure) = match committed {
        Ok(answers) => (answers.into_iter(), Error::Closed),
        Err(error) => (Answers::new().into_iter(), error),
    };
    for task in batch {
        let got = answers.next().unwrap_or_else(|| Err(failure.clone()));
        // A caller that went away does not need its answer.
        match task {
            Task::Job(job) => drop(job.reply.send(got.map(|got| match got {
                Got::Reply(reply) => reply,
                Got::Worked(..) => unreachable!("invariant: an operation gives a reply"),
            }))),
            Task::Transact(task) => drop(task.reply.send(got.map(|got| match got {
                Got::Worked(written, outcome) => (written, outcome),
                Got::Reply(_) => unreachable!("invariant: work gives an outcome"),
            }))),
        }
    }
}

fn perform(tx: &mut SqliteTx<Connection>, task: &Task) -> Result<Got, Error> {
    match task {
        Task::Job(job) => now(apply::apply(tx, &job.op)).map(Got::Reply),
        Task::Transact(task) => {
            // The caller's statements do not pass the gate.
            tx.wrote = true;
            let worked = task.work.perform(tx, &task.records);
            worked.map(|(written, outcome)| Got::Worked(written, outcome))
        }
    }
}

/// Does one thing under a savepoint, so that its failure is its own.
fn alone(tx: &mut SqliteTx<Connection>, task: &Task) -> Result<Got, Error> {
    tx.batch("SAVEPOINT one")?;
    let got = perform(tx, task);
    if !got.as_ref().is_ok_and(Got::stays) {
        tx.batch("ROLLBACK TO one")?;
    }
    tx.batch("RELEASE one")?;
    got
}
