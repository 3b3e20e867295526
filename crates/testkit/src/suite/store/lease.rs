//! Leases: how they end, who takes over, and how often.

use steadfast_core::{ErrorClass, RunStatus};
use steadfast_store::Store;
use steadfast_store::op::{
    Beaten, Dequeue, Heartbeat, QueueRow, Release, Released, Resume, Resumed, Start, Wake, Written,
};

use super::kit::{Kit, at, ids, plain};

super::table! {
    a_lease_that_ran_out_is_taken_by_another_worker,
    every_claim_raises_the_epoch,
    r095_a_run_is_one_workers_until_it_lets_go_or_its_time_is_over,
    a_recovery_counts_an_attempt_and_a_wake_up_does_not,
    a_released_run_is_given_back_without_counting_an_attempt,
    the_last_allowed_recovery_runs_and_the_next_one_is_parked,
    a_run_without_recoveries_is_parked_when_its_worker_is_lost,
    a_parked_run_can_be_resumed_with_a_new_budget,
    a_suspended_run_is_never_parked_for_its_attempts,
    a_wake_up_comes_at_its_time_and_in_order,
    a_wake_takes_only_runs_of_its_version,
    a_wake_never_takes_more_than_its_limit,
    a_wake_honours_the_limit_of_the_worker,
    a_wake_honours_the_limit_of_the_worker_in_each_partition,
    a_wake_says_what_comes_next,
    a_heartbeat_extends_leases_and_names_lost_ones,
    a_heartbeat_with_an_old_epoch_extends_nothing,
    a_heartbeat_shortens_no_lease,
}

/// A heartbeat that extends leases by a minute.
pub(super) fn beat(k: &Kit<'_>, worker: &str, leases: &[(&str, i64)], now: i64) -> Heartbeat {
    Heartbeat {
        workspace: k.ws.clone(),
        worker: worker.to_owned(),
        app_version: "v1".to_owned(),
        workflows: super::kit::workflows(),
        lease: super::kit::secs(60),
        leases: leases.iter().map(|(id, epoch)| ((*id).to_owned(), *epoch)).collect(),
        lease_until: at(now + 60),
        now: at(now),
    }
}

async fn a_lease_that_ran_out_is_taken_by_another_worker(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    assert_eq!(k.ask(k.wake("w2", 59)).await.runs, []);
    let claimed = k.ask(k.wake("w2", 60)).await;
    assert_eq!(ids(&claimed.runs), ["r"]);
    let run = &claimed.runs[0];
    assert_eq!((run.worker.as_str(), run.epoch, run.attempts), ("w2", 2, 2));
    assert_eq!((run.started_at, run.wake_at), (Some(at(0)), at(120)));
    assert_eq!(*run, k.get("r").await);
}

async fn every_claim_raises_the_epoch(store: &dyn Store) {
    let k = Kit::new(store);
    let mut lease = k.owned("r").await;
    let mut epochs = vec![lease.epoch];
    for round in 1..4 {
        lease = k.recovered("w1", round * 100).await;
        epochs.push(lease.epoch);
    }
    k.ask(Release { lease, what: Released::Run, now: at(310) }).await;
    epochs.push(k.recovered("w1", 311).await.epoch);
    k.cancel("r").await;
    k.ask(Resume { workspace: k.ws.clone(), run_id: "r".to_owned(), now: at(320) }).await;
    epochs.push(k.lease_of(&k.ask(k.dequeue("default", "w1", 372)).await).epoch);
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
}

/// R95: taken by one, refused to others, free again at once or when its time is over.
async fn r095_a_run_is_one_workers_until_it_lets_go_or_its_time_is_over(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    let first = k.lease_of(&k.ask(k.dequeue("default", "w1", 1)).await);
    for now in [2, 60] {
        assert_eq!(k.ask(k.dequeue("default", "w2", now)).await.runs, []);
        assert_eq!(k.ask(k.wake("w2", now)).await.runs, []);
    }
    let what = Released::Run;
    let release = Release { lease: first.clone(), what, now: at(60) };
    assert_eq!(k.ask(release).await, Written::Done);
    let second = k.recovered("w2", 60).await;
    let release = Release { lease: first, what, now: at(61) };
    assert_eq!(k.ask(release).await, Written::Fenced);
    assert_eq!(k.ask(k.wake("w3", 119)).await.runs, []);
    let third = k.recovered("w3", 120).await;
    assert_eq!((third.worker.as_str(), third.epoch), ("w3", second.epoch + 1));
}

/// R79, R80
async fn a_recovery_counts_an_attempt_and_a_wake_up_does_not(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.suspend(&lease, 0).await;
    k.recovered("w1", 1000).await;
    assert_eq!(k.get("r").await.attempts, 1);
    k.recovered("w1", 2000).await;
    assert_eq!(k.get("r").await.attempts, 2);
}

async fn a_released_run_is_given_back_without_counting_an_attempt(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    assert_eq!(k.ask(Release { lease, what: Released::Run, now: at(10) }).await, Written::Done);
    let run = k.get("r").await;
    assert_eq!((run.status, run.worker.as_str()), (RunStatus::Pending, ""));
    k.recovered("w2", 10).await;
    assert_eq!(k.get("r").await.attempts, 1);
}

/// R79
async fn the_last_allowed_recovery_runs_and_the_next_one_is_parked(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned_by(Start { max_attempts: 2, ..k.start("r") }, "w1").await;
    for (round, attempts) in [(1, 2), (2, 3)] {
        let claimed = k.ask(k.wake("w2", round * 100)).await;
        assert_eq!(claimed.runs[0].attempts, attempts, "one start and two recoveries");
    }
    let claimed = k.ask(k.wake("w2", 300)).await;
    assert_eq!((claimed.runs.len(), claimed.exhausted), (0, vec!["r".to_owned()]));
    let run = k.get("r").await;
    assert_eq!((run.status, run.attempts), (RunStatus::RetriesExceeded, 3));
    assert_eq!(run.error.as_ref().map(|e| e.class()), Some(ErrorClass::RetriesExceeded));
    assert_eq!((run.finished_at, run.worker.as_str()), (Some(at(300)), ""));
    assert_eq!(k.ask(k.wake("w2", 9000)).await.runs, []);
}

/// R79
async fn a_run_without_recoveries_is_parked_when_its_worker_is_lost(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(Start { max_attempts: 0, ..k.start("r") }).await;
    assert_eq!(k.ask(k.dequeue("default", "w1", 1)).await.runs.len(), 1);
    assert_eq!(k.ask(k.wake("w2", 100)).await.exhausted, ["r"]);
}

/// R74
async fn a_parked_run_can_be_resumed_with_a_new_budget(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned_by(Start { max_attempts: 0, ..k.start("r") }, "w1").await;
    k.ask(k.wake("w2", 100)).await;
    let resume = Resume { workspace: k.ws.clone(), run_id: "r".to_owned(), now: at(200) };
    assert_eq!(k.ask(resume).await, Resumed::Done);
    let run = k.get("r").await;
    assert_eq!((run.status, run.attempts, run.error), (RunStatus::Enqueued, 0, None));
    let claimed = k.ask(k.dequeue("default", "w2", 201)).await;
    assert_eq!((claimed.runs[0].attempts, claimed.runs[0].epoch), (1, 3));
}

/// R79
async fn a_suspended_run_is_never_parked_for_its_attempts(store: &dyn Store) {
    let k = Kit::new(store);
    let mut lease = k.owned_by(Start { max_attempts: 0, ..k.start("r") }, "w1").await;
    for round in 1..5 {
        k.suspend(&lease, 0).await;
        lease = k.recovered("w1", round * 1000).await;
    }
    assert_eq!(k.get("r").await.attempts, 1);
}

async fn a_wake_up_comes_at_its_time_and_in_order(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, wake_at) in [("a", 30), ("b", 10), ("c", 20), ("d", 10)] {
        let lease = k.owned(id).await;
        let suspend =
            steadfast_store::op::Suspend { wake_at: at(wake_at), ..k.suspend_op(&lease, 0) };
        k.ask(suspend).await;
    }
    assert_eq!(k.ask(k.wake("w1", 9)).await.runs, []);
    let claimed = k.ask(k.wake("w1", 20)).await;
    assert_eq!(ids(&claimed.runs), ["b", "d", "c"]);
    assert!(claimed.runs.iter().all(|run| !run.parked && run.waits.is_empty()));
    assert_eq!(k.get("a").await.waits, "[\"paid\"]");
}

/// R90
async fn a_wake_takes_only_runs_of_its_version(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, version) in [("a", "v1"), ("b", "v2"), ("c", "")] {
        k.owned_by(Start { app_version: version.to_owned(), ..k.start(id) }, "w1").await;
    }
    assert_eq!(ids(&k.ask(k.wake("w2", 100)).await.runs), ["a", "c"]);
}

async fn a_wake_never_takes_more_than_its_limit(store: &dyn Store) {
    let k = Kit::new(store);
    for i in 0..7 {
        k.owned(&format!("r{i}")).await;
    }
    let wake = Wake { limit: 3, ..k.wake("w2", 100) };
    assert_eq!(ids(&k.ask(wake.clone()).await.runs), ["r0", "r1", "r2"]);
    assert_eq!(ids(&k.ask(wake.clone()).await.runs), ["r3", "r4", "r5"]);
    assert_eq!(ids(&k.ask(wake).await.runs), ["r6"]);
}

/// What a worker has of queues and partitions.
fn has(places: &[(&str, &str, i64)]) -> Vec<(String, String, i64)> {
    places.iter().map(|(q, p, n)| ((*q).to_owned(), (*p).to_owned(), *n)).collect()
}

/// Puts runs on a queue without limits and lets a worker that is soon gone take them all.
async fn left_behind(k: &Kit<'_>, queue: &str, runs: &[(&str, &str)]) {
    let partitioned = runs.iter().any(|(_, partition)| !partition.is_empty());
    k.put(QueueRow { partitioned, ..plain(queue) }).await;
    for (run, partition) in runs {
        k.started(Start { partition: (*partition).to_owned(), ..k.on(queue, run) }).await;
    }
    assert_eq!(k.ask(k.dequeue(queue, "w1", 1)).await.runs.len(), runs.len());
}

/// R84
async fn a_wake_honours_the_limit_of_the_worker(store: &dyn Store) {
    let k = Kit::new(store);
    for (queue, runs) in [("tight", ["t0", "t1"]), ("full", ["f0", "f1"]), ("free", ["n0", "n1"])] {
        left_behind(&k, queue, &runs.map(|run| (run, ""))).await;
    }
    for queue in ["tight", "full"] {
        k.put(QueueRow { worker_concurrency: Some(2), ..plain(queue) }).await;
    }
    let worker_has = has(&[("tight", "", 1), ("full", "", 1), ("full", "old", 1), ("free", "", 9)]);
    let wake = Wake { worker_has, ..k.wake("w2", 100) };
    let claimed = k.ask(wake).await;
    assert_eq!((ids(&claimed.runs), claimed.left), (vec!["n0", "n1", "t0"], true));
    let rest = k.ask(k.wake("w3", 100)).await;
    assert_eq!((rest.runs.len(), rest.left), (3, false), "the rest is for others");
}

/// R84 R88
async fn a_wake_honours_the_limit_of_the_worker_in_each_partition(store: &dyn Store) {
    let k = Kit::new(store);
    let runs = [("a0", "a"), ("a1", "a"), ("b0", "b"), ("b1", "b"), ("c0", "c"), ("c1", "c")];
    left_behind(&k, "q", &runs).await;
    let limit = QueueRow { worker_concurrency: Some(1), partitioned: true, ..plain("q") };
    k.put(limit).await;
    // A full partition does not stand before the others, however few are asked for.
    let worker_has = has(&[("q", "a", 1), ("q", "c", 0), ("other", "b", 1)]);
    let wake = Wake { worker_has, limit: 3, ..k.wake("w2", 100) };
    assert_eq!(ids(&k.ask(wake).await.runs), ["b0", "c0"]);
    let worker_has = has(&[("q", "b", 1), ("q", "c", 1)]);
    let wake = Wake { worker_has, limit: 1, ..k.wake("w2", 100) };
    assert_eq!(ids(&k.ask(wake).await.runs), ["a0"]);
}

async fn a_wake_says_what_comes_next(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.ask(k.wake("w1", 1)).await.next_at, None);
    k.started(k.start("waiting")).await;
    assert_eq!(k.ask(k.wake("w1", 1)).await.next_at, None);
    k.owned("r").await;
    assert_eq!(k.ask(k.wake("w1", 1)).await.next_at, Some(at(60)));
    k.started(Start { app_version: "v2".to_owned(), ..k.start("other") }).await;
    k.ask(Dequeue { app_version: "v2".to_owned(), ..k.dequeue("default", "w2", 2) }).await;
    let claimed = k.ask(k.wake("w1", 70)).await;
    assert_eq!(ids(&claimed.runs), ["r", "waiting"]);
    assert!(claimed.left, "a run of another version is left");
    assert_eq!(claimed.next_at, Some(at(130)));
}

/// X14
async fn a_heartbeat_extends_leases_and_names_lost_ones(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["a", "b", "c", "d"] {
        k.owned(id).await;
    }
    let parked = k.owned("e").await;
    k.suspend(&parked, 0).await;
    k.cancel("b").await;
    k.ask(Wake { limit: 1, ..k.wake("w2", 60) }).await;
    let leases = [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1), ("nowhere", 1)];
    let beaten = k.ask(beat(&k, "w1", &leases, 70)).await;
    let lost = ["a", "b", "e", "nowhere"].map(str::to_owned).to_vec();
    assert_eq!(beaten, Beaten { lost, superseded_by: None });
    assert_eq!(k.ask(k.wake("w3", 119)).await.runs, []);
    assert_eq!(ids(&k.ask(k.wake("w3", 130)).await.runs), ["a", "c", "d"]);
}

/// X14: the worker's own earlier life must not keep a run for it.
async fn a_heartbeat_with_an_old_epoch_extends_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    k.recovered("w1", 100).await;
    let beaten = k.ask(beat(&k, "w1", &[("r", 1)], 150)).await;
    assert_eq!(beaten.lost, ["r"]);
    assert_eq!(k.get("r").await.wake_at, at(160));
}

async fn a_heartbeat_shortens_no_lease(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    let late = Heartbeat { lease_until: at(30), ..beat(&k, "w1", &[("r", 1)], 10) };
    assert_eq!(k.ask(late).await, Beaten { lost: Vec::new(), superseded_by: None });
    assert_eq!(k.get("r").await.wake_at, at(60));
}
