//! A CRM to try things on: real HTTP, a memory for keys, and a habit of failing.
//!
//! Invariants: what was done is counted once for each key, as a receiver that honours
//! Idempotency-Key does; each operation is down the first time, and loses its answer the second
//! time, after the work was done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The CRM. Cloning it gives the same one.
#[derive(Clone, Default)]
pub struct Crm(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    done: Vec<String>,
    keys: BTreeMap<String, String>,
    asked: BTreeMap<String, u32>,
    refuses: Option<String>,
}

impl Crm {
    /// Listens on a free port; gives the address.
    pub async fn listen(&self) -> std::io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let crm = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let crm = crm.clone();
                // A caller that goes away is its own affair.
                tokio::spawn(async move { drop(crm.serve(stream).await) });
            }
        });
        Ok(url)
    }

    /// Refuses an operation for good, such as `POST /followups`.
    pub fn refuse(&self, operation: &str) {
        self.lock().refuses = Some(operation.to_owned());
    }

    /// What was done, in order.
    pub fn done(&self) -> Vec<String> {
        self.lock().done.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics under this lock")
    }

    async fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let request = read(&mut stream).await?;
        let mut lines = request.lines();
        let mut words = lines.next().unwrap_or_default().split(' ');
        let operation =
            format!("{} {}", words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let key = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"))
            .map(|(_, value)| value.trim().trim_matches('"').to_owned());
        let (status, body) = self.answer(&operation, key.as_deref());
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await
    }

    fn answer(&self, operation: &str, key: Option<&str>) -> (&'static str, String) {
        let mut state = self.lock();
        let asked = state.asked.entry(operation.to_owned()).or_default();
        *asked += 1;
        let turn = *asked;
        if state.refuses.as_deref() == Some(operation) {
            return ("403 Forbidden", "{\"error\":\"not for this customer\"}".to_owned());
        }
        if turn == 1 {
            return ("503 Service Unavailable", "{}".to_owned());
        }
        let key = key.unwrap_or_default().to_owned();
        if !state.keys.contains_key(&key) {
            state.done.push(operation.to_owned());
            state.keys.insert(key, operation.to_owned());
        }
        if turn == 2 {
            return ("502 Bad Gateway", "{}".to_owned());
        }
        ("200 OK", "{\"ok\":true}".to_owned())
    }
}

/// One request: its head, and its body as far as it says.
async fn read(stream: &mut TcpStream) -> std::io::Result<String> {
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut part).await?;
        bytes.extend_from_slice(&part[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            if n == 0 {
                return Ok(text);
            }
            continue;
        };
        let length = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .and_then(|(_, value)| value.trim().parse::<usize>().ok());
        if n == 0 || body.len() >= length.unwrap_or(0) {
            return Ok(text);
        }
    }
}
