//! A request: what workflow code asks its host for.
//!
//! Invariants: a request is plain data but for the body of a call; the host may carry it out
//! anywhere.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;

use super::record::{Kind, Outcome};
use crate::approval::ApprovalRequest;
use crate::effect::EffectSpec;
use crate::error::Error;
use crate::gate::Calling;
use crate::json;
use crate::retry::Retry;
use crate::time::Timestamp;

/// The work of a step: called once per attempt.
pub type Body = Box<dyn Fn() -> BoxFuture<'static, Outcome> + Send + Sync>;

/// How careful the host must be around a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Reads the world; may be read again after a crash; its record rides along.
    Read,
    /// Anything: earlier records are durable before it starts.
    Step,
}

/// What is promised of an effect, by what its receiver can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectClass {
    /// The receiver honours the key: calling again is safe.
    Keyed,
    /// Calling again is not safe: found begun after a crash, its outcome is unknown.
    AtMostOnce,
}

/// Options of a call.
#[derive(Debug, Clone, Default)]
pub struct CallOptions {
    /// When and how often it is tried again.
    pub retry: Retry,
    /// The longest one attempt may take.
    pub timeout: Option<Duration>,
    /// The queue whose slots it needs.
    pub slot: Option<SlotRequest>,
    /// What the gate and the ledger need to know, where it is governed.
    pub guard: Option<Arc<Guard>>,
    /// The event that tells of each attempt after which there is another.
    pub retried_as: Option<String>,
    /// The type of the command that it proposes, where it does nothing else.
    pub proposes: Option<String>,
}

/// What is known of a call that is governed.
#[derive(Default)]
pub struct Guard {
    /// The effect, if it is one.
    pub effect: Option<EffectSpec>,
    /// Whether the effect's key is the code's own. Other keys follow from the contract or from the
    /// run's id, which is another one in a fork.
    pub given_key: bool,
    /// The connector's call, if it is one.
    pub calling: Option<Calling>,
    /// Where the body leaves what it did, for the ledger.
    pub said: Mutex<Option<Said>>,
    /// Asks the receiver whether it was done.
    pub probe: Option<Probing>,
}

/// Asks whether an effect was done: its outcome, or that it was not done.
pub type Probing =
    Box<dyn Fn() -> BoxFuture<'static, Result<Option<Outcome>, Error>> + Send + Sync>;

/// What a connector says it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// What was really done.
    pub actual: String,
    /// A line for people.
    pub summary: String,
    /// What it cost, in units, where the other side said.
    pub cost_units: Option<u64>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?}, {:?})", self.effect, self.calling)
    }
}

/// A slot of a queue that a step holds while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotRequest {
    /// The queue.
    pub queue: String,
    /// The partition, empty for none.
    pub partition: String,
}

/// A child run to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildStart {
    /// The child's id.
    pub run_id: String,
    /// The workflow's name.
    pub workflow: String,
    /// The input as JSON.
    pub input: String,
    /// The queue, if not the default one.
    pub queue: Option<String>,
    /// Whether cancelling the parent leaves it alone.
    pub detached: bool,
}

/// One request.
pub struct Request {
    /// Position of the call in the code.
    pub id: u64,
    /// Name of the step.
    pub name: String,
    /// Input of the step, when it has one.
    pub input: Option<String>,
    /// A digest of what the call is made with; the driver computes it when the call is asked for.
    pub input_digest: Option<String>,
    /// When the code asked for it, by the run's logical clock: the same on every replay.
    pub asked_at: Timestamp,
    /// What is wanted.
    pub ask: Ask,
}

impl Request {
    /// The digest of what the call is made with. `None` where that is not known (a closure, a
    /// transaction's SQL) or where there is nothing (a wait). Only what replay and a fork compute
    /// again from recorded values is part of it: no clock, no id derived from the run's own.
    pub(crate) fn digest(&self) -> Option<String> {
        let input = self.input.as_deref();
        match &self.ask {
            Ask::Call { .. } | Ask::Sleep { .. } | Ask::Spawn(_) => {
                Some(json::fingerprint_of([input?]))
            }
            Ask::Effect { options, .. } => {
                let guard = options.guard.as_ref()?;
                let spec = guard.effect.as_ref()?;
                let key = if guard.given_key { spec.key.as_str() } else { "" };
                Some(json::fingerprint_of([spec.effect_type.as_str(), key, spec.payload.as_str()]))
            }
            Ask::Send { to, signal, payload } => {
                Some(json::fingerprint_of([to.as_str(), signal, payload]))
            }
            Ask::Publish { key, value } => Some(json::fingerprint_of([key.as_str(), value])),
            Ask::Append { stream, item } => match item {
                Some(item) => Some(json::fingerprint_of([stream.as_str(), item])),
                None => Some(json::fingerprint_of([stream.as_str()])),
            },
            Ask::Emit { payload, audit } => {
                let purpose = if *audit { "audit" } else { "event" };
                Some(json::fingerprint_of([payload.as_str(), purpose]))
            }
            Ask::Join { run_id } => Some(json::fingerprint_of([run_id.as_str()])),
            Ask::Transaction(_) | Ask::Signal { .. } | Ask::Approval(_) => None,
            Ask::Undone { .. } | Ask::Settle { .. } => None,
        }
    }
}

/// What a request wants.
pub enum Ask {
    /// Run a body.
    Call {
        /// How careful to be.
        verb: Verb,
        /// The body.
        body: Body,
        /// Options.
        options: Arc<CallOptions>,
    },
    /// Perform a declared effect.
    Effect {
        /// What may be repeated.
        class: EffectClass,
        /// The body.
        body: Body,
        /// Options.
        options: Arc<CallOptions>,
    },
    /// Run the caller's SQL and record the outcome in one commit of the store's database. The work
    /// is opaque here: only the store knows its driver's types.
    Transaction(Box<dyn std::any::Any + Send + Sync>),
    /// Wait until a moment.
    Sleep {
        /// The moment.
        until: Timestamp,
    },
    /// Wait for a signal.
    Signal {
        /// Until when; `NEVER` for no limit.
        until: Timestamp,
    },
    /// Send a signal to another run.
    Send {
        /// The receiver.
        to: String,
        /// The signal's name.
        signal: String,
        /// The payload as JSON.
        payload: String,
    },
    /// Set a published value.
    Publish {
        /// The key.
        key: String,
        /// The value as JSON.
        value: String,
    },
    /// Append to a stream, or close it.
    Append {
        /// The stream.
        stream: String,
        /// The item as JSON; `None` closes the stream.
        item: Option<String>,
    },
    /// Tell that something happened.
    Emit {
        /// The payload as JSON.
        payload: String,
        /// Whether it is for auditors; otherwise for whoever listens.
        audit: bool,
    },
    /// Ask people, and wait.
    Approval(Box<ApprovalRequest>),
    /// Note that an effect was taken back.
    Undone {
        /// The effect.
        effect_id: String,
        /// By which compensation.
        compensation: String,
    },
    /// Find out what became of an effect that another run of the command left open.
    Settle {
        /// The effect.
        effect_id: String,
    },
    /// Start a child.
    Spawn(ChildStart),
    /// Wait for a child's result.
    Join {
        /// The child.
        run_id: String,
    },
}

impl Ask {
    /// The kind of record the request will make.
    pub fn kind(&self) -> Kind {
        match self {
            Ask::Call { verb: Verb::Read, .. } => Kind::Read,
            Ask::Call { verb: Verb::Step, .. } => Kind::Step,
            Ask::Effect { .. } | Ask::Settle { .. } => Kind::Effect,
            Ask::Transaction(_) => Kind::Transaction,
            Ask::Sleep { .. } => Kind::Sleep,
            Ask::Signal { .. } => Kind::Signal,
            Ask::Send { .. } => Kind::Send,
            Ask::Publish { .. } => Kind::Publish,
            Ask::Append { .. } => Kind::Append,
            Ask::Emit { .. } => Kind::Emit,
            Ask::Approval(_) => Kind::Approval,
            Ask::Undone { .. } => Kind::Undone,
            Ask::Spawn(_) => Kind::Spawn,
            Ask::Join { .. } => Kind::Join,
        }
    }
}
