//! Source lines against the tables: a library named away from its home, and SQL where nobody
//! speaks it.
//!
//! Invariants: one file at a time, one violation per line and rule at most.
//! Deliberately absent: the testkit, which may do what it must to prove the rest.

use super::rules::{LAYERS, PINS, TESTKIT};
use crate::source::{Line, has_word, is_word, lines};
use crate::tree::{File, Violation};

/// How a statement begins. `DELETE` alone would also be an HTTP method.
const SQL: &[&str] = &["SELECT ", "INSERT INTO ", "UPDATE ", "DELETE FROM ", "CREATE TABLE "];

/// The crates that speak SQL: to our own tables, and to other people's.
const SQL_HOMES: &[&str] = &["steadfast-store", "steadfast-connectors"];

pub(crate) fn check(file: &File) -> Vec<Violation> {
    let package = file
        .crate_source()
        .and_then(|folder| LAYERS.iter().find(|layer| layer.folder == folder))
        .map(|layer| layer.package);
    let Some(package) = package.filter(|package| *package != TESTKIT) else {
        return Vec::new();
    };
    let mut violations = Vec::new();
    for line in lines(&file.text).iter().filter(|line| line.is_code()) {
        if let Some((library, why)) = strayed(package, line) {
            let what = format!("{package} may not use {library}: {why}");
            violations.push(Violation::new(&file.path, line.number, "pin", what));
        }
        if !SQL_HOMES.contains(&package) && speaks_sql(line.text) {
            violations.push(Violation::new(
                &file.path,
                line.number,
                "sql",
                "SQL outside store and connectors",
            ));
        }
    }
    violations
}

/// The library this line uses although the package may not.
fn strayed(package: &str, line: &Line<'_>) -> Option<(String, &'static str)> {
    PINS.iter()
        .filter(|pin| !pin.allows(package) && (pin.binds_tests || !line.test))
        .flat_map(|pin| pin.libraries.iter().map(move |library| (library, pin.why)))
        .find(|(library, _)| names_library(line.text, library))
        .map(|(library, why)| ((*library).to_owned(), why))
}

/// Whether the line has `library::…` or `use library`, as a crate and not as somebody's module.
fn names_library(text: &str, library: &str) -> bool {
    let (stem, open_ended) =
        library.strip_suffix('*').map_or((library, false), |stem| (stem, true));
    let stem = stem.replace('-', "_");
    if has_word(text, &format!("use {stem}")) || has_word(text, &format!("extern crate {stem}")) {
        return true;
    }
    text.match_indices(&stem).any(|(at, _)| {
        let before = &text[..at];
        // `::rusqlite::` is the crate, `crate::rusqlite::` is a module.
        let is_module = before.strip_suffix("::").is_some_and(|path| path.ends_with(is_word));
        let mut after = &text[at + stem.len()..];
        if open_ended {
            after = after.trim_start_matches(is_word);
        }
        !before.ends_with(is_word) && !is_module && after.starts_with("::")
    })
}

/// Whether a string on this line starts with a statement. A line that itself starts with one is
/// inside a longer string: it could not be Rust.
fn speaks_sql(text: &str) -> bool {
    SQL.iter().any(|start| {
        text.trim_start().starts_with(start)
            || text
                .match_indices(start)
                .any(|(at, _)| text[..at].trim_end_matches(' ').ends_with('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&File::new(path, text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_library_away_from_home_is_reported() {
        assert_eq!(
            found("crates/core/src/run.rs", "//! x\nuse rusqlite::Connection;\n"),
            ["crates/core/src/run.rs:2: pin: steadfast-core may not use rusqlite: \
              database drivers stay in store and connectors"]
        );
        for text in [
            "let c = tokio_postgres::connect();",
            "use temporalio_sdk::Worker;",
            "fn a(x: ::reqwest::Client) {}",
            "use axum as web;",
        ] {
            assert_eq!(found("crates/steadfast/src/a.rs", text).len(), 1, "{text}");
        }
    }

    #[test]
    fn at_home_in_comments_and_as_a_module_it_is_not() {
        assert!(found("crates/store/src/sqlite.rs", "use rusqlite::Connection;\n").is_empty());
        for text in [
            "// like rusqlite::Connection",
            "use crate::rusqlite::Gate;",
            "let my_rusqlite::X = 1;",
            "use claptrap::X;",
        ] {
            assert!(found("crates/core/src/run.rs", text).is_empty(), "{text}");
        }
        assert!(found("crates/testkit/src/a.rs", "use rusqlite::Connection;").is_empty());
        assert!(found("examples/orders/src/main.rs", "use clap::Parser;").is_empty());
    }

    #[test]
    fn tokio_in_the_engine_is_for_tests() {
        let test = "#[cfg(test)]\nmod tests {\n    use tokio::time;\n}\n";
        assert!(found("crates/runtime-native/src/a.rs", test).is_empty());
        assert_eq!(found("crates/runtime-native/src/a.rs", "use tokio::time;").len(), 1);
        assert!(found("crates/store/src/a.rs", "use tokio::time;").is_empty());
    }

    #[test]
    fn sql_is_spoken_in_store_and_connectors_only() {
        for text in [
            "let q = \"SELECT 1\";",
            "let q = r#\"  UPDATE run SET x = 1\"#;",
            "let q = \"\\\n    DELETE FROM run\";",
        ] {
            assert_eq!(found("crates/cli/src/a.rs", text).len(), 1, "{text}");
            assert_eq!(found("crates/policy-cedar/src/a.rs", text).len(), 1, "{text}");
            assert!(found("crates/store/src/a.rs", text).is_empty(), "{text}");
            assert!(found("crates/connectors/src/sql/a.rs", text).is_empty(), "{text}");
            assert!(found("crates/testkit/src/a.rs", text).is_empty(), "{text}");
        }
        assert!(
            found("crates/cli/src/a.rs", "get(\"DELETE /runs\", \"please SELECT one\")").is_empty()
        );
    }
}
