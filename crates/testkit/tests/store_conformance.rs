//! The conformance suite on the model and on every database, and the lifecycle as the databases
//! enforce it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use steadfast_core::schedule::SlotStatus;
use steadfast_core::{CommandStatus, RunStatus, Timestamp};
use steadfast_store::op::{Debounce, Debounced, ListRuns, RunFilter, Start};
use steadfast_store::{Store, StoreExt};
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

/// First calls at the same time, over the connections of several processes.
#[tokio::test(flavor = "multi_thread")]
async fn debounced_calls_of_several_processes_make_one_run() {
    for db in TestDb::all() {
        let mut stores = Vec::new();
        for _ in 0..4 {
            stores.push(steadfast_store::open(&db.url).await.unwrap());
        }
        for key in 0..12 {
            let call = |n: i64| {
                let start = first_call(&format!("key-{key}-{n}"), n);
                let op = Debounce { start, key: format!("key-{key}"), max_wait: None };
                let store = stores[usize::try_from(n).unwrap() % stores.len()].clone();
                tokio::spawn(async move { store.ask(op).await.unwrap() })
            };
            let calls: Vec<_> = (0..12).map(call).collect();
            let mut replies = Vec::new();
            for call in calls {
                replies.push(call.await.unwrap());
            }
            let new = replies.iter().position(|reply| *reply == Debounced::New).unwrap();
            let one = Debounced::Replaced(format!("key-{key}-{new}"));
            let replaced = replies.iter().filter(|reply| **reply == one).count();
            assert_eq!(replaced, 11, "{:?}: {replies:?}", db.kind());
        }
        let (workspace, now) = ("debounce".to_owned(), Timestamp::from_micros(1));
        let filter = RunFilter::default();
        let list = ListRuns { workspace, filter, after: None, limit: 1000, now };
        assert_eq!(stores[0].ask(list).await.unwrap().runs.len(), 12, "{:?}", db.kind());
    }
}

fn first_call(run_id: &str, seed: i64) -> Start {
    let now = Timestamp::from_micros(1);
    Start {
        workspace: "debounce".to_owned(),
        run_id: run_id.to_owned(),
        workflow: "sync".to_owned(),
        input: seed.to_string(),
        queue: "default".to_owned(),
        partition: String::new(),
        priority: 0,
        dedupe_id: String::new(),
        app_version: String::new(),
        max_attempts: 1,
        ready_at: Timestamp::from_micros(1_000_000),
        timeout: None,
        deadline_at: None,
        parent: String::new(),
        detached: false,
        seed,
        context: None,
        claim: None,
        rest: None,
        now,
    }
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

/// A table whose rows have a lifecycle: its statuses, its arrows, and which end it.
struct Lives {
    table: &'static str,
    all: Vec<&'static str>,
    start: Vec<&'static str>,
    arrows: Vec<(&'static str, &'static str)>,
    over: Vec<&'static str>,
}

fn lives() -> [Lives; 2] {
    let over = CommandStatus::ALL.iter().filter(|status| status.is_terminal());
    let arrows = CommandStatus::TABLE.iter().map(|(a, _, b)| (a.as_str(), b.as_str()));
    let commands = Lives {
        table: "commands",
        all: CommandStatus::ALL.iter().map(|s| s.as_str()).collect(),
        start: CommandStatus::START.iter().map(|s| s.as_str()).collect(),
        arrows: arrows.collect(),
        over: over.map(|s| s.as_str()).collect(),
    };
    let arrows = SlotStatus::TABLE.iter().map(|(a, _, b)| (a.as_str(), b.as_str()));
    let slots = Lives {
        table: "trigger_slots",
        all: SlotStatus::ALL.iter().map(|s| s.as_str()).collect(),
        start: SlotStatus::START.iter().map(|s| s.as_str()).collect(),
        arrows: arrows.collect(),
        over: Vec::new(),
    };
    [commands, slots]
}

/// X1: the same for commands and for the slots of schedules.
#[tokio::test(flavor = "multi_thread")]
async fn x1_every_database_refuses_every_illegal_move_of_commands_and_slots() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let env = std::sync::Arc::new(steadfast::TokioEnv::current());
        let client = steadfast::Client::over(env, store, "default").unwrap();
        let trigger = steadfast::Trigger {
            trigger_id: "t".to_owned(),
            enabled: true,
            when: steadfast::When::Cron(steadfast::Cron::cron("0 3 * * *")),
            command: steadfast::CommandType::new("pull"),
            payload: serde_json::json!({}),
        };
        client.define(&trigger).await.unwrap();
        let day = steadfast::Backfill {
            from: steadfast_core::schedule::parse_moment("2026-06-01").unwrap(),
            until: steadfast_core::schedule::parse_moment("2026-06-02").unwrap(),
            only_missing: false,
            dry_run: false,
        };
        assert_eq!(client.schedule("t").backfill(&day, "user:1").await.unwrap().len(), 1);
        for Lives { table, all, start, arrows, over } in lives() {
            let mut legal = 0;
            for to in &all {
                for from in std::iter::once(&"").chain(&all) {
                    let wanted = match *from {
                        "" => start.contains(to),
                        from => arrows.contains(&(from, to)),
                    };
                    let shape = match table {
                        "commands" if over.contains(to) => ", completed_at = 1",
                        "commands" => ", completed_at = NULL",
                        _ => "",
                    };
                    let update = format!(
                        "UPDATE {table} SET prev_status = '{from}', status = '{to}'{shape}"
                    );
                    let answer = command(db.kind(), &db.url, &update);
                    let what = format!("{:?}: {table}: {from} to {to}: {answer:?}", db.kind());
                    assert_eq!(answer.is_ok(), wanted, "{what}");
                    if let Err(text) = &answer {
                        assert!(text.contains("_lifecycle"), "{what}");
                    }
                    legal += usize::from(wanted);
                }
            }
            assert!(legal >= arrows.len(), "{table}: {legal}");
        }
    }
}
