//! The future behind every durable call: asks once, then waits for its outcome.
//!
//! Invariants: dropping it before the outcome arrives withdraws the request, so that a lost race
//! neither consumes a signal nor starts a step.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::de::DeserializeOwned;

use crate::driver::{Ask, Request, Shared};
use crate::error::{Error, Result};
use crate::json;
use crate::time::Timestamp;

/// A durable call that resolves to a `T`.
#[must_use = "a durable call does nothing until it is awaited"]
pub struct Operation<T> {
    stage: Stage,
    value: PhantomData<fn() -> T>,
}

enum Stage {
    Refused(Error),
    Built(Arc<Shared>, Box<Request>),
    Asked(Arc<Shared>, u64),
    Over,
}

impl<T> Operation<T> {
    pub(crate) fn asking(
        shared: Arc<Shared>,
        id: u64,
        name: &str,
        input: Option<String>,
        ask: Ask,
    ) -> Self {
        let (name, asked_at) = (name.to_owned(), Timestamp::default());
        let request = Box::new(Request { id, name, input, input_digest: None, asked_at, ask });
        Self { stage: Stage::Built(shared, request), value: PhantomData }
    }

    pub(crate) fn refused(error: Error) -> Self {
        Self { stage: Stage::Refused(error), value: PhantomData }
    }

    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Ask)) {
        if let Stage::Built(_, request) = &mut self.stage {
            change(&mut request.ask);
        }
    }

    pub(crate) fn id(&self) -> Option<u64> {
        match &self.stage {
            Stage::Built(_, request) => Some(request.id),
            Stage::Asked(_, id) => Some(*id),
            Stage::Refused(_) | Stage::Over => None,
        }
    }
}

impl<T: DeserializeOwned> Future for Operation<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (shared, id) = match std::mem::replace(&mut this.stage, Stage::Over) {
            Stage::Refused(error) => return Poll::Ready(Err(error)),
            Stage::Over => return Poll::Pending,
            Stage::Built(shared, request) => {
                if !shared.is_polling() {
                    return Poll::Ready(Err(polled_elsewhere(&request.name)));
                }
                let id = request.id;
                shared.lock().ask(*request);
                (shared, id)
            }
            Stage::Asked(shared, id) => (shared, id),
        };
        let polled = shared.lock().poll_slot(id, cx.waker());
        match polled {
            Poll::Ready(outcome) => {
                Poll::Ready(outcome.and_then(|text| json::decode("the recorded value", &text)))
            }
            Poll::Pending => {
                this.stage = Stage::Asked(shared, id);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Operation<T> {
    fn drop(&mut self) {
        if let Stage::Asked(shared, id) = &self.stage {
            shared.lock().forget(*id);
        }
    }
}

fn polled_elsewhere(name: &str) -> Error {
    Error::invalid(
        "SF-0206",
        format!(
            "\"{name}\" was awaited outside its workflow's own code, where its record would be lost"
        ),
    )
}
