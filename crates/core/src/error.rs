//! One error for everything durable: it can be stored, replayed identically, and says whether to
//! retry.
//!
//! Invariants: the class decides retryability, by an exhaustive match; an error that came back
//! from the store equals the one that went in; every code has a page in `docs/errors/`.
//! Deliberately absent: type parameters. Application errors of any type enter by their text and
//! their type name, or as data through [`Error::typed`], so that `?` works across differing steps.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::limits;

/// The result of anything durable.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure it was. Closed on purpose: a new class must decide whether it is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The application said no; it decides by itself whether trying again makes sense.
    Application,
    /// The other side failed in a way that may pass (5xx, connection cut).
    TransientConnectorError,
    /// The other side asks us to slow down.
    RateLimited,
    /// No answer in time.
    Timeout,
    /// The request is wrong and will stay wrong.
    ValidationError,
    /// The other side refuses for good (401, 403, 404).
    PermanentConnectorError,
    /// A policy refused.
    PolicyDenied,
    /// The caller lacks a permission.
    PermissionDenied,
    /// People said no, or nothing in time.
    ApprovalRejected,
    /// The same key was used for something else.
    Conflict,
    /// The thing asked for is not there.
    NotFound,
    /// The run was cancelled.
    Cancelled,
    /// Workflow code and recorded history disagree.
    NonDeterminism,
    /// User code panicked.
    Panic,
    /// The run lost its worker too often.
    RetriesExceeded,
    /// The store cannot be used as asked.
    Store,
}

impl ErrorClass {
    /// Whether trying the same thing again can help. Application errors are retried when the step's
    /// policy allows retries at all.
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Application
            | Self::TransientConnectorError
            | Self::RateLimited
            | Self::Timeout
            | Self::Panic => true,
            Self::ValidationError
            | Self::PermanentConnectorError
            | Self::PolicyDenied
            | Self::PermissionDenied
            | Self::ApprovalRejected
            | Self::Conflict
            | Self::NotFound
            | Self::Cancelled
            | Self::NonDeterminism
            | Self::RetriesExceeded
            | Self::Store => false,
        }
    }
}

/// A durable error.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Error(Box<Body>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Body {
    class: ErrorClass,
    code: String,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retryable: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    effect: Option<bool>,
}

impl Error {
    /// An error of a class with a stable code.
    pub fn new(class: ErrorClass, code: &str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.contains('\0') {
            // No database keeps it in every column, and what failed has to be told.
            message = message.replace('\0', "\u{FFFD}");
        }
        if message.len() > limits::MESSAGE_BYTES {
            let mut end = limits::MESSAGE_BYTES;
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
            message.push('…');
        }
        Self(Box::new(Body {
            class,
            code: code.to_owned(),
            message,
            kind: None,
            data: None,
            retryable: None,
            retry_after_ms: None,
            effect: None,
        }))
    }

    /// Bad input: nothing was changed.
    pub fn invalid(code: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorClass::ValidationError, code, message)
    }

    /// A plain application failure.
    pub fn app(message: impl Into<String>) -> Self {
        Self::new(ErrorClass::Application, "SF-0001", message)
    }

    /// An application error kept as data, so that [`Error::as_typed`] gives it back after replay.
    pub fn typed<E: Serialize + fmt::Display + 'static>(error: &E) -> Self {
        let mut made = Self::app(error.to_string());
        made.0.kind = Some(std::any::type_name::<E>().to_owned());
        made.0.data = crate::json::value("the error", error).ok();
        made
    }

    /// Any error a step or workflow returns, by its text and its type name. Ours passes unchanged.
    pub fn from_any<E: fmt::Display + 'static>(error: E) -> Self {
        let any: &dyn Any = &error;
        if let Some(ours) = any.downcast_ref::<Error>() {
            return ours.clone();
        }
        // The alternate form prints the chain of causes where the type has one.
        let mut made = Self::app(format!("{error:#}"));
        made.0.kind = Some(std::any::type_name::<E>().to_owned());
        made
    }

    /// The same error, marked as not worth retrying.
    pub fn permanent(mut self) -> Self {
        self.0.retryable = Some(false);
        self
    }

    /// The same error, from somebody who said when to come back.
    pub fn retry_after(mut self, d: Duration) -> Self {
        self.0.retry_after_ms = Some(u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The same error, of a request that changed nothing: it never left, or whoever got it said
    /// that all of it was taken back.
    pub fn without_effect(mut self) -> Self {
        self.0.effect = Some(false);
        self
    }

    /// The same error, where this attempt or one before it may have had an effect.
    pub fn maybe_with_effect(mut self) -> Self {
        self.0.effect = Some(true);
        self
    }

    /// Whether what failed may have been done all the same: a request left, and nobody said what
    /// became of it.
    pub fn is_unclear(&self) -> bool {
        let silent = match self.class() {
            ErrorClass::Timeout | ErrorClass::TransientConnectorError | ErrorClass::Panic => true,
            ErrorClass::Application | ErrorClass::RateLimited | ErrorClass::Conflict => false,
            ErrorClass::ValidationError | ErrorClass::PermanentConnectorError => false,
            ErrorClass::PolicyDenied | ErrorClass::PermissionDenied => false,
            ErrorClass::ApprovalRejected | ErrorClass::NotFound | ErrorClass::Cancelled => false,
            ErrorClass::NonDeterminism | ErrorClass::RetriesExceeded | ErrorClass::Store => false,
        };
        self.0.effect.unwrap_or(silent)
    }

    /// The shortest wait before another try, where the other side named one.
    pub fn wait_at_least(&self) -> Option<Duration> {
        self.0.retry_after_ms.map(Duration::from_millis)
    }

    /// What kind of failure it was.
    pub fn class(&self) -> ErrorClass {
        self.0.class
    }

    /// The stable code; `steadfast explain CODE` and `docs/errors/` say more.
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// The message without the code.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The Rust type the error had, when it was an application's own.
    pub fn kind(&self) -> Option<&str> {
        self.0.kind.as_deref()
    }

    /// The application's own error, when it was given through [`Error::typed`].
    pub fn as_typed<E: DeserializeOwned + 'static>(&self) -> Option<E> {
        if self.kind() != Some(std::any::type_name::<E>()) {
            return None;
        }
        self.0.data.clone().and_then(|data| serde_json::from_value(data).ok())
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable.unwrap_or_else(|| self.0.class.is_retryable())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.class == ErrorClass::Application {
            return f.write_str(&self.0.message);
        }
        write!(f, "{} [{}]", self.0.message, self.0.code)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}: {}", self.0.class, self.0.code, self.0.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum PayError {
        Declined { reason: String },
    }
    impl fmt::Display for PayError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{self:?}")
        }
    }

    #[test]
    fn a_typed_error_comes_back_as_itself() {
        let declined = || PayError::Declined { reason: "limit".into() };
        let stored = serde_json::to_string(&Error::typed(&declined())).unwrap();
        let back: Error = serde_json::from_str(&stored).unwrap();
        assert_eq!(back.as_typed::<PayError>(), Some(declined()));
        assert_eq!(back.as_typed::<String>(), None);
        assert_eq!(Error::from_any(back.clone()), back, "ours passes unchanged");
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let error = Error::app("é".repeat(limits::MESSAGE_BYTES));
        assert!(error.message().len() <= limits::MESSAGE_BYTES + '…'.len_utf8());
    }
}
