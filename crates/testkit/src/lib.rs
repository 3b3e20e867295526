//! Proof: a model of the store, one conformance suite for every store, simulated time and faults.
//!
//! Published for users too: the same tools that test the engine test their workflows.
//! Deliberately absent: anything that production code depends on.

// Test support fails by panicking, with a message.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

pub mod crash;
pub mod crash_safe;
pub mod db;
pub mod differential;
pub mod faults;
pub mod ledger;
pub mod model;
pub mod sabotage;
pub mod scenario;
pub mod sim;
pub mod suite;

pub use crash_safe::assert_crash_safe;
