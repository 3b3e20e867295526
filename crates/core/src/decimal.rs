//! Exact sums of money: decimal numbers with nine places.
//!
//! Invariants: what has more places than nine, or more than 27 digits before the point, is refused
//! and never rounded; printing has no zeros at the end, so equal numbers have equal texts.
//! Deliberately absent: multiplication, division, currencies.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

const PLACES: usize = 9;
const ONE: i128 = 1_000_000_000;
/// Far from the end of the type, so that sums of many do not reach it.
const DIGITS: usize = 27;

/// A decimal number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Decimal(i128);

impl Decimal {
    /// How far from zero.
    pub fn abs(self) -> Self {
        Self(self.0.abs())
    }
}

impl FromStr for Decimal {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        read(text).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            let why = format!("\"{shown}\" is no decimal number of at most nine places");
            Error::invalid("SF-0121", why)
        })
    }
}

fn read(text: &str) -> Option<Decimal> {
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (negative, digits) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !plain(whole) || !plain(part) || exponent.unsigned_abs() > 60 {
        return None;
    }
    let (mut whole, mut part) = (whole.to_owned(), part.to_owned());
    for _ in 0..exponent {
        whole.push(if part.is_empty() { '0' } else { part.remove(0) });
    }
    for _ in exponent..0 {
        part.insert(0, whole.pop().unwrap_or('0'));
    }
    let (whole, part) = (whole.trim_start_matches('0'), part.trim_end_matches('0'));
    if whole.len() > DIGITS || part.len() > PLACES {
        return None;
    }
    let number: i128 = format!("0{whole}{part:0<PLACES$}").parse().ok()?;
    Some(Decimal(if negative { -number } else { number }))
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0.unsigned_abs() / ONE.unsigned_abs(), self.0.abs() % ONE);
        let sign = if self.0 < 0 { "-" } else { "" };
        let part = format!("{part:0PLACES$}");
        match part.trim_end_matches('0') {
            "" => f.pad(&format!("{sign}{whole}")),
            part => f.pad(&format!("{sign}{whole}.{part}")),
        }
    }
}

impl TryFrom<String> for Decimal {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Decimal> for String {
    fn from(number: Decimal) -> Self {
        number.to_string()
    }
}

impl Add for Decimal {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Decimal {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Sum for Decimal {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        text.parse::<Decimal>().unwrap().to_string()
    }

    #[test]
    fn numbers_have_one_text() {
        for (text, shown) in [
            ("0", "0"),
            ("-0.0", "0"),
            ("12.30", "12.3"),
            ("0012", "12"),
            ("-0.000000001", "-0.000000001"),
            ("1e3", "1000"),
            ("1.25E-2", "0.0125"),
            ("1.5e+1", "15"),
            ("999999999999999999999999999.999999999", "999999999999999999999999999.999999999"),
        ] {
            assert_eq!(read(text), shown, "{text}");
        }
    }

    #[test]
    fn what_would_be_rounded_is_refused() {
        for text in
            ["", "-", ".", "1.", ".5", "1.0000000001", "1e", "1e99", "NaN", "1,5", " 1", "0x1"]
        {
            assert_eq!(text.parse::<Decimal>().unwrap_err().code(), "SF-0121", "{text}");
        }
        assert!(format!("1{}", "0".repeat(27)).parse::<Decimal>().is_err());
    }

    #[test]
    fn sums_are_exact() {
        let tenth: Decimal = "0.1".parse().unwrap();
        let all: Decimal = std::iter::repeat_n(tenth, 1_000_000).sum();
        assert_eq!(all.to_string(), "100000");
        assert_eq!((all - all).abs(), Decimal::default());
    }
}
