//! The conformance suite on the model and on every database, and the lifecycle as the databases
//! enforce it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use steadfast_core::RunStatus;
use steadfast_store::Store;
use steadfast_testkit::db::{TestDb, command};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::suite::store::{CASES, run};

async fn conforms(name: &str, store: &dyn Store) {
    let failures = run(store).await;
    for failure in &failures {
        println!("{name}: {}: {}", failure.case, failure.message);
    }
    let failed: Vec<_> = failures.iter().map(|failure| failure.case).collect();
    assert!(failed.is_empty(), "{name}: {} of {} cases: {failed:#?}", failed.len(), CASES.len());
}

async fn database_conforms(db: Option<TestDb>) {
    let Some(db) = db else {
        return println!("skipped: no server");
    };
    let store = steadfast_store::open(&db.url).await.unwrap();
    conforms(&format!("{:?}", db.kind()), &*store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_conforms() {
    conforms("model", &ModelStore::new()).await;
}

/// R98
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_conforms() {
    database_conforms(Some(TestDb::sqlite())).await;
}

/// R98
#[tokio::test(flavor = "multi_thread")]
async fn postgres_conforms() {
    database_conforms(TestDb::postgres()).await;
}

/// R98
#[tokio::test(flavor = "multi_thread")]
async fn mysql_conforms() {
    database_conforms(TestDb::mysql()).await;
}

/// The columns that the shape rules of a status ask for.
fn shape(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Enqueued => "finished_at = NULL, parked = 0, worker = ''",
        RunStatus::Pending => "finished_at = NULL, parked = 0, worker = 'w'",
        RunStatus::Success
        | RunStatus::Error
        | RunStatus::RetriesExceeded
        | RunStatus::Cancelled => "finished_at = 1, parked = 0, worker = ''",
    }
}

/// R73, R74: the database itself refuses a move that the lifecycle does not have.
#[tokio::test(flavor = "multi_thread")]
async fn every_database_refuses_every_illegal_move() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let kit = steadfast_testkit::suite::store::CASES[0];
        (kit.1)(&*store).await;
        let mut counts = (0, 0);
        for to in RunStatus::ALL {
            let from = std::iter::once(None).chain(RunStatus::ALL.iter().map(Some));
            for from in from {
                let legal = match from {
                    None => RunStatus::START.contains(to),
                    Some(from) => RunStatus::TABLE.iter().any(|(a, _, b)| (a, b) == (from, to)),
                };
                let before = from.map_or("", |from| from.as_str());
                let update = format!(
                    "UPDATE run SET prev_status = '{before}', status = '{to}', {}",
                    shape(*to)
                );
                let answer = command(db.kind(), &db.url, &update);
                assert_eq!(answer.is_ok(), legal, "{:?}: {before} to {to}: {answer:?}", db.kind());
                if let Err(text) = &answer {
                    assert!(text.contains("run_lifecycle"), "{text}");
                }
                if legal { counts.0 += 1 } else { counts.1 += 1 }
            }
        }
        let unknown =
            "UPDATE run SET prev_status = status, status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED'";
        assert!(command(db.kind(), &db.url, unknown).is_err(), "{:?}", db.kind());
        for half in ["finished_at = 5", "worker = 'w'", "parked = 1"] {
            let shaped = format!(
                "UPDATE run SET prev_status = 'PENDING', status = 'PENDING', {}",
                shape(RunStatus::Pending)
            );
            command(db.kind(), &db.url, &shaped).unwrap();
            let torn = format!("UPDATE run SET prev_status = '', status = 'ENQUEUED', {half}");
            assert!(command(db.kind(), &db.url, &torn).is_err(), "{:?}: {half}", db.kind());
        }
        assert_eq!(counts, (11, 31), "{:?}", db.kind());
    }
}
