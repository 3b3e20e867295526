//! Finished runs in great number, as if the tables had been in use for a long time.
//!
//! One real run is copied, with its steps, by doubling: what the copies look like is what the
//! engine writes, whatever columns it has by then.

use bench_kit::Args;
use steadfast::parts::store::mysql::mysql_async::{self, prelude::Queryable};
use steadfast::parts::store::postgres::tokio_postgres::{self, NoTls};
use steadfast::parts::store::sqlite::rusqlite;
use steadfast::{Error, Result};

use super::{fabric, five};

/// Fills the tables with at least `n` finished runs of five steps.
pub(crate) async fn fill(args: &Args) -> Result<()> {
    let fabric = fabric(args).start().await?;
    fabric.start(five, 1).id("old-").await?.result().await?;
    fabric.shutdown().await;
    let doublings = usize::BITS - args.n.saturating_sub(1).leading_zeros();
    match args.url.split(':').next() {
        Some("sqlite") => sqlite(&args.url, doublings).map_err(Error::from_any),
        Some("postgres") => postgres(&args.url, doublings).await.map_err(Error::from_any),
        _ => mysql(&args.url, doublings).await.map_err(Error::from_any),
    }
}

/// Copies every old row of a table, with a letter added to the run's id.
fn double(table: &str, columns: &[String], id: &str) -> String {
    let copied = columns.iter().map(|name| if name == "run_id" { id } else { name.as_str() });
    let copied: Vec<&str> = copied.collect();
    format!(
        "INSERT INTO {table} ({}) SELECT {} FROM {table} WHERE run_id LIKE 'old-%'",
        columns.join(", "),
        copied.join(", ")
    )
}

const TABLES: [&str; 2] = ["run", "step"];

fn letter(doubling: u32) -> char {
    char::from(b'a' + u8::try_from(doubling % 26).unwrap_or(0))
}

fn sqlite(url: &str, doublings: u32) -> rusqlite::Result<()> {
    let connection = rusqlite::Connection::open(url.trim_start_matches("sqlite://"))?;
    for table in TABLES {
        let columns: Vec<String> = {
            let statement = connection.prepare(&format!("SELECT * FROM {table}"))?;
            statement.column_names().map(str::to_owned).collect()
        };
        for doubling in 0..doublings {
            let id = format!("run_id || '{}'", letter(doubling));
            connection.execute_batch(&double(table, &columns, &id))?;
        }
    }
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
}

async fn postgres(url: &str, doublings: u32) -> std::result::Result<(), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    for table in TABLES {
        let statement = client.prepare(&format!("SELECT * FROM {table}")).await?;
        let columns: Vec<String> =
            statement.columns().iter().map(|column| column.name().to_owned()).collect();
        for doubling in 0..doublings {
            let id = format!("run_id || '{}'", letter(doubling));
            client.batch_execute(&double(table, &columns, &id)).await?;
        }
        client.batch_execute(&format!("VACUUM ANALYZE {table}")).await?;
    }
    client.batch_execute("CHECKPOINT").await
}

async fn mysql(url: &str, doublings: u32) -> std::result::Result<(), mysql_async::Error> {
    let mut connection = mysql_async::Conn::from_url(url).await?;
    for table in TABLES {
        let columns: Vec<String> = connection
            .query(format!(
                "SELECT column_name FROM information_schema.columns \
                 WHERE table_schema = DATABASE() AND table_name = '{table}'"
            ))
            .await?;
        for doubling in 0..doublings {
            let id = format!("CONCAT(run_id, '{}')", letter(doubling));
            connection.query_drop(double(table, &columns, &id)).await?;
        }
    }
    connection.disconnect().await
}
