//! Values that are checked where they stand, so that a mistake has a line.

use std::fmt;

use serde::Deserialize;
use steadfast_connectors::secret::SecretRef;
use steadfast_core::schedule::{Calendar, Schedule};

macro_rules! checked {
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            /// One that is known to be right.
            #[allow(dead_code, reason = "not every kind has a default")]
            pub(super) fn trusted(text: &str) -> Self {
                Self(text.to_owned())
            }

            /// As it was written.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                let check: fn(&str) -> Result<(), String> = $check;
                check(&text)?;
                Ok(Self(text))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

fn is_name(text: &str) -> bool {
    text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && text.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

fn must(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn calendar(cron: &str, zone: &str) -> Result<(), String> {
    let schedule = Schedule { timezone: zone.to_owned(), ..Schedule::cron(cron) };
    Calendar::new(&schedule).map(drop).map_err(|e| e.message().to_owned())
}

checked! {
    /// Letters, digits and underscores.
    Name, |text| must(is_name(text), || format!("\"{text}\" is no name: letters, digits and _"))
}

checked! {
    /// A table, perhaps with its schema.
    Table, |text| {
        let parts: Vec<_> = text.split('.').collect();
        must(parts.len() <= 2 && parts.iter().all(|part| is_name(part)), || {
            format!("\"{text}\" is no name of a table: name or schema.name")
        })
    }
}

checked! {
    /// A path of the vendor's.
    RoutePath, |text| must(text.starts_with('/') && !text.contains(['?', '#', ' ']), || {
        format!("\"{text}\" is no path: it begins with a slash and has no query")
    })
}

checked! {
    /// A vendor's address.
    BaseUrl, |text| {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        must(rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['@', '?', '#'])), || {
            "a base_url is http(s)://host/path, without a user and a query".to_owned()
        })
    }
}

checked! {
    /// A cron expression.
    Cron, |text| calendar(text, "UTC")
}

checked! {
    /// A time zone's name.
    Zone, |text| calendar("0 0 * * *", text)
}

checked! {
    /// Where a secret is: `env:NAME` or `file:/path`.
    SecretName, |text| SecretRef::parse(text).map(drop).map_err(|e| e.message().to_owned())
}

checked! {
    /// Where a value is in an answer: names with dots between them; nothing for all of it.
    Pointer, |text| must(text.is_empty() || text.split('.').all(|part| !part.is_empty()), || {
        format!("\"{text}\" is no path into an answer: names with dots between them")
    })
}

impl Pointer {
    /// What is there.
    pub fn of<'a>(&self, value: &'a serde_json::Value) -> Option<&'a serde_json::Value> {
        if self.0.is_empty() {
            return Some(value);
        }
        self.0.split('.').try_fold(value, |at, part| at.get(part))
    }
}

/// So many days, and not fewer than the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub struct Days<const LEAST: u32>(pub u32);

impl<const LEAST: u32> TryFrom<u32> for Days<LEAST> {
    type Error = String;
    fn try_from(days: u32) -> Result<Self, String> {
        must(days >= LEAST, || format!("{days} days; at least {LEAST}")).map(|()| Self(days))
    }
}

/// What a column holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Text.
    #[default]
    Text,
    /// A whole number.
    Integer,
    /// An exact number, such as money.
    Decimal,
    /// A day, as `2026-06-01`.
    Date,
    /// A moment, as ISO 8601 has it.
    Timestamp,
    /// Yes or no.
    Boolean,
}

impl Kind {
    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Integer => "integer",
            Self::Decimal => "decimal",
            Self::Date => "date",
            Self::Timestamp => "timestamp",
            Self::Boolean => "boolean",
        }
    }
}
