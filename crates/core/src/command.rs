//! The life of one command: the durable record of a requested intent, deduplicated by its key.
//!
//! Invariants: succeeded, cancelled and expired are final; a failed command may be queued again or
//! compensated; `compensated` goes on to `cancelled` only where a cancel was the cause, which the
//! store checks. Undoing a succeeded command is a new command.
//! Deliberately absent: what the runtime is doing. A run has statuses of its own, joined by its id.

pub mod context;
pub mod contract;
pub mod template;

pub use context::{Context, Ingress, Undoing};
pub use contract::{Book, CancellationMode, Capability, CommandType, RetryPolicy};
pub use template::Template;

lifecycle! {
    /// Where a command stands.
    pub CommandStatus on CommandEvent as "command";
    start { Created }
    terminal { Succeeded | Failed | Cancelled | Expired | Compensated }
    arrows {
        Created --(Validate)--> Validated;
        Created --(Fail)--> Failed;
        Created --(Cancel)--> Cancelled;
        Validated --(AskInput)--> WaitingForInput;
        Validated --(AskApproval)--> WaitingForApproval;
        Validated --(Queue)--> Queued;
        Validated --(Run)--> Running;
        Validated --(Fail)--> Failed;
        Validated --(Cancel)--> Cancelled;
        WaitingForInput --(Validate)--> Validated;
        WaitingForInput --(Cancel)--> Cancelled;
        WaitingForInput --(Expire)--> Expired;
        WaitingForApproval --(Approve)--> Approved;
        WaitingForApproval --(Cancel)--> Cancelled;
        WaitingForApproval --(Expire)--> Expired;
        WaitingForApproval --(Fail)--> Failed;
        Approved --(Queue)--> Queued;
        Approved --(Run)--> Running;
        Approved --(Cancel)--> Cancelled;
        Queued --(Run)--> Running;
        Queued --(Cancel)--> Cancelled;
        Queued --(Fail)--> Failed;
        Queued --(Stop)--> Cancelling;
        Running --(Succeed)--> Succeeded;
        Running --(Fail)--> Failed;
        Running --(Cancel)--> Cancelled;
        Running --(Block)--> Blocked;
        Running --(Stop)--> Cancelling;
        Blocked --(Queue)--> Queued;
        Blocked --(Run)--> Running;
        Blocked --(Fail)--> Failed;
        Blocked --(Cancel)--> Cancelled;
        Blocked --(Stop)--> Cancelling;
        Failed --(Queue)--> Queued;
        Failed --(Compensate)--> Compensating;
        Failed --(Cancel)--> Cancelled;
        Cancelling --(Cancel)--> Cancelled;
        Cancelling --(Compensate)--> Compensating;
        Compensating --(Succeed)--> Compensated;
        Compensating --(Fail)--> Failed;
        Compensated --(Cancel)--> Cancelled;
    }
    states {
        /// Written down, nothing checked yet.
        Created = "created",
        /// Its payload and its policies were checked; it may wait for other commands.
        Validated = "validated",
        /// Somebody has to add to its payload.
        WaitingForInput = "waiting_for_input",
        /// Somebody has to approve it.
        WaitingForApproval = "waiting_for_approval",
        /// Approved, not queued yet.
        Approved = "approved",
        /// Its run waits for a worker.
        Queued = "queued",
        /// Its run is being executed, or suspended on something durable.
        Running = "running",
        /// Its run cannot go on until somebody removes the cause.
        Blocked = "blocked",
        /// Done.
        Succeeded = "succeeded",
        /// Ended with an error.
        Failed = "failed",
        /// A cancel was asked for; what is under way is let end.
        Cancelling = "cancelling",
        /// Stopped by somebody.
        Cancelled = "cancelled",
        /// Nobody answered in time.
        Expired = "expired",
        /// Its effects are being undone, last first.
        Compensating = "compensating",
        /// Its effects were undone.
        Compensated = "compensated",
    }
    events {
        /// The payload and the policies are in order.
        Validate,
        /// A policy wants more input.
        AskInput,
        /// A policy wants an approval.
        AskApproval,
        /// The approval was given.
        Approve,
        /// Its run is put on a queue.
        Queue,
        /// A worker takes its run.
        Run,
        /// Its run is stuck.
        Block,
        /// Its run, or its compensation, came to a good end.
        Succeed,
        /// It cannot be done.
        Fail,
        /// Somebody asks it to stop.
        Stop,
        /// It is stopped.
        Cancel,
        /// Nobody answered in time.
        Expire,
        /// Its effects are to be undone.
        Compensate,
    }
}

impl CommandStatus {
    /// The type of the event that tells of entering it.
    pub const fn as_event(self) -> &'static str {
        match self {
            Self::Created => "command.created",
            Self::Validated => "command.validated",
            Self::WaitingForInput => "command.waiting_for_input",
            Self::WaitingForApproval => "command.waiting_for_approval",
            Self::Approved => "command.approved",
            Self::Queued => "command.queued",
            Self::Running => "command.running",
            Self::Blocked => "command.blocked",
            Self::Succeeded => "command.succeeded",
            Self::Failed => "command.failed",
            Self::Cancelling => "command.cancelling",
            Self::Cancelled => "command.cancelled",
            Self::Expired => "command.expired",
            Self::Compensating => "command.compensating",
            Self::Compensated => "command.compensated",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// X1
    #[test]
    fn x1_the_arrows_are_those_of_the_domain_and_no_others() {
        let listed = "created validated|failed|cancelled
            validated waiting_for_input|waiting_for_approval|queued|running|failed|cancelled
            waiting_for_input validated|cancelled|expired
            waiting_for_approval approved|cancelled|expired|failed
            approved queued|running|cancelled
            queued running|cancelled|failed|cancelling
            running succeeded|failed|cancelled|blocked|cancelling
            blocked queued|running|failed|cancelled|cancelling
            failed queued|compensating|cancelled
            cancelling cancelled|compensating
            compensating compensated|failed
            compensated cancelled";
        let mut wanted = BTreeSet::new();
        for line in listed.lines() {
            let (from, to) = line.trim().split_once(' ').unwrap();
            wanted.extend(to.split('|').map(|to| (from, to)));
        }
        let table = CommandStatus::TABLE.iter().map(|(from, _, to)| (from.as_str(), to.as_str()));
        assert_eq!(table.collect::<BTreeSet<_>>(), wanted);
    }

    #[test]
    fn events_are_named_after_their_statuses() {
        for status in CommandStatus::ALL {
            assert_eq!(status.as_event(), format!("command.{status}"));
        }
    }

    /// X1, R9
    #[test]
    fn x1_other_moves_are_refused_by_name() {
        let refused = CommandStatus::Succeeded.on(CommandEvent::Stop).unwrap_err();
        assert_eq!(refused.to_string(), "a command in state succeeded does not accept Stop");
        assert!(CommandStatus::Queued.on(CommandEvent::Succeed).is_err());
        assert!(CommandStatus::Running.on(CommandEvent::Expire).is_err());
        for over in [CommandStatus::Succeeded, CommandStatus::Cancelled, CommandStatus::Expired] {
            assert!(CommandStatus::TABLE.iter().all(|(from, _, _)| *from != over), "{over}");
        }
    }
}
