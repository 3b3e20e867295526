//! The tally: how many commits and statements a store has cost so far.
//!
//! Invariants: counted where the statement is sent, so that nothing that is asked for can cost
//! without being counted. What a session does once, when it is made, is not.
//! Deliberately absent: times, which differ from machine to machine; these numbers do not, and a
//! test can hold them.

use std::sync::atomic::{AtomicU64, Ordering};

use steadfast_core::Error;

/// What a store has done since it was opened, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Transactions committed by writers.
    pub commits: u64,
    /// Statements sent, reading and writing, without those that begin and end transactions.
    pub statements: u64,
    /// Panics of the store's own code, each of which was caught.
    pub panics: u64,
}

impl Tally {
    /// What was added since an earlier reading.
    #[must_use]
    pub fn since(self, before: Tally) -> Tally {
        Tally {
            commits: self.commits - before.commits,
            statements: self.statements - before.statements,
            panics: self.panics - before.panics,
        }
    }
}

/// The running numbers behind a tally.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    commits: AtomicU64,
    statements: AtomicU64,
    panics: AtomicU64,
}

impl Counters {
    pub(crate) fn commit(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn statement(&self) {
        self.statements.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports a panic of the store's own code, and counts it.
    pub(crate) fn panicked(&self, panic: &Error) {
        tracing::error!(error = panic.message(), "the store panicked");
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Tally {
        Tally {
            commits: self.commits.load(Ordering::Relaxed),
            statements: self.statements.load(Ordering::Relaxed),
            panics: self.panics.load(Ordering::Relaxed),
        }
    }
}
