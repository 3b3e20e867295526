//! The writers: everything that waits goes into one commit.

mod mysql;
mod postgres;
mod sqlite;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, oneshot};

/// What a step or a run returns.
const OUTPUT: &str = r#"{"step": 3, "ok": true, "n": 1}"#;
/// Writers of one database server. SQLite has one by nature.
const WRITERS: usize = 2;

/// One row's worth of writing.
pub(crate) enum Write {
    /// A new run; queued, or begun at once.
    Start(Arc<str>, bool),
    /// A step of a run.
    Step(Arc<str>, i64),
    /// A run's end.
    End(Arc<str>),
}

struct Job {
    writes: Vec<Write>,
    done: oneshot::Sender<()>,
}

/// What waits to be written; each writer takes all of it when it is free.
#[derive(Default)]
struct Inbox {
    waiting: Mutex<Vec<Job>>,
    bell: Notify,
    commits: AtomicUsize,
}

impl Inbox {
    fn take(&self) -> Vec<Job> {
        std::mem::take(&mut self.waiting.lock().expect("nobody panics under it"))
    }

    async fn next(&self) -> Vec<Job> {
        loop {
            let batch = self.take();
            if !batch.is_empty() {
                return batch;
            }
            self.bell.notified().await;
        }
    }

    fn committed(&self, batch: Vec<Job>) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        for job in batch {
            // Whoever waited is still there: nothing is cancelled here.
            let _ = job.done.send(());
        }
    }
}

/// The way to the writers of one database.
#[derive(Clone)]
pub(crate) struct Writer(Arc<Inbox>);

impl Writer {
    pub(crate) async fn open(url: &str) -> Self {
        let inbox = Arc::new(Inbox::default());
        match url.split(':').next() {
            Some("sqlite") => sqlite::spawn(url, inbox.clone()),
            Some("postgres") => postgres::spawn(url, &inbox).await,
            Some("mysql") => mysql::spawn(url, &inbox).await,
            _ => panic!("{url:?} is no database of the ceiling"),
        }
        Self(inbox)
    }

    /// Resolves when the rows are on disk.
    pub(crate) async fn put(&self, writes: Vec<Write>) {
        let (done, written) = oneshot::channel();
        self.0.waiting.lock().expect("nobody panics under it").push(Job { writes, done });
        self.0.bell.notify_one();
        written.await.expect("the writers live as long as the program");
    }

    pub(crate) fn commits(&self) -> usize {
        self.0.commits.load(Ordering::Relaxed)
    }
}

/// The rows of a batch, by what becomes of them.
#[derive(Default)]
struct Rows<'a> {
    starts: Vec<(&'a str, bool)>,
    steps: Vec<(&'a str, i64)>,
    ends: Vec<&'a str>,
}

impl<'a> Rows<'a> {
    fn of(batch: &'a [Job]) -> Self {
        let mut rows = Self::default();
        for write in batch.iter().flat_map(|job| &job.writes) {
            match write {
                Write::Start(run, queued) => rows.starts.push((run, *queued)),
                Write::Step(run, step) => rows.steps.push((run, *step)),
                Write::End(run) => rows.ends.push(run),
            }
        }
        rows
    }
}
