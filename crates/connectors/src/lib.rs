//! The world: the only crate that opens sockets to it.
//!
//! Invariants: what comes in is an [`Envelope`](steadfast_core::Envelope) and is acknowledged only
//! when somebody has kept it; what goes out is asked of a
//! [`Connector`](steadfast_core::connector::Connector), which does nothing outside its scope; each
//! kind of connection is a feature, so that nobody builds what he does not use.
//! Deliberately absent: meaning. What an event leads to is decided above.

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(any(feature = "http", feature = "sql"))]
pub mod secret;
#[cfg(feature = "sql")]
pub mod sql;

#[cfg(feature = "http")]
pub use http::{Http, HttpConnector};
#[cfg(feature = "nats")]
pub use nats::NatsSource;
#[cfg(feature = "sql")]
pub use sql::{Sql, SqlConnector};
