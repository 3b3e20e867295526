//! What a run waits for without needing memory: moments, signals, children, retries.

use serde_json::{Value, json};
use steadfast_core::Timestamp;

/// One durable wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wait {
    Sleep {
        asked_at: Timestamp,
        until: Timestamp,
    },
    Signal {
        name: String,
        asked_at: Timestamp,
        until: Timestamp,
    },
    Child {
        run_id: String,
        asked_at: Timestamp,
        look_at: Timestamp,
    },
    Retry {
        name: String,
        attempt: u32,
        until: Timestamp,
    },
    /// For what people say: a signal that is not delivered to the code.
    Answer {
        name: String,
    },
}

impl Wait {
    /// When it is over by itself.
    pub(crate) fn until(&self) -> Timestamp {
        match self {
            Wait::Sleep { until, .. } | Wait::Signal { until, .. } | Wait::Retry { until, .. } => {
                *until
            }
            Wait::Child { look_at, .. } => *look_at,
            Wait::Answer { .. } => Timestamp::NEVER,
        }
    }

    pub(crate) fn answer(name: String) -> Self {
        Wait::Answer { name }
    }

    /// What `describe` says of each, as it is kept.
    pub(crate) fn describe_all<'a>(waits: impl Iterator<Item = &'a Wait>) -> String {
        Value::from(waits.map(Wait::describe).collect::<Vec<_>>()).to_string()
    }

    /// For people: kept with the suspended run and shown by `explain`.
    pub(crate) fn describe(&self) -> Value {
        let until = (self.until() != Timestamp::NEVER).then(|| self.until().as_micros());
        match self {
            Wait::Sleep { .. } => json!({ "for": "sleep", "until": until }),
            Wait::Signal { name, .. } => json!({ "for": "signal", "name": name, "until": until }),
            Wait::Answer { name } => json!({ "for": "answer", "name": name }),
            Wait::Child { run_id, .. } => json!({ "for": "child", "run_id": run_id }),
            Wait::Retry { name, attempt, .. } => {
                json!({ "for": "retry", "name": name, "attempt": attempt, "until": until })
            }
        }
    }
}
