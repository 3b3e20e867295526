//! The pipeline from trigger to command: each stage a file, each step of it one commit.
//!
//! Invariants: nothing below calls up; every loop is a `tick` with its own `now`; what a crash
//! interrupts is found in the store by the next tick of any process.

pub(crate) mod admit;
pub(crate) mod compensate;
pub(crate) mod filter;
pub(crate) mod ingress;
pub(crate) mod perform;
pub(crate) mod publish;
pub(crate) mod rehearse;
pub(crate) mod router;
pub(crate) mod scheduler;
pub(crate) mod spend;
pub(crate) mod startup;
pub(crate) mod sync;
