//! Forking: a new run from the first steps of another.

use steadfast_core::{Error as Failure, RunStatus};
use steadfast_store::Store;
use steadfast_store::op::{
    ContinueAsNew, Dequeue, Entry, Fork, Forked, GetValue, Purge, ReadStream, Start, StreamPage,
    With, Written,
};

use super::kit::{Kit, at, done, entry, secs, with};

super::table! {
    a_fork_copies_exactly_the_steps_before_its_own,
    a_fork_from_the_start_copies_nothing,
    a_fork_leaves_its_source_alone,
    a_fork_starts_with_what_its_source_was_given,
    a_fork_may_have_another_input_version_and_timeout,
    a_fork_patches_outcomes_of_copied_steps,
    a_fork_that_patches_what_it_does_not_copy_is_refused_whole,
    a_fork_does_not_copy_unfinished_steps,
    a_fork_has_what_its_source_published_before_the_cut,
    a_fork_has_what_its_source_published_in_earlier_generations,
    a_fork_under_a_taken_id_is_a_conflict,
    an_equal_fork_under_a_known_id_is_that_fork,
    a_known_fork_is_found_after_its_source_is_gone,
    a_fork_of_nobody_says_so,
}

fn fork(k: &Kit<'_>, source: &str, from_step: i64, run_id: &str) -> Fork {
    Fork {
        workspace: k.ws.clone(),
        source: source.to_owned(),
        from_step,
        run_id: run_id.to_owned(),
        input: None,
        patches: Vec::new(),
        app_version: None,
        timeout: None,
        seed: 1,
        now: at(30),
    }
}

/// A run with the steps 0 to 4, which failed.
async fn failed(k: &Kit<'_>, start: Start) {
    let lease = k.owned_by(start, "w1").await;
    let entries = (0..5).map(|id| entry(done(id, &format!("s{id}"), &id.to_string())));
    k.record(&lease, entries.collect()).await;
    k.fail(&lease).await;
}

/// R94
async fn a_fork_copies_exactly_the_steps_before_its_own(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    assert_eq!(k.ask(fork(&k, "r", 3, "f")).await, Forked::Done);
    assert_eq!(k.steps("f").await, k.steps("r").await[..3]);
    let claimed = k.ask(k.dequeue("default", "w2", 31)).await;
    let lease = k.lease_of(&claimed);
    assert_eq!(k.record(&lease, vec![entry(done(3, "s3", "9"))]).await, Written::Done);
    k.ask(fork(&k, "r", 99, "all")).await;
    assert_eq!(k.steps("all").await.len(), 5);
}

/// R94
async fn a_fork_from_the_start_copies_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    assert_eq!(k.ask(fork(&k, "r", 0, "f")).await, Forked::Done);
    assert_eq!(k.steps("f").await, []);
}

/// R94
async fn a_fork_leaves_its_source_alone(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    let before = (k.get("r").await, k.steps("r").await);
    k.ask(Fork { patches: vec![done(1, "s1", "\"x\"")], ..fork(&k, "r", 3, "f") }).await;
    let claimed = k.ask(k.dequeue("default", "w2", 31)).await;
    k.finish(&k.lease_of(&claimed)).await;
    assert_eq!((k.get("r").await, k.steps("r").await), before);
    let lease = k.owned("active").await;
    k.ask(fork(&k, "active", 3, "g")).await;
    assert_eq!(k.finish(&lease).await, Written::Done, "an active source goes on");
}

/// R94
async fn a_fork_starts_with_what_its_source_was_given(store: &dyn Store) {
    let k = Kit::new(store);
    let start = Start {
        priority: 4,
        app_version: "v1".to_owned(),
        max_attempts: 7,
        timeout: Some(secs(50)),
        dedupe_id: "d".to_owned(),
        ..k.start("r")
    };
    failed(&k, start.clone()).await;
    k.ask(fork(&k, "r", 2, "f")).await;
    let run = k.get("f").await;
    assert_eq!((run.status, run.forked_from.as_str()), (RunStatus::Enqueued, "r"));
    assert_eq!((run.workflow, run.input, run.queue), (start.workflow, start.input, start.queue));
    assert_eq!((run.priority, run.app_version.as_str(), run.max_attempts), (4, "v1", 7));
    assert_eq!((run.timeout, run.deadline_at), (Some(secs(50)), None));
    assert_eq!((run.seed, run.dedupe_id.as_str(), run.parent.as_str()), (start.seed, "", ""));
    assert_eq!((run.epoch, run.attempts, run.created_at, run.ready_at), (0, 0, at(30), at(30)));
    assert_eq!((run.output, run.error, run.finished_at), (None, None, None));
    let source = k.get("r").await;
    assert_eq!((run.started_at, run.generation), (source.started_at, source.generation));
}

/// R94
async fn a_fork_may_have_another_input_version_and_timeout(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    let other = Fork {
        input: Some("2".to_owned()),
        app_version: Some("v2".to_owned()),
        timeout: Some(secs(5)),
        ..fork(&k, "r", 2, "f")
    };
    k.ask(other).await;
    let run = k.get("f").await;
    assert_eq!((run.input.as_str(), run.app_version.as_str()), ("2", "v2"));
    let claimed = k.ask(Dequeue { app_version: "v2".to_owned(), ..k.dequeue("default", "w", 40) });
    assert_eq!(claimed.await.runs[0].deadline_at, Some(at(45)));
}

/// R94
async fn a_fork_patches_outcomes_of_copied_steps(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    let mut refusal = done(0, "s0", "1");
    refusal.outcome = Err(Failure::app("patched"));
    let patches = vec![done(1, "s1", "\"patched\""), refusal.clone()];
    assert_eq!(k.ask(Fork { patches, ..fork(&k, "r", 3, "f") }).await, Forked::Done);
    let outcomes: Vec<_> = k.steps("f").await.into_iter().map(|step| step.outcome).collect();
    assert_eq!(outcomes, [refusal.outcome, Ok("\"patched\"".to_owned()), Ok("2".to_owned())]);
    let same = Fork { patches: vec![done(1, "s1", "1")], ..fork(&k, "r", 3, "same") };
    assert_eq!(k.ask(same).await, Forked::Done, "a patch with the same outcome is a patch");
}

/// R94
async fn a_fork_that_patches_what_it_does_not_copy_is_refused_whole(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    let patched = |patch: u64, from: i64| Fork {
        patches: vec![done(1, "s1", "1"), done(patch, "s", "1")],
        ..fork(&k, "r", from, "f")
    };
    assert_eq!(k.ask(patched(3, 3)).await, Forked::NoSuchStep(3));
    assert_eq!(k.ask(patched(8, 9)).await, Forked::NoSuchStep(8));
    assert_eq!(k.find("f").await, None);
    assert_eq!(k.steps("f").await, []);
}

/// R94
async fn a_fork_does_not_copy_unfinished_steps(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let mut executing = done(1, "b", "null");
    executing.state = steadfast_core::driver::RecordState::Executing;
    let entries: Vec<Entry> = vec![entry(done(0, "a", "1")), entry(executing)];
    k.record(&lease, entries).await;
    k.ask(fork(&k, "r", 5, "f")).await;
    assert_eq!(k.steps("f").await, [done(0, "a", "1")]);
}

async fn value(k: &Kit<'_>, run_id: &str, key: &str) -> Option<String> {
    let (workspace, run_id, key) = (k.ws.clone(), run_id.to_owned(), key.to_owned());
    k.ask(GetValue { workspace, run_id, key }).await.0
}

async fn stream(k: &Kit<'_>, run_id: &str, from: i64) -> StreamPage {
    let (workspace, run_id, stream) = (k.ws.clone(), run_id.to_owned(), "log".to_owned());
    k.ask(ReadStream { workspace, run_id, stream, from, limit: 100 }).await
}

fn publish(id: u64, key: &str, value: &str) -> Entry {
    with(done(id, "p", "null"), With::Publish { key: key.to_owned(), value: value.to_owned() })
}

fn append(id: u64, item: Option<&str>) -> Entry {
    let (stream, item) = ("log".to_owned(), item.map(str::to_owned));
    with(done(id, "a", "null"), With::Append { stream, item })
}

/// R94
async fn a_fork_has_what_its_source_published_before_the_cut(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    // Step 5 comes to its end before step 2, as calls side by side may.
    let entries = vec![
        publish(0, "state", "\"begun\""),
        append(1, Some("1")),
        append(5, Some("5")),
        append(2, Some("2")),
        publish(3, "count", "1"),
        publish(6, "state", "\"over\""),
        publish(7, "late", "1"),
        append(8, None),
    ];
    assert_eq!(k.record(&lease, entries).await, Written::Done);
    assert_eq!(k.ask(fork(&k, "r", 4, "f")).await, Forked::Done);
    let page = stream(&k, "f", 0).await;
    assert_eq!((page.items, page.closed), (vec!["1".to_owned(), "2".to_owned()], false));
    assert_eq!(stream(&k, "f", 1).await.items, ["2"], "positions are counted without gaps");
    let values = [value(&k, "f", "state").await, value(&k, "f", "count").await];
    assert_eq!(values, [Some("\"begun\"".to_owned()), Some("1".to_owned())]);
    assert_eq!(value(&k, "f", "late").await, None);
    assert_eq!(value(&k, "r", "state").await.as_deref(), Some("\"over\""));
    // The fork goes on from there, and a fork of it is cut by the same steps.
    let claimed = k.ask(k.dequeue("default", "w2", 31)).await;
    let lease = k.lease_of(&claimed);
    let more = vec![append(4, Some("4")), publish(5, "state", "\"again\"")];
    assert_eq!(k.record(&lease, more).await, Written::Done);
    assert_eq!(stream(&k, "f", 0).await.items, ["1", "2", "4"]);
    assert_eq!(stream(&k, "r", 0).await.items, ["1", "5", "2"]);
    k.ask(fork(&k, "f", 2, "g")).await;
    assert_eq!(stream(&k, "g", 0).await.items, ["1"]);
    assert_eq!(value(&k, "g", "state").await.as_deref(), Some("\"begun\""));
    assert_eq!(value(&k, "g", "count").await, None);
    k.ask(fork(&k, "r", 99, "whole")).await;
    assert!(stream(&k, "whole", 0).await.closed);
}

/// R94
async fn a_fork_has_what_its_source_published_in_earlier_generations(store: &dyn Store) {
    let k = Kit::new(store);
    let mut lease = k.owned("r").await;
    let entries = vec![publish(7, "n", "1"), publish(8, "n", "2"), append(9, Some("\"old\""))];
    k.record(&lease, entries).await;
    let renew =
        ContinueAsNew { lease: lease.clone(), input: "2".to_owned(), generation: 0, now: at(4) };
    assert_eq!(k.ask(renew).await, Written::Done);
    lease.epoch += 1;
    k.record(&lease, vec![publish(3, "n", "3"), append(4, Some("\"new\""))]).await;
    k.ask(fork(&k, "r", 0, "f")).await;
    assert_eq!(k.get("f").await.generation, 1);
    assert_eq!(value(&k, "f", "n").await.as_deref(), Some("2"));
    assert_eq!(stream(&k, "f", 0).await.items, ["\"old\""]);
    k.ask(fork(&k, "r", 4, "g")).await;
    assert_eq!(value(&k, "g", "n").await.as_deref(), Some("3"));
    assert_eq!(value(&k, "r", "n").await.as_deref(), Some("3"));
}

async fn a_fork_under_a_taken_id_is_a_conflict(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    k.started(k.start("taken")).await;
    let no_fork = Forked::Conflict("source");
    assert_eq!(k.ask(fork(&k, "r", 1, "taken")).await, no_fork);
    assert_eq!(k.ask(fork(&k, "r", 1, "r")).await, no_fork);
    let known = Fork { patches: vec![done(0, "s0", "7")], ..fork(&k, "r", 2, "f") };
    assert_eq!(k.ask(known.clone()).await, Forked::Done);
    assert_eq!(k.ask(Fork { source: "taken".to_owned(), ..known.clone() }).await, no_fork);
    let others = [
        Fork { from_step: 1, ..known.clone() },
        Fork { patches: Vec::new(), ..known.clone() },
        Fork { patches: vec![done(0, "s0", "8")], ..known.clone() },
        Fork { patches: vec![done(1, "s1", "7")], ..known.clone() },
        Fork { input: Some("2".to_owned()), ..known.clone() },
        Fork { app_version: Some("v2".to_owned()), ..known.clone() },
        Fork { timeout: Some(secs(5)), ..known.clone() },
    ];
    let before = (k.get("f").await, k.steps("f").await);
    for other in others {
        assert_eq!(k.ask(other.clone()).await, Forked::Conflict("request"), "{other:?}");
    }
    assert_eq!((k.get("f").await, k.steps("f").await), before);
}

async fn an_equal_fork_under_a_known_id_is_that_fork(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    let patches = vec![done(0, "s0", "7"), done(1, "s1", "8")];
    let known = Fork { patches, input: Some("2".to_owned()), ..fork(&k, "r", 3, "f") };
    assert_eq!(k.ask(known.clone()).await, Forked::Done);
    let turned = known.patches.iter().rev().cloned().collect();
    let equal = Fork { patches: turned, seed: 2, now: at(40), ..known.clone() };
    assert_eq!(k.ask(equal.clone()).await, Forked::Existing);
    assert_eq!(k.ask(known).await, Forked::Done, "the same request again");
    let claimed = k.ask(k.dequeue("default", "w2", 41)).await;
    k.finish(&k.lease_of(&claimed)).await;
    assert_eq!(k.ask(equal).await, Forked::Existing, "wherever it stands by now");
}

async fn a_known_fork_is_found_after_its_source_is_gone(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    k.ask(fork(&k, "r", 2, "f")).await;
    k.ask(Purge { workspace: k.ws.clone(), before: at(100), limit: 10 }).await;
    assert_eq!(k.find("r").await, None);
    assert_eq!(k.ask(fork(&k, "r", 2, "f")).await, Forked::Done);
    assert_eq!(k.ask(fork(&k, "r", 2, "g")).await, Forked::NotFound);
}

async fn a_fork_of_nobody_says_so(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.ask(fork(&k, "nowhere", 1, "f")).await, Forked::NotFound);
}
