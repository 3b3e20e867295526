//! A record: what became of one call of a workflow, as it is stored and replayed.
//!
//! Invariants: `id` is taken when the call is built and never reused; `seq` is the order in which
//! outcomes reached the code; a done record never changes.

use crate::error::Error;
use crate::time::Timestamp;

/// A value as JSON text, or an error.
pub type Outcome = Result<String, Error>;

macro_rules! spelled {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// The one spelling.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
            /// Reads the spelling; an unknown one is `None`.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some($name::$variant),)+ _ => None }
            }
        }
    };
}

spelled! {
    /// Which verb made the record.
    Kind {
        /// `cx.compute`
        Compute = "compute",
        /// `cx.read`
        Read = "read",
        /// `cx.step`
        Step = "step",
        /// `cx.effect`
        Effect = "effect",
        /// `cx.transaction`
        Transaction = "transaction",
        /// `cx.sleep`
        Sleep = "sleep",
        /// `cx.wait_signal`
        Signal = "signal",
        /// `cx.send`
        Send = "send",
        /// `cx.publish`
        Publish = "publish",
        /// `cx.append`, `cx.close_stream`
        Append = "append",
        /// `cx.emit`
        Emit = "emit",
        /// `cx.approval`
        Approval = "approval",
        /// the end of a compensation
        Undone = "undone",
        /// `cx.spawn`
        Spawn = "spawn",
        /// the wait for a child's result
        Join = "join",
        /// `cx.patched`
        Patch = "patch",
    }
}

spelled! {
    /// How far a record has come.
    RecordState {
        /// Written before an effect is performed: if it is found so, the outcome is unknown.
        Executing = "executing",
        /// An attempt failed; the next one is due at `next_at`.
        Retrying = "retrying",
        /// Final.
        Done = "done",
    }
}

/// What became of one call.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Position of the call in the code (`function_id`), counted from 0.
    pub id: u64,
    /// Position of the outcome in the order of deliveries.
    pub seq: u64,
    /// The step's name.
    pub name: String,
    /// The verb.
    pub kind: Kind,
    /// How far it has come.
    pub state: RecordState,
    /// The typed input, when the call had one.
    pub input: Option<String>,
    /// A digest of what the call was made with, where that is known: replay compares it.
    pub input_digest: Option<String>,
    /// The value or error; of an unfinished record, the last error or `null`.
    pub outcome: Outcome,
    /// The child run, when the call started one.
    pub child: Option<String>,
    /// How many attempts have been made.
    pub attempt: u32,
    /// When the first attempt began.
    pub started_at: Timestamp,
    /// When it was done.
    pub completed_at: Timestamp,
    /// When the next attempt is due, while retrying.
    pub next_at: Timestamp,
    /// Whether replay has met it. Not stored.
    pub seen: bool,
}

impl Record {
    /// A finished record with nothing but its outcome.
    pub fn done(id: u64, seq: u64, name: &str, kind: Kind, outcome: Outcome) -> Self {
        Self {
            id,
            seq,
            name: name.to_owned(),
            kind,
            state: RecordState::Done,
            input: None,
            input_digest: None,
            outcome,
            child: None,
            attempt: 1,
            started_at: Timestamp::default(),
            completed_at: Timestamp::default(),
            next_at: Timestamp::default(),
            seen: false,
        }
    }
}
