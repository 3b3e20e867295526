//! The store on SQLite: one writer thread, group commit, readers beside it.
//!
//! Invariants: every write goes through the one writer, in a transaction that is durable
//! (`synchronous=FULL`) before any of its answers goes out, but for claims from a queue, which what
//! is written under them brings to disk (decision 25); while a commit runs, the next batch gathers;
//! a failing operation is rolled back alone, by its savepoint.
//! Deliberately absent: timers for batching. Who is alone is committed at once; of several who were
//! answered together, the first to come back waits some microseconds for the others.

mod connection;
mod file;
mod tx;
mod watch;
mod work;
mod writer;

use std::any::Any;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::channel::oneshot;
use futures::future::BoxFuture;
use rusqlite::Connection;
use steadfast_core::driver::Outcome;
use tokio::sync::{Notify, Semaphore, mpsc};

pub use rusqlite;
pub use work::{Work, start_in};

use crate::apply;
use crate::backend::{Job, carry_out, patiently};
use crate::error::Error;
use crate::fault;
use crate::keep::{self, Keeper};
use crate::lookout::{self, Lookout, Seat};
use crate::op::{Op, Record, Reply, Store, Written};
use crate::tally::{Counters, Tally};
use file::StoreFile;
use tx::SqliteTx;
use writer::{Task, Transact};

/// Connections for reading, at most: more would be as many threads that wait for one another.
const READERS: usize = 4;

/// A store in a SQLite file, or in memory.
pub struct Sqlite {
    tasks: mpsc::Sender<Task>,
    readers: Readers,
    /// Tasks that the writer has not answered, whether it last committed several together, and how
    /// its answers are waited for.
    open: AtomicUsize,
    is_crowd: Arc<AtomicBool>,
    lookout: Lookout,
    counters: Arc<Counters>,
    /// Rung when another connection has written, or when the file is gone; none for a database in
    /// memory.
    bell: Option<Arc<Notify>>,
    file: Option<Arc<StoreFile>>,
}

/// Reader connections, made when needed and kept. In memory there is only the writer's.
enum Readers {
    File { path: PathBuf, idle: Arc<Mutex<Vec<Connection>>>, permits: Arc<Semaphore> },
    Memory,
}

/// How an answer may be waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Looking,
    Sleeping,
}

/// A task that is not answered yet, counted until whoever sent it has its answer or goes away.
struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn one_more(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sqlite {
    /// Opens the file of a URL (`sqlite://orders.db`) or a database in memory (`sqlite::memory:`).
    pub async fn open(url: &str) -> Result<Self, Error> {
        let place = url.strip_prefix("sqlite:").unwrap_or(url);
        let place = place.strip_prefix("//").unwrap_or(place);
        if place.is_empty() {
            return Err(Error::Refused(
                "sqlite: needs a file, as in sqlite://orders.db".to_owned(),
            ));
        }
        let place = place.to_owned();
        let ready = move || connection::open_ready(&place).map(|connection| (connection, place));
        let counters = Arc::new(Counters::default());
        let opened = tokio::task::spawn_blocking(ready).await;
        let (connection, place) = opened.map_err(|ended| keep::lost(&counters, ended))??;
        let (readers, bell, file) = match place.as_str() {
            connection::MEMORY => (Readers::Memory, None, None),
            path => {
                let keeper = Keeper::new("watch", path, &counters);
                let path = PathBuf::from(path);
                let file = Arc::new(StoreFile::opened(&path));
                let bell = watch::spawn(&path, file.clone(), keeper)?;
                let permits = Arc::new(Semaphore::new(READERS));
                (Readers::File { path, idle: Arc::default(), permits }, Some(bell), Some(file))
            }
        };
        let is_crowd = Arc::new(AtomicBool::new(false));
        let keeper = Keeper::new("writer", &place, &counters);
        let tasks = writer::spawn(connection, counters.clone(), is_crowd.clone(), keeper)?;
        let (open, lookout) = (AtomicUsize::new(0), Lookout::new());
        Ok(Self { tasks, readers, open, is_crowd, lookout, counters, bell, file })
    }

    /// Has the writer carry out a task. Whoever is alone with it looks for the answer.
    async fn send<T>(
        &self,
        manner: Wait,
        make: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Task,
    ) -> Result<T, Error> {
        let (reply, mut answer) = oneshot::channel();
        let _open = Open::one_more(&self.open);
        self.tasks.send(make(reply)).await.map_err(|_| Error::Closed)?;
        if manner == Wait::Looking
            && self.is_alone()
            && self.is_still_alone().await
            && let Some(_seat) = Seat::take()
            && self.lookout.is_worth_it()
            && let Some(answered) = self.lookout.look(|| answer.try_recv().transpose())
        {
            return answered.map_err(|_| keep::unanswered())?;
        }
        answer.await.map_err(|_| keep::unanswered())?
    }

    /// Whether whoever has just sent something is the only one. Of several, the first to come back
    /// seems so, too.
    fn is_alone(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 1 && !self.is_crowd.load(Ordering::Relaxed)
    }

    /// The same after those have had their turn who are ready to run on this thread: looking would
    /// keep them from sending what could share the commit.
    async fn is_still_alone(&self) -> bool {
        lookout::others_first().await;
        self.is_alone()
    }

    /// What comes of a try, unless the file is gone.
    async fn on_file<T>(
        &self,
        attempt: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Some(file) = &self.file else {
            return attempt.await;
        };
        file.check()?;
        attempt.await.map_err(|error| file.cause(error))
    }

    async fn once(&self, op: Arc<Op>) -> Result<Reply, Error> {
        match &self.readers {
            Readers::File { path, idle, permits } if op.is_read() => {
                let permit = permits.clone().acquire_owned().await.map_err(|_| Error::Closed)?;
                let (path, idle) = (path.clone(), idle.clone());
                let (counters, of) = (self.counters.clone(), &self.counters);
                let read = move || {
                    let reply = read(&path, &idle, counters, &op);
                    // Held to the end of the read, also if whoever asked has gone.
                    drop(permit);
                    reply
                };
                let answered = tokio::task::spawn_blocking(read).await;
                answered.map_err(|ended| keep::lost(of, ended))?
            }
            _ => {
                let manner = if is_awaited(&op) { Wait::Looking } else { Wait::Sleeping };
                self.send(manner, |reply| Task::Job(Job { op, reply })).await
            }
        }
    }
}

/// Whether somebody's own code goes on only with the answer.
fn is_awaited(op: &Op) -> bool {
    let owned = matches!(op, Op::Record(_) | Op::Finish(_) | Op::Suspend(_));
    owned || matches!(op, Op::Start(_) | Op::Submit(_) | Op::Signal(_))
}

/// Runs a reading operation on a connection of its own, in one snapshot.
fn read(
    path: &std::path::Path,
    idle: &Mutex<Vec<Connection>>,
    counters: Arc<Counters>,
    op: &Op,
) -> Result<Reply, Error> {
    let kept = idle.lock().expect("invariant: not poisoned").pop();
    let connection = match kept {
        Some(connection) => connection,
        None => connection::prepare(connection::open_again(path)?)?,
    };
    let mut tx = SqliteTx::new(&connection, counters);
    fault::point("read", || format!("{op:?}"));
    tx.batch("BEGIN")?;
    let reply = tx::now(apply::apply(&mut tx, op));
    tx.batch("COMMIT")?;
    drop(tx);
    idle.lock().expect("invariant: not poisoned").push(connection);
    reply
}

impl Store for Sqlite {
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(carry_out(op, |op| self.on_file(self.once(op))))
    }

    fn tally(&self) -> Tally {
        self.counters.read()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        match &self.bell {
            Some(bell) => Box::pin(bell.notified()),
            None => Box::pin(std::future::pending()),
        }
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        self.changed()
    }

    fn transact(
        &self,
        records: Record,
        work: Box<dyn Any + Send + Sync>,
    ) -> BoxFuture<'_, Result<(Written, Outcome), Error>> {
        Box::pin(async move {
            let work = work.downcast::<Work>().map_err(|_| {
                Error::Refused("the transaction was not written for SQLite".to_owned())
            })?;
            let work = Arc::new(*work);
            let transact = || {
                let (records, work) = (records.clone(), work.clone());
                self.on_file(self.send(Wait::Sleeping, |reply| {
                    Task::Transact(Box::new(Transact { records, work, reply }))
                }))
            };
            patiently("transact", transact).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Start;
    use steadfast_core::Timestamp;

    /// A plain start.
    pub(super) fn start(run_id: &str) -> Start {
        let now = Timestamp::from_micros(1);
        Start {
            workspace: "w".into(),
            run_id: run_id.into(),
            workflow: "order".into(),
            input: "1".into(),
            queue: crate::op::DEFAULT_QUEUE.into(),
            partition: String::new(),
            priority: 0,
            dedupe_id: String::new(),
            app_version: String::new(),
            max_attempts: 1,
            ready_at: now,
            timeout: None,
            deadline_at: None,
            parent: String::new(),
            detached: false,
            seed: 0,
            context: None,
            claim: None,
            rest: None,
            now,
        }
    }

    fn get(run_id: &str) -> Op {
        let (workspace, now) = ("w".to_owned(), Timestamp::from_micros(1));
        Op::GetRun(crate::op::GetRun { workspace, run_id: run_id.to_owned(), now })
    }

    /// A store that was open while something happened to its file: what its operations come to a
    /// second later at most.
    async fn after(change: impl FnOnce(&std::path::Path)) -> [Result<Reply, Error>; 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = Sqlite::open(&format!("sqlite://{}", path.display())).await.unwrap();
        store.call(Op::Start(start("before"))).await.unwrap();
        let bell = store.changed();
        change(&path);
        let begun = std::time::Instant::now();
        let was_there = path.exists();
        while store.file.as_ref().unwrap().check().is_ok()
            && begun.elapsed() < std::time::Duration::from_secs(1)
        {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let answers =
            [store.call(Op::Start(start("after"))).await, store.call(get("before")).await];
        if answers[0].is_err() {
            bell.await;
        }
        assert_eq!(path.exists(), was_there, "no file is made anew");
        answers
    }

    #[tokio::test]
    async fn a_file_that_is_removed_or_replaced_is_an_error_within_a_second() {
        let remove = |path: &std::path::Path| std::fs::remove_file(path).unwrap();
        let gone = |answers: [Result<Reply, Error>; 2], what: &str| {
            for answer in answers {
                let Err(Error::Gone(text)) = &answer else { panic!("{answer:?}") };
                assert!(text.contains("store.db") && text.contains(what), "{text}");
            }
        };
        gone(after(remove).await, "was removed");
        let all = |path: &std::path::Path| {
            for entry in std::fs::read_dir(path.parent().unwrap()).unwrap() {
                std::fs::remove_file(entry.unwrap().path()).unwrap();
            }
        };
        gone(after(all).await, "was removed");
        let away = |path: &std::path::Path| {
            std::fs::rename(path, path.with_extension("bak")).unwrap();
        };
        gone(after(away).await, "was removed");
        let replace = |path: &std::path::Path| {
            let copy = path.with_extension("copy");
            std::fs::copy(path, &copy).unwrap();
            std::fs::rename(copy, path).unwrap();
        };
        gone(after(replace).await, "was replaced");
    }

    #[tokio::test]
    async fn a_file_that_is_copied_or_written_by_others_is_still_the_store() {
        let used = |path: &std::path::Path| {
            std::fs::copy(path, path.with_extension("copy")).unwrap();
            let other = Connection::open(path).unwrap();
            other.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        };
        for answer in after(used).await {
            answer.unwrap();
        }
    }

    /// Whoever looks for an answer keeps others on its thread from sending: the first must not
    /// believe that it is alone.
    #[tokio::test]
    async fn many_on_one_thread_share_commits() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", dir.path().join("store.db").display());
        let store = Arc::new(Sqlite::open(&url).await.unwrap());
        let before = store.tally();
        let send = |n| {
            let store = store.clone();
            tokio::spawn(async move { store.call(Op::Start(start(&format!("r{n}")))).await })
        };
        for sent in (0..100).map(send).collect::<Vec<_>>() {
            sent.await.unwrap().unwrap();
        }
        let commits = store.tally().since(before).commits;
        assert!(commits <= 20, "{commits} commits for 100 starts");
    }
}
