//! The envelope: what arrives from outside and may become a command.
//!
//! Invariants: an envelope has an id that the same delivery always gets, whenever it arrives; it
//! says what happened, where and when; what it carries is bounded. An attribute that is wrong is
//! named, and an attribute of ours that nobody knows is wrong, since it is most likely misspelt.
//! Deliberately absent: what to do with it. Whether an event is new is for the store to say.

mod http;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::json::{encode, fingerprint};
use crate::key;
use crate::time::Timestamp;

/// One event, as we keep it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// The same for every delivery of the event. That of a CloudEvent follows from its source and
    /// its id, which are only together its own.
    pub event_id: String,
    /// What happened: `order.paid`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// Where it happened.
    pub source: String,
    /// When it happened, if the sender said so. Not the moment of arrival, which a redelivery does
    /// not share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurred_at: Option<Timestamp>,
    /// What it happened to: `user/123`; may be empty.
    pub subject: String,
    /// Which of the sender's traces it belongs to. Another delivery may be of another trace, so no
    /// payload or key is made of it.
    pub trace_id: String,
    /// Which shape the payload has.
    pub schema_version: String,
    /// What it carries.
    pub payload: Value,
}

/// The attributes of our own envelope.
const OURS: &[&str] = &[
    "event_id",
    "type",
    "source",
    "occurred_at",
    "subject",
    "trace_id",
    "schema_version",
    "payload",
    "attributes",
];

impl Envelope {
    /// Reads our own envelope, or a CloudEvents 1.0 event in JSON, which says so by `specversion`.
    ///
    /// What happened and where must be there. The id is filled in as a function of the content, so
    /// that a redelivery has the same one.
    pub fn read(json: &Value) -> Result<Self> {
        let Value::Object(event) = json else {
            return Err(wrong("event", "is no JSON object"));
        };
        let event = Attributes(event);
        if event.0.contains_key("specversion") { event.cloud() } else { event.ours() }
    }

    /// Reads an event from the bytes of its JSON text.
    pub fn read_slice(bytes: &[u8]) -> Result<Self> {
        Self::read(&parse("event", bytes)?)
    }

    /// Reads an event from an HTTP request: CloudEvents in binary or structured mode, or our own.
    pub fn read_http<'a>(
        headers: impl Iterator<Item = (&'a str, &'a str)>,
        body: &[u8],
    ) -> Result<Self> {
        Self::read(&http::event(headers, body)?)
    }

    /// The event as templates and filters see it: what every delivery of it says alike. Its trace
    /// is not part of it, nor is a time that the sender did not give.
    pub fn to_value(&self) -> Value {
        let mut event = json!({
            "event_id": self.event_id,
            "type": self.event_type,
            "source": self.source,
            "subject": self.subject,
            "schema_version": self.schema_version,
            "payload": self.payload,
        });
        if let Some(moment) = self.occurred_at {
            event["occurred_at"] = json!(moment.iso());
        }
        event
    }
}

/// What tells a CloudEvent from all others: readable where that is short and cannot be mistaken.
fn own_id(sender: &str, id: &str) -> String {
    const READABLE: usize = 100;
    match sender.len() + id.len() < READABLE && !sender.contains('@') && !id.contains('@') {
        true => format!("{id}@{sender}"),
        false => format!("ce_{}", fingerprint(&json!([sender, id]).to_string())),
    }
}

/// What an event says of itself; `null` is the same as nothing.
struct Attributes<'a>(&'a Map<String, Value>);

impl Attributes<'_> {
    fn ours(&self) -> Result<Envelope> {
        if let Some(unknown) = self.0.keys().find(|name| !OURS.contains(&name.as_str())) {
            return Err(wrong(unknown, format!("is not known; there are {}", OURS.join(", "))));
        }
        let payload = match (self.get("payload"), self.get("attributes")) {
            (Some(_), Some(_)) => {
                return Err(wrong("attributes", "is another word for payload; give one of them"));
            }
            (Some(payload @ Value::Object(_)), None) | (None, Some(payload @ Value::Object(_))) => {
                payload.clone()
            }
            (None, None) => json!({}),
            (Some(_), None) => return Err(wrong("payload", "is no JSON object")),
            (None, Some(_)) => return Err(wrong("attributes", "is no JSON object")),
        };
        encode("payload", &payload)?;
        let (event_type, source) = (self.required("type")?, self.required("source")?);
        let subject = self.text("subject")?.unwrap_or_default();
        let event_id = match self.text("event_id")? {
            Some(id) => id,
            // The time of arrival stays out of it: a redelivery arrives later.
            None => {
                let at = self.get("occurred_at");
                let mut said = json!([source, event_type, subject, at, payload]);
                crate::json::sort(&mut said);
                format!("evt_{}", fingerprint(&said.to_string()))
            }
        };
        let trace_id = self.text("trace_id")?.unwrap_or_else(|| fingerprint(&event_id));
        let schema_version = self.text("schema_version")?.unwrap_or_else(|| "1.0".to_owned());
        let occurred_at = self.moment("occurred_at")?;
        Ok(Envelope {
            event_id,
            event_type,
            source,
            occurred_at,
            subject,
            trace_id,
            schema_version,
            payload,
        })
    }

    fn cloud(&self) -> Result<Envelope> {
        if self.get("specversion") != Some(&json!("1.0")) {
            return Err(wrong("specversion", "is not \"1.0\""));
        }
        if self.get("data_base64").is_some() {
            return Err(wrong("data_base64", "is not read; send the data as JSON in data"));
        }
        if let Some(content) = self.text("datacontenttype")?
            && !http::is_json(&content)
        {
            return Err(wrong("datacontenttype", format!("is {content}; only JSON is read")));
        }
        let payload = self.0.get("data").cloned().unwrap_or_else(|| json!({}));
        encode("data", &payload)?;
        // Senders number their events each for themselves.
        let (sender, id) = (self.required("source")?, self.required("id")?);
        let event_id = own_id(&sender, &id);
        let trace = self.0.get("traceparent").and_then(Value::as_str).and_then(trace_id);
        Ok(Envelope {
            trace_id: trace.map_or_else(|| fingerprint(&event_id), str::to_owned),
            event_id,
            event_type: self.required("type")?,
            source: self.required("source")?,
            occurred_at: self.moment("time")?,
            subject: self.text("subject")?.unwrap_or_default(),
            schema_version: "1.0".to_owned(),
            payload,
        })
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// An attribute that may be absent; empty is absent.
    fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let text = value.as_str().ok_or_else(|| wrong(name, "is no text"))?;
        if text.is_empty() {
            return Ok(None);
        }
        key::check(name, text).map_err(|error| Error::invalid("SF-0701", error.message()))?;
        Ok(Some(text.to_owned()))
    }

    fn required(&self, name: &str) -> Result<String> {
        self.text(name)?.ok_or_else(|| wrong(name, "is missing"))
    }

    fn moment(&self, name: &str) -> Result<Option<Timestamp>> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let moment = text.parse::<jiff::Timestamp>().map_err(|error| {
            wrong(name, format!("is \"{text}\" and no RFC 3339 moment with its offset: {error}"))
        })?;
        Ok(Some(Timestamp::from_micros(moment.as_microsecond())))
    }
}

/// The trace of a W3C `traceparent`: `00-<trace>-<span>-<flags>`.
fn trace_id(traceparent: &str) -> Option<&str> {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let [version, trace, span, flags] = parts[..] else {
        return None;
    };
    let hex = |text: &str, digits: usize| {
        text.len() == digits
            && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let zero = |text: &str| text.bytes().all(|b| b == b'0');
    let valid = version == "00"
        && hex(trace, 32)
        && hex(span, 16)
        && hex(flags, 2)
        && !zero(trace)
        && !zero(span);
    valid.then_some(trace)
}

fn parse(what: &str, bytes: &[u8]) -> Result<Value> {
    let value = serde_json::from_slice(bytes)
        .map_err(|error| wrong(what, format!("is no JSON: {error}")))?;
    match crate::json::wide_integer(bytes) {
        None => Ok(value),
        Some(number) => Err(wrong(
            what,
            format!("holds {number}, an integer of more than 64 bits; send it as a text"),
        )),
    }
}

fn wrong(name: &str, why: impl std::fmt::Display) -> Error {
    Error::invalid("SF-0701", format!("the {name} {why}"))
}

#[cfg(test)]
mod tests;
