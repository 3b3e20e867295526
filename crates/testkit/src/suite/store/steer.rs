//! Steering: cancel, resume, purge, and the moves that no run makes.

use steadfast_core::RunStatus;
use steadfast_store::Store;
use steadfast_store::op::{
    Cancelled, ContinueAsNew, Dequeue, Lease, Load, Purge, Purged, Resume, Resumed, RunFilter,
    Start, With, Written,
};

use super::kit::{Kit, LEASE_SECS, at, done, entry, ids, plain, secs, with};

super::table! {
    a_waiting_run_is_cancelled_and_never_starts,
    an_executing_run_is_cancelled_with_its_reason,
    a_suspended_run_is_cancelled_and_never_wakes,
    a_cancel_that_comes_too_late_says_so,
    a_cancel_of_nobody_says_so,
    a_cancel_takes_attached_descendants_along,
    a_cancel_finds_children_from_before_a_new_beginning,
    a_cancel_leaves_detached_and_ended_children_alone,
    a_cancelled_run_is_resumed_where_it_stopped,
    a_resumed_run_is_held_until_its_last_owner_lets_go,
    a_resumed_run_without_an_owner_is_held_by_nobody,
    a_child_that_went_down_with_its_parent_is_held_as_well,
    a_run_that_ended_by_itself_or_is_active_is_not_resumed,
    a_purge_removes_what_ended_before_and_nothing_else,
    a_purge_removes_all_that_belonged_to_a_run,
    a_purge_goes_in_batches,
    a_load_names_children_that_are_gone,
    moves_that_no_run_makes_are_refused,
}

fn resume(k: &Kit<'_>, run_id: &str) -> Resume {
    Resume { workspace: k.ws.clone(), run_id: run_id.to_owned(), now: at(20) }
}

/// R74
async fn a_waiting_run_is_cancelled_and_never_starts(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    assert_eq!(k.cancel("r").await, Cancelled::Done(Vec::new()));
    assert_eq!(k.status("r").await, RunStatus::Cancelled);
    assert_eq!(k.ask(k.dequeue("default", "w1", 10)).await.runs, []);
}

/// R74
async fn an_executing_run_is_cancelled_with_its_reason(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    k.cancel("r").await;
    let run = k.get("r").await;
    assert_eq!((run.status, run.finished_at), (RunStatus::Cancelled, Some(at(6))));
    assert_eq!(run.error, Some(k.cancel_op("r").reason));
    assert_eq!((run.worker.as_str(), run.epoch), ("", 2));
}

async fn a_suspended_run_is_cancelled_and_never_wakes(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.suspend(&lease, 0).await;
    k.cancel("r").await;
    assert_eq!(k.ask(k.wake("w2", 5000)).await.runs, []);
    assert_eq!(k.get("r").await.waits, "");
}

async fn a_cancel_that_comes_too_late_says_so(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.finish(&lease).await;
    assert_eq!(k.cancel("r").await, Cancelled::AlreadyOver(RunStatus::Success));
    assert_eq!(k.get("r").await.error, None);
    k.started(k.start("twice")).await;
    k.cancel("twice").await;
    assert_eq!(k.cancel("twice").await, Cancelled::AlreadyOver(RunStatus::Cancelled));
}

async fn a_cancel_of_nobody_says_so(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.cancel("nowhere").await, Cancelled::NotFound);
}

/// Starts a child from its parent, as the parent's step `id`.
async fn child(k: &Kit<'_>, parent: &Lease, id: u64, start: Start) {
    let mut record = done(id, "spawn", "null");
    record.child = Some(start.run_id.clone());
    let start = Start { parent: parent.run_id.clone(), ..start };
    let entries = vec![with(record, With::Spawn(Box::new(start)))];
    assert_eq!(k.record(parent, entries).await, Written::Done);
}

async fn a_cancel_takes_attached_descendants_along(store: &dyn Store) {
    let k = Kit::new(store);
    let top = k.owned("top").await;
    child(&k, &top, 0, k.start("a")).await;
    child(&k, &top, 1, k.start("b")).await;
    let only = Dequeue { limit: 1, ..k.dequeue("default", "w2", 1) };
    let a = k.lease_of(&k.ask(only).await);
    child(&k, &a, 0, k.start("a1")).await;
    let stopped = ["a", "a1", "b"].map(str::to_owned).to_vec();
    assert_eq!(k.cancel("top").await, Cancelled::Done(stopped));
    for id in ["top", "a", "a1", "b"] {
        assert_eq!(k.status(id).await, RunStatus::Cancelled, "{id}");
    }
    assert_eq!(k.finish(&a).await, Written::Fenced);
}

/// R78
async fn a_cancel_finds_children_from_before_a_new_beginning(store: &dyn Store) {
    let k = Kit::new(store);
    let top = k.owned("top").await;
    child(&k, &top, 0, k.start("early")).await;
    child(&k, &top, 1, Start { detached: true, ..k.start("free") }).await;
    let (lease, input) = (top.clone(), "2".to_owned());
    let renewed = k.ask(ContinueAsNew { lease, input, generation: 0, now: at(4) }).await;
    assert_eq!(renewed, Written::Done);
    let top = Lease { epoch: top.epoch + 1, ..top };
    child(&k, &top, 0, k.start("later")).await;
    let stopped = ["early", "later"].map(str::to_owned).to_vec();
    assert_eq!(k.cancel("top").await, Cancelled::Done(stopped));
    assert_eq!(k.status("early").await, RunStatus::Cancelled);
    assert_eq!(k.status("free").await, RunStatus::Enqueued);
}

async fn a_cancel_leaves_detached_and_ended_children_alone(store: &dyn Store) {
    let k = Kit::new(store);
    let top = k.owned("top").await;
    child(&k, &top, 0, Start { detached: true, ..k.start("free") }).await;
    child(&k, &top, 1, k.start("ended")).await;
    k.cancel("ended").await;
    k.started(Start { parent: String::new(), ..k.start("stranger") }).await;
    assert_eq!(k.cancel("top").await, Cancelled::Done(Vec::new()));
    assert_eq!(k.status("free").await, RunStatus::Enqueued);
    assert_eq!(k.status("stranger").await, RunStatus::Enqueued);
}

/// R74
async fn a_cancelled_run_is_resumed_where_it_stopped(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned_by(Start { timeout: Some(secs(9)), ..k.start("r") }, "w1").await;
    k.record(&lease, vec![entry(done(0, "a", "1"))]).await;
    k.cancel("r").await;
    assert_eq!(k.let_go(&lease, 7).await, Written::Done);
    assert_eq!(k.ask(resume(&k, "r")).await, Resumed::Done);
    let run = k.get("r").await;
    assert_eq!((run.status, run.error, run.finished_at), (RunStatus::Enqueued, None, None));
    assert_eq!((run.attempts, run.deadline_at), (0, None));
    let claimed = k.ask(k.dequeue("default", "w2", 21)).await;
    assert_eq!(claimed.runs[0].deadline_at, Some(at(30)), "with its time anew");
    assert_eq!(k.steps("r").await.len(), 1);
    assert_eq!(k.finish(&k.lease_of(&claimed)).await, Written::Done);
}

/// R74: the owner of a run may not have heard of its cancel, and its attempts go on until it has.
async fn a_resumed_run_is_held_until_its_last_owner_lets_go(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let free = async |now| k.ask(k.dequeue("default", "w2", now)).await.runs.len();
    k.cancel("r").await;
    assert_eq!(k.ask(resume(&k, "r")).await, Resumed::Done);
    let held = k.ask(k.dequeue("default", "w2", 21)).await;
    assert_eq!((held.runs.len(), held.next_at), (0, Some(at(LEASE_SECS))));
    for other in [lease.epoch - 1, lease.epoch + 1] {
        let other = Lease { epoch: other, ..lease.clone() };
        assert_eq!(k.let_go(&other, 22).await, Written::Fenced);
        assert_eq!(free(22).await, 0);
    }
    // Its answer may be lost.
    assert_eq!(k.let_go(&lease, 23).await, Written::Done);
    assert_eq!(k.let_go(&lease, 23).await, Written::Done);
    let next = k.lease_of(&k.ask(k.dequeue("default", "w2", 24)).await);
    assert_eq!(k.let_go(&lease, 25).await, Written::Fenced, "it is another's by now");
    k.cancel("r").await;
    assert_eq!(k.ask(Resume { now: at(30), ..resume(&k, "r") }).await, Resumed::Done);
    assert_eq!(k.let_go(&lease, 31).await, Written::Fenced, "and was another's since");
    assert_eq!(free(83).await, 0);
    assert_eq!(free(84).await, 1, "the lease of its last owner is over");
    assert_eq!(k.let_go(&next, 85).await, Written::Fenced);
}

/// R74
async fn a_resumed_run_without_an_owner_is_held_by_nobody(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(Start { ready_at: at(500), ..k.start("delayed") }).await;
    let lease = k.owned("suspended").await;
    k.suspend(&lease, 0).await;
    let lease = k.owned("let go before").await;
    k.cancel("let go before").await;
    assert_eq!(k.let_go(&lease, 7).await, Written::Done);
    for run_id in ["delayed", "suspended"] {
        k.cancel(run_id).await;
    }
    for run_id in ["delayed", "suspended", "let go before"] {
        assert_eq!(k.ask(resume(&k, run_id)).await, Resumed::Done);
    }
    assert_eq!(k.ask(k.dequeue("default", "w2", 21)).await.runs.len(), 3);
}

/// R74
async fn a_child_that_went_down_with_its_parent_is_held_as_well(store: &dyn Store) {
    let k = Kit::new(store);
    let top = k.owned("top").await;
    child(&k, &top, 0, k.start("a")).await;
    let a = k.lease_of(&k.ask(k.dequeue("default", "w2", 1)).await);
    k.cancel("top").await;
    assert_eq!(k.ask(resume(&k, "a")).await, Resumed::Done);
    assert_eq!(k.ask(k.dequeue("default", "w3", 21)).await.runs, []);
    assert_eq!(k.let_go(&a, 22).await, Written::Done);
    assert_eq!(ids(&k.ask(k.dequeue("default", "w3", 23)).await.runs), ["a"]);
}

/// R74
async fn a_run_that_ended_by_itself_or_is_active_is_not_resumed(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("waiting")).await;
    k.owned("executing").await;
    let lease = k.owned("success").await;
    k.finish(&lease).await;
    let lease = k.owned("error").await;
    k.fail(&lease).await;
    for (id, status) in [
        ("waiting", RunStatus::Enqueued),
        ("executing", RunStatus::Pending),
        ("success", RunStatus::Success),
        ("error", RunStatus::Error),
    ] {
        assert_eq!(k.ask(resume(&k, id)).await, Resumed::NotStopped(status));
        assert_eq!(k.status(id).await, status);
    }
    assert_eq!(k.ask(resume(&k, "nowhere")).await, Resumed::NotFound);
}

fn purge(k: &Kit<'_>, before: i64) -> Purge {
    Purge { workspace: k.ws.clone(), before: at(before), limit: 100 }
}

async fn a_purge_removes_what_ended_before_and_nothing_else(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("aside")).await;
    k.started(k.on("aside", "waiting")).await;
    k.owned("executing").await;
    let lease = k.owned("suspended").await;
    k.suspend(&lease, 0).await;
    let lease = k.owned("ended").await;
    k.finish(&lease).await;
    k.started(k.start("stopped")).await;
    k.cancel("stopped").await;
    assert_eq!(k.ask(purge(&k, 5)).await, Purged(0), "the end itself is not before");
    assert_eq!(k.ask(purge(&k, 6)).await, Purged(1));
    assert_eq!(k.find("ended").await, None);
    assert_eq!(k.ask(purge(&k, 9_000_000)).await, Purged(1));
    for id in ["waiting", "executing", "suspended"] {
        assert!(k.find(id).await.is_some(), "{id} is active");
    }
}

async fn a_purge_removes_all_that_belonged_to_a_run(store: &dyn Store) {
    let k = Kit::new(store);
    let live = async || {
        let lease = k.owned("r").await;
        let publish = With::Publish { key: "k".to_owned(), value: "1".to_owned() };
        let append = With::Append { stream: "log".to_owned(), item: Some("1".to_owned()) };
        let entries = vec![with(done(0, "p", "1"), publish), with(done(1, "a", "1"), append)];
        assert_eq!(k.record(&lease, entries).await, Written::Done);
        assert_eq!(k.signal("r", "s", "s1").await, steadfast_store::op::Signalled::Accepted);
        let page = steadfast_store::op::ReadStream {
            workspace: k.ws.clone(),
            run_id: "r".to_owned(),
            stream: "log".to_owned(),
            from: 0,
            limit: 9,
        };
        assert_eq!(k.ask(page).await.items, ["1"]);
        k.finish(&lease).await;
    };
    live().await;
    assert_eq!(k.ask(purge(&k, 100)).await, Purged(1));
    let (workspace, run_id, key) = (k.ws.clone(), "r".to_owned(), "k".to_owned());
    let value = steadfast_store::op::GetValue { workspace, run_id, key };
    assert_eq!(k.ask(value).await.0, None);
    assert_eq!((k.steps("r").await, k.load("r").await.signals), (Vec::new(), Vec::new()));
    live().await;
}

async fn a_purge_goes_in_batches(store: &dyn Store) {
    let k = Kit::new(store);
    for i in 0..5 {
        let lease = k.owned(&format!("r{i}")).await;
        k.finish(&lease).await;
    }
    let batch = Purge { limit: 2, ..purge(&k, 100) };
    let mut gone = Vec::new();
    for _ in 0..4 {
        gone.push(k.ask(batch.clone()).await.0);
    }
    assert_eq!(gone, [2, 2, 1, 0]);
}

async fn a_load_names_children_that_are_gone(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["over", "gone"] {
        let lease = k.owned(id).await;
        k.finish(&lease).await;
    }
    k.started(k.start("waiting")).await;
    k.owned("parent").await;
    let asked = ["over", "gone", "waiting", "never", "gone"].map(str::to_owned).to_vec();
    let load = Load {
        workspace: k.ws.clone(),
        run_id: "parent".to_owned(),
        now: at(0),
        children: asked,
        names: Vec::new(),
    };
    let loaded = k.ask(load.clone()).await;
    assert_eq!((ids(&loaded.over), loaded.missing), (vec!["gone", "over"], vec!["never".into()]));
    let purge = Purge { workspace: k.ws.clone(), before: at(1000), limit: 1 };
    assert_eq!(k.ask(purge).await, Purged(1));
    let loaded = k.ask(load).await;
    assert_eq!(ids(&loaded.over), ["over"]);
    assert_eq!(loaded.missing, ["gone", "never"]);
}

/// R74: every move that the store offers, from every status that does not allow it.
async fn moves_that_no_run_makes_are_refused(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["success", "error", "cancelled", "parked", "waiting"] {
        let start = Start { max_attempts: 0, ..k.start(id) };
        match id {
            "waiting" => k.started(start).await,
            _ => {
                let lease = k.owned_by(start, "w1").await;
                match id {
                    "success" => k.finish(&lease).await == Written::Done,
                    "error" => k.fail(&lease).await == Written::Done,
                    "cancelled" => k.cancel(id).await == Cancelled::Done(Vec::new()),
                    _ => k.ask(k.wake("w2", 60)).await.exhausted == ["parked"],
                };
            }
        }
        let before = k.get(id).await;
        let (workspace, run_id) = (k.ws.clone(), id.to_owned());
        for epoch in 0..=before.epoch {
            let (workspace, run_id) = (workspace.clone(), run_id.clone());
            let lease = Lease { workspace, run_id, worker: before.worker.clone(), epoch };
            let finish = k.finish_op(&lease, "\"again\"");
            assert_eq!(k.ask(finish).await, Written::Fenced, "{id}");
            let input = "1".to_owned();
            let again = ContinueAsNew { lease, input, generation: 0, now: at(70) };
            assert_eq!(k.ask(again).await, Written::Fenced, "{id}");
        }
        if id != "waiting" {
            assert!(matches!(k.cancel(id).await, Cancelled::AlreadyOver(_)), "{id}");
            assert_eq!(k.ask(k.dequeue("default", "w3", 80)).await.runs, [], "{id}");
        }
        assert_eq!(k.ask(k.wake("w3", 9000)).await.runs, [], "{id}");
        assert_eq!(k.get(id).await, before, "{id}");
    }
    let list = steadfast_store::op::ListRuns {
        workspace: k.ws.clone(),
        filter: RunFilter { status: vec![RunStatus::Enqueued], ..RunFilter::default() },
        after: None,
        limit: 10,
        now: at(0),
    };
    assert_eq!(ids(&k.ask(list).await.runs), ["waiting"]);
}
