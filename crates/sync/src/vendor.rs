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

use crate::config::{Field, Kind, Name, Pagination, Reaction, Vendor};
use crate::snapshot::Page;

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
        let number = asked.input["page"].take();
        asked.input = json!({ "query": asked.input["query"] });
        let answer = self.http.send(&asked).await?;
        let (vendor, spool) = (self.vendor.clone(), self.spool.clone());
        let (body, number) = (answer.output["body"].clone(), number.as_u64().unwrap_or(1));
        let reading = move || {
            let day = day.as_str().unwrap_or_default();
            let (mut page, lines) = read(&vendor, &body, day, number)?;
            page.name = spool.put(&lines)?;
            serde_json::to_value(page).map_err(Error::from_any)
        };
        let page = tokio::task::spawn_blocking(reading).await.map_err(Error::from_any)??;
        let summary = format!("{}, {} rows", answer.summary, page["rows"]);
        Ok(Inbound { output: page, actual: answer.actual, summary })
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
    let sum_of = |at: &Option<crate::config::Pointer>| {
        at.as_ref().and_then(|at| at.of(body)).and_then(exact)
    };
    let reported = vendor.totals.rows.as_ref().and_then(|at| at.of(body)).and_then(Value::as_u64);
    let page = Page {
        name: String::new(),
        rows: rows.len() as u64,
        sum: mapping.sum,
        snapshot_id: id.clone(),
        next: next(vendor, body, rows.is_empty(), number),
        reported_rows: reported,
        reported_sum: sum_of(&vendor.totals.revenue),
        drift: mapping.drift,
    };
    Ok((page, lines))
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

/// A number as it was written.
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
        Kind::Timestamp => {
            text.filter(|text| text.len() > 10 && parse_moment(text).is_ok()).map(Value::from)
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
