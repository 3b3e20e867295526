//! A worker whose SQLite file is removed under it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::time::{Duration, Instant};

use steadfast::{Client, Cx, Error, Result, Steadfast};
use steadfast_testkit::db::TestDb;

async fn idle(cx: Cx, _: ()) -> Result<()> {
    cx.step("wait", || async {
        std::future::pending::<()>().await;
        Ok::<_, Error>(())
    })
    .await
}

/// The worker stops, whoever waits is told, and nothing is written to a file that is made anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_stops_within_a_second_of_the_removal_of_its_file() {
    let db = TestDb::sqlite();
    let path = std::path::PathBuf::from(db.url.strip_prefix("sqlite://").unwrap());
    let fabric = Steadfast::open(&db.url).workflow(idle).start().await.unwrap();
    let elsewhere = Client::connect(&db.url).await.unwrap();
    let run = fabric.start(idle, ()).await.unwrap();
    let waits = elsewhere.run::<()>(run.id());
    let waits = tokio::spawn(async move { waits.result().await });
    let mine = tokio::spawn({
        let run = fabric.run::<()>(run.id());
        async move { run.result().await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    std::fs::remove_file(&path).unwrap();
    let removed = Instant::now();
    let stopped = fabric.run_until_stopped();
    let fault = tokio::time::timeout(Duration::from_secs(9), stopped).await.unwrap().unwrap_err();
    assert_eq!(fault.code(), "SF-0406");
    assert!(fault.message().contains(path.to_str().unwrap()), "{fault}");
    assert!(removed.elapsed() < Duration::from_secs(1), "{:?}", removed.elapsed());
    for told in [waits, mine] {
        let told = tokio::time::timeout(Duration::from_secs(9), told).await.unwrap().unwrap();
        assert_eq!(told.unwrap_err().code(), "SF-0406");
    }
    assert_eq!(fabric.start(idle, ()).await.err().unwrap().code(), "SF-0406");
    assert_eq!(elsewhere.get("r").await.unwrap_err().code(), "SF-0406");
    assert_eq!(fabric.live_runs(), 0);
    assert!(!path.exists());
}
