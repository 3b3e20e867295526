//! A handle to one run: its result, its signals, its values, its streams.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use steadfast_core::{Error, ErrorClass, Result, RunStatus, json};

use crate::client::{Client, RunInfo};

/// A run that returns a `T`.
#[derive(Clone)]
pub struct Run<T> {
    client: Client,
    run_id: String,
    new: bool,
    output: PhantomData<fn() -> T>,
}

impl<T> Run<T> {
    pub(crate) fn new(client: Client, run_id: String, new: bool) -> Self {
        Self { client, run_id, new, output: PhantomData }
    }

    /// The run's id.
    pub fn id(&self) -> &str {
        &self.run_id
    }

    /// Whether this handle's call (a start, a debounced start, a fork) created the run, rather than
    /// found it.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// The run as it is stored.
    pub async fn info(&self) -> Result<RunInfo> {
        self.client.get(&self.run_id).await
    }

    /// Where it stands.
    pub async fn status(&self) -> Result<RunStatus> {
        Ok(self.info().await?.status)
    }

    /// Sends it a signal.
    pub async fn signal<P: Serialize>(&self, name: &str, payload: P) -> Result<()> {
        self.client.signal(&self.run_id, name, payload).await
    }

    /// Stops it before its next step begins.
    pub async fn cancel(&self, reason: &str) -> Result<()> {
        self.client.cancel(&self.run_id, reason).await
    }

    /// A value it published, once it is there; `None` if it is not within the time.
    pub async fn value<V: DeserializeOwned>(
        &self,
        key: &str,
        at_most: Duration,
    ) -> Result<Option<V>> {
        self.client.value(&self.run_id, key, at_most).await
    }

    /// Reads one of its streams from the start, following it live.
    pub fn stream<V: DeserializeOwned>(&self, stream: &str) -> StreamReader<V> {
        StreamReader {
            client: self.client.clone(),
            run_id: self.run_id.clone(),
            stream: stream.to_owned(),
            next: 0,
            read: Vec::new().into_iter(),
            closed: false,
            item: PhantomData,
        }
    }
}

impl<T: DeserializeOwned> Run<T> {
    /// Waits for the end, and gives the value or the error. Dropping the wait does not stop the
    /// run.
    pub async fn result(&self) -> Result<T> {
        let end = self.client.inner.wait(&self.run_id).await?;
        json::decode("the result", &end.outcome?)
    }

    /// Waits for the end, but not longer than this; the run goes on.
    pub async fn result_within(&self, at_most: Duration) -> Result<T> {
        match tokio::time::timeout(at_most, self.result()).await {
            Ok(result) => result,
            Err(_) => Err(Error::new(
                ErrorClass::Timeout,
                "SF-0119",
                format!("run \"{}\" has not ended within {at_most:?}; it goes on", self.run_id),
            )),
        }
    }
}

impl<T> fmt::Debug for Run<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({})", self.run_id)
    }
}

/// Reads a stream item by item.
pub struct StreamReader<V> {
    client: Client,
    run_id: String,
    stream: String,
    next: i64,
    read: std::vec::IntoIter<String>,
    closed: bool,
    item: PhantomData<fn() -> V>,
}

impl<V: DeserializeOwned> StreamReader<V> {
    /// The next item, waiting for it if need be; `None` when the stream was closed or the run is
    /// over. An error (`SF-0109`) if there is no such run.
    pub async fn next(&mut self) -> Result<Option<V>> {
        loop {
            if let Some(item) = self.read.next() {
                self.next += 1;
                return json::decode("the stream item", &item).map(Some);
            }
            if self.closed {
                return Ok(None);
            }
            let page = self.client.inner.stream(&self.run_id, &self.stream, self.next).await?;
            self.closed = page.closed;
            if page.items.is_empty() && !self.closed {
                self.client.inner.pause(Duration::from_millis(50)).await;
            }
            self.read = page.items.into_iter();
        }
    }
}
