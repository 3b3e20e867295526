//! The HTTP connector against a vendor on a real socket: what is sent, what is refused, and what
//! each answer means.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod vendor;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use steadfast_connectors::{Http, HttpConnector};
use steadfast_core::connector::{Connector, Inbound, Operation, Outbound};
use steadfast_core::{Error, ErrorClass, Result};

use self::vendor::{Answer, Vendor};

const DAILY: &str = "GET /sales/daily";

/// A connector for this vendor, with the scope of the nightly sync and a write.
fn settings(vendor: &Vendor) -> Http {
    Http::new("acme_sales", format!("{}/v1", vendor.url))
        .allow(Operation::read(DAILY))
        .allow(Operation::read("GET /deals/{}"))
        .allow(Operation::write("POST /deals").keyed())
        .allow(Operation::write("POST /notes"))
        .timeout(Duration::from_secs(5))
        .allow_private()
}

fn connector(vendor: &Vendor) -> HttpConnector {
    settings(vendor).build().unwrap()
}

async fn send(connector: &HttpConnector, operation: &str, input: Value) -> Result<Inbound> {
    connector.send(&Outbound::new(operation, input)).await
}

/// What a vendor that always answers so leads to.
async fn failure(answer: Answer) -> Error {
    let vendor = Vendor::new(move |_| answer.clone());
    let settings = settings(&vendor).timeout(Duration::from_millis(500));
    send(&settings.build().unwrap(), DAILY, Value::Null).await.unwrap_err()
}

#[tokio::test]
async fn a_request_is_sent_as_asked_and_its_answer_comes_back() {
    let rows = r#"[{"sku":"a","amount":12.5}]"#;
    let vendor = Vendor::new(move |_| {
        let headers = vec![
            ("content-type", "application/json; charset=utf-8".to_owned()),
            ("etag", "\"v7\"".to_owned()),
            ("set-cookie", "session=1".to_owned()),
        ];
        Answer::Says(200, headers, rows.to_owned())
    });
    let mut asked = Outbound::new(
        DAILY,
        json!({"query": {"date": "2026-03-01", "page": 2, "tag": ["a b", "c&d"], "none": null},
               "headers": {"Accept": "application/json"}}),
    );
    asked.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736".into();
    asked.correlation_id = "order-7".into();
    let answer = connector(&vendor).send(&asked).await.unwrap();

    assert_eq!(answer.output["status"], 200);
    assert_eq!(answer.output["body"], json!([{"sku": "a", "amount": 12.5}]));
    assert_eq!(answer.output["headers"]["etag"], "\"v7\"");
    assert_eq!(answer.output["headers"].get("set-cookie"), None, "only a safe few are kept");
    assert_eq!(answer.actual, DAILY);
    assert_eq!(answer.summary, "200, 27 bytes");

    let seen = vendor.seen();
    let line = "GET /v1/sales/daily?date=2026-03-01&page=2&tag=a+b&tag=c%26d";
    assert_eq!(seen[0].line, line);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-4bf92f3577b34da6-01";
    assert_eq!(seen[0].headers["traceparent"], trace);
    assert_eq!(seen[0].headers["x-correlation-id"], "order-7");
    assert_eq!(seen[0].headers["accept"], "application/json");
    assert!(seen[0].headers["user-agent"].starts_with("steadfast/"));
    assert_eq!(seen[0].headers.get("idempotency-key"), None, "a read needs no key");
}

/// R14
#[tokio::test]
async fn r014_what_is_out_of_scope_is_never_sent() {
    let vendor = Vendor::new(|_| Answer::json(200, "[]"));
    let connector = connector(&vendor);
    for operation in ["POST /sales/daily", "GET /sales", "GET /sales/daily/", "DELETE /deals/1"] {
        let error = send(&connector, operation, Value::Null).await.unwrap_err();
        assert_eq!((error.class(), error.code()), (ErrorClass::PolicyDenied, "SF-0806"));
    }
    for part in ["..%2fadmin", "%2e%2e", "a?b=c", "a#b", "a\\b", "a%5cb", "."] {
        let error = send(&connector, &format!("GET /deals/{part}"), Value::Null).await.unwrap_err();
        assert_eq!(
            (error.class(), error.code()),
            (ErrorClass::ValidationError, "SF-0712"),
            "{part}"
        );
    }
    let elsewhere = format!("GET {}/v1/sales/daily", vendor.url);
    assert!(send(&connector, &elsewhere, Value::Null).await.is_err());
    for input in [
        json!({"query": {"a": {"b": 1}}}),
        json!({"params": {}}),
        json!({"headers": {"host": "elsewhere"}}),
        json!([]),
    ] {
        let error = send(&connector, DAILY, input.clone()).await.unwrap_err();
        assert_eq!(error.code(), "SF-0712", "{input}");
    }
    assert!(vendor.seen().is_empty());
}

/// R44, R112
#[tokio::test]
async fn r112_a_write_carries_the_key_of_its_effect_and_r044_not_without() {
    let vendor = Vendor::new(|_| Answer::json(201, r#"{"id":7}"#));
    let connector = connector(&vendor);
    let mut asked = Outbound::new("POST /deals", json!({"body": {"name": "Ä"}}));
    let error = connector.send(&asked).await.unwrap_err();
    assert_eq!((error.class(), error.code()), (ErrorClass::ValidationError, "SF-0713"));
    assert!(vendor.seen().is_empty(), "refused before the call");

    asked.key = Some("deal:\"7\"".into());
    let answer = connector.send(&asked).await.unwrap();
    assert_eq!(answer.output["body"]["id"], 7);
    let seen = vendor.seen();
    assert_eq!(seen[0].line, "POST /v1/deals");
    assert_eq!(seen[0].headers["idempotency-key"], r#""deal:\"7\"""#);
    assert_eq!(seen[0].headers["content-type"], "application/json");
    assert_eq!(seen[0].body, r#"{"name":"Ä"}"#);
    // Who does not honour keys may be called without one; then the fabric keeps the record.
    send(&connector, "POST /notes", json!({"body": "x"})).await.unwrap();
}

#[tokio::test]
async fn a_body_that_is_no_json_is_sent_as_it_is() {
    let vendor = Vendor::new(|_| Answer::Says(204, vec![], String::new()));
    let connector = connector(&vendor);
    let csv = json!({"headers": {"content-type": "text/csv"}, "body": "a,b\n1,2\n"});
    let answer = send(&connector, "POST /notes", csv).await.unwrap();
    assert_eq!((&answer.output["status"], &answer.output["body"]), (&json!(204), &Value::Null));
    assert_eq!(vendor.seen()[0].body, "a,b\n1,2\n");
    let wrong = json!({"headers": {"content-type": "text/csv"}, "body": [1]});
    assert_eq!(send(&connector, "POST /notes", wrong).await.unwrap_err().code(), "SF-0712");
}

/// R45, R46, R117, R118
#[tokio::test]
async fn r045_each_answer_has_its_class_and_is_asked_for_once() {
    let calls = std::sync::Arc::new(AtomicUsize::new(0));
    for (status, class, again) in [
        (500, ErrorClass::TransientConnectorError, true),
        (503, ErrorClass::TransientConnectorError, true),
        (429, ErrorClass::RateLimited, true),
        (408, ErrorClass::Timeout, true),
        (400, ErrorClass::ValidationError, false),
        (422, ErrorClass::ValidationError, false),
        (401, ErrorClass::PermanentConnectorError, false),
        (403, ErrorClass::PermanentConnectorError, false),
        (404, ErrorClass::PermanentConnectorError, false),
    ] {
        let counted = calls.clone();
        let vendor = Vendor::new(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            Answer::json(status, "{\"error\":\n \"because\"}")
        });
        let connector = connector(&vendor);
        let error = send(&connector, DAILY, Value::Null).await.unwrap_err();
        assert_eq!((error.class(), error.code()), (class, "SF-0718"), "{status}");
        assert_eq!(error.is_retryable(), again, "{status}");
        assert_eq!(connector.retry().wait_after(1, &error).is_some(), again, "{status}");
        assert!(error.message().contains("because") && error.message().contains("acme_sales"));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 9, "the library sends nothing again by itself");
}

#[tokio::test]
async fn who_asks_us_to_wait_is_heard() {
    let says = |status, text: &str| {
        Answer::Says(status, vec![("retry-after", text.to_owned())], String::new())
    };
    let error = failure(says(429, "7")).await;
    assert_eq!(error.wait_at_least(), Some(Duration::from_secs(7)));
    let then = failure(says(503, "Fri, 31 Dec 2100 23:59:59 GMT")).await;
    assert_eq!(then.wait_at_least(), Some(Duration::from_secs(24 * 3600)), "no longer than a day");
    assert_eq!(failure(says(503, "tomorrow")).await.wait_at_least(), None);
}

/// R118
#[tokio::test]
async fn r118_connections_that_fail_are_tried_again_and_silence_is_a_timeout() {
    let hung_up = failure(Answer::HangsUp).await;
    let cut = failure(Answer::Cut).await;
    let nobody = {
        // A port that was just given back: nobody listens there.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = Http::new("acme_sales", format!("http://{free}"));
        let connector = settings.allow(Operation::read(DAILY)).allow_private().build().unwrap();
        send(&connector, DAILY, Value::Null).await.unwrap_err()
    };
    for error in [hung_up, cut, nobody] {
        assert_eq!(
            (error.class(), error.code()),
            (ErrorClass::TransientConnectorError, "SF-0719"),
            "{error}"
        );
    }
    let silent = failure(Answer::Silent).await;
    assert_eq!((silent.class(), silent.code()), (ErrorClass::Timeout, "SF-0719"), "{silent}");
}

#[tokio::test]
async fn an_answer_larger_than_agreed_is_refused_while_it_comes() {
    let announced = Vendor::new(|_| Answer::json(200, &format!("\"{}\"", "x".repeat(5000))));
    let endless = Vendor::new(|_| Answer::Endless);
    for vendor in [announced, endless] {
        let connector = settings(&vendor).answer_bytes(4096).build().unwrap();
        let error = send(&connector, DAILY, Value::Null).await.unwrap_err();
        assert_eq!(error.code(), "SF-0715");
        assert_eq!(error.class(), ErrorClass::PermanentConnectorError);
        assert!(error.message().contains("4096"), "{error}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let trap = Vendor::new(|_| Answer::json(200, "[]"));
    let place = format!("{}/v1/sales/daily?token=t0k3n", trap.url);
    let error = failure(Answer::Says(302, vec![("location", place)], String::new())).await;
    assert_eq!((error.class(), error.code()), (ErrorClass::PermanentConnectorError, "SF-0714"));
    assert!(!error.to_string().contains("t0k3n"), "{error}");
    assert!(trap.seen().is_empty());
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_of_a_read_and_not_of_a_write() {
    let vendor = Vendor::new(|_| Answer::json(200, "{\"id\":"));
    let connector = connector(&vendor);
    let error = send(&connector, DAILY, Value::Null).await.unwrap_err();
    assert_eq!((error.class(), error.code()), (ErrorClass::TransientConnectorError, "SF-0717"));
    let done = send(&connector, "POST /notes", json!({"body": 1})).await.unwrap();
    assert_eq!(done.output["body"], "{\"id\":");
}

#[tokio::test]
async fn a_private_address_is_not_connected_to() {
    let vendor = Vendor::new(|_| Answer::json(200, "[]"));
    let port = vendor.url.rsplit(':').next().unwrap().to_owned();
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0",
        "169.254.169.254",
        "[fd00:ec2::254]",
    ] {
        let settings = Http::new("acme_sales", format!("http://{host}:{port}"));
        let error = settings.allow(Operation::read(DAILY)).build().unwrap_err();
        assert_eq!((error.class(), error.code()), (ErrorClass::PolicyDenied, "SF-0711"), "{host}");
    }
    // A name is checked where it leads to, when it is used.
    let named = Http::new("acme_sales", format!("http://localhost:{port}"));
    let named = named.allow(Operation::read(DAILY));
    let error = send(&named.clone().build().unwrap(), DAILY, Value::Null).await.unwrap_err();
    assert_eq!((error.class(), error.code()), (ErrorClass::PolicyDenied, "SF-0711"), "{error}");
    assert!(error.message().contains("loopback"), "{error}");
    assert!(vendor.seen().is_empty());
    let allowed = named.allow_private().build().unwrap();
    send(&allowed, DAILY, Value::Null).await.unwrap();
}

/// X7
#[tokio::test]
async fn x7_a_secret_is_read_for_each_request_and_shown_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let vendor = Vendor::new(|seen| {
        let body = format!("{{\"you_sent\": \"{}\"}}", seen.headers["authorization"]);
        Answer::json(if seen.line.contains("fail") { 403 } else { 200 }, &body)
    });
    let place = format!("file:{}", path.display());
    let settings = settings(&vendor).secret_header("Authorization", place, "Bearer {}");
    let connector = settings.clone().build().unwrap();
    for token in ["t0k3n-one", "t0k3n-two"] {
        std::fs::write(&path, format!("{token}\n")).unwrap();
        let answer = send(&connector, DAILY, Value::Null).await.unwrap();
        assert_eq!(
            vendor.seen().last().unwrap().headers["authorization"],
            format!("Bearer {token}")
        );
        assert_eq!(answer.output["body"]["you_sent"], "Bearer [secret]");
        let error = send(&connector, DAILY, json!({"query": {"fail": 1}})).await.unwrap_err();
        let shown = format!("{error} {error:?} {connector:?} {settings:?} {answer:?}");
        assert!(!shown.contains("t0k3n"), "{shown}");
    }
    std::fs::remove_file(&path).unwrap();
    let sent = vendor.seen().len();
    let error = send(&connector, DAILY, Value::Null).await.unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), ("SF-0716", false));
    assert_eq!(vendor.seen().len(), sent, "nothing is sent without it");
}

/// X7
#[test]
fn x7_settings_with_a_literal_secret_are_refused() {
    let open = || Http::new("acme_sales", "http://api.acme.example");
    for settings in [
        open().secret_header("authorization", "t0k3n-literal", "Bearer {}"),
        open().header("authorization", "Bearer t0k3n"),
        open().header("x-api-key", "t0k3n"),
        Http::new("acme_sales", "http://me:t0k3n@api.acme.example"),
        Http::new("acme_sales", "http://api.acme.example/?key=t0k3n"),
    ] {
        assert!(!format!("{settings:?}").contains("t0k3n"));
        let error = settings.build().unwrap_err();
        assert!(["SF-0710", "SF-0716"].contains(&error.code()), "{error}");
        assert!(!error.to_string().contains("t0k3n"), "{error}");
    }
}

#[test]
fn settings_that_could_never_work_are_refused() {
    let open = || Http::new("acme_sales", "http://api.acme.example");
    for settings in [
        Http::new("acme_sales", "not a URL"),
        Http::new("acme_sales", "ftp://api.acme.example"),
        open().allow(Operation::read("/sales/daily")),
        open().allow(Operation::read("GET sales/daily")),
        open().allow(Operation::read("DELETE /deals/{}")),
        open().secret_header("authorization", "env:ACME_TOKEN", "Bearer"),
    ] {
        assert_eq!(settings.build().unwrap_err().code(), "SF-0710");
    }
    #[cfg(not(feature = "tls"))]
    assert!(
        Http::new("a", "https://api.acme.example").build().unwrap_err().message().contains("tls")
    );
}
