//! The caller's own SQL in company of the engine's: steps that commit with their record, and starts
//! that commit with the caller, on each database.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

mod panics;

use std::time::Duration;

use steadfast::mysql::mysql_async::{self, prelude::Queryable as _};
use steadfast::postgres::tokio_postgres;
use steadfast::sqlite::rusqlite;
use steadfast::{Cx, Error, Result, RunStatus, Steadfast};
use steadfast_testkit::db::TestDb;

const SOON: Duration = Duration::from_secs(60);
const TABLE: &str = "CREATE TABLE booking (amount BIGINT NOT NULL)";
const BOOK: &str = "INSERT INTO booking (amount) VALUES (7)";
const COUNT: &str = "SELECT COUNT(*) FROM booking";

async fn book_sqlite(cx: Cx, fail: bool) -> Result<i64> {
    let body = move |db: &rusqlite::Connection| {
        db.execute(BOOK, []).map_err(Error::from_any)?;
        let all = db.query_row(COUNT, [], |row| row.get(0)).map_err(Error::from_any)?;
        if fail { Err(Error::app("overdrawn")) } else { Ok::<i64, Error>(all) }
    };
    let booked = steadfast::sqlite::transaction(&cx, "book", body).await?;
    cx.sleep(Duration::from_millis(100)).await?; // suspended and replayed: not booked again
    Ok(booked)
}

async fn nothing(_: Cx, _: ()) -> Result<()> {
    Ok(())
}

#[tokio::test]
async fn on_sqlite_a_booking_and_its_record_are_one_commit() {
    let db = TestDb::sqlite();
    let path = db.url.trim_start_matches("sqlite://").to_owned();
    let fabric = Steadfast::open(&db.url).workflow(book_sqlite).workflow(nothing);
    let fabric = fabric.start().await.unwrap();
    let mut outside = rusqlite::Connection::open(path).unwrap();
    outside.busy_timeout(Duration::from_secs(10)).unwrap();
    outside.execute(TABLE, []).unwrap();
    let run = fabric.start(book_sqlite, false).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 1);
    let failed = fabric.start(book_sqlite, true).await.unwrap();
    assert_eq!(failed.result_within(SOON).await.unwrap_err().message(), "overdrawn");
    assert_eq!(fabric.steps(failed.id()).await.unwrap().len(), 1, "the error is recorded");
    let count: i64 = outside.query_row(COUNT, [], |row| row.get(0)).unwrap();
    assert_eq!(count, 1, "the failed booking left nothing");

    let tx = outside.transaction().unwrap();
    tx.execute(BOOK, []).unwrap();
    fabric.start(nothing, ()).id("gone").in_sqlite(&tx).unwrap();
    tx.rollback().unwrap();
    assert_eq!(fabric.get("gone").await.unwrap_err().code(), "SF-0109");
    let tx = outside.transaction().unwrap();
    let kept = fabric.start(nothing, ()).id("kept").in_sqlite(&tx).unwrap();
    tx.commit().unwrap();
    kept.result_within(SOON).await.unwrap();
    assert_eq!(kept.status().await.unwrap(), RunStatus::Success);
    fabric.shutdown().await;
}

/// SQL that cannot be committed, or that ends the transaction which it shares with others.
async fn spoil_sqlite(cx: Cx, sql: String) -> Result<()> {
    let body = move |db: &rusqlite::Connection| db.execute_batch(&sql);
    steadfast::sqlite::transaction(&cx, "spoil", body).await
}

async fn same(n: u32) -> Result<u32> {
    Ok(n)
}

async fn innocent(cx: Cx, n: u32) -> Result<u32> {
    for _ in 0..5 {
        cx.step(same, n).await?;
    }
    Ok(n)
}

#[tokio::test]
async fn on_sqlite_sql_that_spoils_a_commit_fails_alone() {
    let db = TestDb::sqlite();
    let path = db.url.trim_start_matches("sqlite://").to_owned();
    let fabric = Steadfast::open(&db.url).workflow(spoil_sqlite).workflow(innocent);
    let fabric = fabric.start().await.unwrap();
    let outside = rusqlite::Connection::open(path).unwrap();
    outside.busy_timeout(Duration::from_secs(10)).unwrap();
    let tables = "CREATE TABLE account (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK);
        INSERT INTO account VALUES (1); CREATE TABLE entry
        (account INTEGER REFERENCES account DEFERRABLE INITIALLY DEFERRED);";
    outside.execute_batch(tables).unwrap();
    let spoiling = [
        ("INSERT INTO entry VALUES (2)", "FOREIGN KEY"),
        ("INSERT INTO account VALUES (1)", "UNIQUE"),
        ("INSERT INTO entry VALUES (1); ROLLBACK", "ended the transaction"),
        ("INSERT INTO entry VALUES (1); ROLLBACK; BEGIN", "ended the transaction"),
    ];
    for (sql, why) in spoiling.into_iter().cycle().take(40) {
        let innocents = (0..16).map(|n| {
            let run = fabric.start(innocent, n);
            async move { run.await.unwrap().result_within(SOON).await.unwrap() }
        });
        let spoilt = async {
            let run = fabric.start(spoil_sqlite, sql.to_owned()).await.unwrap();
            run.result_within(SOON).await.unwrap_err()
        };
        let (error, ended) = futures::join!(spoilt, futures::future::join_all(innocents));
        assert!(error.message().contains(why), "{sql}: {error}");
        assert_eq!(ended, (0..16).collect::<Vec<_>>());
    }
    let entries = outside.query_row("SELECT COUNT(*) FROM entry", [], |row| row.get::<_, i64>(0));
    assert_eq!(entries.unwrap(), 0);
    fabric.shutdown().await;
}

async fn book_postgres(cx: Cx, fail: bool) -> Result<i64> {
    use steadfast::postgres::{failed, transaction};
    let booked = transaction(&cx, "book", move |tx: &tokio_postgres::Transaction<'_>| {
        Box::pin(async move {
            tx.execute(BOOK, &[]).await.map_err(failed)?;
            let all: i64 = tx.query_one(COUNT, &[]).await.map_err(failed)?.get(0);
            if fail { Err(Error::app("overdrawn")) } else { Ok(all) }
        })
    });
    let booked = booked.await?;
    cx.sleep(Duration::from_millis(100)).await?;
    Ok(booked)
}

#[tokio::test]
async fn on_postgres_a_booking_and_its_record_are_one_commit() {
    let Some(db) = TestDb::postgres() else { return };
    let fabric = Steadfast::open(&db.url).workflow(book_postgres).workflow(nothing);
    let fabric = fabric.start().await.unwrap();
    let (mut outside, connection) =
        tokio_postgres::connect(&db.url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    outside.batch_execute(TABLE).await.unwrap();
    let run = fabric.start(book_postgres, false).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 1);
    let failed = fabric.start(book_postgres, true).await.unwrap();
    assert_eq!(failed.result_within(SOON).await.unwrap_err().message(), "overdrawn");
    assert_eq!(fabric.steps(failed.id()).await.unwrap().len(), 1, "the error is recorded");
    let count: i64 = outside.query_one(COUNT, &[]).await.unwrap().get(0);
    assert_eq!(count, 1, "the failed booking left nothing");

    let tx = outside.transaction().await.unwrap();
    fabric.start(nothing, ()).id("gone").in_postgres(&tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(fabric.get("gone").await.unwrap_err().code(), "SF-0109");
    let tx = outside.transaction().await.unwrap();
    let kept = fabric.start(nothing, ()).id("kept").in_postgres(&tx).await.unwrap();
    tx.commit().await.unwrap();
    kept.result_within(SOON).await.unwrap();
    fabric.shutdown().await;
}

async fn book_mysql(cx: Cx, fail: bool) -> Result<i64> {
    use steadfast::mysql::{failed, transaction};
    let booked = transaction(&cx, "book", move |tx: &mut mysql_async::Transaction<'_>| {
        Box::pin(async move {
            tx.query_drop(BOOK).await.map_err(failed)?;
            let all: Option<i64> = tx.query_first(COUNT).await.map_err(failed)?;
            if fail { Err(Error::app("overdrawn")) } else { Ok(all.unwrap_or(0)) }
        })
    });
    let booked = booked.await?;
    cx.sleep(Duration::from_millis(100)).await?;
    Ok(booked)
}

#[tokio::test]
async fn on_mysql_a_booking_and_its_record_are_one_commit() {
    let Some(db) = TestDb::mysql() else { return };
    let fabric = Steadfast::open(&db.url).workflow(book_mysql).workflow(nothing);
    let fabric = fabric.start().await.unwrap();
    let options = mysql_async::Opts::from_url(&db.url).unwrap();
    let mut outside = mysql_async::Conn::new(options).await.unwrap();
    outside.query_drop(TABLE).await.unwrap();
    let run = fabric.start(book_mysql, false).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), 1);
    let failed = fabric.start(book_mysql, true).await.unwrap();
    assert_eq!(failed.result_within(SOON).await.unwrap_err().message(), "overdrawn");
    assert_eq!(fabric.steps(failed.id()).await.unwrap().len(), 1, "the error is recorded");
    let count: Option<i64> = outside.query_first(COUNT).await.unwrap();
    assert_eq!(count, Some(1), "the failed booking left nothing");

    let mut tx = outside.start_transaction(mysql_async::TxOpts::default()).await.unwrap();
    fabric.start(nothing, ()).id("gone").in_mysql(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(fabric.get("gone").await.unwrap_err().code(), "SF-0109");
    let mut tx = outside.start_transaction(mysql_async::TxOpts::default()).await.unwrap();
    let kept = fabric.start(nothing, ()).id("kept").in_mysql(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    kept.result_within(SOON).await.unwrap();
    outside.disconnect().await.unwrap();
    fabric.shutdown().await;
}
