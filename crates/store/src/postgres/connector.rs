//! How to connect to Postgres, and what a session is set to.
//!
//! Invariants: whatever is wrong with a URL is said once, at the opening; a server that cannot be
//! reached may be later.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use futures::FutureExt;
use tokio_postgres::config::{Host as Address, SslMode};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{Client, Config, Connection, NoTls, Socket};

use super::connection::PgSession;
use super::drive::{Drive, Messages};
use super::fault;
use super::wire::{Eager, PORT, Wire};
use crate::bell::{Bell, News};
use crate::error::Error;
use crate::session::Connect;
use crate::tally::Counters;

/// What every session is set to. Escapes in texts are ours to decide, so the old reading is off. A
/// session that stands still inside a transaction holds row locks, and for no longer than a lease.
/// Plans are made while the tables are small and kept while they grow, so the ways that are good
/// for small tables only are closed: every statement of ours has an index that was made for it, and
/// a plan that fits any values.
/// Last, a large text that is thrown away: a server on glibc gives memory back to the system after
/// nearly every batch and is given it anew, page by page, for the next, until it has once freed a
/// large piece. That is a fifth of what a batch costs it.
const SETTINGS: &str = "SET statement_timeout = '60s'; SET lock_timeout = '10s'; \
    SET idle_in_transaction_session_timeout = '15s'; \
    SET default_transaction_isolation = 'read committed'; \
    SET standard_conforming_strings = on; SET client_min_messages = warning; \
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
    SET jit = off; SET plan_cache_mode = force_generic_plan; \
    SELECT octet_length(repeat(repeat(' ', 1024), 512))";
/// What the session of a writer is set to besides. Deadlocks are looked for only after a second;
/// not to wait that long for a lock gets around them sooner. Whoever waits in a crowd keeps the
/// others' rows locked meanwhile, so the crowd is rather taken apart.
const LANE: &str = "SET lock_timeout = '50ms'";

/// How to connect.
pub(super) struct Connector {
    config: Config,
    /// Fit for messages.
    url: String,
    place: String,
    bell: Arc<Bell>,
    pub(super) counters: Arc<Counters>,
    /// Sessions that were lost.
    lost: Arc<AtomicI64>,
}

impl Connector {
    pub(super) fn new(url: &str, bell: Arc<Bell>) -> Result<Self, Error> {
        let shown = steadfast_core::redact::address(url);
        let mut config: Config = url.parse().map_err(|e: tokio_postgres::Error| {
            Error::Refused(format!("\"{shown}\" is not a Postgres URL: {}", fault::text(&e)))
        })?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(Error::Refused(format!(
                "\"{shown}\" asks for TLS, which the Postgres store does not speak; use \
                 sslmode=disable over a trusted network or a local TLS proxy"
            )));
        }
        if config.get_application_name().is_none() {
            config.application_name("steadfast");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(5));
        }
        config.keepalives_idle(Duration::from_secs(30));
        config.keepalives_interval(Duration::from_secs(10));
        config.keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(30));
        let place = place(&config);
        Ok(Self { config, url: shown, place, bell, counters: Arc::default(), lost: Arc::default() })
    }

    /// Connects with a driver of its own for the connection's messages.
    pub(super) async fn connect_raw(
        &self,
    ) -> Result<(Client, Connection<Socket, NoTlsStream>), Error> {
        self.config.connect(NoTls).await.map_err(|error| self.why(&error))
    }

    /// Connects over a socket of ours, if that can be done. Whatever is in the way of it, the
    /// driver finds a way around or reports.
    async fn connect_wire(&self, eager: &Eager) -> Option<(Client, Messages)> {
        let wire = Wire::connect(&self.config, eager).await?;
        let (client, connection) = self.config.connect_raw(wire, NoTls).await.ok()?;
        Some((client, moved(connection)))
    }

    async fn session(&self, client: Client, drive: Option<Drive>) -> Result<PgSession, Error> {
        let is_lane = drive.is_some();
        let made = PgSession::new(client, drive, self.counters.clone(), self.lost.clone());
        let set = async {
            made.client.batch_execute(SETTINGS).await?;
            match is_lane {
                true => made.client.batch_execute(LANE).await,
                false => Ok(()),
            }
        };
        made.through(pin!(set)).await.map_err(|error| self.why(&error))?;
        Ok(made)
    }

    fn why(&self, error: &tokio_postgres::Error) -> Error {
        let text = fault::text(error);
        if !fault::is_final_at_open(error) {
            return Error::Transient(format!(
                "no connection to Postgres at {}: {text}",
                self.place
            ));
        }
        let what = match error.code() {
            Some(state) if fault::is_login(state) => "the login was refused",
            Some(_) => "the database cannot be used",
            None => "no connection can be made",
        };
        Error::Refused(format!("{what} for {}: {text}", self.url))
    }
}

/// The messages of a connection until its end, which whoever asks then is told of.
fn moved<C: Future + Send + 'static>(connection: C) -> Messages {
    connection.map(drop).boxed()
}

fn place(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(PORT);
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| match host {
        Address::Tcp(name) => format!("{name}:{}", port(at)),
        Address::Unix(path) => format!("{}:{}", path.display(), port(at)),
    });
    hosts.collect::<Vec<_>>().join(", ")
}

impl Connect for Connector {
    type Session = PgSession;
    const JOINS_QUEUES: bool = true;

    async fn connect(&self) -> Result<PgSession, Error> {
        let (client, connection) = self.connect_raw().await?;
        // It ends with the client, or with the connection's own end, which the client then reports.
        tokio::spawn(connection);
        self.session(client, None).await
    }

    async fn connect_lane(&self) -> Result<PgSession, Error> {
        let eager = Eager::default();
        let (client, drive) = match self.connect_wire(&eager).await {
            Some((client, messages)) => (client, Drive::new(messages, Some(eager))),
            None => {
                let (client, connection) = self.connect_raw().await?;
                (client, Drive::new(moved(connection), None))
            }
        };
        self.session(client, Some(drive)).await
    }

    fn database(&self) -> (&str, &Arc<Counters>) {
        (&self.url, &self.counters)
    }

    fn announce(&self, news: News) {
        self.bell.pull(news);
    }
}
