//! A wire to a database server that is cut after a number of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The wire: everything passes until so many messages have gone to the server; then both ends are
/// cut, after the last message was handed on, and stay so.
pub(crate) struct Knife {
    pub(crate) url: String,
    cut: Arc<AtomicBool>,
}

impl Knife {
    pub(crate) async fn at(url: &str, messages: u32) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (authority, path) = rest.split_once('/').unwrap();
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (format!("{user}@"), host.to_owned()),
            None => (String::new(), authority.to_owned()),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{scheme}://{user}{}/{path}", listener.local_addr().unwrap());
        let (cut, postgres) = (Arc::new(AtomicBool::new(false)), scheme.starts_with("postgres"));
        let cuts = cut.clone();
        tokio::spawn(async move {
            let mut left = messages;
            while let Ok((client, _)) = listener.accept().await {
                if left == 0 {
                    continue;
                }
                let server = TcpStream::connect(&host).await.unwrap();
                left = carry(client, server, left, postgres).await;
                cuts.store(left == 0, Ordering::Relaxed);
            }
        });
        Self { url, cut }
    }

    pub(crate) fn has_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }
}

/// Carries messages until so many have passed, or one side is gone; gives how many are left.
async fn carry(mut client: TcpStream, server: TcpStream, left: u32, postgres: bool) -> u32 {
    let (mut from_server, mut to_server) = server.into_split();
    let (mut from_client, mut to_client) = client.split();
    let back = async {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
        0
    };
    let mut count = left;
    let mut first = postgres;
    let forth = async {
        while count > 0 {
            // The first message of Postgres has no type before its length.
            let head = match (postgres, first) {
                (true, true) | (false, _) => 4,
                (true, false) => 5,
            };
            let mut message = vec![0; head];
            if from_client.read_exact(&mut message).await.is_err() {
                return;
            }
            let length = match postgres {
                true => u32::from_be_bytes(message[head - 4..].try_into().unwrap()) as usize - 4,
                false => {
                    usize::from(message[0])
                        | usize::from(message[1]) << 8
                        | usize::from(message[2]) << 16
                }
            };
            message.resize(head + length, 0);
            if from_client.read_exact(&mut message[head..]).await.is_err() {
                return;
            }
            if to_server.write_all(&message).await.is_err() {
                return;
            }
            (first, count) = (false, count - 1);
        }
        // The server has a moment to do what it was told last.
        tokio::time::sleep(std::time::Duration::from_millis(15)).await;
    };
    tokio::select! {
        _ = back => {}
        () = forth => {}
    }
    count
}
