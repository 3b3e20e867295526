//! What comes back over the wire, and what it means.
//!
//! Invariants: every failure has a class, so that whether to try again is decided by
//! `connector::classify` or here; no more than the agreed number of bytes is ever held; no secret
//! of the request is in anything that is handed on, even where the other side repeats it.
//! Deliberately absent: following. A redirect is an answer, and the wrong one.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use serde_json::{Map, Value, json};
use steadfast_core::connector::{self, Inbound, Operation};
use steadfast_core::error::{Error, ErrorClass, Result};

use super::guard;
use super::request::is_json;
use crate::causes::causes;
use crate::secret::Secret;

/// How much of an error's answer is shown.
const EXCERPT_BYTES: usize = 512;
/// The longest wait that anyone may ask us for; a longer one is a mistake of his.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Headers that are worth keeping and say nothing about anyone.
const KEPT: &[&str] = &[
    "content-language",
    "content-type",
    "date",
    "deprecation",
    "etag",
    "last-modified",
    "link",
    "location",
    "ratelimit",
    "ratelimit-policy",
    "request-id",
    "retry-after",
    "sunset",
    "x-request-id",
];

/// One exchange: what is needed to read its answer.
pub(super) struct Exchange<'a> {
    pub(super) connector: &'a str,
    pub(super) operation: &'a Operation,
    pub(super) actual: String,
    pub(super) secrets: Vec<Secret>,
    pub(super) bytes_max: usize,
    /// The header in which the other side says what an answer cost.
    pub(super) cost_header: Option<&'a str>,
}

impl Exchange<'_> {
    /// The answer's value, or the error it stands for.
    pub(super) async fn read(self, response: Response) -> Result<Inbound> {
        let (status, headers) = (response.status(), response.headers().clone());
        if !status.is_success() && status != StatusCode::NOT_MODIFIED {
            return Err(self.refusal(status, &headers, response).await);
        }
        let body = self.body(response).await?;
        let size = body.len();
        let output = json!({
            "status": status.as_u16(),
            "headers": self.kept(&headers),
            "body": self.value(body, &headers)?,
        });
        let summary = format!("{}, {size} bytes", status.as_u16());
        let cost = self.cost_header.and_then(|name| headers.get(name)).and_then(cost_units);
        Ok(Inbound::new(output, self.actual, summary).costing(cost))
    }

    /// Reads piece by piece, so that a wrong or missing length cannot fill the memory.
    async fn body(&self, mut response: Response) -> Result<Vec<u8>> {
        let most = self.bytes_max;
        let announced = response.content_length().unwrap_or(0);
        let too_large = || {
            let why = format!("answered with more than {most} bytes, which is more than agreed");
            self.error(ErrorClass::PermanentConnectorError, "SF-0715", why)
        };
        if announced > most as u64 {
            return Err(too_large());
        }
        let mut body = Vec::with_capacity(usize::try_from(announced).unwrap_or(0));
        while let Some(piece) = response.chunk().await.map_err(|e| self.failure(e))? {
            if body.len() + piece.len() > most {
                return Err(too_large());
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    fn value(&self, body: Vec<u8>, headers: &HeaderMap) -> Result<Value> {
        if body.is_empty() {
            return Ok(Value::Null);
        }
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let unreadable = |class, why: String| Err(self.error(class, "SF-0717", why));
        // A write was done, whatever its answer looks like: an error would have it done again.
        let done = self.operation.mutates;
        let text = match String::from_utf8(body) {
            Ok(text) => text,
            Err(bytes) if done => String::from_utf8_lossy(bytes.as_bytes()).into_owned(),
            Err(_) => {
                let why = "answered with bytes that are no text".to_owned();
                return unreadable(ErrorClass::PermanentConnectorError, why);
            }
        };
        let text = self.hide(text.into());
        if !kind.is_some_and(is_json) {
            return Ok(Value::String(text.into_owned()));
        }
        match serde_json::from_str(&text) {
            Ok(value) => Ok(value),
            Err(_) if done => Ok(Value::String(text.into_owned())),
            // It may have been cut, or come from something in between.
            Err(error) => unreadable(
                ErrorClass::TransientConnectorError,
                format!("answered with JSON that cannot be read: {error}"),
            ),
        }
    }

    /// The error that an answer without success stands for.
    async fn refusal(&self, status: StatusCode, headers: &HeaderMap, response: Response) -> Error {
        if status.is_redirection() {
            let place = headers.get(header::LOCATION).and_then(|place| place.to_str().ok());
            // What follows the path may be somebody's token.
            let place = place.and_then(|place| place.split(['?', '#']).next()).unwrap_or("nowhere");
            let place = self.hide(place.into());
            let why = format!("answered {} and points to {place}, which is not followed", status);
            return self.error(ErrorClass::PermanentConnectorError, "SF-0714", why);
        }
        let asked = retry_after(headers, SystemTime::now());
        let class = match status.as_u16() {
            // Who honours keys answers so while the first of two is still being worked on.
            409 if self.operation.keyed && asked.is_some() => ErrorClass::TransientConnectorError,
            status => connector::classify(status),
        };
        let why = match self.excerpt(response).await {
            text if text.is_empty() => format!("answered {status}"),
            text => format!("answered {status}: {text}"),
        };
        let error = self.error(class, "SF-0718", why);
        match asked {
            Some(wait) => error.retry_after(wait),
            None => error,
        }
    }

    /// The beginning of an answer, in one line.
    async fn excerpt(&self, mut response: Response) -> String {
        let mut body = Vec::new();
        // The whole excerpt is taken from more than is shown: a secret must not be cut in half
        // before it is looked for.
        while body.len() < EXCERPT_BYTES * 16 {
            match response.chunk().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) | Err(_) => break,
            }
        }
        body.truncate(EXCERPT_BYTES * 16);
        let text = String::from_utf8_lossy(&body);
        let text = self.hide(text);
        let line: Vec<&str> = text.split(|c: char| c.is_whitespace() || c.is_control()).collect();
        let line = line.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
        line.chars().take(EXCERPT_BYTES).collect()
    }

    /// The error of an exchange that did not come to its end.
    pub(super) fn failure(&self, error: reqwest::Error) -> Error {
        // The URL has the query in it, and the query may have anything in it.
        let error = error.without_url();
        if let Some(refused) = guard::refusal(&error) {
            return self.error(ErrorClass::PolicyDenied, "SF-0711", refused.to_string());
        }
        let (class, what) = match () {
            () if error.is_timeout() => (ErrorClass::Timeout, "gave no answer in time"),
            () if error.is_connect() => {
                (ErrorClass::TransientConnectorError, "cannot be connected to")
            }
            () => (ErrorClass::TransientConnectorError, "broke off"),
        };
        let why = format!("{what}: {}", causes(&error));
        let unsent = error.is_connect();
        let error = self.error(class, "SF-0719", self.hide(why.into()));
        if unsent { error.without_effect() } else { error }
    }

    fn error(&self, class: ErrorClass, code: &str, why: impl std::fmt::Display) -> Error {
        Error::new(class, code, format!("{}: {} {why}", self.connector, self.actual))
    }

    fn kept(&self, headers: &HeaderMap) -> Map<String, Value> {
        let limit = |name: &str| name.starts_with("x-ratelimit-");
        let kept = headers
            .iter()
            .filter(|(name, _)| KEPT.contains(&name.as_str()) || limit(name.as_str()));
        kept.map(|(name, value)| {
            let text = String::from_utf8_lossy(value.as_bytes());
            (name.as_str().to_owned(), Value::String(self.hide(text).into_owned()))
        })
        .collect()
    }

    fn hide<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        self.secrets.iter().fold(text, |text, secret| secret.hide(text))
    }
}

/// What an answer cost, rounded up: whatever is no number says nothing.
fn cost_units(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?.trim();
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let units: u64 = whole.parse().ok().filter(|_| digits(whole) && digits(part))?;
    let more = part.bytes().any(|digit| digit != b'0');
    units.checked_add(u64::from(more))
}

/// How long somebody asks us to wait: in seconds, or until a moment.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let then = SystemTime::from(jiff::fmt::rfc2822::parse(text).ok()?.timestamp());
            // A moment that has passed asks for no wait.
            then.duration_since(now).unwrap_or_default()
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_number_and_a_part_of_a_unit_is_a_unit() {
        let said = |text: &str| cost_units(&text.parse().unwrap());
        assert_eq!(said("12"), Some(12));
        assert_eq!(said(" 12.000 "), Some(12));
        assert_eq!(said("0.25"), Some(1));
        for nothing in ["", "-3", "+3", "1e6", "12 EUR", "1.2.3", "99999999999999999999"] {
            assert_eq!(said(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_moment() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_767);
        let asked = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(asked("120"), Some(Duration::from_secs(120)));
        assert_eq!(asked("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(10)));
        assert_eq!(asked("Sun, 06 Nov 1994 08:49:00 GMT"), Some(Duration::ZERO));
        assert_eq!(asked("99999999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(asked("soon"), None);
        assert_eq!(asked("-1"), None);
    }
}
