//! Events in HTTP requests, brought into the JSON form.
//!
//! Invariants: `ce-specversion` means binary mode, `application/cloudevents+json` structured mode,
//! anything else our own envelope. Deliberately absent: batches, whose parts could fail one by one.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{parse, wrong};
use crate::error::Result;

/// The event in a request, as JSON.
pub(super) fn event<'a>(
    headers: impl Iterator<Item = (&'a str, &'a str)>,
    body: &[u8],
) -> Result<Value> {
    let mut content_type = None;
    let mut event = Map::new();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        if name == "content-type" {
            content_type = Some(value);
        } else if let Some(attribute) = name.strip_prefix("ce-")
            // The content has a header and a place of its own.
            && !attribute.starts_with("data")
        {
            let value = decoded(value).ok_or_else(|| wrong(attribute, "is no UTF-8"))?;
            event.insert(attribute.to_owned(), Value::String(value.into_owned()));
        }
    }
    let media = content_type.map_or("", media_type).to_ascii_lowercase();
    if media.starts_with("application/cloudevents") && media != "application/cloudevents+json" {
        return Err(wrong("content-type", format!("is {media}; one event as JSON is read")));
    }
    if media == "application/cloudevents+json" {
        let event = parse("body", body)?;
        // Without it, the event would be taken for one of ours.
        event.get("specversion").ok_or_else(|| wrong("specversion", "is missing"))?;
        return Ok(event);
    }
    if !event.contains_key("specversion") {
        return parse("body", body);
    }
    if !body.is_empty() {
        if let Some(content) = content_type {
            event.insert("datacontenttype".to_owned(), Value::String(content.to_owned()));
            if !is_json(content) {
                return Err(wrong("content-type", format!("is {content}; only JSON is read")));
            }
        }
        event.insert("data".to_owned(), parse("body", body)?);
    }
    Ok(Value::Object(event))
}

/// Whether a media type is one of JSON.
pub(super) fn is_json(content_type: &str) -> bool {
    let media = media_type(content_type).to_ascii_lowercase();
    media == "application/json" || media == "text/json" || media.ends_with("+json")
}

fn media_type(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// A header's value, in which characters may be written as `%` and two hex digits.
fn decoded(value: &str) -> Option<Cow<'_, str>> {
    if !value.contains('%') {
        return Some(Cow::Borrowed(value));
    }
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let hex = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            // A lone percent sign stands for itself.
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}
