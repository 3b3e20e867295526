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

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use futures::channel::oneshot;
use steadfast_core::limits;
use tokio::sync::mpsc;

use crate::apply;
use crate::backend::Job;
use crate::bell::News;
use crate::busy::{Busy, Meter};
use crate::error::Error;
use crate::op::{Entry, Op, Reply, Started, With};
use crate::session::{self, Begin, Connect, Session};

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
    claims: Arc<Busy>,
    /// Whether what concerns queues goes by one lane.
    joins_queues: bool,
}

impl Lanes {
    pub(crate) fn spawn<C: Connect>(connect: &Arc<C>) -> Self {
        let claims = Arc::new(Busy::new());
        let lane = |number| {
            let (jobs, waiting) = mpsc::channel(WAITING);
            let lane = Lane { connect: connect.clone(), session: None };
            tokio::spawn(lane.serve(waiting, (number == LANES).then(|| Meter::new(&claims))));
            jobs
        };
        let lanes = (0..=LANES).map(lane).collect();
        Self { lanes, claims, joins_queues: C::JOINS_QUEUES }
    }

    /// Has an operation carried out.
    pub(crate) async fn send(&self, op: Arc<Op>) -> Result<Reply, Error> {
        let (reply, answer) = oneshot::channel();
        let lane = place(&op, self.joins_queues, || self.claims.is_much());
        self.lanes[lane].send(Job { op, reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

/// The lane of an operation. Reads have sessions of their own; here they would merely wait.
fn place(op: &Op, joins_queues: bool, is_drained: impl FnOnce() -> bool) -> usize {
    if is_claim(op) {
        return LANES;
    }
    let joins = joins_queues
        && match op {
            Op::Start(op) => op.claim.is_none(),
            Op::Record(_) | Op::Finish(_) | Op::Suspend(_) => is_drained(),
            _ => false,
        };
    let Some(key) = concern(op).filter(|_| !joins) else { return 0 };
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::try_from(hasher.finish() % LANES as u64).unwrap_or(0)
}

fn is_claim(op: &Op) -> bool {
    matches!(op, Op::Dequeue(_) | Op::Wake(_))
}

/// The order of claims in a batch: by queue, so that who has several, and somebody else who has the
/// same, lock their rows in one order.
fn order(op: &Op) -> Option<(&String, &String)> {
    match op {
        Op::Dequeue(op) => Some((&op.workspace, &op.queue)),
        _ => None,
    }
}

/// What decides on an operation's lane: the run it concerns, else its queue or workspace.
fn concern(op: &Op) -> Option<(&String, &String)> {
    Some(match op {
        Op::Start(op) => (&op.workspace, &op.run_id),
        Op::Debounce(op) => (&op.start.workspace, &op.start.run_id),
        Op::Record(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::Finish(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::Suspend(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::Release(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::ContinueAsNew(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::TakeSlot(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::FreeSlot(op) => (&op.lease.workspace, &op.lease.run_id),
        Op::Cancel(op) => (&op.workspace, &op.run_id),
        Op::Resume(op) => (&op.workspace, &op.run_id),
        Op::Signal(op) => (&op.workspace, &op.run_id),
        Op::Fork(op) => (&op.workspace, &op.run_id),
        Op::Submit(op) => (&op.start.workspace, &op.start.run_id),
        Op::CancelCommand(op) => (&op.workspace, &op.command_id),
        Op::Tell(op) => (&op.workspace, &op.event_id),
        Op::Supply(op) => (&op.workspace, &op.command_id),
        Op::TakeBack(op) => (&op.workspace, &op.command_id),
        Op::Depend(op) => (&op.workspace, &op.command_id),
        Op::SettleCommands(op) => (&op.workspace, &op.workspace),
        Op::SettleApprovals(op) => (&op.workspace, &op.workspace),
        Op::Spend(op) => (&op.workspace, &op.workspace),
        Op::SweepMeters(op) => (&op.workspace, &op.workspace),
        Op::EnterCalls(op) => (&op.workspace, &op.workspace),
        Op::Decide(op) => (&op.workspace, &op.approval_id),
        Op::Resolve(op) => (&op.workspace, &op.effect_id),
        Op::PutTrigger(op) => (&op.workspace, &op.trigger.trigger_id),
        Op::Advance(op) => (&op.workspace, &op.trigger_id),
        Op::Backfill(op) => (&op.fire.start.workspace, &op.trigger_id),
        Op::LogActivity(op) => (&op.workspace, &op.run.run_id),
        Op::PutQueue(op) => (&op.workspace, &op.queue.name),
        Op::TakeOver(op) => (&op.workspace, &op.workspace),
        Op::Heartbeat(op) => (&op.workspace, &op.workspace),
        Op::Purge(op) => (&op.workspace, &op.workspace),
        Op::Seal(op) => (&op.workspace, &op.workspace),
        Op::Retain(op) => (&op.workspace, &op.workspace),
        Op::PutSink(op) => (&op.workspace, &op.sink),
        Op::SetSink(op) => (&op.workspace, &op.sink),
        Op::TakeOutbox(op) => (&op.workspace, &op.sink),
        Op::SettleOutbox(op) => (&op.workspace, &op.sink),
        Op::Redrive(op) => (&op.workspace, &op.sink),
        Op::Dequeue(_)
        | Op::Wake(_)
        | Op::GetRun(_)
        | Op::GetEnds(_)
        | Op::ListRuns(_)
        | Op::ListSteps(_)
        | Op::Load(_)
        | Op::GetValue(_)
        | Op::ReadStream(_)
        | Op::ListQueues(_)
        | Op::InspectQueue(_)
        | Op::ReadChain(_)
        | Op::ListSinks(_)
        | Op::ListDead(_)
        | Op::GetCommand(_)
        | Op::ListCommands(_)
        | Op::ListEvents(_)
        | Op::ListEffects(_)
        | Op::ListBudgets(_)
        | Op::ListInvocations(_)
        | Op::ListApprovals(_)
        | Op::ListTriggers(_)
        | Op::DueTriggers(_)
        | Op::ListSlots(_)
        | Op::ListActivities(_)
        | Op::ListWorkers(_) => return None,
    })
}

/// Whether the operation may have ended runs.
fn ends(op: &Op, reply: &Reply) -> bool {
    match reply {
        Reply::Wake(claimed) => !claimed.exhausted.is_empty(),
        _ => {
            matches!(
                op,
                Op::Finish(_) | Op::Cancel(_) | Op::CancelCommand(_) | Op::SettleCommands(_)
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
        _ => matches!(
            op,
            Op::Signal(_)
                | Op::Cancel(_)
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
}

/// What jobs came to; `None` is left open.
type Answers = Vec<Option<Result<Reply, Error>>>;

impl<C: Connect> Lane<C> {
    /// Works off what comes; who writes claims tells how much of the time that takes.
    async fn serve(mut self, mut jobs: mpsc::Receiver<Job>, mut meter: Option<Meter>) {
        let (mut batch, mut is_crowd) = (Vec::new(), false);
        while jobs.recv_many(&mut batch, limits::COMMIT_BATCH).await > 0 {
            // Who is alone would only wait for itself.
            if is_crowd || batch.len() > 1 {
                gather(&mut batch, &mut jobs).await;
            }
            is_crowd = batch.len() > 1;
            let drains = |job: &Job| matches!(&*job.op, Op::Dequeue(_));
            let begun = meter.as_ref().filter(|_| batch.iter().any(drains)).map(|_| Instant::now());
            self.commit(std::mem::take(&mut batch)).await;
            if let Some(meter) = &mut meter {
                meter.add(begun);
            }
        }
    }

    /// Carries out a batch, one way or another, and answers it.
    async fn commit(&mut self, mut batch: Vec<Job>) {
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

    async fn connected(&mut self) -> Result<&mut C::Session, Error> {
        if self.session.as_ref().is_none_or(|session| !session.is_usable()) {
            self.session = None;
            let made = self.connect.connect_lane().await.map_err(session::later)?;
            self.session = Some(made);
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

#[cfg(test)]
mod tests {
    use steadfast_core::Timestamp;

    use super::*;
    use crate::op::{Lease, Record, Release};

    #[test]
    fn owners_share_a_lane_while_a_queue_is_drained_and_others_stay_where_they_are() {
        let lease = |n: usize| Lease {
            workspace: "w".into(),
            run_id: format!("r{n}"),
            worker: "me".into(),
            epoch: 1,
        };
        let now = Timestamp::default();
        let record = |n| Op::Record(Record { lease: lease(n), entries: Vec::new(), now });
        let release = |n| Op::Release(Release { lease: lease(n), now });
        let on = |op: &Op, joins, drained| place(op, joins, || drained);
        let lanes: Vec<usize> = (0..50).map(|n| on(&record(n), true, false)).collect();
        assert!((0..LANES).all(|lane| lanes.contains(&lane)), "{lanes:?}");
        for (n, lane) in lanes.into_iter().enumerate() {
            assert_eq!(on(&record(n), true, true), 0);
            assert_eq!(on(&record(n), false, true), lane);
            assert_eq!(on(&release(n), true, true), lane);
        }
    }
}
