//! Workers: who takes a name over, what the one before learns of it, and the end of what a silent
//! worker holds.

use steadfast_store::Store;
use steadfast_store::op::{
    Dequeue, EndLeases, Finish, Heartbeat, LeasesEnded, ListPeers, ListWorkers, Outbox, Peer,
    PutSink, QueueRow, SinkFrom, SlotTaken, Start, TakeOutbox, TakeOver, TakeSlot, TakenOver, Wake,
    WorkerRow, Written,
};

use super::kit::{Kit, at, ids, plain, secs};
use super::lease::beat;

super::table! {
    a_restarted_worker_takes_over_its_earlier_incarnations,
    what_the_former_incarnation_writes_is_refused_at_once,
    the_former_incarnation_learns_who_superseded_it,
    what_a_superseded_worker_claims_is_taken_from_it,
    a_take_over_sent_again_gives_the_same_answer,
    a_take_over_frees_the_slots_and_sinks_of_the_former_incarnation,
    a_take_over_matches_names_exactly,
    a_take_over_leaves_suspended_runs_alone,
    a_run_that_is_taken_over_counts_an_attempt,
    workers_are_listed_while_they_report,
    a_worker_that_was_silent_for_a_day_is_forgotten,
    a_superseded_worker_is_remembered_for_a_month,
    a_silent_workers_leases_end_whatever_its_clock_said,
    a_worker_that_reports_keeps_its_leases,
    a_silent_workers_slots_and_sinks_are_free,
    other_workers_are_listed_in_pages,
    a_start_noted_by_a_clock_that_is_ahead_is_in_no_window_of_now,
}

fn take(k: &Kit<'_>, name: &str, worker: &str, now: i64) -> TakeOver {
    let (workspace, name, worker) = (k.ws.clone(), name.to_owned(), worker.to_owned());
    TakeOver { workspace, name, worker, now: at(now) }
}

/// Nobody who could still be alive had the runs.
fn taken(runs: u64) -> TakenOver {
    TakenOver { runs, former: Vec::new() }
}

async fn a_restarted_worker_takes_over_its_earlier_incarnations(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, worker) in [("a", "box#1"), ("b", "box#2"), ("c", "box#3"), ("d", "other#1")] {
        k.owned_by(k.start(id), worker).await;
    }
    for (worker, now) in [("box#1", 1), ("box#2", 3), ("box#3", 4), ("other#1", 4)] {
        k.ask(beat(&k, worker, &[], now)).await;
    }
    let former = vec![("box#1".to_owned(), at(1)), ("box#2".to_owned(), at(3))];
    assert_eq!(k.ask(take(&k, "box", "box#3", 5)).await, TakenOver { runs: 2, former });
    assert_eq!(ids(&k.ask(k.wake("box#3", 5)).await.runs), ["a", "b"]);
    assert_eq!(k.ask(take(&k, "box", "box#3", 5)).await.runs, 0);
    assert_eq!(k.get("c").await.epoch, 1);
}

/// Before anybody has claimed them again.
async fn what_the_former_incarnation_writes_is_refused_at_once(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned_by(k.start("r"), "box#1").await;
    let late = k.owned_by(k.start("late"), "box#1").await;
    k.ask(take(&k, "box", "box#2", 100)).await;
    assert_eq!(k.finish(&lease).await, Written::Fenced);
    assert_eq!(k.record(&lease, Vec::new()).await, Written::Fenced);
    // Also of a run whose lease had run out, and that nobody has claimed.
    assert_eq!(k.ask(Finish { now: at(101), ..k.finish_op(&late, "1") }).await, Written::Fenced);
    let claimed = k.ask(k.wake("box#2", 100)).await;
    assert_eq!(ids(&claimed.runs), ["late", "r"]);
    assert!(claimed.runs.iter().all(|run| run.epoch > lease.epoch + 1));
}

async fn the_former_incarnation_learns_who_superseded_it(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(beat(&k, "box#1", &[], 1)).await;
    k.owned_by(k.start("r"), "box#1").await;
    k.ask(beat(&k, "box#2", &[], 2)).await;
    k.ask(take(&k, "box", "box#2", 2)).await;
    for now in [3, 3, 4] {
        let told = k.ask(beat(&k, "box#1", &[("r", 1)], now)).await;
        assert_eq!(told.superseded_by.as_deref(), Some("box#2"));
        assert_eq!(told.lost, ["r"]);
    }
    assert_eq!(k.ask(beat(&k, "box#2", &[], 4)).await.superseded_by, None);
    assert_eq!(k.get("r").await.wake_at, at(2), "a superseded worker extends nothing");
    // A third one is named to the second; the first knows of the second.
    k.ask(beat(&k, "box#3", &[], 5)).await;
    k.ask(take(&k, "box", "box#3", 5)).await;
    let told = k.ask(beat(&k, "box#2", &[], 6)).await;
    assert_eq!(told.superseded_by.as_deref(), Some("box#3"));
    let told = k.ask(beat(&k, "box#1", &[], 6)).await;
    assert_eq!(told.superseded_by.as_deref(), Some("box#2"));
}

async fn what_a_superseded_worker_claims_is_taken_from_it(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(beat(&k, "box#1", &[], 1)).await;
    k.owned_by(k.start("mine"), "box#1").await;
    k.ask(take(&k, "box", "box#2", 2)).await;
    // It does not get back what was taken from it.
    let claimed = k.ask(k.wake("box#1", 2)).await;
    assert_eq!((claimed.runs.len(), claimed.left), (0, true));
    assert_eq!(ids(&k.ask(k.wake("box#2", 2)).await.runs), ["mine"]);
    k.started(k.start("r")).await;
    let claimed = k.ask(k.dequeue("default", "box#1", 3)).await;
    let lease = k.lease_of(&claimed);
    k.owned_by(k.start("bystander"), "box#11").await;
    k.ask(beat(&k, "box#1", &[], 4)).await;
    assert_eq!(k.finish(&lease).await, Written::Fenced);
    assert_eq!(ids(&k.ask(k.wake("box#2", 4)).await.runs), ["r"]);
    assert_eq!(k.get("bystander").await.epoch, 1);
}

async fn a_take_over_sent_again_gives_the_same_answer(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(beat(&k, "box#1", &[], 1)).await;
    k.owned_by(k.start("r"), "box#1").await;
    let former = vec![("box#1".to_owned(), at(1))];
    for _ in 0..3 {
        let over = k.ask(take(&k, "box", "box#2", 2)).await;
        assert_eq!(over, TakenOver { runs: 1, former: former.clone() });
    }
}

async fn a_take_over_frees_the_slots_and_sinks_of_the_former_incarnation(store: &dyn Store) {
    let k = Kit::new(store);
    holds_a_slot_and_a_sink(&k, "box#1").await;
    k.ask(take(&k, "box", "box#2", 2)).await;
    takes_the_slot_and_the_sink(&k, "w", 3).await;
}

/// Until an hour later, by its clock.
async fn holds_a_slot_and_a_sink(k: &Kit<'_>, worker: &str) {
    k.put(QueueRow { concurrency: Some(1), ..plain("q") }).await;
    let lease = k.owned_by(k.start("r"), worker).await;
    let (lease_until, now) = (at(3660), at(1));
    let (queue, partition) = ("q".to_owned(), String::new());
    let slot = TakeSlot { lease, step: 0, queue, partition, lease_until, now };
    assert_eq!(k.ask(slot).await, SlotTaken::Done);
    let (workspace, sink) = (k.ws.clone(), "out".to_owned());
    let (kind, place) = ("webhook".to_owned(), String::new());
    k.ask(PutSink { workspace, sink, kind, place, from: SinkFrom::Now, now }).await;
    assert!(matches!(k.ask(outbox(k, worker, 1)).await, Outbox::Taken(_)));
    assert_eq!(k.ask(outbox(k, "w", 2)).await, Outbox::Held);
}

fn outbox(k: &Kit<'_>, owner: &str, now: i64) -> TakeOutbox {
    let (workspace, sink, owner) = (k.ws.clone(), "out".to_owned(), owner.to_owned());
    TakeOutbox { workspace, sink, owner, limit: 10, lease_until: at(now + 3600), now: at(now) }
}

async fn takes_the_slot_and_the_sink(k: &Kit<'_>, worker: &str, now: i64) {
    let lease = k.owned_by(k.start("next"), worker).await;
    let (queue, partition) = ("q".to_owned(), String::new());
    let slot = TakeSlot { lease, step: 0, queue, partition, lease_until: at(99), now: at(now) };
    assert_eq!(k.ask(slot).await, SlotTaken::Done);
    assert!(matches!(k.ask(outbox(k, worker, now)).await, Outbox::Taken(_)));
}

/// Wildcards, case and longer names: `LIKE` would match some of these.
async fn a_take_over_matches_names_exactly(store: &dyn Store) {
    let k = Kit::new(store);
    let workers = ["b_x#1", "box#1", "B_X#1", "b_xy#1", "b%#1", "b_x", "b_x1", "b_x\\#1"];
    for worker in workers {
        k.owned_by(k.start(worker), worker).await;
    }
    for name in ["b_x", "b%", "b_x\\"] {
        let over = k.ask(take(&k, name, &format!("{name}#9"), 5)).await;
        assert_eq!(over, taken(1), "{name}");
    }
    let due = k.ask(k.wake("w", 5)).await;
    assert_eq!(ids(&due.runs), ["b%#1", "b_x#1", "b_x\\#1"]);
}

async fn a_take_over_leaves_suspended_runs_alone(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned_by(k.start("r"), "box#1").await;
    k.suspend(&lease, 0).await;
    assert_eq!(k.ask(take(&k, "box", "box#2", 5)).await, taken(0));
    assert_eq!(k.get("r").await.wake_at, at(1000));
}

/// R79: a run that ends its worker each time is parked after all.
async fn a_run_that_is_taken_over_counts_an_attempt(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned_by(Start { max_attempts: 1, ..k.start("r") }, "box#1").await;
    k.ask(take(&k, "box", "box#2", 5)).await;
    assert_eq!(k.ask(k.wake("box#2", 5)).await.runs[0].attempts, 2);
    k.ask(take(&k, "box", "box#3", 6)).await;
    assert_eq!(k.ask(k.wake("box#3", 6)).await.exhausted, ["r"]);
}

async fn workers_are_listed_while_they_report(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(beat(&k, "b", &[], 1)).await;
    k.ask(beat(&k, "a", &[], 2)).await;
    let newer = Heartbeat { app_version: "v2".to_owned(), ..beat(&k, "b", &[], 5) };
    k.ask(newer).await;
    let list = |since| ListWorkers { workspace: k.ws.clone(), since: at(since) };
    let row = |worker: &str, version: &str, from, to| WorkerRow {
        worker: worker.to_owned(),
        app_version: version.to_owned(),
        workflows: super::kit::workflows(),
        started_at: at(from),
        seen_at: at(to),
    };
    let both = [row("a", "v1", 2, 2), row("b", "v2", 1, 5)];
    assert_eq!(k.ask(list(2)).await.0, both);
    assert_eq!(k.ask(list(3)).await.0, both[1..]);
    k.ask(beat(&k, "box#1", &[], 6)).await;
    k.ask(take(&k, "box", "box#2", 6)).await;
    assert_eq!(k.ask(list(2)).await.0, both, "a superseded worker is not listed");
    k.ask(end(&k, "b", 5, 7)).await;
    assert_eq!(k.ask(list(2)).await.0, both[..1], "nor one that is silent");
    k.ask(beat(&k, "b", &[], 8)).await;
    assert_eq!(k.ask(list(2)).await.0.len(), 2);
}

async fn a_worker_that_was_silent_for_a_day_is_forgotten(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(beat(&k, "old", &[], 0)).await;
    k.ask(beat(&k, "new", &[], 86_401)).await;
    let listed = k.ask(ListWorkers { workspace: k.ws.clone(), since: at(0) }).await.0;
    assert_eq!(listed.iter().map(|row| row.worker.as_str()).collect::<Vec<_>>(), ["new"]);
    k.started(k.start("r")).await;
    assert_eq!(
        k.ask(Dequeue { limit: 1, ..k.dequeue("default", "old", 86_402) }).await.runs.len(),
        1
    );
}

/// It may have been stopped for days.
async fn a_superseded_worker_is_remembered_for_a_month(store: &dyn Store) {
    let k = Kit::new(store);
    let day = 86_400;
    k.ask(beat(&k, "box#1", &[], 0)).await;
    k.ask(beat(&k, "box#2", &[], 1)).await;
    k.ask(take(&k, "box", "box#2", 1)).await;
    k.ask(beat(&k, "new", &[], 29 * day)).await;
    let told = k.ask(beat(&k, "box#1", &[], 29 * day)).await;
    assert_eq!(told.superseded_by.as_deref(), Some("box#2"));
    k.ask(beat(&k, "newer", &[], 31 * day)).await;
    assert_eq!(k.ask(beat(&k, "box#1", &[], 31 * day)).await.superseded_by, None);
}

fn end(k: &Kit<'_>, worker: &str, seen_at: i64, now: i64) -> EndLeases {
    let (workspace, worker) = (k.ws.clone(), worker.to_owned());
    EndLeases { workspace, worker, seen_at: at(seen_at), now: at(now) }
}

/// The lease, and the place on a queue that comes with it.
async fn a_silent_workers_leases_end_whatever_its_clock_said(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(QueueRow { concurrency: Some(1), ..plain("q") }).await;
    k.ask(beat(&k, "w1", &[], 3600)).await;
    for run in ["a", "b"] {
        k.started(k.on("q", run)).await;
    }
    k.ask(k.dequeue("q", "w1", 3600)).await;
    assert_eq!(k.ask(k.wake("w2", 90)).await.runs, []);
    assert_eq!(k.ask(end(&k, "w1", 3600, 90)).await, LeasesEnded::Done(1));
    assert_eq!(k.ask(end(&k, "w1", 3600, 90)).await, LeasesEnded::Done(0));
    let lease = k.recovered("w2", 90).await;
    assert_eq!((lease.run_id.as_str(), lease.epoch), ("a", 2));
    assert_eq!(k.finish(&lease).await, Written::Done);
    assert_eq!(ids(&k.ask(k.dequeue("q", "w2", 91)).await.runs), ["b"]);
}

async fn a_worker_that_reports_keeps_its_leases(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(beat(&k, "w1", &[], 1)).await;
    let lease = k.owned("r").await;
    let suspended = k.owned("sleeps").await;
    k.suspend(&suspended, 0).await;
    k.ask(beat(&k, "w1", &[("r", 1)], 2)).await;
    assert_eq!(k.ask(end(&k, "w1", 1, 3)).await, LeasesEnded::Reports);
    assert_eq!(k.ask(end(&k, "nobody", 1, 3)).await, LeasesEnded::Reports);
    assert_eq!(k.ask(Wake { ..k.wake("w2", 3) }).await.runs, []);
    // It was only slow: what nobody has claimed meanwhile is still its own.
    assert_eq!(k.ask(end(&k, "w1", 2, 4)).await, LeasesEnded::Done(1));
    assert_eq!(k.get("sleeps").await.wake_at, at(1000));
    assert_eq!(k.ask(beat(&k, "w1", &[("r", 1)], 5)).await.lost, [] as [&str; 0]);
    assert_eq!(k.ask(k.wake("w2", 6)).await.runs, []);
    assert_eq!(k.finish(&lease).await, Written::Done);
}

async fn a_silent_workers_slots_and_sinks_are_free(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(beat(&k, "w1", &[], 1)).await;
    holds_a_slot_and_a_sink(&k, "w1").await;
    k.ask(end(&k, "w1", 1, 70)).await;
    takes_the_slot_and_the_sink(&k, "w2", 71).await;
}

async fn other_workers_are_listed_in_pages(store: &dyn Store) {
    let k = Kit::new(store);
    for n in 0..103 {
        k.ask(beat(&k, &format!("w{n:03}"), &[], n)).await;
    }
    let page = |after: &str| {
        let (workspace, worker) = (k.ws.clone(), "w001".to_owned());
        ListPeers { workspace, worker, after: after.to_owned() }
    };
    let first = k.ask(page("")).await.0;
    assert_eq!(first.len(), 100);
    let peer = Peer { worker: "w002".to_owned(), seen_at: at(2), lease: secs(60) };
    assert_eq!(first[1], peer);
    assert_eq!(first[99].worker, "w100");
    k.ask(end(&k, "w102", 102, 103)).await;
    let rest = k.ask(page("w100")).await.0;
    assert_eq!(rest.iter().map(|peer| peer.worker.as_str()).collect::<Vec<_>>(), ["w101"]);
}

/// R86: two starts in 10 s, of which a clock that was ahead has noted one an hour later.
async fn a_start_noted_by_a_clock_that_is_ahead_is_in_no_window_of_now(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(QueueRow { rate: Some((1, secs(10))), ..plain("q") }).await;
    for run in ["a", "b", "c"] {
        k.started(k.on("q", run)).await;
    }
    assert_eq!(ids(&k.ask(k.dequeue("q", "ahead", 3600)).await.runs), ["a"]);
    assert_eq!(ids(&k.ask(k.dequeue("q", "w", 100)).await.runs), ["b"]);
    let full = k.ask(k.dequeue("q", "w", 109)).await;
    assert_eq!((full.runs.len(), full.next_at), (0, Some(at(110))));
    assert_eq!(ids(&k.ask(k.dequeue("q", "w", 110)).await.runs), ["c"]);
}
