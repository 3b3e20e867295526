//! The life of one durable run: six statuses and the arrows between them.
//!
//! Invariants: SUCCESS and ERROR are final for ever; CANCELLED and RETRIES_EXCEEDED are final
//! until a person resumes the run; RETRIES_EXCEEDED is entered from PENDING only.
//! Deliberately absent: a status for sleeping or waiting. A suspended run is PENDING without a
//! lease.

use crate::error::{Error, ErrorClass};
use crate::time::Timestamp;

lifecycle! {
    /// Where a run stands.
    pub RunStatus on RunEvent as "run";
    start { Enqueued | Pending }
    terminal { Success | Error | RetriesExceeded | Cancelled }
    arrows {
        Enqueued --(Claim)--> Pending;
        Enqueued --(Cancel)--> Cancelled;
        Pending --(Claim)--> Pending;
        Pending --(Succeed)--> Success;
        Pending --(Fail)--> Error;
        Pending --(Exhaust)--> RetriesExceeded;
        Pending --(Cancel)--> Cancelled;
        Cancelled --(Resume)--> Enqueued;
        RetriesExceeded --(Resume)--> Enqueued;
    }
    states {
        /// Waiting on its queue for a worker.
        Enqueued = "ENQUEUED",
        /// Being executed, or suspended on something durable.
        Pending = "PENDING",
        /// Ended with a value.
        Success = "SUCCESS",
        /// Ended with an error of its own.
        Error = "ERROR",
        /// Parked: it brought down (or lost) its worker too many times.
        RetriesExceeded = "RETRIES_EXCEEDED",
        /// Stopped from outside.
        Cancelled = "CANCELLED",
    }
    events {
        /// A worker takes it: first dequeue, recovery of an expired lease, or wake-up.
        Claim,
        /// The workflow returned a value.
        Succeed,
        /// The workflow returned an error.
        Fail,
        /// Attempts are used up.
        Exhaust,
        /// Somebody cancels it.
        Cancel,
        /// Somebody puts it back on its queue.
        Resume,
    }
}

/// The error of a run that did not end before its deadline.
pub fn overdue(deadline: Timestamp) -> Error {
    let text = format!("the run did not end before its deadline {deadline}");
    Error::new(ErrorClass::Timeout, "SF-0304", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R73
    #[test]
    fn r073_there_are_exactly_six_statuses() {
        let names: Vec<_> = RunStatus::ALL.iter().map(|s| s.as_str()).collect();
        assert_eq!(
            names,
            ["ENQUEUED", "PENDING", "SUCCESS", "ERROR", "RETRIES_EXCEEDED", "CANCELLED"]
        );
        for status in RunStatus::ALL {
            assert_eq!(RunStatus::parse(status.as_str()), Some(*status));
        }
        assert_eq!(RunStatus::parse("MAX_RECOVERY_ATTEMPTS_EXCEEDED"), None);
    }

    /// R74
    #[test]
    fn r074_moves_outside_the_table_are_refused_by_name() {
        let refused = RunStatus::Success.on(RunEvent::Cancel).unwrap_err();
        assert_eq!(refused.to_string(), "a run in state SUCCESS does not accept Cancel");
        assert!(RunStatus::Error.on(RunEvent::Resume).is_err(), "ERROR is forked, not resumed");
        assert!(RunStatus::Error.on(RunEvent::Exhaust).is_err());
        assert!(RunStatus::Enqueued.on(RunEvent::Succeed).is_err());
        assert_eq!(RunStatus::Pending.on(RunEvent::Claim).unwrap().to(), RunStatus::Pending);
    }
}
