//! The verbs that run code: `step` and `read`, and the options of every call.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Cx, Operation};
use crate::driver::{Ask, Body, CallOptions, SlotRequest, Verb};
use crate::error::{Error, Result};
use crate::json;
use crate::retry::Retry;

impl Cx {
    /// Runs a step at least once, and never again once its outcome is recorded. Every earlier
    /// record is durable before it starts.
    ///
    /// Either a function and its input, which is recorded (`cx.step(charge_card, order)`), or a
    /// name and a closure (`cx.step("charge", move || charge(order.clone()))`).
    pub fn step<A, B, M>(&self, what: A, with: B) -> Call<<(A, B) as StepCall<M>>::Output>
    where
        (A, B): StepCall<M>,
    {
        self.stepping(Verb::Step, (what, with))
    }

    /// Reads the world: like `step`, but it may be read again after a crash, and so need not wait
    /// for earlier records.
    pub fn read<A, B, M>(&self, what: A, with: B) -> Call<<(A, B) as StepCall<M>>::Output>
    where
        (A, B): StepCall<M>,
    {
        self.stepping(Verb::Read, (what, with))
    }

    fn stepping<C: StepCall<M>, M>(&self, verb: Verb, call: C) -> Call<C::Output> {
        let operation = match call.prepare() {
            Err(refusal) => Operation::refused(refusal),
            Ok(Prepared { name, input, body }) => {
                let options = Arc::default();
                self.operation(name, input, Ask::Call { verb, body, options })
            }
        };
        Call { operation }
    }
}

/// A step call, ready to be awaited or given options first.
#[must_use = "a step does nothing until it is awaited"]
pub struct Call<T> {
    operation: Operation<T>,
}

impl<T> Call<T> {
    pub(super) fn of(operation: Operation<T>) -> Self {
        Self { operation }
    }

    /// Tries again after failures. The waits are durable: they hold no worker and survive restarts.
    pub fn retry(self, retry: Retry) -> Self {
        self.with(|options| options.retry = retry)
    }

    /// Bounds each attempt.
    pub fn timeout(self, d: Duration) -> Self {
        self.with(|options| options.timeout = Some(d))
    }

    /// Holds a slot of a queue while it runs, under that queue's limits.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        self.queue_partition(queue, "")
    }

    /// Holds a slot of one partition of a queue.
    pub fn queue_partition(self, queue: impl Into<String>, partition: impl Into<String>) -> Self {
        let slot = SlotRequest { queue: queue.into(), partition: partition.into() };
        self.with(|options| options.slot = Some(slot))
    }

    /// Tells of each attempt after which there is another, by an event of this type.
    pub fn retried_as(self, event_type: impl Into<String>) -> Self {
        self.with(|options| options.retried_as = Some(event_type.into()))
    }

    /// It proposes a command of this type and gives its id, and does nothing else.
    #[doc(hidden)]
    pub fn proposing(self, command_type: impl Into<String>) -> Self {
        self.with(|options| options.proposes = Some(command_type.into()))
    }

    fn with(mut self, set: impl FnOnce(&mut CallOptions)) -> Self {
        self.operation.change(|ask| {
            if let Ask::Call { options, .. } | Ask::Effect { options, .. } = ask {
                set(Arc::make_mut(options));
            }
        });
        self
    }
}

impl<T: DeserializeOwned> IntoFuture for Call<T> {
    type Output = Result<T>;
    type IntoFuture = Operation<T>;

    fn into_future(self) -> Operation<T> {
        self.operation
    }
}

/// What `step` and `read` accept: a function with its input, or a name with a closure.
pub trait StepCall<M> {
    /// What the step returns.
    type Output;
    #[doc(hidden)]
    fn prepare(self) -> Result<Prepared>;
}

#[doc(hidden)]
pub struct Prepared {
    name: &'static str,
    input: Option<String>,
    body: Body,
}

/// Marks the form `step(function, input)`.
pub struct FunctionForm<M>(PhantomData<M>);
/// Marks the form `step("name", closure)`.
pub struct NamedForm<M>(PhantomData<M>);

impl<F, I, Fut, T, E> StepCall<FunctionForm<(Fut, T, E)>> for (F, I)
where
    F: Fn(I) -> Fut + Send + Sync + 'static,
    I: Serialize + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize + DeserializeOwned + 'static,
    E: fmt::Display + 'static,
{
    type Output = T;

    fn prepare(self) -> Result<Prepared> {
        let (f, input) = self;
        let name = crate::key::function_name(&f)?;
        let text = json::encode("the step's input", &input)?;
        let body: Body = Box::new(move || {
            let made = f(input.clone());
            Box::pin(async move { outcome(made.await) })
        });
        Ok(Prepared { name, input: Some(text), body })
    }
}

impl<F, Fut, T, E> StepCall<NamedForm<(Fut, T, E)>> for (&'static str, F)
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: Serialize + DeserializeOwned + 'static,
    E: fmt::Display + 'static,
{
    type Output = T;

    fn prepare(self) -> Result<Prepared> {
        let (name, f) = self;
        let body: Body = Box::new(move || {
            let made = f();
            Box::pin(async move { outcome(made.await) })
        });
        Ok(Prepared { name, input: None, body })
    }
}

pub(super) fn outcome<T: Serialize, E: fmt::Display + 'static>(
    result: Result<T, E>,
) -> Result<String> {
    match result {
        Ok(value) => json::encode("the step's result", &value),
        Err(error) => Err(Error::from_any(error)),
    }
}
