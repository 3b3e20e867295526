//! The statements, and all that differs between the databases.
//!
//! Invariants: identifiers arrive checked and are quoted all the same; every value is a parameter;
//! the number of parameters of a statement stays below what every driver takes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::request::{Select, Write};

/// SQLite takes 32,766 parameters, the others twice as many.
const PARAMETERS_MAX: usize = 30_000;
/// Keeps a statement's locks and its text short.
pub(super) const ROWS_MAX: usize = 1000;
/// MariaDB takes packets of 16 MiB unless told otherwise.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Which family of databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
    Mysql,
}

impl Dialect {
    /// An identifier, perhaps with its schema.
    pub(super) fn quoted(self, name: &str) -> String {
        let quote = if self == Self::Mysql { '`' } else { '"' };
        let parts: Vec<_> = name.split('.').map(|part| format!("{quote}{part}{quote}")).collect();
        parts.join(".")
    }

    pub(super) fn list(self, names: &[String]) -> String {
        names.iter().map(|name| self.quoted(name)).collect::<Vec<_>>().join(", ")
    }

    /// The n-th parameter, from 1.
    pub(super) fn mark(self, n: usize) -> String {
        if self == Self::Postgres { format!("${n}") } else { "?".to_owned() }
    }

    /// An insert of so many rows; with the key of an upsert, over what is there.
    pub(super) fn insert(self, write: &Write, rows: usize) -> String {
        let width = write.columns.len();
        let tuple = |row: usize| {
            let marks = (1..=width).map(|column| self.mark(row * width + column));
            format!("({})", marks.collect::<Vec<_>>().join(", "))
        };
        let tuples = (0..rows).map(tuple).collect::<Vec<_>>().join(", ");
        let mut sql = format!(
            "INSERT INTO {} ({}) VALUES {tuples}",
            self.quoted(&write.table),
            self.list(&write.columns)
        );
        if write.partition.is_none() {
            sql.push_str(&self.over(write));
        }
        sql
    }

    /// What an upsert does where the key is there.
    fn over(self, write: &Write) -> String {
        let rest: Vec<_> = write.columns.iter().filter(|c| !write.key.contains(c)).collect();
        if self == Self::Mysql {
            // A row of keys only is set to what it is.
            let set = if rest.is_empty() { write.key.iter().collect() } else { rest };
            let set = set.into_iter().map(|name| self.quoted(name));
            let set: Vec<_> = set.map(|name| format!("{name} = VALUES({name})")).collect();
            return format!(" ON DUPLICATE KEY UPDATE {}", set.join(", "));
        }
        let key = self.list(&write.key);
        let set = rest.into_iter().map(|name| self.quoted(name));
        let set: Vec<_> = set.map(|name| format!("{name} = excluded.{name}")).collect();
        match set.is_empty() {
            true => format!(" ON CONFLICT ({key}) DO NOTHING"),
            false => format!(" ON CONFLICT ({key}) DO UPDATE SET {}", set.join(", ")),
        }
    }

    /// Removes a partition.
    pub(super) fn delete(self, table: &str, partition: &BTreeMap<String, Value>) -> String {
        format!("DELETE FROM {}{}", self.quoted(table), self.filter(partition))
    }

    /// Reads rows, one more than asked for: so one knows that there are more.
    pub(super) fn select(self, select: &Select) -> String {
        let columns = match select.columns.is_empty() {
            true => "*".to_owned(),
            false => self.list(&select.columns),
        };
        let last_first = if select.last_first { " DESC" } else { "" };
        let order: Vec<_> =
            select.key.iter().map(|name| format!("{}{last_first}", self.quoted(name))).collect();
        let order = match order.is_empty() {
            true => String::new(),
            false => format!(" ORDER BY {}", order.join(", ")),
        };
        format!(
            "SELECT {columns} FROM {}{}{order} LIMIT {}",
            self.quoted(&select.table),
            self.both(&select.filter, &select.up_to),
            select.limit + 1
        )
    }

    /// Rows with these values.
    pub(super) fn filter(self, filter: &BTreeMap<String, Value>) -> String {
        self.both(filter, &BTreeMap::new())
    }

    /// Rows with some values, and others that are at most so large; parameters in this order.
    fn both(self, filter: &BTreeMap<String, Value>, up_to: &BTreeMap<String, Value>) -> String {
        let mut n = 0;
        let equal = filter.iter().map(|(name, value)| (name, value, "="));
        let terms: Vec<_> = equal
            .chain(up_to.iter().map(|(name, value)| (name, value, "<=")))
            .map(|(name, value, sign)| {
                let name = self.quoted(name);
                if value.is_null() {
                    return format!("{name} IS NULL");
                }
                n += 1;
                format!("{name} {sign} {}", self.mark(n))
            })
            .collect();
        if terms.is_empty() { String::new() } else { format!(" WHERE {}", terms.join(" AND ")) }
    }

    /// The table of keyed writes. Keys are compared byte by byte: other collations of MySQL take
    /// `a` and `a ` for the same.
    pub(super) fn create_records(self, table: &str) -> String {
        let (key, text) = match self {
            Self::Mysql => ("VARBINARY(255)", "LONGTEXT CHARACTER SET utf8mb4"),
            Self::Sqlite | Self::Postgres => ("VARCHAR(255)", "TEXT"),
        };
        format!(
            "CREATE TABLE IF NOT EXISTS {} (outbound_key {key} NOT NULL PRIMARY KEY, digest \
             VARCHAR(80) NOT NULL, result {text} NOT NULL, created_at BIGINT NOT NULL)",
            self.quoted(table)
        )
    }

    /// Fails where there is no such table.
    pub(super) fn see_records(self, table: &str) -> String {
        format!("SELECT digest FROM {} LIMIT 0", self.quoted(table))
    }

    /// Takes a key, unless it is taken: then no row is written, and whoever holds it is waited for.
    pub(super) fn claim(self, table: &str) -> String {
        let (ignore, over) = match self {
            Self::Mysql => (" IGNORE", ""),
            Self::Sqlite | Self::Postgres => ("", " ON CONFLICT (outbound_key) DO NOTHING"),
        };
        let marks = (1..=3).map(|n| self.mark(n)).collect::<Vec<_>>().join(", ");
        format!(
            "INSERT{ignore} INTO {} (outbound_key, digest, result, created_at) \
             VALUES ({marks}, {}){over}",
            self.quoted(table),
            self.mark(4)
        )
    }

    /// What a key was used for.
    pub(super) fn find_record(self, table: &str) -> String {
        format!(
            "SELECT digest, result FROM {} WHERE outbound_key = {}",
            self.quoted(table),
            self.mark(1)
        )
    }

    /// Keeps the result of a write.
    pub(super) fn finish(self, table: &str) -> String {
        format!(
            "UPDATE {} SET result = {} WHERE outbound_key = {}",
            self.quoted(table),
            self.mark(1),
            self.mark(2)
        )
    }
}

/// The unique indexes of a table and their columns, for MySQL: its upsert asks no key, and without
/// an index it would write every row twice.
pub(super) const MYSQL_INDEXES: &str = "SELECT index_name AS i, column_name AS c \
     FROM information_schema.statistics WHERE non_unique = 0 AND table_name = ? \
     AND table_schema = COALESCE(?, DATABASE())";

/// Fails where MySQL has no such table.
pub(super) fn seen(table: &str) -> String {
    format!("SELECT 1 FROM {} LIMIT 0", Dialect::Mysql.quoted(table))
}

/// Cuts rows into statements.
pub(super) fn batches(rows: &[Vec<Value>]) -> Vec<&[Vec<Value>]> {
    let mut batches = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    for (at, row) in rows.iter().enumerate() {
        let size: usize = row.iter().map(size).sum();
        let full = (at - begin + 1) * row.len() > PARAMETERS_MAX || at - begin >= ROWS_MAX;
        if at > begin && (full || bytes + size > BYTES_MAX) {
            batches.push(&rows[begin..at]);
            (begin, bytes) = (at, 0);
        }
        bytes += size;
    }
    if begin < rows.len() {
        batches.push(&rows[begin..]);
    }
    batches
}

/// About how many bytes a value is.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 16,
        Value::String(text) => text.len() + 16,
        Value::Array(_) | Value::Object(_) => value.to_string().len() + 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn write(partition: Option<BTreeMap<String, Value>>, columns: &[&str]) -> Write {
        let columns = columns.iter().map(ToString::to_string).collect();
        Write { table: "w.t".into(), key: vec!["k".into()], columns, rows: vec![], partition }
    }

    #[test]
    fn each_database_has_its_spelling() {
        let two = write(None, &["k", "v"]);
        assert_eq!(
            Dialect::Postgres.insert(&two, 2),
            "INSERT INTO \"w\".\"t\" (\"k\", \"v\") VALUES ($1, $2), ($3, $4) \
             ON CONFLICT (\"k\") DO UPDATE SET \"v\" = excluded.\"v\""
        );
        assert_eq!(
            Dialect::Mysql.insert(&two, 1),
            "INSERT INTO `w`.`t` (`k`, `v`) VALUES (?, ?) \
             ON DUPLICATE KEY UPDATE `v` = VALUES(`v`)"
        );
        let one = write(None, &["k"]);
        assert!(Dialect::Sqlite.insert(&one, 1).ends_with("ON CONFLICT (\"k\") DO NOTHING"));
        assert!(Dialect::Mysql.insert(&one, 1).ends_with("UPDATE `k` = VALUES(`k`)"));
        let partition = BTreeMap::from([("p".to_owned(), json!(1)), ("q".to_owned(), json!("x"))]);
        assert!(!Dialect::Sqlite.insert(&write(Some(partition.clone()), &["k"]), 1).contains("ON"));
        assert_eq!(
            Dialect::Postgres.delete("t", &partition),
            "DELETE FROM \"t\" WHERE \"p\" = $1 AND \"q\" = $2"
        );
        let select = Select {
            table: "t".into(),
            columns: vec![],
            filter: BTreeMap::from([("a".to_owned(), Value::Null), ("b".to_owned(), json!(1))]),
            up_to: BTreeMap::from([("c".to_owned(), json!(2))]),
            key: vec!["k".into()],
            last_first: true,
            limit: 9,
        };
        assert_eq!(
            Dialect::Postgres.select(&select),
            "SELECT * FROM \"t\" WHERE \"a\" IS NULL AND \"b\" = $1 AND \"c\" <= $2 \
             ORDER BY \"k\" DESC LIMIT 10"
        );
    }

    #[test]
    fn a_statement_has_a_bounded_number_of_rows_parameters_and_bytes() {
        let rows = |n: usize, width: usize, text: &str| vec![vec![json!(text); width]; n];
        let sizes = |rows: &[Vec<Value>]| batches(rows).iter().map(|b| b.len()).collect::<Vec<_>>();
        assert_eq!(sizes(&rows(2500, 3, "")), [1000, 1000, 500]);
        assert_eq!(sizes(&rows(250, 300, "")), [100, 100, 50]);
        assert_eq!(sizes(&rows(3, 1, &"x".repeat(3 << 20))), [1, 1, 1]);
        assert_eq!(sizes(&rows(1, 1, &"x".repeat(9 << 20))), [1]);
        assert_eq!(sizes(&[]), [0; 0]);
    }
}
