//! Named statements: read from the `.sql` files once, filled for a dialect, parameters in order.
//!
//! Invariants: every statement has one name; an unknown hole or a missing parameter is a bug that
//! the tests meet, because they render every statement for every dialect.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex};

use crate::dialect::Dialect;
use crate::error::Error;
use crate::gate::{Bound, Fields, Params, Value};
use crate::sabotage;

/// What a new database is made of, in order.
const SCHEMA: &[&str] = &[
    include_str!("sql/schema.sql"),
    include_str!("sql/schema/govern.sql"),
    include_str!("sql/schema/event.sql"),
];

const FILES: &[&str] = &[
    include_str!("sql/run.sql"),
    include_str!("sql/step.sql"),
    include_str!("sql/queue.sql"),
    include_str!("sql/command.sql"),
    include_str!("sql/govern.sql"),
    include_str!("sql/event.sql"),
    include_str!("sql/trigger.sql"),
    include_str!("sql/together.sql"),
];

static STATEMENTS: LazyLock<BTreeMap<&'static str, &'static str>> = LazyLock::new(|| {
    let mut statements = BTreeMap::new();
    for file in SCHEMA.iter().chain(FILES) {
        for part in file.split("-- name: ").skip(1) {
            let (name, text) = part.split_once('\n').unwrap_or((part, ""));
            let end = text.find(';').unwrap_or(text.len());
            let doubled = statements.insert(name.trim(), text[..end].trim()).is_some();
            assert!(!doubled, "invariant: statement {name} is defined once");
        }
    }
    statements
});

/// The text of a statement, if there is one of that name.
pub(crate) fn find(name: &str) -> Option<&'static str> {
    STATEMENTS.get(name).copied().or_else(|| sabotage::text(name))
}

/// The raw text of a statement.
pub(crate) fn raw(name: &str) -> &'static str {
    find(name).unwrap_or_else(|| panic!("invariant: statement {name} exists"))
}

/// The names of the statements that create the schema, in order.
pub(crate) fn schema() -> impl Iterator<Item = &'static str> {
    let parts = SCHEMA.iter().flat_map(|file| file.split("-- name: ").skip(1));
    parts.filter_map(|part| part.lines().next()).map(str::trim)
}

/// SQL for one dialect, and which parameters it wants in which order.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) sql: String,
    /// What is wanted, and where each was among what the caller gave when this was rendered.
    order: Vec<Slot>,
    /// Whether lists are arrays, and so one value each.
    has_arrays: bool,
}

/// A parameter of a statement.
#[derive(Debug)]
enum Slot {
    /// One of the caller's, by its name and place.
    One(&'static str, usize),
    /// A value of one of the caller's rows, by the row's number and the value's place in it.
    Cell(usize, usize),
}

/// Renders a statement, or takes it from the cache. Lists and rows make the text depend on their
/// length.
pub(crate) fn render(
    dialect: Dialect,
    name: &'static str,
    conditions: &str,
    params: Params<'_>,
) -> &'static Rendered {
    thread_local! {
        /// By address of the name: without a lock, and without comparing texts.
        static NEAR: RefCell<HashMap<(Dialect, usize, u64), &'static Rendered>> =
            RefCell::default();
    }
    let name = sabotage::name_of(name);
    if !conditions.is_empty() {
        return shared(dialect, name, conditions, params);
    }
    let lists = params.iter().filter_map(|(_, value)| list_width(dialect, value));
    let widths = lists.fold(0, |all, width| all << 16 | width as u64);
    let key = (dialect, name.as_ptr() as usize, widths);
    NEAR.with_borrow_mut(|near| {
        *near.entry(key).or_insert_with(|| shared(dialect, name, conditions, params))
    })
}

/// The statement from the cache of the whole process: a text has one address, by which drivers know
/// it.
fn shared(
    dialect: Dialect,
    name: &'static str,
    conditions: &str,
    params: Params<'_>,
) -> &'static Rendered {
    type Key = (Dialect, &'static str, String, Vec<usize>);
    static CACHE: LazyLock<Mutex<BTreeMap<Key, &'static Rendered>>> = LazyLock::new(Mutex::default);
    let widths = params.iter().filter_map(|(_, value)| list_width(dialect, value)).collect();
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
/// small. What is repeated costs a server as much as what is new, so that is not much either.
pub(crate) fn width(len: usize) -> usize {
    match len {
        0..=4 | 65.. => len.max(1).next_power_of_two(),
        5..=32 => len.next_multiple_of(4),
        33..=64 => len.next_multiple_of(8),
    }
}

fn list_width(dialect: Dialect, value: &Value<'_>) -> Option<usize> {
    match value {
        Value::Texts(_) if dialect.has_arrays() => None,
        Value::Rows(_) if dialect.has_arrays() => None,
        Value::Texts(list) => Some(width(list.len())),
        Value::Rows(rows) => Some(width(rows.len())),
        Value::Int(_) | Value::Text(_) => None,
        Value::IntColumn(_) | Value::TextColumn(_) => None,
    }
}

impl Rendered {
    /// The values in the statement's order, lists and rows spread and padded with their last
    /// element. An error if a text holds a NUL character, which Postgres cannot store: what one
    /// database refuses, all refuse.
    pub(crate) fn bind<'a>(&self, params: Params<'a>) -> Result<Vec<Bound<'a>>, Error> {
        if let Some((name, _)) = params.iter().find(|(_, value)| value.holds_nul()) {
            let why = format!("the text given for {name} holds a NUL character (U+0000)");
            return Err(Error::Invalid(why));
        }
        let mut values = Vec::with_capacity(self.order.len());
        let rows = rows(params);
        for slot in &self.order {
            let value = match slot {
                Slot::One(name, place) => match params.get(*place) {
                    Some((there, value)) if there == name => value,
                    _ => param(params, name).1,
                },
                Slot::Cell(row, place) => &rows[(*row).min(rows.len() - 1)][*place].1,
            };
            match value {
                Value::Int(v) => values.push(Bound::Int(*v)),
                Value::Text(v) => values.push(Bound::Text(v.as_deref())),
                Value::IntColumn(v) => values.push(Bound::IntColumn(v)),
                Value::TextColumn(v) => values.push(Bound::TextColumn(v)),
                Value::Rows(v) => values.push(Bound::Rows(v)),
                Value::Texts(list) if self.has_arrays => values.push(Bound::Texts(list)),
                Value::Texts(list) => {
                    let pad = list.last().map_or("", |text| text);
                    let more = width(list.len()) - list.len();
                    values.extend(list.iter().map(|text| Bound::Text(Some(text))));
                    values.extend(std::iter::repeat_n(Bound::Text(Some(pad)), more));
                }
            }
        }
        Ok(values)
    }
}

/// A parameter by its name, and its place.
fn param<'a>(params: Params<'a>, name: &str) -> (usize, &'a Value<'a>) {
    let found = params.iter().position(|(there, _)| *there == name);
    let place = found.unwrap_or_else(|| panic!("invariant: parameter {name} is given"));
    (place, &params[place].1)
}

/// The rows among the parameters, if there are any.
fn rows<'a>(params: Params<'a>) -> &'a [Fields<'a>] {
    let rows = params.iter().find_map(|(_, value)| match value {
        Value::Rows(rows) => Some(rows.as_slice()),
        _ => None,
    });
    rows.unwrap_or_default()
}

fn make(dialect: Dialect, raw: &str, conditions: &str, params: Params<'_>) -> Rendered {
    let text = fill(dialect, &raw.replace("{{conditions}}", conditions));
    let mut making = Making { dialect, sql: String::new(), order: Vec::new(), numbers: 0 };
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("[[") {
        let (repeated, tail) = after.split_once("]]").expect("invariant: brackets are closed");
        making.add(before, |making, name| making.param(params, name));
        making.spread(repeated, rows(params));
        rest = tail;
    }
    making.add(rest, |making, name| making.param(params, name));
    let Making { sql, order, .. } = making;
    Rendered { sql, order, has_arrays: dialect.has_arrays() }
}

/// A statement that is being rendered.
struct Making {
    dialect: Dialect,
    sql: String,
    order: Vec<Slot>,
    numbers: usize,
}

impl Making {
    /// Adds a text, whose parameters are added as they are met.
    fn add(&mut self, text: &str, param: impl Fn(&mut Self, &str)) {
        let mut rest = text;
        while let Some(at) = rest.find(':') {
            self.sql.push_str(&rest[..at]);
            let tail = &rest[at + 1..];
            let end = tail.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let name = &tail[..end.unwrap_or(tail.len())];
            if name.is_empty() {
                // A Postgres cast or a stray colon in text.
                let skip = if tail.starts_with(':') { 2 } else { 1 };
                self.sql.push_str(&rest[at..at + skip]);
                rest = &rest[at + skip..];
                continue;
            }
            param(self, name);
            rest = &tail[name.len()..];
        }
        self.sql.push_str(rest);
    }

    /// Adds a text once for each row, the comma before the first left out.
    fn spread(&mut self, text: &str, rows: &[Fields<'_>]) {
        let fields = rows.first().map(Vec::as_slice).unwrap_or_default();
        for row in 0..width(rows.len()) {
            let text = if row == 0 { text.strip_prefix(", ").unwrap_or(text) } else { text };
            self.add(text, |making, name| {
                making.places(1, "");
                making.order.push(Slot::Cell(row, param(fields, name).0));
            });
        }
    }

    /// Adds one of the caller's parameters.
    fn param(&mut self, params: Params<'_>, name: &str) {
        let (place, value) = param(params, name);
        let (count, ty) = match value {
            Value::Texts(_) if self.dialect.has_arrays() => {
                self.array();
                (1, "text[]")
            }
            Value::Texts(list) => (width(list.len()), "text"),
            Value::Int(_) => (1, "int8"),
            Value::Text(_) => (1, "text"),
            Value::IntColumn(_) => (1, "int8[]"),
            Value::TextColumn(_) => (1, "text[]"),
            // The statement says of which table.
            Value::Rows(_) => (1, ""),
        };
        self.places(count, ty);
        self.order.push(Slot::One(params[place].0, place));
    }

    /// A list in parentheses becomes an array: one text for any length.
    fn array(&mut self) {
        for (list, array) in [("NOT IN (", "<> ALL("), ("IN (", "= ANY(")] {
            if let Some(head) = self.sql.strip_suffix(list) {
                self.sql = format!("{head}{array}");
                return;
            }
        }
    }

    fn places(&mut self, count: usize, ty: &str) {
        let place = |i| self.dialect.placeholder(self.numbers + i, ty);
        let places: Vec<String> = (1..=count).map(place).collect();
        self.numbers += count;
        self.sql.push_str(&places.join(", "));
    }
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
    use crate::gate::{fields, params};

    #[test]
    fn parameters_are_numbered_in_order_and_lists_are_spread() {
        let params: Params<'_> = params! {
            workspace: "w", worker: "me",
            run_ids: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
        };
        let rendered = render(Dialect::Sqlite, "run_owned", "", params);
        assert!(rendered.sql.contains("workspace = ?1 AND run_id IN (?2, ?3, ?4, ?5)"));
        let texts: Vec<_> = rendered.bind(params).unwrap().into_iter().skip(1).take(4).collect();
        assert_eq!(texts, ["a", "b", "c", "c"].map(|text| Bound::Text(Some(text))));
    }

    #[test]
    fn postgres_is_given_lists_as_arrays() {
        let params: Params<'_> = params! {
            workspace: "w", now: 1i64, app_version: "", limit: 1i64,
            run_ids: vec!["a".to_owned(), "b".to_owned()],
        };
        let rendered = render(Dialect::Postgres, "step_clear", "", params);
        assert!(rendered.sql.contains("run_id = ANY($2::text[])"), "{}", rendered.sql);
        assert_eq!(rendered.bind(params).unwrap().len(), 2);
    }

    #[test]
    fn mysql_is_given_rows_one_after_the_other() {
        let row = |id| fields! { run_id: id, to: "SUCCESS", output: "1", error: "", now: 5i64 };
        let params: Params<'_> =
            params! { workspace: "w", rows: vec![row("a"), row("b"), row("c")] };
        let rendered = render(Dialect::Mysql, "many_run_end", "", params);
        assert!(rendered.sql.contains("status = CASE run_id WHEN ? THEN ? WHEN ? THEN ? WHEN"));
        assert!(rendered.sql.ends_with("workspace = ? AND run_id IN (?, ?, ?, ?)"));
        let values = rendered.bind(params).unwrap();
        let texts: Vec<_> = values.iter().rev().take(5).rev().copied().collect();
        assert_eq!(texts, ["w", "a", "b", "c", "c"].map(|text| Bound::Text(Some(text))));
        assert_eq!(rendered.sql.matches('?').count(), values.len());
    }

    /// R95: where rows are locked, those that another process holds are passed over. SQLite has one
    /// writer at a time, and the lease in the row keeps a run from others until then.
    #[test]
    fn r095_what_claims_runs_skips_those_that_others_have_locked() {
        let claims = ["run_dequeue_select", "run_dequeue_select_behind", "run_wake_select"];
        for name in claims.into_iter().chain(["run_overdue_select", "run_purge_select"]) {
            for dialect in [Dialect::Postgres, Dialect::Mysql] {
                let text = fill(dialect, raw(name));
                assert!(text.ends_with("FOR UPDATE SKIP LOCKED"), "{name}: {text}");
            }
            let text = fill(Dialect::Sqlite, raw(name));
            assert!(!text.contains("FOR UPDATE"), "{name}: {text}");
        }
        assert!(raw("run_wake_select").contains("wake_at <= :now"), "the end of the lease");
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
