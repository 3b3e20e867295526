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

    /// One page of it, from 1, as it goes over the wire.
    pub(super) fn page(&self, number: u64, size: u64) -> Value {
        let (from, size) = (usize_of((number - 1) * size), usize_of(size));
        let rows: Vec<_> = self.rows.iter().skip(from).take(size).cloned().collect();
        let more = from + rows.len() < self.rows.len();
        json!({
            "latest_snapshot_id": self.snapshot_id,
            "row_count": self.claims,
            "total_revenue": self.total.to_string(),
            "next_cursor": more.then(|| format!("p{}", number + 1)),
            "rows": rows,
        })
    }
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
