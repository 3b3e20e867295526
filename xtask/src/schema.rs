//! The JSON schema of CloudEvents 1.0, as those who make the standard publish it: inside the
//! package of their own validator.
//!
//! Invariants: it is fetched once and kept with what is built, so that later runs need no network;
//! the version is fixed; nobody else's text is kept in the repository. Who names a schema in the
//! variable has it used instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::servers::{find_program, install};

/// Where the tests look for it.
pub(crate) const VARIABLE: &str = "STEADFAST_TEST_CLOUDEVENTS_SCHEMA";
const PACKAGE: &str = "cloudevents@10.0.0";
/// The validator, made from the schema, which it holds as a constant.
const VALIDATOR: &str = "package/dist/schema/v1.js";
const TITLE: &str = "CloudEvents Specification JSON Schema";

/// The variable and the file, unless somebody has named another.
pub(crate) fn ensure() -> Result<Option<(&'static str, PathBuf)>> {
    if std::env::var_os(VARIABLE).is_some_and(|path| !path.is_empty()) {
        return Ok(None);
    }
    let file = folder()?.join(format!("{}.schema.json", PACKAGE.replace('@', "-")));
    if !file.is_file() {
        fetch(&file).with_context(|| {
            format!("fetching the schema of CloudEvents; {VARIABLE} may name one instead")
        })?;
    }
    Ok(Some((VARIABLE, file)))
}

/// Beside what is built from us: gone when that is cleaned.
fn folder() -> Result<PathBuf> {
    target_of(&std::env::current_exe()?).context("this program is not where cargo puts programs")
}

/// The target directory of a program: above its profile, or above `deps` of its profile. Cargo
/// marks only a directory that it made itself, so there may be no mark to look for.
fn target_of(program: &Path) -> Option<PathBuf> {
    let profile = program.parent()?;
    let profile = if profile.ends_with("deps") { profile.parent()? } else { profile };
    profile.parent().map(Path::to_owned)
}

fn fetch(file: &Path) -> Result<()> {
    if find_program("npm").is_none() {
        install::packages(&["npm"])?;
    }
    let folder = tempfile::tempdir()?;
    let npm = ["pack", "--silent", PACKAGE];
    run(Command::new("npm").args(npm).current_dir(folder.path()))?;
    let packed = fs::read_dir(folder.path())?.next().context("npm packed nothing")??;
    run(Command::new("tar").arg("-xzf").arg(packed.path()).arg(VALIDATOR).current_dir(&folder))?;
    let schema = schema_in(&fs::read_to_string(folder.path().join(VALIDATOR))?)?;
    // Another run may be doing the same: what is at the name is always whole.
    let parent = file.parent().context("a file is in a folder")?;
    let whole = tempfile::NamedTempFile::new_in(parent)?;
    fs::write(whole.path(), schema.to_string())?;
    whole.persist(file)?;
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The constant that is the schema.
fn schema_in(validator: &str) -> Result<Value> {
    let constants = validator.lines().filter_map(|line| {
        let (_, value) = line.strip_prefix("const schema")?.split_once(" = ")?;
        serde_json::from_str::<Value>(value.trim_end_matches(';')).ok()
    });
    let mut found = constants.filter(|schema| schema["description"] == TITLE);
    found.next().with_context(|| format!("{VALIDATOR} of {PACKAGE} has no schema"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_directory_is_found_without_a_mark_in_it() {
        for program in ["/b/debug/xtask", "/b/debug/deps/xtask-0a1b"] {
            assert_eq!(target_of(Path::new(program)).unwrap(), Path::new("/b"));
        }
    }

    #[test]
    fn the_schema_is_found_among_the_constants() {
        let other = "\"use strict\";\nconst schema1 = {\"type\":\"string\"};\n";
        let text = format!("{other}const schema22 = {{\"description\":\"{TITLE}\"}};\nf();\n");
        assert_eq!(schema_in(&text).unwrap()["description"], TITLE);
        assert!(schema_in(other).is_err());
    }
}
