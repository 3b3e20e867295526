//! A vendor: one page of its answer, checked and mapped to the warehouse's columns, and put into
//! the spool.
//!
//! Invariants: a page goes into the spool before anybody hears of it; every row has every column,
//! in one order, as the warehouse's type wants it; what differs from the agreement is decided by
//! the agreement. Deliberately absent: pages after the first. Each is a call of its own, judged
//! and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use steadfast::connector::{Connector, Inbound, Limits, Operation, Outbound};
use steadfast::{Error, ErrorClass, Result, Retry};
use steadfast_connectors::spool::Spool;
use steadfast_connectors::{Http, HttpConnector};
use steadfast_core::decimal::Decimal;
use steadfast_core::schedule::parse_moment;

use crate::config::{Field, Kind, Name, Pagination, Pointer, Reaction, Vendor};
use crate::snapshot::Page;

/// How long a page may lie in the spool before it is taken for forgotten.
const FORGOTTEN: Duration = Duration::from_secs(48 * 3600);

/// The way to a vendor.
pub struct VendorConnector {
    vendor: Vendor,
    http: HttpConnector,
    spool: Spool,
}

impl VendorConnector {
    /// Checks the settings; nothing is connected to.
    pub fn new(vendor: &Vendor, spool: Spool) -> Result<Self> {
        let mut http = Http::new(vendor.name.as_str(), vendor.base_url.as_str())
            .allow(Operation::read(operation(vendor)))
            .timeout(Duration::from_secs(vendor.timeout_seconds))
            .answer_bytes(vendor.page_mib.saturating_mul(1024 * 1024))
            .rate(vendor.rate.calls, Duration::from_secs(vendor.rate.per_seconds));
        if let Some(auth) = &vendor.auth {
            http = http.secret_header(&auth.header, auth.secret.as_str(), &auth.form);
        }
        if vendor.allow_private {
            http = http.allow_private();
        }
        Ok(Self { vendor: vendor.clone(), http: http.build()?, spool })
    }

    async fn page(&self, request: &Outbound) -> Result<Inbound> {
        let mut asked = request.clone();
        let day = asked.input["target_date"].take();
        let number = asked.input["page"].take().as_u64().unwrap_or(1);
        asked.input = json!({ "query": asked.input["query"] });
        let answer = self.http.send(&asked).await?;
        let (vendor, spool) = (self.vendor.clone(), self.spool.clone());
        let owner = request.trace_id.clone();
        let mut output = answer.output;
        let body = output["body"].take();
        let reading = move || {
            if number == 1 {
                // Pages of snapshots that turned out to be stale are nobody's.
                spool.sweep(FORGOTTEN);
            }
            let day = day.as_str().unwrap_or_default();
            let (mut page, lines) = read(&vendor, &body, day, number)?;
            page.name = spool.put(&owner, &lines)?;
            serde_json::to_value(page).map_err(Error::from_any)
        };
        let page = tokio::task::spawn_blocking(reading).await.map_err(Error::from_any)??;
        let summary = format!("{}, {} rows", answer.summary, page["rows"]);
        Ok(Inbound { output: page, summary, ..answer })
    }
}

/// What a vendor is asked.
pub fn operation(vendor: &Vendor) -> String {
    format!("GET {}", vendor.path)
}

/// The request for a page: the first, or the one that the page before named.
pub fn request(vendor: &Vendor, day: &str, number: u64, cursor: Option<&str>) -> Outbound {
    let mut query: BTreeMap<&str, String> = BTreeMap::new();
    for (name, value) in &vendor.query {
        query.insert(name, value.replace("{target_date}", day));
    }
    match (&vendor.pagination, cursor) {
        (Pagination::Cursor { param, .. }, Some(cursor)) => {
            query.insert(param, cursor.to_owned());
        }
        (Pagination::Page { param }, _) => {
            query.insert(param, number.to_string());
        }
        _ => {}
    }
    let input = json!({ "query": query, "target_date": day, "page": number });
    Outbound::new(operation(vendor), input)
}

fn wrong(why: impl std::fmt::Display) -> Error {
    let text = format!("the vendor's answer is not what was agreed: {why}");
    Error::new(ErrorClass::ValidationError, "SF-1001", text)
}

/// Reads an answer: the page, and its rows as lines for the spool.
pub fn read(vendor: &Vendor, body: &Value, day: &str, number: u64) -> Result<(Page, Vec<u8>)> {
    let rows = vendor.rows.of(body).and_then(Value::as_array);
    let rows = rows.ok_or_else(|| wrong(format!("there is no list at \"{}\"", vendor.rows)))?;
    let id = vendor.snapshot_id.of(body).filter(|id| !id.is_null());
    let id = id.ok_or_else(|| wrong(format!("there is nothing at \"{}\"", vendor.snapshot_id)))?;
    if let Some(at) = &vendor.date {
        let has = at.of(body).and_then(Value::as_str).unwrap_or_default();
        if has != day {
            return Err(wrong(format!("it is for the day \"{has}\", not {day}")));
        }
    }
    let mut mapping = Mapping { vendor, drift: BTreeSet::new(), sum: Decimal::default() };
    let mut lines = Vec::with_capacity(rows.len() * 64);
    for (at, row) in rows.iter().enumerate() {
        let values = mapping.row(at, row)?;
        serde_json::to_writer(&mut lines, &values).map_err(Error::from_any)?;
        lines.push(b'\n');
    }
    let (reported_rows, reported_sum) = totals(vendor, body)?;
    let page = Page {
        name: String::new(),
        rows: rows.len() as u64,
        sum: mapping.sum,
        snapshot_id: id.clone(),
        next: next(vendor, body, rows.is_empty(), number),
        reported_rows,
        reported_sum,
        columns: vendor.fields.keys().map(|column| column.as_str().to_owned()).collect(),
        drift: mapping.drift,
    };
    Ok((page, lines))
}

/// What the vendor says that the rows come to. Totals that were agreed on and cannot be read would
/// leave the load unchecked.
fn totals(vendor: &Vendor, body: &Value) -> Result<(Option<u64>, Option<Decimal>)> {
    let unreadable =
        |at: &Pointer| wrong(format!("there is no total that can be read at \"{at}\""));
    let rows = vendor.totals.rows.as_ref().map(|at| {
        let found = at.of(body).and_then(|found| match found {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64(),
        });
        found.ok_or_else(|| unreadable(at))
    });
    let sum = vendor
        .totals
        .revenue
        .as_ref()
        .map(|at| at.of(body).and_then(exact).ok_or_else(|| unreadable(at)));
    Ok((rows.transpose()?, sum.transpose()?))
}

fn next(vendor: &Vendor, body: &Value, empty: bool, number: u64) -> Option<String> {
    match &vendor.pagination {
        Pagination::None => None,
        Pagination::Page { .. } => (!empty).then(|| (number + 1).to_string()),
        Pagination::Cursor { next, .. } => match next.of(body)? {
            Value::String(cursor) if !cursor.is_empty() => Some(cursor.clone()),
            Value::Number(cursor) => Some(cursor.to_string()),
            _ => None,
        },
    }
}

/// A number, exactly: a text as it was written, a JSON number as the shortest text that means it.
fn exact(value: &Value) -> Option<Decimal> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

struct Mapping<'a> {
    vendor: &'a Vendor,
    drift: BTreeSet<String>,
    sum: Decimal,
}

impl Mapping<'_> {
    fn row(&mut self, at: usize, row: &Value) -> Result<Vec<Value>> {
        let Some(members) = row.as_object() else {
            return Err(wrong(format!("row {at} is no object")));
        };
        let known = |name: &String| {
            self.vendor.fields.iter().any(|(column, field)| first(column, field) == *name)
        };
        for name in members.keys().filter(|name| !known(name)).cloned().collect::<Vec<_>>() {
            self.differs(self.vendor.drift.new, &format!("new field {name}"), at)?;
        }
        let fields = &self.vendor.fields;
        fields.iter().map(|(column, field)| self.value(at, column, field, row)).collect()
    }

    fn value(&mut self, at: usize, column: &Name, field: &Field, row: &Value) -> Result<Value> {
        let found = match &field.from {
            Some(from) => from.of(row),
            None => row.get(column.as_str()),
        };
        let summed = self.vendor.totals.column.as_ref() == Some(column);
        let strict = field.key || summed;
        let found = match found {
            None | Some(Value::Null) if field.optional && !strict => return Ok(Value::Null),
            None | Some(Value::Null) => {
                let how = if strict { Reaction::Fail } else { self.vendor.drift.missing };
                self.differs(how, &format!("missing field {column}"), at)?;
                return Ok(Value::Null);
            }
            Some(found) => found,
        };
        let Some(value) = typed(field.kind, found) else {
            let how = if strict { Reaction::Fail } else { self.vendor.drift.retyped };
            let what = format!("field {column} is no {:?}", field.kind).to_lowercase();
            self.differs(how, &what, at)?;
            return Ok(Value::Null);
        };
        if summed {
            self.sum = self.sum + exact(&value).unwrap_or_default();
        }
        Ok(value)
    }

    fn differs(&mut self, how: Reaction, what: &str, at: usize) -> Result<()> {
        match how {
            Reaction::Fail => Err(wrong(format!("row {at}: {what}"))),
            Reaction::Warn => {
                self.drift.insert(what.to_owned());
                Ok(())
            }
            Reaction::Ignore => Ok(()),
        }
    }
}

/// The member of a row that a column is found in.
fn first(column: &Name, field: &Field) -> String {
    let from = field.from.as_ref().map_or(column.as_str(), |from| from.as_str());
    from.split('.').next().unwrap_or_default().to_owned()
}

/// A value as the warehouse's column wants it; none if it is something else.
fn typed(kind: Kind, value: &Value) -> Option<Value> {
    let text = value.as_str();
    match kind {
        Kind::Text => text.map(Value::from),
        Kind::Boolean => value.as_bool().map(Value::from),
        Kind::Integer => match text {
            Some(text) => text.parse::<i64>().ok().map(Value::from),
            None => value.as_i64().map(Value::from),
        },
        // As text from here on, so that nobody rounds it.
        Kind::Decimal => exact(value).map(|number| number.to_string().into()),
        Kind::Date => {
            text.filter(|text| text.len() == 10 && parse_moment(text).is_ok()).map(Value::from)
        }
        // In UTC and without an offset, which is what every database takes.
        Kind::Timestamp => {
            let at =
                text.filter(|text| text.len() > 10).and_then(|text| parse_moment(text).ok())?;
            Some(at.iso().replace('T', " ").trim_end_matches("+00:00").into())
        }
    }
}

impl Connector for VendorConnector {
    fn name(&self) -> &str {
        self.http.name()
    }

    fn scope(&self) -> &[Operation] {
        self.http.scope()
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        Box::pin(self.page(request))
    }

    fn limits(&self) -> Limits {
        self.http.limits()
    }

    fn retry(&self) -> Retry {
        self.http.retry()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// A vendor with more lines in its section and in its fields.
    fn vendor(lines: &str, fields: &str, more: &str) -> Vendor {
        let text = format!(
            "[store]\nurl = \"sqlite://s\"\n[warehouse]\nurl = \"sqlite://w\"\n[[vendor]]\n\
             name = \"acme_sales\"\nbase_url = \"https://api.acme.example\"\n{lines}\n\
             [vendor.fields]\nsku = {{ key = true }}\n{fields}\n{more}\n"
        );
        Config::parse(&text, "f").unwrap_or_else(|e| panic!("{e}")).vendors.remove(0)
    }

    fn body(row: Value) -> Value {
        json!({ "latest_snapshot_id": "s1", "rows": [row] })
    }

    /// The one row's values, in the order of the columns' names; and what differs.
    fn one(vendor: &Vendor, row: Value) -> Result<(Vec<Value>, Vec<String>)> {
        let (page, lines) = read(vendor, &body(row), "2026-06-01", 1)?;
        Ok((serde_json::from_slice(&lines).unwrap(), page.drift.into_iter().collect()))
    }

    #[test]
    fn values_become_what_the_warehouse_takes() {
        let fields = "a = { type = \"integer\" }\nb = { type = \"decimal\" }\n\
             c = { type = \"date\" }\nd = { type = \"timestamp\" }\ne = { type = \"boolean\" }\n\
             f = { from = \"deep.er\", optional = true }";
        let vendor = vendor("", fields, "");
        let row = json!({ "sku": "x", "a": "7", "b": 12.50, "c": "2026-06-01",
            "d": "2026-06-01T02:30:00.5+02:00", "e": true, "deep": { "er": "here" } });
        let (values, drift) = one(&vendor, row).unwrap();
        let wanted =
            json!([7, "12.5", "2026-06-01", "2026-06-01 00:30:00.500000", true, "here", "x"]);
        assert_eq!(json!(values), wanted);
        assert!(drift.is_empty(), "{drift:?}");
    }

    #[test]
    fn what_differs_is_decided_by_the_agreement() {
        let fields = "n = { type = \"integer\" }";
        let row = |n: Value| json!({ "sku": "x", "n": n });
        let standard = vendor("", fields, "");
        let (_, drift) = one(&standard, json!({ "sku": "x", "n": 1, "extra": 2 })).unwrap();
        assert_eq!(drift, ["new field extra"]);
        for odd in [row(json!("many")), json!({ "sku": "x" }), row(Value::Null)] {
            assert_eq!(one(&standard, odd).unwrap_err().code(), "SF-1001");
        }
        let easy = vendor(
            "",
            fields,
            "[vendor.drift]\nnew = \"fail\"\nmissing = \"warn\"\nretyped = \"ignore\"",
        );
        assert!(one(&easy, json!({ "sku": "x", "n": 1, "extra": 2 })).is_err());
        let (values, drift) = one(&easy, json!({ "sku": "x" })).unwrap();
        assert_eq!(
            (json!(values), drift),
            (json!([null, "x"]), vec!["missing field n".to_owned()])
        );
        assert_eq!(one(&easy, row(json!("many"))).unwrap().1, [""; 0]);
        // Without its key a row is nothing, whatever was agreed.
        assert!(one(&easy, json!({ "n": 1 })).is_err());
    }

    #[test]
    fn totals_that_were_agreed_on_are_there() {
        let more = "[vendor.totals]\nrows = \"count\"\nrevenue = \"sum\"\ncolumn = \"r\"";
        let vendor = vendor("", "r = { type = \"decimal\" }", more);
        let answer = |count: Value, sum: Value| {
            let rows = json!([{ "sku": "x", "r": "1.5" }]);
            let body = json!({ "latest_snapshot_id": 1, "rows": rows, "count": count, "sum": sum });
            read(&vendor, &body, "2026-06-01", 1).map(|(page, _)| page)
        };
        let page = answer(json!("1"), json!(1.5)).unwrap();
        assert_eq!((page.reported_rows, page.reported_sum), (Some(1), Some(page.sum)));
        for (count, sum) in [
            (json!(null), json!(1.5)),
            (json!(1), json!("a lot")),
            (json!(1.5), json!(1.5)),
            (json!(1), json!("1.0000000002")),
        ] {
            assert_eq!(answer(count, sum).unwrap_err().code(), "SF-1001");
        }
    }

    #[test]
    fn pages_are_asked_for_as_the_vendor_wants() {
        let next = |vendor: &Vendor, body: &Value, number| {
            read(vendor, body, "2026-06-01", number).unwrap().0.next
        };
        let full = body(json!({ "sku": "x" }));
        let empty = json!({ "latest_snapshot_id": "s1", "rows": [] });
        let whole = vendor("", "", "");
        assert_eq!(next(&whole, &full, 1), None);
        let query = |request: Outbound| request.input["query"].clone();
        assert_eq!(query(request(&whole, "2026-06-01", 1, None)), json!({ "date": "2026-06-01" }));
        let numbered = vendor("pagination = { style = \"page\", param = \"p\" }", "", "");
        assert_eq!(next(&numbered, &full, 1).as_deref(), Some("2"));
        assert_eq!(next(&numbered, &empty, 2), None);
        let asked = query(request(&numbered, "2026-06-01", 2, Some("2")));
        assert_eq!(asked, json!({ "date": "2026-06-01", "p": "2" }));
        let line = "pagination = { style = \"cursor\", param = \"c\", next = \"meta.next\" }";
        let chained = vendor(line, "", "");
        let mut body = full.clone();
        body["meta"] = json!({ "next": "abc" });
        assert_eq!(next(&chained, &body, 1).as_deref(), Some("abc"));
        for last in [json!({}), json!({ "next": null }), json!({ "next": "" })] {
            body["meta"] = last;
            assert_eq!(next(&chained, &body, 1), None);
        }
        let asked = query(request(&chained, "2026-06-01", 2, Some("abc")));
        assert_eq!(asked, json!({ "date": "2026-06-01", "c": "abc" }));
    }

    #[test]
    fn an_answer_for_another_day_is_refused() {
        let vendor = vendor("date = \"day\"", "", "");
        let mut answer = body(json!({ "sku": "x" }));
        answer["day"] = json!("2026-06-01");
        assert!(read(&vendor, &answer, "2026-06-01", 1).is_ok());
        let error = read(&vendor, &answer, "2026-06-02", 1).unwrap_err();
        assert!(error.message().contains("2026-06-01"), "{error}");
    }
}
