//! The checked tree as values: paths with their text, and the violations found in them.
//!
//! Invariants: paths are relative to the root with `/` between the parts, and sorted, so that a
//! report reads the same on every machine.
//! Deliberately absent: rules; those are pure functions in `boundaries` and `tidy`.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Kinds of text a rule may look at; anything else (images, databases) is not read.
const TEXT: &[&str] =
    &["rs", "md", "toml", "sql", "sh", "yml", "yaml", "ts", "js", "svelte", "html", "css"];

/// Folders that hold other people's or generated text.
const SKIPPED_FOLDERS: &[&str] = &["target", "node_modules", "dist"];

/// One broken rule at one place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    what: String,
}

impl Violation {
    pub(crate) fn new(
        path: impl Into<String>,
        line: usize,
        rule: &'static str,
        what: impl Into<String>,
    ) -> Self {
        Self { path: path.into(), line, rule, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, what } = self;
        write!(f, "{path}:{line}: {rule}: {what}")
    }
}

/// One text file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    #[cfg(test)]
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Under `crates/<crate>/src`: that crate's folder name.
    pub(crate) fn crate_source(&self) -> Option<&str> {
        let (folder, rest) = self.path.strip_prefix("crates/")?.split_once('/')?;
        rest.starts_with("src/").then_some(folder)
    }
}

/// Every text file of a workspace.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<File>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        if !root.join("Cargo.toml").is_file() {
            bail!("{} is not a workspace: no Cargo.toml", root.display());
        }
        let mut files = Vec::new();
        collect(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { root: root.to_owned(), files })
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<File>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = format!("{prefix}{name}");
        // `file_type` does not follow symbolic links: a link can neither loop nor leave the tree.
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if !name.starts_with('.') && !SKIPPED_FOLDERS.contains(&name.as_str()) {
                collect(&entry.path(), &format!("{path}/"), files)?;
            }
        } else if kind.is_file() && is_text(&name) {
            let text = fs::read_to_string(entry.path())
                .with_context(|| format!("reading {}", entry.path().display()))?;
            files.push(File { path, text });
        }
    }
    Ok(())
}

fn is_text(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, extension)| TEXT.contains(&extension))
}

/// The nearest folder upwards whose `Cargo.toml` declares a workspace.
pub(crate) fn workspace_root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("finding the current folder")?;
    for folder in here.ancestors() {
        if let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml"))
            && manifest.lines().any(|line| line.trim() == "[workspace]")
        {
            return Ok(folder.to_owned());
        }
    }
    bail!("no workspace above {}", here.display())
}
