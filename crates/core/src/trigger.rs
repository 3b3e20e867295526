//! A trigger: when something happens, submit this command. As data, so that any process can fire
//! it.
//!
//! Invariants: a trigger is whole: it holds the contract of what it submits, so firing it needs no
//! application code; what it renders is a function of the slot or the event alone.
//! Deliberately absent: conditions in Rust. A closure cannot be stored, shown or fired elsewhere.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::command::template::render_json;
use crate::command::{CommandType, Context, Template};
use crate::error::{Error, Result};
use crate::schedule::{Calendar, Schedule, fire_values};
use crate::time::Timestamp;
use crate::{key, limits};

/// When a trigger fires.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "trigger_type", rename_all = "snake_case")]
pub enum When {
    /// At the nominal times of a schedule.
    Cron(Schedule),
    /// When an event comes that matches.
    Event(EventMatch),
}

impl When {
    /// The one spelling.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Cron(_) => "cron",
            Self::Event(_) => "event",
        }
    }
}

/// Which events are meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventMatch {
    /// The event's type; a trailing `.*` takes every type that begins so.
    pub event_type: String,
    /// An expression over `event` that must be true, in CEL; none for every event of the type.
    #[serde(default)]
    pub filter: Option<String>,
}

impl EventMatch {
    /// Whether the type is meant.
    pub fn takes(&self, event_type: &str) -> bool {
        match self.event_type.strip_suffix(".*") {
            Some(family) => {
                event_type.strip_prefix(family).is_some_and(|rest| rest.starts_with('.'))
            }
            None => self.event_type == event_type,
        }
    }
}

/// A trigger's definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trigger {
    /// Its id: part of the ids of the runs it makes.
    pub trigger_id: String,
    /// Whether it may fire.
    pub enabled: bool,
    /// When it fires.
    pub when: When,
    /// The contract of what it submits.
    pub command: CommandType,
    /// The payload, with holes.
    pub payload: Value,
}

impl Trigger {
    /// Refuses a definition that could not fire, naming what is wrong.
    pub fn check(&self) -> Result<()> {
        let at = |e: Error| {
            let text = format!("trigger \"{}\": {}", self.trigger_id, e.message());
            Error::invalid(e.code(), text)
        };
        key::check("trigger id", &self.trigger_id)?;
        if self.trigger_id.contains(':') {
            let text = format!(
                "trigger id \"{}\" has a colon, which ends it in the ids of its runs",
                self.trigger_id
            );
            return Err(Error::invalid("SF-0105", text));
        }
        if self.trigger_id.len() > limits::TRIGGER_BYTES {
            let most = limits::TRIGGER_BYTES;
            let text = format!("the trigger id is longer than {most} bytes");
            return Err(Error::invalid("SF-0105", text));
        }
        self.command.check().map_err(at)?;
        match &self.when {
            When::Cron(schedule) => {
                let calendar = Calendar::new(schedule).map_err(at)?;
                let sample = calendar.after(Timestamp::from_micros(0)).unwrap_or_default();
                let payload = self.payload_at(sample, None).map_err(at)?;
                self.command.key(&payload, &Context::default()).map_err(at)?;
            }
            When::Event(event) => {
                key::check("event type", &event.event_type).map_err(at)?;
                let family = event.event_type.strip_suffix(".*").unwrap_or(&event.event_type);
                if family.contains('*') || family.is_empty() {
                    let text = format!(
                        "event type \"{}\": a * stands only behind a last dot, as in order.*",
                        event.event_type
                    );
                    return Err(at(Error::invalid("SF-0703", text)));
                }
                // What an event holds is known when it comes; how the holes are written, now.
                check_holes(&self.payload).map_err(at)?;
                self.check_key().map_err(at)?;
            }
        }
        Ok(())
    }

    /// Refuses a key that no payload of this trigger could fill.
    fn check_key(&self) -> Result<()> {
        let Some(text) = &self.command.key_template else { return Ok(()) };
        let (template, Value::Object(fields)) = (Template::parse(text)?, &self.payload) else {
            return Ok(());
        };
        let first = |hole: &str| hole.split('.').next().unwrap_or_default().to_owned();
        let lacks =
            |hole: &&str| !hole.starts_with("context.") && !fields.contains_key(&first(hole));
        match template.holes().find(lacks) {
            None => Ok(()),
            Some(hole) => {
                let text = format!("key \"{text}\": the payload has no {{{hole}}}");
                Err(Error::invalid("SF-0504", text))
            }
        }
    }

    /// The payload of a slot.
    pub fn payload_at(
        &self,
        nominal: Timestamp,
        window: Option<(Timestamp, Timestamp)>,
    ) -> Result<Value> {
        render_json(&self.payload, &[&fire_values(nominal, window), &self.own_values()])
    }

    /// The payload for an event, as [`crate::envelope::Envelope::to_value`] shows it.
    pub fn payload_for(&self, event: &Value) -> Result<Value> {
        render_json(&self.payload, &[&json!({ "event": event }), &self.own_values()])
    }

    fn own_values(&self) -> Value {
        json!({ "trigger": { "id": self.trigger_id } })
    }
}

fn check_holes(template: &Value) -> Result<()> {
    match template {
        Value::String(text) => {
            let template = Template::parse(text)?;
            let known = |hole: &str| hole.starts_with("event.") || hole.starts_with("trigger.");
            if template.holes().any(|hole| hole == "event.trace_id") {
                let why = "another delivery of the event may be of another trace, and would not be \
                           the same; the run's context holds the trace";
                let text = format!("template \"{template}\": {{event.trace_id}}: {why}");
                return Err(Error::invalid("SF-0504", text));
            }
            match template.holes().find(|hole| !known(hole)) {
                None => Ok(()),
                Some(hole) => Err(Error::invalid(
                    "SF-0504",
                    format!("template \"{template}\": {{{hole}}} is neither event.… nor trigger.…"),
                )),
            }
        }
        Value::Array(items) => items.iter().try_for_each(check_holes),
        Value::Object(fields) => fields.values().try_for_each(check_holes),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// The run id of a trigger's event.
pub fn event_run_id(trigger_id: &str, event_id: &str) -> String {
    key::derived(&format!("activity-{trigger_id}"), &format!(":{event_id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nightly() -> Trigger {
        Trigger {
            trigger_id: "nightly".to_owned(),
            enabled: true,
            when: When::Cron(Schedule::cron("0 3 * * *")),
            command: CommandType {
                key_template: Some("sync:{vendor}:{day}".to_owned()),
                ..CommandType::new("sync")
            },
            payload: json!({ "vendor": "acme_sales", "day": "{target_date}" }),
        }
    }

    fn refusal(change: impl FnOnce(&mut Trigger)) -> Error {
        let mut changed = nightly();
        change(&mut changed);
        changed.check().unwrap_err()
    }

    #[test]
    fn a_definition_that_could_not_fire_is_refused() {
        nightly().check().unwrap();
        let unknown = refusal(|t| t.payload = json!({ "vendor": "a", "day": "{yesterday}" }));
        assert_eq!(unknown.code(), "SF-0504");
        assert!(unknown.message().contains("trigger \"nightly\""), "{unknown}");
        assert_eq!(refusal(|t| t.payload = json!({ "vendor": "a" })).code(), "SF-0504");
        assert_eq!(refusal(|t| t.trigger_id = "t".repeat(201)).code(), "SF-0105");
        assert_eq!(refusal(|t| t.trigger_id = String::new()).code(), "SF-0105");
        let cron = |text: &str| When::Cron(Schedule::cron(text));
        assert_eq!(refusal(|t| t.when = cron("every day")).code(), "SF-0601");
        let event = EventMatch { event_type: "order.paid".to_owned(), filter: None };
        let wrong = refusal(|t| t.when = When::Event(event));
        assert!(wrong.message().contains("{target_date} is neither"), "{wrong}");
    }

    #[test]
    fn a_type_is_taken_by_name_or_by_family() {
        let family = |text: &str| EventMatch { event_type: text.to_owned(), filter: None };
        assert!(family("order.paid").takes("order.paid"));
        assert!(!family("order.paid").takes("order.paid.late"));
        assert!(family("order.*").takes("order.paid.late"));
        assert!(!family("order.*").takes("orders.paid"));
    }

    /// R59
    #[test]
    fn r059_an_events_run_is_named_after_the_event() {
        let id = event_run_id("550e8400-e29b-41d4-a716-446655440000", "evt_abc123");
        assert_eq!(id, "activity-550e8400-e29b-41d4-a716-446655440000:evt_abc123");
    }

    #[test]
    fn a_definition_survives_the_store() {
        let text = serde_json::to_string(&nightly()).unwrap();
        assert_eq!(serde_json::from_str::<Trigger>(&text).unwrap(), nightly());
    }
}
