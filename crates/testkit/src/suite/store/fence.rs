//! Fencing: whoever lost a run writes nothing, whatever it believes and however late it comes.

use steadfast_core::RunStatus;
use steadfast_store::Store;
use steadfast_store::op::{
    ContinueAsNew, Finish, FreeSlot, Freed, Lease, Record, Release, Released, SlotTaken, Start,
    Suspended, TakeSlot, TimeOut, TimedOut, With, Written,
};

use super::kit::{Kit, at, done, entry, plain, with};

super::table! {
    every_write_of_an_owner_is_refused_after_another_claim,
    every_write_of_an_owner_is_refused_after_a_cancel,
    every_write_of_an_owner_is_refused_after_its_own_suspension,
    every_write_of_an_owner_is_refused_after_the_end,
    every_write_to_a_run_that_is_not_there_is_refused,
    a_worker_that_claimed_the_run_again_is_fenced_by_its_own_claim,
    another_worker_with_the_same_epoch_is_fenced,
    a_run_that_waits_on_its_queue_has_no_owner,
    a_lease_that_ran_out_is_good_until_somebody_claims_the_run,
    a_fenced_write_takes_everything_with_it,
}

/// Asserts that no write goes through with a lease, and that nothing changes.
async fn refused(k: &Kit<'_>, lease: &Lease) {
    let before = (k.find(&lease.run_id).await, k.steps(&lease.run_id).await);
    let entries = vec![entry(done(7, "late", "1"))];
    let (l, now) = (|| lease.clone(), at(8));
    let write = Record { lease: l(), entries: entries.clone(), now };
    assert_eq!(k.ask(write).await, Written::Fenced, "record");
    let finish = Finish { lease: l(), entries, outcome: Ok("\"late\"".to_owned()), now };
    assert_eq!(k.ask(finish).await, Written::Fenced, "finish");
    let mut suspend = k.suspend_op(lease, 0);
    suspend.waits = "[\"late\"]".to_owned();
    suspend.entries = vec![entry(done(8, "late", "1"))];
    assert_eq!(k.ask(suspend).await, Suspended::Fenced, "suspend");
    assert_eq!(
        k.ask(Release { lease: l(), what: Released::Run, now }).await,
        Written::Fenced,
        "release"
    );
    let input = "\"late\"".to_owned();
    let again = ContinueAsNew { lease: l(), input, generation: 0, now };
    assert_eq!(k.ask(again).await, Written::Fenced, "continue as new");
    k.put(plain("slots")).await;
    let take = TakeSlot {
        lease: l(),
        step: 9,
        queue: "slots".to_owned(),
        partition: String::new(),
        lease_until: at(900),
        now,
    };
    assert_eq!(k.ask(take).await, SlotTaken::Fenced, "slot");
    assert_eq!(k.ask(TimeOut { lease: l(), now }).await, TimedOut::Fenced, "time-out");
    assert_eq!(k.ask(FreeSlot { lease: l(), step: 9 }).await, Freed(false), "free slot");
    let beaten = k.ask(super::lease::beat(k, &lease.worker, &[(&lease.run_id, lease.epoch)], 8));
    assert_eq!(beaten.await.lost, [lease.run_id.as_str()], "heartbeat");
    let after = (k.find(&lease.run_id).await, k.steps(&lease.run_id).await);
    assert_eq!(before, after, "a fenced write changed something");
}

/// X14
async fn every_write_of_an_owner_is_refused_after_another_claim(store: &dyn Store) {
    let k = Kit::new(store);
    let old = k.owned("r").await;
    k.record(&old, vec![entry(done(0, "first", "1"))]).await;
    let new = k.recovered("w2", 100).await;
    refused(&k, &old).await;
    assert_eq!(k.record(&new, vec![entry(done(1, "second", "2"))]).await, Written::Done);
    assert_eq!(k.finish(&new).await, Written::Done);
    refused(&k, &old).await;
}

/// X14
async fn every_write_of_an_owner_is_refused_after_a_cancel(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.cancel("r").await;
    refused(&k, &lease).await;
    assert_eq!(k.status("r").await, RunStatus::Cancelled);
}

async fn every_write_of_an_owner_is_refused_after_its_own_suspension(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.suspend(&lease, 0).await;
    refused(&k, &lease).await;
}

async fn every_write_of_an_owner_is_refused_after_the_end(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.finish(&lease).await;
    refused(&k, &lease).await;
    assert_eq!(k.get("r").await.output.as_deref(), Some("true"));
}

async fn every_write_to_a_run_that_is_not_there_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = Lease {
        workspace: k.ws.clone(),
        run_id: "nowhere".to_owned(),
        worker: "w1".to_owned(),
        epoch: 1,
    };
    refused(&k, &lease).await;
    assert_eq!(k.find("nowhere").await, None);
}

/// X14: a worker id says nothing about which life of the worker holds the lease.
async fn a_worker_that_claimed_the_run_again_is_fenced_by_its_own_claim(store: &dyn Store) {
    let k = Kit::new(store);
    let old = k.owned("r").await;
    let new = k.recovered("w1", 100).await;
    assert_eq!((old.worker == new.worker, new.epoch), (true, 2));
    refused(&k, &old).await;
    assert_eq!(k.finish(&new).await, Written::Done);
}

async fn another_worker_with_the_same_epoch_is_fenced(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    refused(&k, &Lease { worker: "w2".to_owned(), ..lease.clone() }).await;
    refused(&k, &Lease { epoch: 2, ..lease.clone() }).await;
    refused(&k, &Lease { epoch: 0, ..lease }).await;
}

async fn a_run_that_waits_on_its_queue_has_no_owner(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    let (workspace, run_id) = (k.ws.clone(), "r".to_owned());
    for worker in ["", "w1"] {
        let (workspace, run_id) = (workspace.clone(), run_id.clone());
        let lease = Lease { workspace, run_id, worker: worker.to_owned(), epoch: 0 };
        let entries = vec![entry(done(0, "early", "1"))];
        assert_eq!(k.record(&lease, entries).await, Written::Fenced);
        assert_eq!(k.finish(&lease).await, Written::Fenced);
    }
    assert_eq!(k.status("r").await, RunStatus::Enqueued);
}

/// No safety property depends on a clock: a late owner is an owner until it is replaced.
async fn a_lease_that_ran_out_is_good_until_somebody_claims_the_run(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let late =
        Record { lease: lease.clone(), entries: vec![entry(done(0, "a", "1"))], now: at(900) };
    assert_eq!(k.ask(late).await, Written::Done);
    assert_eq!(k.ask(super::lease::beat(&k, "w1", &[("r", 1)], 901)).await.lost, [] as [&str; 0]);
    assert_eq!(k.ask(k.wake("w2", 902)).await.runs, []);
}

/// X14: neither the records nor what belongs to them.
async fn a_fenced_write_takes_everything_with_it(store: &dyn Store) {
    let k = Kit::new(store);
    let old = k.owned("r").await;
    k.started(k.start("other")).await;
    k.recovered("w2", 100).await;
    let publish = With::Publish { key: "k".to_owned(), value: "1".to_owned() };
    let entries = vec![
        with(done(0, "spawn", "1"), With::Spawn(Box::new(Start { now: at(1), ..k.start("kid") }))),
        with(done(1, "send", "1"), With::Send(k.signal_op("other", "s", "s1"))),
        with(done(2, "publish", "1"), publish),
    ];
    assert_eq!(k.record(&old, entries).await, Written::Fenced);
    assert_eq!(k.find("kid").await, None);
    assert_eq!(k.load("other").await.signals, []);
    assert_eq!(k.steps("r").await, []);
}

#[cfg(test)]
mod tests {
    use steadfast_store::Op;

    /// Whoever adds an operation of an owner adds it to `refused`, too. A call that was made is
    /// entered in the ledger whatever became of the lease.
    #[test]
    fn every_operation_of_an_owner_is_tried_with_a_void_lease() {
        let tried = [
            "Record",
            "Finish",
            "Suspend",
            "Release",
            "ContinueAsNew",
            "TimeOut",
            "TakeSlot",
            "FreeSlot",
        ];
        let facts = ["EnterCalls"];
        let of_owners = Op::RIGHTS.iter().filter(|(_, right)| *right == "Owner");
        let names: Vec<_> = of_owners.map(|(name, _)| *name).collect();
        assert_eq!(names, [&tried[..], &facts[..]].concat());
    }
}
