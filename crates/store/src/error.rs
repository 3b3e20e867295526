//! What can go wrong below an operation, sorted by what to do about it. No driver type is in here.
//!
//! Invariants: a connection cut after COMMIT was sent is `Ambiguous`, never `Transient`; transient
//! and ambiguous errors are retried inside the store without limit and do not reach callers of
//! [`crate::Store::call`] unless the store is being closed.

use std::fmt;

/// A store failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// May pass: connection lost before commit, deadlock, busy, failover. Nothing was written.
    Transient(String),
    /// There is no space left. Nothing was written; it passes when somebody makes room.
    Full(String),
    /// The outcome is unknown: the connection was cut while the commit was under way.
    Ambiguous(String),
    /// The request itself cannot be carried out on any database: a page of no rows, a text with
    /// a NUL character. Nothing was asked of the database.
    Invalid(String),
    /// The database refused a value or a constraint: trying again will not help.
    Refused(String),
    /// The schema or a stored value is not one this version can work with.
    Incompatible(String),
    /// A panic of ours ended the operation, or what carried it out. Whether it was done is unknown;
    /// it may be sent again.
    Panicked(String),
    /// The store is closed.
    Closed,
    /// What the store was opened on is not there any more. It will not come back for this store.
    Gone(String),
}

impl Error {
    /// Whether the whole operation may be tried again. Operations are idempotent, so an ambiguous
    /// one may too.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Transient(_) | Self::Full(_) | Self::Ambiguous(_) => true,
            Self::Invalid(_) | Self::Refused(_) | Self::Incompatible(_) => false,
            Self::Panicked(_) | Self::Closed | Self::Gone(_) => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transient(what) => write!(f, "the database is not reachable right now: {what}"),
            Self::Full(what) => write!(f, "the database has no space left: {what}"),
            Self::Ambiguous(what) => write!(f, "the outcome of a commit is unknown: {what}"),
            Self::Invalid(what) => f.write_str(what),
            Self::Refused(what) => write!(f, "the database refused: {what}"),
            Self::Incompatible(what) => write!(f, "the database does not fit this version: {what}"),
            Self::Panicked(what) => write!(f, "the store panicked: {what}"),
            Self::Closed => f.write_str("the store is closed"),
            Self::Gone(what) => write!(f, "the store is gone: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for steadfast_core::Error {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Invalid(what) => return steadfast_core::Error::invalid("SF-0124", what),
            Error::Transient(_) => "SF-0401",
            Error::Full(_) => "SF-0407",
            Error::Ambiguous(_) => "SF-0402",
            Error::Refused(_) => "SF-0403",
            Error::Incompatible(_) => "SF-0404",
            Error::Closed => "SF-0405",
            Error::Panicked(_) => "SF-0408",
            Error::Gone(_) => "SF-0406",
        };
        steadfast_core::Error::new(steadfast_core::ErrorClass::Store, code, error.to_string())
    }
}
