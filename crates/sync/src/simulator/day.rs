//! A day's sales, made of its date.

use serde_json::{Value, json};
use steadfast_core::decimal::Decimal;
use steadfast_core::json as payload;

/// The vendor's fields as `steadfast.toml` describes them.
pub const FIELDS: &str = r#"sku = { key = true }
region = { key = true }
quantity = { from = "qty", type = "integer" }
revenue = { type = "decimal" }
"#;

/// The sales of a day.
#[derive(Debug, Clone, PartialEq)]
pub struct Day {
    /// The vendor's name for them.
    pub snapshot_id: String,
    /// The rows.
    pub rows: Vec<Value>,
    /// What they come to.
    pub total: Decimal,
    /// How many rows the vendor says there are.
    pub(super) claims: usize,
}

impl Day {
    pub(super) fn of(date: &str, revision: u32, about: u64) -> Self {
        let mut number = u64::from_str_radix(&payload::fingerprint(date)[..15], 16).unwrap_or(1);
        let mut draw = |below: u64| {
            // Any generator will do; this one is short.
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (number >> 33) % below.max(1)
        };
        let many = about - about / 5 + draw(about / 5 + 1);
        let mut total = Decimal::default();
        let rows = (0..many).map(|at| {
            let (quantity, cents) = (1 + draw(9), 99 + draw(9900) + u64::from(revision));
            let revenue = quantity * cents;
            let text = format!("{}.{:02}", revenue / 100, revenue % 100);
            total = total + text.parse().unwrap_or_default();
            let region = ["north", "east", "south", "west"][usize::try_from(at % 4).unwrap_or(0)];
            json!({ "sku": format!("sku-{:06}", at / 4), "region": region, "qty": quantity,
                "revenue": text })
        });
        let rows: Vec<Value> = rows.collect();
        let claims = rows.len();
        Self { snapshot_id: format!("snap-{date}-{revision}"), rows, total, claims }
    }

    /// Leaves the first so many rows.
    pub(super) fn shrink(&mut self, rows: usize) {
        self.rows.truncate(rows);
        let revenue = |row: &Value| row["revenue"].as_str().and_then(|text| text.parse().ok());
        self.total = self.rows.iter().filter_map(revenue).sum();
    }

    /// Does something to a field of every row.
    pub(super) fn change(&mut self, change: &Change) {
        for row in self.rows.iter_mut().filter_map(Value::as_object_mut) {
            match change {
                Change::Added(field) => {
                    row.insert(field.clone(), json!("something new"));
                }
                Change::Dropped(field) => {
                    row.remove(field);
                }
                Change::Retyped(field) => {
                    if let Some(value) = row.get_mut(field) {
                        // A list is none of the types that a column has.
                        let was = value.take();
                        *value = json!([was]);
                    }
                }
            }
        }
    }

    /// The rows of one page, from 1, and whether there are more.
    pub(super) fn page(&self, number: u64, size: u64) -> (Vec<Value>, bool) {
        let (from, size) = (usize_of((number - 1).saturating_mul(size)), usize_of(size));
        let rows: Vec<_> = self.rows.iter().skip(from).take(size).cloned().collect();
        let more = from.saturating_add(rows.len()) < self.rows.len();
        (rows, more)
    }
}

/// What becomes of a field of a day's rows, as the vendor calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// There is one that nobody asked for.
    Added(String),
    /// It is gone.
    Dropped(String),
    /// It is something else than it was.
    Retyped(String),
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
