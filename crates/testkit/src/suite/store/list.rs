//! Lists: every filter equals a brute-force filter, every cursor walks everything once.

use steadfast_core::{RunStatus, Timestamp};
use steadfast_store::Store;
use steadfast_store::op::{
    Cancel, Fork, GetEnds, ListRuns, QueueRow, RunFilter, RunPage, RunRow, Start,
};

use super::kit::{Kit, at, ids, plain};
use crate::model::matches;

super::table! {
    runs_are_listed_newest_first_and_ties_by_id,
    a_cursor_walks_every_run_once,
    a_cursor_is_not_disturbed_by_newer_runs,
    a_page_is_never_larger_than_asked,
    every_filter_equals_a_brute_force_filter,
    a_filter_by_prefix_takes_wildcards_literally,
    a_list_of_nothing_is_empty,
    of_some_runs_those_that_are_over_are_told,
    workspaces_never_see_each_other,
    a_queue_belongs_to_its_workspace,
}

fn list(k: &Kit<'_>, filter: RunFilter, limit: usize) -> ListRuns {
    ListRuns { workspace: k.ws.clone(), filter, after: None, limit, now: at(0) }
}

async fn walk(k: &Kit<'_>, filter: RunFilter, limit: usize) -> Vec<RunRow> {
    let (mut runs, mut after) = (Vec::new(), None);
    loop {
        let asked = ListRuns { after, ..list(k, filter.clone(), limit) };
        let RunPage { runs: page, next } = k.ask(asked).await;
        assert!(page.len() <= limit);
        assert!(next.is_none() || page.len() == limit, "a page that is not last is full");
        runs.extend(page);
        match next {
            Some(next) => after = Some(next),
            None => return runs,
        }
    }
}

async fn runs_are_listed_newest_first_and_ties_by_id(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, now) in [("b", 1), ("a", 2), ("d", 1), ("c", 2)] {
        k.started(Start { now: at(now), ..k.start(id) }).await;
    }
    let page = k.ask(list(&k, RunFilter::default(), 10)).await;
    assert_eq!((ids(&page.runs), page.next), (vec!["c", "a", "d", "b"], None));
}

async fn of_some_runs_those_that_are_over_are_told(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["a", "b", "c", "d"] {
        k.started(k.start(id)).await;
    }
    for id in ["d", "b"] {
        let reason = steadfast_core::Error::app("enough");
        let cancel = Cancel { workspace: k.ws.clone(), run_id: id.to_owned(), reason, now: at(5) };
        k.ask(cancel).await;
    }
    let ends = |of: &[&str]| GetEnds {
        workspace: k.ws.clone(),
        run_ids: of.iter().map(|id| (*id).to_owned()).collect(),
        now: at(0),
    };
    let over = k.ask(ends(&["d", "a", "b", "nobody", "b"])).await.0;
    assert_eq!(ids(&over), ["b", "d"]);
    assert!(over.iter().all(|run| run.finished_at == Some(at(5))));
    assert_eq!(k.ask(ends(&["a"])).await.0, []);
    assert_eq!(k.ask(ends(&[])).await.0, []);
}

async fn a_cursor_walks_every_run_once(store: &dyn Store) {
    let k = Kit::new(store);
    for i in 0..23i64 {
        k.started(Start { now: at(i / 5), ..k.start(&format!("r{i:02}")) }).await;
    }
    let whole = walk(&k, RunFilter::default(), 1000).await;
    assert_eq!(whole.len(), 23);
    for limit in [1, 2, 5, 22, 23, 24] {
        assert_eq!(walk(&k, RunFilter::default(), limit).await, whole, "pages of {limit}");
    }
}

async fn a_cursor_is_not_disturbed_by_newer_runs(store: &dyn Store) {
    let k = Kit::new(store);
    for i in 0..4 {
        k.started(Start { now: at(i), ..k.start(&format!("r{i}")) }).await;
    }
    let first = k.ask(list(&k, RunFilter::default(), 2)).await;
    k.started(Start { now: at(9), ..k.start("newer") }).await;
    let after = first.next.clone();
    let second = k.ask(ListRuns { after, ..list(&k, RunFilter::default(), 2) }).await;
    assert_eq!((ids(&first.runs), ids(&second.runs)), (vec!["r3", "r2"], vec!["r1", "r0"]));
    assert_eq!(second.next, None);
}

async fn a_page_is_never_larger_than_asked(store: &dyn Store) {
    let k = Kit::new(store);
    for i in 0..3 {
        k.started(k.start(&format!("r{i}"))).await;
    }
    assert_eq!(k.ask(list(&k, RunFilter::default(), 2)).await.runs.len(), 2);
    assert_eq!(k.ask(list(&k, RunFilter::default(), 1)).await.runs.len(), 1);
}

/// Runs of all statuses, several queues, versions, parents and forks.
async fn varied(k: &Kit<'_>) {
    k.put(plain("mail")).await;
    for i in 0..24u32 {
        let queue = if i % 3 == 0 { "mail" } else { "default" };
        let mut start =
            k.on(queue, &format!("{}{i:02}", if i % 2 == 0 { "even-" } else { "Odd-" }));
        start.workflow = if i % 5 == 0 { "refund" } else { "ship_order" }.to_owned();
        start.app_version = ["", "v1", "v2"][(i % 3) as usize].to_owned();
        start.parent = if i % 4 == 0 { "even-00" } else { "" }.to_owned();
        start.max_attempts = 0;
        start.now = at(i64::from(i / 2));
        let id = start.run_id.clone();
        match i % 6 {
            0 => k.started(start).await,
            1 => drop(k.owned_by(start, "w1").await),
            2 => drop(k.finish(&k.owned_by(start, "w1").await).await),
            3 => drop(k.fail(&k.owned_by(start, "w1").await).await),
            4 => {
                k.started(start).await;
                k.cancel(&id).await;
            }
            _ => {
                let fork = Fork {
                    workspace: k.ws.clone(),
                    source: "even-00".to_owned(),
                    from_step: 0,
                    run_id: id,
                    input: None,
                    patches: Vec::new(),
                    app_version: Some("v2".to_owned()),
                    timeout: None,
                    seed: 1,
                    now: at(i64::from(i / 2)),
                };
                k.ask(fork).await;
            }
        }
    }
    k.ask(k.wake("w2", 61)).await;
}

/// One filter for each field at least, and some of several.
fn filters() -> Vec<RunFilter> {
    let filter = |set: fn(&mut RunFilter)| {
        let mut filter = RunFilter::default();
        set(&mut filter);
        filter
    };
    let text = |text: &str| Some(text.to_owned());
    let by_status = RunStatus::ALL
        .iter()
        .map(|status| RunFilter { status: vec![*status], ..RunFilter::default() });
    let by_text = ["refund", "REFUND", "mail", "even", "odd", "", "v2", "even-00"];
    let by_text = by_text.into_iter().flat_map(|value| {
        let fields: [fn(&mut RunFilter) -> &mut Option<String>; 6] = [
            |f| &mut f.workflow,
            |f| &mut f.queue,
            |f| &mut f.id_prefix,
            |f| &mut f.app_version,
            |f| &mut f.parent,
            |f| &mut f.forked_from,
        ];
        fields.map(|field| {
            let mut filter = RunFilter::default();
            *field(&mut filter) = text(value);
            filter
        })
    });
    let others = [
        filter(|f| f.status = vec![RunStatus::Error, RunStatus::Success]),
        filter(|f| f.status = RunStatus::ALL.to_vec()),
        filter(|f| f.created_from = Some(at(4))),
        filter(|f| f.created_to = Some(at(4))),
        filter(|f| (f.created_from, f.created_to) = (Some(at(3)), Some(at(9)))),
        filter(|f| f.created_from = Some(Timestamp::from_micros(i64::MIN))),
        filter(|f| {
            f.created_to = Some(Timestamp::NEVER);
            f.queue = Some("mail".to_owned());
        }),
        filter(|f| {
            f.status = vec![RunStatus::Enqueued, RunStatus::Cancelled];
            f.queue = Some("default".to_owned());
            f.id_prefix = Some("even-1".to_owned());
        }),
    ];
    by_status.chain(by_text).chain(others).collect()
}

async fn every_filter_equals_a_brute_force_filter(store: &dyn Store) {
    let k = Kit::new(store);
    varied(&k).await;
    let all = walk(&k, RunFilter::default(), 1000).await;
    assert_eq!(all.len(), 24);
    for filter in filters() {
        let expected: Vec<_> = all.iter().filter(|run| matches(&filter, run)).cloned().collect();
        for limit in [1000, 3] {
            let found = walk(&k, filter.clone(), limit).await;
            assert_eq!(ids(&found), ids(&expected), "{filter:?} in pages of {limit}");
        }
    }
}

async fn a_filter_by_prefix_takes_wildcards_literally(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["a%1", "a_1", "ab1", "a\\1", "a"] {
        k.started(k.start(id)).await;
    }
    for (prefix, expected) in [("a%", vec!["a%1"]), ("a_", vec!["a_1"]), ("a\\", vec!["a\\1"])] {
        let filter = RunFilter { id_prefix: Some(prefix.to_owned()), ..RunFilter::default() };
        assert_eq!(ids(&walk(&k, filter, 10).await), expected, "{prefix}");
    }
}

async fn a_list_of_nothing_is_empty(store: &dyn Store) {
    let k = Kit::new(store);
    let page = k.ask(list(&k, RunFilter::default(), 10)).await;
    assert_eq!(page, RunPage { runs: Vec::new(), next: None });
    assert_eq!(k.load("nowhere").await.inbox, 0);
    assert_eq!(k.steps("nowhere").await, []);
}

async fn a_queue_belongs_to_its_workspace(store: &dyn Store) {
    let (mine, other) = (Kit::new(store), Kit::new(store));
    for k in [&mine, &other] {
        k.put(plain("q")).await;
        k.started(k.on("q", "r")).await;
    }
    other.put(QueueRow { paused: true, ..plain("q") }).await;
    assert_eq!(other.ask(other.dequeue("q", "w1", 1)).await.runs, []);
    assert_eq!(ids(&mine.ask(mine.dequeue("q", "w1", 1)).await.runs), ["r"]);
}

async fn workspaces_never_see_each_other(store: &dyn Store) {
    let (mine, other) = (Kit::new(store), Kit::new(store));
    let dedupe = |k: &Kit<'_>| Start { dedupe_id: "d".to_owned(), ..k.start("r") };
    mine.put(plain("q")).await;
    let lease = mine.owned_by(dedupe(&mine), "box#1").await;
    mine.record(&lease, vec![super::kit::entry(super::kit::done(0, "a", "1"))]).await;
    mine.signal("r", "paid", "s1").await;
    assert_eq!(other.find("r").await, None);
    assert_eq!(other.ask(other.on("q", "x")).await, steadfast_store::op::Started::NoQueue);
    other.started(dedupe(&other)).await;
    assert_eq!(other.load("r").await.signals, []);
    assert_eq!(other.steps("r").await, []);
    assert_eq!(other.ask(other.wake("w2", 900)).await.runs, []);
    let take = steadfast_store::op::TakeOver {
        workspace: other.ws.clone(),
        name: "box".to_owned(),
        worker: "box#2".to_owned(),
        now: at(5),
    };
    assert_eq!(other.ask(take).await.runs, 0);
    assert_eq!(ids(&other.ask(other.dequeue("default", "w2", 5)).await.runs), ["r"]);
    other.cancel("r").await;
    assert_eq!(mine.status("r").await, RunStatus::Pending);
    assert_eq!(mine.finish(&lease).await, steadfast_store::op::Written::Done);
}
