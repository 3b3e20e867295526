//! Calls into the user's code: a panic there becomes the error of the call that it was in.
//!
//! Invariants: every closure and every trait method of a user is called through here; the error
//! (`SF-0205`) names the code and has the panic's message. Destructors are the user's code too: a
//! future that has panicked, or that is dropped early, is dropped here.
//! Deliberately absent: a panic during another one, and programs built with `panic = "abort"`.
//! Both end the process, and its runs go on elsewhere.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::BoxFuture;

use crate::error::{Error, ErrorClass, Result};

/// Which code is called: its kind, such as `step`, and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code<'a>(pub &'static str, pub &'a str);

impl fmt::Display for Code<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            "" => f.write_str(self.0),
            name => write!(f, "{} \"{name}\"", self.0),
        }
    }
}

/// Calls a function.
pub fn call<T>(code: Code<'_>, f: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| panicked(code, payload))
}

/// Polls a future. One that has panicked must not be polled again.
pub fn poll<F: Future + ?Sized>(
    code: Code<'_>,
    future: Pin<&mut F>,
    context: &mut Context<'_>,
) -> Poll<Result<F::Output>> {
    match call(code, || future.poll(context)) {
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(error) => Poll::Ready(Err(error)),
    }
}

/// Drops a value whose destructor may panic. The panic is discarded: a destructor returns nothing
/// that could hold an error.
pub fn discard<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // Its own destructor could be the next to panic, without end.
        std::mem::forget(payload);
    }
}

/// Makes a future and runs it to its end; making it is the user's code as well.
pub fn future<'a, T>(code: Code<'a>, make: impl FnOnce() -> BoxFuture<'a, T>) -> Caught<'a, T> {
    let stage = match call(code, make) {
        Ok(future) => Stage::Running(future),
        Err(error) => Stage::Failed(error),
    };
    Caught { code, stage }
}

/// A future of the user's code, made by [`future`].
#[must_use = "a future does nothing until it is awaited"]
pub struct Caught<'a, T> {
    code: Code<'a>,
    stage: Stage<'a, T>,
}

enum Stage<'a, T> {
    Running(BoxFuture<'a, T>),
    Failed(Error),
    Over,
}

impl<T> Future for Caught<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let code = self.code;
        let polled = match &mut self.stage {
            Stage::Running(future) => poll(code, future.as_mut(), context),
            Stage::Failed(error) => Poll::Ready(Err(error.clone())),
            Stage::Over => Poll::Pending,
        };
        if polled.is_ready() {
            discard(std::mem::replace(&mut self.stage, Stage::Over));
        }
        polled
    }
}

impl<T> Drop for Caught<'_, T> {
    fn drop(&mut self) {
        discard(std::mem::replace(&mut self.stage, Stage::Over));
    }
}

/// A panic that was caught, as the error of the code that it was in.
pub fn panicked(code: Code<'_>, payload: Box<dyn Any + Send>) -> Error {
    let error = Error::new(
        ErrorClass::Panic,
        "SF-0205",
        format!("{code} panicked: {}", text(payload.as_ref())),
    );
    discard(payload);
    error
}

/// What a panic says.
pub fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message (its payload is no text)")
}

#[cfg(test)]
mod tests {
    use std::panic::{panic_any, resume_unwind};

    use super::*;

    const CODE: Code<'_> = Code("step", "book");

    /// A value that panics when it is dropped.
    struct Loud;

    impl Drop for Loud {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                resume_unwind(Box::new(Loud));
            }
        }
    }

    #[test]
    fn the_error_names_the_code_and_has_the_message() {
        assert_eq!(call(CODE, || 7).unwrap(), 7);
        let said = [
            call(CODE, || panic!("boom")),
            call(CODE, || panic!("boom {}", 7)),
            call(CODE, || panic_any(7)),
            call(Code("the workflow", ""), || panic!("boom")),
        ];
        let said = said.map(|ended: Result<()>| {
            let error = ended.unwrap_err();
            assert_eq!((error.class(), error.code()), (ErrorClass::Panic, "SF-0205"));
            error.message().to_owned()
        });
        let wanted = [
            "step \"book\" panicked: boom",
            "step \"book\" panicked: boom 7",
            "step \"book\" panicked: without a message (its payload is no text)",
            "the workflow panicked: boom",
        ];
        assert_eq!(said, wanted);
    }

    #[test]
    fn a_future_is_caught_when_it_is_made_run_and_dropped() {
        let run = |caught: Caught<'_, u8>| futures::executor::block_on(caught);
        assert_eq!(run(future(CODE, || Box::pin(async { 7 }))).unwrap(), 7);
        let made = run(future(CODE, || panic!("made"))).unwrap_err();
        assert_eq!(made.message(), "step \"book\" panicked: made");
        let body = async {
            std::future::ready(()).await;
            panic!("run")
        };
        let polled = run(future(CODE, || Box::pin(body))).unwrap_err();
        assert_eq!(polled.message(), "step \"book\" panicked: run");
        let loud = Loud;
        drop(future(CODE, || {
            Box::pin(async move {
                let _loud = loud;
                std::future::pending::<()>().await;
            })
        }));
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_is_caught_too() {
        let error = call(CODE, || panic_any(Loud)).unwrap_err();
        assert!(error.message().contains("no text"), "{error}");
    }
}
