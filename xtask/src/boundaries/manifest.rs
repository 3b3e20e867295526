//! A package's declared dependencies against the tables.
//!
//! Invariants: each violation names the line that declares the dependency, or line 1 when the
//! manifest says it in a way this reader does not know.
//! Deliberately absent: versions and features; those are cargo-deny's and the reviewer's.

use super::rules::{self, LAYERS, PINS};
use crate::tree::Violation;

/// What a manifest declares.
pub(crate) struct Package {
    pub(crate) name: String,
    /// Relative to the workspace.
    pub(crate) manifest: String,
    pub(crate) dependencies: Vec<Dependency>,
}

pub(crate) struct Dependency {
    pub(crate) name: String,
    /// The name it is declared under, when that is another.
    pub(crate) key: Option<String>,
    pub(crate) dev: bool,
}

/// `members` are the packages of the workspace, `text` is the package's manifest.
pub(crate) fn check(package: &Package, members: &[&str], text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let layer = LAYERS.iter().find(|layer| layer.package == package.name);
    if package.manifest.starts_with("crates/")
        && layer
            .is_none_or(|layer| package.manifest != format!("crates/{}/Cargo.toml", layer.folder))
    {
        let what = format!("{} has no place in the table of crates", package.name);
        violations.push(Violation::new(&package.manifest, 1, "layer", what));
    }
    for dependency in &package.dependencies {
        let line = declared_at(text, dependency);
        let mut report = |rule, what| {
            violations.push(Violation::new(&package.manifest, line, rule, what));
        };
        let (user, used, dev) = (&package.name, &dependency.name, dependency.dev);
        if layer.is_some()
            && members.contains(&used.as_str())
            && user != used
            && !rules::may_use(user, used, dev)
        {
            report("layer", format!("{user} may not use {used}"));
        }
        for pin in PINS.iter().filter(|pin| pin.names(used)) {
            if !pin.allows(user) && (pin.binds_tests || !dev) {
                report("pin", format!("{user} may not use {used}: {}", pin.why));
            }
        }
    }
    violations
}

/// The line that declares a dependency: a key in a dependency table, or a table of its own.
fn declared_at(text: &str, dependency: &Dependency) -> usize {
    let key = dependency.key.as_deref().unwrap_or(&dependency.name);
    let table = if dependency.dev { "dev-dependencies" } else { "dependencies" };
    let mut in_table = false;
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            // `target.'cfg(unix)'.dependencies` is a dependency table as well.
            in_table = header.rsplit('.').next() == Some(table)
                || (!dependency.dev && header == "build-dependencies");
            if header.ends_with(&format!("{table}.{key}")) {
                return index + 1;
            }
        } else if in_table
            && let Some(rest) = line.trim_start_matches('"').strip_prefix(key)
            && rest.starts_with(['.', ' ', '=', '"'])
        {
            return index + 1;
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBERS: &[&str] = &["steadfast-core", "steadfast-store", "steadfast-testkit", "orders"];

    fn found(name: &str, folder: &str, text: &str, used: &str, dev: bool) -> Vec<String> {
        let package = Package {
            name: name.to_owned(),
            manifest: format!("{folder}/Cargo.toml"),
            dependencies: vec![Dependency { name: used.to_owned(), key: None, dev }],
        };
        check(&package, MEMBERS, text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_arrow_against_the_layers_is_reported_with_its_line() {
        let text = "[package]\nname = \"steadfast-core\"\n\n[dependencies]\nserde = \"1\"\n\
                    steadfast-store.workspace = true\n";
        assert_eq!(
            found("steadfast-core", "crates/core", text, "steadfast-store", false),
            ["crates/core/Cargo.toml:6: layer: steadfast-core may not use steadfast-store"]
        );
        assert!(found("steadfast-store", "crates/store", "", "steadfast-core", false).is_empty());
    }

    #[test]
    fn the_testkit_is_for_tests() {
        let text = "[dev-dependencies]\nsteadfast-testkit.workspace = true\n";
        let core = |dev| found("steadfast-core", "crates/core", text, "steadfast-testkit", dev);
        assert!(core(true).is_empty());
        assert_eq!(core(false).len(), 1);
    }

    #[test]
    fn nothing_under_crates_may_use_an_example() {
        assert_eq!(found("steadfast-store", "crates/store", "", "orders", false).len(), 1);
    }

    #[test]
    fn a_crate_outside_the_table_is_reported() {
        assert_eq!(found("steadfast-extra", "crates/extra", "", "serde", false).len(), 1);
        assert!(found("orders", "examples/orders", "", "serde", false).is_empty());
    }

    #[test]
    fn a_library_away_from_home_is_reported() {
        let text = "[dependencies.rusqlite]\nversion = \"1\"\n";
        assert_eq!(
            found("steadfast-core", "crates/core", text, "rusqlite", false),
            ["crates/core/Cargo.toml:1: pin: steadfast-core may not use rusqlite: \
              database drivers stay in store and connectors"]
        );
        assert!(found("steadfast-store", "crates/store", text, "rusqlite", false).is_empty());
        assert!(found("orders", "examples/orders", text, "clap", false).is_empty());
        assert_eq!(found("orders", "examples/orders", text, "dbos", false).len(), 1);
    }

    #[test]
    fn tokio_in_core_is_for_tests() {
        assert_eq!(found("steadfast-core", "crates/core", "", "tokio", false).len(), 1);
        assert!(found("steadfast-core", "crates/core", "", "tokio", true).is_empty());
        assert!(found("steadfast-store", "crates/store", "", "tokio", false).is_empty());
    }
}
