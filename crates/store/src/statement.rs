//! Named statements: read from the `.sql` files once, filled for a dialect, parameters in order.
//!
//! Invariants: every statement has one name; an unknown hole or a missing parameter is a bug that
//! the tests meet, because they render every statement for every dialect.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

use crate::dialect::Dialect;
use crate::gate::{Params, Value};

const FILES: &[&str] = &[
    include_str!("sql/schema.sql"),
    include_str!("sql/run.sql"),
    include_str!("sql/step.sql"),
    include_str!("sql/queue.sql"),
];

static STATEMENTS: LazyLock<BTreeMap<&'static str, &'static str>> = LazyLock::new(|| {
    let mut statements = BTreeMap::new();
    for file in FILES {
        for part in file.split("-- name: ").skip(1) {
            let (name, text) = part.split_once('\n').unwrap_or((part, ""));
            let end = text.find(';').unwrap_or(text.len());
            let doubled = statements.insert(name.trim(), text[..end].trim()).is_some();
            assert!(!doubled, "invariant: statement {name} is defined once");
        }
    }
    statements
});

/// The raw text of a statement.
pub(crate) fn raw(name: &str) -> &'static str {
    STATEMENTS.get(name).unwrap_or_else(|| panic!("invariant: statement {name} exists"))
}

/// The names of the statements that create the schema, in order.
pub(crate) fn schema() -> impl Iterator<Item = &'static str> {
    FILES[0].split("-- name: ").skip(1).filter_map(|part| part.lines().next()).map(str::trim)
}

/// SQL for one dialect, and which parameters it wants in which order.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) sql: String,
    order: Vec<&'static str>,
}

/// Renders a statement, or takes it from the cache. Lists make the text depend on their length.
pub(crate) fn render(
    dialect: Dialect,
    name: &'static str,
    conditions: &str,
    params: Params<'_>,
) -> &'static Rendered {
    type Key = (Dialect, &'static str, String, Vec<usize>);
    static CACHE: LazyLock<Mutex<BTreeMap<Key, &'static Rendered>>> = LazyLock::new(Mutex::default);
    let widths: Vec<usize> = params
        .iter()
        .filter_map(|(_, value)| match value {
            Value::Texts(list) => Some(width(list.len())),
            Value::Int(_) | Value::Text(_) => None,
        })
        .collect();
    let key = (dialect, name, conditions.to_owned(), widths);
    let mut cache = CACHE.lock().expect("invariant: rendering does not panic under the lock");
    if let Some(known) = cache.get(&key) {
        return known;
    }
    // Leaked on purpose: there are some hundred texts in a process's life, and drivers cache by
    // them.
    let made: &'static Rendered = Box::leak(Box::new(make(dialect, raw(name), conditions, params)));
    cache.insert(key, made);
    made
}

/// Lists are padded to a few widths, so that the number of texts (and prepared statements) is
/// small.
fn width(len: usize) -> usize {
    len.max(1).next_power_of_two()
}

impl Rendered {
    /// The values in the statement's order, lists spread and padded with their last element.
    pub(crate) fn bind(&self, params: Params<'_>) -> Vec<Value> {
        let mut values = Vec::with_capacity(self.order.len());
        for name in &self.order {
            let found = params.iter().find(|(n, _)| n == name);
            let (_, value) =
                found.unwrap_or_else(|| panic!("invariant: parameter {name} is given"));
            match value {
                Value::Texts(list) => {
                    let pad = list.last().cloned().unwrap_or_default();
                    let more = width(list.len()) - list.len();
                    values.extend(list.iter().cloned().map(Value::from));
                    values.extend(std::iter::repeat_n(Value::from(pad), more));
                }
                single => values.push(single.clone()),
            }
        }
        values
    }
}

fn make(dialect: Dialect, raw: &str, conditions: &str, params: Params<'_>) -> Rendered {
    let text = fill(dialect, &raw.replace("{{conditions}}", conditions));
    let (mut sql, mut order, mut numbers) = (String::new(), Vec::new(), 0);
    let mut rest = text.as_str();
    while let Some(at) = rest.find(':') {
        sql.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        let len = tail.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(tail.len());
        let name = &tail[..len];
        if name.is_empty() {
            // A Postgres cast or a stray colon in text.
            let skip = if tail.starts_with(':') { 2 } else { 1 };
            sql.push_str(&rest[at..at + skip]);
            rest = &rest[at + skip..];
            continue;
        }
        let (name, value) = params
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(n, v)| (*n, v))
            .unwrap_or_else(|| panic!("invariant: parameter {name} is given"));
        let (count, integer) = match value {
            Value::Texts(list) => (width(list.len()), false),
            Value::Int(_) => (1, true),
            Value::Text(_) => (1, false),
        };
        let places: Vec<String> =
            (1..=count).map(|i| dialect.placeholder(numbers + i, integer)).collect();
        numbers += count;
        sql.push_str(&places.join(", "));
        order.push(name);
        rest = &tail[len..];
    }
    sql.push_str(rest);
    Rendered { sql, order }
}

/// Fills the holes of a text.
pub(crate) fn fill(dialect: Dialect, text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (hole, tail) = after.split_once("}}").expect("invariant: holes are closed");
        out.push_str(before);
        let filled = dialect.fill(hole);
        out.push_str(&filled.unwrap_or_else(|| panic!("invariant: hole {hole} is known")));
        rest = tail;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::params;

    #[test]
    fn parameters_are_numbered_in_order_and_lists_are_spread() {
        let params: Params<'_> = params! {
            workspace: "w", worker: "me",
            run_ids: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
        };
        let rendered = render(Dialect::Postgres, "run_owned", "", params);
        assert!(rendered.sql.contains("workspace = $1::text AND worker = $2::text"));
        assert!(rendered.sql.contains("run_id IN ($3::text, $4::text, $5::text, $6::text)"));
        let texts: Vec<_> = rendered.bind(params).into_iter().skip(2).collect();
        assert_eq!(texts, ["a", "b", "c", "c"].map(Value::from));
    }

    #[test]
    fn every_hole_of_every_statement_is_known_to_every_dialect() {
        for name in STATEMENTS.keys() {
            for dialect in [Dialect::Sqlite, Dialect::Postgres, Dialect::Mysql] {
                let text = fill(dialect, &raw(name).replace("{{conditions}}", "1 = 1"));
                assert!(!text.contains("{{"), "{name}");
            }
        }
    }
}
