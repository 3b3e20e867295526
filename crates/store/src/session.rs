//! A session with a database server: what Postgres and MySQL connections have in common.
//!
//! Invariants: a session that met a fault of the connection is thrown away, never mended; a
//! session goes back to its pool only outside a transaction; work on one is done by a spawned
//! task, so a caller that goes away leaves nothing half done. Deliberately absent: retries without
//! limit, which are `backend::patiently`'s.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::backend::random;
use crate::bell::News;
use crate::clock;
use crate::error::Error;
use crate::fault;
use crate::keep::{self, Keeper};
use crate::op::{Op, Reply};
use crate::tally::Counters;

/// What a driver's error means for whoever holds the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Somebody else was in the way: the same transaction may succeed in a moment.
    Contended,
    /// The connection or its server cannot be used: another connection is needed.
    Down,
    /// The server has no space left: as long as that is so, another connection fails as well.
    Full,
    /// The database's last word.
    Final,
}

impl Fault {
    /// The fault as an error, before a commit was sent.
    pub(crate) fn error(self, text: String) -> Error {
        match self {
            Fault::Contended | Fault::Down => Error::Transient(text),
            Fault::Full => Error::Full(text),
            Fault::Final => Error::Refused(text),
        }
    }
}

/// Which kind of transaction begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Reads one snapshot.
    Read,
    /// Writes for one operation.
    Alone,
    /// Writes for many operations, and so should not wait long for anybody's lock.
    Crowd,
}

/// What an operation came to, before its commit.
pub(crate) struct Applied {
    pub(crate) reply: Reply,
    /// Whether it changed anything.
    pub(crate) wrote: bool,
}

/// One connection, prepared for our statements.
pub(crate) trait Session: Send + 'static {
    /// Begins a transaction.
    fn begin(&mut self, kind: Begin) -> impl Future<Output = Result<(), Error>> + Send;
    /// Carries out an operation inside the transaction, if there is one.
    fn apply(&mut self, op: &Op) -> impl Future<Output = Result<Applied, Error>> + Send;
    /// Begins a transaction and carries out several operations, as if one after the other. The
    /// first error is everybody's.
    fn transact(
        &mut self,
        kind: Begin,
        ops: &[&Op],
    ) -> impl Future<Output = Result<Vec<Applied>, Error>> + Send {
        async move {
            self.begin(kind).await?;
            let mut applied = Vec::with_capacity(ops.len());
            for op in ops {
                applied.push(self.apply(op).await?);
            }
            Ok(applied)
        }
    }
    /// Carries an operation out as one statement that commits by itself, if there is such a way.
    fn at_once(&mut self, _op: &Op) -> impl Future<Output = Result<Option<Reply>, Error>> + Send {
        std::future::ready(Ok(None))
    }
    /// Carries as much of a batch out as one statement that commits by itself can. What has no
    /// reply is left open: nothing of it was written.
    fn all_at_once(
        &mut self,
        ops: &[&Op],
    ) -> impl Future<Output = Result<Vec<Option<Reply>>, Error>> + Send {
        std::future::ready(Ok(vec![None; ops.len()]))
    }
    /// Has the server read its catalogs, by a statement for writing that writes nothing, so that
    /// the first that does need not wait for that.
    fn rehearse(&mut self) -> impl Future<Output = Result<(), Error>> + Send {
        std::future::ready(Ok(()))
    }
    /// Runs a statement without parameters or rows, such as COMMIT.
    fn run(&mut self, sql: &'static str) -> impl Future<Output = Result<(), Error>> + Send;
    /// The store's counters.
    fn counters(&self) -> &Counters;
    /// The server's clock, in microseconds since the epoch.
    fn clock(&mut self) -> impl Future<Output = Result<i64, Error>> + Send;
    /// Whether the connection is good for another transaction.
    fn is_usable(&self) -> bool;
    /// Declares the connection unusable.
    fn give_up(&mut self);
}

/// Makes sessions.
pub(crate) trait Connect: Send + Sync + 'static {
    /// What it makes.
    type Session: Session;
    /// Whether one writer makes the runs that wait, and writes for owners while queues are drained.
    /// Runs that come together then lie together in the table, and are claimed together; and their
    /// ends are few batches, while the next are claimed.
    const JOINS_QUEUES: bool;
    /// Connects; [`Error::Transient`] if that may work later.
    fn connect(&self) -> impl Future<Output = Result<Self::Session, Error>> + Send;
    /// Connects for a writer, which uses its session one question after the other.
    fn connect_lane(&self) -> impl Future<Output = Result<Self::Session, Error>> + Send {
        self.connect()
    }
    /// The database, as faults know it, and the store's counters.
    fn database(&self) -> (&str, &Arc<Counters>);
    /// Called after a commit that may have made something ready for others, or ended a run.
    fn announce(&self, _news: News) {}
}

/// How often contention is met with another try before it is reported.
pub(crate) const TRIES: u32 = 10;

/// The wait before the next try: 5 ms, growing to 50 ms, times 0.5 to 1.5.
pub(crate) async fn brief_wait(tried: u32) {
    let ms = (5 * u64::from(tried) + 5).min(50);
    tokio::time::sleep(Duration::from_millis(ms).mul_f64(0.5 + random())).await;
}

/// No answer takes this long: servers end statements after a minute. A connection that still says
/// nothing leads nowhere.
const SILENCE: Duration = Duration::from_secs(90);

/// Why a session did not answer.
enum Mute {
    Silent,
    /// A panic of ours, in the middle of it.
    Panicked(Box<dyn Any + Send>),
}

/// What a session answers, if it does.
async fn answer<T>(
    asked: impl Future<Output = Result<T, Error>>,
) -> Result<Result<T, Error>, Mute> {
    let asked = AssertUnwindSafe(asked).catch_unwind();
    let answer = tokio::time::timeout(SILENCE, asked).await.map_err(|_| Mute::Silent)?;
    answer.map_err(Mute::Panicked)
}

/// What was heard of a session; one that did not answer is given up.
fn heard<S: Session, T>(
    session: &mut S,
    answer: Result<Result<T, Error>, Mute>,
) -> Result<T, Error> {
    answer.unwrap_or_else(|mute| {
        session.give_up();
        Err(match mute {
            Mute::Silent => Error::Transient(format!("no answer within {} s", SILENCE.as_secs())),
            Mute::Panicked(payload) => keep::panicked(session.counters(), payload),
        })
    })
}

/// [`Session::begin`], but not for ever.
pub(crate) async fn begin<S: Session>(session: &mut S, kind: Begin) -> Result<(), Error> {
    let answer = self::answer(session.begin(kind)).await;
    heard(session, answer)
}

/// [`Session::rehearse`], but not for ever.
pub(crate) async fn rehearse<S: Session>(session: &mut S) -> Result<(), Error> {
    let answer = self::answer(session.rehearse()).await;
    heard(session, answer)
}

/// [`Session::apply`], but not for ever.
pub(crate) async fn apply<S: Session>(session: &mut S, op: &Op) -> Result<Reply, Error> {
    let asked = async {
        fault::point("operation", || format!("{op:?}"));
        session.apply(op).await
    };
    let answer = self::answer(asked).await;
    heard(session, answer).map(|applied| applied.reply)
}

/// [`Session::transact`], but not for ever.
pub(crate) async fn transact<S: Session>(
    session: &mut S,
    kind: Begin,
    ops: &[&Op],
) -> Result<Vec<Applied>, Error> {
    let asked = async {
        fault::point("operation", || format!("{ops:?}"));
        session.transact(kind, ops).await
    };
    let answer = self::answer(asked).await;
    heard(session, answer)
}

/// [`Session::at_once`], but not for ever. It commits, so a fault of the connection leaves the
/// outcome unknown.
pub(crate) async fn at_once<S: Session>(session: &mut S, op: &Op) -> Result<Option<Reply>, Error> {
    let asked = async {
        fault::point("operation", || format!("{op:?}"));
        session.at_once(op).await
    };
    let answer = self::answer(asked).await;
    let done = heard(session, answer);
    if matches!(op, Op::Wake(_)) {
        // It has only looked.
        return done;
    }
    if matches!(done, Ok(Some(_))) {
        session.counters().commit();
    }
    in_commit(session, done)
}

/// [`Session::all_at_once`], but not for ever. It commits, like [`at_once`].
pub(crate) async fn all_at_once<S: Session>(
    session: &mut S,
    ops: &[&Op],
) -> Result<Vec<Option<Reply>>, Error> {
    let asked = async {
        fault::point("operation", || format!("{ops:?}"));
        session.all_at_once(ops).await
    };
    let answer = self::answer(asked).await;
    let done = heard(session, answer);
    if matches!(&done, Ok(replies) if replies.iter().any(Option::is_some)) {
        session.counters().commit();
    }
    in_commit(session, done)
}

/// [`Session::run`], but not for ever.
pub(crate) async fn run<S: Session>(session: &mut S, sql: &'static str) -> Result<(), Error> {
    let answer = self::answer(session.run(sql)).await;
    heard(session, answer)
}

/// Commits. Once it is sent, a fault of the connection leaves the outcome unknown.
pub(crate) async fn commit<S: Session>(session: &mut S) -> Result<(), Error> {
    let done = run(session, "COMMIT").await;
    if done.is_ok() {
        session.counters().commit();
    }
    in_commit(session, done)
}

/// A fault of the connection while a commit was under way leaves the outcome unknown.
fn in_commit<S: Session, T>(session: &S, done: Result<T, Error>) -> Result<T, Error> {
    match done {
        Err(Error::Transient(text) | Error::Full(text)) if !session.is_usable() => {
            Err(Error::Ambiguous(text))
        }
        done => done,
    }
}

/// Ends a transaction that is to leave nothing. If even that fails, the connection goes, and the
/// server takes back what was open on it.
pub(crate) async fn roll_back<S: Session>(session: &mut S) {
    if !session.is_usable() || run(session, "ROLLBACK").await.is_err() {
        session.give_up();
    }
}

/// What a store prepares in its first session, with some patience for a server that is just coming
/// up, or loses the connection in the middle: then it is prepared once more.
pub(crate) async fn first<C: Connect, T>(
    connect: &C,
    prepare: impl AsyncFn(&mut C::Session) -> Result<T, Error>,
) -> Result<T, Error> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let began = Instant::now();
    loop {
        let tried = async {
            let mut session = connect.connect().await?;
            prepare(&mut session).await
        };
        match tried.await {
            Err(error) if error.is_retryable() && began.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(200).mul_f64(0.5 + random())).await;
            }
            answer => return answer,
        }
    }
}

/// A server that has not let us in after this long does not answer.
const CONNECTING: Duration = Duration::from_secs(15);

/// A session that is being made while the store is open, but not for ever.
pub(crate) async fn made<S>(session: impl Future<Output = Result<S, Error>>) -> Result<S, Error> {
    let silent = format!("no connection within {} s", CONNECTING.as_secs());
    match tokio::time::timeout(CONNECTING, session).await {
        Ok(made) => made.map_err(later),
        Err(_) => Err(Error::Transient(silent)),
    }
}

/// A connection that failed after the store was open: whatever the reason, it may pass.
pub(crate) fn later(error: Error) -> Error {
    match error {
        Error::Refused(text) | Error::Incompatible(text) => Error::Transient(text),
        other => other,
    }
}

/// A few sessions, made when needed and kept.
pub(crate) struct Pool<C: Connect> {
    connect: Arc<C>,
    idle: Mutex<Vec<C::Session>>,
    permits: Arc<Semaphore>,
    /// Where the store was opened: its connections live there, whichever runtime asks.
    home: tokio::runtime::Handle,
}

/// A session taken from a pool; it goes back only by [`Pool::put_back`].
pub(crate) struct Held<S> {
    pub(crate) session: S,
    _permit: OwnedSemaphorePermit,
}

impl<C: Connect> Pool<C> {
    pub(crate) fn new(connect: Arc<C>, most: usize) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(most));
        let home = tokio::runtime::Handle::current();
        Arc::new(Self { connect, idle: Mutex::default(), permits, home })
    }

    /// Runs something to its end even if the caller goes away. A panic is the caller's error.
    pub(crate) async fn on_a_task<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (_, counters) = self.connect.database();
        self.home.spawn(work).await.map_err(|ended| keep::lost(counters, ended))?
    }

    pub(crate) async fn take(&self) -> Result<Held<C::Session>, Error> {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| Error::Closed)?;
        loop {
            let kept = self.idle.lock().expect("invariant: not poisoned").pop();
            let session = match kept {
                Some(session) if session.is_usable() => session,
                Some(_) => continue,
                None => made(self.connect.connect()).await?,
            };
            return Ok(Held { session, _permit: permit });
        }
    }

    /// Keeps a session that is outside any transaction.
    pub(crate) fn put_back(&self, held: Held<C::Session>) {
        if held.session.is_usable() {
            self.idle.lock().expect("invariant: not poisoned").push(held.session);
        }
    }

    /// Carries out a reading operation, on a task of its own. Boxed, because it is large and
    /// whoever may have to read would be as large.
    pub(crate) fn read(self: &Arc<Self>, op: Arc<Op>) -> BoxFuture<'_, Result<Reply, Error>> {
        let pool = self.clone();
        let read = async move {
            let mut tried = 0;
            loop {
                match pool.read_once(&op).await {
                    Err(error) if error.is_retryable() && tried < TRIES => {
                        brief_wait(tried).await;
                        tried += 1;
                    }
                    answer => return answer,
                }
            }
        };
        Box::pin(self.on_a_task(read))
    }

    async fn read_once(&self, op: &Op) -> Result<Reply, Error> {
        let mut held = self.take().await?;
        let session = &mut held.session;
        let reply = if is_one_statement(op) {
            apply(session, op).await?
        } else {
            begin(session, Begin::Read).await?;
            let reply = apply(session, op).await?;
            run(session, "COMMIT").await?;
            reply
        };
        self.put_back(held);
        Ok(reply)
    }
}

/// Operations that are one statement are one snapshot without a transaction around them.
fn is_one_statement(op: &Op) -> bool {
    matches!(
        op,
        Op::GetRun(_)
            | Op::GetEnds(_)
            | Op::ListRuns(_)
            | Op::ListSteps(_)
            | Op::GetValue(_)
            | Op::ListQueues(_)
            | Op::ListPeers(_)
            | Op::ListWorkers(_)
    )
}

/// The offset of the server's clock from ours, by one reading.
pub(crate) async fn clock_offset(session: &mut impl Session) -> Result<i64, Error> {
    let began = clock::local_us();
    let answer = self::answer(session.clock()).await;
    let server = heard(session, answer)?;
    Ok(clock::offset_us(began, server, clock::local_us()))
}

/// Measures the clock's offset again and again. Never ends by itself.
pub(crate) async fn keep_clock<C: Connect>(pool: Arc<Pool<C>>, offset: Arc<AtomicI64>) {
    const EVERY: Duration = Duration::from_secs(30);
    loop {
        tokio::time::sleep(EVERY).await;
        let Ok(mut held) = pool.take().await else {
            continue;
        };
        if let Ok(measured) = clock_offset(&mut held.session).await {
            offset.store(measured, Ordering::Relaxed);
            pool.put_back(held);
        }
    }
}

/// Tasks that end with their owner.
pub(crate) struct Chores(Vec<tokio::task::AbortHandle>);

impl Chores {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// Starts one, which is begun anew if it panics.
    pub(crate) fn add<C: Connect>(
        &mut self,
        name: &'static str,
        connect: &C,
        work: impl Fn() -> BoxFuture<'static, ()> + Send + 'static,
    ) {
        let (database, counters) = connect.database();
        let kept = Keeper::new(name, database, counters).task((), move |()| work());
        self.0.push(tokio::spawn(kept).abort_handle());
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::AbortHandle::abort);
    }
}
