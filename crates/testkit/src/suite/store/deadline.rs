//! Deadlines: when a run has to end, who may say so, and what everybody sees from then on.
//!
//! Invariants: the store compares the deadline itself; only the newest lease ends a run for it;
//! from the deadline on an owner writes nothing, and every read shows the run as ended, whether or
//! not a process has written that yet.

use steadfast_core::{RunStatus, Timestamp};
use steadfast_store::Store;
use steadfast_store::op::{
    Cancelled, ContinueAsNew, Dequeue, GetEnds, Lease, ListRuns, Load, Release, Released, Resume,
    Resumed, RunFilter, RunRow, Signalled, SlotTaken, Start, Started, Suspended, TakeSlot, TimeOut,
    TimedOut, Wake, Written,
};

use super::kit::{Kit, at, done, entry, ids, plain, secs};
use super::table;

table! {
    an_owner_ends_its_run_at_the_deadline_and_not_before,
    a_stale_owners_time_out_changes_nothing,
    after_the_deadline_nothing_of_an_owner_is_written,
    every_read_shows_an_overdue_run_as_ended,
    any_wake_ends_overdue_runs_whoever_has_them,
    an_overdue_run_is_never_claimed,
    the_earlier_of_deadline_and_time_limit_holds,
    what_an_operator_asks_of_an_overdue_run_meets_its_end,
    a_lease_is_extended_up_to_the_deadline_and_no_further,
}

fn time_out(lease: &Lease, now: i64) -> TimeOut {
    TimeOut { lease: lease.clone(), now: at(now) }
}

/// A start that has to end within so many seconds of its first claim.
fn within(k: &Kit<'_>, run_id: &str, limit: u64) -> Start {
    Start { timeout: Some(secs(limit)), ..k.start(run_id) }
}

fn ended(run: &RunRow, deadline: i64) -> bool {
    let code = run.error.as_ref().map(|error| error.code().to_owned());
    let text = run.error.as_ref().map(ToString::to_string).unwrap_or_default();
    run.status == RunStatus::Cancelled
        && code.as_deref() == Some("SF-0304")
        && text.contains(&at(deadline).to_string())
        && run.worker.is_empty()
        && !run.parked
        && run.wake_at == Timestamp::NEVER
}

async fn an_owner_ends_its_run_at_the_deadline_and_not_before(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned_by(within(&k, "r", 10), "w1").await;
    let child = Start { parent: "r".to_owned(), ..k.start("kid") };
    k.started(child).await;
    assert_eq!(k.ask(time_out(&lease, 9)).await, TimedOut::NotDue(Some(at(10))));
    assert_eq!(k.get("r").await.worker, "w1", "the lease stays");
    assert_eq!(k.ask(time_out(&lease, 10)).await, TimedOut::Done(vec!["kid".to_owned()]));
    let run = k.get("r").await;
    assert!(ended(&run, 10) && run.epoch == 2 && run.finished_at == Some(at(10)), "{run:?}");
    assert_eq!(k.status("kid").await, RunStatus::Cancelled);
    // The same request again, after its answer was lost.
    assert_eq!(k.ask(time_out(&lease, 11)).await, TimedOut::Done(Vec::new()));
    let free = k.owned("free").await;
    assert_eq!(k.ask(time_out(&free, 1_000_000)).await, TimedOut::NotDue(None));
    let nowhere = Lease { run_id: "nowhere".to_owned(), ..lease };
    assert_eq!(k.ask(time_out(&nowhere, 20)).await, TimedOut::Fenced);
}

/// A worker that was stopped keeps its old deadline. Meanwhile the run was recovered, ended by its
/// deadline and resumed with a new one: the old owner must not end it again.
async fn a_stale_owners_time_out_changes_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    let stale = k.owned_by(within(&k, "r", 100), "w1").await;
    let second = k.recovered("w2", 61).await;
    assert_eq!(k.ask(time_out(&second, 100)).await, TimedOut::Done(Vec::new()));
    let resume = Resume { workspace: k.ws.clone(), run_id: "r".to_owned(), now: at(110) };
    assert_eq!(k.ask(resume).await, Resumed::Done);
    assert_eq!(k.get("r").await.deadline_at, None);
    let claimed = k.ask(k.dequeue("default", "w2", 120)).await;
    assert_eq!((claimed.runs[0].epoch, claimed.runs[0].deadline_at), (4, Some(at(220))));
    let before = k.get("r").await;
    for (lease, now) in [(&stale, 130), (&stale, 230), (&second, 130), (&second, 230)] {
        assert_eq!(k.ask(time_out(lease, now)).await, TimedOut::Fenced);
        assert_eq!(k.get("r").await, before);
    }
    let newest = k.lease_of(&claimed);
    assert_eq!(k.ask(time_out(&newest, 130)).await, TimedOut::NotDue(Some(at(220))));
}

async fn after_the_deadline_nothing_of_an_owner_is_written(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("q")).await;
    // Writes of the kit are made at seconds 3 to 5.
    let lease = k.owned_by(within(&k, "r", 3), "w1").await;
    let before = k.get("r").await;
    assert_eq!(k.record(&lease, vec![entry(done(0, "a", "1"))]).await, Written::Fenced);
    let two = vec![entry(done(0, "a", "1")), entry(done(1, "b", "2"))];
    assert_eq!(k.record(&lease, two).await, Written::Fenced);
    assert_eq!(k.finish(&lease).await, Written::Fenced);
    assert_eq!(k.fail(&lease).await, Written::Fenced);
    assert_eq!(k.suspend(&lease, 0).await, Suspended::Fenced);
    let anew =
        ContinueAsNew { lease: lease.clone(), input: "2".to_owned(), generation: 0, now: at(3) };
    assert_eq!(k.ask(anew).await, Written::Fenced);
    let slot = TakeSlot {
        lease: lease.clone(),
        step: 0,
        queue: "q".to_owned(),
        partition: String::new(),
        lease_until: at(60),
        now: at(3),
    };
    assert_eq!(k.ask(slot).await, SlotTaken::Fenced);
    assert_eq!((k.get("r").await, k.steps("r").await), (before, vec![]));
    // Many at once go another way on servers, and are refused there, too.
    let names: Vec<String> = (0..20).map(|n| format!("m{n:02}")).collect();
    let mut leases = Vec::new();
    for name in &names {
        leases.push(k.owned_by(within(&k, name, 4), "w1").await);
    }
    let finishes = leases.iter().map(|lease| k.finish_op(lease, "true")).collect();
    assert!(k.ask_all(finishes).await.iter().all(|written| *written == Written::Fenced));
    for name in &names {
        assert_eq!(k.status(name).await, RunStatus::Pending);
    }
    // To give the run up is allowed at any time: any worker ends it then.
    assert_eq!(k.ask(Release { lease, what: Released::Run, now: at(9) }).await, Written::Done);
}

async fn every_read_shows_an_overdue_run_as_ended(store: &dyn Store) {
    let k = Kit::new(store);
    let by = |run_id: &str| Start { deadline_at: Some(at(50)), ..k.start(run_id) };
    k.started(Start { ready_at: at(500), ..by("waits") }).await;
    k.owned_by(by("works"), "w1").await;
    let parks = k.owned_by(by("parks"), "w1").await;
    assert_eq!(k.suspend(&parks, 0).await, Suspended::Done);
    k.owned("free").await;
    let list = |status: &[RunStatus], now| ListRuns {
        workspace: k.ws.clone(),
        filter: RunFilter { status: status.to_vec(), ..RunFilter::default() },
        after: None,
        limit: 10,
        now: at(now),
    };
    let all = ["free", "parks", "waits", "works"];
    let (active, over) = ([RunStatus::Enqueued, RunStatus::Pending], [RunStatus::Cancelled]);
    for (now, is_over) in [(49, false), (50, true), (90, true)] {
        for id in ["waits", "works", "parks"] {
            let run = k.find_at(id, at(now)).await.unwrap();
            assert_eq!(ended(&run, 50), is_over, "{run:?}");
            assert_eq!(run.finished_at, is_over.then_some(at(50)));
        }
        let listed = async |status: &[RunStatus]| {
            let page = k.ask(list(status, now)).await;
            let mut found: Vec<String> = page.runs.into_iter().map(|run| run.run_id).collect();
            found.sort();
            found
        };
        let (live, gone) = if is_over { (&all[..1], &all[1..]) } else { (&all[..], &all[..0]) };
        assert_eq!(listed(&active).await, live, "{now}");
        assert_eq!(listed(&over).await, gone, "{now}");
        assert_eq!(listed(&[active[0], active[1], over[0]]).await, all);
        assert_eq!(listed(&[]).await, all);
        let run_ids: Vec<String> = all.map(str::to_owned).to_vec();
        let ends = GetEnds { workspace: k.ws.clone(), run_ids: run_ids.clone(), now: at(now) };
        assert_eq!(ids(&k.ask(ends).await.0), gone);
        let load = Load {
            workspace: k.ws.clone(),
            run_id: "free".to_owned(),
            children: run_ids,
            names: Vec::new(),
            now: at(now),
        };
        assert_eq!(ids(&k.ask(load).await.over), gone);
    }
}

async fn any_wake_ends_overdue_runs_whoever_has_them(store: &dyn Store) {
    let k = Kit::new(store);
    let by = |run_id: &str| Start { deadline_at: Some(at(50)), ..k.start(run_id) };
    let pinned = Start { app_version: "v7".to_owned(), ready_at: at(500), ..by("pinned") };
    k.started(pinned).await;
    // Its owner reports until far behind the deadline, and does nothing.
    let frozen = k.owned_by(by("frozen"), "w1").await;
    k.ask(super::lease::beat(&k, "w1", &[("frozen", 1)], 40)).await;
    k.started(Start { parent: "frozen".to_owned(), ..k.start("kid") }).await;
    let parks = k.owned_by(by("parks"), "w1").await;
    k.suspend(&parks, 0).await;
    k.owned_by(within(&k, "later", 500), "w1").await;
    // A worker without room, of another version and with other workflows.
    let tick = |now| Wake { limit: 0, workflows: Vec::new(), ..k.wake("w9", now) };
    let early = k.ask(tick(49)).await;
    assert_eq!((early.overdue.len(), early.next_at), (0, Some(at(50))));
    let mut overdue = k.ask(tick(50)).await.overdue;
    overdue.sort();
    assert_eq!(overdue, ["frozen", "kid", "parks", "pinned"]);
    for id in ["frozen", "parks", "pinned"] {
        let run = k.get(id).await;
        assert!(ended(&run, 50) && run.finished_at == Some(at(50)), "{run:?}");
    }
    assert_eq!(k.status("kid").await, RunStatus::Cancelled);
    assert_eq!(k.get("later").await.worker, "w1");
    assert_eq!(k.ask(tick(51)).await.overdue, Vec::<String>::new());
    assert_eq!(k.finish(&frozen).await, Written::Fenced);
}

async fn an_overdue_run_is_never_claimed(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(plain("q")).await;
    for (id, deadline) in [("a", Some(at(5))), ("b", None), ("c", Some(at(6)))] {
        k.started(Start { deadline_at: deadline, ..k.on("q", id) }).await;
    }
    let claimed = k.ask(Dequeue { limit: 1, ..k.dequeue("q", "w1", 5) }).await;
    assert_eq!(ids(&claimed.runs), ["b"], "what stands before it is overdue");
    let claimed = k.ask(k.dequeue("q", "w1", 5)).await;
    assert_eq!(ids(&claimed.runs), ["c"]);
    assert_eq!(k.status("a").await, RunStatus::Enqueued);
    // Its owner is gone, and its lease runs out after its deadline.
    let woken = k.ask(k.wake("w2", 70)).await;
    assert_eq!((ids(&woken.runs), woken.overdue), (vec!["b"], vec!["a".into(), "c".into()]));
}

async fn the_earlier_of_deadline_and_time_limit_holds(store: &dyn Store) {
    let k = Kit::new(store);
    let both = |run_id: &str, limit, deadline| Start {
        deadline_at: Some(at(deadline)),
        ..within(&k, run_id, limit)
    };
    for (id, limit, deadline, claimed, wanted) in
        [("a", 10, 30, 1, 11), ("b", 40, 30, 1, 30), ("c", 10, 30, 25, 30)]
    {
        k.started(both(id, limit, deadline)).await;
        let run = k.ask(k.dequeue("default", "w1", claimed)).await.runs.remove(0);
        assert_eq!((run.run_id.as_str(), run.deadline_at), (id, Some(at(wanted))));
        assert_eq!(k.get(id).await.deadline_at, Some(at(wanted)));
        let at_once = format!("{id}-at-once");
        k.owned_by(both(&at_once, limit, deadline), "w1").await;
        let wanted = i64::try_from(limit).unwrap().min(deadline);
        assert_eq!(k.get(&at_once).await.deadline_at, Some(at(wanted)));
    }
    // A later claim never moves it.
    k.ask(k.wake("w2", 5)).await;
    let lease = k.owned_by(within(&k, "again", 100), "w1").await;
    k.suspend(&lease, 0).await;
    k.signal("again", "paid", "1").await;
    let woken = k.ask(k.wake("w2", 8)).await;
    assert_eq!((ids(&woken.runs), woken.runs[0].deadline_at), (vec!["again"], Some(at(100))));
}

async fn what_an_operator_asks_of_an_overdue_run_meets_its_end(store: &dyn Store) {
    let k = Kit::new(store);
    let by = |run_id: &str| Start { deadline_at: Some(at(2)), ..k.start(run_id) };
    for id in ["cancelled", "resumed", "signalled", "again"] {
        k.started(by(id)).await;
    }
    // The kit cancels at second 6 and signals at second 3.
    let over = Cancelled::AlreadyOver(RunStatus::Cancelled);
    assert_eq!(k.cancel("cancelled").await, over);
    let run = k.get("cancelled").await;
    assert!(ended(&run, 2), "{run:?}");
    let resume = Resume { workspace: k.ws.clone(), run_id: "resumed".to_owned(), now: at(6) };
    assert_eq!(k.ask(resume).await, Resumed::Done);
    let run = k.get("resumed").await;
    assert_eq!((run.status, run.deadline_at, run.epoch), (RunStatus::Enqueued, None, 1));
    assert_eq!(k.signal("signalled", "paid", "1").await, Signalled::Over);
    let again = Start { now: at(6), seed: 1, ..by("again") };
    assert_eq!(k.ask(again).await, Started::Existing(RunStatus::Cancelled));
}

async fn a_lease_is_extended_up_to_the_deadline_and_no_further(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned_by(within(&k, "r", 30), "w1").await;
    assert_eq!(k.get("r").await.wake_at, at(30), "others look at it then");
    k.ask(super::lease::beat(&k, "w1", &[("r", 1)], 20)).await;
    assert_eq!(k.get("r").await.wake_at, at(30));
    k.owned_by(within(&k, "long", 90), "w1").await;
    assert_eq!(k.get("long").await.wake_at, at(60));
    k.ask(super::lease::beat(&k, "w1", &[("long", 1)], 20)).await;
    assert_eq!(k.get("long").await.wake_at, at(80));
    k.ask(super::lease::beat(&k, "w1", &[("long", 1)], 40)).await;
    assert_eq!(k.get("long").await.wake_at, at(90));
}
