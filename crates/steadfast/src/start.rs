//! A start, with its options.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast_core::{Error, Result, Timestamp};
use steadfast_runtime_native::StartSpec;
use steadfast_store::op;

use crate::client::Client;
use crate::run::Run;

/// A run about to be started.
#[must_use = "a run is not started until this is awaited"]
pub struct StartCall<T> {
    client: Client,
    spec: Result<StartSpec>,
    debounce: Option<(String, Duration, Option<Duration>)>,
    output: PhantomData<fn() -> T>,
}

impl<T> StartCall<T> {
    pub(crate) fn new(client: Client, spec: StartSpec) -> Self {
        Self { client, spec: Ok(spec), debounce: None, output: PhantomData }
    }

    pub(crate) fn refused(client: Client, refusal: Error) -> Self {
        Self { client, spec: Err(refusal), debounce: None, output: PhantomData }
    }

    /// The run's id: the same id is the same run, however often it is started.
    pub fn id(self, run_id: impl Into<String>) -> Self {
        let run_id = run_id.into();
        self.with(|spec| spec.run_id = Some(run_id))
    }

    /// Puts it on a queue.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        let queue = queue.into();
        self.with(|spec| spec.queue = queue)
    }

    /// The partition of a partitioned queue.
    pub fn partition(self, partition: impl Into<String>) -> Self {
        let partition = partition.into();
        self.with(|spec| spec.partition = partition)
    }

    /// Lower goes first, on a queue with priorities.
    pub fn priority(self, priority: i64) -> Self {
        self.with(|spec| spec.priority = priority)
    }

    /// At most one run with this id is active on the queue. A run that is resumed takes its id
    /// again, unless another run has it by then.
    pub fn dedupe(self, dedupe_id: impl Into<String>) -> Self {
        let dedupe_id = dedupe_id.into();
        self.with(|spec| spec.dedupe_id = dedupe_id)
    }

    /// Starts it later.
    pub fn delay(self, d: Duration) -> Self {
        self.with(|spec| spec.delay = d)
    }

    /// Stops it if it takes longer, counted from its first claim.
    pub fn timeout(self, d: Duration) -> Self {
        self.with(|spec| spec.timeout = Some(d))
    }

    /// Stops it at a moment, whether it has started or not.
    pub fn deadline(self, at: Timestamp) -> Self {
        self.with(|spec| spec.deadline = Some(at))
    }

    /// Pins it to a version of the application.
    pub fn version(self, version: impl Into<String>) -> Self {
        let version = version.into();
        self.with(|spec| spec.app_version = version)
    }

    /// How many recoveries it gets before it is parked.
    pub fn max_recoveries(self, most: u32) -> Self {
        self.with(|spec| spec.max_attempts = most)
    }

    /// Starts it only after a quiet time: every further call with the key replaces the input and
    /// waits anew, but never longer than `at_most` after the first. A call after the run has begun
    /// starts the next run.
    ///
    /// Each workflow has keys of its own. A further call replaces the input and nothing else: id,
    /// queue, priority, timeout and version are those of the call that created the run, as
    /// [`Run::is_new`] tells.
    pub fn debounce(
        mut self,
        key: impl Into<String>,
        quiet: Duration,
        at_most: impl Into<Option<Duration>>,
    ) -> Self {
        self.debounce = Some((key.into(), quiet, at_most.into()));
        self
    }

    fn with(mut self, set: impl FnOnce(&mut StartSpec)) -> Self {
        if let Ok(spec) = &mut self.spec {
            set(spec);
        }
        self
    }

    /// The operation, for starting inside a transaction of the caller's.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) fn into_op(self) -> Result<(Client, op::Start)> {
        if self.debounce.is_some() {
            return Err(Error::invalid("SF-0118", "a debounced start cannot join a transaction"));
        }
        let start = self.client.inner.start_op(self.spec?)?;
        Ok((self.client, start))
    }

    /// What the store's answer means to the caller of a transactional start.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) fn handle(client: Client, start: &op::Start, reply: op::Started) -> Result<Run<T>> {
        let new = client.inner.started(start, reply)?.is_some();
        Ok(Run::new(client, start.run_id.clone(), new))
    }
}

impl<T: Send + 'static> IntoFuture for StartCall<T> {
    type Output = Result<Run<T>>;
    type IntoFuture = BoxFuture<'static, Result<Run<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (client, spec) = (self.client, self.spec?);
            if let Some((key, quiet, at_most)) = self.debounce {
                let (run_id, new) = client.inner.debounce(spec, &key, quiet, at_most).await?;
                return Ok(Run::new(client, run_id, new));
            }
            let (run_id, new) = match &client.worker {
                Some(worker) => worker.submit(spec).await?,
                None => client.inner.start(spec).await?,
            };
            Ok(Run::new(client, run_id, new))
        })
    }
}
