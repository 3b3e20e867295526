//! The caller's own SQL: steps that commit with their record, starts that commit with the caller.
//!
//! Invariants: a transactional step takes effect exactly once, because its writes and its record
//! are one commit of the same database; a start inside a transaction exists if and only if that
//! commits.

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
