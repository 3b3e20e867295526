//! The nightly sync from outside: a vendor behind real HTTP, a real warehouse and store of each
//! kind, and a clock that leaps over the waits. What is judged: the requests that the vendor saw,
//! the rows that the warehouse holds, the events that auditors read.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod alerts;
mod cancel;
mod config;
mod costs;
mod door;
mod drift;
mod failures;
mod month;
mod plan;
mod status;
mod vendors;
mod workers;
mod world;
