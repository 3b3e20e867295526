//! Limits of a queue: concurrency, concurrency per worker, rates, and slots for steps.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_store::Store;
use steadfast_store::op::{
    Dequeue, FreeSlot, Freed, Holder, InspectQueue, Lease, QueueReport, QueueRow, SlotTaken, Start,
    TakeSlot,
};

use super::kit::{Kit, at, ids, plain};

super::table! {
    concurrency_counts_runs_of_all_workers,
    a_suspended_run_still_holds_its_place,
    a_finished_run_makes_room,
    a_worker_takes_no_more_than_its_own_limit,
    a_rate_allows_so_many_starts_in_any_window,
    a_rate_says_when_it_eases,
    a_recovery_is_not_a_start,
    a_slot_is_held_until_it_is_given_back,
    slots_and_runs_share_one_limit,
    a_slot_runs_out_with_its_lease,
    a_slot_that_ran_out_makes_room_for_a_run,
    a_heartbeat_keeps_slots,
    a_heartbeat_does_not_keep_a_slot_of_an_earlier_claim,
    a_heartbeat_does_not_bring_back_a_slot_that_ran_out,
    a_slot_of_an_earlier_owner_is_taken_over_not_counted_twice,
    a_slot_taken_twice_by_its_holder_is_one_slot,
    a_slot_counts_against_the_rate,
    a_slot_can_be_taken_again_at_the_same_moment,
    a_slot_of_an_unknown_queue_is_refused,
    the_default_queue_gives_slots_without_having_been_made,
    a_slot_needs_a_good_lease,
    a_paused_queue_gives_no_slots,
    only_the_holder_gives_a_slot_back,
    a_step_gives_its_own_slot_back,
    a_cancelled_run_gives_its_slots_back,
    a_report_says_who_holds_a_queue,
    a_report_names_the_first_hundred_holders_and_counts_all,
}

async fn queue(k: &Kit<'_>, change: impl FnOnce(&mut QueueRow)) {
    let mut queue = plain("q");
    change(&mut queue);
    k.put(queue).await;
}

async fn filled(k: &Kit<'_>, runs: usize) {
    k.ask_all((0..runs).map(|i| k.on("q", &format!("r{i:03}"))).collect()).await;
}

fn take(lease: &Lease, step: i64, now: i64) -> TakeSlot {
    TakeSlot {
        lease: lease.clone(),
        step,
        queue: "q".to_owned(),
        partition: String::new(),
        lease_until: at(now + 60),
        now: at(now),
    }
}

async fn report(k: &Kit<'_>, now: i64) -> QueueReport {
    let (workspace, partition) = (k.ws.clone(), String::new());
    k.ask(InspectQueue { workspace, queue: "q".to_owned(), partition, now: at(now) }).await
}

/// R85
async fn concurrency_counts_runs_of_all_workers(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(3)).await;
    filled(&k, 5).await;
    let two = Dequeue { limit: 2, ..k.dequeue("q", "w1", 1) };
    assert_eq!(k.ask(two).await.runs.len(), 2);
    assert_eq!(k.ask(k.dequeue("q", "w2", 1)).await.runs.len(), 1);
    assert_eq!(k.ask(k.dequeue("q", "w3", 1)).await.runs.len(), 0);
}

/// R85
async fn a_suspended_run_still_holds_its_place(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    filled(&k, 2).await;
    let claimed = k.ask(k.dequeue("q", "w1", 1)).await;
    k.suspend(&k.lease_of(&claimed), 0).await;
    assert_eq!(k.ask(k.dequeue("q", "w2", 5)).await.runs, []);
}

/// R85
async fn a_finished_run_makes_room(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    filled(&k, 3).await;
    let claimed = k.ask(k.dequeue("q", "w1", 1)).await;
    k.finish(&k.lease_of(&claimed)).await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 6)).await.runs), ["r001"]);
    k.cancel("r001").await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 7)).await.runs), ["r002"]);
}

/// R84
async fn a_worker_takes_no_more_than_its_own_limit(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.worker_concurrency = Some(2)).await;
    filled(&k, 6).await;
    let claims = async |dequeue: Dequeue| {
        let claimed = k.ask(dequeue).await;
        (claimed.runs.len(), claimed.full)
    };
    let one = Dequeue { limit: 1, ..k.dequeue("q", "w1", 1) };
    assert_eq!(claims(one).await, (1, false), "there is room for one more");
    let has = |n| vec![(String::new(), n)];
    let more = |n| Dequeue { worker_has: has(n), ..k.dequeue("q", "w1", 2) };
    assert_eq!(claims(more(1)).await, (1, true));
    assert_eq!(claims(more(2)).await, (0, true));
    assert_eq!(claims(more(1)).await, (1, true));
    let other = k.dequeue("q", "w2", 2);
    assert_eq!(claims(other).await, (2, true), "another worker has its own");
    queue(&k, |q| q.worker_concurrency = None).await;
    assert_eq!(claims(more(9)).await, (1, false), "no limit, no end of places");
}

/// R86
async fn a_rate_allows_so_many_starts_in_any_window(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.rate = Some((2, Duration::from_secs(10)))).await;
    filled(&k, 9).await;
    let mut starts = Vec::new();
    for now in [1, 4, 9, 10, 11, 13, 14, 20, 21, 24, 30, 31] {
        let one = Dequeue { limit: 1, ..k.dequeue("q", "w1", now) };
        starts.extend(k.ask(one).await.runs.iter().map(|_| now));
    }
    assert_eq!(starts, [1, 4, 11, 14, 21, 24, 31], "as soon as allowed, never sooner");
}

/// R86
async fn a_rate_says_when_it_eases(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.rate = Some((2, Duration::from_secs(10)))).await;
    filled(&k, 3).await;
    assert_eq!(k.ask(k.dequeue("q", "w1", 1)).await.runs.len(), 2);
    let claimed = k.ask(k.dequeue("q", "w2", 5)).await;
    assert_eq!((claimed.runs.len(), claimed.next_at), (0, Some(at(11))));
    let report = report(&k, 5).await;
    assert_eq!((report.started, report.eases_at, report.waiting), (2, Some(at(11)), 1));
}

async fn a_recovery_is_not_a_start(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.rate = Some((1, Duration::from_secs(1000)))).await;
    filled(&k, 1).await;
    k.ask(k.dequeue("q", "w1", 1)).await;
    assert_eq!(ids(&k.ask(k.wake("w2", 100)).await.runs), ["r000"]);
    assert_eq!(report(&k, 100).await.started, 1);
}

async fn a_slot_is_held_until_it_is_given_back(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    let (a, b) = (k.owned("a").await, k.owned("b").await);
    assert_eq!(k.ask(take(&a, 1, 1)).await, SlotTaken::Done);
    let full = SlotTaken::Full { until: Some(at(61)) };
    assert_eq!(k.ask(take(&b, 1, 2)).await, full);
    assert_eq!(k.ask(FreeSlot { lease: a, step: 1 }).await, Freed(true));
    assert_eq!(k.ask(take(&b, 1, 2)).await, SlotTaken::Done);
}

/// R85
async fn slots_and_runs_share_one_limit(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(2)).await;
    filled(&k, 3).await;
    let a = k.owned("a").await;
    assert_eq!(k.ask(take(&a, 1, 1)).await, SlotTaken::Done);
    assert_eq!(k.ask(k.dequeue("q", "w1", 1)).await.runs.len(), 1);
    assert_eq!(k.ask(take(&a, 2, 1)).await, SlotTaken::Full { until: Some(at(61)) });
}

async fn a_slot_runs_out_with_its_lease(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    let (a, b) = (k.owned("a").await, k.owned("b").await);
    k.ask(take(&a, 1, 1)).await;
    assert_ne!(k.ask(take(&b, 1, 60)).await, SlotTaken::Done);
    assert_eq!(k.ask(take(&b, 1, 61)).await, SlotTaken::Done);
}

async fn a_heartbeat_keeps_slots(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    let (a, b) = (k.owned("a").await, k.owned("b").await);
    k.ask(take(&a, 1, 1)).await;
    k.ask(super::lease::beat(&k, "w1", &[("a", 1)], 30)).await;
    assert_eq!(k.ask(take(&b, 1, 61)).await, SlotTaken::Full { until: Some(at(90)) });
}

async fn a_heartbeat_does_not_keep_a_slot_of_an_earlier_claim(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    let first = k.owned("a").await;
    let long = TakeSlot { lease_until: at(200), ..take(&first, 1, 1) };
    assert_eq!(k.ask(long).await, SlotTaken::Done);
    // The same worker, after its lease ran out.
    assert_eq!(k.recovered("w1", 100).await.epoch, 2);
    k.ask(super::lease::beat(&k, "w1", &[("a", 2)], 190)).await;
    let b = k.owned_by(Start { now: at(190), ..k.start("b") }, "w2").await;
    assert_eq!(k.ask(take(&b, 1, 210)).await, SlotTaken::Done);
}

async fn a_slot_that_ran_out_makes_room_for_a_run(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    let a = k.owned("a").await;
    let short = TakeSlot { lease_until: at(10), ..take(&a, 1, 1) };
    assert_eq!(k.ask(short).await, SlotTaken::Done);
    filled(&k, 1).await;
    assert_eq!(k.ask(k.dequeue("q", "w1", 9)).await.runs, []);
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 10)).await.runs), ["r000"]);
}

async fn a_heartbeat_does_not_bring_back_a_slot_that_ran_out(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    let a = k.owned("a").await;
    let short = TakeSlot { lease_until: at(10), ..take(&a, 1, 1) };
    assert_eq!(k.ask(short).await, SlotTaken::Done);
    let b = k.owned_by(k.start("b"), "w2").await;
    assert_eq!(k.ask(take(&b, 1, 11)).await, SlotTaken::Done);
    k.ask(super::lease::beat(&k, "w1", &[("a", 1)], 20)).await;
    assert_eq!(report(&k, 21).await.held, 1, "the place is another's");
}

async fn a_slot_of_an_earlier_owner_is_taken_over_not_counted_twice(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    let old = k.owned("a").await;
    let long = TakeSlot { lease_until: at(900), ..take(&old, 1, 1) };
    assert_eq!(k.ask(long).await, SlotTaken::Done);
    let new = k.recovered("w2", 100).await;
    assert_eq!(k.ask(take(&new, 1, 101)).await, SlotTaken::Done);
    assert_eq!(report(&k, 102).await.held, 1);
    assert_eq!(k.ask(FreeSlot { lease: old, step: 1 }).await, Freed(false));
}

async fn a_slot_taken_twice_by_its_holder_is_one_slot(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(2)).await;
    let a = k.owned("a").await;
    assert_eq!(k.ask(take(&a, 1, 1)).await, SlotTaken::Done);
    assert_eq!(k.ask(take(&a, 1, 1)).await, SlotTaken::Done);
    assert_eq!(report(&k, 2).await.held, 1);
}

/// R86
async fn a_slot_counts_against_the_rate(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.rate = Some((1, Duration::from_secs(10)))).await;
    let a = k.owned("a").await;
    assert_eq!(k.ask(take(&a, 1, 1)).await, SlotTaken::Done);
    k.ask(FreeSlot { lease: a.clone(), step: 1 }).await;
    assert_eq!(k.ask(take(&a, 2, 5)).await, SlotTaken::Full { until: Some(at(11)) });
    assert_eq!(k.ask(take(&a, 2, 11)).await, SlotTaken::Done);
}

/// A step that fails at once and is tried again at once; both count against the rate.
async fn a_slot_can_be_taken_again_at_the_same_moment(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.rate = Some((2, Duration::from_secs(10)))).await;
    let a = k.owned("a").await;
    for _ in 0..2 {
        assert_eq!(k.ask(take(&a, 1, 1)).await, SlotTaken::Done);
        assert_eq!(k.ask(FreeSlot { lease: a.clone(), step: 1 }).await, Freed(true));
    }
    assert_eq!(k.ask(take(&a, 1, 1)).await, SlotTaken::Full { until: Some(at(11)) });
}

async fn a_slot_of_an_unknown_queue_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    let a = k.owned("a").await;
    assert_eq!(k.ask(take(&a, 1, 1)).await, SlotTaken::NoQueue);
}

async fn the_default_queue_gives_slots_without_having_been_made(store: &dyn Store) {
    let k = Kit::new(store);
    let (a, b) = (k.owned("a").await, k.owned("b").await);
    for lease in [&a, &b] {
        let queue = "default".to_owned();
        let slot = TakeSlot { queue, partition: "x".to_owned(), ..take(lease, 1, 1) };
        assert_eq!(k.ask(slot).await, SlotTaken::Done);
    }
    assert_eq!(k.ask(FreeSlot { lease: a, step: 1 }).await, Freed(true));
}

/// X14
async fn a_slot_needs_a_good_lease(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |_| ()).await;
    let a = k.owned("a").await;
    k.cancel("a").await;
    assert_eq!(k.ask(take(&a, 1, 7)).await, SlotTaken::Fenced);
    assert_eq!(report(&k, 7).await.held, 0);
}

async fn a_paused_queue_gives_no_slots(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.paused = true).await;
    let a = k.owned("a").await;
    assert_eq!(k.ask(take(&a, 1, 1)).await, SlotTaken::Full { until: None });
}

async fn only_the_holder_gives_a_slot_back(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |_| ()).await;
    let a = k.owned("a").await;
    k.ask(take(&a, 1, 1)).await;
    let stranger = Lease { worker: "w2".to_owned(), ..a.clone() };
    assert_eq!(k.ask(FreeSlot { lease: stranger, step: 1 }).await, Freed(false));
    assert_eq!(k.ask(FreeSlot { lease: a.clone(), step: 2 }).await, Freed(false));
    assert_eq!(k.ask(FreeSlot { lease: a, step: 1 }).await, Freed(true));
}

async fn a_step_gives_its_own_slot_back(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |_| ()).await;
    let a = k.owned("a").await;
    for step in [1, 2] {
        assert_eq!(k.ask(take(&a, step, 1)).await, SlotTaken::Done);
    }
    assert_eq!(k.ask(FreeSlot { lease: a, step: 1 }).await, Freed(true));
    let holders = report(&k, 2).await.holders;
    assert_eq!(holders.iter().map(|holder| holder.step).collect::<Vec<_>>(), [2]);
}

async fn a_cancelled_run_gives_its_slots_back(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    let (a, b) = (k.owned("a").await, k.owned("b").await);
    k.ask(take(&a, 1, 1)).await;
    k.cancel("a").await;
    assert_eq!(k.ask(take(&b, 1, 7)).await, SlotTaken::Done);
}

async fn a_report_says_who_holds_a_queue(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(9)).await;
    filled(&k, 3).await;
    let a = k.owned("a").await;
    k.ask(take(&a, 4, 1)).await;
    k.ask(Dequeue { limit: 1, ..k.dequeue("q", "w7", 2) }).await;
    let report = report(&k, 3).await;
    let holder = |run_id: &str, step, worker: &str, until: Timestamp| Holder {
        run_id: run_id.to_owned(),
        step,
        worker: worker.to_owned(),
        until,
    };
    assert_eq!(report.queue.and_then(|q| q.concurrency), Some(9));
    let expected = [holder("r000", -1, "w7", at(62)), holder("a", 4, "w1", at(61))];
    assert_eq!(report.holders, expected);
    assert_eq!((report.held, report.waiting), (2, 2));
    let (workspace, partition) = (k.ws.clone(), String::new());
    let nowhere = InspectQueue { workspace, queue: "nowhere".to_owned(), partition, now: at(3) };
    let nothing = QueueReport {
        queue: None,
        defined: None,
        holders: Vec::new(),
        held: 0,
        started: 0,
        eases_at: None,
        waiting: 0,
    };
    assert_eq!(k.ask(nowhere).await, nothing);
}

async fn a_report_names_the_first_hundred_holders_and_counts_all(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |_| ()).await;
    filled(&k, 99).await;
    k.ask(Dequeue { limit: 200, ..k.dequeue("q", "w1", 1) }).await;
    let a = k.owned("a").await;
    for step in 0..3 {
        k.ask(take(&a, step, 1)).await;
    }
    let report = report(&k, 2).await;
    assert_eq!((report.holders.len(), report.held), (100, 102));
}
