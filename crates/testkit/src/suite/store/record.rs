//! Records, the end of a run, suspensions, and starting over.

use steadfast_core::driver::{Kind, Record, RecordState};
use steadfast_core::{Error as Failure, ErrorClass, RunStatus, Timestamp, limits};
use steadfast_store::op::{
    ContinueAsNew, Entry, Finish, GetValue, ListSteps, Suspended, With, Written,
};
use steadfast_store::{Error, Store, StoreExt as _, op};

use super::kit::{Kit, at, done, entry, with};

super::table! {
    a_record_comes_back_as_it_was_written,
    a_recorded_error_comes_back_as_it_was_written,
    records_come_back_in_call_order_and_in_pages,
    a_full_page_is_followed_by_the_rest,
    an_unfinished_record_is_settled_and_a_done_one_never_changes,
    a_record_that_another_owner_wrote_is_not_written_again,
    a_record_under_another_name_is_refused,
    a_record_that_is_not_there_cannot_be_settled,
    one_bad_record_takes_back_the_whole_write,
    a_run_ends_with_a_value,
    a_run_ends_with_an_error,
    the_last_records_and_the_end_are_one_commit,
    starting_over_clears_records_and_raises_the_epoch,
    starting_over_from_another_generation_is_refused,
    a_suspended_run_has_no_worker_and_keeps_its_records,
}

fn rich(id: u64) -> Record {
    Record {
        id,
        seq: 41,
        name: "charge".to_owned(),
        kind: Kind::Effect,
        state: RecordState::Done,
        input: Some("{\"amount\":12}".to_owned()),
        input_digest: Some("0123456789abcdef0123456789abcdef".to_owned()),
        outcome: Ok("{\"receipt\":\"x\"}".to_owned()),
        child: Some("kid".to_owned()),
        attempt: 3,
        started_at: at(10),
        completed_at: Timestamp::from_micros(1_700_000_000_123_456),
        next_at: Timestamp::NEVER,
        seen: false,
    }
}

/// R75, R78
async fn a_record_comes_back_as_it_was_written(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let bare = Record { input: None, input_digest: None, child: None, ..rich(1) };
    let entries = vec![entry(rich(0)), entry(bare.clone())];
    assert_eq!(k.record(&lease, entries).await, Written::Done);
    assert_eq!(k.steps("r").await, [rich(0), bare]);
}

/// R75, R77
async fn a_recorded_error_comes_back_as_it_was_written(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let errors = [
        Failure::app("no stock"),
        Failure::new(ErrorClass::RateLimited, "SF-0401", "slow \"down\"\n").permanent(),
        Failure::typed(&"as data".to_owned()),
    ];
    let records: Vec<Record> =
        (0..).zip(errors).map(|(id, error)| Record { outcome: Err(error), ..rich(id) }).collect();
    k.record(&lease, records.iter().cloned().map(entry).collect()).await;
    assert_eq!(k.steps("r").await, records);
}

/// R76
async fn records_come_back_in_call_order_and_in_pages(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let entries = [10, 2, 33, 1].map(|id| entry(done(id, "s", "1"))).to_vec();
    k.record(&lease, entries).await;
    let list =
        |from, limit| ListSteps { workspace: k.ws.clone(), run_id: "r".to_owned(), from, limit };
    let numbers = async |from, limit| {
        k.ask(list(from, limit)).await.0.iter().map(|step| step.id).collect::<Vec<_>>()
    };
    assert_eq!(numbers(0, 100).await, [1, 2, 10, 33]);
    assert_eq!(numbers(2, 2).await, [2, 10]);
    assert_eq!(numbers(34, 2).await, [0; 0]);
    assert_eq!(numbers(0, limits::PAGE_ROWS).await.len(), 4);
    // A page that was cut would look like the last one.
    for limit in [0, limits::PAGE_ROWS + 1, usize::MAX] {
        let refused = k.store.ask(list(0, limit)).await.unwrap_err();
        assert!(matches!(&refused, Error::Invalid(why) if why.contains("1 to 1000")), "{refused}");
    }
}

/// R76: a full page is not the end.
async fn a_full_page_is_followed_by_the_rest(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let count = u64::try_from(limits::PAGE_ROWS).unwrap() + 1;
    let entries = (0..count).map(|id| entry(done(id, "s", "1"))).collect();
    assert_eq!(k.record(&lease, entries).await, Written::Done);
    let first = k.steps("r").await;
    assert_eq!(first.len(), limits::PAGE_ROWS);
    let from = i64::try_from(first.last().unwrap().id).unwrap() + 1;
    let limit = limits::PAGE_ROWS;
    let next = ListSteps { workspace: k.ws.clone(), run_id: "r".to_owned(), from, limit };
    assert_eq!(k.ask(next).await.0.iter().map(|step| step.id).collect::<Vec<_>>(), [count - 1]);
}

/// R76, R77
async fn an_unfinished_record_is_settled_and_a_done_one_never_changes(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let settle = |record: Record| vec![Entry { record, replaces: true, with: None }];
    let retrying = Record {
        state: RecordState::Retrying,
        outcome: Err(Failure::app("busy")),
        next_at: at(70),
        ..rich(0)
    };
    k.record(&lease, vec![entry(Record { state: RecordState::Executing, ..rich(0) })]).await;
    assert_eq!(k.record(&lease, settle(retrying.clone())).await, Written::Done);
    assert_eq!(k.steps("r").await, [retrying]);
    assert_eq!(k.record(&lease, settle(rich(0))).await, Written::Done);
    let other = Record { outcome: Ok("\"other\"".to_owned()), ..rich(0) };
    k.record(&lease, settle(other.clone())).await;
    k.record(&lease, vec![entry(other)]).await;
    assert_eq!(k.steps("r").await, [rich(0)]);
}

async fn refused(k: &Kit<'_>, lease: &steadfast_store::op::Lease, entries: Vec<Entry>) {
    let write = steadfast_store::op::Record { lease: lease.clone(), entries, now: at(9) };
    let reply = k.store.ask(write).await;
    assert!(matches!(reply, Err(Error::Refused(_))), "{reply:?}");
}

/// R76
async fn a_record_that_another_owner_wrote_is_not_written_again(store: &dyn Store) {
    let k = Kit::new(store);
    let old = k.owned("r").await;
    k.record(&old, vec![entry(done(0, "a", "1"))]).await;
    let new = k.recovered("w2", 100).await;
    refused(&k, &new, vec![entry(done(0, "a", "2"))]).await;
    assert_eq!(k.steps("r").await, [done(0, "a", "1")]);
}

/// X10
async fn a_record_under_another_name_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.record(&lease, vec![entry(done(0, "a", "1"))]).await;
    refused(&k, &lease, vec![entry(done(0, "b", "1"))]).await;
    assert_eq!(k.steps("r").await, [done(0, "a", "1")]);
}

async fn a_record_that_is_not_there_cannot_be_settled(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let record = done(0, "a", "1");
    refused(&k, &lease, vec![Entry { record, replaces: true, with: None }]).await;
    assert_eq!(k.steps("r").await, []);
}

/// X14
async fn one_bad_record_takes_back_the_whole_write(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let publish = With::Publish { key: "k".to_owned(), value: "1".to_owned() };
    let entries = vec![
        with(done(0, "publish", "1"), publish),
        with(done(1, "spawn", "1"), With::Spawn(Box::new(k.start("kid")))),
        with(done(2, "wait", "1"), With::Consume(0)),
    ];
    let refused = k.record(&lease, entries.clone()).await;
    assert!(matches!(refused, Written::Refused(_)), "{refused:?}");
    let mut suspend = k.suspend_op(&lease, 0);
    suspend.entries = entries.clone();
    let refused = k.ask(suspend).await;
    assert!(matches!(refused, Suspended::Refused(_)), "{refused:?}");
    let outcome = Ok("1".to_owned());
    let refused = k.ask(Finish { lease: lease.clone(), entries, outcome, now: at(9) }).await;
    assert!(matches!(refused, Written::Refused(_)), "{refused:?}");
    assert_eq!(k.find("kid").await, None);
    assert_eq!(k.steps("r").await, []);
    let (workspace, run_id, key) = (k.ws.clone(), "r".to_owned(), "k".to_owned());
    assert_eq!(k.ask(GetValue { workspace, run_id, key }).await.0, None);
    assert_eq!(k.finish(&lease).await, Written::Done, "the lease is still good");
}

/// R74
async fn a_run_ends_with_a_value(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    assert_eq!(k.finish(&lease).await, Written::Done);
    let run = k.get("r").await;
    assert_eq!((run.status, run.output.as_deref()), (RunStatus::Success, Some("true")));
    assert_eq!((run.error, run.finished_at), (None, Some(at(5))));
    assert_eq!((run.worker.as_str(), run.wake_at), ("", Timestamp::NEVER));
}

/// R74
async fn a_run_ends_with_an_error(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    assert_eq!(k.fail(&lease).await, Written::Done);
    let run = k.get("r").await;
    assert_eq!((run.status, run.output), (RunStatus::Error, None));
    assert_eq!(run.error, Some(Failure::app("no stock")));
}

async fn the_last_records_and_the_end_are_one_commit(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let entries = vec![entry(done(0, "a", "1")), entry(done(1, "b", "2"))];
    let finish = Finish { lease, entries, outcome: Ok("3".to_owned()), now: at(5) };
    assert_eq!(k.ask(finish).await, Written::Done);
    assert_eq!(k.steps("r").await.len(), 2);
    assert_eq!(k.status("r").await, RunStatus::Success);
}

async fn starting_over_clears_records_and_raises_the_epoch(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.record(&lease, vec![entry(done(0, "a", "1"))]).await;
    k.signal("r", "s", "s1").await;
    let input = "{\"page\":2}".to_owned();
    let again =
        ContinueAsNew { lease: lease.clone(), input: input.clone(), generation: 0, now: at(8) };
    assert_eq!(k.ask(again.clone()).await, Written::Done);
    assert_eq!(k.ask(again).await, Written::Done, "a repeat finds its own success");
    let run = k.get("r").await;
    assert_eq!((run.input, run.generation, run.status), (input, 1, RunStatus::Pending));
    let loaded = k.load("r").await;
    assert_eq!((k.steps("r").await.len(), loaded.signals.len()), (0, 1), "signals wait on");
    let late = k.record(&lease, vec![entry(done(0, "b", "2"))]).await;
    assert_eq!(late, Written::Fenced, "the generation before writes nothing any more");
    let lease = op::Lease { epoch: lease.epoch + 1, ..lease };
    assert_eq!(k.record(&lease, vec![entry(done(0, "b", "2"))]).await, Written::Done);
    assert_eq!(k.finish(&lease).await, Written::Done);
}

async fn starting_over_from_another_generation_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    for generation in [1, -1] {
        let input = "1".to_owned();
        let again = ContinueAsNew { lease: lease.clone(), input, generation, now: at(8) };
        assert_eq!(k.ask(again).await, Written::Fenced);
    }
    assert_eq!(k.get("r").await.generation, 0);
}

async fn a_suspended_run_has_no_worker_and_keeps_its_records(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let mut suspend = k.suspend_op(&lease, 0);
    suspend.entries = vec![entry(done(0, "a", "1"))];
    assert_eq!(k.ask(suspend).await, Suspended::Done);
    let run = k.get("r").await;
    assert_eq!((run.status, run.parked, run.worker.as_str()), (RunStatus::Pending, true, ""));
    assert_eq!((run.waits.as_str(), run.wake_at), ("[\"paid\"]", at(1000)));
    assert_eq!(k.steps("r").await.len(), 1);
}
