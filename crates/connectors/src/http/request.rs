//! From what a connector is asked to what goes over the wire.
//!
//! Invariants: an operation is a method and a plain path, and the URL that is sent has exactly that
//! path behind the base; what the connector owns (host, key, trace, secrets, framing) cannot be set
//! by a request; what is not understood is refused, not dropped.
//! Deliberately absent: sending.

use std::collections::BTreeMap;

use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Method, Request, Url};
use serde::Deserialize;
use serde_json::Value;
use steadfast_core::connector::{Operation, Outbound};
use steadfast_core::error::{Error, Result};

const METHODS: &[&str] = &["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"];

/// Headers that a request may not set: the connector or the connection does.
const OWNED: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "x-correlation-id",
];

/// Parts of names whose values are secrets.
const SECRET_NAMES: &[&str] = &["auth", "cookie", "key", "password", "secret", "token"];

/// What a request carries besides its operation.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    #[serde(default)]
    query: BTreeMap<String, Value>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: Option<Value>,
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::invalid("SF-0712", format!("the request is not sent: {why}"))
}

/// Whether a header of this name would carry a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // The receiver's own word for a write is no secret.
    name != "idempotency-key" && SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// The method and the path of an operation.
pub(super) fn target(operation: &str) -> Result<(Method, &str)> {
    let Some((method, path)) = operation.split_once(' ') else {
        return Err(refused(format!("\"{operation}\" is no method and path")));
    };
    if !METHODS.contains(&method) {
        return Err(refused(format!("\"{method}\" is no method; use one of {METHODS:?}")));
    }
    check_path(path)?;
    let method = Method::from_bytes(method.as_bytes()).map_err(refused)?;
    Ok((method, path))
}

/// Refuses a path that servers and proxies could read in two ways.
fn check_path(path: &str) -> Result<()> {
    let wrong = |why: &str| Err(refused(format!("the path \"{path}\" {why}")));
    let Some(rest) = path.strip_prefix('/') else {
        return wrong("does not begin with a slash");
    };
    let last = rest.split('/').count() - 1;
    for (at, part) in rest.split('/').enumerate() {
        match part {
            "" if at < last => return wrong("has an empty part"),
            "." | ".." => return wrong("has a part of dots"),
            _ => {}
        }
        let mut bytes = part.bytes();
        while let Some(byte) = bytes.next() {
            match byte {
                b'%' => match escaped(bytes.next(), bytes.next()) {
                    None => return wrong("has a % without two digits behind it"),
                    Some(b'/' | b'\\' | b'.' | b'%' | b'?' | b'#' | ..=0x1f | 0x7f) => {
                        return wrong("hides a character that separates");
                    }
                    Some(_) => {}
                },
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => {}
                byte if b"-._~!$&'()*+,;=:@".contains(&byte) => {}
                _ => return wrong("has a character that must be escaped, or none of a path"),
            }
        }
    }
    Ok(())
}

fn escaped(high: Option<u8>, low: Option<u8>) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
    Some(digit(high?)? * 16 + digit(low?)?)
}

/// Refuses an operation of a scope that could never be asked for.
pub(super) fn check_operation(operation: &Operation) -> Result<()> {
    let (method, _) = target(&operation.name.replace("{}", "x"))?;
    let changes = [Method::PUT, Method::PATCH, Method::DELETE].contains(&method);
    if changes && !operation.mutates {
        return Err(refused(format!("\"{}\" changes something; declare a write", operation.name)));
    }
    Ok(())
}

/// The request as it will be sent, without secrets.
pub(super) fn build(
    base: &Url,
    headers: &HeaderMap,
    operation: &Operation,
    asked: &Outbound,
) -> Result<Request> {
    let (method, path) = target(&asked.operation)?;
    let input: Input = match &asked.input {
        Value::Null => Input::default(),
        value @ Value::Object(_) => Input::deserialize(value).map_err(refused)?,
        _ => return Err(refused("the input is no object")),
    };
    let mut request = Request::new(method, place(base, path)?);
    set_query(request.url_mut(), &input.query)?;
    *request.headers_mut() = headers.clone();
    for (name, value) in &input.headers {
        let (name, value) = plain_header(name, value)?;
        request.headers_mut().insert(name, value);
    }
    if let Some(body) = input.body {
        set_body(&mut request, body)?;
    }
    if operation.mutates {
        match &asked.key {
            Some(key) => {
                request.headers_mut().insert("idempotency-key", key_header(key)?);
            }
            None if operation.keyed => {
                let text = format!("\"{}\" needs an idempotency key and has none", operation.name);
                return Err(Error::invalid("SF-0713", text));
            }
            None => {}
        }
    }
    if let Some(trace) = asked.traceparent().filter(|text| is_traceparent(text)) {
        let value = HeaderValue::from_str(&trace).map_err(refused)?;
        request.headers_mut().insert("traceparent", value);
    }
    if !asked.correlation_id.is_empty() {
        // What a sender outside has made up may not fit a header; then it stays here.
        if let Ok(value) = HeaderValue::from_str(&asked.correlation_id) {
            request.headers_mut().insert("x-correlation-id", value);
        }
    }
    Ok(request)
}

/// The base with the path behind it, and nothing that a parser made of it.
fn place(base: &Url, path: &str) -> Result<Url> {
    let mut url = base.clone();
    let whole = format!("{}{path}", base.path().trim_end_matches('/'));
    url.set_path(&whole);
    match url.path() == whole {
        true => Ok(url),
        false => Err(refused(format!("the path \"{path}\" would be sent as another"))),
    }
}

/// What was sent, in the words of an operation.
pub(super) fn actual(base: &Url, request: &Request) -> String {
    let path = request.url().path();
    let path = path.strip_prefix(base.path().trim_end_matches('/')).unwrap_or(path);
    format!("{} {path}", request.method())
}

fn set_query(url: &mut Url, query: &BTreeMap<String, Value>) -> Result<()> {
    if query.is_empty() {
        return Ok(());
    }
    let mut pairs = url.query_pairs_mut();
    for (name, value) in query {
        let values = match value {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            match value {
                Value::Null => continue,
                Value::String(text) => pairs.append_pair(name, text),
                Value::Bool(_) | Value::Number(_) => pairs.append_pair(name, &value.to_string()),
                Value::Array(_) | Value::Object(_) => {
                    return Err(refused(format!("query \"{name}\" is not a plain value")));
                }
            };
        }
    }
    Ok(())
}

/// A header that a request, or the settings in plain text, may carry.
pub(super) fn plain_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue)> {
    let lower = name.to_ascii_lowercase();
    if is_secret_name(&lower) || lower.starts_with("proxy-") {
        let why = "carries a secret; name it with secret_header in the connector's settings";
        return Err(refused(format!("header \"{name}\" {why}")));
    }
    if OWNED.contains(&lower.as_str()) {
        return Err(refused(format!("header \"{name}\" is the connector's own")));
    }
    let parsed = HeaderName::from_bytes(lower.as_bytes()).ok();
    match parsed.zip(HeaderValue::from_str(value).ok()) {
        Some(header) => Ok(header),
        None => Err(refused(format!("header \"{name}\" has characters that no header has"))),
    }
}

/// A text goes as it is where the request says that it is something else than JSON.
fn set_body(request: &mut Request, body: Value) -> Result<()> {
    let said = request.headers().get(header::CONTENT_TYPE);
    let json = said.is_none_or(|kind| kind.to_str().is_ok_and(is_json));
    let text = match body {
        Value::String(text) if !json => text,
        _ if !json => return Err(refused("a body that is not sent as JSON has to be a text")),
        body => body.to_string(),
    };
    if said.is_none() {
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
    }
    *request.body_mut() = Some(Body::from(text));
    Ok(())
}

/// Whether a media type is JSON.
pub(super) fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.ends_with("+json")
}

/// The key as a structured field's string. What such a string cannot hold is escaped as in a URL,
/// and the escape sign itself with it, so that different keys stay different.
fn key_header(key: &str) -> Result<HeaderValue> {
    let mut text = String::with_capacity(key.len() + 2);
    text.push('"');
    for byte in key.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b'%' | ..0x20 | 0x7f.. => text.push_str(&format!("%{byte:02X}")),
            byte => text.push(char::from(byte)),
        }
    }
    text.push('"');
    HeaderValue::from_str(&text).map_err(refused)
}

/// Whether it is a header of W3C's form; one that is not would be worse than none.
fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str, len: usize| {
        part.len() == len
            && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            && part.bytes().any(|b| b != b'0')
    };
    let parts: Vec<&str> = text.split('-').collect();
    matches!(parts[..], ["00", trace, span, _] if hex(trace, 32) && hex(span, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R14
    #[test]
    fn r014_a_path_has_one_reading() {
        for path in ["/sales/daily", "/", "/deals/a%20b", "/v1/x:y@z", "/a.b/c..d", "/deals/"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
        for path in [
            "",
            "sales",
            "https://elsewhere/x",
            "//elsewhere/x",
            "/a//b",
            "/a/../b",
            "/a/.",
            "/..",
            "/a?b",
            "/a#b",
            "/a\\b",
            "/a%2fb",
            "/a%2Fb",
            "/a%5cb",
            "/%2e%2e/b",
            "/a%",
            "/a%4",
            "/a%zz",
            "/a b",
            "/a\tb",
            "/é",
            "/a%00b",
            "/a%252fb",
            "/a%3fb",
        ] {
            assert_eq!(check_path(path).unwrap_err().code(), "SF-0712", "{path}");
        }
        for operation in ["GET", "get /a", "TRACE /a", "CONNECT /a", "GET  /a", "GET /a /b"] {
            assert!(target(operation).is_err(), "{operation}");
        }
    }

    #[test]
    fn the_base_keeps_its_path_and_the_ledger_sees_the_operation() {
        for base in ["https://api.example/v1", "https://api.example/v1/"] {
            let base = Url::parse(base).unwrap();
            let asked = Outbound::new("GET /sales/daily", Value::Null);
            let operation = Operation::read("GET /sales/daily");
            let sent = build(&base, &HeaderMap::new(), &operation, &asked).unwrap();
            assert_eq!(sent.url().as_str(), "https://api.example/v1/sales/daily");
            assert_eq!(actual(&base, &sent), "GET /sales/daily");
        }
    }

    /// R112
    #[test]
    fn r112_a_key_is_a_structured_string_and_different_keys_stay_different() {
        let header = |key| key_header(key).unwrap().to_str().unwrap().to_owned();
        assert_eq!(header("sync:acme:2026-03-01"), "\"sync:acme:2026-03-01\"");
        assert_eq!(header("a\"b\\c"), "\"a\\\"b\\\\c\"");
        assert_eq!(header("é%"), "\"%C3%A9%25\"");
        assert_ne!(header("é"), header("%C3%A9"));
    }

    #[test]
    fn only_whole_traces_are_passed_on() {
        let mut asked = Outbound::new("GET /a", Value::Null);
        for (trace, passed) in [
            ("4bf92f3577b34da6a3ce929d0e0e4736", true),
            ("00000000000000000000000000000000", false),
            ("4BF92F3577B34DA6A3CE929D0E0E4736", false),
            ("4bf92f3577b34da6a3ce929d0e0e4736\r\nx: y", false),
        ] {
            asked.trace_id = trace.to_owned();
            assert_eq!(asked.traceparent().is_some_and(|t| is_traceparent(&t)), passed, "{trace}");
        }
    }

    /// X7
    #[test]
    fn x7_a_request_carries_no_secrets() {
        for name in ["Authorization", "cookie", "X-Api-Key", "Proxy-Authorization", "x-auth-token"]
        {
            assert!(plain_header(name, "v").unwrap_err().message().contains("secret"), "{name}");
        }
        for name in ["Host", "content-length", "Idempotency-Key", "traceparent"] {
            assert!(plain_header(name, "v").is_err(), "{name}");
        }
        assert!(plain_header("accept", "text/csv").is_ok());
        assert!(plain_header("x-a", "a\r\nb: c").is_err());
    }
}
