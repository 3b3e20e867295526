//! Answers of people that come by webhook: signed by whoever asked them, a chat or a portal.
//!
//! Invariants: what is not signed, or signed long ago, is not read; an answer names what its giver
//! was shown, so that a yes to something else is no yes. Who may answer, and that nobody answers
//! for oneself, is decided where the question is kept. Deliberately absent: a server. A route of
//! yours hands over what it got.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use standardwebhooks::Webhook as Verifier;
use steadfast_core::approval::Answer;
use steadfast_core::error::{Error, ErrorClass, Result};

use crate::secret::SecretRef;

/// Least characters of a secret: 24 bytes in base64, as the standard wants.
const SECRET_CHARS: usize = 32;

/// Reads signed answers, as Standard Webhooks has them.
#[derive(Debug, Clone)]
pub struct Answers {
    secrets: Vec<SecretRef>,
}

fn unsigned(why: &str) -> Error {
    let text = format!("the answer is not signed as it should be: {why}");
    Error::new(ErrorClass::PermissionDenied, "SF-0908", text)
}

fn verify(secret: &SecretRef, body: &[u8], headers: &HeaderMap) -> Result<()> {
    let known = secret.read()?;
    let verifier = match Verifier::new(known.reveal()) {
        // An empty key would take anybody's signature.
        Ok(verifier) if known.reveal().trim_start_matches("whsec_").len() >= SECRET_CHARS => {
            verifier
        }
        _ => {
            let text = format!("the secret at {secret} is not a webhook's: whsec_ and base64");
            return Err(Error::invalid("SF-0904", text));
        }
    };
    verifier.verify(body, headers).map_err(|error| unsigned(&error.to_string()))
}

impl Answers {
    /// Those that are signed with a secret (`whsec_…`), which is given by reference: `env:NAME` or
    /// `file:PATH`. Who has the secret speaks for everybody: give it to whoever knows people apart.
    pub fn signed_with(secret: &str) -> Result<Self> {
        Ok(Self { secrets: vec![SecretRef::parse(secret)?] })
    }

    /// A second secret, while the sender changes theirs.
    pub fn or_with(mut self, secret: &str) -> Result<Self> {
        self.secrets.push(SecretRef::parse(secret)?);
        Ok(self)
    }

    /// The answer in a request, for `Client::answer`.
    pub fn read<'a>(
        &self,
        headers: impl Iterator<Item = (&'a str, &'a str)>,
        body: &[u8],
    ) -> Result<Answer> {
        let mut given = HeaderMap::new();
        for (name, value) in headers {
            let name = name.parse::<HeaderName>();
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                given.insert(name, value);
            }
        }
        // One that cannot be read does not stand in the way of the other: they are being changed.
        let tried = self.secrets.iter().map(|secret| verify(secret, body, &given));
        tried.reduce(|one, other| one.or(other)).unwrap_or_else(|| Err(unsigned("no secret")))?;
        serde_json::from_slice(body).map_err(|error| {
            Error::invalid("SF-0909", format!("the answer cannot be read: {error}"))
        })
    }
}
