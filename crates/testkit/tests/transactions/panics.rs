//! Transactions whose bodies panic: each fails alone, its writes are taken back, and the store
//! goes on.

use std::time::Duration;

use futures::future::join_all;
use steadfast::mysql::mysql_async::{self, prelude::Queryable as _};
use steadfast::postgres::tokio_postgres;
use steadfast::sqlite::rusqlite;
use steadfast::{Cx, Error, Result, StartCall, Steadfast};
use steadfast_testkit::db::{DbKind, TestDb, command};

use super::{BOOK, COUNT, SOON, TABLE, innocent};

/// How a body ends.
const HOWS: [&str; 3] = ["well", "panic", "panic in a query"];

fn told(booked: Result<i64>) -> String {
    booked.map_or_else(|error| error.to_string(), |count| format!("{count} booked"))
}

async fn on_sqlite(cx: Cx, how: String) -> Result<String> {
    let body = move |db: &rusqlite::Connection| {
        db.execute(BOOK, []).map_err(Error::from_any)?;
        if how == "panic in a query" {
            let mut rows = db.prepare(COUNT).map_err(Error::from_any)?;
            let mut rows = rows.query([]).map_err(Error::from_any)?;
            let row = rows.next().map_err(Error::from_any)?;
            panic!("boom with {}", row.is_some());
        }
        assert!(how == "well", "boom");
        db.query_row(COUNT, [], |row| row.get(0)).map_err(Error::from_any)
    };
    let booked = told(steadfast::sqlite::transaction(&cx, "book", body).await);
    // Replayed: what is on record is the same.
    cx.sleep(Duration::from_millis(50)).await?;
    Ok(booked)
}

async fn on_postgres(cx: Cx, how: String) -> Result<String> {
    use steadfast::postgres::{failed, transaction};
    let booked = transaction(&cx, "book", move |tx: &tokio_postgres::Transaction<'_>| {
        let how = how.clone();
        Box::pin(async move {
            tx.execute(BOOK, &[]).await.map_err(failed)?;
            if how == "panic in a query" {
                let query = tx.query_one("SELECT pg_sleep(0.2)", &[]);
                let _ = futures::future::join(query, async { panic!("boom in a query") }).await;
            }
            assert!(how == "well", "boom");
            Ok(tx.query_one(COUNT, &[]).await.map_err(failed)?.get(0))
        })
    });
    let booked = told(booked.await);
    cx.sleep(Duration::from_millis(50)).await?;
    Ok(booked)
}

async fn on_mysql(cx: Cx, how: String) -> Result<String> {
    use steadfast::mysql::{failed, transaction};
    let booked = transaction(&cx, "book", move |tx: &mut mysql_async::Transaction<'_>| {
        let how = how.clone();
        Box::pin(async move {
            tx.query_drop(BOOK).await.map_err(failed)?;
            if how == "panic in a query" {
                let query = tx.query_drop("DO SLEEP(0.2)");
                let _ = futures::future::join(query, async { panic!("boom in a query") }).await;
            }
            assert!(how == "well", "boom");
            let all: Option<i64> = tx.query_first(COUNT).await.map_err(failed)?;
            Ok(all.unwrap_or(0))
        })
    });
    let booked = told(booked.await);
    cx.sleep(Duration::from_millis(50)).await?;
    Ok(booked)
}

/// More of them than a store has connections for transactions, in company.
async fn panics_fail_alone(
    (db, kind): (&TestDb, DbKind),
    fabric: Steadfast,
    start: impl Fn(&Steadfast, String) -> StartCall<String>,
) {
    let mut booked = 0;
    for how in HOWS.into_iter().cycle().take(24) {
        let innocents = join_all((0..4).map(|n| {
            let run = fabric.start(innocent, n);
            async move { run.await.unwrap().result_within(SOON).await.unwrap() }
        }));
        let run = start(&fabric, how.to_owned()).await.unwrap();
        let (told, ended) = futures::join!(run.result_within(SOON), innocents);
        assert_eq!(ended, [0, 1, 2, 3]);
        let told = told.unwrap();
        if how == "well" {
            booked += 1;
            assert_eq!(told, format!("{booked} booked"), "what panicked left nothing");
        } else {
            let panic = "transaction \"book\" panicked: boom";
            assert!(told.starts_with(panic) && told.ends_with("[SF-0205]"), "{told}");
            assert_eq!(fabric.steps(run.id()).await.unwrap().len(), 2, "it is recorded");
        }
    }
    assert_eq!(fabric.tally().panics, 0, "they are not the store's");
    let stopped = tokio::time::timeout(SOON / 2, fabric.shutdown()).await;
    assert!(stopped.is_ok() && fabric.live_runs() == 0, "something is held");
    drop(fabric);
    // Nothing is locked either.
    command(kind, &db.url, "DELETE FROM booking").unwrap();
}

async fn started((db, kind): (&TestDb, DbKind), builder: steadfast::Builder) -> Steadfast {
    let fabric = builder.workflow(innocent).drain(SOON).start().await.unwrap();
    command(kind, &db.url, TABLE).unwrap();
    fabric
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_panic_fail_alone_on_sqlite() {
    let db = TestDb::sqlite();
    let of = (&db, DbKind::Sqlite);
    let fabric = started(of, Steadfast::open(&db.url).workflow(on_sqlite)).await;
    panics_fail_alone(of, fabric, |fabric, how| fabric.start(on_sqlite, how)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_panic_fail_alone_on_postgres() {
    let Some(db) = TestDb::postgres() else { return };
    let of = (&db, DbKind::Postgres);
    let fabric = started(of, Steadfast::open(&db.url).workflow(on_postgres)).await;
    panics_fail_alone(of, fabric, |fabric, how| fabric.start(on_postgres, how)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_panic_fail_alone_on_mysql() {
    let Some(db) = TestDb::mysql() else { return };
    let of = (&db, DbKind::Mysql);
    let fabric = started(of, Steadfast::open(&db.url).workflow(on_mysql)).await;
    panics_fail_alone(of, fabric, |fabric, how| fabric.start(on_mysql, how)).await;
}
