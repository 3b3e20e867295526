//! A vendor on a socket of its own: writes down what it was sent, byte for byte, and answers, or
//! misbehaves, as it is told.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What the vendor was sent.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Method and target, as on the wire.
    pub(crate) line: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// What it does about it.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// Status, further headers, body.
    Says(u16, Vec<(&'static str, String)>, String),
    /// Takes the request and says nothing.
    Silent,
    /// Takes the request and hangs up.
    HangsUp,
    /// Promises more than it sends, and hangs up.
    Cut,
    /// Never stops sending.
    Endless,
}

impl Answer {
    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self::Says(status, vec![("content-type", "application/json".into())], body.into())
    }
}

pub(crate) struct Vendor {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Vendor {
    /// A vendor that answers every request so.
    pub(crate) fn new(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (book, answer) = (seen.clone(), Arc::new(answer));
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (book, answer) = (book.clone(), answer.clone());
                thread::spawn(move || {
                    let Some(request) = read(&stream) else { return };
                    book.lock().unwrap().push(request.clone());
                    give(stream, answer(&request));
                });
            }
        });
        Self { url, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<Seen> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|n| *n > 0)?;
    let line = first.trim_end().strip_suffix(" HTTP/1.1")?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut text = String::new();
        reader.read_line(&mut text).ok()?;
        let Some((name, value)) = text.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Seen { line, headers, body: String::from_utf8(body).unwrap() })
}

fn give(mut stream: TcpStream, answer: Answer) {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n[1, 2";
    match answer {
        Answer::Says(status, headers, body) => {
            let mut text = format!("HTTP/1.1 {status} Word\r\ncontent-length: {}\r\n", body.len());
            headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
            text += &format!("connection: close\r\n\r\n{body}");
            let _ = stream.write_all(text.as_bytes());
        }
        Answer::Silent => thread::sleep(Duration::from_secs(60)),
        Answer::HangsUp => {}
        Answer::Cut => drop(stream.write_all(cut.as_bytes())),
        Answer::Endless => {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            let piece = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
            let mut sent = stream.write_all(head.as_bytes());
            while sent.is_ok() {
                sent = stream.write_all(piece.as_bytes());
            }
        }
    }
}
