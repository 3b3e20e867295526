//! Faults for tests: the next that passes a place in the store panics there.
//!
//! Invariants: without the feature `fault` there is nothing here but an empty function.

#[cfg(feature = "fault")]
pub use armed::{arm, disarm};

/// A place that what is said of it passes: an operation, or the database of a task.
#[cfg(not(feature = "fault"))]
#[inline]
pub(crate) fn point(_place: &str, _about: impl FnOnce() -> String) {}

#[cfg(feature = "fault")]
pub(crate) use armed::point;

#[cfg(feature = "fault")]
mod armed {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, MutexGuard};

    struct Fault {
        place: &'static str,
        about: String,
        times: u32,
    }

    static FAULTS: Mutex<Vec<Fault>> = Mutex::new(Vec::new());
    /// How many there are: without any, nobody takes the lock.
    static COUNT: AtomicUsize = AtomicUsize::new(0);

    fn faults() -> MutexGuard<'static, Vec<Fault>> {
        FAULTS.lock().expect("invariant: nothing panics under this lock")
    }

    /// Lets the next so many panic that pass a place and are about something: an operation whose
    /// debug text has it, or a task of a database whose URL has it.
    pub fn arm(place: &'static str, about: impl Into<String>, times: u32) {
        let mut faults = faults();
        faults.push(Fault { place, about: about.into(), times });
        COUNT.store(faults.len(), Ordering::SeqCst);
    }

    /// Takes the faults about something back; gives how many panics they would still have made.
    pub fn disarm(about: &str) -> u32 {
        let mut faults = faults();
        let left = faults.iter().filter(|fault| fault.about == about).map(|fault| fault.times);
        let left = left.sum();
        faults.retain(|fault| fault.about != about);
        COUNT.store(faults.len(), Ordering::SeqCst);
        left
    }

    pub(crate) fn point(place: &str, about: impl FnOnce() -> String) {
        if COUNT.load(Ordering::SeqCst) == 0 || !strikes(place, &about()) {
            return;
        }
        panic!("a fault was placed at {place}");
    }

    fn strikes(place: &str, about: &str) -> bool {
        let mut faults = faults();
        let it = |f: &&mut Fault| f.times > 0 && f.place == place && about.contains(&f.about);
        let found = faults.iter_mut().find(it);
        found.map(|fault| fault.times -= 1).is_some()
    }
}
