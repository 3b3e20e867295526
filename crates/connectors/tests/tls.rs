//! TLS against a server of our own, with certificates made for the test: who is vouched for by a
//! known authority is talked to, and nobody else hears a word.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;
use steadfast_connectors::{Alert, Http, Webhook};
use steadfast_core::alert::{Alerts, Rule};
use steadfast_core::connector::{Connector, Inbound, Operation, Outbound};
use steadfast_core::event::CloudEvent;
use steadfast_core::sink::{Delivery, SinkTarget};
use steadfast_core::{ErrorClass, Result, Timestamp};

/// Somebody who vouches for others.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: tempfile::NamedTempFile,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), certificate.pem()).unwrap();
        Self { issuer: Issuer::new(params, key), file }
    }

    fn path(&self) -> &std::path::Path {
        self.file.path()
    }
}

/// A server with a certificate, and what it could read.
struct Server {
    port: u16,
    /// Requests that arrived whole.
    seen: Arc<Mutex<Vec<String>>>,
    /// How each attempt to connect ended before a request came, where it did.
    refused: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// For this name, vouched for by this authority.
    fn new(authority: &Authority, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority.issuer).unwrap();
        let secret = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let settings = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], secret)
            .unwrap();
        let (settings, listener) = (Arc::new(settings), TcpListener::bind("127.0.0.1:0").unwrap());
        let port = listener.local_addr().unwrap().port();
        let (seen, refused): (Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<_>>>) = Default::default();
        let (book, ended) = (seen.clone(), refused.clone());
        // It ends with the test's process.
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let connection = ServerConnection::new(settings.clone()).unwrap();
                let mut stream = StreamOwned::new(connection, socket);
                match request(&mut stream) {
                    Ok(request) => {
                        book.lock().unwrap().push(request);
                        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\
                                      content-length: 11\r\nconnection: close\r\n\r\n{\"ok\":true}";
                        let _ = stream.write_all(answer.as_bytes());
                        stream.conn.send_close_notify();
                        let _ = stream.flush();
                    }
                    Err(why) => ended.lock().unwrap().push(why),
                }
            }
        });
        Self { port, seen, refused }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// How the only connection ended, once it has.
    fn refused(&self) -> String {
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            if let Some(why) = self.refused.lock().unwrap().pop() {
                return why;
            }
            assert!(std::time::Instant::now() < give_up, "nobody was refused");
            thread::yield_now();
        }
    }
}

/// Reads one request: its first line and its body.
fn request(stream: &mut impl Read) -> Result<String, String> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    let n = reader.read_line(&mut first).map_err(|error| error.to_string())?;
    if n == 0 {
        return Err("closed".to_owned());
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).map_err(|error| error.to_string())?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).map_err(|error| error.to_string())?;
    Ok(format!("{} {}", first.trim_end(), String::from_utf8(body).unwrap()))
}

fn settings(server: &Server) -> Http {
    Http::new("crm", server.url()).allow(Operation::write("POST /deals").keyed()).allow_private()
}

async fn sell(http: Http) -> Result<Inbound> {
    let request = Outbound {
        key: Some("sell-7".to_owned()),
        ..Outbound::new("POST /deals", json!({ "body": { "amount": 900 } }))
    };
    http.build().unwrap().send(&request).await
}

#[tokio::test]
async fn a_vendor_of_a_named_authority_is_trusted() {
    let authority = Authority::new("ours");
    let server = Server::new(&authority, "localhost");
    let answer = sell(settings(&server).trusting(authority.path())).await.unwrap();
    assert_eq!(answer.output["body"], json!({ "ok": true }));
    assert_eq!(server.seen(), ["POST /deals HTTP/1.1 {\"amount\":900}"]);
}

/// What nobody vouches for, what somebody else vouches for, and what is vouched for under another
/// name: each is refused before a byte of the request leaves.
#[tokio::test]
async fn who_is_not_vouched_for_hears_nothing() {
    let (authority, stranger) = (Authority::new("ours"), Authority::new("theirs"));
    let named_otherwise = Server::new(&authority, "elsewhere.example");
    let unknown = Server::new(&stranger, "localhost");
    for (server, http, alert) in [
        (&unknown, settings(&unknown), "UnknownCA"),
        (&unknown, settings(&unknown).trusting(authority.path()), "UnknownCA"),
        (&named_otherwise, settings(&named_otherwise).trusting(authority.path()), "BadCertificate"),
    ] {
        let error = sell(http).await.unwrap_err();
        assert_eq!((error.code(), error.class()), ("SF-0719", ErrorClass::TransientConnectorError));
        assert!(!error.is_unclear(), "nothing can have happened over there: {error}");
        assert!(error.message().contains("certificate"), "{error}");
        // The other side was told why, and nothing else.
        let told = server.refused();
        assert!(told.contains(alert), "{told}");
        assert!(server.seen().is_empty());
    }
}

#[test]
fn a_file_that_names_no_authority_is_refused() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let http = |file: &std::path::Path| {
        let vendor = Http::new("crm", "https://crm.example").trusting(file);
        vendor.build().unwrap_err()
    };
    let error = http(empty.path());
    assert!(error.code() == "SF-0710" && error.message().contains("there are none"), "{error}");
    let error = http(std::path::Path::new("/nowhere/ca.pem"));
    assert!(error.code() == "SF-0710" && error.message().contains("/nowhere/ca.pem"), "{error}");
}

fn event() -> CloudEvent {
    CloudEvent {
        id: "evt_1".to_owned(),
        source: "steadfast/default".to_owned(),
        event_type: "steadfast.command.failed".to_owned(),
        subject: None,
        time: "2026-06-01T12:00:00Z".to_owned(),
        extensions: Vec::new(),
        data: Some(json!({})),
    }
}

/// A secret in a file, and the reference to it.
fn kept(secret: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), secret).unwrap();
    let reference = format!("file:{}", file.path().display());
    (file, reference)
}

/// R114: events and alerts go only to who is vouched for; what is not sent is tried again.
#[tokio::test]
async fn sinks_speak_tls_as_connectors_do() {
    let (authority, stranger) = (Authority::new("ours"), Authority::new("theirs"));
    let (server, unknown) =
        (Server::new(&authority, "localhost"), Server::new(&stranger, "localhost"));
    let (_file, secret) = kept("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let (_key, key) = kept("pager-key");
    let told = Alerts::default().rule(Rule::new("failed", "command.failed"));
    let sinks = |server: &Server| -> Vec<Box<dyn SinkTarget>> {
        let hook = Webhook::new(&server.url(), &secret).unwrap();
        let pager = Alert::pagerduty_at(&server.url(), &key, told.clone()).unwrap();
        vec![
            Box::new(hook.trusting(authority.path()).unwrap()),
            Box::new(pager.trusting(authority.path()).unwrap()),
        ]
    };
    let now = Timestamp::from_micros(1_780_000_000_000_000);
    for (n, sink) in sinks(&server).iter().enumerate() {
        assert!(matches!(sink.send(&event(), now).await, Delivery::Done), "{}", sink.kind());
        assert_eq!(server.seen().len(), n + 1);
    }
    for sink in sinks(&unknown) {
        let delivery = sink.send(&event(), now).await;
        let Delivery::Again { error, .. } = delivery else { panic!("{}", sink.kind()) };
        assert!(error.message().contains("certificate"), "{error}");
        assert!(unknown.refused().contains("UnknownCA"));
    }
    assert!(unknown.seen().is_empty());
}
