//! Loads: a whole partition from pages of the spool, in one transaction.
//!
//! Invariants: at any moment the partition holds what it held or what it shall hold; one page and
//! a few pieces are in memory at a time; what the rows must come to is checked before the commit,
//! by the database's own count and sum; rows of other tables that tell of the load are written in
//! the same transaction.
//! Deliberately absent: a staging table. Nobody sees the rows before the commit anyway.

mod line;
mod pages;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use steadfast_core::connector::Inbound;
use steadfast_core::decimal::Decimal;
use steadfast_core::error::{Error, Result};

use super::dialect::{Dialect, batches};
use super::failure;
use super::request::{self, Write, refused};
use super::session::Session;
use crate::spool::Spool;

pub(super) use pages::Pieces;

/// A partition to be loaded.
#[derive(Debug, PartialEq)]
pub(super) struct Load {
    /// Table, partition and columns; its rows are in the pages.
    pub(super) write: Write,
    pages: Arc<[Page]>,
    /// What tells of the load, in the same transaction.
    pub(super) also: Option<Write>,
    expect: Option<Expect>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    name: String,
    rows: u64,
}

/// What the partition must come to.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    rows: u64,
    #[serde(default)]
    sum: Option<Total>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Total {
    column: String,
    is: Decimal,
    within: Decimal,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    partition: BTreeMap<String, Value>,
    key: Vec<String>,
    columns: Vec<String>,
    pages: Vec<Page>,
    #[serde(default)]
    also: Option<Also>,
    #[serde(default)]
    expect: Option<Expect>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Also {
    upsert: String,
    key: Vec<String>,
    row: Map<String, Value>,
}

impl Load {
    pub(super) fn page_names(&self) -> impl Iterator<Item = &String> {
        self.pages.iter().map(|page| &page.name)
    }
}

/// Understands a request.
pub(super) fn plan(table: &str, input: &Value) -> Result<Load> {
    let input = Input::deserialize(input).map_err(refused)?;
    let Input { partition, key, mut columns, pages, also, expect } = input;
    request::check_partition(&partition)?;
    request::check_names(columns.iter().chain(&key))?;
    if let Some(name) = columns.iter().find(|name| partition.contains_key(*name)) {
        return Err(refused(format!("column \"{name}\" is the partition's")));
    }
    columns.extend(partition.keys().cloned());
    if let Some(missing) = key.iter().find(|name| !columns.contains(name)) {
        return Err(refused(format!("the key's column \"{missing}\" is not in the rows")));
    }
    if let Some(sum) = expect.as_ref().and_then(|expect| expect.sum.as_ref()) {
        request::check_names([&sum.column])?;
    }
    let told = |Also { upsert, key, row }| {
        request::target(&format!("upsert {upsert}"))?;
        request::write(&upsert, key, vec![row], None)
    };
    let also = also.map(told).transpose()?;
    let (table, rows) = (table.to_owned(), Vec::new());
    let write = Write { table, key, columns, rows, partition: Some(partition) };
    Ok(Load { write, pages: pages.into(), also, expect })
}

/// Writes the partition inside a transaction that is open.
pub(super) async fn rows(
    session: &mut Session,
    load: &Load,
    spool: &Spool,
    operation: &str,
) -> Result<Inbound> {
    let (dialect, write) = (session.dialect(), &load.write);
    let partition = write.partition.as_ref().expect("invariant: a load has a partition");
    let sql = dialect.delete(&write.table, partition);
    let replaced = session.execute(sql, partition.values().cloned().collect()).await?;
    let written = match session {
        Session::Postgres(session) => {
            session.copy(&dialect.copy(write), pages::text(load, spool)).await?
        }
        Session::Sqlite(_) | Session::Mysql(_) => {
            let mut pieces = pages::values(load, spool);
            while let Some(rows) = pieces.next().await {
                for batch in batches(&rows) {
                    let sql = dialect.insert(write, batch.len());
                    session.execute(sql, batch.iter().flatten().cloned().collect()).await?;
                }
            }
            pieces.end().await?
        }
    };
    if let Some(expect) = &load.expect {
        check(session, write, partition, expect).await?;
    }
    if let Some(also) = &load.also {
        let sql = dialect.insert(also, also.rows.len());
        session.execute(sql, also.rows.iter().flatten().cloned().collect()).await?;
    }
    let output = json!({ "written": written, "replaced": replaced });
    let summary = format!("{written} rows written in place of {replaced}");
    Ok(Inbound::new(output, operation, summary))
}

/// Asks the database what it has now; a transaction that does not come to what it must is not
/// committed.
async fn check(
    session: &mut Session,
    write: &Write,
    partition: &BTreeMap<String, Value>,
    expect: &Expect,
) -> Result<()> {
    let sum = expect.sum.as_ref();
    let sql = session.dialect().total(&write.table, sum.map(|sum| &*sum.column), partition);
    let found = session.query(sql, partition.values().cloned().collect()).await?;
    let of = |name: &str| found.first().and_then(|row| row.get(name)).cloned().unwrap_or_default();
    let wrong = |what: &str, has: &str, must: &str| {
        let text = format!("the partition would have {what} {has} instead of {must}");
        Err(Error::invalid("SF-0728", text))
    };
    let rows = of("n").as_u64().unwrap_or_default();
    if rows != expect.rows {
        return wrong("a row count of", &rows.to_string(), &expect.rows.to_string());
    }
    let Some(Total { column, is, within }) = sum else {
        return Ok(());
    };
    let has = match of("s") {
        Value::String(text) => text.parse::<Decimal>().map_err(failure::unfit)?,
        _ => Decimal::default(),
    };
    match (has - *is).abs() <= *within {
        true => Ok(()),
        false => wrong(&format!("a sum of \"{column}\" of"), &has.to_string(), &is.to_string()),
    }
}

impl Dialect {
    fn copy(self, write: &Write) -> String {
        format!("COPY {} ({}) FROM STDIN", self.quoted(&write.table), self.list(&write.columns))
    }

    /// Counts a partition, and perhaps sums one of its columns, as text.
    fn total(
        self,
        table: &str,
        column: Option<&str>,
        partition: &BTreeMap<String, Value>,
    ) -> String {
        let sum = column.map_or_else(String::new, |column| {
            let sum = format!("COALESCE(SUM({}), 0)", self.quoted(column));
            match self {
                Self::Mysql => format!(", CAST({sum} AS CHAR) AS s"),
                Self::Postgres => format!(", CAST({sum} AS TEXT) AS s"),
                // It has no exact sums: nine places are what we have, and more than it knows.
                Self::Sqlite => format!(", printf('%.9f', {sum}) AS s"),
            }
        });
        let filter = self.filter(partition);
        format!("SELECT COUNT(*) AS n{sum} FROM {}{filter}", self.quoted(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let base = json!({
            "partition": {"vendor": "a"}, "key": ["vendor", "sku"], "columns": ["sku", "n"],
            "pages": [], "also": {"upsert": "state", "key": ["vendor"], "row": {"vendor": "a"}},
        });
        let load = plan("t", &base).unwrap();
        assert_eq!(load.write.columns, ["sku", "n", "vendor"]);
        for (at, value, why) in [
            ("partition", json!({}), "partition"),
            ("columns", json!(["sku", "vendor"]), "partition's"),
            ("columns", json!(["sku; --"]), "name"),
            ("key", json!(["other"]), "other"),
            ("also", json!({"upsert": "a b", "key": ["k"], "row": {"k": 1}}), "table"),
            ("sql", json!("x"), "sql"),
            ("expect", json!({"rows": -1}), "invalid"),
        ] {
            let mut input = base.clone();
            input[at] = value;
            let error = plan("t", &input).unwrap_err();
            assert_eq!(error.code(), "SF-0721", "{at}");
            assert!(error.message().contains(why), "{at}: {error}");
        }
    }
}
