//! The writer thread: gathers tasks, commits them together, then answers.
//!
//! Invariants: an answer goes out after its commit; a failing task takes back its own writes and
//! nobody else's. A batch is first applied as it is, because nearly always nothing fails; if one
//! of it does, all of it is taken back and applied again with a savepoint around each task; if
//! even that cannot be committed, each task has a transaction of its own. A commit waits for the
//! disk unless it holds a claim from a queue and nothing else.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::channel::oneshot;
use rusqlite::Connection;
use steadfast_core::driver::Outcome;
use steadfast_core::limits;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::tx::{Disk, SqliteTx, now};
use super::work::Work;
use crate::apply;
use crate::backend::Job;
use crate::error::Error;
use crate::fault;
use crate::keep::{self, Keeper};
use crate::long_way::LongWays;
use crate::lookout;
use crate::op::{Dequeue, Op, Record, Reply, Written};
use crate::sabotage;
use crate::tally::Counters;

/// Tasks that may wait for the writer; beyond it, callers wait to hand theirs in.
const WAITING: usize = 8192;
/// How long the writer stays awake for the next task: about what being woken takes.
const AWAKE: Duration = Duration::from_micros(60);
/// How long a small batch waits for each further task, if the one before was twice as large: those
/// who were answered together come back together, one after the other.
const GATHER: Duration = Duration::from_micros(40);

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

impl Task {
    /// What it is, for faults.
    fn text(&self) -> String {
        match self {
            Self::Job(job) => format!("{:?}", job.op),
            Self::Transact(task) => format!("{:?}", task.records),
        }
    }
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
    is_crowd: Arc<AtomicBool>,
    keeper: Keeper,
) -> Result<mpsc::Sender<Task>, Error> {
    let (tasks, waiting) = mpsc::channel(WAITING);
    let mut waiting = Waiting { tasks: waiting, claims: VecDeque::new() };
    // Whether the next round follows one that panicked.
    let mut panicked = false;
    keeper.thread(move |_| {
        let (counters, is_crowd) = (counters.clone(), is_crowd.clone());
        let mut writer = Writer::new(&connection, counters, &mut waiting, is_crowd);
        if std::mem::replace(&mut panicked, true) {
            writer.tx.take_over();
        }
        while let Some(first) = writer.next() {
            fault::point("batch", || first.text());
            let (batch, committed) = writer.commit(first);
            answer(batch, committed);
        }
    })?;
    Ok(tasks)
}

/// A claim from a queue, if it is one.
fn claim_of(task: &Task) -> Option<&Dequeue> {
    match task {
        Task::Job(job) => match &*job.op {
            Op::Dequeue(claim) => Some(claim),
            _ => None,
        },
        Task::Transact(_) => None,
    }
}

/// What waits for the writer; it outlives a writer that panics.
struct Waiting {
    tasks: mpsc::Receiver<Task>,
    /// Claims that came while others were carried out.
    claims: VecDeque<Task>,
}

impl Waiting {
    /// The next task, if it comes within a time for which it is not worth sleeping.
    fn soon(&mut self, patience: Duration) -> Result<Task, TryRecvError> {
        let mut came = self.tasks.try_recv();
        if patience.is_zero() || came.is_ok() || !lookout::has_company() {
            return came;
        }
        let begun = Instant::now();
        while matches!(came, Err(TryRecvError::Empty)) && begun.elapsed() < patience {
            std::hint::spin_loop();
            came = self.tasks.try_recv();
        }
        came
    }
}

struct Writer<'c> {
    tx: SqliteTx<'c>,
    waiting: &'c mut Waiting,
    long: LongWays,
    /// How many were committed together the last time, and, for all to see, whether several were.
    last: usize,
    is_crowd: Arc<AtomicBool>,
}

impl<'c> Writer<'c> {
    fn new(
        connection: &'c Connection,
        counters: Arc<Counters>,
        waiting: &'c mut Waiting,
        is_crowd: Arc<AtomicBool>,
    ) -> Self {
        let (tx, long) = (SqliteTx::keeping(connection, counters), LongWays::default());
        Self { tx, waiting, long, last: 0, is_crowd }
    }

    /// The next task: a claim, if one waits, since others execute what it takes while the rest is
    /// written. Whoever was answered last often sends something within microseconds, and to be
    /// woken for it takes longer than to stay awake that long.
    fn next(&mut self) -> Option<Task> {
        if let Some(claim) = self.waiting.claims.pop_front() {
            return Some(claim);
        }
        match self.waiting.soon(AWAKE) {
            Err(TryRecvError::Empty) => self.waiting.tasks.blocking_recv(),
            came => came.ok(),
        }
    }

    /// The next task for a commit. Claims that go the short way have commits of their own.
    fn more(&mut self, gathered: usize) -> Option<Task> {
        let patience = match gathered {
            limits::COMMIT_BATCH.. => return None,
            few if few < self.last / 2 => GATHER,
            _ => Duration::ZERO,
        };
        while let Ok(task) = self.waiting.soon(patience) {
            if !claim_of(&task).is_some_and(|claim| self.long.is_short(claim)) {
                return Some(task);
            }
            self.waiting.claims.push_back(task);
        }
        None
    }

    /// One commit: the first task and whatever else waits by then.
    fn commit(&mut self, first: Task) -> (Vec<Task>, Result<Answers, Error>) {
        if let Some(claimed) = self.claim(&first) {
            return (vec![first], claimed);
        }
        let (mut batch, mut next) = (Vec::new(), Some(first));
        let trusting = self.transaction(Disk::Waits, |writer| {
            let mut answers = Answers::new();
            while let Some(task) = next.take() {
                writer.tx.wrote = false;
                let got = perform(&mut writer.tx, &task);
                let spoils =
                    writer.tx.is_over() || writer.tx.wrote && !got.as_ref().is_ok_and(Got::stays);
                if let Some(claim) = claim_of(&task) {
                    writer.long.go(claim);
                }
                batch.push(task);
                if spoils {
                    return Ok(None);
                }
                answers.push(got);
                next = writer.more(answers.len());
            }
            Ok(Some(answers))
        });
        // The first task is still there if not even a transaction could be begun.
        batch.extend(next);
        self.last = batch.len();
        self.is_crowd.store(self.last > 1, Ordering::Relaxed);
        let answers = match trusting {
            Ok(Some(answers)) => Ok(answers),
            Ok(None) => {
                let careful = self.transaction(Disk::Waits, |writer| {
                    let each = batch.iter().map(|task| alone(&mut writer.tx, task));
                    each.collect::<Result<_, _>>().map(Some)
                });
                careful.map(Option::unwrap_or_default)
            }
            Err(error) => Err(error),
        };
        let answers = match answers {
            Err(error) if !error.is_retryable() => {
                Ok(batch.iter().map(|task| self.apart(task)).collect())
            }
            answers => answers,
        };
        (batch, answers)
    }

    /// Does one thing in a transaction of its own: the SQL of somebody's step has ended the one
    /// that it shared, or has left something that cannot be committed.
    fn apart(&mut self, task: &Task) -> Result<Got, Error> {
        self.tx.begin(Disk::Waits)?;
        let got = perform(&mut self.tx, task);
        if got.as_ref().is_ok_and(Got::stays) {
            self.tx.commit()?;
            self.tx.counters().commit();
        } else {
            self.tx.roll_back();
        }
        got
    }

    /// Claims from a queue without waiting for the disk (decision 25): what is written under a
    /// claim waits for both, and one that is lost is as if it had not been. `None` if it is to go
    /// the long way: it is no claim, or more than claims would be written with it, such as the end
    /// of a command whose time is up.
    fn claim(&mut self, task: &Task) -> Option<Result<Answers, Error>> {
        let claim = claim_of(task).filter(|claim| self.long.is_short(claim))?;
        let claimed = self.transaction(Disk::Runs, |writer| {
            let got = perform(&mut writer.tx, task)?;
            Ok((!writer.tx.wrote_more).then(|| vec![Ok(got)]))
        });
        match claimed {
            Ok(Some(answers)) => Some(Ok(answers)),
            Ok(None) => {
                self.long.learn(claim);
                None
            }
            Err(error) => error.is_retryable().then_some(Err(error)),
        }
    }

    /// Commits what the body did, or takes all of it back if it gives nothing.
    fn transaction(
        &mut self,
        disk: Disk,
        body: impl FnOnce(&mut Self) -> Result<Option<Answers>, Error>,
    ) -> Result<Option<Answers>, Error> {
        self.tx.begin(disk)?;
        let done = body(self);
        if let Ok(Some(_)) = &done {
            self.tx.commit()?;
            self.tx.counters().commit();
        } else {
            self.tx.roll_back();
        }
        done
    }
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

/// Carries a task out. A panic of ours fails it alone.
fn perform(tx: &mut SqliteTx<'_>, task: &Task) -> Result<Got, Error> {
    let done = catch_unwind(AssertUnwindSafe(|| carry_out(tx, task)));
    done.unwrap_or_else(|payload| {
        tx.after_panic();
        Err(keep::panicked(tx.counters(), payload))
    })
}

fn carry_out(tx: &mut SqliteTx<'_>, task: &Task) -> Result<Got, Error> {
    fault::point("operation", || task.text());
    match task {
        Task::Job(job) => {
            let apply = || now(apply::apply(tx, &job.op));
            sabotage::within(job.op.name(), apply).map(Got::Reply)
        }
        Task::Transact(task) => {
            // The caller's statements do not pass the gate.
            tx.wrote = true;
            let worked = task.work.perform(tx, &task.records);
            worked.map(|(written, outcome)| Got::Worked(written, outcome))
        }
    }
}

/// Does one thing under a savepoint, so that its failure is its own; the outer error is
/// everybody's, who was there when SQLite took the whole transaction back.
fn alone(tx: &mut SqliteTx<'_>, task: &Task) -> Result<Result<Got, Error>, Error> {
    tx.batch("SAVEPOINT one")?;
    let got = perform(tx, task);
    if got.is_err() && tx.is_over() {
        return got.map(Ok);
    }
    if !got.as_ref().is_ok_and(Got::stays) {
        tx.batch("ROLLBACK TO one")?;
    }
    tx.batch("RELEASE one")?;
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Claimed, PutQueue, QueueRow, Start};
    use crate::sqlite::connection::{MEMORY, open_ready};
    use steadfast_core::Timestamp;

    const NOW: Timestamp = Timestamp::from_micros(1);

    fn start(run_id: &str, queue: &str) -> Op {
        Op::Start(Start { queue: queue.into(), ..crate::sqlite::tests::start(run_id) })
    }

    fn claim(queue: &str) -> Op {
        Op::Dequeue(Dequeue {
            workspace: "w".into(),
            queue: queue.into(),
            worker: "me".into(),
            app_version: String::new(),
            workflows: vec!["order".into()],
            limit: 1,
            worker_has: Vec::new(),
            after_partition: String::new(),
            behind: None,
            lease_until: Timestamp::from_micros(9),
            now: NOW,
        })
    }

    fn queue(name: &str, rate: Option<(i64, Duration)>) -> Op {
        let queue = QueueRow { name: name.into(), rate, ..QueueRow::default() };
        Op::PutQueue(PutQueue { workspace: "w".into(), queue, now: NOW })
    }

    fn task(op: Op) -> Task {
        Task::Job(Job { op: Arc::new(op), reply: oneshot::channel().0 })
    }

    /// What a writer waits for, and who sends it tasks.
    fn waiting() -> (Waiting, mpsc::Sender<Task>) {
        let (sender, tasks) = mpsc::channel(WAITING);
        (Waiting { tasks, claims: VecDeque::new() }, sender)
    }

    fn writer<'c>(connection: &'c Connection, waiting: &'c mut Waiting) -> Writer<'c> {
        Writer::new(connection, Arc::default(), waiting, Arc::default())
    }

    /// What one operation comes to, and how its commit was made: 2 waits for the disk.
    fn commit(writer: &mut Writer<'_>, op: Op) -> (Reply, i64) {
        let (_, committed) = writer.commit(task(op));
        let level = "PRAGMA synchronous";
        let level = writer.tx.connection().query_row(level, [], |row| row.get(0)).unwrap();
        match committed.unwrap().pop() {
            Some(Ok(Got::Reply(reply))) => (reply, level),
            _ => panic!("an operation gives a reply"),
        }
    }

    fn run_ids(reply: &Reply) -> Vec<&str> {
        let Reply::Dequeue(Claimed { runs, .. }) = reply else { panic!("{reply:?}") };
        runs.iter().map(|run| run.run_id.as_str()).collect()
    }

    #[test]
    fn only_a_claim_and_nothing_else_does_not_wait_for_the_disk() {
        let connection = open_ready(MEMORY).unwrap();
        let (mut waiting, _tasks) = waiting();
        let mut writer = writer(&connection, &mut waiting);
        let rate = Some((100, Duration::from_secs(1)));
        assert_eq!(commit(&mut writer, queue("plain", None)).1, 2);
        assert_eq!(commit(&mut writer, queue("rated", rate)).1, 2);
        for n in 0..200 {
            let (plain, rated) = (format!("p{n:03}"), format!("r{n:03}"));
            assert_eq!(commit(&mut writer, start(&plain, "plain")).1, 2);
            assert_eq!(commit(&mut writer, start(&rated, "rated")).1, 2);
            let (claimed, level) = commit(&mut writer, claim("plain"));
            assert_eq!((run_ids(&claimed), level), (vec![plain.as_str()], 1));
            if n < 90 {
                // What is started within a rate is counted, and must not be forgotten.
                let (claimed, level) = commit(&mut writer, claim("rated"));
                assert_eq!((run_ids(&claimed), level), (vec![rated.as_str()], 2));
            }
        }
        assert_eq!(commit(&mut writer, queue("rated", None)).1, 2);
        let mut levels = (0..100).map(|_| commit(&mut writer, claim("rated")).1);
        assert!(levels.any(|level| level == 1), "a queue whose rate is gone is found out");
    }

    /// SQLite takes the whole transaction back then, with what others have done in it.
    #[test]
    fn all_who_are_there_when_space_runs_out_are_to_try_again() {
        let connection = open_ready(MEMORY).unwrap();
        let (mut waiting, tasks) = waiting();
        let mut writer = writer(&connection, &mut waiting);
        let small = crate::sqlite::tests::start("small");
        let large = Start { run_id: "large".into(), input: "1".repeat(1 << 20), ..small.clone() };
        let ops = [Op::Start(small), Op::Start(large)];
        let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        let pages = count("PRAGMA page_count") + 20;
        for (room, runs) in [(pages, 0), (1 << 20, 2)] {
            count(&format!("PRAGMA max_page_count = {room}"));
            for op in ops.clone() {
                assert!(tasks.try_send(task(op)).is_ok());
            }
            let first = writer.next().unwrap();
            let (batch, done) = writer.commit(first);
            assert_eq!(batch.len(), 2);
            match done {
                Ok(answers) => assert!(answers.iter().all(Result::is_ok) && runs == 2),
                Err(error) => assert!(matches!(error, Error::Full(_)) && runs == 0),
            }
            assert_eq!(count("SELECT COUNT(*) FROM run"), runs);
        }
    }

    #[test]
    fn claims_that_come_among_others_go_before_what_comes_next() {
        let connection = open_ready(MEMORY).unwrap();
        let (mut waiting, tasks) = waiting();
        let mut writer = writer(&connection, &mut waiting);
        commit(&mut writer, queue("q", None));
        for op in [start("a", "q"), claim("q"), start("b", "q")] {
            assert!(tasks.try_send(task(op)).is_ok());
        }
        let first = writer.next().unwrap();
        assert_eq!(writer.commit(first).0.len(), 2, "both starts");
        assert!(tasks.try_send(task(start("c", "q"))).is_ok());
        let next = writer.next().unwrap();
        assert!(claim_of(&next).is_some());
        let Ok(claimed) = writer.commit(next).1 else { panic!("a claim") };
        let [Ok(Got::Reply(reply))] = &claimed[..] else { panic!("one reply") };
        assert_eq!(run_ids(reply), ["a"]);
        drop(tasks);
        assert!(writer.next().is_some_and(|task| claim_of(&task).is_none()));
        assert!(writer.next().is_none(), "nobody is left");
    }
}
