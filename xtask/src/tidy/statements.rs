//! Named SQL: every name once, every name used.
//!
//! Invariants: a statement begins with `-- name: x`; a dialect's own version of it is a name too,
//! told apart by what follows (`-- name: x [postgres]`).
//! Deliberately absent: the SQL itself, which the conformance suite runs on every database.

use std::collections::BTreeMap;

use crate::source::{has_word, lines};
use crate::tree::{File, Violation};

const SOURCES: &str = "crates/store/src/";

pub(crate) fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut first: BTreeMap<&str, String> = BTreeMap::new();
    for file in files.iter().filter(|file| is_statements(file)) {
        for (index, line) in file.text.lines().enumerate() {
            let Some(name) = line.strip_prefix("-- name:").map(str::trim) else {
                continue;
            };
            let mut report = |what| {
                violations.push(Violation::new(&file.path, index + 1, "statement", what));
            };
            if let Some(place) = first.get(name) {
                report(format!("{name} is already at {place}"));
                continue;
            }
            first.insert(name, format!("{}:{}", file.path, index + 1));
            let word = name.split_whitespace().next().unwrap_or_default();
            if !is_schema(file) && !is_used(files, word) {
                report(format!("{word} is never used"));
            }
        }
    }
    violations
}

fn is_statements(file: &File) -> bool {
    file.path.starts_with(SOURCES) && file.path.ends_with(".sql")
}

/// The schema's statements are run in their order, not by name.
fn is_schema(file: &File) -> bool {
    file.path.ends_with("/schema.sql") || file.path.contains("/sql/schema/")
}

/// As `"x"` or as an identifier, or as a part of another statement; a comment does not count.
fn is_used(files: &[File], name: &str) -> bool {
    let part = format!("{{{{the:{name}}}}}");
    let names = |file: &File| match is_statements(file) {
        true => file.text.contains(&part),
        false => lines(&file.text).iter().any(|l| l.is_code() && has_word(l.text, name)),
    };
    let is_source = |file: &&File| is_statements(file) || file.is_rust();
    files.iter().filter(|file| file.path.starts_with(SOURCES)).filter(is_source).any(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sql: &str, rust: &str) -> Vec<String> {
        let files = [
            File::new("crates/store/src/sql/run.sql", sql),
            File::new("crates/store/src/run.rs", rust),
        ];
        check(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_stands_once() {
        assert_eq!(
            found("-- name: claim\nx;\n-- name: claim\ny;\n", "run(\"claim\")"),
            ["crates/store/src/sql/run.sql:3: statement: claim is already at \
              crates/store/src/sql/run.sql:1"]
        );
        assert!(found("-- name: claim\n-- name: claim [mysql]\n", "sql.claim").is_empty());
    }

    #[test]
    fn a_name_is_used() {
        for rust in ["", "// claim\n", "claim_all()", "\"claims\""] {
            assert_eq!(
                found("-- name: claim\n", rust),
                ["crates/store/src/sql/run.sql:1: statement: claim is never used"]
            );
        }
        assert!(found("-- name: claim\n", "run(\"claim\")").is_empty());
        let part = "-- name: claim\n-- name: all\n{{the:claim}}\n";
        assert!(found(part, "run(\"all\")").is_empty());
    }
}
