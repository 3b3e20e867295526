//! MariaDB: a few connections, each batch one text of several statements.

use std::fmt::Write as _;
use std::sync::Arc;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error};

use super::{Inbox, OUTPUT, Rows, WRITERS};

const SCHEMA: &[&str] = &[
    "CREATE TABLE run (id VARCHAR(64) CHARACTER SET ascii PRIMARY KEY, name VARCHAR(64), \
        status BIGINT, queue VARCHAR(64), input TEXT, output TEXT, created BIGINT, \
        updated BIGINT, KEY (queue, status)) ENGINE = InnoDB",
    "CREATE TABLE step (run VARCHAR(64) CHARACTER SET ascii, seq BIGINT, name VARCHAR(64), \
        output TEXT, started BIGINT, ended BIGINT, PRIMARY KEY (run, seq)) ENGINE = InnoDB",
];
/// Two writers can meet on InnoDB's index locks: the victim is rolled back and tries again.
const DEADLOCK: u16 = 1213;

pub(super) async fn spawn(url: &str, inbox: &Arc<Inbox>) {
    let mut first = Conn::from_url(url).await.expect("a server");
    for sql in SCHEMA {
        first.query_drop(*sql).await.expect("a fresh database");
    }
    for _ in 0..WRITERS {
        let mut conn = Conn::from_url(url).await.expect("a server");
        let inbox = inbox.clone();
        tokio::spawn(async move {
            loop {
                let batch = inbox.next().await;
                let sql = text(&Rows::of(&batch));
                loop {
                    match conn.query_drop(&sql).await {
                        Ok(()) => break,
                        Err(Error::Server(e)) if e.code == DEADLOCK => {
                            conn.query_drop("ROLLBACK").await.expect("the server goes on");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                inbox.committed(batch);
            }
        });
    }
}

/// The ids are ours and hold no quotes.
fn text(rows: &Rows<'_>) -> String {
    let mut sql = String::from("BEGIN;");
    let list =
        |sql: &mut String, head: &str, items: &mut dyn Iterator<Item = String>, tail: &str| {
            let items: Vec<String> = items.collect();
            if !items.is_empty() {
                let _ = write!(sql, "{head}{}{tail};", items.join(","));
            }
        };
    let start = |(run, queued): &(&str, bool)| {
        let queue = if *queued { "'bench'" } else { "NULL" };
        format!("('{run}','five',{},{queue},'1',NULL,1,1)", i64::from(!queued))
    };
    list(&mut sql, "INSERT INTO run VALUES ", &mut rows.starts.iter().map(start), "");
    let step = |(run, seq): &(&str, i64)| format!("('{run}',{seq},'work','{OUTPUT}',1,2)");
    list(&mut sql, "INSERT INTO step VALUES ", &mut rows.steps.iter().map(step), "");
    let end = format!("UPDATE run SET status = 2, output = '{OUTPUT}', updated = 2 WHERE id IN (");
    list(&mut sql, &end, &mut rows.ends.iter().map(|run| format!("'{run}'")), ")");
    sql + "COMMIT"
}
