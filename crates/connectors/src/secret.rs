//! Secrets by reference: settings say where a secret is, never what it is.
//!
//! Invariants: a reference is `env:NAME` or `file:/path` and anything else is refused without being
//! shown; a secret is read when it is needed, so that a rotated file needs no restart; what was
//! read never appears in `Debug`, and [`Secret::hide`] keeps it out of texts that others wrote.
//! Deliberately absent: vaults. They put secrets into files, and files are read here.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use steadfast_core::error::{Error, ErrorClass, Result};

/// Largest secret: a long token or a certificate chain, not a file named by mistake.
const SECRET_BYTES: u64 = 64 * 1024;
/// Shorter ones are not searched for in texts: they would be found in every other word.
const HIDE_BYTES: usize = 6;
/// What stands in the place of a secret.
const HIDDEN: &str = "[secret]";

/// Where a secret is: `env:NAME` or `file:/path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretRef(Place);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Env(String),
    File(PathBuf),
}

impl SecretRef {
    /// Whether a text claims to be a reference, right or wrong.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("env:") || text.starts_with("file:")
    }

    /// Reads a reference; the text is not repeated in the error, since it may be the secret.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(name) = text.strip_prefix("env:") {
            let whole = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if !whole || name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
                return Err(refused("what follows env: is no name of a variable"));
            }
            return Ok(Self(Place::Env(name.to_owned())));
        }
        match text.strip_prefix("file:") {
            Some(path) if path.starts_with('/') => Ok(Self(Place::File(path.into()))),
            Some(_) => Err(refused("what follows file: is no absolute path")),
            None => Err(refused("looks like a secret; use env: or file:")),
        }
    }

    /// Reads the secret as it is now, without the line's end that editors leave behind.
    pub fn read(&self) -> Result<Secret> {
        let text = match &self.0 {
            Place::Env(name) => std::env::var(name).map_err(|e| self.missing(e))?,
            Place::File(path) => {
                let size = std::fs::metadata(path).map_err(|e| self.missing(e))?.len();
                if size > SECRET_BYTES {
                    return Err(self.missing(format!("is {size} bytes long")));
                }
                std::fs::read_to_string(path).map_err(|e| self.missing(e))?
            }
        };
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(self.missing("is empty")),
            secret => Ok(Secret(secret.to_owned())),
        }
    }

    /// Another attempt would find the same, so it is not made.
    fn missing(&self, why: impl fmt::Display) -> Error {
        let text = format!("the secret {self} cannot be read: {why}");
        Error::new(ErrorClass::PermanentConnectorError, "SF-0716", text)
    }
}

fn refused(why: &str) -> Error {
    Error::invalid("SF-0716", format!("the secret_ref is refused: {why}"))
}

impl fmt::Display for SecretRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Env(name) => write!(f, "env:{name}"),
            Place::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl TryFrom<String> for SecretRef {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<SecretRef> for String {
    fn from(place: SecretRef) -> Self {
        place.to_string()
    }
}

/// A secret that was read, for as long as it is used.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// The secret itself. Whoever calls this keeps it out of everything that is kept.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// A text without the secret, for what the other side says about it.
    pub fn hide<'a>(&self, text: Cow<'a, str>) -> Cow<'a, str> {
        match self.0.len() >= HIDE_BYTES && text.contains(&self.0) {
            true => Cow::Owned(text.replace(&self.0, HIDDEN)),
            false => text,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X7
    #[test]
    fn x7_a_literal_secret_is_refused_and_not_repeated() {
        for text in
            ["s3cr3t-token", "Bearer s3cr3t", "env:", "env:9A", "env:a-s3cr3t", "file:s3cr3t"]
        {
            let error = SecretRef::parse(text).unwrap_err();
            assert_eq!(error.code(), "SF-0716");
            assert!(!error.to_string().contains("s3cr3t"), "{error}");
            let read = serde_json::from_value::<SecretRef>(text.into()).unwrap_err();
            assert!(!read.to_string().contains("s3cr3t"), "{read}");
        }
        let literal = SecretRef::parse("s3cr3t-token").unwrap_err();
        assert!(literal.message().contains("looks like a secret; use env: or file:"));
        for text in ["env:ACME_TOKEN", "file:/run/secrets/acme"] {
            assert_eq!(SecretRef::parse(text).unwrap().to_string(), text);
        }
    }

    /// X7
    #[test]
    fn x7_a_secret_is_read_when_needed_and_shown_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let place = SecretRef::parse(&format!("file:{}", path.display())).unwrap();
        assert_eq!(place.read().unwrap_err().code(), "SF-0716");
        std::fs::write(&path, "first-token\n").unwrap();
        assert_eq!(place.read().unwrap().reveal(), "first-token");
        std::fs::write(&path, "second-token\r\n").unwrap();
        let secret = place.read().unwrap();
        assert_eq!(secret.reveal(), "second-token");
        assert_eq!(
            format!("{secret:?} {:?}", secret.hide("x second-token y".into())),
            "[secret] \"x [secret] y\""
        );
        std::fs::write(&path, "\n").unwrap();
        assert!(place.read().unwrap_err().message().contains("is empty"));
    }

    #[test]
    fn a_variable_is_a_place_too() {
        let path = SecretRef::parse("env:PATH").unwrap().read().unwrap();
        assert_eq!(path.reveal(), std::env::var("PATH").unwrap());
        let none = SecretRef::parse("env:STEADFAST_NO_SUCH_SECRET").unwrap().read().unwrap_err();
        assert!(!none.is_retryable());
        assert!(none.message().contains("env:STEADFAST_NO_SUCH_SECRET"), "{none}");
    }
}
