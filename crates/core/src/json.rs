//! Payloads: JSON text with one canonical spelling, so that equal values have equal bytes.
//!
//! Invariants: object keys are sorted, numbers survive a round trip or are refused, nesting and
//! size are bounded.
//! Deliberately absent: binary encodings; a payload must be readable in a database shell.

mod finite;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::caught::{self, Code};
use crate::error::{Error, Result};
use crate::limits;

/// A value as JSON, refusing numbers that JSON has none for. How it is written is the user's code.
pub fn value<T: Serialize + ?Sized>(what: &str, value: &T) -> Result<Value> {
    let refused =
        |why| Error::invalid("SF-0101", format!("{what} cannot be written as JSON: {why}"));
    let code = Code("writing as JSON", what);
    let written = caught::call(code, || serde_json::to_value(value))?;
    let written = written.map_err(|e| refused(e.to_string()))?;
    // NaN is written as null, so a value without null needs no second look.
    let look = || if holds_null(&written) { finite::not_finite(value) } else { None };
    let lost = caught::call(code, look)?;
    lost.map_or(Ok(written), |lost| Err(refused(lost)))
}

/// Encodes a value as canonical JSON text, refusing what is too large or too deep.
pub fn encode<T: Serialize + ?Sized>(what: &str, value: &T) -> Result<String> {
    // Through `Value` on purpose: its maps can be sorted, so a HashMap in the input cannot change
    // the bytes.
    let mut value = self::value(what, value)?;
    if depth(&value) > limits::JSON_DEPTH {
        return Err(Error::invalid(
            "SF-0102",
            format!("{what} is nested deeper than {} levels", limits::JSON_DEPTH),
        ));
    }
    sort(&mut value);
    let text = value.to_string();
    if text.len() > limits::PAYLOAD_BYTES {
        return Err(Error::invalid(
            "SF-0103",
            format!(
                "{what} is {} bytes of JSON; at most {} are kept. Store it elsewhere and pass a \
                 reference",
                text.len(),
                limits::PAYLOAD_BYTES
            ),
        ));
    }
    Ok(text)
}

/// Puts the members of all objects in the order of their names. Maps keep it by themselves unless
/// somebody in the same program has serde_json keep the order of insertion, which then holds for
/// all.
pub fn sort(value: &mut Value) {
    value.sort_all_objects();
}

/// Decodes JSON text into a value of the caller's type.
pub fn decode<T: DeserializeOwned>(what: &str, text: &str) -> Result<T> {
    caught::call(Code("reading from JSON", what), || serde_json::from_str(text))?.map_err(|e| {
        Error::invalid(
            "SF-0104",
            format!("{what} does not fit {}: {e}", std::any::type_name::<T>()),
        )
    })
}

/// The first integer in JSON text that neither `i64` nor `u64` holds. Parsed, it would be a number
/// near to it, and two such integers could become one.
pub fn wide_integer(text: &[u8]) -> Option<&str> {
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'"' => behind_text(after),
            b'-' | b'0'..=b'9' => {
                let of_number = |b: &u8| b.is_ascii_digit() || b"+-.eE".contains(b);
                let length = rest.iter().take_while(|b| of_number(b)).count();
                let number = str::from_utf8(&rest[..length]).unwrap_or_default();
                let is_long = number.len() > 18 && !number.contains(['.', 'e', 'E']);
                if is_long && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    return Some(number);
                }
                &rest[length..]
            }
            _ => after,
        };
    }
    None
}

/// What follows a text whose opening quote was read.
fn behind_text(mut rest: &[u8]) -> &[u8] {
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'"' => return after,
            b'\\' => after.get(1..).unwrap_or_default(),
            _ => after,
        };
    }
    rest
}

/// A short digest of a payload, for comparing without keeping it.
pub fn fingerprint(text: &str) -> String {
    short(Sha256::digest(text.as_bytes()).as_slice())
}

/// A short digest of several texts. Their lengths are part of it, so that no two lists of texts run
/// together to the same.
pub fn fingerprint_of<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    short(hash.finalize().as_slice())
}

/// The first 16 bytes of a digest, as hexadecimal digits.
fn short(digest: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(32);
    for byte in digest.iter().take(16) {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// The whole digest of a text, with its kind: what an approval is bound to.
pub fn digest(text: impl AsRef<[u8]>) -> String {
    let digest = Sha256::digest(text.as_ref());
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

fn holds_null(value: &Value) -> bool {
    // An explicit stack: a hostile value must not overflow ours.
    let mut stack = vec![value];
    while let Some(value) = stack.pop() {
        match value {
            Value::Null => return true,
            Value::Array(items) => stack.extend(items),
            Value::Object(map) => stack.extend(map.values()),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    false
}

fn depth(value: &Value) -> usize {
    // An explicit stack: a hostile value must not overflow ours.
    let mut deepest = 0;
    let mut stack = vec![(value, 1)];
    while let Some((value, level)) = stack.pop() {
        deepest = deepest.max(level);
        if level > limits::JSON_DEPTH {
            return level;
        }
        match value {
            Value::Array(items) => stack.extend(items.iter().map(|v| (v, level + 1))),
            Value::Object(map) => stack.extend(map.values().map(|v| (v, level + 1))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn integers_beyond_64_bits_are_found_and_nothing_else_is() {
        let (most, least) = (u64::MAX.to_string(), i64::MIN.to_string());
        for fine in [
            "{}",
            "",
            "-",
            "1e30",
            "12345678901234567890123.5",
            "[1,-2,3e+400]",
            &most,
            &least,
            r#"{"123456789012345678901":"123456789012345678901"}"#,
            r#"["\"",1]"#,
            r#"["\\",1]"#,
        ] {
            assert_eq!(wide_integer(fine.as_bytes()), None, "{fine}");
        }
        for (text, found) in [
            ("123456789012345678901", "123456789012345678901"),
            (r#"{"a\"":[1,{"n":18446744073709551616}]}"#, "18446744073709551616"),
            ("[-9223372036854775809]", "-9223372036854775809"),
        ] {
            assert_eq!(wide_integer(text.as_bytes()), Some(found), "{text}");
        }
    }

    #[test]
    fn equal_maps_have_equal_bytes_whatever_their_order() {
        let a: HashMap<_, _> = (0..50).map(|i| (format!("k{i}"), i)).collect();
        let b: HashMap<_, _> = (0..50).rev().map(|i| (format!("k{i}"), i)).collect();
        assert_eq!(encode("a", &a).unwrap(), encode("b", &b).unwrap());
    }

    #[test]
    fn limits_are_checked_at_the_border() {
        let nest = |n: usize| (1..n).fold(serde_json::json!([]), |v, _| serde_json::json!([v]));
        assert!(encode("v", &nest(limits::JSON_DEPTH)).is_ok());
        assert_eq!(encode("v", &nest(limits::JSON_DEPTH + 1)).unwrap_err().code(), "SF-0102");
        assert!(encode("v", &"x".repeat(limits::PAYLOAD_BYTES - 2)).is_ok());
        let over = encode("v", &"x".repeat(limits::PAYLOAD_BYTES - 1)).unwrap_err();
        assert_eq!(over.code(), "SF-0103");
    }

    #[test]
    fn a_fingerprint_has_32_digits_and_keeps_its_parts_apart() {
        // The first half of the SHA-256 of an empty text.
        assert_eq!(fingerprint(""), "e3b0c44298fc1c149afbf4c8996fb924");
        assert_ne!(fingerprint_of(["ab", "c"]), fingerprint_of(["a", "bc"]));
        assert_ne!(fingerprint_of(["a"]), fingerprint_of(["a", ""]));
        assert_eq!(fingerprint_of(["a", "b"]), fingerprint_of(["a", "b"]));
    }

    #[test]
    fn large_numbers_survive_a_round_trip() {
        let text = encode("v", &2222222400243069336933370f64).unwrap();
        let back: f64 = decode("v", &text).unwrap();
        assert_eq!(encode("v", &back).unwrap(), text);
    }
}
