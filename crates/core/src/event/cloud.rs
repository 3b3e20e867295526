//! Events as CloudEvents 1.0: the form in which they leave.
//!
//! Invariants: the same row always makes the same events, with the same ids, so that whoever
//! receives one twice can tell; `source` and `id` together are unique; extension attributes are
//! lower-case letters and digits, twenty at most; what is too large to be forwarded safely carries
//! a reference instead of its data.
//! Deliberately absent: secrets. Attributes are seen by everybody on the way.

use serde_json::{Map, Value, json};

use super::Facts;
use crate::json::fingerprint;

/// Intermediaries need not forward more than 64 KiB; the attributes take their part of it.
const DATA_BYTES: usize = 60 * 1024;
/// What every type begins with.
const PREFIX: &str = "steadfast.";

/// One event, as it leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct CloudEvent {
    /// Unique in its source, and the same each time it is sent.
    pub id: String,
    /// Which workspace it is of: `steadfast/default`.
    pub source: String,
    /// What happened: `steadfast.command.created`.
    pub event_type: String,
    /// The command, if it concerns one.
    pub subject: Option<String>,
    /// When, in RFC 3339.
    pub time: String,
    /// Extension attributes, by name.
    pub extensions: Vec<(&'static str, String)>,
    /// What it carries.
    pub data: Option<Value>,
}

impl CloudEvent {
    /// The events that a row is published as: itself, and for the turns of a run also the one of
    /// the workflow.
    pub fn of(facts: &Facts<'_>, seq: i64, correlation: Option<&str>) -> Vec<Self> {
        let own = Self::new(facts, seq, correlation);
        let turn = match facts.event_type {
            "command.running" => "started",
            "command.succeeded" => "completed",
            "command.failed" => "failed",
            "command.compensated" => "compensated",
            _ => return vec![own],
        };
        let workflow = Self {
            id: format!("{}-workflow", own.id),
            event_type: format!("{PREFIX}workflow.{turn}"),
            ..own.clone()
        };
        vec![own, workflow]
    }

    fn new(facts: &Facts<'_>, seq: i64, correlation: Option<&str>) -> Self {
        let source = format!("steadfast/{}", escaped(facts.workspace));
        let data = serde_json::from_str(facts.payload).unwrap_or_else(|_| json!(facts.payload));
        let mut extensions = vec![
            // Of a fixed width, because receivers compare it as text.
            ("sequence", format!("{seq:019}")),
            ("partitionkey", facts.key().to_owned()),
            ("purpose", facts.purpose.to_owned()),
            ("actor", facts.actor.to_owned()),
        ];
        extensions.extend(traceparent(facts).map(|parent| ("traceparent", parent)));
        let correlation = correlation.filter(|id| !id.is_empty());
        extensions.extend(correlation.map(|id| ("correlationid", id.to_owned())));
        let large = facts.payload.len() > DATA_BYTES;
        if large {
            extensions.push(("dataref", format!("{source}/events/{}", escaped(facts.event_id))));
        }
        extensions.retain(|(_, value)| is_attribute(value));
        Self {
            id: facts.event_id.to_owned(),
            source,
            event_type: format!("{PREFIX}{}", facts.event_type),
            subject: Some(facts.command_id.to_owned()).filter(|id| !id.is_empty()),
            time: facts.created_at.to_string(),
            extensions,
            data: (!large).then_some(data),
        }
    }

    /// An extension attribute.
    pub fn extension(&self, name: &str) -> Option<&str> {
        self.extensions.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// What happened, without our prefix: `command.created`.
    pub fn short_type(&self) -> &str {
        self.event_type.strip_prefix(PREFIX).unwrap_or(&self.event_type)
    }

    /// The event in the JSON format of CloudEvents (`application/cloudevents+json`).
    pub fn to_json(&self) -> Value {
        let mut event = Map::new();
        let mut put = |name: &str, value: &str| event.insert(name.to_owned(), json!(value));
        put("specversion", "1.0");
        put("id", &self.id);
        put("source", &self.source);
        put("type", &self.event_type);
        put("time", &self.time);
        if let Some(subject) = &self.subject {
            put("subject", subject);
        }
        for (name, value) in &self.extensions {
            put(name, value);
        }
        if let Some(data) = &self.data {
            event.insert("datacontenttype".to_owned(), json!("application/json"));
            event.insert("data".to_owned(), data.clone());
        }
        Value::Object(event)
    }
}

/// The trace, if it is one, with a parent that follows from the event: we have no span for it.
fn traceparent(facts: &Facts<'_>) -> Option<String> {
    let trace = facts.trace_id;
    let is_hex = trace.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if trace.len() != 32 || !is_hex || trace.bytes().all(|b| b == b'0') {
        return None;
    }
    let span: String = fingerprint(facts.event_id).chars().take(15).collect();
    Some(format!("00-{trace}-1{span}-00"))
}

/// Attributes are not empty and hold no control characters.
fn is_attribute(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}

/// As one segment of a URI.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn facts(event_type: &'static str, payload: &'static str) -> Facts<'static> {
        Facts {
            workspace: "a b/c",
            event_id: "evt_c1_000002",
            command_id: "c1",
            purpose: "event",
            event_type,
            payload,
            actor: "user:1",
            trace_id: "0af7651916cd43dd8448eb211c80319c",
            created_at: Timestamp::from_micros(1_000_000),
        }
    }

    /// R106
    #[test]
    fn r106_an_event_is_a_cloud_event_to_the_letter() {
        let made =
            CloudEvent::of(&facts("command.queued", "{\"from\":\"validated\"}"), 7, Some("x"));
        let [event] = &made[..] else { panic!("one event: {made:?}") };
        let span = event.extension("traceparent").unwrap().to_owned();
        assert!(span.starts_with("00-0af7651916cd43dd8448eb211c80319c-1") && span.len() == 55);
        assert_eq!(
            event.to_json(),
            json!({
                "specversion": "1.0", "id": "evt_c1_000002", "source": "steadfast/a%20b%2Fc",
                "type": "steadfast.command.queued", "subject": "c1",
                "time": "1970-01-01T00:00:01.000000Z", "datacontenttype": "application/json",
                "data": { "from": "validated" }, "sequence": "0000000000000000007",
                "partitionkey": "c1", "purpose": "event", "actor": "user:1",
                "correlationid": "x", "traceparent": span,
            })
        );
    }

    /// R120
    #[test]
    fn r120_the_turns_of_a_run_are_also_those_of_its_workflow() {
        for (own, twin) in [
            ("command.running", "steadfast.workflow.started"),
            ("command.succeeded", "steadfast.workflow.completed"),
            ("command.failed", "steadfast.workflow.failed"),
            ("command.compensated", "steadfast.workflow.compensated"),
        ] {
            let made = CloudEvent::of(&facts(own, "{}"), 1, None);
            assert_eq!((made.len(), made[1].event_type.as_str()), (2, twin));
            assert_eq!(made[1].id, "evt_c1_000002-workflow");
        }
        assert_eq!(CloudEvent::of(&facts("command.cancelled", "{}"), 1, None).len(), 1);
    }

    #[test]
    fn what_is_too_large_is_referred_to_and_what_is_no_attribute_is_left_out() {
        let large = format!("\"{}\"", "x".repeat(DATA_BYTES));
        let facts = Facts { payload: &large, actor: "", trace_id: "t", ..facts("a", "") };
        let event = CloudEvent::of(&facts, 1, Some("")).remove(0);
        assert_eq!(event.data, None);
        assert_eq!(event.extension("dataref"), Some("steadfast/a%20b%2Fc/events/evt_c1_000002"));
        for absent in ["actor", "traceparent", "correlationid"] {
            assert_eq!(event.extension(absent), None, "{absent}");
        }
        assert!(event.to_json().to_string().len() < 64 * 1024);
    }
}
