//! HTTP to others: one request, one answer, sorted by what it means for an event.
//!
//! Invariants: a redirect is a failure, because a signature is for one receiver; no answer is read
//! beyond its status and the wait it asks for; what is shown of an address holds no password and no
//! query.

use std::path::Path;
use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, StatusCode, Url, redirect};
use steadfast_core::error::{Error, ErrorClass, Result};
use steadfast_core::sink::Delivery;
use steadfast_core::time::Timestamp;

use crate::causes::causes;
use crate::http::retry_after;
use crate::trust;

/// Receivers answer before they work; longer than this none should take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
/// The longest wait that is believed.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// A client that follows no redirects; it trusts whom the machine does, or a file's authorities.
pub(crate) fn client(authorities: Option<&Path>) -> Result<Client> {
    let settings = Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(Duration::from_secs(5))
        .user_agent(concat!("steadfast/", env!("CARGO_PKG_VERSION")));
    let settings = match authorities {
        Some(file) => trust::only(settings, file).map_err(|why| Error::invalid("SF-0907", why))?,
        None => settings,
    };
    let made = settings.build();
    made.map_err(|error| failed(ErrorClass::PermanentConnectorError, error.to_string()))
}

/// An address, checked.
pub(crate) fn address(text: &str) -> Result<Url> {
    let wrong = |why: &str| Error::invalid("SF-0907", format!("the address of a sink {why}"));
    let url = Url::parse(text).map_err(|error| wrong(&format!("is none: {error}")))?;
    match url.scheme() {
        "http" => Ok(url),
        "https" if cfg!(feature = "tls") => Ok(url),
        "https" => Err(wrong("wants TLS, which the feature `tls` brings")),
        _ => Err(wrong("begins with http:// or https://")),
    }
}

/// An address without what is nobody's business.
pub(crate) fn shown(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

/// Whom to ask, and for how long.
pub(crate) struct To<'a> {
    pub(crate) client: &'a Client,
    pub(crate) url: &'a Url,
    pub(crate) timeout: Duration,
}

/// Posts a body, and says what the answer means.
pub(crate) async fn post(
    to: To<'_>,
    content_type: &'static str,
    headers: &[(&'static str, String)],
    body: String,
    now: Timestamp,
) -> Delivery {
    let mut sent = HeaderMap::new();
    sent.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in headers {
        let Ok(value) = HeaderValue::from_str(value) else {
            let text = format!("the header {name} cannot be sent");
            return again(failed(ErrorClass::ValidationError, text), None);
        };
        sent.insert(HeaderName::from_static(name), value);
    }
    let request = to.client.post(to.url.clone()).timeout(to.timeout).headers(sent).body(body);
    let answer = match request.send().await {
        Ok(answer) => answer,
        Err(error) => {
            let class = match error.is_timeout() {
                true => ErrorClass::Timeout,
                false => ErrorClass::TransientConnectorError,
            };
            // Without the address, which may hold a secret.
            let text = format!("no answer: {}", causes(&error.without_url()));
            return again(failed(class, text), None);
        }
    };
    let (status, wait) = (answer.status(), asked_wait(answer.headers(), now));
    let text = format!("the receiver answered {status}");
    match status {
        status if status.is_success() => Delivery::Done,
        StatusCode::GONE => Delivery::Gone(failed(ErrorClass::PermanentConnectorError, text)),
        StatusCode::TOO_MANY_REQUESTS => again(failed(ErrorClass::RateLimited, text), wait),
        _ => again(failed(ErrorClass::TransientConnectorError, text), wait),
    }
}

/// The wait that a receiver asks for, as far as it is believed.
fn asked_wait(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let since = Duration::from_micros(u64::try_from(now.as_micros()).unwrap_or(0));
    retry_after(headers, SystemTime::UNIX_EPOCH + since).map(|wait| wait.min(WAIT_MAX))
}

pub(crate) fn failed(class: ErrorClass, text: String) -> Error {
    Error::new(class, "SF-0905", text)
}

pub(crate) fn again(error: Error, after: Option<Duration>) -> Delivery {
    Delivery::Again { error, after }
}

#[cfg(test)]
mod tests {
    use reqwest::header::RETRY_AFTER;

    use super::*;

    #[test]
    fn an_address_is_shown_without_its_secrets() {
        let url = address("http://me:hunter2@example.org:8080/hook?token=hunter2").unwrap();
        assert_eq!(shown(&url), "http://example.org:8080/hook");
        for bad in ["ftp://example.org", "example.org/hook", "//x"] {
            assert_eq!(address(bad).unwrap_err().code(), "SF-0907");
        }
    }

    #[test]
    fn a_wait_is_read_as_seconds_or_as_a_date_and_bounded() {
        let now = Timestamp::from_micros(784_111_777 * 1_000_000);
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
            asked_wait(&headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!(read("120"), Some(120));
        assert_eq!(read("99999999"), Some(3600));
        assert_eq!(read("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60));
        assert_eq!(read("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
        assert_eq!(read("soon"), None);
    }
}
