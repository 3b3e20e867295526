//! Dequeuing: which runs, in which order, and what a claim writes.

use steadfast_core::RunStatus;
use steadfast_store::Store;
use steadfast_store::op::{Claimed, Dequeue, InLine, PutQueue, QueuePut, Resume, Start, Wake};

use super::kit::{Kit, at, ids, plain, secs};

super::table! {
    a_claim_sets_status_worker_epoch_attempt_start_and_lease,
    a_claim_sets_the_deadline_from_the_timeout_once,
    a_deadline_that_was_given_is_kept,
    a_timeout_beyond_all_time_does_not_poison_the_queue,
    a_run_is_not_claimed_before_it_is_ready,
    a_claim_says_when_the_next_run_is_ready,
    a_claim_takes_only_runs_of_its_queue,
    a_claim_takes_runs_of_its_version_or_of_none,
    a_claim_takes_only_runs_of_workflows_that_the_worker_has,
    the_oldest_ready_run_goes_first_and_ties_go_by_id,
    a_lower_priority_number_goes_first_where_priorities_count,
    priorities_do_not_count_where_the_queue_has_none,
    background_work_stands_behind_on_every_queue,
    a_queue_that_gets_priorities_reorders_what_waits,
    a_claim_never_takes_more_than_its_limit,
    a_claim_goes_on_behind_the_last_one,
    where_nothing_is_left_behind_the_whole_line_is_looked_at,
    a_command_behind_the_last_claim_is_not_passed_by,
    partitions_are_served_without_a_place_in_line,
    a_claim_of_nothing_takes_nothing,
    a_paused_queue_gives_nothing,
    an_unknown_queue_gives_nothing,
    a_claimed_run_is_not_claimed_again,
    a_resumed_run_follows_the_order_its_queue_has_now,
}

/// R74, R92
async fn a_claim_sets_status_worker_epoch_attempt_start_and_lease(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    let claimed = k.ask(k.dequeue("default", "w1", 5)).await;
    let run = claimed.runs[0].clone();
    assert_eq!((run.status, run.worker.as_str()), (RunStatus::Pending, "w1"));
    assert_eq!((run.epoch, run.attempts), (1, 1));
    assert_eq!((run.started_at, run.wake_at), (Some(at(5)), at(65)));
    assert_eq!(run, k.get("r").await, "what is told is what is stored");
}

/// R92
async fn a_claim_sets_the_deadline_from_the_timeout_once(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(Start { timeout: Some(secs(300)), ..k.start("r") }).await;
    assert_eq!(k.get("r").await.deadline_at, None, "waiting on a queue costs no time");
    let claimed = k.ask(k.dequeue("default", "w1", 5)).await;
    assert_eq!(claimed.runs[0].deadline_at, Some(at(305)));
    let claimed = k.ask(k.wake("w2", 100)).await;
    assert_eq!(claimed.runs[0].deadline_at, Some(at(305)), "a recovery does not extend it");
    assert_eq!(k.get("r").await.deadline_at, Some(at(305)));
}

/// R92
async fn a_deadline_that_was_given_is_kept(store: &dyn Store) {
    let k = Kit::new(store);
    let start = Start { timeout: Some(secs(30)), deadline_at: Some(at(9)), ..k.start("r") };
    k.started(start).await;
    let claimed = k.ask(k.dequeue("default", "w1", 5)).await;
    assert_eq!(claimed.runs[0].deadline_at, Some(at(9)));
    assert_eq!(k.get("r").await.deadline_at, Some(at(9)));
}

async fn a_timeout_beyond_all_time_does_not_poison_the_queue(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(Start { timeout: Some(std::time::Duration::MAX), ..k.start("long") }).await;
    k.started(k.start("next")).await;
    assert_eq!(ids(&k.ask(k.dequeue("default", "w1", 5)).await.runs), ["long", "next"]);
    assert_eq!(k.get("long").await.deadline_at, None, "beyond all time is never");
}

async fn a_run_is_not_claimed_before_it_is_ready(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(Start { ready_at: at(10), ..k.start("r") }).await;
    assert_eq!(k.ask(k.dequeue("default", "w1", 9)).await.runs, []);
    assert_eq!(ids(&k.ask(k.dequeue("default", "w1", 10)).await.runs), ["r"]);
}

async fn a_claim_says_when_the_next_run_is_ready(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.ask(k.dequeue("default", "w1", 1)).await, Claimed::default());
    for (id, ready) in [("a", 40), ("b", 20), ("c", 30)] {
        k.started(Start { ready_at: at(ready), ..k.start(id) }).await;
    }
    assert_eq!(k.ask(k.dequeue("default", "w1", 1)).await.next_at, Some(at(20)));
}

/// R90
async fn a_claim_takes_only_runs_of_its_queue(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("a")).await;
    k.put(plain("b")).await;
    k.started(k.on("a", "r1")).await;
    k.started(k.on("b", "r2")).await;
    k.started(k.start("r3")).await;
    assert_eq!(ids(&k.ask(k.dequeue("b", "w1", 1)).await.runs), ["r2"]);
    assert_eq!(k.status("r1").await, RunStatus::Enqueued);
    assert_eq!(k.status("r3").await, RunStatus::Enqueued);
}

/// R90
async fn a_claim_takes_runs_of_its_version_or_of_none(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, version) in [("any", ""), ("mine", "v1"), ("other", "v2"), ("case", "V1")] {
        k.started(Start { app_version: version.to_owned(), ..k.start(id) }).await;
    }
    assert_eq!(ids(&k.ask(k.dequeue("default", "w1", 1)).await.runs), ["any", "mine"]);
    let other = Dequeue { app_version: "v2".to_owned(), ..k.dequeue("default", "w2", 1) };
    assert_eq!(ids(&k.ask(other).await.runs), ["other"]);
}

/// R90: a worker without the code takes nothing: not a place of the queue, not an attempt, and no
/// time limit begins.
async fn a_claim_takes_only_runs_of_workflows_that_the_worker_has(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("q")).await;
    for n in 0..3 {
        let limit = Some(secs(30));
        let start = Start { workflow: "refund".to_owned(), timeout: limit, ..k.start("r") };
        let run_id = format!("refund{n}");
        k.started(Start { run_id: run_id.clone(), queue: "q".to_owned(), ..start.clone() }).await;
        k.started(Start { run_id: format!("{run_id}-default"), ..start }).await;
    }
    k.started(Start { now: at(1), ready_at: at(1), ..k.on("q", "ship") }).await;
    let has = |workflows: &[&str]| workflows.iter().map(|name| (*name).to_owned()).collect();
    let dequeue = |workflows: &[&str], queue: &str| Dequeue {
        workflows: has(workflows),
        limit: 2,
        ..k.dequeue(queue, "w1", 2)
    };
    let before = k.get("refund0").await;
    for queue in ["q", "default"] {
        assert_eq!(k.ask(dequeue(&[], queue)).await.runs, []);
        assert_eq!(k.ask(dequeue(&["Refund", "other"], queue)).await.runs, []);
    }
    assert_eq!(k.get("refund0").await, before);
    let claimed = k.ask(dequeue(&["ship_order"], "q")).await.runs;
    assert_eq!(ids(&claimed), ["ship"], "what stands before it is for other workers");
    let claimed = k.ask(dequeue(&["ship_order", "refund"], "q")).await.runs;
    assert_eq!(ids(&claimed), ["refund0", "refund1"]);
    // The same for a lease that ran out.
    let wake = |workflows: &[&str]| Wake { workflows: has(workflows), ..k.wake("w2", 62) };
    assert_eq!(k.ask(wake(&[])).await.runs, []);
    assert_eq!(ids(&k.ask(wake(&["ship_order"])).await.runs), ["ship"]);
}

/// R87
async fn the_oldest_ready_run_goes_first_and_ties_go_by_id(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, ready) in [("d", 3), ("c", 1), ("b", 1), ("a", 2)] {
        k.started(Start { ready_at: at(ready), ..k.start(id) }).await;
    }
    assert_eq!(ids(&k.ask(k.dequeue("default", "w1", 9)).await.runs), ["b", "c", "a", "d"]);
}

async fn ranked(k: &Kit<'_>, priorities: bool) {
    k.put(steadfast_store::op::QueueRow { priorities, ..plain("q") }).await;
    for (id, priority, ready) in [("old", 5, 1), ("low", 9, 0), ("top", -3, 4), ("new", 5, 2)] {
        k.started(Start { priority, ready_at: at(ready), ..k.on("q", id) }).await;
    }
}

/// R87
async fn a_lower_priority_number_goes_first_where_priorities_count(store: &dyn Store) {
    let k = Kit::new(store);
    ranked(&k, true).await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 9)).await.runs), ["top", "old", "new", "low"]);
}

/// R87
async fn priorities_do_not_count_where_the_queue_has_none(store: &dyn Store) {
    let k = Kit::new(store);
    ranked(&k, false).await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 9)).await.runs), ["low", "old", "new", "top"]);
}

/// R87
/// R55: what is filled in by hand does not keep fresh work waiting, on any queue.
async fn background_work_stands_behind_on_every_queue(store: &dyn Store) {
    for queue in ["default", "q"] {
        let k = Kit::new(store);
        k.put(plain("q")).await;
        let background = steadfast_core::limits::BACKGROUND_PRIORITY;
        for (id, priority, ready) in [("filled", background, 0), ("fresh", 0, 5)] {
            k.started(Start { priority, ready_at: at(ready), ..k.on(queue, id) }).await;
        }
        k.put(plain("q")).await;
        let claimed = k.ask(k.dequeue(queue, "w1", 9)).await.runs;
        let ids: Vec<_> = claimed.iter().map(|run| run.run_id.as_str()).collect();
        assert_eq!(ids, ["fresh", "filled"], "{queue}");
    }
}

async fn a_queue_that_gets_priorities_reorders_what_waits(store: &dyn Store) {
    let k = Kit::new(store);
    ranked(&k, false).await;
    let queue = steadfast_store::op::QueueRow { priorities: true, ..plain("q") };
    let put = PutQueue { workspace: k.ws.clone(), queue, now: at(5) };
    assert_eq!(k.ask(put).await, QueuePut { created: false });
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 9)).await.runs), ["top", "old", "new", "low"]);
}

/// The trap of a LIMIT that the plan forgets; R91.
async fn a_claim_never_takes_more_than_its_limit(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask_all((0..60).map(|i| k.start(&format!("r{i:02}"))).collect()).await;
    let mut seen = Vec::new();
    for limit in [1, 7, 1, 50, 50] {
        let dequeue = Dequeue { limit, ..k.dequeue("default", "w1", 1) };
        let claimed = k.ask(dequeue).await.runs;
        assert!(claimed.len() <= limit, "{} runs with limit {limit}", claimed.len());
        seen.extend(claimed.into_iter().map(|run| run.run_id));
    }
    let all: Vec<_> = (0..60).map(|i| format!("r{i:02}")).collect();
    assert_eq!(seen, all, "each once, in order");
}

/// R91: on a queue that nobody made, and on one from which databases may claim in a shorter way.
async fn a_claim_goes_on_behind_the_last_one(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("q")).await;
    for queue in ["default", "q"] {
        let on = |id: &str, ready| Start {
            queue: queue.to_owned(),
            ready_at: at(ready),
            ..k.start(&format!("{queue}-{id}"))
        };
        let named = |names: &[&str]| -> Vec<String> {
            names.iter().map(|id| format!("{queue}-{id}")).collect()
        };
        for (id, ready) in [("b", 2), ("c", 2), ("d", 2), ("e", 3)] {
            k.started(on(id, ready)).await;
        }
        let two = Dequeue { limit: 2, ..k.dequeue(queue, "w1", 9) };
        let claimed = k.ask(two.clone()).await;
        assert_eq!(ids(&claimed.runs), named(&["b", "c"]));
        let last = InLine { rank: 0, ready_at: at(2), run_id: format!("{queue}-c") };
        assert_eq!(claimed.last, Some(last.clone()));
        // One comes in before that place, another at the same time with a smaller id.
        k.started(on("z", 1)).await;
        k.started(on("a", 2)).await;
        let claimed = k.ask(Dequeue { behind: Some(last), ..two.clone() }).await;
        assert_eq!(ids(&claimed.runs), named(&["d", "e"]));
        let claimed = k.ask(Dequeue { behind: claimed.last, ..two }).await;
        assert_eq!(ids(&claimed.runs), named(&["z", "a"]), "they are first in the whole line");
    }
}

/// R91
async fn where_nothing_is_left_behind_the_whole_line_is_looked_at(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("q")).await;
    k.started(k.on("q", "r")).await;
    let end = InLine { rank: 9, ready_at: at(9), run_id: "z".to_owned() };
    let behind = Dequeue { behind: Some(end), ..k.dequeue("q", "w1", 1) };
    assert_eq!(ids(&k.ask(behind.clone()).await.runs), ["r"]);
    assert_eq!(k.ask(behind).await, Claimed::default());
    // What is not ready behind the place is not what goes first.
    k.started(Start { ready_at: at(50), ..k.on("q", "later") }).await;
    k.started(k.on("q", "s")).await;
    let start = InLine { rank: 0, ready_at: at(40), run_id: String::new() };
    let behind = Dequeue { behind: Some(start), ..k.dequeue("q", "w1", 41) };
    assert_eq!(ids(&k.ask(behind).await.runs), ["s"]);
}

/// R91: the runs of commands are claimed in a longer way where there is a shorter one.
async fn a_command_behind_the_last_claim_is_not_passed_by(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("q")).await;
    k.started(Start { ready_at: at(1), ..k.on("q", "in-front") }).await;
    let mut submit = k.submit("c", at(3));
    submit.start.queue = "q".to_owned();
    k.ask(submit).await;
    let place = InLine { rank: 0, ready_at: at(2), run_id: String::new() };
    let behind = Dequeue { behind: Some(place), ..k.dequeue("q", "w1", 9) };
    assert_eq!(ids(&k.ask(behind.clone()).await.runs), ["run-c"]);
    assert_eq!(ids(&k.ask(behind).await.runs), ["in-front"]);
}

/// R88
async fn partitions_are_served_without_a_place_in_line(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(steadfast_store::op::QueueRow { partitioned: true, ..plain("q") }).await;
    k.started(Start { partition: "p".to_owned(), ..k.on("q", "r") }).await;
    k.started(Start { partition: "p".to_owned(), ..k.on("q", "s") }).await;
    let after = InLine { rank: 0, ready_at: at(0), run_id: "r".to_owned() };
    let behind = Dequeue { behind: Some(after), ..k.dequeue("q", "w1", 1) };
    let claimed = k.ask(behind).await;
    assert_eq!((ids(&claimed.runs), claimed.last), (vec!["r", "s"], None));
}

async fn a_claim_of_nothing_takes_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    let none = Dequeue { limit: 0, ..k.dequeue("default", "w1", 1) };
    assert_eq!(k.ask(none).await.runs, []);
    assert_eq!(k.get("r").await.epoch, 0);
}

async fn a_paused_queue_gives_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    let mut queue = plain("q");
    queue.paused = true;
    k.put(queue.clone()).await;
    k.started(k.on("q", "r")).await;
    assert_eq!(k.ask(k.dequeue("q", "w1", 1)).await.runs, []);
    queue.paused = false;
    k.put(queue).await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 1)).await.runs), ["r"]);
}

async fn an_unknown_queue_gives_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.ask(k.dequeue("nowhere", "w1", 1)).await, Claimed::default());
}

async fn a_claimed_run_is_not_claimed_again(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    assert_eq!(k.ask(k.dequeue("default", "w1", 1)).await.runs.len(), 1);
    assert_eq!(k.ask(k.dequeue("default", "w2", 1)).await.runs, []);
    assert_eq!(k.ask(k.wake("w2", 1)).await.runs, []);
    assert_eq!(k.get("r").await.worker, "w1");
}

/// R87: the queue changed while the run was stopped.
async fn a_resumed_run_follows_the_order_its_queue_has_now(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("q")).await;
    k.started(Start { priority: 9, ..k.on("q", "back") }).await;
    k.cancel("back").await;
    let queue = steadfast_store::op::QueueRow { priorities: true, ..plain("q") };
    k.put(queue).await;
    k.started(Start { priority: 5, ready_at: at(8), ..k.on("q", "fresh") }).await;
    let resume = Resume { workspace: k.ws.clone(), run_id: "back".to_owned(), now: at(7) };
    k.ask(resume).await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 9)).await.runs), ["fresh", "back"]);
}
