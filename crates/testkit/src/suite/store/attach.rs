//! What is written together with a record: children, values, items of streams.

use steadfast_core::RunStatus;
use steadfast_store::Store;
use steadfast_store::op::{Entry, GetValue, Load, ReadStream, Start, StreamPage, With, Written};

use super::kit::{Kit, at, done, entry, ids, with};

super::table! {
    a_child_is_started_with_its_record,
    a_child_that_exists_is_attached_to,
    a_run_of_another_parent_is_not_taken_for_a_child,
    a_child_whose_id_is_taken_refuses_the_record,
    a_child_on_an_unknown_queue_refuses_the_record,
    a_child_whose_deduplication_id_is_taken_refuses_the_record,
    the_end_of_a_child_wakes_its_parent,
    a_load_names_the_children_that_are_over,
    a_value_is_published_and_replaced,
    a_stream_is_read_in_order_and_ends,
    a_stream_ends_with_its_run,
}

fn spawn(id: u64, child: Start) -> Entry {
    let mut record = done(id, "spawn", "null");
    record.child = Some(child.run_id.clone());
    with(record, With::Spawn(Box::new(child)))
}

/// R78
async fn a_child_is_started_with_its_record(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let child = Start { parent: "r".to_owned(), ..k.start("kid") };
    assert_eq!(k.record(&lease, vec![spawn(0, child)]).await, Written::Done);
    let kid = k.get("kid").await;
    assert_eq!((kid.status, kid.parent.as_str()), (RunStatus::Enqueued, "r"));
    assert_eq!(k.steps("r").await[0].child.as_deref(), Some("kid"));
}

/// R78
async fn a_child_that_exists_is_attached_to(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let child = || Start { parent: "r".to_owned(), ..k.start("kid") };
    k.started(child()).await;
    assert_eq!(k.record(&lease, vec![spawn(0, child())]).await, Written::Done);
    assert_eq!(k.get("kid").await.parent, "r");
}

/// Only its own parent is told of a child's end: a foreign one would wait for ever.
async fn a_run_of_another_parent_is_not_taken_for_a_child(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("kid")).await;
    refuses(&k, Start { parent: "r".to_owned(), ..k.start("kid") }).await;
    assert_eq!(k.get("kid").await.parent, "");
}

async fn refuses(k: &Kit<'_>, child: Start) {
    let lease = k.owned("r").await;
    let reply = k.record(&lease, vec![spawn(0, child)]).await;
    assert!(matches!(reply, Written::Refused(_)), "{reply:?}");
    assert_eq!(k.steps("r").await, []);
}

/// X10
async fn a_child_whose_id_is_taken_refuses_the_record(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("kid")).await;
    refuses(&k, Start { workflow: "refund".to_owned(), ..k.start("kid") }).await;
}

async fn a_child_on_an_unknown_queue_refuses_the_record(store: &dyn Store) {
    let k = Kit::new(store);
    refuses(&k, k.on("nowhere", "kid")).await;
}

async fn a_child_whose_deduplication_id_is_taken_refuses_the_record(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(Start { dedupe_id: "d".to_owned(), ..k.start("first") }).await;
    refuses(&k, Start { dedupe_id: "d".to_owned(), ..k.start("kid") }).await;
    assert_eq!(k.find("kid").await, None);
}

async fn the_end_of_a_child_wakes_its_parent(store: &dyn Store) {
    let k = Kit::new(store);
    let parent = k.owned("r").await;
    let child = |id: &str| Start { parent: "r".to_owned(), max_attempts: 0, ..k.start(id) };
    let first = k.owned_by(child("a"), "w2").await;
    k.suspend(&parent, 0).await;
    k.finish(&first).await;
    let woken = k.ask(k.wake("w1", 6)).await;
    assert_eq!((ids(&woken.runs), woken.runs[0].inbox), (vec!["r"], 1));
    let second = k.owned_by(child("b"), "w2").await;
    k.fail(&second).await;
    k.owned_by(child("c"), "w2").await;
    k.cancel("c").await;
    let late = Start { max_attempts: 0, ..child("d") };
    k.owned_by(late, "w2").await;
    k.ask(k.wake("w9", 60)).await;
    assert_eq!(k.get("r").await.inbox, 4, "success, failure, cancel, exhaustion");
}

async fn a_load_names_the_children_that_are_over(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["a", "b", "c"] {
        let lease = k.owned(id).await;
        if id != "b" {
            k.finish(&lease).await;
        }
    }
    let load = Load {
        workspace: k.ws.clone(),
        run_id: "r".to_owned(),
        now: at(0),
        children: ["c", "a", "b", "nowhere", "a"].map(str::to_owned).to_vec(),
        names: Vec::new(),
    };
    let lease = k.owned("r").await;
    k.record(&lease, vec![entry(done(0, "s", "1"))]).await;
    let loaded = k.ask(load).await;
    assert_eq!(ids(&loaded.over), ["a", "c"]);
    assert_eq!(loaded.over[0].output.as_deref(), Some("true"));
}

async fn a_value_is_published_and_replaced(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let value = async || {
        let (workspace, run_id, key) = (k.ws.clone(), "r".to_owned(), "progress".to_owned());
        k.ask(GetValue { workspace, run_id, key }).await.0
    };
    assert_eq!(value().await, None);
    for (id, percent) in [(0, "10"), (1, "80"), (2, "80")] {
        let publish = With::Publish { key: "progress".to_owned(), value: percent.to_owned() };
        k.record(&lease, vec![with(done(id, "publish", "null"), publish)]).await;
        assert_eq!(value().await.as_deref(), Some(percent));
    }
    k.finish(&lease).await;
    assert_eq!(value().await.as_deref(), Some("80"), "it outlives the run");
}

async fn appended(k: &Kit<'_>, lease: &steadfast_store::op::Lease, items: &[Option<&str>]) {
    let entries = (0..).zip(items).map(|(id, item)| {
        let append = With::Append { stream: "log".to_owned(), item: item.map(str::to_owned) };
        with(done(id, "append", "null"), append)
    });
    assert_eq!(k.record(lease, entries.collect()).await, Written::Done);
}

async fn page(k: &Kit<'_>, from: i64, limit: usize) -> (Vec<String>, bool) {
    let (workspace, run_id, stream) = (k.ws.clone(), "r".to_owned(), "log".to_owned());
    let StreamPage { items, closed } =
        k.ask(ReadStream { workspace, run_id, stream, from, limit }).await;
    (items, closed)
}

async fn a_stream_is_read_in_order_and_ends(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    appended(&k, &lease, &[Some("1"), Some("2"), Some("3"), None]).await;
    let texts = |items: &[&str]| items.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    assert_eq!(page(&k, 0, 2).await, (texts(&["1", "2"]), false));
    assert_eq!(page(&k, 2, 9).await, (texts(&["3"]), true));
    assert_eq!(page(&k, 0, 9).await, (texts(&["1", "2", "3"]), true));
}

async fn a_stream_ends_with_its_run(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    appended(&k, &lease, &[Some("1"), Some("2")]).await;
    assert!(!page(&k, 0, 9).await.1, "more may follow");
    k.finish(&lease).await;
    assert!(!page(&k, 0, 2).await.1, "a full page may have a successor");
    assert!(page(&k, 2, 2).await.1);
    assert!(page(&k, 0, 3).await.1);
}
