//! A row of a page as the line that Postgres' COPY reads.
//!
//! Invariants: a row is one line, whatever is in it; numbers are written as our JSON writes them,
//! lists and objects as JSON.

use std::fmt;
use std::io::Write as _;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Number, Value};

/// Writes a JSON list as fields, each with a separator behind it, since the partition's follow;
/// gives how many they are.
pub(super) fn copied(row: &[u8], out: &mut Vec<u8>) -> serde_json::Result<usize> {
    let mut json = serde_json::Deserializer::from_slice(row);
    let fields = json.deserialize_seq(Fields(out))?;
    json.end().map(|()| fields)
}

/// The end of every line: the partition's values.
pub(super) fn tail(values: &[Value]) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            out.push(b'\t');
        }
        field(value, &mut out);
    }
    out.push(b'\n');
    out
}

fn field(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"\\N"),
        Value::String(text) => escaped(text, out),
        other => escaped(&other.to_string(), out),
    }
}

fn escaped(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|b| matches!(b, b'\\' | b'\t' | b'\n' | b'\r')) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(match rest[at] {
            b'\t' => b"\\t",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            _ => b"\\\\",
        });
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// The fields of a row.
struct Fields<'a>(&'a mut Vec<u8>);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut row: A) -> Result<usize, A::Error> {
        let mut fields = 0;
        while row.next_element_seed(Field(self.0))?.is_some() {
            self.0.push(b'\t');
            fields += 1;
        }
        Ok(fields)
    }
}

/// One field of a row.
struct Field<'a>(&'a mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.0.extend_from_slice(b"\\N");
        Ok(())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.0.extend_from_slice(if value { b"true" } else { b"false" });
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        write!(self.0, "{value}").map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        write!(self.0, "{value}").map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        // Not as Rust writes it: what is loaded must not depend on which of the two ways it went.
        let number = Number::from_f64(value).ok_or_else(|| E::custom("no number of JSON"))?;
        write!(self.0, "{number}").map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        escaped(text, self.0);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        let value = Value::deserialize(SeqAccessDeserializer::new(list))?;
        field(&value, self.0);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let value = Value::deserialize(MapAccessDeserializer::new(map))?;
        field(&value, self.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(row: &str) -> (usize, String) {
        let mut out = b"before\n".to_vec();
        let fields = copied(row.as_bytes(), &mut out).unwrap();
        out.extend_from_slice(&tail(&["p".into()]));
        (fields, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_row_is_one_line_whatever_is_in_it() {
        let row = r#"["a\tb\\c\nd\re é","\\",null,12.5,true,-3,18446744073709551615,"",1e400000]"#;
        let mut out = Vec::new();
        assert!(copied(row.as_bytes(), &mut out).is_err(), "no database has that number");
        let row = row.replace(",1e400000", "");
        let fields = "a\\tb\\\\c\\nd\\re é\t\\\\\t\\N\t12.5\ttrue\t-3\t18446744073709551615\t";
        assert_eq!(line(&row), (8, format!("before\n{fields}\tp\n")));
        assert_eq!(line("[]"), (0, "before\np\n".to_owned()));
        for wrong in ["", "{}", "[1", "[1]x", "1"] {
            assert!(copied(wrong.as_bytes(), &mut Vec::new()).is_err(), "{wrong}");
        }
    }

    /// The straight way writes what the way by values does: of those the digests are made.
    #[test]
    fn a_field_is_what_its_value_is() {
        let all = [
            "0",
            "-0",
            "-0.0",
            "1.0",
            "1e3",
            "0.1",
            "1e22",
            "1E-7",
            "123456789.123456789",
            "18446744073709551616",
            "-9223372036854775808",
            "null",
            "false",
            "\"x\"",
            "\"\\u00e9\"",
            "[1, \"a\\tb\"]",
            "{\"b\": 1, \"a\": [null, 2.50]}",
        ];
        for json in all {
            let value: Value = serde_json::from_str(json).unwrap();
            let mut by_value = Vec::new();
            field(&value, &mut by_value);
            let by_value = String::from_utf8(by_value).unwrap();
            assert_eq!(
                line(&format!("[{json}]")),
                (1, format!("before\n{by_value}\tp\n")),
                "{json}"
            );
        }
    }

    #[test]
    fn the_partition_stands_behind_every_row() {
        assert_eq!(tail(&["a\tb".into(), Value::Null]), b"a\\tb\t\\N\n");
    }
}
