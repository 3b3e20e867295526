//! The file of a store: whether its path still leads to the file that was opened.
//!
//! Invariants: a file that was removed or replaced is gone for good for this store, even if it
//! comes back: what is committed to it reaches no other process, and goes with the last connection.
//! Deliberately absent: looking before every operation. The watching thread looks, and whoever has
//! met an error.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::Error;

pub(super) struct StoreFile {
    path: PathBuf,
    /// None where files have no identity, or where the path is no plain one.
    opened: Option<Identity>,
    gone: OnceLock<String>,
}

/// Which file it is: its device and its number there.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> std::io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Elsewhere an open file can be neither removed nor replaced, or only its absence is noticed.
#[cfg(not(unix))]
fn identity(path: &Path) -> std::io::Result<Identity> {
    std::fs::metadata(path).map(|_| (0, 0))
}

impl StoreFile {
    /// The file that was just opened.
    pub(super) fn opened(path: &Path) -> Self {
        // The process may change its directory later.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let opened = identity(&path).ok();
        Self { path, opened, gone: OnceLock::new() }
    }

    /// Looks whether it is still there; false from when it is not, for good.
    pub(super) fn is_there(&self) -> bool {
        let (Some(opened), None) = (self.opened, self.gone.get()) else {
            return self.gone.get().is_none();
        };
        let what = match identity(&self.path) {
            Ok(now) if now == opened => return true,
            Ok(_) => "was replaced by another file",
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => "was removed",
            // That it cannot be looked at now says nothing.
            Err(_) => return true,
        };
        let text = format!("the SQLite file {} {what} while it was open", self.path.display());
        tracing::error!("{text}");
        // Another thread may have seen it, too.
        let _ = self.gone.set(text);
        false
    }

    /// An error from when it was found to be gone.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.gone.get().map_or(Ok(()), |what| Err(Error::Gone(what.clone())))
    }

    /// Why an operation failed: for what it says, unless the file is gone.
    pub(super) fn cause(&self, error: Error) -> Error {
        match self.is_there() {
            true => error,
            false => self.check().err().unwrap_or(error),
        }
    }
}
