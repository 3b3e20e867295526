//! Talking with the outside: signals in, signals to other runs, published values, streams.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Cx, Operation};
use crate::driver::Ask;
use crate::error::{Error, Result};
use crate::json;
use crate::time::Timestamp;

impl Cx {
    /// Waits for a signal sent to this run. One sent before the wait is kept; each is consumed
    /// once, in the order they were accepted.
    pub fn wait_signal<T: DeserializeOwned>(&self, name: &str) -> SignalWait<T> {
        let operation = self.operation(name, None, Ask::Signal { until: Timestamp::NEVER });
        SignalWait { operation, built_at: self.now() }
    }

    /// Sends a signal to another run, exactly once.
    pub fn send<P: Serialize>(&self, to: &str, signal: &str, payload: P) -> Operation<()> {
        let made = crate::key::check_signal("signal name", signal)
            .and_then(|()| json::encode("the signal", &payload));
        self.operation_of(signal, made, |payload| Ask::Send {
            to: to.to_owned(),
            signal: signal.to_owned(),
            payload,
        })
    }

    /// Publishes a value under a key; readers outside see the newest.
    pub fn publish<V: Serialize>(&self, key: &str, value: V) -> Operation<()> {
        let made = json::encode("the published value", &value);
        self.operation_of(key, made, |value| Ask::Publish { key: key.to_owned(), value })
    }

    /// Appends an item to a stream of this run; readers outside can follow it live. After
    /// [`Cx::close_stream`] it is refused.
    pub fn append<V: Serialize>(&self, stream: &str, item: V) -> Operation<()> {
        let made = match self.shared.lock().closed.contains(stream) {
            true => Err(Error::invalid(
                "SF-0120",
                format!("stream \"{stream}\" was closed; nobody would read the item"),
            )),
            false => json::encode("the stream item", &item),
        };
        self.operation_of(stream, made, |item| Ask::Append {
            stream: stream.to_owned(),
            item: Some(item),
        })
    }

    /// Closes a stream for good: readers learn that nothing follows. What is appended to it after a
    /// later [`Cx::continue_as_new`] is not refused, and not read either.
    pub fn close_stream(&self, stream: &str) -> Operation<()> {
        if self.shared.is_polling() {
            self.shared.lock().closed.insert(stream.to_owned());
        }
        self.operation(stream, None, Ask::Append { stream: stream.to_owned(), item: None })
    }

    fn operation_of<T>(
        &self,
        name: &str,
        made: Result<String>,
        ask: impl FnOnce(String) -> Ask,
    ) -> Operation<T> {
        match made {
            Ok(text) => self.operation(name, None, ask(text)),
            Err(refusal) => Operation::refused(refusal),
        }
    }
}

/// A wait for a signal.
#[must_use = "a wait does nothing until it is awaited"]
pub struct SignalWait<T> {
    // The payload comes in an array of one: a payload of `null` is not a time-out.
    operation: Operation<Option<(T,)>>,
    built_at: Timestamp,
}

impl<T: DeserializeOwned> SignalWait<T> {
    /// Gives up after a while: the wait then resolves to `None`.
    pub fn timeout(self, d: Duration) -> ReceivedInTime<T> {
        let deadline = self.built_at.after(d);
        let mut operation = self.operation;
        operation.change(|ask| {
            if let Ask::Signal { until } = ask {
                *until = deadline;
            }
        });
        ReceivedInTime(operation)
    }
}

impl<T: DeserializeOwned> IntoFuture for SignalWait<T> {
    type Output = Result<T>;
    type IntoFuture = Received<T>;

    fn into_future(self) -> Received<T> {
        Received(self.operation)
    }
}

/// A wait without a limit.
#[must_use = "a wait does nothing until it is awaited"]
pub struct Received<T>(Operation<Option<(T,)>>);

impl<T: DeserializeOwned> Future for Received<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|outcome| match outcome? {
            Some((payload,)) => Ok(payload),
            None => Err(Error::app("a wait without a limit timed out")),
        })
    }
}

/// A wait with a limit.
#[must_use = "a wait does nothing until it is awaited"]
pub struct ReceivedInTime<T>(Operation<Option<(T,)>>);

impl<T: DeserializeOwned> Future for ReceivedInTime<T> {
    type Output = Result<Option<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.0).poll(cx);
        polled.map(|outcome| outcome.map(|received| received.map(|(payload,)| payload)))
    }
}
