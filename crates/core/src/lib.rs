//! The meaning of Steadfast: what a run is, which moves are legal, what an error says, how code is
//! replayed.
//!
//! Invariants: nothing here performs I/O, reads a clock, draws a random number or names an async
//! runtime; everything of that kind arrives through [`env::Env`] or as a parameter.
//! Deliberately absent: SQL (see `store`), sockets (see `connectors`), loops (see
//! `runtime-native`).

#[macro_use]
mod lifecycle;

pub mod alert;
pub mod approval;
pub mod caught;
pub mod command;
pub mod connector;
pub mod decimal;
pub mod driver;
pub mod effect;
pub mod env;
pub mod envelope;
pub mod error;
pub mod event;
pub mod gate;
pub mod json;
pub mod key;
pub mod limits;
pub mod policy;
pub mod redact;
pub mod retry;
pub mod run;
pub mod runtime;
pub mod schedule;
pub mod sink;
pub mod time;
pub mod trigger;
pub mod workflow;

pub use approval::{ApprovalEvent, ApprovalStatus};
pub use command::{CommandEvent, CommandStatus};
pub use effect::{EffectEvent, EffectStatus};
pub use envelope::Envelope;
pub use error::{Error, ErrorClass, Result};
pub use lifecycle::{IllegalTransition, Transition};
pub use retry::Retry;
pub use run::{RunEvent, RunStatus};
pub use time::Timestamp;
pub use workflow::Cx;
