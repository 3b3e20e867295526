//! The socket of a writer, which can be asked for an answer instead of waited for.
//!
//! Whoever sleeps until an answer comes is woken some 50 µs after it came. A run alone waits for
//! one answer after the other, so a sixth of its time is that.
//!
//! Invariants: what is read is read once, whichever way; a socket that is not eager is read when
//! the runtime says that it can be.
//! Deliberately absent: connections to one of several hosts, which the driver makes and reads as it
//! does.

use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// The port where a URL names none.
const PORT: u16 = 5432;

/// Whether answers are to be looked for.
pub(super) type Eager = Arc<AtomicBool>;

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connected socket.
pub(super) struct Wire {
    socket: Box<dyn Duplex>,
    /// The same socket, read without asking the runtime.
    raw: Box<dyn Read + Send>,
    eager: Eager,
}

impl Wire {
    /// Connects to the one host of a configuration; `None` if there are several, or none.
    pub(super) async fn connect(config: &Config, eager: &Eager) -> io::Result<Option<Self>> {
        let [host] = config.get_hosts() else { return Ok(None) };
        if !config.get_hostaddrs().is_empty() {
            return Ok(None);
        }
        let port = config.get_ports().first().copied().unwrap_or(PORT);
        let at_most = config.get_connect_timeout().copied().unwrap_or(Duration::MAX);
        let eager = eager.clone();
        let made = async {
            match host {
                Host::Tcp(name) => Self::tcp(config, name, port, eager).await,
                Host::Unix(folder) => Self::unix(folder, port, eager).await,
            }
        };
        let made = tokio::time::timeout(at_most, made).await;
        made.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())).map(Some)
    }

    async fn tcp(config: &Config, name: &str, port: u16, eager: Eager) -> io::Result<Self> {
        let socket = TcpStream::connect((name, port)).await?;
        socket.set_nodelay(true)?;
        let options = SockRef::from(&socket);
        #[cfg(target_os = "linux")]
        options.set_tcp_user_timeout(config.get_tcp_user_timeout().copied())?;
        let mut alive = TcpKeepalive::new().with_time(config.get_keepalives_idle());
        if let Some(interval) = config.get_keepalives_interval() {
            alive = alive.with_interval(interval);
        }
        if let Some(retries) = config.get_keepalives_retries() {
            alive = alive.with_retries(retries);
        }
        options.set_tcp_keepalive(&alive)?;
        let socket = socket.into_std()?;
        let raw = Box::new(socket.try_clone()?);
        Ok(Self { socket: Box::new(TcpStream::from_std(socket)?), raw, eager })
    }

    async fn unix(folder: &Path, port: u16, eager: Eager) -> io::Result<Self> {
        let socket = UnixStream::connect(folder.join(format!(".s.PGSQL.{port}"))).await?;
        let socket = socket.into_std()?;
        let raw = Box::new(socket.try_clone()?);
        Ok(Self { socket: Box::new(UnixStream::from_std(socket)?), raw, eager })
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let told = Pin::new(&mut self.socket).poll_read(cx, into);
        if told.is_ready() || !self.eager.load(Ordering::Relaxed) {
            return told;
        }
        match self.raw.read(into.initialize_unfilled()) {
            Ok(count) => {
                into.advance(count);
                Poll::Ready(Ok(()))
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
