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

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};

/// The port where a URL names none.
pub(super) const PORT: u16 = 5432;
/// Bytes of an answer that are read at once: most have thirty.
const ANSWER: usize = 512;

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
    /// Connects to the one host of a configuration. `None` if that cannot be, or if the driver
    /// would have to choose between servers.
    pub(super) async fn connect(config: &Config, eager: &Eager) -> Option<Self> {
        let [host] = config.get_hosts() else { return None };
        let is_any = config.get_target_session_attrs() == TargetSessionAttrs::Any
            && config.get_load_balance_hosts() == LoadBalanceHosts::Disable
            && config.get_hostaddrs().is_empty();
        if !is_any {
            return None;
        }
        let port = config.get_ports().first().copied().unwrap_or(PORT);
        let at_most = config.get_connect_timeout().copied()?;
        let eager = eager.clone();
        let made = async {
            match host {
                Host::Tcp(name) => Self::tcp(config, name, port, eager).await,
                Host::Unix(folder) => Self::unix(folder, port, eager).await,
            }
        };
        tokio::time::timeout(at_most, made).await.ok()?.ok()
    }

    async fn tcp(config: &Config, name: &str, port: u16, eager: Eager) -> io::Result<Self> {
        let socket = TcpStream::connect((name, port)).await?;
        socket.set_nodelay(true)?;
        let options = SockRef::from(&socket);
        #[cfg(target_os = "linux")]
        options.set_tcp_user_timeout(config.get_tcp_user_timeout().copied())?;
        if config.get_keepalives() {
            options.set_tcp_keepalive(&keepalive(config))?;
        }
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

/// How often a connection that is silent is asked whether it is still there.
fn keepalive(config: &Config) -> TcpKeepalive {
    let mut alive = TcpKeepalive::new().with_time(config.get_keepalives_idle());
    if let Some(interval) = config.get_keepalives_interval() {
        alive = alive.with_interval(interval);
    }
    match config.get_keepalives_retries() {
        Some(retries) => alive.with_retries(retries),
        None => alive,
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
        let mut some = [0; ANSWER];
        let most = ANSWER.min(into.remaining());
        match self.raw.read(&mut some[..most]) {
            Ok(count) => {
                into.put_slice(&some[..count]);
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
