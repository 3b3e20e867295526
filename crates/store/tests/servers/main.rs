//! The store on real servers: opening, group commit, lost connections, the caller's transactions.
//!
//! Each test runs on Postgres and on MySQL or MariaDB, in a database of its own, when the
//! variables `STEADFAST_TEST_POSTGRES_URL` and `STEADFAST_TEST_MYSQL_URL` name servers. What
//! operations mean is tested elsewhere, against the model; here is what only a server can get
//! wrong.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod alone;
mod claims;
mod crowd;
mod database;
mod schema;
mod stranger;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use mysql_async::prelude::Queryable;
use steadfast_core::driver::{Kind as Verb, Record as StepRecord};
use steadfast_core::{Error as Failure, RunStatus, Timestamp};
use steadfast_store::mysql::mysql_async;
use steadfast_store::op::*;
use steadfast_store::{Error, OpenStore, StoreExt, mysql, open, postgres};

use alone::*;
use claims::*;
use crowd::*;
use database::{Database, Kind, with};
use schema::*;
use work::*;

macro_rules! on_each_server {
    ($($name:ident)+) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::with(super::Kind::Postgres, super::$name).await;
            })+
        }
        mod on_mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::with(super::Kind::Mysql, super::$name).await;
            })+
        }
    };
}

on_each_server! {
    a_store_opens_again_and_keeps_what_it_has
    four_processes_migrate_at_once
    an_interrupted_migration_is_taken_up
    a_table_that_gets_a_column_is_written_as_before
    a_schema_of_another_version_is_refused
    a_wrong_password_or_database_is_refused_at_once
    a_run_goes_from_start_to_finish
    r083_a_failing_operation_leaves_its_batch_alone
    r083_cut_connections_lose_and_double_nothing
    r083_runs_that_cross_get_by
    r095_locked_rows_are_skipped_not_waited_for
    r095_a_wake_skips_locked_rows_as_well
    r091_a_claim_that_the_server_forgot_is_void
    r091_a_claim_made_again_after_a_crash_fences_the_forgotten_one
    r091_claimers_and_those_who_change_what_waits_do_not_harm_each_other
    r096_a_change_elsewhere_is_heard_or_polled
    transact_commits_the_work_and_its_record_or_neither
    a_repeated_transact_does_not_work_twice
    work_that_met_a_deadlock_is_run_again
    start_in_joins_the_callers_transaction
    texts_survive_as_they_are
    a_settled_record_that_changes_nothing_keeps_its_companions
    the_clock_of_the_server_is_known
    many_at_once_are_what_they_are_one_by_one
    plain_batches_are_what_their_operations_are_one_by_one
    an_end_whose_record_is_there_already_is_carried_out
    a_parent_that_suspends_as_its_child_ends_is_woken
}

/// MySQL takes the key without having counted anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_finds_single_runs_by_their_key() {
    with(Kind::Postgres, single_runs_are_found_by_their_key).await;
}

/// Postgres has notifications of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r096_mysql_listeners_do_not_hold_up_new_connections() {
    with(Kind::Mysql, stranger::listeners_do_not_hold_up_new_connections).await;
}

/// MySQL locks a batch's runs before it writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r091_postgres_fences_a_batch_against_who_claims_meanwhile() {
    with(Kind::Postgres, a_batch_is_fenced_by_who_claims_meanwhile).await;
}

/// MySQL's connections are the driver's own, whatever the address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_used_over_every_kind_of_address() {
    with(Kind::Postgres, runs_are_carried_out_over_every_kind_of_address).await;
}

const WS: &str = "w";

fn at(us: i64) -> Timestamp {
    Timestamp::from_micros(us)
}

fn start(run_id: &str, claim: bool) -> Start {
    Start {
        workspace: WS.into(),
        run_id: run_id.into(),
        workflow: "flow".into(),
        input: "{}".into(),
        queue: DEFAULT_QUEUE.into(),
        partition: String::new(),
        priority: 0,
        dedupe_id: String::new(),
        app_version: String::new(),
        max_attempts: 3,
        ready_at: at(0),
        timeout: None,
        deadline_at: None,
        parent: String::new(),
        detached: false,
        seed: 7,
        context: None,
        claim: claim.then(|| ("me#1".to_owned(), at(1_000_000))),
        rest: None,
        now: at(10),
    }
}

fn dequeue(limit: usize) -> Dequeue {
    Dequeue {
        workspace: WS.into(),
        queue: DEFAULT_QUEUE.into(),
        worker: "me#1".into(),
        app_version: String::new(),
        workflows: vec!["flow".into()],
        limit,
        worker_has: Vec::new(),
        after_partition: String::new(),
        behind: None,
        lease_until: at(1_000_000),
        now: at(100),
    }
}

fn lease(run_id: &str) -> Lease {
    Lease { workspace: WS.into(), run_id: run_id.into(), worker: "me#1".into(), epoch: 1 }
}

fn step(id: u64, value: &str) -> Entry {
    let record = StepRecord::done(id, id, "step", Verb::Step, Ok(value.to_owned()));
    Entry { record, replaces: false, with: None }
}

fn record(run_id: &str, entries: Vec<Entry>) -> Record {
    Record { lease: lease(run_id), entries, now: at(200) }
}

fn finish(run_id: &str) -> Finish {
    Finish { lease: lease(run_id), entries: Vec::new(), outcome: Ok("1".into()), now: at(300) }
}

async fn run(store: &OpenStore, run_id: &str) -> Option<Box<RunRow>> {
    store.ask(GetRun { workspace: WS.into(), run_id: run_id.into(), now: at(0) }).await.unwrap().0
}

async fn steps(store: &OpenStore, run_id: &str) -> Vec<StepRecord> {
    let list = ListSteps { workspace: WS.into(), run_id: run_id.into(), from: 0, limit: 1000 };
    store.ask(list).await.unwrap().0
}

async fn claimed(store: &OpenStore, run_id: &str) -> Lease {
    match store.ask(start(run_id, true)).await.unwrap() {
        Started::New(Some(lease)) => lease,
        other => panic!("{other:?}"),
    }
}

async fn a_run_goes_from_start_to_finish(database: &Database) {
    let store = database.open().await;
    assert_eq!(store.ask(start("a", false)).await.unwrap(), Started::New(None));
    let got = store.ask(dequeue(5)).await.unwrap();
    assert_eq!(got.runs.len(), 1);
    assert_eq!((got.runs[0].epoch, got.runs[0].attempts), (1, 1));
    let written = store.ask(record("a", vec![step(0, "1"), step(1, "\"two\"")])).await.unwrap();
    assert_eq!(written, Written::Done);
    let again = store.ask(record("a", vec![step(1, "\"two\"")])).await.unwrap();
    assert_eq!(again, Written::Done);
    let beat = Heartbeat {
        workspace: WS.into(),
        worker: "me#1".into(),
        app_version: String::new(),
        workflows: vec!["flow".into()],
        lease: std::time::Duration::from_secs(60),
        leases: vec![("a".into(), 1), ("b".into(), 1)],
        lease_until: at(2_000_000),
        now: at(250),
    };
    assert_eq!(store.ask(beat).await.unwrap().lost, ["b"]);
    assert_eq!(store.ask(finish("a")).await.unwrap(), Written::Done);
    assert_eq!(store.ask(finish("a")).await.unwrap(), Written::Done);
    assert_eq!(steps(&store, "a").await.len(), 2);
    let over = run(&store, "a").await.unwrap();
    assert_eq!((over.status, over.output.as_deref()), (RunStatus::Success, Some("1")));
    let late = store.ask(record("a", vec![step(2, "3")])).await.unwrap();
    assert_eq!(late, Written::Fenced);
}

async fn r083_a_failing_operation_leaves_its_batch_alone(database: &Database) {
    let store = database.open().await;
    for run_id in ["good", "twice"] {
        claimed(&store, run_id).await;
    }
    store.ask(record("twice", vec![step(0, "1")])).await.unwrap();
    // Many at once, so that they share commits: good records, records under a void lease, records
    // that would change a done step, and spawns that are refused after something was written.
    let mut other = step(0, "2");
    other.record.name = "another".into();
    let mut spawn = step(500, "1");
    spawn.with = Some(With::Spawn(Box::new(Start { queue: "none".into(), ..start("c", false) })));
    let mut void = record("good", vec![step(900, "1")]);
    void.lease.epoch = 9;
    let asks = (0..100u64).map(|id| {
        let (store, other, spawn, void) = (&store, other.clone(), spawn.clone(), void.clone());
        async move {
            let good = store.ask(record("good", vec![step(id, "1")])).await;
            let bad = store.ask(record("twice", vec![other])).await;
            let refused = store.ask(record("good", vec![spawn])).await;
            (good, bad, refused, store.ask(void).await)
        }
    });
    for (good, bad, refused, void) in join_all(asks).await {
        assert_eq!(good.unwrap(), Written::Done);
        assert!(matches!(bad, Err(Error::Refused(_))), "{bad:?}");
        assert!(matches!(refused.unwrap(), Written::Refused(_)));
        assert_eq!(void.unwrap(), Written::Fenced);
    }
    assert_eq!(steps(&store, "good").await.len(), 100);
    assert_eq!(steps(&store, "twice").await.len(), 1);
}

async fn r083_cut_connections_lose_and_double_nothing(database: &Database) {
    const RUNS: usize = 24;
    const STEPS: u64 = 60;
    let store = database.open().await;
    let (over, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let one = |number: usize| {
        let store = store.clone();
        async move {
            let run_id = format!("run{number}");
            let lease = claimed(&store, &run_id).await;
            for id in 0..STEPS {
                let mut entry = step(id, "1");
                let item = Some(id.to_string());
                entry.with = Some(With::Append { stream: "s".into(), item });
                let write = Record { lease: lease.clone(), entries: vec![entry], now: at(5) };
                assert_eq!(store.ask(write).await.unwrap(), Written::Done, "{run_id} {id}");
            }
            assert_eq!(store.ask(finish(&run_id)).await.unwrap(), Written::Done);
        }
    };
    let work = async { join_all((0..RUNS).map(|number| tokio::spawn(one(number)))).await };
    let cut = async {
        while !over.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(40)).await;
            cuts.fetch_add(database.cut().await, Ordering::Relaxed);
        }
    };
    let work = async {
        for done in work.await {
            done.unwrap();
        }
        over.store(true, Ordering::Relaxed);
    };
    futures::join!(work, cut);
    assert!(cuts.load(Ordering::Relaxed) > 0);
    for number in 0..RUNS {
        let run_id = format!("run{number}");
        assert_eq!(run(&store, &run_id).await.unwrap().status, RunStatus::Success);
        assert_eq!(steps(&store, &run_id).await.len() as u64, STEPS);
        let read =
            ReadStream { workspace: WS.into(), run_id, stream: "s".into(), from: 0, limit: 1000 };
        let items = store.ask(read).await.unwrap().items;
        let wanted: Vec<String> = (0..STEPS).map(|id| id.to_string()).collect();
        assert_eq!(items, wanted);
    }
}

/// Writes that lock several runs, in all orders at once: whoever is in the way is got around.
async fn r083_runs_that_cross_get_by(database: &Database) {
    const PARENTS: usize = 8;
    const ROUNDS: u64 = 20;
    let store = database.open().await;
    for number in 0..PARENTS {
        claimed(&store, &format!("p{number}")).await;
    }
    let began = Instant::now();
    let one = |number: usize| {
        let store = store.clone();
        async move {
            let run_id = format!("p{number}");
            for round in 0..ROUNDS {
                let child = format!("c{number}-{round}");
                let parent = format!("p{}", (number + 3) % PARENTS);
                let claim = Some(("me#1".to_owned(), at(1_000_000)));
                let mut spawn = step(round, "1");
                spawn.with =
                    Some(With::Spawn(Box::new(Start { parent, claim, ..start(&child, false) })));
                let signal = Signal {
                    workspace: WS.into(),
                    run_id: format!("p{}", (number + 5) % PARENTS),
                    name: "s".into(),
                    signal_id: child.clone(),
                    payload: "1".into(),
                    now: at(5),
                };
                let beat = Heartbeat {
                    workspace: WS.into(),
                    worker: "me#1".into(),
                    app_version: String::new(),
                    workflows: vec!["flow".into()],
                    lease: std::time::Duration::from_secs(60),
                    leases: (0..PARENTS).rev().map(|n| (format!("p{n}"), 1)).collect(),
                    lease_until: at(2_000_000),
                    now: at(6),
                };
                assert_eq!(store.ask(record(&run_id, vec![spawn])).await.unwrap(), Written::Done);
                let all = futures::join!(
                    store.ask(finish(&child)),
                    store.ask(signal),
                    store.ask(beat),
                    store.ask(record(&run_id, vec![step(1000 + round, "1")])),
                );
                assert_eq!(all.0.unwrap(), Written::Done);
                assert_eq!(all.1.unwrap(), Signalled::Accepted);
                assert!(all.2.unwrap().lost.is_empty());
                assert_eq!(all.3.unwrap(), Written::Done);
            }
        }
    };
    for done in join_all((0..PARENTS).map(|number| tokio::spawn(one(number)))).await {
        done.unwrap();
    }
    eprintln!("{:?}: crossing took {:?}", database.kind, began.elapsed());
    for number in 0..PARENTS {
        let parent = run(&store, &format!("p{number}")).await.unwrap();
        // One for each child that ended and each signal.
        assert_eq!(parent.inbox, 2 * i64::try_from(ROUNDS).unwrap());
    }
}

/// R96
async fn r096_a_change_elsewhere_is_heard_or_polled(database: &Database) {
    let (here, there) = (database.open().await, database.open().await);
    for number in 0..3 {
        // The listener connects in the background, and again after its connection is cut. Then all
        // are told to look; only what is told after that is of interest.
        let mut heard = 0;
        for attempt in 0..100 {
            let changed = here.changed();
            there.ask(start(&format!("h{number}-{attempt}"), false)).await.unwrap();
            let wait = Duration::from_millis(200);
            heard += u32::from(tokio::time::timeout(wait, changed).await.is_ok());
            if heard == 5 {
                break;
            }
        }
        assert_eq!(heard, 5, "no notification after {number} cuts");
        database.cut().await;
    }
    // Heard or not, asking finds it.
    there.ask(start("polled", false)).await.unwrap();
    let found = here.ask(dequeue(100)).await.unwrap().runs;
    assert!(found.iter().any(|run| run.run_id == "polled"));
}

async fn texts_survive_as_they_are(database: &Database) {
    let store = database.open().await;
    let input = "{\"b\":1.10,\"a\":\"ä😀\\u0000 \\\\ '\"}";
    // Keys differ by case and by a trailing space, and are not folded together.
    for (number, id) in ["Key", "key", "key ", "ключ%_\\"].iter().enumerate() {
        let new = Start { input: input.into(), seed: -1, ..start(id, false) };
        assert_eq!(store.ask(new).await.unwrap(), Started::New(None), "{number}");
        assert_eq!(run(&store, id).await.unwrap().input, input);
    }
    // A worker's name is no pattern: only its own incarnations are taken over.
    for (run_id, worker) in [("x", "a_b\\%#1"), ("y", "aXb\\c#1")] {
        let claim = Some((worker.to_owned(), at(1_000_000)));
        store.ask(Start { claim, ..start(run_id, false) }).await.unwrap();
    }
    let over = TakeOver {
        workspace: WS.into(),
        name: "a_b\\%".into(),
        worker: "a_b\\%#2".into(),
        now: at(50),
    };
    assert_eq!(store.ask(over).await.unwrap(), TakenOver { runs: 1, former: Vec::new() });
    assert_eq!(run(&store, "x").await.unwrap().wake_at, at(50));
    let long = Start { run_id: "k".repeat(4000), ..start("", false) };
    if database.kind == Kind::Mysql {
        assert!(matches!(store.ask(long).await, Err(Error::Refused(_))));
    }
}

async fn a_settled_record_that_changes_nothing_keeps_its_companions(database: &Database) {
    let store = database.open().await;
    claimed(&store, "a").await;
    let mut entry = step(0, "null");
    entry.record.state = steadfast_core::driver::RecordState::Executing;
    assert_eq!(store.ask(record("a", vec![entry.clone()])).await.unwrap(), Written::Done);
    entry.replaces = true;
    entry.with = Some(With::Publish { key: "k".into(), value: "1".into() });
    assert_eq!(store.ask(record("a", vec![entry])).await.unwrap(), Written::Done);
    let value = GetValue { workspace: WS.into(), run_id: "a".into(), key: "k".into() };
    assert_eq!(store.ask(value).await.unwrap(), FoundValue(Some("1".into())));
}

async fn the_clock_of_the_server_is_known(database: &Database) {
    let store = database.open().await;
    assert!(store.clock_offset_us().abs() < 5_000_000, "{}", store.clock_offset_us());
}
