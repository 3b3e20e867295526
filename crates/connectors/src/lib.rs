//! The world: the only crate that opens sockets to it.
//!
//! Invariants: what comes in is an [`Envelope`](steadfast_core::Envelope) and is acknowledged only
//! when somebody has kept it; what goes out is asked of a
//! [`Connector`](steadfast_core::connector::Connector), which does nothing outside its scope, or is
//! a [`CloudEvent`](steadfast_core::event::CloudEvent) that has arrived only when the other side
//! says so; secrets are given by reference; each kind of connection is a feature, so that nobody
//! builds what he does not use.
//! Deliberately absent: meaning. What an event leads to is decided above.

#[cfg(feature = "http")]
mod alert;
#[cfg(feature = "http")]
mod answer;
#[cfg(any(feature = "http", feature = "sql"))]
mod causes;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "http")]
mod post;
#[cfg(any(feature = "http", feature = "sql"))]
pub mod secret;
#[cfg(any(feature = "http", feature = "sql"))]
pub mod spool;
#[cfg(feature = "sql")]
pub mod sql;
#[cfg(feature = "http")]
mod trust;
#[cfg(feature = "http")]
mod webhook;

#[cfg(feature = "http")]
pub use alert::Alert;
#[cfg(feature = "http")]
pub use answer::Answers;
#[cfg(feature = "http")]
pub use http::{Http, HttpConnector};
#[cfg(feature = "nats")]
pub use nats::{NatsSink, NatsSource};
#[cfg(feature = "sql")]
pub use sql::{Sql, SqlConnector};
#[cfg(feature = "http")]
pub use webhook::Webhook;
