//! What many operations come to at once is what they come to one after the other.
//!
//! The same operations are carried out twice, in two workspaces: one by one, and all that concern
//! different runs at the same time. Replies and tables must be equal.

use futures::future::join_all;
use steadfast_core::driver::{Kind as Verb, Record as StepRecord};
use steadfast_core::{Error as Failure, RunStatus};
use steadfast_store::op::*;
use steadfast_store::{Op, OpenStore, Reply, StoreExt, Tally};

use super::database::Database;
use super::{at, start};

/// Runs of each sort; together more than fit one lane's first grasp.
const RUNS: i64 = 240;

fn id(n: i64) -> String {
    format!("r{n:03}")
}

fn lease(ws: &str, n: i64, epoch: i64) -> Lease {
    Lease { workspace: ws.into(), run_id: id(n), worker: "me#1".into(), epoch }
}

fn entry(step: u64, value: &str) -> Entry {
    let mut record = StepRecord::done(step, step, "work", Verb::Step, Ok(format!("{value:?}")));
    (record.started_at, record.completed_at) = (at(20), at(30));
    Entry { record, replaces: false, with: None }
}

fn failed(step: u64) -> Entry {
    let mut entry = entry(step, "");
    entry.record.outcome = Err(Failure::app("it \"broke\""));
    entry
}

/// Starts: new ones, known ones, others' ids, no queue, a deduplication id, one that is not
/// claimed.
fn starts(ws: &str, only: impl Fn(i64) -> bool) -> Vec<Op> {
    let one = |n: i64| {
        let mut op = Start { workspace: ws.into(), ..start(&id(n), n % 7 != 0) };
        op.input = format!("{{\"n\":{n},\"text\":\"ü' \\\\ %\"}}");
        match n % 12 {
            8 => op.queue = "nowhere".into(),
            9 => op.dedupe_id = format!("d{n}"),
            10 => op.timeout = Some(std::time::Duration::from_secs(5)),
            11 => (op.parent, op.detached) = ("nobody".into(), true),
            _ => {}
        }
        Op::Start(op)
    };
    (0..RUNS).filter(|n| only(*n)).map(one).collect()
}

/// The same ids again: the same request, an equal one of another caller's, or another input.
fn starts_again(ws: &str) -> Vec<Op> {
    let mut ops = starts(ws, |_| true);
    for (n, op) in ops.iter_mut().enumerate() {
        if let Op::Start(op) = op {
            match n % 5 {
                0 => op.input = "\"other\"".into(),
                1 | 2 => op.seed = 8,
                _ => {}
            }
        }
    }
    ops
}

fn records(ws: &str) -> Vec<Op> {
    let one = |n: i64| {
        let epoch = if n % 9 == 0 { 7 } else { 1 };
        let mut entries: Vec<Entry> =
            (0..1 + n.unsigned_abs() % 3).map(|s| entry(s, "ä")).collect();
        if n % 10 == 3 {
            entries.push(failed(3));
        }
        if n % 11 == 0 {
            let publish = With::Publish { key: "k".into(), value: n.to_string() };
            entries[0].with = Some(publish);
        }
        Op::Record(Record { lease: lease(ws, n, epoch), entries, now: at(40) })
    };
    (0..RUNS).map(one).collect()
}

/// Ends, suspensions with a good and an old view of the inbox, more records.
fn ends(ws: &str) -> Vec<Op> {
    let one = |n: i64| {
        let (lease, now) = (lease(ws, n, 1), at(50 + n));
        let entries = vec![entry(5, "last")];
        match n % 4 {
            0 => Op::Record(Record { lease, entries, now }),
            1 => {
                let outcome = match n % 3 {
                    0 => Err(Failure::app("no")),
                    _ => Ok(format!("{n}")),
                };
                Op::Finish(Finish { lease, entries, outcome, now })
            }
            2 => {
                let (wake_at, waits) = (at(900 + n), "[]".to_owned());
                Op::Suspend(Suspend { lease, entries, inbox: n % 3, wake_at, waits, now })
            }
            _ => Op::Finish(Finish { lease, entries: Vec::new(), outcome: Ok("1".into()), now }),
        }
    };
    (0..RUNS).map(one).collect()
}

/// Starts on the default queue, a parent's and some of its children's among them. The first to come
/// have deduplication ids, some of them.
fn plain_starts(ws: &str, ids: std::ops::Range<i64>, is_first: bool) -> Vec<Op> {
    let input = if is_first { "1" } else { "2" };
    let one = |id: &str, claim| {
        let (workspace, input) = (ws.into(), input.into());
        Op::Start(Start { workspace, input, ..start(id, claim) })
    };
    let child = |n: i64| {
        let mut op = one(&id(n), n % 7 != 0);
        if let Op::Start(op) = &mut op {
            op.parent = if n % 12 == 8 { "parent".into() } else { String::new() };
            op.dedupe_id = if is_first && n % 3 == 0 { format!("d{n}") } else { String::new() };
        }
        op
    };
    ids.map(child).chain([one("parent", true)]).collect()
}

/// Other starts, records and ends side by side, some of them under void leases.
fn plain_writes(ws: &str) -> Vec<Op> {
    let one = |n: i64| {
        let (lease, now) = (lease(ws, n, if n % 10 == 9 { 7 } else { 1 }), at(50 + n));
        let entries = (0..n.unsigned_abs() % 3).map(|step| entry(step, "ä")).collect();
        match n % 4 {
            0 => Op::Record(Record { lease, entries: vec![failed(0), entry(1, "x")], now }),
            1 => Op::Finish(Finish { lease, entries, outcome: Err(Failure::app("no")), now }),
            2 => Op::Start(Start { workspace: ws.into(), ..start(&id(RUNS + n), true) }),
            _ => Op::Finish(Finish { lease, entries, outcome: Ok(n.to_string()), now }),
        }
    };
    (0..RUNS).map(one).collect()
}

/// Ends, some of them under void leases.
fn plain_ends(ws: &str) -> Vec<Op> {
    let one = |n: i64| {
        let (lease, now) = (lease(ws, n, if n % 10 == 4 { 7 } else { 1 }), at(90 + n));
        let entries = vec![entry(5, "last"), failed(6)];
        Op::Finish(Finish { lease, entries, outcome: Ok(n.to_string()), now })
    };
    (0..2 * RUNS).map(one).collect()
}

async fn one_by_one(store: &OpenStore, ops: Vec<Op>) -> Vec<Reply> {
    let mut replies = Vec::new();
    for op in ops {
        replies.push(store.call(op).await.unwrap());
    }
    replies
}

async fn at_once(store: &OpenStore, ops: Vec<Op>) -> Vec<Reply> {
    let calls = ops.into_iter().map(|op| store.call(op));
    join_all(calls).await.into_iter().map(Result::unwrap).collect()
}

/// The tables of a workspace.
async fn tables(store: &OpenStore, ws: &str) -> (Vec<RunRow>, Vec<Vec<StepRecord>>) {
    let filter = RunFilter::default();
    let list = ListRuns { workspace: ws.into(), filter, after: None, limit: 1000, now: at(0) };
    let runs = store.ask(list).await.unwrap().runs;
    let mut steps = Vec::new();
    for run in &runs {
        let (workspace, run_id) = (ws.to_owned(), run.run_id.clone());
        steps.push(store.ask(ListSteps { workspace, run_id, from: 0, limit: 50 }).await.unwrap().0);
    }
    (runs, steps)
}

/// What is done in a workspace.
type Phase<'a> = &'a dyn Fn(&str) -> Vec<Op>;

fn without_workspace(replies: &[Reply]) -> Vec<String> {
    replies
        .iter()
        .map(|r| format!("{r:?}").replace("\"alone\"", "").replace("\"crowd\"", ""))
        .collect()
}

/// Carries a phase out one by one, and at once, with the same replies and tables. Gives the
/// replies, and what either has cost.
async fn compare(store: &OpenStore, phase: Phase<'_>) -> (Vec<Reply>, [Tally; 2]) {
    let before = store.tally();
    let alone = one_by_one(store, phase("alone")).await;
    let between = store.tally();
    let crowd = at_once(store, phase("crowd")).await;
    let costs = [between.since(before), store.tally().since(between)];
    assert_eq!(without_workspace(&alone), without_workspace(&crowd));
    assert_eq!(tables(store, "alone").await, tables(store, "crowd").await);
    (alone, costs)
}

fn assert_met(replies: &[Reply], kinds: &[&str]) {
    for kind in kinds {
        let met = replies.iter().any(|reply| format!("{reply:?}").contains(kind));
        assert!(met, "no reply was {kind}");
    }
}

pub(super) async fn many_at_once_are_what_they_are_one_by_one(database: &Database) {
    let store = database.open().await;
    // Some first, so that the others meet ids that are taken.
    let phases: [Phase<'_>; 7] = [
        &|ws| starts(ws, |n| n % 6 == 0),
        &starts_again,
        &records,
        // All of it is there already.
        &records,
        &ends,
        &ends,
        &records,
    ];
    let (mut seen, mut statements) = (Vec::new(), Vec::new());
    for phase in phases {
        let (replies, costs) = compare(&store, phase).await;
        seen.extend(replies);
        statements.push(costs);
    }
    assert_met(&seen, &["Existing", "Conflict", "NoQueue", "Fenced", "Arrived", "Done"]);
    let runs = tables(&store, "crowd").await.0;
    assert!(runs.iter().any(|run| run.status == RunStatus::Error));
    // The first records are new: a few statements for all of them.
    let [alone, crowd] = statements[2];
    assert!(crowd.statements * 3 < alone.statements, "nothing was saved: {statements:?}");
}

/// The same for batches that Postgres writes by one statement, but for what is in its way: ids that
/// are taken, void leases, a parent that is to be told, records that are there already.
pub(super) async fn plain_batches_are_what_their_operations_are_one_by_one(database: &Database) {
    let phases: [Phase<'_>; 8] = [
        &|ws| plain_starts(ws, 0..RUNS, true).into_iter().step_by(5).collect(),
        &|ws| plain_starts(ws, 0..RUNS, false),
        &plain_writes,
        &plain_ends,
        &plain_writes,
        &plain_ends,
        // A default queue that was made is not open to all.
        &|ws| {
            let queue =
                QueueRow { name: DEFAULT_QUEUE.into(), paused: true, ..QueueRow::default() };
            vec![Op::PutQueue(PutQueue { workspace: ws.into(), queue, now: at(95) })]
        },
        &|ws| plain_starts(ws, 3 * RUNS..4 * RUNS, false),
    ];
    let mut seen = Vec::new();
    for phase in phases {
        // Where something was in the way, the long one is taken for a while; not by a new store.
        seen.extend(compare(&database.open().await, phase).await.0);
    }
    assert_met(&seen, &["Start(New(None))"]);
    assert_met(&seen, &["New", "Conflict", "Fenced", "Done"]);
    let runs = tables(&database.open().await, "crowd").await.0;
    let told = |run: &&RunRow| run.run_id == "parent" && run.inbox > 0;
    assert!(runs.iter().any(|run| told(&run)), "the parent was not told");
}

/// A batch that waits for somebody who is claiming some of its runs writes nothing of those, and
/// all of the others.
pub(super) async fn a_batch_is_fenced_by_who_claims_meanwhile(database: &Database) {
    let store = database.open().await;
    let begin = |n: i64| Op::Start(Start { workspace: "w".into(), ..start(&id(n), true) });
    at_once(&store, (0..40).map(begin).collect()).await;
    let claimer = database.postgres().await;
    let claim = "BEGIN; UPDATE run SET epoch = epoch + 1, worker = 'other' \
        WHERE run_id IN ('r000', 'r001', 'r002', 'r003', 'r004', 'r005')";
    claimer.batch_execute(claim).await.unwrap();
    let write = |n: i64| {
        let (lease, entries, now) = (lease("w", n, 1), vec![entry(0, "a"), entry(1, "b")], at(50));
        match n % 2 {
            0 => Op::Record(Record { lease, entries, now }),
            _ => Op::Finish(Finish { lease, entries, outcome: Ok("1".into()), now }),
        }
    };
    let new = (40..50).map(begin);
    let writes = at_once(&store, (0..40).map(write).chain(new).collect());
    let commits = async {
        // As long as this batch waits, whenever that begins.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        claimer.batch_execute("COMMIT").await.unwrap();
    };
    let (replies, ()) = futures::join!(writes, commits);
    let (runs, steps) = tables(&store, "w").await;
    for (run, steps) in runs.iter().zip(&steps) {
        let n: i64 = run.run_id.trim_start_matches('r').parse().unwrap();
        let reply = &replies[usize::try_from(n).unwrap()];
        let (is_new, is_fenced) = (n >= 40, n < 6);
        assert_eq!(steps.len(), if is_new || is_fenced { 0 } else { 2 }, "{n}: {reply:?}");
        assert_eq!(run.status == RunStatus::Success, !is_new && !is_fenced && n % 2 == 1, "{n}");
        let says = format!("{reply:?}");
        let wanted = [(is_new, "New"), (is_fenced, "Fenced"), (true, "Done")];
        let (_, wanted) = wanted.into_iter().find(|(applies, _)| *applies).unwrap();
        assert!(says.contains(wanted), "{n}: {says}");
    }
    assert_eq!(runs.len(), 50);
}

/// A child ends in the commit in which its parent suspends: whichever of them is taken to be first,
/// the parent learns of it.
pub(super) async fn a_parent_that_suspends_as_its_child_ends_is_woken(database: &Database) {
    let store = database.open().await;
    let (ws, now) = ("crowd", at(50));
    let parents = 0..RUNS / 2;
    let child = |n: i64| n + RUNS / 2;
    let begin = |n: i64| {
        let parent = if n < parents.end { String::new() } else { id(n - parents.end) };
        Op::Start(Start { workspace: ws.into(), parent, ..start(&id(n), true) })
    };
    at_once(&store, (0..RUNS).map(begin).collect()).await;
    let pair = |n: i64| {
        let (wake_at, waits) = (at(900), "[]".to_owned());
        let (lease_of_parent, entries) = (lease(ws, n, 1), vec![entry(0, "child")]);
        let parks = Suspend { lease: lease_of_parent, entries, inbox: 0, wake_at, waits, now };
        let (lease, outcome) = (lease(ws, child(n), 1), Ok("1".to_owned()));
        let ends = Finish { lease, entries: Vec::new(), outcome, now };
        [Op::Finish(ends), Op::Suspend(parks)]
    };
    let replies = at_once(&store, parents.clone().flat_map(pair).collect()).await;
    for (n, replies) in parents.zip(replies.chunks(2)) {
        let get = GetRun { workspace: ws.into(), run_id: id(n), now: at(0) };
        let parent = store.ask(get).await.unwrap().0.unwrap();
        assert_eq!(parent.inbox, 1, "{n}");
        match &replies[1] {
            Reply::Suspend(Suspended::Done) => assert_eq!(parent.wake_at, now, "{n}: sleeps on"),
            Reply::Suspend(Suspended::Arrived) => assert!(!parent.parked, "{n}"),
            other => panic!("{n}: {other:?}"),
        }
    }
}
