//! Starting: once per id, once per deduplication id, and after a quiet time.

use steadfast_core::{RunStatus, Timestamp};
use steadfast_store::Store;
use steadfast_store::op::{Rest, Resume, Start, Started, Written};

use super::kit::{Kit, at, ids, plain, secs};

super::table! {
    a_started_run_waits_on_its_queue_with_all_it_was_given,
    a_second_start_with_the_same_id_returns_the_existing_run,
    a_second_start_of_an_ended_run_says_how_it_ended,
    the_same_id_for_another_workflow_is_a_conflict,
    the_same_id_with_another_input_is_a_conflict,
    a_start_on_an_unknown_queue_is_refused,
    a_start_may_claim_in_the_same_commit,
    a_start_may_be_suspended_in_the_same_commit,
    a_start_does_not_claim_past_the_limits_of_its_queue,
    a_start_does_not_claim_on_a_paused_queue,
    an_active_run_keeps_its_deduplication_id,
    a_deduplication_id_belongs_to_one_queue,
    runs_without_a_deduplication_id_never_collide,
    success_failure_cancel_and_exhaustion_free_the_deduplication_id,
    a_refused_start_does_not_keep_the_deduplication_id,
    a_start_repeated_after_the_end_does_not_take_the_deduplication_id_again,
    a_start_repeated_after_the_end_finds_its_run_although_the_deduplication_id_moved_on,
    a_resumed_run_takes_its_deduplication_id_again,
    a_resumed_run_does_not_take_the_deduplication_id_of_another,
}

/// R73, R74, R75
async fn a_started_run_waits_on_its_queue_with_all_it_was_given(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("mail")).await;
    let start = Start {
        priority: 7,
        app_version: "v9".to_owned(),
        timeout: Some(secs(30)),
        deadline_at: Some(at(500)),
        ready_at: at(9),
        detached: true,
        parent: "p".to_owned(),
        ..k.on("mail", "r")
    };
    assert_eq!(k.ask(start.clone()).await, Started::New(None));
    let run = k.get("r").await;
    assert_eq!(run.status, RunStatus::Enqueued);
    assert_eq!((run.workflow, run.input), (start.workflow, start.input));
    assert_eq!((run.queue.as_str(), run.partition.as_str()), ("mail", ""));
    assert_eq!((run.priority, run.app_version), (7, start.app_version));
    assert_eq!((run.timeout, run.deadline_at), (start.timeout, start.deadline_at));
    assert_eq!((run.ready_at, run.created_at), (at(9), at(0)));
    assert_eq!((run.parent.as_str(), run.detached, run.seed), ("p", true, start.seed));
    assert_eq!((run.worker.as_str(), run.epoch, run.attempts, run.inbox), ("", 0, 0, 0));
    assert_eq!((run.output, run.error, run.started_at), (None, None, None));
    let looked_at = start.deadline_at.unwrap_or(Timestamp::NEVER);
    assert_eq!((run.finished_at, run.wake_at), (None, looked_at), "at its deadline");
}

async fn a_second_start_with_the_same_id_returns_the_existing_run(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    let other = Start { seed: 99, now: at(1), ..k.start("r") };
    assert_eq!(k.ask(other).await, Started::Existing(RunStatus::Enqueued));
    assert_eq!(k.get("r").await.created_at, at(0));
}

async fn a_second_start_of_an_ended_run_says_how_it_ended(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.fail(&lease).await;
    assert_eq!(k.ask(k.start("r")).await, Started::Existing(RunStatus::Error));
    assert_eq!(k.ask(k.dequeue("default", "w2", 10)).await.runs, []);
}

/// X10
async fn the_same_id_for_another_workflow_is_a_conflict(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    let other = Start { workflow: "refund".to_owned(), ..k.start("r") };
    assert_eq!(k.ask(other).await, Started::Conflict("workflow"));
    assert_eq!(k.get("r").await.workflow, "ship_order");
}

async fn the_same_id_with_another_input_is_a_conflict(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    let other = Start { input: "{\"order\":2}".to_owned(), ..k.start("r") };
    assert_eq!(k.ask(other).await, Started::Conflict("input"));
    assert_eq!(k.get("r").await.input, "{\"order\":1}");
}

async fn a_start_on_an_unknown_queue_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.ask(k.on("nowhere", "r")).await, Started::NoQueue);
    assert_eq!(k.find("r").await, None);
}

/// R74, R92
async fn a_start_may_claim_in_the_same_commit(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned_by(Start { timeout: Some(secs(30)), ..k.start("r") }, "w1").await;
    assert_eq!((lease.worker.as_str(), lease.epoch), ("w1", 1));
    let run = k.get("r").await;
    assert_eq!((run.status, run.worker.as_str()), (RunStatus::Pending, "w1"));
    // The lease lasts until second 60.
    assert_eq!((run.epoch, run.attempts, run.wake_at), (1, 1, at(30)));
    assert_eq!((run.started_at, run.deadline_at), (Some(at(0)), Some(at(30))));
}

/// R92: it is as if it had been claimed and then suspended, and waits for the same things.
async fn a_start_may_be_suspended_in_the_same_commit(store: &dyn Store) {
    let k = Kit::new(store);
    let rest = |wake_at| Some(Rest { wake_at, waits: "[\"go\"]".to_owned() });
    let claim = Some(("w1".to_owned(), at(60)));
    let starts = [("timed", at(40)), ("told", Timestamp::NEVER)].map(|(id, wake_at)| Start {
        rest: rest(wake_at),
        claim: claim.clone(),
        ..k.start(id)
    });
    for start in &starts {
        let Started::New(Some(lease)) = k.ask(start.clone()).await else {
            panic!("a new run that was claimed was expected")
        };
        let again = k.ask(start.clone()).await;
        assert_eq!(again, Started::New(Some(lease.clone())), "a repeated request, the same answer");
        let run = k.get(&start.run_id).await;
        assert_eq!((run.status, run.worker.as_str()), (RunStatus::Pending, ""));
        assert_eq!((run.epoch, run.attempts, run.started_at), (1, 1, Some(at(0))));
        assert_eq!((run.parked, run.waits.as_str()), (true, "[\"go\"]"));
        assert_eq!(run.wake_at, start.rest.as_ref().unwrap().wake_at);
        // Nobody holds it, so nobody may write for it.
        assert_eq!(k.finish(&lease).await, Written::Fenced);
    }
    assert_eq!(k.ask(k.dequeue("default", "w1", 10)).await.runs, []);
    assert_eq!(ids(&k.ask(k.wake("w2", 41)).await.runs), ["timed"]);
    k.signal("told", "go", "s1").await;
    assert_eq!(ids(&k.ask(k.wake("w2", 42)).await.runs), ["told"]);
    let again = k.ask(starts[0].clone()).await;
    assert!(matches!(again, Started::New(Some(_))), "it has gone on, and is the same: {again:?}");
    let other = k.ask(Start { seed: 99, ..starts[0].clone() }).await;
    assert_eq!(other, Started::Existing(RunStatus::Pending), "somebody else's start");
    // Who may not claim may not suspend either.
    let mut queue = plain("one");
    queue.concurrency = Some(1);
    k.put(queue).await;
    let start = Start { rest: rest(at(50)), claim, ..k.on("one", "limited") };
    assert_eq!(k.ask(start).await, Started::New(None));
    let run = k.get("limited").await;
    assert_eq!((run.status, run.parked, run.waits.as_str()), (RunStatus::Enqueued, false, ""));
}

/// R85: otherwise the limit would be passed by as many workers as start at once.
async fn a_start_does_not_claim_past_the_limits_of_its_queue(store: &dyn Store) {
    let k = Kit::new(store);
    let mut queue = plain("one");
    queue.concurrency = Some(1);
    k.put(queue).await;
    let claim = Some(("w1".to_owned(), at(60)));
    for id in ["a", "b"] {
        let start = Start { claim: claim.clone(), ..k.on("one", id) };
        assert_eq!(k.ask(start.clone()).await, Started::New(None));
        assert_eq!(k.ask(start).await, Started::New(None), "a repeated request, the same answer");
        assert_eq!(k.status(id).await, RunStatus::Enqueued);
    }
    assert_eq!(ids(&k.ask(k.dequeue("one", "w1", 1)).await.runs), ["a"]);
}

async fn a_start_does_not_claim_on_a_paused_queue(store: &dyn Store) {
    let k = Kit::new(store);
    let mut queue = plain("still");
    queue.paused = true;
    k.put(queue).await;
    let claim = Some(("w1".to_owned(), at(60)));
    assert_eq!(k.ask(Start { claim, ..k.on("still", "r") }).await, Started::New(None));
    assert_eq!(k.status("r").await, RunStatus::Enqueued);
}

async fn an_active_run_keeps_its_deduplication_id(store: &dyn Store) {
    let k = Kit::new(store);
    let dedupe = |id: &str| Start { dedupe_id: "d".to_owned(), ..k.start(id) };
    k.started(dedupe("a")).await;
    assert_eq!(k.ask(dedupe("b")).await, Started::Duplicate("a".to_owned()));
    k.ask(k.dequeue("default", "w1", 1)).await;
    assert_eq!(k.ask(dedupe("b")).await, Started::Duplicate("a".to_owned()));
    assert_eq!(k.find("b").await, None);
    assert_eq!(k.get("a").await.dedupe_id, "d");
}

async fn a_deduplication_id_belongs_to_one_queue(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("mail")).await;
    k.started(Start { dedupe_id: "d".to_owned(), ..k.start("a") }).await;
    k.started(Start { dedupe_id: "d".to_owned(), ..k.on("mail", "b") }).await;
}

/// The trap of unique keys over nullable columns, the other way round.
async fn runs_without_a_deduplication_id_never_collide(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["a", "b", "c"] {
        k.started(k.start(id)).await;
    }
    assert_eq!(k.ask(k.dequeue("default", "w1", 1)).await.runs.len(), 3);
}

async fn success_failure_cancel_and_exhaustion_free_the_deduplication_id(store: &dyn Store) {
    let k = Kit::new(store);
    let dedupe = |id: &str| Start { dedupe_id: "d".to_owned(), max_attempts: 0, ..k.start(id) };
    let lease = k.owned_by(dedupe("a"), "w1").await;
    k.finish(&lease).await;
    let lease = k.owned_by(dedupe("b"), "w1").await;
    k.fail(&lease).await;
    k.owned_by(dedupe("c"), "w1").await;
    k.cancel("c").await;
    k.owned_by(dedupe("d"), "w1").await;
    let claimed = k.ask(k.wake("w2", 100)).await;
    assert_eq!(claimed.exhausted, ["d"]);
    k.started(dedupe("e")).await;
}

async fn a_refused_start_does_not_keep_the_deduplication_id(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    let dedupe = |id: &str| Start { dedupe_id: "d".to_owned(), seed: 5, ..k.start(id) };
    assert_eq!(k.ask(dedupe("r")).await, Started::Existing(RunStatus::Enqueued));
    let other = Start { workflow: "refund".to_owned(), ..dedupe("r") };
    assert_eq!(k.ask(other).await, Started::Conflict("workflow"));
    k.started(dedupe("free")).await;
}

async fn a_start_repeated_after_the_end_does_not_take_the_deduplication_id_again(
    store: &dyn Store,
) {
    let k = Kit::new(store);
    let dedupe = |id: &str| Start { dedupe_id: "d".to_owned(), ..k.start(id) };
    let lease = k.owned_by(dedupe("a"), "w1").await;
    k.finish(&lease).await;
    assert_eq!(k.ask(dedupe("a")).await, Started::Existing(RunStatus::Success));
    k.started(dedupe("b")).await;
}

async fn a_start_repeated_after_the_end_finds_its_run_although_the_deduplication_id_moved_on(
    store: &dyn Store,
) {
    let k = Kit::new(store);
    let dedupe = |id: &str| Start { dedupe_id: "d".to_owned(), ..k.start(id) };
    let lease = k.owned_by(dedupe("a"), "w1").await;
    k.finish(&lease).await;
    k.started(dedupe("b")).await;
    assert_eq!(k.ask(dedupe("a")).await, Started::Existing(RunStatus::Success));
    assert_eq!(k.ask(dedupe("c")).await, Started::Duplicate("b".to_owned()));
}

async fn a_resumed_run_takes_its_deduplication_id_again(store: &dyn Store) {
    let k = Kit::new(store);
    let dedupe = |id: &str| Start { dedupe_id: "d".to_owned(), ..k.start(id) };
    let resume = Resume { workspace: k.ws.clone(), run_id: "a".to_owned(), now: at(9) };
    k.started(dedupe("a")).await;
    k.cancel("a").await;
    k.ask(resume.clone()).await;
    assert_eq!(k.get("a").await.dedupe_id, "d");
    assert_eq!(k.ask(dedupe("b")).await, Started::Duplicate("a".to_owned()));
    let claimed = k.ask(k.dequeue("default", "w1", 10)).await;
    assert_eq!(k.ask(dedupe("b")).await, Started::Duplicate("a".to_owned()));
    k.finish(&k.lease_of(&claimed)).await;
    k.started(dedupe("b")).await;
}

async fn a_resumed_run_does_not_take_the_deduplication_id_of_another(store: &dyn Store) {
    let k = Kit::new(store);
    let dedupe = |id: &str| Start { dedupe_id: "d".to_owned(), ..k.start(id) };
    k.started(dedupe("a")).await;
    k.cancel("a").await;
    k.started(dedupe("b")).await;
    let resume = Resume { workspace: k.ws.clone(), run_id: "a".to_owned(), now: at(9) };
    k.ask(resume).await;
    assert_eq!(k.get("a").await.dedupe_id, "");
    assert_eq!(k.ask(dedupe("c")).await, Started::Duplicate("b".to_owned()));
}
