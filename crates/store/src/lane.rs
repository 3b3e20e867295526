//! Lanes: writers side by side, each with a session of its own and group commit.
//!
//! Invariants: what an owner writes, each after the answer to the one before, is applied in that
//! order on whatever lane it is, and so is what is sent after the answer to a start; other
//! operations of one run go to one lane and are applied in the order in which they were sent. An
//! answer goes out after its commit; a failing operation takes back its own writes and nobody
//! else's. A batch is one statement where there is one for it; else, or what that has left of it,
//! is applied as it is; if one of it fails, again with a savepoint around each; if that fails as a
//! whole (a deadlock, a lost connection), each in a transaction of its own.
//! Deliberately absent: timers for batching. While a commit runs, the next batch gathers, and what
//! is ready to run goes before the writer.

mod place;

use std::sync::Arc;
use std::time::Instant;

use futures::channel::oneshot;
use steadfast_core::limits;
use tokio::sync::{Notify, mpsc};

use crate::apply;
use crate::backend::Job;
use crate::bell::News;
use crate::busy::{Busy, Meter};
use crate::error::Error;
use crate::fault;
use crate::keep::{self, Keeper};
use crate::op::{Entry, Op, Reply, Started, With};
use crate::session::{self, Begin, Connect, Session};
use place::{is_claim, order, place};

/// Writers of what concerns one run: while one waits for the disk, the other gathers. More would
/// make smaller batches, and much of what a batch costs does not depend on its size. Claims have
/// one more, of their own: they may take several round trips, for which others' ends would wait.
const LANES: usize = 2;
/// Jobs that may wait for a lane; beyond it, callers wait to hand theirs in.
const WAITING: usize = 2048;
/// A batch of this size costs its writer little more than one of half the size: less is worth
/// gathering for.
const WORTHWHILE: usize = 128;
/// Savepoints in one transaction: beyond 64, Postgres keeps them in a slow place.
const SAVEPOINTS: usize = 64;

/// The lanes of a store. They end when this is dropped and their jobs are done.
pub(crate) struct Lanes {
    lanes: Vec<mpsc::Sender<Job>>,
    /// Rung for each lane when it should be connected, whether or not it has a job.
    calls: Vec<Arc<Notify>>,
    claims: Arc<Busy>,
    /// Whether what concerns queues goes by one lane.
    joins_queues: bool,
}

impl Lanes {
    pub(crate) fn spawn<C: Connect>(connect: &Arc<C>) -> Self {
        let claims = Arc::new(Busy::new());
        let lane = |number| {
            let ((jobs, waiting), call) = (mpsc::channel(WAITING), Arc::new(Notify::new()));
            let lane = Lane { connect: connect.clone(), session: None, call: call.clone() };
            let meter = (number == LANES).then(|| Meter::new(&claims));
            let (database, counters) = connect.database();
            let kept = Keeper::new("lane", database, counters)
                .task((lane, waiting, meter), |(lane, waiting, meter)| {
                    Box::pin(lane.serve(waiting, meter))
                });
            tokio::spawn(kept);
            (jobs, call)
        };
        let (lanes, calls) = (0..=LANES).map(lane).unzip();
        Self { lanes, calls, claims, joins_queues: C::JOINS_QUEUES }
    }

    /// Has an operation carried out.
    pub(crate) async fn send(&self, op: Arc<Op>) -> Result<Reply, Error> {
        if matches!(*op, Op::Heartbeat(_)) {
            // A worker has much to write, by all of them: it should not have to wait for that.
            self.calls.iter().for_each(|call| call.notify_one());
        }
        let (reply, answer) = oneshot::channel();
        let lane = place(&op, self.joins_queues, || self.claims.is_much());
        self.lanes[lane].send(Job { op, reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| keep::unanswered())?
    }
}

/// Whether the operation may have ended runs.
fn ends(op: &Op, reply: &Reply) -> bool {
    match reply {
        Reply::Wake(claimed) => !claimed.exhausted.is_empty() || !claimed.overdue.is_empty(),
        _ => {
            matches!(
                op,
                Op::Finish(_)
                    | Op::Cancel(_)
                    | Op::TimeOut(_)
                    | Op::CancelCommand(_)
                    | Op::SettleCommands(_)
            )
        }
    }
}

/// Whether somebody who waits for work or for a signal should look again.
fn makes_ready(op: &Op, reply: &Reply) -> bool {
    let sends = |entries: &[Entry]| {
        entries.iter().any(|entry| matches!(entry.with, Some(With::Send(_) | With::Spawn(_))))
    };
    match op {
        Op::Start(op) => op.claim.is_none() && matches!(reply, Reply::Start(Started::New(_))),
        Op::Submit(op) => op.start.claim.is_none(),
        Op::Record(op) => sends(&op.entries),
        Op::Suspend(op) => sends(&op.entries),
        // Whoever waited for what was given up may go on.
        Op::Wake(_) => ends(op, reply),
        _ => matches!(
            op,
            Op::Signal(_)
                | Op::Cancel(_)
                | Op::TimeOut(_)
                | Op::CancelCommand(_)
                | Op::Resume(_)
                | Op::Fork(_)
                | Op::Debounce(_)
                | Op::Release(_)
                | Op::PutQueue(_)
                | Op::FreeSlot(_)
                | Op::Advance(_)
                | Op::Backfill(_)
                | Op::Decide(_)
                | Op::Resolve(_)
                | Op::Supply(_)
                | Op::TakeBack(_)
                | Op::SettleApprovals(_)
                | Op::SettleCommands(_)
        ),
    }
}

/// How a batch is applied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// By one statement, as much of it as fits one.
    AtOnce,
    /// As it is: one failure spoils all.
    Trusting,
    /// Each operation under a savepoint.
    Careful,
}

struct Lane<C: Connect> {
    connect: Arc<C>,
    session: Option<C::Session>,
    call: Arc<Notify>,
}

/// What jobs came to; `None` is left open.
type Answers = Vec<Option<Result<Reply, Error>>>;

impl<C: Connect> Lane<C> {
    /// Works off what comes; who writes claims tells how much of the time that takes. After a panic
    /// it begins with a session of its own.
    async fn serve(&mut self, jobs: &mut mpsc::Receiver<Job>, meter: &mut Option<Meter>) {
        self.session = None;
        let (mut batch, mut is_crowd) = (Vec::new(), false);
        while self.receive(jobs, &mut batch).await > 0 {
            // Who is alone would only wait for itself.
            if is_crowd || batch.len() > 1 {
                gather(&mut batch, jobs).await;
            }
            is_crowd = batch.len() > 1;
            let drains = |job: &Job| matches!(&*job.op, Op::Dequeue(_));
            let begun = meter.as_ref().filter(|_| batch.iter().any(drains)).map(|_| Instant::now());
            self.commit(std::mem::take(&mut batch)).await;
            if let Some(meter) = meter {
                meter.add(begun);
            }
        }
    }

    /// Waits for jobs, and connects when it is called before there are any; how many came.
    async fn receive(&mut self, jobs: &mut mpsc::Receiver<Job>, batch: &mut Vec<Job>) -> usize {
        let call = self.call.clone();
        loop {
            tokio::select! {
                biased;
                came = jobs.recv_many(batch, limits::COMMIT_BATCH) => return came,
                () = call.notified() => self.get_ready().await,
            }
        }
    }

    /// Carries out a batch, one way or another, and answers it.
    async fn commit(&mut self, mut batch: Vec<Job>) {
        fault::point("batch", || batch.iter().map(|job| format!("{:?}", job.op)).collect());
        if batch.len() > 1 {
            if batch.iter().all(|job| is_claim(&job.op)) {
                batch.sort_by(|one, other| order(&one.op).cmp(&order(&other.op)));
            }
            batch = self.together(batch, Manner::AtOnce).await;
        }
        if batch.len() > 1 {
            batch = self.together(batch, Manner::Trusting).await;
        }
        while batch.len() > 1 {
            let rest = batch.split_off(batch.len().min(SAVEPOINTS));
            for job in self.together(batch, Manner::Careful).await {
                self.alone(job).await;
            }
            batch = rest;
        }
        for job in batch {
            self.alone(job).await;
        }
    }

    /// Commits a batch and answers it; gives back the jobs that were left open, or all of a batch
    /// that failed as a whole.
    async fn together(&mut self, batch: Vec<Job>, manner: Manner) -> Vec<Job> {
        let done = match self.connected().await {
            Ok(session) => together(session, &batch, manner).await,
            Err(error) => {
                fail(batch, &error);
                return Vec::new();
            }
        };
        self.drop_unusable();
        match done {
            Ok(answers) => self.settle(batch, answers),
            Err(error @ Error::Ambiguous(_)) => {
                fail(batch, &error);
                Vec::new()
            }
            Err(error) => {
                tracing::debug!(%error, jobs = batch.len(), "a batch is taken apart");
                batch
            }
        }
    }

    /// Answers what was committed; gives back the others.
    fn settle(&self, batch: Vec<Job>, answers: Answers) -> Vec<Job> {
        let committed = batch.iter().zip(&answers);
        self.announce(committed.filter_map(|(job, done)| Some((&*job.op, done.as_ref()?))));
        let mut open = Vec::new();
        for (job, done) in batch.into_iter().zip(answers) {
            match done {
                // A caller that went away does not need its answer.
                Some(done) => drop(job.reply.send(done)),
                None => open.push(job),
            }
        }
        open
    }

    /// Carries out one job in a transaction of its own.
    async fn alone(&mut self, job: Job) {
        let mut tried = 0;
        let done = loop {
            let session = match self.connected().await {
                Ok(session) => session,
                Err(error) => break Err(error),
            };
            let done = alone(session, &job.op).await;
            self.drop_unusable();
            match done {
                Err(Error::Transient(_)) if tried < session::TRIES => {
                    session::brief_wait(tried).await;
                    tried += 1;
                }
                done => break done,
            }
        };
        self.announce(std::iter::once((&*job.op, &done)));
        // A caller that went away does not need its answer.
        let _ = job.reply.send(done);
    }

    /// Connects, unless it is. If that fails, the next job does.
    async fn get_ready(&mut self) {
        self.drop_unusable();
        if self.session.is_some() {
            return;
        }
        let ready = match self.connected().await {
            Ok(session) => session::rehearse(session).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ready {
            tracing::debug!(%error, "a writer is not ready yet");
        }
        self.drop_unusable();
    }

    async fn connected(&mut self) -> Result<&mut C::Session, Error> {
        if self.session.as_ref().is_none_or(|session| !session.is_usable()) {
            self.session = None;
            self.session = Some(session::made(self.connect.connect_lane()).await?);
        }
        Ok(self.session.as_mut().expect("invariant: it was just made"))
    }

    fn drop_unusable(&mut self) {
        if self.session.as_ref().is_some_and(|session| !session.is_usable()) {
            self.session = None;
        }
    }

    fn announce<'a>(&self, done: impl Iterator<Item = (&'a Op, &'a Result<Reply, Error>)>) {
        let mut news = News::default();
        for (op, reply) in done {
            if let Ok(reply) = reply {
                news.ready += u32::from(makes_ready(op, reply));
                news.ended += u32::from(ends(op, reply));
            }
        }
        self.connect.announce(news);
    }
}

/// Lets others go first for as long as that makes a small batch larger: those who have just been
/// answered may be about to send what they do next.
async fn gather(batch: &mut Vec<Job>, jobs: &mut mpsc::Receiver<Job>) {
    let mut had = 0;
    while had < batch.len() && batch.len() < WORTHWHILE {
        had = batch.len();
        tokio::task::yield_now().await;
        while batch.len() < limits::COMMIT_BATCH
            && let Ok(job) = jobs.try_recv()
        {
            batch.push(job);
        }
    }
}

fn fail(batch: Vec<Job>, error: &Error) {
    for job in batch {
        let _ = job.reply.send(Err(error.clone()));
    }
}

/// One commit for a batch: the answers if it committed, an error if nothing (or, for an ambiguous
/// one, perhaps everything) was written.
async fn together<S: Session>(
    session: &mut S,
    batch: &[Job],
    manner: Manner,
) -> Result<Answers, Error> {
    let ops: Vec<&Op> = batch.iter().map(|job| &*job.op).collect();
    let applied = match manner {
        Manner::AtOnce => {
            let replies = session::all_at_once(session, &ops).await?;
            return Ok(replies.into_iter().map(|reply| reply.map(Ok)).collect());
        }
        Manner::Trusting => trusting(session, &ops).await,
        Manner::Careful => each_carefully(session, &ops).await,
    };
    match applied {
        Ok(answers) => session::commit(session).await.map(|()| answers),
        Err(error) => {
            session::roll_back(session).await;
            Err(error)
        }
    }
}

async fn trusting<S: Session>(session: &mut S, ops: &[&Op]) -> Result<Answers, Error> {
    let applied = session::transact(session, Begin::Crowd, ops).await?;
    if applied.iter().any(|applied| applied.wrote && apply::takes_back(&applied.reply)) {
        return Err(Error::Transient("a part of the batch must be taken back".to_owned()));
    }
    Ok(applied.into_iter().map(|applied| Some(Ok(applied.reply))).collect())
}

async fn each_carefully<S: Session>(session: &mut S, ops: &[&Op]) -> Result<Answers, Error> {
    session::begin(session, Begin::Crowd).await?;
    let mut answers = Answers::with_capacity(ops.len());
    for op in ops {
        answers.push(Some(careful(session, op).await?));
    }
    Ok(answers)
}

/// Applies an operation under a savepoint. An outer error spoils the batch, an inner one is the
/// operation's own.
async fn careful<S: Session>(session: &mut S, op: &Op) -> Result<Result<Reply, Error>, Error> {
    session::run(session, "SAVEPOINT one").await?;
    let got = session::apply(session, op).await;
    let keep = match &got {
        Ok(reply) => !apply::takes_back(reply),
        // Contention may have cost more than the savepoint (on MySQL it does).
        Err(error) if error.is_retryable() => return got.map(Ok),
        Err(_) => false,
    };
    if !keep {
        session::run(session, "ROLLBACK TO SAVEPOINT one").await?;
    }
    session::run(session, "RELEASE SAVEPOINT one").await?;
    Ok(got)
}

async fn alone<S: Session>(session: &mut S, op: &Op) -> Result<Reply, Error> {
    if let Some(reply) = session::at_once(session, op).await? {
        return Ok(reply);
    }
    let applied = session::transact(session, Begin::Alone, &[op]).await;
    let reply = applied.map(|applied| applied.into_iter().next().map(|applied| applied.reply));
    match reply.and_then(|reply| reply.ok_or(Error::Closed)) {
        Ok(reply) if apply::takes_back(&reply) => {
            session::roll_back(session).await;
            Ok(reply)
        }
        Ok(reply) => session::commit(session).await.map(|()| reply),
        Err(error) => {
            session::roll_back(session).await;
            Err(error)
        }
    }
}
