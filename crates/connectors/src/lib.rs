//! The world: the only crate that opens sockets to it.
//!
//! Invariants: what comes in is an [`Envelope`](steadfast_core::Envelope) and is acknowledged only
//! when somebody has kept it; each kind of connection is a feature, so that nobody builds what he
//! does not use.
//! Deliberately absent: meaning. What an event leads to is decided above.

#[cfg(feature = "nats")]
pub mod nats;

#[cfg(feature = "nats")]
pub use nats::NatsSource;
