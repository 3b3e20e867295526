//! The verbs that run code: `step`, `read` and `effect`, with their options.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Cx, Operation};
use crate::driver::{Ask, Body, CallOptions, EffectClass, SlotRequest, Verb};
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
        self.call(Verb::Step, (what, with))
    }

    /// Reads the world: like `step`, but it may be read again after a crash, and so need not wait
    /// for earlier records.
    pub fn read<A, B, M>(&self, what: A, with: B) -> Call<<(A, B) as StepCall<M>>::Output>
    where
        (A, B): StepCall<M>,
    {
        self.call(Verb::Read, (what, with))
    }

    /// Performs a declared write on the outside world: recorded as begun before it starts, and as
    /// done after. What happens when a crash leaves it begun is the effect's class to say.
    pub fn effect<B, Fut, T, E>(&self, effect: Effect, body: B) -> Call<T>
    where
        B: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize + DeserializeOwned + 'static,
        E: fmt::Display + 'static,
    {
        let Effect { name, key, class } = effect;
        let sent = key.clone();
        let body: Body = Box::new(move || {
            let made = body(sent.clone());
            Box::pin(async move { outcome(made.await) })
        });
        let options = CallOptions::default();
        let input = Some(serde_json::Value::from(key.as_str()).to_string());
        Call { operation: self.operation(&name, input, Ask::Effect { class, key, body, options }) }
    }

    fn call<C: StepCall<M>, M>(&self, verb: Verb, call: C) -> Call<C::Output> {
        let operation = match call.prepare() {
            Err(refusal) => Operation::refused(refusal),
            Ok(Prepared { name, input, body }) => {
                let options = CallOptions::default();
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

    fn with(mut self, set: impl FnOnce(&mut CallOptions)) -> Self {
        self.operation.change(|ask| {
            if let Ask::Call { options, .. } | Ask::Effect { options, .. } = ask {
                set(options);
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

/// A declared write: its name, the key the receiver may know it by, and what may be repeated.
#[derive(Debug, Clone)]
pub struct Effect {
    name: String,
    key: String,
    class: EffectClass,
}

impl Effect {
    /// The receiver honours the key: after a crash the call is made again with the same key.
    pub fn keyed(name: impl Into<String>, key: impl Into<String>) -> Self {
        Self { name: name.into(), key: key.into(), class: EffectClass::Keyed }
    }

    /// The receiver has no memory: after a crash in the middle the call is **not** made again, and
    /// the step fails with `SF-0301` (outcome unknown).
    pub fn at_most_once(name: impl Into<String>, key: impl Into<String>) -> Self {
        Self { name: name.into(), key: key.into(), class: EffectClass::AtMostOnce }
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

fn outcome<T: Serialize, E: fmt::Display + 'static>(result: Result<T, E>) -> Result<String> {
    match result {
        Ok(value) => json::encode("the step's result", &value),
        Err(error) => Err(Error::from_any(error)),
    }
}
