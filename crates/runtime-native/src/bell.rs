//! A bell: rung by anyone, heard by everyone who waits; a ring between two waits is not missed.
//!
//! Invariants: a wait that is dropped leaves nothing behind.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
pub(crate) struct Bell(Mutex<State>);

#[derive(Default)]
struct State {
    rings: u64,
    next: u64,
    waiting: BTreeMap<u64, Waker>,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("invariant: not poisoned")
    }

    pub(crate) fn ring(&self) {
        let waiting = {
            let mut state = self.lock();
            state.rings += 1;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    /// How often it was rung: take it before looking at what the bell announces.
    pub(crate) fn rings(&self) -> u64 {
        self.lock().rings
    }

    /// Resolves when it has been rung more often than `heard`.
    pub(crate) fn after(&self, heard: u64) -> Heard<'_> {
        let mut state = self.lock();
        state.next += 1;
        Heard { bell: self, heard, id: state.next }
    }
}

/// A wait for the next ring.
pub(crate) struct Heard<'a> {
    bell: &'a Bell,
    heard: u64,
    id: u64,
}

impl Future for Heard<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.bell.lock();
        if state.rings > self.heard {
            return Poll::Ready(());
        }
        state.waiting.insert(self.id, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Heard<'_> {
    fn drop(&mut self) {
        self.bell.lock().waiting.remove(&self.id);
    }
}
