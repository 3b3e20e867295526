//! A connection whose messages are moved by whoever waits for them.
//!
//! A connection that is a task of its own is handed every question and hands back every answer.
//! With one run at a time, those two are what makes the scheduler wake another thread for each
//! commit.
//!
//! Invariants: the connection is polled whenever the work is, and after it, so that what the work
//! has just asked is sent; wakes that come from inside such a poll lead to another round of it, not
//! to another turn of the task.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;

use super::connection::Messages;

/// Rounds of one poll: others have their turn then, and the budget that the scheduler gives a task
/// is renewed.
const ROUNDS: usize = 16;

/// The half of a connection that moves the messages.
pub(super) struct Drive {
    /// Gone once it has ended.
    messages: Mutex<Option<Messages>>,
    relay: Arc<Relay>,
    waker: Waker,
}

impl Drive {
    pub(super) fn new(messages: Messages) -> Self {
        let relay = Arc::new(Relay::default());
        let waker = Waker::from(relay.clone());
        Self { messages: Mutex::new(Some(messages)), relay, waker }
    }

    /// Does work that waits for this connection.
    pub(super) async fn through<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        std::future::poll_fn(|cx| self.poll(cx, work.as_mut())).await
    }

    fn poll<T>(&self, cx: &Context<'_>, mut work: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        let inner = &mut Context::from_waker(&self.waker);
        self.relay.outer.register(cx.waker());
        for _ in 0..ROUNDS {
            self.relay.enter();
            let done = work.as_mut().poll(inner);
            if done.is_pending() {
                self.go_on(inner);
            }
            if self.relay.leave() || done.is_ready() {
                return done;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether the server has not ended it, as far as can be known without asking.
    pub(super) fn is_open(&self) -> bool {
        self.go_on(&mut Context::from_waker(Waker::noop()))
    }

    /// Moves what can be moved; false when the connection has ended.
    fn go_on(&self, cx: &mut Context<'_>) -> bool {
        let mut messages = self.messages.lock().expect("invariant: not poisoned");
        let ended = messages.as_mut().is_none_or(|messages| Pin::new(messages).poll(cx).is_ready());
        if ended {
            // With it go the questions that wait for an answer: who asked is told so.
            *messages = None;
        }
        !ended
    }
}

/// Who is woken by the work and by the connection.
#[derive(Default)]
struct Relay {
    is_inside: AtomicBool,
    is_woken: AtomicBool,
    outer: AtomicWaker,
}

impl Relay {
    fn enter(&self) {
        self.is_woken.store(false, Ordering::SeqCst);
        self.is_inside.store(true, Ordering::SeqCst);
    }

    /// Whether nobody was woken since `enter`: from here on, the task is.
    fn leave(&self) -> bool {
        self.is_inside.store(false, Ordering::SeqCst);
        !self.is_woken.load(Ordering::SeqCst)
    }
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if !self.is_inside.load(Ordering::SeqCst) {
            self.outer.wake();
        }
    }
}
