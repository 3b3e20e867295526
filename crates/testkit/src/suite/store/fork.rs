//! Forking: a new run from the first steps of another.

use steadfast_core::{Error as Failure, RunStatus};
use steadfast_store::Store;
use steadfast_store::op::{Dequeue, Entry, Fork, Forked, Start, Written};

use super::kit::{Kit, at, done, entry, secs};

super::table! {
    a_fork_copies_exactly_the_steps_before_its_own,
    a_fork_from_the_start_copies_nothing,
    a_fork_leaves_its_source_alone,
    a_fork_starts_with_what_its_source_was_given,
    a_fork_may_have_another_input_version_and_timeout,
    a_fork_patches_outcomes_of_copied_steps,
    a_fork_that_patches_what_it_does_not_copy_is_refused_whole,
    a_fork_does_not_copy_unfinished_steps,
    a_fork_under_a_taken_id_says_whose_it_is,
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

async fn a_fork_under_a_taken_id_says_whose_it_is(store: &dyn Store) {
    let k = Kit::new(store);
    failed(&k, k.start("r")).await;
    k.started(k.start("taken")).await;
    assert_eq!(k.ask(fork(&k, "r", 1, "taken")).await, Forked::Taken { same: false });
    assert_eq!(k.ask(fork(&k, "r", 1, "f")).await, Forked::Done);
    assert_eq!(k.ask(fork(&k, "r", 1, "f")).await, Forked::Taken { same: true });
    assert_eq!(k.ask(fork(&k, "r", 1, "r")).await, Forked::Taken { same: false });
}

async fn a_fork_of_nobody_says_so(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.ask(fork(&k, "nowhere", 1, "f")).await, Forked::NotFound);
}
