//! A receiver over HTTP that keeps what it gets and answers as it was told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// How to answer.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// A status line, with further headers.
    Status(&'static str),
    /// Not at all.
    Silence,
}

/// The receiver. It stops with the test's runtime.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) url: String,
    got: Arc<Mutex<Vec<Request>>>,
    script: Arc<Mutex<VecDeque<Answer>>>,
}

impl Receiver {
    /// Answers by the script, and `200 OK` when it is over.
    pub(crate) async fn new(script: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let script = Arc::new(Mutex::new(script.into_iter().collect()));
        let receiver = Self { url, got: Arc::default(), script };
        let serving = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        receiver
    }

    pub(crate) fn got(&self) -> Vec<Request> {
        self.got.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.got.lock().unwrap().len()
    }

    async fn serve(self, mut stream: TcpStream) {
        let request = read(&mut stream).await;
        let answer = self.script.lock().unwrap().pop_front();
        self.got.lock().unwrap().push(request);
        let status = match answer {
            Some(Answer::Status(status)) => status,
            Some(Answer::Silence) => std::future::pending().await,
            None => "200 OK",
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
        let _ = stream.shutdown().await;
    }
}

pub(crate) async fn read(stream: &mut TcpStream) -> Request {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    loop {
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let headers: Vec<_> = head
                .lines()
                .skip(1)
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect();
            let length = headers.iter().find(|(name, _)| name == "content-length");
            let length = length.map_or(0, |(_, value)| value.parse().unwrap());
            if body.len() >= length {
                return Request { headers, body: body.to_owned() };
            }
        }
        let count = stream.read(&mut part).await.unwrap();
        assert!(count > 0, "a request is whole");
        text.extend_from_slice(&part[..count]);
    }
}
