//! An outside witness: a small HTTP server that writes down every call a workflow makes.
//!
//! Invariants: a call is numbered and stamped when its last byte has been read, and is on disk
//! before it is answered; every answer carries a nonce that was never given before, so a step that
//! ran again shows in its output; nothing is ever removed from the log.
//! Deliberately absent: any knowledge of the engine. It lives outside of the processes that are
//! killed, and believes only what reaches its socket.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Steps whose names begin so are refused (503) the first time they call for a run.
pub const FLAKY: &str = "flaky";
/// Steps whose names begin so are answered after [`SLOW_FOR`].
pub const SLOW: &str = "slow";
/// Steps whose names begin so are answered after [`STALL_FOR`] the first time, and at once later.
pub const STALL: &str = "stall";
/// How long a slow step takes.
pub const SLOW_FOR: Duration = Duration::from_millis(300);
/// How long the first call of a stalling step takes: longer than any test waits for it.
pub const STALL_FOR: Duration = Duration::from_secs(20);

/// A call, as the caller tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The run that calls.
    pub run: String,
    /// Its step.
    pub step: String,
    /// A number of the caller's, new in every call: tells a repeated call from a repeated request.
    pub nonce: String,
    /// The idempotency key, empty for none.
    pub key: String,
    /// The life of the worker process that calls.
    pub worker: String,
}

/// A call, as the ledger saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// What the caller said.
    #[serde(flatten)]
    pub call: Call,
    /// Its place in the order of arrivals, from 1.
    pub number: u64,
    /// When it arrived, in microseconds of [`Ledger::now_us`].
    pub at_us: u64,
    /// The nonce it was answered with; `None` if it was refused.
    pub answer: Option<String>,
}

/// A running ledger. It stops when dropped.
pub struct Ledger {
    book: Arc<Book>,
    address: SocketAddr,
}

struct Book {
    opened: Instant,
    closing: AtomicBool,
    pages: Mutex<Pages>,
}

struct Pages {
    log: Vec<Arrival>,
    calls: HashMap<(String, String), u32>,
    file: File,
}

impl Ledger {
    /// Listens on a free port of this host and keeps its log in a file.
    pub fn open(file: &Path) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let pages = Pages { log: Vec::new(), calls: HashMap::new(), file: File::create(file)? };
        let book = Arc::new(Book {
            opened: Instant::now(),
            closing: AtomicBool::new(false),
            pages: Mutex::new(pages),
        });
        let serving = book.clone();
        std::thread::Builder::new()
            .name("ledger".to_owned())
            .spawn(move || serve(&listener, &serving))?;
        Ok(Self { book, address })
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The ledger's clock: monotone, in microseconds since it was opened.
    pub fn now_us(&self) -> u64 {
        self.book.now_us()
    }

    /// Every call so far, in the order of arrival.
    pub fn log(&self) -> Vec<Arrival> {
        self.book.pages().log.clone()
    }

    /// The calls of one step of a run.
    pub fn calls(&self, run: &str, step: &str) -> Vec<Arrival> {
        let of_step = |a: &&Arrival| a.call.run == run && a.call.step == step;
        self.book.pages().log.iter().filter(of_step).cloned().collect()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.book.closing.store(true, Ordering::Release);
        // Wakes the listener, which then sees that it should end.
        let _ = TcpStream::connect(self.address);
    }
}

impl Book {
    fn now_us(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("invariant: not poisoned")
    }

    /// Writes a call down; gives the arrival, and how often its step has called for its run.
    fn enter(&self, call: Call) -> std::io::Result<(Arrival, u32)> {
        let mut pages = self.pages();
        let count = pages.calls.entry((call.run.clone(), call.step.clone())).or_default();
        *count += 1;
        let count = *count;
        let number = u64::try_from(pages.log.len()).unwrap_or(u64::MAX) + 1;
        let refused = call.step.starts_with(FLAKY) && count == 1;
        let answer = (!refused).then(|| format!("n-{number}-{:08x}", random() >> 32));
        let arrival = Arrival { call, number, at_us: self.now_us(), answer };
        let mut line = serde_json::to_string(&arrival)?;
        line.push('\n');
        pages.file.write_all(line.as_bytes())?;
        pages.file.sync_data()?;
        pages.log.push(arrival.clone());
        Ok((arrival, count))
    }
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn serve(listener: &TcpListener, book: &Arc<Book>) {
    for stream in listener.incoming() {
        if book.closing.load(Ordering::Acquire) {
            return;
        }
        let (Ok(stream), book) = (stream, book.clone()) else {
            continue;
        };
        // A caller that is killed in mid-request leaves a broken stream; that is not an arrival.
        std::thread::spawn(move || converse(&stream, &book));
    }
}

/// One request and its answer.
fn converse(stream: &TcpStream, book: &Book) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let target: Vec<&str> = request.split_whitespace().take(2).collect();
    match target[..] {
        ["POST", "/effect"] => match serde_json::from_slice(&body) {
            Ok(call) => effect(stream, book, call),
            Err(error) => answer(stream, 400, &error.to_string()),
        },
        ["GET", "/log"] => {
            let log = book.pages().log.clone();
            answer(stream, 200, &serde_json::to_string(&log)?)
        }
        _ => answer(stream, 404, "there is only POST /effect and GET /log"),
    }
}

fn effect(stream: &TcpStream, book: &Book, call: Call) -> std::io::Result<()> {
    let (arrival, count) = book.enter(call)?;
    let step = arrival.call.step.as_str();
    if step.starts_with(SLOW) {
        std::thread::sleep(SLOW_FOR);
    } else if step.starts_with(STALL) && count == 1 {
        std::thread::sleep(STALL_FOR);
    }
    match &arrival.answer {
        Some(nonce) => answer(stream, 200, nonce),
        None => answer(stream, 503, "not this time"),
    }
}

fn answer(mut stream: &TcpStream, status: u16, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\n", body.len());
    stream.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes())
}

/// Calls a ledger from a worker process.
#[derive(Debug, Clone)]
pub struct LedgerClient {
    address: String,
    worker: String,
}

impl LedgerClient {
    /// A client that signs its calls with the life of its process.
    pub fn new(address: impl Into<String>, worker: impl Into<String>) -> Self {
        Self { address: address.into(), worker: worker.into() }
    }

    /// Makes one call; gives the ledger's nonce, or why there is none.
    pub async fn call(&self, run: &str, step: &str, key: &str) -> Result<String, String> {
        let call = Call {
            run: run.to_owned(),
            step: step.to_owned(),
            nonce: format!("{:016x}", random()),
            key: key.to_owned(),
            worker: self.worker.clone(),
        };
        let body = serde_json::to_string(&call).map_err(|e| e.to_string())?;
        let reply = self.post(&body).await.map_err(|e| format!("the ledger is away: {e}"))?;
        match reply.split_once("\r\n\r\n") {
            Some((head, nonce)) if head.starts_with("HTTP/1.1 200 ") => Ok(nonce.to_owned()),
            _ => Err(format!("the ledger refused: {reply}")),
        }
    }

    async fn post(&self, body: &str) -> std::io::Result<String> {
        let mut stream = tokio::net::TcpStream::connect(&self.address).await?;
        let head = format!("POST /effect HTTP/1.1\r\nHost: {}\r\n", self.address);
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_call_is_numbered_kept_on_disk_and_answered_with_a_fresh_nonce() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ledger");
        let ledger = Ledger::open(&file).unwrap();
        let client = LedgerClient::new(ledger.address(), "w1");
        let first = client.call("run", "a", "").await.unwrap();
        let second = client.call("run", "a", "key").await.unwrap();
        assert_ne!(first, second);
        let log = ledger.log();
        assert_eq!(log.iter().map(|a| a.number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(log[1].call.key, "key");
        assert_eq!(log[0].answer, Some(first));
        let kept: Vec<Arrival> = std::fs::read_to_string(&file)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(kept, log);
    }

    #[tokio::test]
    async fn a_flaky_step_is_refused_once_and_the_log_can_be_read_over_http() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&dir.path().join("ledger")).unwrap();
        let client = LedgerClient::new(ledger.address(), "w1");
        assert!(client.call("run", "flaky", "").await.is_err());
        assert!(client.call("run", "flaky", "").await.is_ok());
        let mut stream = TcpStream::connect(ledger.address()).unwrap();
        stream.write_all(b"GET /log HTTP/1.1\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        assert_eq!(serde_json::from_str::<Vec<Arrival>>(body).unwrap(), ledger.log());
    }
}
