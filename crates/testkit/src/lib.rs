//! Proof: a model of the store, one conformance suite for every store, simulated time and faults.
//!
//! Published for users too: the same tools that test the engine test their workflows.
//! Deliberately absent: anything that production code depends on.

// Test support fails by panicking, with a message.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

pub mod faults;
pub mod sim;
