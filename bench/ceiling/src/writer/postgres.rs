//! Postgres: a few connections, each batch one statement.

use std::sync::Arc;

use tokio_postgres::{Client, NoTls};

use super::{Inbox, OUTPUT, Rows, WRITERS};

const SCHEMA: &str = "
    CREATE TABLE run (id text PRIMARY KEY, name text, status bigint, queue text, input text,
        output text, created bigint, updated bigint) WITH (fillfactor = 70);
    CREATE TABLE step (run text, seq bigint, name text, output text, started bigint,
        ended bigint, PRIMARY KEY (run, seq));
    CREATE INDEX ON run (queue) WHERE status = 0;";
/// The plan is made while the tables are empty: it must not be one for empty tables.
const PLANS: &str =
    "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";
const WRITE: &str = "
    WITH started AS (INSERT INTO run SELECT id, 'five', status, queue, '1', NULL, 1, 1
            FROM unnest($1::text[], $2::int8[], $3::text[]) AS n (id, status, queue)),
        stepped AS (INSERT INTO step SELECT run, seq, 'work', $6, 1, 2
            FROM unnest($4::text[], $5::int8[]) AS n (run, seq))
    UPDATE run SET status = 2, output = $6, updated = 2 WHERE id = ANY($7::text[])";

pub(super) async fn spawn(url: &str, inbox: &Arc<Inbox>) {
    connect(url).await.batch_execute(SCHEMA).await.expect("a fresh database");
    for _ in 0..WRITERS {
        let client = connect(url).await;
        client.batch_execute(PLANS).await.expect("settings every server knows");
        let write = client.prepare(WRITE).await.expect("tables made above");
        let inbox = inbox.clone();
        tokio::spawn(async move {
            loop {
                let batch = inbox.next().await;
                let rows = Rows::of(&batch);
                let status: Vec<i64> = rows.starts.iter().map(|(_, q)| i64::from(!q)).collect();
                let queue: Vec<Option<&str>> =
                    rows.starts.iter().map(|(_, queued)| queued.then_some("bench")).collect();
                let (starts, _): (Vec<&str>, Vec<bool>) = rows.starts.into_iter().unzip();
                let (steps, seqs): (Vec<&str>, Vec<i64>) = rows.steps.into_iter().unzip();
                let params: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
                    [&starts, &status, &queue, &steps, &seqs, &OUTPUT, &rows.ends];
                client.execute(&write, &params).await.expect("the server goes on");
                inbox.committed(batch);
            }
        });
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a server");
    tokio::spawn(connection);
    client
}
