//! A fork: a new run that keeps the first steps of another.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use steadfast_core::driver::{Kind, Record};
use steadfast_core::{Result, Timestamp, json};
use steadfast_store::op;

use crate::client::Client;
use crate::run::Run;

/// A fork about to be made.
#[must_use = "a fork is not made until this is awaited"]
pub struct ForkCall<T> {
    client: Client,
    fork: Result<op::Fork>,
    output: PhantomData<fn() -> T>,
}

impl<T> ForkCall<T> {
    pub(crate) fn new(client: Client, source: String, from_step: u64) -> Self {
        let fork = op::Fork {
            workspace: String::new(),
            source,
            from_step: i64::try_from(from_step).unwrap_or(i64::MAX),
            run_id: String::new(),
            input: None,
            patches: Vec::new(),
            app_version: None,
            timeout: None,
            seed: 0,
            now: Timestamp::default(),
        };
        Self { client, fork: Ok(fork), output: PhantomData }
    }

    /// The new run's id; a fresh one by default. With the id of an equal earlier fork, that run is
    /// given; with the id of anything else, an error (`SF-0110`).
    pub fn id(self, run_id: impl Into<String>) -> Self {
        let run_id = run_id.into();
        self.with(|fork| {
            fork.run_id = run_id;
            Ok(())
        })
    }

    /// Another input than the source's.
    pub fn input<I: Serialize>(self, input: &I) -> Self {
        self.with(|fork| {
            fork.input = Some(json::encode("the input", input)?);
            Ok(())
        })
    }

    /// Another outcome for one of the copied steps.
    pub fn patch<V: Serialize>(self, step: u64, value: &V) -> Self {
        self.with(|fork| {
            let outcome = Ok(json::encode("the patched value", value)?);
            fork.patches.push(Record::done(step, 0, "", Kind::Step, outcome));
            Ok(())
        })
    }

    /// Runs it on another version of the application.
    pub fn version(self, version: impl Into<String>) -> Self {
        let version = version.into();
        self.with(|fork| {
            fork.app_version = Some(version);
            Ok(())
        })
    }

    /// Another timeout than the source's.
    pub fn timeout(self, d: Duration) -> Self {
        self.with(|fork| {
            fork.timeout = Some(d);
            Ok(())
        })
    }

    fn with(mut self, set: impl FnOnce(&mut op::Fork) -> Result<()>) -> Self {
        self.fork = self.fork.and_then(|mut fork| set(&mut fork).map(|()| fork));
        self
    }
}

impl<T: Send + 'static> IntoFuture for ForkCall<T> {
    type Output = Result<Run<T>>;
    type IntoFuture = BoxFuture<'static, Result<Run<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (run_id, new) = self.client.inner.fork(self.fork?).await?;
            Ok(Run::new(self.client, run_id, new))
        })
    }
}
