//! Events on their way out: numbered and sealed, kept for a time, sent to sinks.

use steadfast_core::Timestamp;
use steadfast_core::event::{Anchor, Facts, Link, Removal};

use super::command::EventRow;

impl EventRow {
    /// What the row says.
    pub fn facts<'a>(&'a self, workspace: &'a str) -> Facts<'a> {
        Facts {
            workspace,
            event_id: &self.event_id,
            command_id: &self.command_id,
            purpose: &self.purpose,
            event_type: &self.event_type,
            payload: &self.payload,
            actor: &self.actor,
            trace_id: &self.trace_id,
            created_at: self.created_at,
        }
    }
}

/// Gives numbers and links to events that have none.
#[derive(Debug, Clone, PartialEq)]
pub struct Seal {
    /// The workspace.
    pub workspace: String,
    /// Most events.
    pub limit: usize,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealed {
    /// So many were sealed, and the chain ends here.
    Done(usize, Anchor),
    /// Somebody else sealed at the same time: look again.
    Busy,
}

/// Removes events of one purpose that are old enough, sealed, and wanted by no sink any more.
#[derive(Debug, Clone, PartialEq)]
pub struct Retain {
    /// The workspace.
    pub workspace: String,
    /// Which: `event`, `audit` or `agent_step`.
    pub purpose: String,
    /// Only those of before this moment.
    pub before: Timestamp,
    /// Most events.
    pub limit: usize,
    /// The time.
    pub now: Timestamp,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retained {
    /// So many were removed.
    Done(usize),
    /// Audit events of that age are kept.
    TooYoung,
}

/// Asks for links of the chain.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadChain {
    /// The workspace.
    pub workspace: String,
    /// Behind this number.
    pub after: i64,
    /// Most links.
    pub limit: usize,
}

/// Links, and the chain's ends as they were at the same moment.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainPage {
    /// Where it begins: everything up to here was removed by retention.
    pub base: Anchor,
    /// Where it ends.
    pub head: Anchor,
    /// The links, in order.
    pub links: Vec<Link>,
    /// What retention tells of in events that have no number yet.
    pub unsealed: Vec<Removal>,
}

/// Whether a sink is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkState {
    /// It is.
    Active,
    /// It wants nothing any more, or somebody stopped it.
    Disabled,
}

impl SinkState {
    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Disabled => "disabled",
        }
    }

    /// Reads the spelling.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Active, Self::Disabled].into_iter().find(|state| state.as_str() == text)
    }
}

/// A sink, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkRow {
    /// Its name, unique in the workspace.
    pub sink: String,
    /// What kind of place it is.
    pub kind: String,
    /// Where it is.
    pub place: String,
    /// Whether it is sent to.
    pub state: SinkState,
    /// Why not.
    pub reason: String,
    /// Every event up to this number was sent or is parked.
    pub cursor: i64,
    /// Who sends; empty for nobody.
    pub owner: String,
    /// Raised by every taking: who settles must have taken last.
    pub epoch: i64,
    /// Until when the owner is left alone.
    pub lease_until: Timestamp,
    /// When it was made.
    pub created_at: Timestamp,
}

/// Where a new sink begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkFrom {
    /// With the first event that is still there.
    Beginning,
    /// With the next event that is sealed.
    Now,
}

/// Creates a sink, or says anew what and where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct PutSink {
    /// The workspace.
    pub workspace: String,
    /// Its name.
    pub sink: String,
    /// What kind of place it is.
    pub kind: String,
    /// Where it is.
    pub place: String,
    /// Where it begins if it is new.
    pub from: SinkFrom,
    /// The time.
    pub now: Timestamp,
}

/// The sink is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkPut {
    /// Whether it is new.
    pub created: bool,
}

/// Starts or stops a sink.
#[derive(Debug, Clone, PartialEq)]
pub struct SetSink {
    /// The workspace.
    pub workspace: String,
    /// Which.
    pub sink: String,
    /// What it is to be.
    pub state: SinkState,
    /// Why.
    pub reason: String,
    /// Who asks.
    pub actor: String,
    /// The time.
    pub now: Timestamp,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkSet {
    /// It is so now.
    Done,
    /// It was so before.
    Unchanged,
    /// There is none.
    NotFound,
}

/// Takes the right to send to a sink, with what there is to send.
#[derive(Debug, Clone, PartialEq)]
pub struct TakeOutbox {
    /// The workspace.
    pub workspace: String,
    /// The sink.
    pub sink: String,
    /// Who takes.
    pub owner: String,
    /// Until when he wants to be left alone.
    pub lease_until: Timestamp,
    /// Most events.
    pub limit: usize,
    /// The time.
    pub now: Timestamp,
}

/// What came of taking.
#[derive(Debug, Clone, PartialEq)]
pub enum Outbox {
    /// The right, and what there is to send.
    Taken(Box<Batch>),
    /// Somebody else has it.
    Held,
    /// The sink is not sent to.
    Disabled,
    /// There is none.
    NotFound,
}

/// What there is to send.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The right to settle it.
    pub epoch: i64,
    /// Where the sink stood.
    pub cursor: i64,
    /// Parked events whose time has come and that nothing of their key is before, by number.
    pub due: Vec<(Outgoing, u32)>,
    /// Events behind the cursor, by number.
    pub fresh: Vec<Outgoing>,
    /// Every parked event, due or not: number and key.
    pub parked: Vec<(i64, String)>,
    /// What was told lately, and when.
    pub marks: Vec<(String, Timestamp)>,
}

/// An event to be sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// Its number.
    pub seq: i64,
    /// The event.
    pub event: EventRow,
    /// The context of its command, as it is stored, while there is one.
    pub context: Option<String>,
}

/// What became of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Its number.
    pub seq: i64,
    /// Its id.
    pub event_id: String,
    /// Its key.
    pub key: String,
    /// What became of it.
    pub fate: Fate,
}

/// What became of an event that was to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It has arrived.
    Done,
    /// It waits for another attempt, or behind one of its key.
    Parked {
        /// Attempts so far.
        attempt: u32,
        /// Not before.
        next_at: Timestamp,
        /// What was wrong.
        error: String,
    },
    /// It was tried too often.
    Dead {
        /// Attempts.
        attempt: u32,
        /// What was wrong at last.
        error: String,
    },
}

/// Notes what became of a batch, and gives the right to send back.
#[derive(Debug, Clone, PartialEq)]
pub struct SettleOutbox {
    /// The workspace.
    pub workspace: String,
    /// The sink.
    pub sink: String,
    /// Who took it.
    pub owner: String,
    /// The right.
    pub epoch: i64,
    /// How far the sink gets.
    pub cursor: i64,
    /// What became of events that were parked or are now. Others have arrived.
    pub sent: Vec<Sent>,
    /// What was told just now.
    pub marks: Vec<(String, Timestamp)>,
    /// What was told before this moment is forgotten.
    pub forget_before: Timestamp,
    /// Why the sink wants nothing any more, if so.
    pub gone: Option<String>,
    /// The time.
    pub now: Timestamp,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxSettled {
    /// It is noted.
    Done,
    /// Somebody else has taken the right meanwhile: nothing was written.
    Fenced,
}

/// Asks for the sinks and where they stand.
#[derive(Debug, Clone, PartialEq)]
pub struct ListSinks {
    /// The workspace.
    pub workspace: String,
    /// Whether dead letters are to be counted too.
    pub count_dead: bool,
}

/// The sinks, and what is before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sinks {
    /// The last number that was given.
    pub head: i64,
    /// Whether events wait for their numbers.
    pub unsealed: bool,
    /// The sinks, by name.
    pub sinks: Vec<SinkReport>,
}

/// A sink and what waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkReport {
    /// The sink.
    pub row: SinkRow,
    /// Parked events.
    pub parked: i64,
    /// When the first of them is due.
    pub due_at: Option<Timestamp>,
    /// Dead letters, if they were to be counted.
    pub dead: i64,
}

/// Asks for dead letters.
#[derive(Debug, Clone, PartialEq)]
pub struct ListDead {
    /// The workspace.
    pub workspace: String,
    /// Of one sink, or of all.
    pub sink: Option<String>,
    /// Behind this sink and number.
    pub after: Option<(String, i64)>,
    /// Most rows.
    pub limit: usize,
}

/// An event that could not be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The sink.
    pub sink: String,
    /// The event's number.
    pub seq: i64,
    /// Its id.
    pub event_id: String,
    /// Its key.
    pub key: String,
    /// Attempts.
    pub attempt: i64,
    /// What was wrong at last.
    pub error: String,
    /// When it was given up.
    pub died_at: Timestamp,
}

/// Dead letters, by sink and number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetters(pub Vec<DeadLetter>);

/// Has dead letters of a sink sent again.
#[derive(Debug, Clone, PartialEq)]
pub struct Redrive {
    /// The workspace.
    pub workspace: String,
    /// The sink.
    pub sink: String,
    /// One event, or all.
    pub event_id: Option<String>,
    /// Who wants it.
    pub actor: String,
    /// The time.
    pub now: Timestamp,
}

impl Redrive {
    /// The id of the event that tells of it. Who asks again because the answer was lost asks with
    /// the same time, and is known by it.
    pub fn told_as(&self) -> String {
        let which = self.event_id.as_deref().unwrap_or_default();
        let which = &steadfast_core::json::fingerprint(which)[..8];
        format!("evt_sink_{}+{:020}{which}", self.sink, self.now.as_micros())
    }

    /// What that event tells.
    pub fn told(&self, count: u64) -> serde_json::Value {
        serde_json::json!({ "sink": self.sink, "event_id": self.event_id, "count": count })
    }
}

/// So many will be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redriven(pub u64);
