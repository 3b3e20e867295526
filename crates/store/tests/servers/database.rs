//! A database of a test's own on a server that a variable names.

use std::sync::atomic::{AtomicU32, Ordering};

use mysql_async::prelude::Queryable;
use steadfast_store::mysql::mysql_async;
use steadfast_store::postgres::tokio_postgres;
use steadfast_store::{OpenStore, open};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Postgres,
    Mysql,
}

pub(crate) struct Database {
    pub(crate) kind: Kind,
    admin: String,
    name: String,
}

/// Runs a test in a fresh database, if there is a server for it.
pub(crate) async fn with(kind: Kind, test: impl AsyncFnOnce(&Database)) {
    let variable = match kind {
        Kind::Postgres => "STEADFAST_TEST_POSTGRES_URL",
        Kind::Mysql => "STEADFAST_TEST_MYSQL_URL",
    };
    let Some(admin) = std::env::var(variable).ok().filter(|url| !url.is_empty()) else {
        eprintln!("skipped: {variable} is not set");
        return;
    };
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("steadfast_{}_{number}", std::process::id());
    let database = Database { kind, admin, name };
    database.admin(&format!("CREATE DATABASE {}", database.name)).await;
    test(&database).await;
    let force = if kind == Kind::Postgres { " WITH (FORCE)" } else { "" };
    database.admin(&format!("DROP DATABASE {}{force}", database.name)).await;
}

impl Database {
    pub(crate) fn url(&self) -> String {
        let (server, rest) = self.admin.rsplit_once('/').unwrap();
        let options = rest.split_once('?').map(|(_, o)| format!("?{o}")).unwrap_or_default();
        format!("{server}/{}{options}", self.name)
    }

    pub(crate) async fn open(&self) -> OpenStore {
        open(&self.url()).await.unwrap()
    }

    async fn admin(&self, sql: &str) {
        execute(self.kind, &self.admin, sql).await;
    }

    /// Runs a statement in the database.
    pub(crate) async fn execute(&self, sql: &str) {
        execute(self.kind, &self.url(), sql).await;
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        match self.kind {
            Kind::Postgres => self.postgres().await.query_one(sql, &[]).await.unwrap().get(0),
            Kind::Mysql => self.mysql().await.query_first(sql).await.unwrap().unwrap(),
        }
    }

    pub(crate) async fn postgres(&self) -> tokio_postgres::Client {
        postgres(&self.url()).await
    }

    pub(crate) async fn mysql(&self) -> mysql_async::Conn {
        mysql_async::Conn::from_url(self.url()).await.unwrap()
    }

    /// Cuts every connection to the database; says how many there were.
    pub(crate) async fn cut(&self) -> usize {
        match self.kind {
            Kind::Postgres => {
                let admin = postgres(&self.admin).await;
                let sql =
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
                admin.query(sql, &[&self.name]).await.unwrap().len()
            }
            Kind::Mysql => {
                let mut admin = mysql_async::Conn::from_url(&self.admin).await.unwrap();
                let list = "SELECT id FROM information_schema.processlist WHERE db = ?";
                let ids: Vec<u64> = admin.exec(list, (&self.name,)).await.unwrap();
                for id in &ids {
                    // It may have ended by itself.
                    let _ = admin.query_drop(format!("KILL CONNECTION {id}")).await;
                }
                ids.len()
            }
        }
    }
}

async fn execute(kind: Kind, url: &str, sql: &str) {
    match kind {
        Kind::Postgres => postgres(url).await.batch_execute(sql).await.unwrap(),
        Kind::Mysql => {
            let mut conn = mysql_async::Conn::from_url(url).await.unwrap();
            conn.query_drop(sql).await.unwrap();
        }
    }
}

async fn postgres(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
