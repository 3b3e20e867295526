//! From what a SQL connector is asked to a plan that can be written as statements.
//!
//! Invariants: a plan holds only identifiers that were checked and values that will be bound; its
//! rows all have the same columns, in one order; no two of them have the same key; a plan that
//! replaces a partition has no row outside it.
//! Deliberately absent: SQL, in any form, from anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};
use steadfast_core::connector::Operation;
use steadfast_core::error::{Error, Result};

use super::load::{self, Load};

/// Longest part of an identifier: Postgres cuts longer ones.
const NAME_BYTES: usize = 63;
/// Most rows of one write: one transaction has to hold them.
const ROWS_MAX: usize = 100_000;
/// Most rows of one answer.
const SELECT_MAX: usize = 10_000;
/// Rows of an answer unless the request says.
const SELECT_DEFAULT: usize = 1000;

/// What is done to a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Upsert,
    Replace,
    Load,
    Select,
}

/// What a connector is asked, understood.
#[derive(Debug, PartialEq)]
pub(super) enum Plan {
    Write(Write),
    Load(Box<Load>),
    Select(Select),
}

/// Rows to write.
#[derive(Debug, PartialEq)]
pub(super) struct Write {
    pub(super) table: String,
    pub(super) key: Vec<String>,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Value>>,
    /// Where set, these are all the rows there are with these values.
    pub(super) partition: Option<BTreeMap<String, Value>>,
}

/// Rows to read.
#[derive(Debug, PartialEq)]
pub(super) struct Select {
    pub(super) table: String,
    /// None means all.
    pub(super) columns: Vec<String>,
    pub(super) filter: BTreeMap<String, Value>,
    /// Columns that are at most so large.
    pub(super) up_to: BTreeMap<String, Value>,
    pub(super) key: Vec<String>,
    pub(super) last_first: bool,
    pub(super) limit: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpsertInput {
    key: Vec<String>,
    rows: Vec<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplaceInput {
    partition: BTreeMap<String, Value>,
    key: Vec<String>,
    rows: Vec<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SelectInput {
    #[serde(default)]
    columns: Vec<String>,
    #[serde(default, rename = "where")]
    filter: BTreeMap<String, Value>,
    #[serde(default)]
    up_to: BTreeMap<String, Value>,
    #[serde(default)]
    last_first: bool,
    #[serde(default)]
    key: Vec<String>,
    #[serde(default)]
    limit: Option<usize>,
}

pub(super) fn refused(why: impl fmt::Display) -> Error {
    Error::invalid("SF-0721", format!("the database is not asked: {why}"))
}

/// The verb and the table of an operation.
pub(super) fn target(operation: &str) -> Result<(Verb, &str)> {
    let Some((verb, table)) = operation.split_once(' ') else {
        return Err(refused(format!("\"{operation}\" is no verb and table")));
    };
    let verb = match verb {
        "upsert" => Verb::Upsert,
        "replace" => Verb::Replace,
        "load" => Verb::Load,
        "select" => Verb::Select,
        other => {
            let why = format!("\"{other}\" is none of upsert, replace, load, select");
            return Err(refused(why));
        }
    };
    let mut parts = table.split('.');
    let named = parts.next().is_some_and(is_name) && parts.next().is_none_or(is_name);
    match named && parts.next().is_none() {
        true => Ok((verb, table)),
        false => Err(refused(format!("\"{table}\" is no name of a table"))),
    }
}

/// Refuses an operation of a scope that could never be asked for.
pub(super) fn check_operation(operation: &Operation) -> Result<()> {
    let (verb, _) = target(&operation.name)?;
    match (verb == Verb::Select) == operation.mutates {
        true => Err(refused(format!("\"{}\" is declared as the wrong kind", operation.name))),
        false => Ok(()),
    }
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && text.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

pub(super) fn check_names<'a>(names: impl IntoIterator<Item = &'a String>) -> Result<()> {
    match names.into_iter().find(|name| !is_name(name)) {
        Some(name) => Err(refused(format!("\"{name}\" is no name of a column"))),
        None => Ok(()),
    }
}

/// Understands a request.
pub(super) fn plan(operation: &str, input: &Value) -> Result<Plan> {
    let (verb, table) = target(operation)?;
    // A list would be taken for the members in their order.
    let empty = Value::Object(Map::new());
    let input = match input {
        Value::Null => &empty,
        Value::Object(_) => input,
        _ => return Err(refused("the input is no object")),
    };
    match verb {
        Verb::Upsert => {
            let UpsertInput { key, rows } = UpsertInput::deserialize(input).map_err(refused)?;
            write(table, key, rows, None).map(Plan::Write)
        }
        Verb::Replace => {
            let input = ReplaceInput::deserialize(input).map_err(refused)?;
            let ReplaceInput { partition, key, rows } = input;
            check_partition(&partition)?;
            write(table, key, rows, Some(partition)).map(Plan::Write)
        }
        Verb::Load => load::plan(table, input).map(|load| Plan::Load(Box::new(load))),
        Verb::Select => select(table, input).map(Plan::Select),
    }
}

/// A partition is some columns, each with one value.
pub(super) fn check_partition(partition: &BTreeMap<String, Value>) -> Result<()> {
    check_names(partition.keys())?;
    let plain = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
    match !partition.is_empty() && partition.values().all(plain) {
        true => Ok(()),
        false => Err(refused("a partition has columns, each with one plain value")),
    }
}

pub(super) fn write(
    table: &str,
    key: Vec<String>,
    mut rows: Vec<Map<String, Value>>,
    partition: Option<BTreeMap<String, Value>>,
) -> Result<Write> {
    check_names(&key)?;
    if key.is_empty() {
        return Err(refused("the key has no columns"));
    }
    if rows.len() > ROWS_MAX {
        let why = format!("{} rows; at most {ROWS_MAX} are written at once", rows.len());
        return Err(refused(why));
    }
    for (name, value) in partition.iter().flatten() {
        for (at, row) in rows.iter_mut().enumerate() {
            if row.entry(name.clone()).or_insert_with(|| value.clone()) != value {
                return Err(refused(format!("row {at} is outside the partition: {name}")));
            }
        }
    }
    let columns: Vec<String> =
        rows.first().map_or_else(Vec::new, |row| row.keys().cloned().collect());
    check_names(&columns)?;
    if let Some(missing) = key.iter().find(|name| !columns.contains(name) && !rows.is_empty()) {
        return Err(refused(format!("the key's column \"{missing}\" is not in the rows")));
    }
    let table = table.to_owned();
    let rows = in_order(&columns, &key, rows)?;
    Ok(Write { table, key, columns, rows, partition })
}

/// The rows' values in the order of the columns.
fn in_order(
    columns: &[String],
    key: &[String],
    rows: Vec<Map<String, Value>>,
) -> Result<Vec<Vec<Value>>> {
    let mut keys = BTreeSet::new();
    let mut ordered = Vec::with_capacity(rows.len());
    for (at, mut row) in rows.into_iter().enumerate() {
        let of_key: Vec<&Value> = key.iter().filter_map(|name| row.get(name)).collect();
        if of_key.iter().any(|value| value.is_null()) {
            return Err(refused(format!("row {at} has nothing in its key")));
        }
        let text = serde_json::to_string(&of_key).map_err(refused)?;
        if !keys.insert(text) {
            return Err(refused(format!("row {at} has the key of an earlier row")));
        }
        let values: Option<Vec<Value>> = columns.iter().map(|name| row.remove(name)).collect();
        match values.filter(|_| row.is_empty()) {
            Some(values) => ordered.push(values),
            None => return Err(refused(format!("row {at} has other columns than the first"))),
        }
    }
    Ok(ordered)
}

fn select(table: &str, input: &Value) -> Result<Select> {
    let SelectInput { columns, filter, up_to, key, last_first, limit } =
        SelectInput::deserialize(input).map_err(refused)?;
    check_names(columns.iter().chain(filter.keys()).chain(up_to.keys()).chain(&key))?;
    if filter.values().chain(up_to.values()).any(|value| value.is_array() || value.is_object()) {
        return Err(refused("a filter compares with a plain value"));
    }
    if up_to.values().any(Value::is_null) {
        return Err(refused("nothing is at most null"));
    }
    let limit = limit.unwrap_or(SELECT_DEFAULT);
    if limit > SELECT_MAX {
        return Err(refused(format!("a limit of {limit}; at most {SELECT_MAX} rows are read")));
    }
    Ok(Select { table: table.to_owned(), columns, filter, up_to, key, last_first, limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn why(operation: &str, input: Value) -> String {
        let error = plan(operation, &input).unwrap_err();
        assert_eq!(error.code(), "SF-0721");
        error.message().to_owned()
    }

    /// R15
    #[test]
    fn r015_an_operation_is_a_verb_and_a_table() {
        assert_eq!(target("upsert warehouse.sales_daily").unwrap().0, Verb::Upsert);
        for operation in [
            "drop warehouse.sales_daily",
            "UPSERT t",
            "upsert",
            "upsert a.b.c",
            "upsert a b",
            "upsert a;b",
            "upsert \"a\"",
            "upsert 1a",
            "upsert a.",
            "upsert .a",
            "upsert é",
        ] {
            assert!(target(operation).is_err(), "{operation}");
        }
        assert!(check_operation(&Operation::read("select t")).is_ok());
        assert!(check_operation(&Operation::write("select t")).is_err());
        assert!(check_operation(&Operation::read("upsert t")).is_err());
    }

    #[test]
    fn rows_are_put_in_one_order_and_get_their_partition() {
        let input = json!({
            "partition": {"vendor": "acme_sales"}, "key": ["vendor", "sku"],
            "rows": [{"sku": "a", "n": 1}, {"n": 2, "sku": "b", "vendor": "acme_sales"}],
        });
        let Plan::Write(write) = plan("replace t", &input).unwrap() else { panic!() };
        assert_eq!(write.columns, ["n", "sku", "vendor"]);
        assert_eq!(write.rows[1], [json!(2), json!("b"), json!("acme_sales")]);
    }

    #[test]
    fn rows_that_do_not_fit_together_are_refused() {
        let rows = |rows: Value| json!({"key": ["k"], "rows": rows});
        assert!(why("upsert t", rows(json!([{"k": 1}, {"k": 1}]))).contains("earlier"));
        assert!(why("upsert t", rows(json!([{"k": 1}, {"k": 2, "v": 1}]))).contains("columns"));
        assert!(why("upsert t", rows(json!([{"k": 1, "v": 1}, {"k": 2}]))).contains("columns"));
        assert!(why("upsert t", rows(json!([{"k": null}]))).contains("nothing"));
        assert!(why("upsert t", rows(json!([{"v": 1}]))).contains("\"k\""));
        assert!(why("upsert t", rows(json!([{"k": 1, "a\"b": 1}]))).contains("name"));
        assert!(why("upsert t", json!({"key": [], "rows": []})).contains("no columns"));
        assert!(why("upsert t", json!({"key": ["k"], "rows": [], "sql": "x"})).contains("sql"));
        let other = json!({"partition": {"p": 1}, "key": ["k"], "rows": [{"k": 1, "p": 2}]});
        assert!(why("replace t", other).contains("outside"));
        assert!(
            why("replace t", json!({"partition": {}, "key": ["k"], "rows": []})).contains("has")
        );
        assert!(why("upsert t", json!([["k"], []])).contains("object"));
        assert!(why("select t", json!({"where": {"a": [1]}})).contains("plain"));
        assert!(why("select t", json!({"limit": 10_001})).contains("10001"));
        assert!(why("select t", json!({"columns": ["a; --"]})).contains("name"));
    }
}
