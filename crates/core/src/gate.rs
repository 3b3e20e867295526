//! The gate: what a host asks before anything leaves the process.
//!
//! Invariants: a host that has a gate asks it before every attempt of an effect or a connector's
//! call, and does what it says; without a gate (plain runs, no commands) there is nothing to ask.
//! Deliberately absent: how it decides. `steadfast` puts contracts, policies and the store's
//! counters behind it.

use futures::future::BoxFuture;
use serde_json::Value;

use crate::command::Context;
use crate::effect::EffectSpec;
use crate::error::{Error, Result};
use crate::policy::{Asks, Judgement};
use crate::time::Timestamp;

/// What is about to leave.
#[derive(Debug, Clone)]
pub struct Leaving<'a> {
    /// What travels with the run.
    pub context: &'a Context,
    /// The run.
    pub run_id: &'a str,
    /// Its workflow.
    pub workflow: &'a str,
    /// The effect, if it is one.
    pub effect: Option<&'a EffectSpec>,
    /// The connector's call, if it is one.
    pub call: Option<&'a Calling>,
    /// Which attempt.
    pub attempt: u32,
    /// Whether people have said yes to exactly this.
    pub approved: bool,
    /// Whether a child of the command's run asks: it may outlive the command.
    pub child: bool,
    /// What budgets are charged more (or less) by records of this run that are not durable yet.
    pub owed: Vec<(String, i64)>,
    /// The time.
    pub now: Timestamp,
}

/// A call of a connector.
#[derive(Debug, Clone, PartialEq)]
pub struct Calling {
    /// The connector.
    pub connector: String,
    /// What it is asked, such as `GET /sales/daily`.
    pub operation: String,
    /// What with, as canonical JSON.
    pub input: String,
}

/// An effect's payload as policies and people see it: with what is really sent as its `request`,
/// where that is something else.
pub fn effect_seen(payload: &str, request: &str) -> Value {
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let (payload, request) = (read(payload), read(request));
    match payload {
        payload if payload == request => payload,
        Value::Object(mut fields) => {
            fields.insert("request".to_owned(), request);
            Value::Object(fields)
        }
        payload => serde_json::json!({ "payload": payload, "request": request }),
    }
}

/// What the gate says.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// What each stage decided.
    pub judgement: Judgement,
    /// What follows from it.
    pub passage: Passage,
    /// The compensation that will undo it, if it is an effect that has one.
    pub compensation: Option<String>,
    /// What was taken from budgets for it, where it may leave.
    pub taken: Vec<Taken>,
    /// The budget that does not reach, where one does not.
    pub cap: Option<CapReached>,
}

/// Some of a budget that was taken before a call, to be set right by what the call comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The budget.
    pub meter: String,
    /// How much.
    pub amount: i64,
    /// Whether it is what the call costs; otherwise calls or retries are counted.
    pub units: bool,
    /// From when on nobody takes from it any more, if that is known.
    pub until: Option<Timestamp>,
}

/// A budget that does not reach for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapReached {
    /// The budget.
    pub meter: String,
    /// Whether nobody can lift it.
    pub hard: bool,
    /// What there is of it.
    pub cap: i64,
    /// How much of that is spent.
    pub spent: i64,
    /// How much the call would take.
    pub wanted: i64,
}

/// Whether it may leave.
#[derive(Debug, Clone, PartialEq)]
pub enum Passage {
    /// Nothing governs it.
    Open,
    /// It may, and is entered in the ledger.
    Go,
    /// It may not. The error says whether another try makes sense, such as when a rate is used up.
    Refused(Error),
    /// People have to say yes first.
    Ask(Box<Asks>),
    /// It is only shown: a dry run.
    Plan,
}

/// What a host asks.
pub trait Gate: Send + Sync + 'static {
    /// Decides on what is about to leave.
    fn judge<'a>(&'a self, leaving: Leaving<'a>) -> BoxFuture<'a, Result<Verdict>>;

    /// Why a run does not do something that changes the world without leaving by a connector, such
    /// as writing in the caller's database. An agent's does not.
    fn refuses(&self, context: &Context, verb: &str) -> Option<Judgement>;

    /// Whether an agent's own code runs: each of its steps is told of.
    fn is_agent(&self, context: &Context) -> bool;

    /// Whether a compensation has an effect that its declaration does not have.
    fn drift(&self, context: &Context, compensation: &str, effect_type: &str) -> bool;
}
