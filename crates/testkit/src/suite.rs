//! Conformance suites: what an implementation must do, as cases that anybody can run on theirs.
//!
//! Invariants: a case asserts by what other operations then say, never by looking underneath.

pub mod runtime;
pub mod store;
