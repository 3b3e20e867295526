//! Triggers, as an application defines them: schedules and events that submit commands.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use steadfast_core::command::CommandType;
use steadfast_core::schedule::{Misfire, Overlap, Schedule as Cron};
use steadfast_core::trigger::{EventMatch, Trigger, When};
use steadfast_core::{Error, Result, Timestamp, json};

use crate::contract::Contracts;
use crate::flow::router;

/// A schedule that submits a command at each of its nominal times.
///
/// The payload may name `{target_date}` (the UTC day before the nominal time), `{fire_date}`,
/// `{scheduled_for}`, `{window_start}` and `{window_end}`; they follow from the nominal time, not
/// from when it was fired.
#[derive(Debug, Clone)]
#[must_use = "a schedule does nothing until a fabric has it"]
pub struct Schedule {
    id: String,
    cron: Cron,
    enabled: bool,
    submits: Option<(String, Result<Value>)>,
}

impl Schedule {
    /// A schedule in UTC that skips what it missed. Its id is part of the ids of its runs.
    pub fn new(id: impl Into<String>, cron: &str) -> Self {
        Self { id: id.into(), cron: Cron::cron(cron), enabled: true, submits: None }
    }

    /// The command it submits, by type, and the payload with its holes.
    pub fn submits(mut self, command_type: impl Into<String>, payload: impl Serialize) -> Self {
        let payload = json::value("the payload", &payload);
        self.submits = Some((command_type.into(), payload));
        self
    }

    /// The time zone, by its IANA name.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.cron.timezone = zone.into();
        self
    }

    /// Fires each slot up to this much later, by an amount of its own.
    pub fn jitter(mut self, most: Duration) -> Self {
        self.cron.jitter_seconds = seconds(most);
        self
    }

    /// No slots before.
    pub fn from(mut self, at: Timestamp) -> Self {
        self.cron.start_at = Some(at);
        self
    }

    /// No slots after.
    pub fn until(mut self, at: Timestamp) -> Self {
        self.cron.end_at = Some(at);
        self
    }

    /// What happens to slots that nobody could fire in time.
    pub fn misfire(mut self, policy: Misfire) -> Self {
        (self.cron.misfire_policy, self.cron.dedupe_key_strategy) = (policy, policy);
        self
    }

    /// Fires at most so many missed slots, the latest (10 unless given).
    pub fn catchup(mut self, most: u32) -> Self {
        self.cron.catchup_limit = most;
        self.misfire(Misfire::Catchup)
    }

    /// Missed slots older than this are missed for good.
    pub fn catchup_window(mut self, window: Duration) -> Self {
        self.cron.catchup_window_seconds = Some(window.as_secs());
        self
    }

    /// A slot this late is still in time (a minute unless given).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.cron.grace_seconds = seconds(grace);
        self
    }

    /// What happens when the command of an earlier slot is not over.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.cron.overlap = overlap;
        self
    }

    /// Whether it fires at all.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    pub(crate) fn define(self, contracts: &Contracts) -> Result<Trigger> {
        make(self.id, self.enabled, When::Cron(self.cron), self.submits, contracts)
    }
}

fn seconds(d: Duration) -> u32 {
    u32::try_from(d.as_secs()).unwrap_or(u32::MAX)
}

/// A trigger that submits a command for each event that matches.
///
/// The payload may name `{event.subject}`, `{event.payload.…}` and the other attributes of the
/// envelope.
#[derive(Debug, Clone)]
#[must_use = "a trigger does nothing until a fabric has it"]
pub struct OnEvent {
    id: String,
    event: EventMatch,
    enabled: bool,
    submits: Option<(String, Result<Value>)>,
}

impl OnEvent {
    /// Listens for events of a type; `order.*` takes every type that begins so.
    pub fn new(id: impl Into<String>, event_type: impl Into<String>) -> Self {
        let event = EventMatch { event_type: event_type.into(), filter: None };
        Self { id: id.into(), event, enabled: true, submits: None }
    }

    /// Only events of which this expression is true, in CEL: `event.payload.total > 100`.
    pub fn filter(mut self, expression: impl Into<String>) -> Self {
        self.event.filter = Some(expression.into());
        self
    }

    /// The command it submits, by type, and the payload with its holes.
    pub fn submits(mut self, command_type: impl Into<String>, payload: impl Serialize) -> Self {
        let payload = json::value("the payload", &payload);
        self.submits = Some((command_type.into(), payload));
        self
    }

    /// Whether it fires at all.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    pub(crate) fn define(self, contracts: &Contracts) -> Result<Trigger> {
        make(self.id, self.enabled, When::Event(self.event), self.submits, contracts)
    }
}

/// A whole definition: with the contract of what it submits, and everything checked.
fn make(
    trigger_id: String,
    enabled: bool,
    when: When,
    submits: Option<(String, Result<Value>)>,
    contracts: &Contracts,
) -> Result<Trigger> {
    let (command_type, payload) = submits.ok_or_else(|| {
        Error::invalid("SF-0603", format!("trigger \"{trigger_id}\": submits nothing"))
    })?;
    let payload = payload?;
    let registered = contracts.get(&command_type)?;
    let command = CommandType::clone(&registered.command);
    let trigger = Trigger { trigger_id, enabled, when, command, payload };
    trigger.check()?;
    router::check_filter(&trigger)?;
    if let When::Cron(_) = &trigger.when {
        // Rendered for some slot, it must be a payload of the type.
        registered.check(&trigger.payload_at(Timestamp::from_micros(0), None)?)?;
    }
    Ok(trigger)
}
