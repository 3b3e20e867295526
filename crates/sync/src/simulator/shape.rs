//! The ways in which vendors speak: paths, parameters, keys and the form of their answers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::day::Day;

/// How a vendor speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shape {
    /// `GET /sales/daily?date=…&cursor=…` with a bearer token. The rows are at `rows`, and each
    /// page names the next one.
    #[default]
    Cursor,
    /// `GET /v2/reports/sales?day=…&page=…` with an `x-api-key`. The rows are at `result.items`,
    /// what is said of them at `result.meta`, and the page after the last one is empty.
    Numbered,
}

impl Shape {
    /// The one thing that it can be asked.
    pub(super) const fn operation(self) -> &'static str {
        match self {
            Self::Cursor => "GET /sales/daily",
            Self::Numbered => "GET /v2/reports/sales",
        }
    }

    /// The day that is asked for.
    pub(super) fn date(self, query: &BTreeMap<String, String>) -> String {
        let name = match self {
            Self::Cursor => "date",
            Self::Numbered => "day",
        };
        query.get(name).cloned().unwrap_or_default()
    }

    /// The page that is asked for, from 1.
    pub(super) fn page(self, query: &BTreeMap<String, String>) -> u64 {
        let number = match self {
            Self::Cursor => query.get("cursor").and_then(|cursor| cursor.strip_prefix('p')),
            Self::Numbered => query.get("page").map(String::as_str),
        };
        number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(1).max(1)
    }

    /// The token that came with a request, by the names of its headers in small letters.
    pub(super) fn token(self, headers: &BTreeMap<String, String>) -> Option<&str> {
        match self {
            Self::Cursor => headers.get("authorization")?.strip_prefix("Bearer "),
            Self::Numbered => headers.get("x-api-key").map(String::as_str),
        }
    }

    /// A page of a day's sales, as it goes over the wire.
    pub(super) fn answer(self, date: &str, day: &Day, page: u64, size: u64) -> Value {
        let (rows, more) = day.page(page, size);
        match self {
            Self::Cursor => json!({
                "latest_snapshot_id": day.snapshot_id,
                "row_count": day.claims,
                "total_revenue": day.total.to_string(),
                "next_cursor": more.then(|| format!("p{}", page + 1)),
                "rows": rows,
            }),
            Self::Numbered => json!({ "result": {
                "meta": {
                    "snapshot": { "id": day.snapshot_id }, "day": date,
                    "count": day.claims, "sum": day.total.to_string(),
                },
                "items": rows.iter().map(renamed).collect::<Vec<_>>(),
            } }),
        }
    }
}

/// A row in the words of the other shape.
fn renamed(row: &Value) -> Value {
    json!({
        "article": { "code": row["sku"] }, "area": row["region"], "units": row["qty"],
        "amount": row["revenue"],
    })
}
