//! Debounced starts: one run for the calls of a quiet time, the next run for the calls after it.

use steadfast_core::RunStatus;
use steadfast_store::Store;
use steadfast_store::op::{Debounce, Debounced, Purge, Purged, Resume, Start};

use super::kit::{Kit, at, ids, plain, secs};

super::table! {
    a_debounced_start_waits_and_takes_the_last_input,
    a_debounced_start_is_not_put_off_beyond_its_longest_wait,
    the_first_debounced_call_is_not_put_off_beyond_its_longest_wait_either,
    a_debounce_key_belongs_to_one_workflow_of_one_workspace,
    a_debounce_key_is_no_deduplication_id,
    a_debounced_call_while_the_run_executes_starts_the_next_one,
    a_debounced_call_after_the_end_of_the_run_starts_the_next_one,
    a_debounced_call_does_not_replace_a_run_that_was_resumed,
    a_debounced_call_does_not_replace_a_run_past_its_deadline,
    a_debounced_run_has_a_deduplication_id_besides,
    a_debounced_start_on_an_unknown_queue_is_refused,
    a_debounced_start_with_a_taken_id_is_a_conflict,
    a_debounced_start_with_the_id_of_the_waiting_run_replaces_it,
    a_debounce_key_goes_with_its_run,
}

/// A call at a second, with a quiet time of 10 seconds and a longest wait of 25.
fn call(k: &Kit<'_>, run_id: &str, input: &str, now: i64) -> Debounce {
    let start = Start {
        input: input.to_owned(),
        ready_at: at(now + 10),
        now: at(now),
        seed: now * 1000 + i64::from(run_id.as_bytes()[0]),
        ..k.start(run_id)
    };
    Debounce { start, key: "quiet".to_owned(), max_wait: Some(secs(25)) }
}

async fn a_debounced_start_waits_and_takes_the_last_input(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.ask(call(&k, "a", "1", 0)).await, Debounced::New);
    assert_eq!(k.ask(call(&k, "b", "2", 5)).await, Debounced::Replaced("a".to_owned()));
    assert_eq!(k.ask(k.dequeue("default", "w1", 12)).await.runs, [], "it waits anew");
    let claimed = k.ask(k.dequeue("default", "w1", 15)).await;
    assert_eq!(ids(&claimed.runs), ["a"]);
    assert_eq!(claimed.runs[0].input, "2");
    assert_eq!(k.find("b").await, None);
}

async fn a_debounced_start_is_not_put_off_beyond_its_longest_wait(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, now) in [("a", 0), ("b", 8), ("c", 16), ("d", 24)] {
        k.ask(call(&k, id, "1", now)).await;
    }
    assert_eq!(k.get("a").await.ready_at, at(25));
}

async fn the_first_debounced_call_is_not_put_off_beyond_its_longest_wait_either(store: &dyn Store) {
    let k = Kit::new(store);
    let mut first = call(&k, "a", "1", 0);
    first.start.ready_at = at(100);
    assert_eq!(k.ask(first).await, Debounced::New);
    assert_eq!(k.get("a").await.ready_at, at(25));
}

async fn a_debounce_key_belongs_to_one_workflow_of_one_workspace(store: &dyn Store) {
    let (k, elsewhere) = (Kit::new(store), Kit::new(store));
    assert_eq!(k.ask(call(&k, "a", "1", 0)).await, Debounced::New);
    let mut refund = call(&k, "b", "2", 1);
    refund.start.workflow = "refund".to_owned();
    assert_eq!(k.ask(refund).await, Debounced::New);
    assert_eq!(elsewhere.ask(call(&elsewhere, "c", "3", 2)).await, Debounced::New);
    let claimed = k.ask(k.dequeue("default", "w1", 20)).await.runs;
    let given: Vec<_> = claimed.iter().map(|run| (&*run.workflow, &*run.input)).collect();
    assert_eq!(given, [("ship_order", "1"), ("refund", "2")]);
}

async fn a_debounce_key_is_no_deduplication_id(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(Start { dedupe_id: "quiet".to_owned(), ..k.start("r") }).await;
    assert_eq!(k.ask(call(&k, "a", "1", 0)).await, Debounced::New);
    assert_eq!(k.get("r").await.input, k.start("r").input);
}

async fn a_debounced_call_while_the_run_executes_starts_the_next_one(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(call(&k, "a", "1", 0)).await;
    let claimed = k.ask(k.dequeue("default", "w1", 10)).await;
    assert_eq!(k.ask(call(&k, "b", "2", 11)).await, Debounced::New);
    assert_eq!(k.ask(call(&k, "c", "3", 30)).await, Debounced::Replaced("b".to_owned()));
    assert_eq!(k.get("a").await.input, "1");
    let next = k.get("b").await;
    assert_eq!((next.input.as_str(), next.status), ("3", RunStatus::Enqueued));
    assert_eq!(next.ready_at, at(36), "25 seconds after its own first call");
    k.finish(&k.lease_of(&claimed)).await;
    assert_eq!(k.ask(call(&k, "d", "4", 31)).await, Debounced::Replaced("b".to_owned()));
    let claimed = k.ask(k.dequeue("default", "w1", 36)).await;
    assert_eq!((ids(&claimed.runs), claimed.runs[0].input.as_str()), (vec!["b"], "4"));
}

async fn a_debounced_call_after_the_end_of_the_run_starts_the_next_one(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(call(&k, "a", "1", 0)).await;
    let claimed = k.ask(k.dequeue("default", "w1", 10)).await;
    k.finish(&k.lease_of(&claimed)).await;
    assert_eq!(k.ask(call(&k, "b", "2", 40)).await, Debounced::New);
    assert_eq!(k.get("b").await.ready_at, at(50));
    k.cancel("b").await;
    assert_eq!(k.ask(call(&k, "c", "3", 41)).await, Debounced::New, "a stopped run waits no more");
}

async fn a_debounced_call_does_not_replace_a_run_that_was_resumed(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(call(&k, "a", "1", 0)).await;
    k.ask(k.dequeue("default", "w1", 10)).await;
    k.cancel("a").await;
    k.ask(Resume { workspace: k.ws.clone(), run_id: "a".to_owned(), now: at(12) }).await;
    assert_eq!(k.ask(call(&k, "b", "2", 13)).await, Debounced::New);
    assert_eq!(k.get("a").await.input, "1");
}

async fn a_debounced_call_does_not_replace_a_run_past_its_deadline(store: &dyn Store) {
    let k = Kit::new(store);
    let mut first = call(&k, "a", "1", 0);
    first.start.deadline_at = Some(at(5));
    k.ask(first).await;
    assert_eq!(k.ask(call(&k, "b", "2", 5)).await, Debounced::New);
    assert_eq!(k.get("a").await.input, "1");
}

async fn a_debounced_run_has_a_deduplication_id_besides(store: &dyn Store) {
    let k = Kit::new(store);
    let dedupe = |mut op: Debounce| {
        op.start.dedupe_id = "d".to_owned();
        op
    };
    assert_eq!(k.ask(dedupe(call(&k, "a", "1", 0))).await, Debounced::New);
    let claimed = k.ask(k.dequeue("default", "w1", 10)).await;
    let next = dedupe(call(&k, "b", "2", 11));
    assert_eq!(k.ask(next.clone()).await, Debounced::Duplicate("a".to_owned()));
    assert_eq!(k.find("b").await, None);
    k.finish(&k.lease_of(&claimed)).await;
    assert_eq!(k.ask(next).await, Debounced::New, "the refusal has left nothing");
}

async fn a_debounced_start_on_an_unknown_queue_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    let mut lost = call(&k, "a", "1", 0);
    lost.start.queue = "nowhere".to_owned();
    assert_eq!(k.ask(lost.clone()).await, Debounced::NoQueue);
    k.put(plain("nowhere")).await;
    assert_eq!(k.ask(lost).await, Debounced::New, "the refusal has left nothing");
}

async fn a_debounced_start_with_a_taken_id_is_a_conflict(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("a")).await;
    assert_eq!(k.ask(call(&k, "a", "2", 0)).await, Debounced::Conflict("input"));
    let mut same = call(&k, "a", "{\"order\":1}", 0);
    same.start.seed = 99;
    assert_eq!(k.ask(same).await, Debounced::Conflict("id"));
    assert_eq!(
        k.ask(call(&k, "b", "3", 1)).await,
        Debounced::New,
        "the refusals have left nothing"
    );
}

async fn a_debounced_start_with_the_id_of_the_waiting_run_replaces_it(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.ask(call(&k, "a", "1", 0)).await, Debounced::New);
    let again = call(&k, "a", "2", 5);
    for _ in 0..2 {
        assert_eq!(k.ask(again.clone()).await, Debounced::Replaced("a".to_owned()));
    }
    let run = k.get("a").await;
    assert_eq!((run.input.as_str(), run.ready_at), ("2", at(15)));
}

async fn a_debounce_key_goes_with_its_run(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(call(&k, "a", "1", 0)).await;
    k.cancel("a").await;
    let purge = Purge { workspace: k.ws.clone(), before: at(100), limit: 10 };
    assert_eq!(k.ask(purge).await, Purged(1));
    assert_eq!(k.ask(call(&k, "a", "1", 0)).await, Debounced::New, "nothing of it is left");
    assert_eq!(k.status("a").await, RunStatus::Enqueued);
}
