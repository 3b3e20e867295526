//! Claims by several processes from one queue.

use std::collections::BTreeSet;

use super::*;

/// R95
pub(super) async fn r095_locked_rows_are_skipped_not_waited_for(database: &Database) {
    // One that nobody made, and one that is claimed from at once where the database can.
    let store = database.open().await;
    let queue = QueueRow { name: "plain".into(), ..QueueRow::default() };
    store.ask(PutQueue { workspace: WS.into(), queue, now: at(1) }).await.unwrap();
    locked_rows_are_skipped(database, DEFAULT_QUEUE, "d").await;
    locked_rows_are_skipped(database, "plain", "p").await;
}

/// R95: runs whose lease ran out, of which somebody holds one.
pub(super) async fn r095_a_wake_skips_locked_rows_as_well(database: &Database) {
    let store = database.open().await;
    for number in 0..4 {
        store.ask(start(&format!("r{number}"), true)).await.unwrap();
    }
    let held = lock(database, "r0").await;
    let wake = |worker: &str| Wake {
        workspace: WS.into(),
        worker: worker.into(),
        app_version: String::new(),
        workflows: vec!["flow".into()],
        limit: 4,
        worker_has: Vec::new(),
        lease_until: at(3_000_000),
        now: at(2_000_000),
    };
    let began = Instant::now();
    let claimed = store.ask(wake("other#1")).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let mut ids: Vec<_> = claimed.runs.iter().map(|run| run.run_id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!((ids, claimed.left), (vec!["r1", "r2", "r3"], true));
    drop(held);
    let mut rest = Vec::new();
    while rest.is_empty() && began.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        rest = store.ask(wake("third#1")).await.unwrap().runs;
    }
    assert_eq!(rest[0].run_id, "r0");
}

/// Holds the lock of a run's row for as long as the connection is kept.
async fn lock(
    database: &Database,
    run_id: &str,
) -> (Option<postgres::tokio_postgres::Client>, Option<mysql_async::Conn>) {
    let lock =
        format!("SELECT run_id FROM run WHERE workspace = 'w' AND run_id = '{run_id}' FOR UPDATE");
    match database.kind {
        Kind::Postgres => {
            let client = database.postgres().await;
            client.batch_execute(&format!("BEGIN; {lock}")).await.unwrap();
            (Some(client), None)
        }
        Kind::Mysql => {
            let mut conn = database.mysql().await;
            conn.query_drop("SET TRANSACTION ISOLATION LEVEL READ COMMITTED").await.unwrap();
            conn.query_drop("BEGIN").await.unwrap();
            conn.query_drop(lock).await.unwrap();
            (None, Some(conn))
        }
    }
}

async fn locked_rows_are_skipped(database: &Database, queue: &str, run: &str) {
    let store = database.open().await;
    let dequeue = |limit| Dequeue { queue: queue.into(), ..dequeue(limit) };
    for number in 0..4 {
        let start = start(&format!("{run}{number}"), false);
        let start = Start { ready_at: at(number), queue: queue.into(), ..start };
        store.ask(start).await.unwrap();
    }
    let held = lock(database, &format!("{run}0")).await;
    let began = Instant::now();
    let (one, two) = (database.open().await, database.open().await);
    let (one, two) = futures::join!(one.ask(dequeue(2)), two.ask(dequeue(2)));
    assert!(began.elapsed() < Duration::from_secs(5));
    let mut ids: Vec<String> =
        one.unwrap().runs.into_iter().chain(two.unwrap().runs).map(|run| run.run_id).collect();
    ids.sort();
    assert_eq!(ids, [1, 2, 3].map(|number| format!("{run}{number}")));
    drop(held);
    let mut rest = Vec::new();
    while rest.is_empty() && began.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        rest = store.ask(dequeue(2)).await.unwrap().runs;
    }
    assert_eq!(rest[0].run_id, format!("{run}0"));
}

/// R91: a server that comes back without its last commits may have forgotten a claim, and gives the
/// same epoch out again. Who had it before writes nothing, alone or among others.
pub(super) async fn r091_a_claim_that_the_server_forgot_is_void(database: &Database) {
    let store = database.open().await;
    let queue = QueueRow { name: "plain".into(), ..QueueRow::default() };
    store.ask(PutQueue { workspace: WS.into(), queue, now: at(1) }).await.unwrap();
    let dequeue = Dequeue { queue: "plain".into(), ..dequeue(10) };
    for run_id in ["a", "b", "c"] {
        store.ask(Start { queue: "plain".into(), ..start(run_id, false) }).await.unwrap();
    }
    let before = store.ask(dequeue.clone()).await.unwrap().runs;
    assert_eq!(before.iter().map(|run| run.epoch).collect::<Vec<_>>(), [1, 1, 1]);
    database.execute("DELETE FROM run").await;
    for run_id in ["a", "b", "c"] {
        store.ask(Start { queue: "plain".into(), ..start(run_id, false) }).await.unwrap();
    }
    let heir = Dequeue { worker: "heir#1".into(), ..dequeue };
    let after = store.ask(heir).await.unwrap().runs;
    assert_eq!(after.iter().map(|run| run.epoch).collect::<Vec<_>>(), [1, 1, 1]);
    let late = || record("a", vec![step(0, "1")]);
    assert_eq!(store.ask(late()).await.unwrap(), Written::Fenced);
    let last = |run_id| Finish { entries: vec![step(0, "1")], ..finish(run_id) };
    assert_eq!(store.ask(last("a")).await.unwrap(), Written::Fenced);
    let ends = join_all(["a", "b", "c"].map(|run_id| store.ask(last(run_id)))).await;
    assert!(ends.into_iter().all(|end| end.unwrap() == Written::Fenced));
    let records = join_all((0..9).map(|_| store.ask(late()))).await;
    assert!(records.into_iter().all(|record| record.unwrap() == Written::Fenced));
    for run_id in ["a", "b", "c"] {
        assert!(steps(&store, run_id).await.is_empty());
        let lease = Lease { worker: "heir#1".into(), ..lease(run_id) };
        let end = Finish { lease, ..last(run_id) };
        assert_eq!(store.ask(end).await.unwrap(), Written::Done);
    }
}

/// R91: a claim on Postgres does not wait for the disk, so a crash of the server may forget it. The
/// same worker claims the run again, perhaps with another input, and what it still has in memory of
/// the forgotten claim must not be written under the new one.
pub(super) async fn r091_a_claim_made_again_after_a_crash_fences_the_forgotten_one(
    database: &Database,
) {
    if database.kind != Kind::Postgres {
        // Claims on MySQL and MariaDB wait for the disk.
        return;
    }
    let store = database.open().await;
    let queue = QueueRow { name: "plain".into(), ..QueueRow::default() };
    store.ask(PutQueue { workspace: WS.into(), queue, now: at(1) }).await.unwrap();
    store.ask(Start { queue: "plain".into(), ..start("a", false) }).await.unwrap();
    let dequeue = || Dequeue { queue: "plain".into(), ..dequeue(10) };
    let mut forgotten = vec![store.ask(dequeue()).await.unwrap().runs.remove(0)];
    assert_eq!(forgotten[0].epoch, 1);
    for crash in 1..=4 {
        // What a crash leaves: no session, and the row as it was before the claim.
        database
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            .await;
        database.execute("DELETE FROM run").await;
        if crash > 2 {
            // Claims from a queue that limits all workers are counted, several statements each.
            let concurrency = Some(10);
            let queue = QueueRow { name: "plain".into(), concurrency, ..QueueRow::default() };
            store.ask(PutQueue { workspace: WS.into(), queue, now: at(1) }).await.unwrap();
        }
        let again = Start { queue: "plain".into(), input: crash.to_string(), ..start("a", false) };
        store.ask(again).await.unwrap();
        let claimed = store.ask(dequeue()).await.unwrap().runs.remove(0);
        assert_eq!(claimed.input, crash.to_string());
        for old in &forgotten {
            assert_eq!(old.worker, claimed.worker);
            assert_ne!(old.epoch, claimed.epoch, "after crash {crash}");
            let lease = Lease { epoch: old.epoch, ..lease("a") };
            let late = Record { lease: lease.clone(), ..record("a", vec![step(0, "1")]) };
            assert_eq!(store.ask(late).await.unwrap(), Written::Fenced);
            let end = Finish { lease, ..finish("a") };
            assert_eq!(store.ask(end).await.unwrap(), Written::Fenced);
        }
        forgotten.push(claimed);
    }
}

/// R91: several processes claim from one queue while what waits on it is changed under their hands.
pub(super) async fn r091_claimers_and_those_who_change_what_waits_do_not_harm_each_other(
    database: &Database,
) {
    const RUNS: usize = 300;
    let store = database.open().await;
    let queue = QueueRow { name: "busy".into(), ..QueueRow::default() };
    store.ask(PutQueue { workspace: WS.into(), queue, now: at(1) }).await.unwrap();
    let enqueue = |number| {
        let start = start(&format!("b{number:03}"), false);
        store.ask(Start { queue: "busy".into(), ..start })
    };
    for started in futures::future::join_all((0..RUNS).map(enqueue)).await {
        started.unwrap();
    }
    let claimed = AtomicUsize::new(0);
    let claim = async |worker: usize| {
        let (store, mut ids, mut behind) = (database.open().await, Vec::new(), None);
        while claimed.load(Ordering::Relaxed) < RUNS {
            let dequeue = Dequeue {
                queue: "busy".into(),
                worker: format!("w{worker}#1"),
                behind,
                ..dequeue(7)
            };
            let taken = store.ask(dequeue).await.unwrap();
            behind = taken.last;
            claimed.fetch_add(taken.runs.len(), Ordering::Relaxed);
            ids.extend(taken.runs.into_iter().map(|run| (run.run_id, run.epoch)));
        }
        ids
    };
    let change = async {
        // A signal makes a new version of the row of its run.
        for number in (0..RUNS).rev() {
            let signal = Signal {
                workspace: WS.into(),
                run_id: format!("b{number:03}"),
                signal_id: format!("s{number}"),
                name: "n".into(),
                payload: "1".into(),
                now: at(3),
            };
            assert_eq!(store.ask(signal).await.unwrap(), Signalled::Accepted);
        }
    };
    let ((), one, two, three) = futures::join!(change, claim(1), claim(2), claim(3));
    let all: Vec<_> = one.into_iter().chain(two).chain(three).collect();
    let runs: BTreeSet<_> = all.iter().map(|(id, _)| id).collect();
    assert_eq!((all.len(), runs.len()), (RUNS, RUNS), "each once");
    assert!(all.iter().all(|(_, epoch)| *epoch == 1));
    for number in 0..RUNS {
        let run = run(&store, &format!("b{number:03}")).await.unwrap();
        assert_eq!((run.inbox, run.epoch), (1, 1), "nothing is lost");
    }
}
