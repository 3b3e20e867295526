//! Death or frost at a named place: the production world, with crash points that mean it.
//!
//! Invariants: without its variables it is [`TokioEnv`] and nothing else. At [`CRASH_AT`] the
//! process aborts the moment the point is reached for the given time: no destructor runs and
//! nothing is flushed. At [`FREEZE_AT`] all of it stops (SIGSTOP) until somebody sends SIGCONT, and
//! then goes on from that very place, unaware of the time that passed.
//! Deliberately absent: deaths at random places. Those come from outside, by signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast::{Env, Timestamp, TokioEnv};

/// The environment variable that says where to die: `record.after:3` is the third time that the
/// point `record.after` is reached.
pub const CRASH_AT: &str = "STEADFAST_CRASH_AT";
/// The environment variable that says where to freeze, in the same form.
pub const FREEZE_AT: &str = "STEADFAST_FREEZE_AT";

/// The crash points of the engine.
pub const POINTS: [&str; 9] = [
    "run.claimed",
    "step.started",
    "step.performed",
    "record.before",
    "record.after",
    "suspend.before",
    "suspend.after",
    "finish.before",
    "finish.after",
];

/// A point, and the count at which something happens there.
#[derive(Debug)]
struct Trap {
    point: String,
    count: u64,
    reached: AtomicU64,
}

impl Trap {
    fn parse(text: &str) -> Option<Self> {
        let (point, count) = text.rsplit_once(':')?;
        let count = count.parse().ok().filter(|count| *count > 0)?;
        let trap = Self { point: point.to_owned(), count, reached: AtomicU64::new(0) };
        POINTS.contains(&point).then_some(trap)
    }

    /// What a variable says.
    ///
    /// # Panics
    /// If it cannot be read: a test that misspells a point would prove nothing.
    fn from_variable(variable: &str) -> Option<Self> {
        let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
        let trap = Self::parse(&text);
        assert!(trap.is_some(), "{variable}={text}: not point:count, or no such point");
        trap
    }

    fn springs(&self, point: &str) -> bool {
        self.point == point && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == self.count
    }
}

/// The world of tokio in which a crash point may end or freeze the process.
#[derive(Debug)]
pub struct CrashEnv {
    world: TokioEnv,
    crash: Option<Trap>,
    freeze: Option<Trap>,
}

impl CrashEnv {
    /// On the current runtime, as the environment variables say.
    ///
    /// # Panics
    /// If a variable cannot be read.
    pub fn from_variables() -> Arc<Self> {
        let (crash, freeze) = (Trap::from_variable(CRASH_AT), Trap::from_variable(FREEZE_AT));
        Arc::new(Self { world: TokioEnv::current(), crash, freeze })
    }
}

/// Stops this process, from this line on, until it gets SIGCONT.
fn freeze() {
    let me = std::process::id().to_string();
    let stopped = std::process::Command::new("kill").args(["-STOP", &me]).status();
    assert!(stopped.is_ok_and(|status| status.success()), "the program `kill` is needed");
}

impl Env for CrashEnv {
    fn now(&self) -> Timestamp {
        self.world.now()
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        self.world.sleep(d)
    }

    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.world.spawn(name, task);
    }

    fn random(&self) -> u64 {
        self.world.random()
    }

    fn crash_point(&self, name: &'static str) {
        if self.crash.as_ref().is_some_and(|trap| trap.springs(name)) {
            std::process::abort();
        }
        if self.freeze.as_ref().is_some_and(|trap| trap.springs(name)) {
            freeze();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_is_a_known_point_and_springs_once_at_its_count() {
        let trap = Trap::parse("record.after:2").unwrap();
        let walk = ["record.after", "record.before", "record.after", "record.after"];
        assert_eq!(walk.map(|point| trap.springs(point)), [false, false, true, false]);
        for wrong in ["record.after", "record.after:0", "record.later:1", "record.after:x", ""] {
            assert!(Trap::parse(wrong).is_none(), "{wrong}");
        }
    }
}
