//! What things cost, in operations, statements and commits: numbers that a slow machine does not
//! change, so that growing costs are seen at once.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast::{Cx, Queue, Result, Steadfast};
use steadfast_core::Timestamp;
use steadfast_core::driver::{Kind, Record as StepRecord};
use steadfast_store::op::*;
use steadfast_store::{Error, Op, OpenStore, Reply, Store, StoreExt};
use steadfast_testkit::db::{DbKind, TestDb};
use tokio::sync::Semaphore;

/// Counts operations by name, and claims from named queues apart.
struct Counting {
    inner: OpenStore,
    calls: Mutex<BTreeMap<&'static str, usize>>,
}

impl Store for Counting {
    fn call(&self, op: Op) -> BoxFuture<'_, std::result::Result<Reply, Error>> {
        let name = match &op {
            Op::Dequeue(op) if op.queue != DEFAULT_QUEUE => "Dequeue by name",
            op => op.name(),
        };
        *self.calls.lock().unwrap().entry(name).or_default() += 1;
        self.inner.call(op)
    }
}

async fn double(n: u32) -> Result<u32> {
    Ok(n * 2)
}

async fn five(cx: Cx, n: u32) -> Result<u32> {
    let mut n = n;
    for _ in 0..5 {
        n = cx.step(double, n).await?;
    }
    Ok(n)
}

/// Of a run of five steps, the start is one commit with its claim, each step is on disk before the
/// next begins, the last one comes with the end, and nothing is asked.
#[tokio::test]
async fn a_run_of_five_steps_is_six_operations() {
    let inner = steadfast_store::open("sqlite::memory:").await.unwrap();
    let store = Arc::new(Counting { inner, calls: Mutex::default() });
    let fabric = Steadfast::open("").store(store.clone()).workflow(five).start().await.unwrap();
    for n in 1..=3 {
        assert_eq!(fabric.start(five, n).await.unwrap().result().await.unwrap(), n * 32);
    }
    fabric.shutdown().await;
    let calls = store.calls.lock().unwrap().clone();
    let count = |name| calls.get(name).copied().unwrap_or(0);
    assert_eq!((count("Start"), count("Record"), count("Finish")), (3, 12, 3), "{calls:?}");
    for name in ["Load", "GetEnds", "ListSteps", "Suspend", "Release"] {
        assert_eq!(count(name), 0, "{name}");
    }
    // A result that is pushed needs no look, unless the run was over before anybody waited.
    assert!(count("GetRun") <= 3, "{calls:?}");
}

async fn asked(cx: Cx, n: u32) -> Result<u32> {
    Ok(n + cx.wait_signal::<u32>("more").await?)
}

async fn late(cx: Cx, n: u32) -> Result<u32> {
    cx.sleep(Duration::from_secs(3600)).await?;
    Ok(n)
}

/// A run that waits before it does anything is suspended by the commit that starts it. It goes on
/// from there like any other.
#[tokio::test]
async fn a_run_that_waits_at_once_is_one_operation() {
    let inner = steadfast_store::open("sqlite::memory:").await.unwrap();
    let store = Arc::new(Counting { inner, calls: Mutex::default() });
    let fabric = Steadfast::open("").store(store.clone()).workflow(asked).workflow(late);
    let fabric = fabric.start().await.unwrap();
    let run = fabric.start(asked, 1).await.unwrap();
    let sleeper = fabric.start(late, 1).await.unwrap();
    for (id, waits) in [(run.id(), "more"), (sleeper.id(), "sleep")] {
        let row = fabric.get(id).await.unwrap();
        assert_eq!((row.status.as_str(), row.parked), ("PENDING", true));
        assert!(row.waits.contains(waits), "{}", row.waits);
    }
    assert_eq!(fabric.live_runs(), 0);
    let calls = store.calls.lock().unwrap().clone();
    let count = |name| calls.get(name).copied().unwrap_or(0);
    assert_eq!((count("Start"), count("Record"), count("Suspend")), (2, 0, 0), "{calls:?}");
    run.signal("more", 41).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 42);
    fabric.shutdown().await;
}

async fn waits(cx: Cx, _: ()) -> Result<()> {
    let gate = cx.state::<Arc<Semaphore>>()?;
    let body = move || {
        let gate = gate.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok::<_, steadfast::Error>(())
        }
    };
    cx.step("wait", body).await
}

/// A worker knows what it has: while its places on a queue are taken, it claims nothing from there,
/// whatever it hears.
#[tokio::test]
async fn a_worker_without_a_place_asks_for_nothing() {
    let inner = steadfast_store::open("sqlite::memory:").await.unwrap();
    let store = Arc::new(Counting { inner, calls: Mutex::default() });
    let gate = Arc::new(Semaphore::new(0));
    let fabric = Steadfast::open("").store(store.clone()).workflow(waits).state(gate.clone());
    let fabric = fabric.queue(Queue::new("q").worker_concurrency(1)).start().await.unwrap();
    let claims = || store.calls.lock().unwrap().get("Dequeue by name").copied().unwrap_or(0);
    let mut runs = vec![fabric.start(waits, ()).queue("q").await.unwrap()];
    let begun = async {
        while fabric.live_runs() < 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), begun).await.unwrap();
    let before = claims();
    for _ in 0..20 {
        runs.push(fabric.start(waits, ()).queue("q").await.unwrap());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((claims(), fabric.live_runs()), (before, 1));
    gate.add_permits(runs.len());
    for run in &runs {
        run.result().await.unwrap();
    }
    assert!(claims() > before + 10);
    fabric.shutdown().await;
}

/// A plain run, claimed at once.
fn start() -> Start {
    let at = Timestamp::from_micros;
    Start {
        workspace: "w".into(),
        run_id: "r".into(),
        workflow: "flow".into(),
        input: "1".into(),
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
        claim: Some(("me".into(), at(1_000_000))),
        rest: None,
        now: at(1),
    }
}

/// What each operation of a plain run costs on SQLite.
#[tokio::test]
async fn the_operations_of_a_run_are_few_statements() {
    let store = steadfast_store::open("sqlite::memory:").await.unwrap();
    let at = Timestamp::from_micros;
    let start = start();
    let lease = Lease { workspace: "w".into(), run_id: "r".into(), worker: "me".into(), epoch: 1 };
    let entry = |id| {
        let record = StepRecord::done(id, id, "step", Kind::Step, Ok("1".into()));
        vec![Entry { record, replaces: false, with: None }]
    };
    let outcome = Ok("1".to_owned());
    let costs: [(Op, u64); 4] = [
        (Op::Start(start), 2),
        (Op::Record(Record { lease: lease.clone(), entries: entry(0), now: at(2) }), 1),
        (Op::Record(Record { lease: lease.clone(), entries: entry(1), now: at(3) }), 1),
        (Op::Finish(Finish { lease, entries: entry(2), outcome, now: at(4) }), 2),
    ];
    for (op, statements) in costs {
        let (name, before) = (op.name(), store.tally());
        store.call(op).await.unwrap();
        let spent = store.tally().since(before);
        assert_eq!((spent.statements, spent.commits), (statements, 1), "{name}");
    }
    let run = store
        .ask(GetRun { workspace: "w".into(), run_id: "r".into(), now: Timestamp::from_micros(1) })
        .await
        .unwrap();
    assert_eq!(run.0.unwrap().output.as_deref(), Some("1"));
}

/// What is done to each of some runs at once, and how many statements that may cost.
type Phase<'a> = (&'a dyn Fn(&str) -> Op, std::ops::Range<u32>, u64);

/// On a server, what comes at once is written by a few statements, however much it is.
#[tokio::test]
async fn a_batch_is_a_few_statements_on_every_server() {
    for db in TestDb::all().into_iter().filter(|db| db.kind() != DbKind::Sqlite) {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let at = Timestamp::from_micros;
        let lease = |run_id: &str| Lease {
            workspace: "w".into(),
            run_id: run_id.into(),
            worker: "me".into(),
            epoch: 1,
        };
        let entries = |id| {
            let record = StepRecord::done(id, id, "step", Kind::Step, Ok("1".into()));
            vec![Entry { record, replaces: false, with: None }]
        };
        let begin = |id: &str| Op::Start(Start { run_id: id.into(), ..start() });
        let record =
            |id: &str| Op::Record(Record { lease: lease(id), entries: entries(0), now: at(2) });
        let finish = |id: &str| {
            let (lease, entries, outcome) = (lease(id), entries(1), Ok("1".to_owned()));
            Op::Finish(Finish { lease, entries, outcome, now: at(3) })
        };
        let suspend = |id: &str| {
            let (lease, entries, waits) = (lease(id), entries(1), "[]".to_owned());
            Op::Suspend(Suspend { lease, entries, inbox: 0, wake_at: at(9), waits, now: at(3) })
        };
        // Two lanes share the runs. On Postgres each writes what it has by one statement, unless
        // runs are suspended. Else it asks once what it needs to know, and writes some tens of rows
        // of a sort in one to three statements.
        let (starts, records, ends) = match db.kind() {
            DbKind::Postgres => (1, 1, 1),
            _ => (4, 4, 7),
        };
        let phases: [Phase<'_>; 4] = [
            (&begin, 0..90, 2 * starts),
            (&record, 0..90, 2 * records),
            (&finish, 0..45, 2 * ends),
            (&suspend, 45..90, 2 * 7),
        ];
        for (op, runs, statements) in phases {
            let before = store.tally();
            let ops = runs.map(|n| store.call(op(&format!("r{n}"))));
            for reply in futures::future::join_all(ops).await {
                let is_done = match &reply {
                    Ok(Reply::Start(reply)) => matches!(reply, Started::New(Some(_))),
                    Ok(Reply::Record(reply) | Reply::Finish(reply)) => *reply == Written::Done,
                    Ok(Reply::Suspend(reply)) => *reply == Suspended::Done,
                    _ => false,
                };
                assert!(is_done, "{:?}: {reply:?}", db.kind());
            }
            let spent = store.tally().since(before);
            assert!(spent.statements <= statements, "{:?}: {spent:?}", db.kind());
            assert!(spent.commits <= 2, "{:?}: {spent:?}", db.kind());
        }
    }
}

/// Changing a queue does not touch what waits on it, unless its order changes.
#[tokio::test]
async fn a_queue_is_changed_without_its_runs() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let put = |worker_concurrency, priorities| PutQueue {
            workspace: "w".into(),
            queue: QueueRow {
                name: "q".into(),
                worker_concurrency,
                priorities,
                ..QueueRow::default()
            },
            now: Timestamp::from_micros(1),
        };
        // Made; kept, looked at and changed; besides, what waits in partitions loses them, and in
        // the last case everything that waits is put in order.
        let costs = [(put(None, false), 2), (put(Some(5), false), 4), (put(Some(5), true), 5)];
        for (put, statements) in costs {
            let before = store.tally();
            store.ask(put).await.unwrap();
            assert_eq!(store.tally().since(before).statements, statements, "{:?}", db.kind());
        }
    }
}

/// A claim is a few statements however many runs it takes, and one on Postgres, which finds and
/// changes them at once, and no more if it goes on from where the last one ended. Who has no place
/// does not look at what waits; who wakes nothing looks once.
#[tokio::test]
async fn a_claim_is_a_few_statements_and_a_vain_one_is_fewer() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let at = Timestamp::from_micros;
        let put = PutQueue {
            workspace: "w".into(),
            queue: QueueRow {
                name: "q".into(),
                worker_concurrency: Some(10),
                ..QueueRow::default()
            },
            now: at(1),
        };
        store.ask(put).await.unwrap();
        for n in 0..30 {
            let queued = Start { run_id: format!("r{n:02}"), queue: "q".into(), ..start() };
            store.ask(Start { claim: None, ..queued }).await.unwrap();
        }
        let dequeue = |has, behind| Dequeue {
            workspace: "w".into(),
            queue: "q".into(),
            worker: "me".into(),
            app_version: String::new(),
            workflows: vec!["flow".into()],
            limit: 100,
            worker_has: vec![(String::new(), has)],
            after_partition: String::new(),
            behind,
            lease_until: at(1_000_000),
            now: at(2),
        };
        let tenth = InLine { rank: 0, ready_at: at(0), run_id: "r09".into() };
        let wake = Wake {
            workspace: "w".into(),
            worker: "me".into(),
            app_version: String::new(),
            workflows: vec!["flow".into()],
            limit: 100,
            worker_has: Vec::new(),
            lease_until: at(1_000_000),
            now: at(3),
        };
        let (claim, vain, look) = match db.kind() {
            DbKind::Sqlite => (3, 1, 1),
            DbKind::Postgres => (1, 2, 1),
            DbKind::Mysql => (3, 1, 1),
        };
        let costs: [(Op, usize, u64); 4] = [
            (Op::Dequeue(dequeue(0, None)), 10, claim),
            (Op::Dequeue(dequeue(0, Some(tenth))), 10, claim),
            (Op::Dequeue(dequeue(10, None)), 0, vain),
            (Op::Wake(wake), 0, look),
        ];
        for (op, runs, statements) in costs {
            let (name, before) = (op.name(), store.tally());
            let (Reply::Dequeue(claimed) | Reply::Wake(claimed)) = store.call(op).await.unwrap()
            else {
                panic!("{name} claims");
            };
            let spent = store.tally().since(before);
            assert_eq!(
                (claimed.runs.len(), spent.statements),
                (runs, statements),
                "{:?} {name}",
                db.kind()
            );
            let ids: Vec<_> = claimed.runs.iter().map(|run| run.run_id.clone()).collect();
            assert!(ids.is_sorted(), "{ids:?}");
        }
    }
}

/// What a chain of policies adds to a submission: one row, and no commit.
#[tokio::test]
async fn a_judgement_is_one_more_row_and_no_more_commits() {
    let store = steadfast_store::open("sqlite::memory:").await.unwrap();
    let submit = |id: &str, judgement: Option<String>| {
        let context = steadfast::Context { command_id: id.to_owned(), ..Default::default() };
        Op::Submit(Submit {
            command_id: id.to_owned(),
            command_type: "note".into(),
            requested_by: "user:1".into(),
            ingress: "api_request".into(),
            trace_id: String::new(),
            cancellation_mode: "graceful".into(),
            idempotency_key: Some(id.to_owned()),
            expires_at: None,
            after: Vec::new(),
            judgement,
            hold: None,
            by_queue: false,
            start: Box::new(Start {
                run_id: id.to_owned(),
                context: Some(context.to_text()),
                ..start()
            }),
        })
    };
    let mut spent = Vec::new();
    for (id, judgement) in [("plain", None), ("judged", Some("{}".to_owned()))] {
        let before = store.tally();
        store.call(submit(id, judgement)).await.unwrap();
        let cost = store.tally().since(before);
        spent.push((cost.statements, cost.commits));
    }
    assert_eq!(spent[1], (spent[0].0 + 1, spent[0].1), "{spent:?}");
}

/// A tick with nothing due asks one question, however many schedules there are.
#[tokio::test]
async fn an_idle_tick_is_one_statement() {
    let store = steadfast_store::open("sqlite::memory:").await.unwrap();
    let env = Arc::new(steadfast::TokioEnv::current());
    let client = steadfast::Client::over(env, store, "default").unwrap();
    for n in 0..50 {
        let trigger = steadfast::Trigger {
            trigger_id: format!("t{n}"),
            enabled: true,
            when: steadfast::When::Cron(steadfast::Cron::cron("0 0 1 1 *")),
            command: steadfast::CommandType::new("yearly"),
            payload: serde_json::json!({}),
        };
        client.define(&trigger).await.unwrap();
    }
    let before = client.tally();
    assert_eq!(client.tick().await.unwrap(), 0);
    let spent = client.tally().since(before);
    assert_eq!(spent.statements, 1);
}
