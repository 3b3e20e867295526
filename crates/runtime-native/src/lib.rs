//! The execution of Steadfast: runs driven over the store, by any number of workers.
//!
//! Invariants: only what leaves the process waits for durability; every write of a run is fenced by
//! its lease; a run that waits on durable things alone leaves memory; notifications are hints, and
//! losing all of them costs only latency.
//! Deliberately absent: an executor, a clock, randomness, randomly ordered maps. All of that comes
//! through `Env`, so the simulator runs this very code.

mod adapter;
mod bell;
mod call;
mod client;
mod command;
mod config;
mod due;
mod execute;
mod explain;
mod hub;
mod metrics;
mod owner;
mod pace;
mod queues;
mod registry;
mod waits;
mod worker;

pub use adapter::CAPABILITIES;
pub use client::{Client, RunEnd, StartSpec};
pub use config::Config;
pub use explain::{Explanation, Rule};
pub use registry::Registry;
pub use worker::Worker;

/// What travels with a run; a damaged context is as good as none.
fn context_of(run: &steadfast_store::op::RunRow) -> steadfast_core::command::Context {
    let parse = steadfast_core::command::Context::parse;
    run.context.as_deref().and_then(|text| parse(text).ok()).unwrap_or_default()
}
