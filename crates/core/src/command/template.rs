//! Templates: texts and JSON with holes, such as `sync_vendor_sales:{vendor_name}:{target_date}`.
//!
//! Invariants: a hole names a path into the values it is rendered from; a hole that finds nothing
//! is an error that names it, never an empty text; what a hole yields is not read for holes again.
//! Deliberately absent: expressions and defaults. A template says where things go, nothing else.

use std::fmt;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::limits;

/// A text with holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Hole(String),
}

impl Template {
    /// Reads a template; `{{` and `}}` stand for braces.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::invalid("SF-0504", format!("template \"{text}\": {why}"));
        if text.len() > limits::TEMPLATE_BYTES {
            return Err(bad(&format!("is longer than {} bytes", limits::TEMPLATE_BYTES)));
        }
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '{' if chars.next_if_eq(&'{').is_some() => plain.push('{'),
                '}' if chars.next_if_eq(&'}').is_some() => plain.push('}'),
                '}' => return Err(bad("a } has no {")),
                '{' => {
                    let mut hole = String::new();
                    loop {
                        match chars.next() {
                            Some('}') => break,
                            Some(c) if c.is_ascii_alphanumeric() || "._-".contains(c) => {
                                hole.push(c);
                            }
                            Some(c) => return Err(bad(&format!("'{c}' stands in a hole"))),
                            None => return Err(bad("a { is not closed")),
                        }
                    }
                    if hole.is_empty() {
                        return Err(bad("a hole is empty"));
                    }
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(Part::Hole(hole));
                }
                c => plain.push(c),
            }
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// The paths it asks for.
    pub fn holes(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Hole(hole) => Some(hole.as_str()),
            Part::Text(_) => None,
        })
    }

    /// The text with its holes filled from the values, in their order: the first that has a path
    /// gives it.
    pub fn render(&self, values: &[&Value]) -> Result<String> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Hole(hole) => match self.find(hole, values)? {
                    Value::String(value) => text.push_str(value),
                    value @ (Value::Bool(_) | Value::Number(_)) => {
                        text.push_str(&value.to_string());
                    }
                    Value::Null | Value::Array(_) | Value::Object(_) => {
                        return Err(self.unfilled(hole, "is no text, number or boolean"));
                    }
                },
            }
        }
        Ok(text)
    }

    /// As a JSON value: a single hole gives what it finds as it is, anything else a text.
    fn render_value(&self, values: &[&Value]) -> Result<Value> {
        match &self.parts[..] {
            [Part::Hole(hole)] => Ok(self.find(hole, values)?.clone()),
            _ => self.render(values).map(Value::String),
        }
    }

    fn find<'v>(&self, hole: &str, values: &[&'v Value]) -> Result<&'v Value> {
        let path = |value: &&'v Value| hole.split('.').try_fold(*value, |at, name| at.get(name));
        values.iter().find_map(path).ok_or_else(|| self.unfilled(hole, "is not given"))
    }

    fn unfilled(&self, hole: &str, why: &str) -> Error {
        Error::invalid("SF-0504", format!("template \"{}\": {{{hole}}} {why}", self.text))
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Fills every text of a JSON value that has holes.
pub fn render_json(template: &Value, values: &[&Value]) -> Result<Value> {
    Ok(match template {
        Value::String(text) => Template::parse(text)?.render_value(values)?,
        Value::Array(items) => {
            let items = items.iter().map(|item| render_json(item, values));
            Value::Array(items.collect::<Result<_>>()?)
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(k, v)| Ok((k.clone(), render_json(v, values)?)));
            Value::Object(fields.collect::<Result<_>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => template.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// R3
    #[test]
    fn r003_the_key_is_rendered_from_the_payload() {
        let key = Template::parse("sync_vendor_sales:{vendor_name}:{target_date}").unwrap();
        let payload = json!({"vendor_name": "acme_sales", "target_date": "2026-06-01"});
        let rendered = key.render(&[&payload]).unwrap();
        assert_eq!(rendered, "sync_vendor_sales:acme_sales:2026-06-01");
        assert_eq!(key.holes().collect::<Vec<_>>(), ["vendor_name", "target_date"]);
    }

    #[test]
    fn what_is_missing_or_malformed_is_named() {
        let key = Template::parse("a:{b.c}").unwrap();
        let error = key.render(&[&json!({"b": {}})]).unwrap_err();
        assert_eq!(error.code(), "SF-0504");
        assert!(error.message().contains("{b.c} is not given"), "{error}");
        for bad in ["{", "}", "{}", "{a b}", "x{a", &"x".repeat(5000)] {
            assert_eq!(Template::parse(bad).unwrap_err().code(), "SF-0504", "{bad}");
        }
        let braces = Template::parse("{{a}}").unwrap();
        assert_eq!(braces.render(&[]).unwrap(), "{a}");
        assert!(key.render(&[&json!({"b": {"c": null}})]).is_err(), "null is not a key");
    }

    #[test]
    fn json_keeps_the_type_of_a_single_hole_and_fills_no_hole_twice() {
        let template = json!({"n": "{event.n}", "s": "n={event.n}", "l": [1, "{event.s}"]});
        let event = json!({"event": {"n": 7, "s": "{event.n}"}});
        let filled = render_json(&template, &[&event]).unwrap();
        assert_eq!(filled, json!({"n": 7, "s": "n=7", "l": [1, "{event.n}"]}));
    }
}
