//! A bell: rung by anyone, heard by everyone who waits; a ring between two waits is not missed.

use std::sync::Mutex;
use std::task::{Poll, Waker};

#[derive(Default)]
pub(crate) struct Bell(Mutex<State>);

#[derive(Default)]
struct State {
    rings: u64,
    waiting: Vec<Waker>,
}

impl Bell {
    pub(crate) fn ring(&self) {
        let waiting = {
            let mut state = self.0.lock().expect("invariant: not poisoned");
            state.rings += 1;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// How often it was rung: take it before looking at what the bell announces.
    pub(crate) fn rings(&self) -> u64 {
        self.0.lock().expect("invariant: not poisoned").rings
    }

    /// Resolves when it has been rung more often than `heard`.
    pub(crate) fn after(&self, heard: u64) -> impl Future<Output = ()> + Send + '_ {
        std::future::poll_fn(move |cx| {
            let mut state = self.0.lock().expect("invariant: not poisoned");
            if state.rings > heard {
                return Poll::Ready(());
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }
}
