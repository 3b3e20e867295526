//! A connection whose messages are moved by whoever waits for them.
//!
//! A connection that is a task of its own is handed every question and hands back every answer.
//! With one run at a time, those two are what makes the scheduler wake another thread for each
//! commit.
//!
//! Invariants: the connection is polled whenever the work is, and after it, so that what the work
//! has just asked is sent; wakes that come from inside such a poll lead to another round of it, not
//! to another turn of the task. Work that is hurried looks for its answer for a moment, and not
//! where answers take longer.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures::future::BoxFuture;
use futures::task::AtomicWaker;

use super::wire::Eager;
use crate::lookout::Lookout;

/// The other half of a connection: it moves the messages, and ends with the connection.
pub(super) type Messages = BoxFuture<'static, ()>;

/// Rounds of one poll: others have their turn then, and the budget that the scheduler gives a task
/// is renewed.
const ROUNDS: usize = 16;

/// The half of a connection that moves the messages.
pub(super) struct Drive {
    /// Gone once it has ended.
    messages: Mutex<Option<Messages>>,
    /// Of a socket that can be asked for its answer.
    eager: Option<Eager>,
    lookout: Lookout,
    relay: Arc<Relay>,
    waker: Waker,
}

impl Drive {
    pub(super) fn new(messages: Messages, eager: Option<Eager>) -> Self {
        let relay = Arc::new(Relay::default());
        let waker = Waker::from(relay.clone());
        let messages = Mutex::new(Some(messages));
        Self { messages, eager, lookout: Lookout::new(), relay, waker }
    }

    /// Does work that waits for this connection.
    pub(super) async fn through<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        std::future::poll_fn(|cx| self.poll(cx, work.as_mut())).await
    }

    /// The same for work that nobody shares a commit with: whoever sent it waits for just that.
    pub(super) async fn hurry<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        let mut has_asked = false;
        let hurried = |cx: &mut Context<'_>| {
            let done = self.poll(cx, work.as_mut());
            if done.is_ready() || std::mem::replace(&mut has_asked, true) {
                return done;
            }
            match &self.eager {
                Some(eager) if self.lookout.is_worth_it() => self.look(cx, work.as_mut(), eager),
                _ => done,
            }
        };
        std::future::poll_fn(hurried).await
    }

    /// Does work that has asked, looking for the answer again and again; after a while it sleeps
    /// like other work.
    fn look<T>(
        &self,
        cx: &Context<'_>,
        mut work: Pin<&mut impl Future<Output = T>>,
        eager: &Eager,
    ) -> Poll<T> {
        eager.store(true, Ordering::Relaxed);
        let answer = || match self.poll(cx, work.as_mut()) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        };
        let done = self.lookout.look(answer);
        eager.store(false, Ordering::Relaxed);
        done.map_or(Poll::Pending, Poll::Ready)
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
        let ended = messages.as_mut().is_none_or(|messages| messages.as_mut().poll(cx).is_ready());
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

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};
    use std::pin::pin;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    /// Whether the next answer is looked for. It comes with the second look, if there is one.
    fn is_looked_for(drive: &Drive) -> bool {
        let eager = drive.eager.as_ref();
        let looks = AtomicU32::new(0);
        let work = poll_fn(|_| {
            let is_eager = eager.is_some_and(|eager| eager.load(Ordering::Relaxed));
            match (looks.fetch_add(1, Ordering::Relaxed), is_eager) {
                (0, _) | (1, true) => Poll::Pending,
                (looks, is_eager) => Poll::Ready(is_eager || looks > 1),
            }
        });
        let mut work = pin!(work);
        let mut hurried = pin!(drive.hurry(work.as_mut()));
        let cx = &mut Context::from_waker(Waker::noop());
        // One that was looked for in vain comes when it was slept for.
        loop {
            if let Poll::Ready(looked) = hurried.as_mut().poll(cx) {
                return looked;
            }
        }
    }

    /// Work that turns out not to ask anything.
    fn ask_nothing(drive: &Drive) {
        let mut work = pin!(ready(()));
        let mut hurried = pin!(drive.hurry(work.as_mut()));
        assert!(hurried.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    /// How often that is so is `lookout`'s.
    #[test]
    fn answers_are_looked_for_unless_nothing_was_asked() {
        let mut drive = Drive::new(Box::pin(pending()), Some(Eager::default()));
        if !drive.lookout.is_worth_it() {
            // One processor: nobody could answer while it is looked for.
            assert!(!is_looked_for(&drive));
            return;
        }
        drive.lookout.patience = Duration::MAX;
        assert!((0..9).all(|_| is_looked_for(&drive)));
        drive.lookout.patience = Duration::ZERO;
        assert!(is_looked_for(&drive));
        ask_nothing(&drive);
        assert!(!is_looked_for(&drive) && is_looked_for(&drive));
    }

    #[test]
    fn sockets_of_the_drivers_own_are_slept_for() {
        let drive = Drive::new(Box::pin(pending()), None);
        assert!(!is_looked_for(&drive));
    }
}
