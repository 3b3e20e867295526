//! A vendor to try things on: real HTTP on a free port, days of sales made of their date, and a
//! script of what goes wrong.
//!
//! Invariants: a day's sales follow from its date alone; every request is written down with what
//! was answered, and that log is what the sync is judged by. Deliberately absent: anything that
//! the sync shares with it, but for decimals.

mod day;
mod serve;
mod shape;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub use day::{Change, Day, FIELDS};
pub use shape::Shape;

/// Where it plays somebody's pager.
pub const PAGER: &str = "POST /pager";

/// What is answered instead of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// This status, and nothing to read.
    Status(u16),
    /// Too many requests: come again in so many seconds.
    Later(u64),
    /// Nothing: the connection ends.
    Hangup,
    /// The page, but not before [`Simulator::release`].
    Held,
}

/// A request, and what was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its method and path.
    pub operation: String,
    /// The day it asked for.
    pub date: String,
    /// The page it asked for, from 1.
    pub page: u64,
    /// The status; 0 for none.
    pub status: u16,
    /// The trace it belongs to: one for each command.
    pub trace: String,
    /// What else it said: whom to wake for what.
    pub body: String,
}

/// The simulator. Cloning it gives the same one.
#[derive(Clone)]
pub struct Simulator(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// A permit for each answer that may go.
    released: Semaphore,
}

impl Default for Simulator {
    fn default() -> Self {
        let released = Semaphore::new(0);
        Self(Arc::new(Inner { state: Mutex::default(), released }))
    }
}

struct State {
    /// By day and page; page 0 stands for whichever comes next.
    script: BTreeMap<(String, u64), VecDeque<Answer>>,
    /// Days whose sales are those of another: nothing new was made.
    stale: BTreeMap<String, String>,
    log: Vec<Seen>,
    shape: Shape,
    token: Option<String>,
    rows: u64,
    page_rows: u64,
    twists: BTreeMap<String, Twist>,
    /// Whether a changed snapshot keeps its name.
    forgets_names: bool,
}

/// What is special about a day.
#[derive(Debug, Clone, Default)]
struct Twist {
    revision: u32,
    rows: Option<u64>,
    /// It changes when it was asked for so often.
    changes_after: Option<u64>,
    /// It says that there is one row more than there is.
    lies: bool,
    /// Its last row is another one that comes to the same.
    swaps: bool,
    /// Its rows are not what was agreed.
    changes: Vec<Change>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            script: BTreeMap::new(),
            stale: BTreeMap::new(),
            log: Vec::new(),
            shape: Shape::default(),
            token: None,
            rows: 40,
            page_rows: 25,
            twists: BTreeMap::new(),
            forgets_names: false,
        }
    }
}

impl Simulator {
    /// A vendor that works.
    pub fn new() -> Self {
        Self::default()
    }

    /// Speaks in another way.
    pub fn shape(self, shape: Shape) -> Self {
        self.lock().shape = shape;
        self
    }

    /// Wants this token with every request.
    pub fn token(self, token: &str) -> Self {
        self.lock().token = Some(token.to_owned());
        self
    }

    /// About how many rows a day has, and how many a page.
    pub fn size(self, rows: u64, page_rows: u64) -> Self {
        {
            let mut state = self.lock();
            (state.rows, state.page_rows) = (rows, page_rows.max(1));
        }
        self
    }

    /// Answers the next requests for a day like this, and then as it should.
    pub fn on(&self, date: &str, answers: impl IntoIterator<Item = Answer>) {
        self.lock().script.entry((date.to_owned(), 0)).or_default().extend(answers);
    }

    /// Answers the next request for a page of a day like this.
    pub fn on_page(&self, date: &str, page: u64, answer: Answer) {
        self.lock().script.entry((date.to_owned(), page)).or_default().push_back(answer);
    }

    /// Has nothing new for a day: it answers with the snapshot of another.
    pub fn stale(&self, date: &str, same_as: &str) {
        self.lock().stale.insert(date.to_owned(), same_as.to_owned());
    }

    /// Changes a day's sales after the fact.
    pub fn revise(&self, date: &str) {
        self.lock().twists.entry(date.to_owned()).or_default().revision += 1;
    }

    /// Changes a day's sales when it was asked for them so often: between two pages, perhaps.
    pub fn revise_after(&self, date: &str, requests: u64) {
        self.lock().twists.entry(date.to_owned()).or_default().changes_after = Some(requests);
    }

    /// Leaves so many rows of a day.
    pub fn shrink(&self, date: &str, rows: u64) {
        let mut state = self.lock();
        let twist = state.twists.entry(date.to_owned()).or_default();
        (twist.rows, twist.revision) = (Some(rows), twist.revision + 1);
    }

    /// Says that a day has one row more than it has.
    pub fn lie(&self, date: &str) {
        self.lock().twists.entry(date.to_owned()).or_default().lies = true;
    }

    /// Changes the last row of a day, on its last page, so that the totals stay what they were.
    pub fn swap(&self, date: &str) {
        self.lock().twists.entry(date.to_owned()).or_default().swaps = true;
    }

    /// Has other fields in the rows of a day than were agreed.
    pub fn drift(&self, date: &str, change: Change) {
        self.lock().twists.entry(date.to_owned()).or_default().changes.push(change);
    }

    /// Gives changed sales the name that they had before.
    pub fn forget_names(&self) {
        self.lock().forgets_names = true;
    }

    /// How often somebody was paged.
    pub fn pages(&self) -> usize {
        self.lock().log.iter().filter(|seen| seen.operation == PAGER).count()
    }

    /// Lets one answer go that is held, or will be.
    pub fn release(&self) {
        self.0.released.add_permits(1);
    }

    /// Every request so far.
    pub fn log(&self) -> Vec<Seen> {
        self.lock().log.clone()
    }

    /// The sales of a day, as the vendor has them.
    pub fn day(&self, date: &str) -> Day {
        let state = self.lock();
        let source = state.stale.get(date).cloned().unwrap_or_else(|| date.to_owned());
        let twist = state.twists.get(&source).cloned().unwrap_or_default();
        let mut day = Day::of(&source, twist.revision, state.rows);
        if let Some(rows) = twist.rows {
            day.shrink(usize::try_from(rows).unwrap_or(usize::MAX));
        }
        if let Some(last) = day.rows.last_mut().filter(|_| twist.swaps) {
            last["region"] = "elsewhere".into();
        }
        if state.forgets_names {
            day.snapshot_id = format!("snap-{source}");
        }
        twist.changes.iter().for_each(|change| day.change(change));
        day.claims = day.rows.len() + usize::from(twist.lies);
        day
    }

    /// Listens on a free port of this machine; gives the address.
    pub async fn listen(&self) -> std::io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let simulator = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let simulator = simulator.clone();
                // A caller that goes away is its own affair.
                tokio::spawn(async move { drop(simulator.serve(stream).await) });
            }
        });
        Ok(url)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("invariant: nobody panics under this lock")
    }
}
