//! The spool: pages of rows on their way from one system to another, in files named after their
//! content.
//!
//! Invariants: a file is whole or not there, and what is read is checked against its name; so a
//! file that was lost or spoilt is fetched again, and never loaded. A name begins with whose page
//! it is, so that nobody removes another one's. Each line is one row, a JSON list.
//! Deliberately absent: durability. The system that the rows came from still has them.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use steadfast_core::error::{Error, ErrorClass, Result};
use steadfast_core::json;

/// The code of a page that is not here.
pub const GONE: &str = "SF-0726";

/// A directory of pages.
#[derive(Debug, Clone)]
pub struct Spool(PathBuf);

impl Spool {
    /// In this directory, which is made when it is needed.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// Keeps a page for its owner, such as a command's trace; gives its name.
    pub fn put(&self, owner: &str, lines: &[u8]) -> Result<String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = named(owner, lines);
        let path = self.path(&name);
        let write = || {
            self.make()?;
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let draft = self.0.join(format!("{name}-{}-{number}", std::process::id()));
            fs::File::create(&draft)?.write_all(lines)?;
            fs::rename(&draft, &path)
        };
        let failed = |error: std::io::Error| {
            let text = format!("the spool {} cannot be written to: {error}", self.0.display());
            Error::new(ErrorClass::TransientConnectorError, "SF-0727", text)
        };
        write().map(|()| name).map_err(failed)
    }

    /// A page's lines.
    pub fn get(&self, name: &str) -> Result<Vec<u8>> {
        let gone = |why: &str| {
            let text = format!("page {name} is not in the spool of this machine: {why}");
            Error::new(ErrorClass::ValidationError, GONE, text)
        };
        let Some((owner, _)) = name.rsplit_once('-').filter(|_| is_ours(name)) else {
            return Err(gone("that is no name of a page"));
        };
        let lines = fs::read(self.path(name)).map_err(|error| gone(&error.to_string()))?;
        match named_as(owner, &lines) == name {
            true => Ok(lines),
            false => Err(gone("its content is not what it was")),
        }
    }

    /// Removes pages that nobody needs any more. One that is not there is no matter.
    pub fn remove<'a>(&self, names: impl IntoIterator<Item = &'a String>) {
        for name in names {
            let _ = fs::remove_file(self.path(name));
        }
    }

    /// Removes what an earlier process left behind.
    pub fn sweep(&self, older_than: Duration) {
        let Ok(files) = fs::read_dir(&self.0) else { return };
        let limit = SystemTime::now() - older_than;
        for file in files.flatten() {
            let old = file.metadata().and_then(|m| m.modified()).is_ok_and(|at| at < limit);
            // Whatever else is in the directory is somebody else's.
            if old && file.file_name().to_str().is_some_and(is_ours) {
                let _ = fs::remove_file(file.path());
            }
        }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Sales are for nobody else's eyes.
    fn make(&self) -> std::io::Result<()> {
        let mut maker = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut maker, 0o700);
        maker.recursive(true).create(&self.0)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// A page's name: whose it is, and the digest of its content.
fn named(owner: &str, lines: &[u8]) -> String {
    named_as(&format!("page-{}", json::fingerprint(owner)), lines)
}

fn named_as(owner: &str, lines: &[u8]) -> String {
    let digest = json::digest(lines);
    format!("{owner}-{}", digest.rsplit(':').next().unwrap_or_default())
}

/// Whether a file's name is one of a page, or of the draft of one.
fn is_ours(name: &str) -> bool {
    let rest = name.strip_prefix("page-");
    rest.is_some_and(|rest| {
        rest.len() >= 97 && rest.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_what_it_was_or_gone() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::at(dir.path().join("made/when/needed"));
        let name = spool.put("mine", b"[1]\n[2]\n").unwrap();
        assert_eq!(spool.get(&name).unwrap(), b"[1]\n[2]\n");
        fs::write(spool.path(&name), b"[1]\n").unwrap();
        assert_eq!(spool.get(&name).unwrap_err().code(), GONE);
        assert_eq!(spool.put("mine", b"[1]\n[2]\n").unwrap(), name, "it is written again");
        assert!(spool.get(&name).is_ok());
        assert_ne!(spool.put("yours", b"[1]\n[2]\n").unwrap(), name);
        spool.remove([&name]);
        for other in [name.as_str(), "", "../etc/passwd", "a/b"] {
            assert_eq!(spool.get(other).unwrap_err().code(), GONE, "{other}");
        }
    }

    #[test]
    fn what_was_left_behind_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::at(dir.path());
        let name = spool.put("mine", b"[1]\n").unwrap();
        let other = dir.path().join("steadfast.db");
        fs::write(&other, "a file that happens to be here").unwrap();
        spool.sweep(Duration::from_secs(3600));
        assert!(spool.get(&name).is_ok());
        spool.sweep(Duration::ZERO);
        assert!(spool.get(&name).is_err());
        assert!(other.exists());
    }
}
