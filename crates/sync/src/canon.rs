//! steadfast-canon-1: the bytes that a hash is made of.
//!
//! Invariants: two JSON values that are equal have the same bytes, whatever their whitespace and
//! the order of their members; two integers that differ have different bytes, also beyond 2^53,
//! where the standard for canonical JSON (RFC 8785) would round them.

use serde_json::Value;
use steadfast_core::error::{Error, Result};
use steadfast_core::json;

/// What a double holds exactly.
const EXACT: u64 = (1 << 53) - 1;

/// The canonical text of a value.
pub fn text(value: &Value) -> Result<String> {
    let mut out = String::new();
    write(value, &mut out)?;
    Ok(out)
}

/// The SHA-256 of the canonical text, with its kind.
pub fn digest(value: &Value) -> Result<String> {
    text(value).map(json::digest)
}

fn write(value: &Value, out: &mut String) -> Result<()> {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write(item, out)?;
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push('{');
            for (at, (name, member)) in members.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                leaf(&Value::from(name.as_str()), out)?;
                out.push(':');
                write(member, out)?;
            }
            out.push('}');
        }
        Value::Number(number) if beyond(number) => out.push_str(&number.to_string()),
        other => leaf(other, out)?,
    }
    Ok(())
}

/// An integer that a double would round.
fn beyond(number: &serde_json::Number) -> bool {
    let size = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
    size.is_some_and(|size| size > EXACT)
}

fn leaf(value: &Value, out: &mut String) -> Result<()> {
    let text = serde_json_canonicalizer::to_string(value)
        .map_err(|e| Error::invalid("SF-0101", format!("cannot be written canonically: {e}")))?;
    out.push_str(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canon(json: &str) -> String {
        text(&serde_json::from_str(json).unwrap()).unwrap()
    }

    /// R22
    #[test]
    fn r022_whitespace_and_order_do_not_count() {
        let one = canon(
            r#"{ "b": [1, 2.0, 1e3],
            "a": {"y": null, "x": "é\u0000"} }"#,
        );
        let other = canon(r#"{"a":{"x":"é\u0000","y":null},"b":[1,2,1000]}"#);
        assert_eq!(one, other);
        assert_eq!(one, r#"{"a":{"x":"é\u0000","y":null},"b":[1,2,1000]}"#);
    }

    /// R22
    #[test]
    fn r022_integers_that_differ_stay_different() {
        assert_ne!(canon("9007199254740993"), canon("9007199254740992"));
        assert_eq!(canon("-9223372036854775808"), "-9223372036854775808");
        assert_eq!(canon("18446744073709551615"), "18446744073709551615");
        // Members by UTF-16, as the standard wants: the emoji comes before the private character.
        assert_eq!(canon("{\"\u{e000}\":1,\"😀\":2}"), "{\"😀\":2,\"\u{e000}\":1}");
    }
}
