//! Every store does what the model does, for 100,000 random operations.
//!
//! `STEADFAST_DIFF_SEED` replays one sequence and `STEADFAST_DIFF_OPS` its length; without a seed,
//! `STEADFAST_DIFF_OPS` is how many operations there are in all.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Instant;

use steadfast_store::Store;
use steadfast_testkit::db::{DbKind, TestDb};
use steadfast_testkit::differential::{self, Coverage, SEQUENCE};
use steadfast_testkit::model::ModelStore;

/// Operations over all stores.
const OPERATIONS: u64 = 100_000;
/// Sequences side by side on one store: they share commits, and show that workspaces do not mix.
const LANES: usize = 8;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_store_does_what_the_model_does() {
    let databases = TestDb::all();
    if let Some(seed) = setting("STEADFAST_DIFF_SEED") {
        let operations = setting("STEADFAST_DIFF_OPS").map_or(SEQUENCE, |n| n.try_into().unwrap());
        for db in &databases {
            let store = steadfast_store::open(&db.url).await.unwrap();
            if let Err(divergence) = differential::sequence(&*store, seed, operations).await {
                panic!("{:?}: {divergence}", db.kind());
            }
        }
        return;
    }
    let total = setting("STEADFAST_DIFF_OPS").unwrap_or(OPERATIONS);
    let servers = databases.len() as u64 - 1;
    let tests = databases.iter().map(|db| {
        // A server answers more slowly than a file: a fifth each, the file has the rest.
        let share = match db.kind() {
            DbKind::Sqlite => total - servers * (total / 5),
            DbKind::Postgres | DbKind::Mysql => total / 5,
        };
        tokio::spawn(differ(db.kind(), db.url.clone(), share))
    });
    let mut coverage = Coverage::default();
    for test in tests.collect::<Vec<_>>() {
        coverage.merge(&test.await.unwrap());
    }
    // The seeds are fixed, so this is no matter of luck: a kind that is missing is one that the
    // generator has stopped making.
    assert!(coverage.operations >= total);
    if total >= OPERATIONS {
        assert_eq!(coverage.missing(), [] as [&str; 0], "kinds of replies that were never met");
    }
}

async fn differ(kind: DbKind, url: String, operations: u64) -> Coverage {
    let (_databases, lanes) = lanes(kind, &url).await;
    let began = Instant::now();
    // Each store has seeds of its own: the same ones would find the same bugs.
    let first_seed = match kind {
        DbKind::Sqlite => 1,
        DbKind::Postgres => 1_000_001,
        DbKind::Mysql => 2_000_001,
    };
    match differential::run(lanes, first_seed, operations).await {
        Ok(coverage) => {
            println!("{kind:?}: {} operations in {:.1?}", coverage.operations, began.elapsed());
            coverage
        }
        Err(divergence) => panic!("{kind:?}: {divergence}"),
    }
}

/// The stores to run sequences on, side by side: one database for all of them, but on MySQL one for
/// each. A scan of InnoDB holds the row after its range for a moment, whosever it is, and `SKIP
/// LOCKED` beside it passes that row over: rightly, since it is found the next time, but the model
/// knows no next time.
async fn lanes(kind: DbKind, url: &str) -> (Vec<TestDb>, Vec<Arc<dyn Store>>) {
    if kind != DbKind::Mysql {
        return (Vec::new(), vec![steadfast_store::open(url).await.unwrap(); LANES]);
    }
    let databases: Vec<_> = (0..LANES).filter_map(|_| TestDb::mysql()).collect();
    let mut stores = Vec::new();
    for db in &databases {
        stores.push(steadfast_store::open(&db.url).await.unwrap());
    }
    (databases, stores)
}

#[tokio::test]
async fn the_generator_meets_every_kind_of_reply() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let coverage = differential::run(vec![store], 1, 160_000).await.unwrap();
    for (kind, count) in coverage.counts() {
        println!("{count:>6} {kind}");
    }
    assert_eq!(coverage.missing(), [] as [&str; 0]);
}
