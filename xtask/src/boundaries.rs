//! Who may use whom, checked on manifests and on source lines.
//!
//! Invariants: the rules are the tables in `rules`, nothing is decided here; dependencies are read
//! from `cargo metadata`, so renamed and inherited ones count.
//! Deliberately absent: transitive dependencies. A driver that comes along with an allowed crate is
//! that crate's business.

mod manifest;
mod rules;
mod scan;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::manifest::{Dependency, Package};
use crate::tree::{Tree, Violation};

pub(crate) fn check(tree: &Tree) -> Result<Vec<Violation>> {
    let packages = packages(&tree.root)?;
    let members: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut violations = Vec::new();
    for package in &packages {
        let text = tree.text(&package.manifest).unwrap_or_default();
        violations.extend(manifest::check(package, &members, text));
    }
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        violations.extend(scan::check(file));
    }
    Ok(violations)
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let workspace = text(&metadata, "workspace_root");
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    Ok(packages.iter().map(|package| read_package(package, workspace)).collect())
}

fn read_package(package: &Value, workspace: &str) -> Package {
    let manifest = text(package, "manifest_path");
    let manifest = manifest.strip_prefix(workspace).unwrap_or(manifest);
    let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
    Package {
        name: text(package, "name").to_owned(),
        manifest: manifest.trim_start_matches('/').to_owned(),
        dependencies: dependencies
            .iter()
            .map(|dependency| Dependency {
                name: text(dependency, "name").to_owned(),
                key: dependency["rename"].as_str().map(str::to_owned),
                dev: dependency["kind"] == "dev",
            })
            .collect(),
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}
