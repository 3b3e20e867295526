//! The caller's own SQL in company of the engine's: steps that commit with their record, and starts
//! that commit with the caller, on each database.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

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
