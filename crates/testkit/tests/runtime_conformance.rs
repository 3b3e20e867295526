//! The runtime suite on the model and on every database there is.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use steadfast_store::OpenStore;
use steadfast_testkit::db::TestDb;
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::suite::runtime::{Fixture, cases};

/// Runs every case on a runtime of its own, several at a time, and names all that fail.
async fn conforms(store: OpenStore) {
    let filter = std::env::var("STEADFAST_CASE").unwrap_or_default();
    let chosen = cases().into_iter().filter(|(name, _)| name.contains(&filter));
    let results = futures::stream::iter(chosen).map(|(name, case)| {
        let fixture = Fixture::new(store.clone(), name);
        let alone = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(case(fixture));
        };
        tokio::task::spawn_blocking(alone).map(move |ended| (name, ended.is_ok()))
    });
    let results: Vec<_> = results.buffer_unordered(8).collect().await;
    let failed: Vec<_> = results.iter().filter(|(_, ok)| !ok).map(|(name, _)| name).collect();
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:#?}", failed.len(), results.len());
    println!("{} cases passed", results.len());
}

async fn conforms_on(db: Option<TestDb>) {
    let Some(db) = db else { return };
    conforms(steadfast_store::open(&db.url).await.unwrap()).await;
}

/// R98 R102
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r098_the_model_conforms() {
    conforms(Arc::new(ModelStore::default())).await;
}

/// R98
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r098_sqlite_conforms() {
    conforms_on(Some(TestDb::sqlite())).await;
}

/// R98 R96: on Postgres wake-ups are pushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r098_postgres_conforms() {
    conforms_on(TestDb::postgres()).await;
}

/// R98 R96: on MySQL and MariaDB there is only polling between processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r098_mysql_conforms() {
    conforms_on(TestDb::mysql()).await;
}
