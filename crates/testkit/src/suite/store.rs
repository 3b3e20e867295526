//! The conformance suite of a store: every operation, every kind of reply, every trap that was met
//! on a real database.
//!
//! Invariants: a case works in a workspace of its own, so that all of them may share one database
//! and run at the same time; every case is in [`CASES`], and its name is the sentence that it
//! proves.
//! Deliberately absent: anything about a particular database.

mod approval;
mod attach;
mod bounds;
mod claim;
mod command;
mod deadline;
mod debounce;
mod define;
mod fence;
mod fork;
mod keys;
mod kit;
mod lease;
mod limit;
mod list;
mod partition;
mod publish;
mod race;
mod record;
mod repeat;
mod saga;
mod signal;
mod sinks;
mod start;
mod steer;
mod trigger;
mod worker;

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use steadfast_store::Store;

/// One case: it panics if the store does not do what its name says.
pub type CaseFn = for<'a> fn(&'a dyn Store) -> BoxFuture<'a, ()>;

/// Puts async functions into a table under their own names.
macro_rules! table {
    ($($case:ident,)+) => {
        pub(super) const CASES: &[(&str, super::CaseFn)] =
            &[$((stringify!($case), |store| Box::pin($case(store)))),+];
    };
}
use table;

const GROUPS: &[&[(&str, CaseFn)]] = &[
    start::CASES,
    debounce::CASES,
    claim::CASES,
    limit::CASES,
    define::CASES,
    partition::CASES,
    lease::CASES,
    worker::CASES,
    deadline::CASES,
    fence::CASES,
    record::CASES,
    attach::CASES,
    signal::CASES,
    steer::CASES,
    fork::CASES,
    list::CASES,
    keys::CASES,
    repeat::CASES,
    saga::CASES,
    race::CASES,
    publish::CASES,
    sinks::CASES,
    bounds::CASES,
    command::CASES,
    approval::CASES,
    trigger::CASES,
];

const COUNT: usize = {
    let (mut sum, mut group) = (0, 0);
    while group < GROUPS.len() {
        sum += GROUPS[group].len();
        group += 1;
    }
    sum
};

/// Every case, by name.
pub const CASES: &[(&str, CaseFn)] = &{
    let mut all: [(&str, CaseFn); COUNT] = [GROUPS[0][0]; COUNT];
    let (mut at, mut group) = (0, 0);
    while group < GROUPS.len() {
        let mut case = 0;
        while case < GROUPS[group].len() {
            all[at] = GROUPS[group][case];
            at += 1;
            case += 1;
        }
        group += 1;
    }
    all
};

/// A case that did not hold.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The sentence that is not true of the store.
    pub case: &'static str,
    /// What was found instead.
    pub message: String,
}

/// Runs every case on a store and gives those that failed.
pub async fn run(store: &dyn Store) -> Vec<Failure> {
    let mut failures = Vec::new();
    for (case, check) in CASES {
        if let Err(panic) = AssertUnwindSafe(check(store)).catch_unwind().await {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            let message = text.unwrap_or_else(|| "a panic without a text".to_owned());
            failures.push(Failure { case, message });
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let mut names: Vec<_> = CASES.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
        assert!(CASES.len() >= 90, "{} cases", CASES.len());
    }
}
