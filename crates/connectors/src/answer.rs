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

/// Reads signed answers, as Standard Webhooks has them.
#[derive(Debug, Clone)]
pub struct Answers {
    secrets: Vec<SecretRef>,
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
        let mut why = "there is no secret".to_owned();
        let mut verified = false;
        for secret in &self.secrets {
            let wrong = |_| {
                let text = format!("the secret at {secret} is not a webhook's: whsec_ and base64");
                Error::invalid("SF-0904", text)
            };
            let verifier = Verifier::new(secret.read()?.reveal()).map_err(wrong)?;
            match verifier.verify(body, &given) {
                Ok(()) => verified = true,
                Err(error) => why = error.to_string(),
            }
        }
        if !verified {
            let text = format!("the answer is not signed as it should be: {why}");
            return Err(Error::new(ErrorClass::PermissionDenied, "SF-0908", text));
        }
        serde_json::from_slice(body).map_err(|error| {
            Error::invalid("SF-0909", format!("the answer cannot be read: {error}"))
        })
    }
}
