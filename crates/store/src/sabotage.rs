//! A store that is wrong on purpose: one operation, with one statement altered or one rule left
//! out. Tests that do not notice prove nothing about that operation.
//!
//! Invariants: only the feature `sabotage` builds any of it, which the tests of `testkit` alone ask
//! for; without it every function here does nothing. What is altered is altered within the named
//! operation and on the named store, and nowhere else in the process.
//! Deliberately absent: servers. A statement is one text for all databases; SQLite runs it fastest.

#[cfg(feature = "sabotage")]
mod on;

#[cfg(feature = "sabotage")]
pub use on::Sabotage;
#[cfg(feature = "sabotage")]
pub(crate) use on::{inherited, is_left_out, name_of, text, within};

#[cfg(all(not(feature = "sabotage"), feature = "sqlite"))]
pub(crate) use off::{inherited, within};
#[cfg(not(feature = "sabotage"))]
pub(crate) use off::{is_left_out, name_of, text};

#[cfg(not(feature = "sabotage"))]
mod off {
    #[cfg(feature = "sqlite")]
    pub(crate) fn inherited<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
        body
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn within<T>(_operation: &'static str, body: impl FnOnce() -> T) -> T {
        body()
    }

    pub(crate) const fn name_of(statement: &'static str) -> &'static str {
        statement
    }

    pub(crate) const fn text(_name: &str) -> Option<&'static str> {
        None
    }

    pub(crate) const fn is_left_out(_rule: &'static str) -> bool {
        false
    }
}
