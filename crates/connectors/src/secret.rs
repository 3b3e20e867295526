//! Secrets by reference: where one is, never what it is.
//!
//! Invariants: a secret is read when it is needed and kept nowhere, so a new one is used as soon as
//! it is there; no message and no debug output shows it.

use steadfast_core::error::{Error, Result};

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Secret {
    /// In a variable of the environment: `env:NAME`.
    Env(String),
    /// In a file, whose last line break does not count: `file:PATH`.
    File(String),
}

impl Secret {
    /// Reads a reference: `env:NAME` or `file:PATH`.
    pub fn parse(reference: &str) -> Result<Self> {
        match reference.split_once(':') {
            Some(("env", name)) if !name.is_empty() => Ok(Self::Env(name.to_owned())),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.to_owned())),
            // Whoever gave the secret itself must not find it in a log.
            _ => Err(wrong("a secret is given by reference: env:NAME or file:PATH".to_owned())),
        }
    }

    /// The secret, as it is now.
    pub fn read(&self) -> Result<String> {
        let found = match self {
            Self::Env(name) => std::env::var(name)
                .map_err(|_| wrong(format!("the environment has no variable {name}")))?,
            Self::File(path) => std::fs::read_to_string(path)
                .map_err(|error| wrong(format!("cannot read the secret in {path}: {error}")))?,
        };
        let found = found.trim_end_matches(['\n', '\r']).to_owned();
        match found.is_empty() {
            true => Err(wrong(format!("the secret at {self} is empty"))),
            false => Ok(found),
        }
    }
}

impl std::fmt::Display for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{path}"),
        }
    }
}

fn wrong(text: String) -> Error {
    Error::invalid("SF-0904", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_where_it_is_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let reference = format!("file:{}", path.display());
        let secret = Secret::parse(&reference).unwrap();
        assert_eq!(secret.read().unwrap_err().code(), "SF-0904");
        std::fs::write(&path, "hunter2\n").unwrap();
        assert_eq!(secret.read().unwrap(), "hunter2");
        assert_eq!(secret.to_string(), reference);
        std::fs::write(&path, "\n").unwrap();
        assert!(secret.read().unwrap_err().message().contains("is empty"));
        for bad in ["hunter2", "env:", "vault:hunter2"] {
            let refused = Secret::parse(bad).unwrap_err();
            assert!(refused.code() == "SF-0904" && !refused.message().contains("hunter2"));
        }
        let missing = Secret::Env("STEADFAST_NO_SUCH_VARIABLE".to_owned());
        assert!(missing.read().unwrap_err().message().contains("STEADFAST_NO_SUCH_VARIABLE"));
    }
}
