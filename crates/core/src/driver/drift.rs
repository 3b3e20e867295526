//! A drift: replay makes a recorded call again, of the same name and kind, with another input.
//!
//! Invariants: only digests are compared, and only where both the record and the call have one; the
//! code gets the recorded outcome all the same.

use super::record::{Kind, Record};
use super::request::Request;
use crate::error::{Error, ErrorClass};

/// A recorded call that the code now makes with another input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// Position of the call in the code.
    pub id: u64,
    /// Name of the step.
    pub name: String,
    /// The verb.
    pub kind: Kind,
}

impl Drift {
    pub(super) fn between(recorded: &Record, request: &Request) -> Option<Self> {
        let (then, now) = (recorded.input_digest.as_ref()?, request.input_digest.as_ref()?);
        (then != now).then(|| Self {
            id: recorded.id,
            name: recorded.name.clone(),
            kind: recorded.kind,
        })
    }

    /// What it is where the workflow is replayed strictly.
    pub fn error(&self) -> Error {
        let Self { id, name, kind } = self;
        let text = format!(
            "step {id} was recorded as {} \"{name}\" with another input than the code gives it \
             now; guard the change with cx.patched, fork the run from step {id}, or register the \
             workflow without strict_replay",
            kind.as_str()
        );
        Error::new(ErrorClass::NonDeterminism, "SF-0308", text)
    }
}
