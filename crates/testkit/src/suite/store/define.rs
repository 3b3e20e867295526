//! Definitions of queues beside what operators change.

use steadfast_store::Store;
use steadfast_store::op::{
    DefineQueue, InspectQueue, ListQueues, QueueChange, QueueDefined, QueueRow, Start,
};

use super::kit::{Kit, at, ids, plain, secs};

super::table! {
    a_definition_creates_a_queue_and_is_kept_when_it_comes_again,
    what_an_operator_changed_outlasts_the_same_definition,
    another_definition_changes_what_differs_from_the_last_one,
    a_queue_that_an_operator_made_gets_what_a_definition_sets,
    both_the_definition_and_what_holds_are_shown,
    what_waits_follows_a_redefined_order,
}

async fn define(k: &Kit<'_>, queue: &QueueRow) -> QueueDefined {
    let (workspace, queue) = (k.ws.clone(), queue.clone());
    k.ask(DefineQueue { workspace, queue, now: at(0) }).await
}

async fn holds(k: &Kit<'_>) -> QueueRow {
    let mut all = k.ask(ListQueues { workspace: k.ws.clone() }).await.0;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Every limit set to something.
fn limited() -> QueueRow {
    QueueRow {
        concurrency: Some(5),
        worker_concurrency: Some(3),
        rate: Some((7, secs(60))),
        priorities: true,
        ..plain("q")
    }
}

async fn a_definition_creates_a_queue_and_is_kept_when_it_comes_again(store: &dyn Store) {
    let k = Kit::new(store);
    for change in [QueueChange::Created, QueueChange::Kept, QueueChange::Kept] {
        assert_eq!(define(&k, &limited()).await, QueueDefined { change, queue: limited() });
        assert_eq!(holds(&k).await, limited());
    }
}

async fn what_an_operator_changed_outlasts_the_same_definition(store: &dyn Store) {
    let k = Kit::new(store);
    define(&k, &limited()).await;
    let changes = [
        QueueRow { paused: true, ..limited() },
        QueueRow { concurrency: Some(1), ..limited() },
        QueueRow { concurrency: None, rate: None, priorities: false, ..limited() },
        QueueRow { worker_concurrency: None, partitioned: true, ..limited() },
    ];
    for queue in changes {
        k.put(queue.clone()).await;
        let kept = QueueDefined { change: QueueChange::Kept, queue: queue.clone() };
        assert_eq!(define(&k, &limited()).await, kept);
        assert_eq!(holds(&k).await, queue);
    }
    // Code that pauses its queue, and an operator who lets it go on.
    let pausing = QueueRow { paused: true, ..limited() };
    define(&k, &pausing).await;
    assert!(holds(&k).await.paused);
    k.put(limited()).await;
    define(&k, &pausing).await;
    assert!(!holds(&k).await.paused);
}

async fn another_definition_changes_what_differs_from_the_last_one(store: &dyn Store) {
    let k = Kit::new(store);
    define(&k, &limited()).await;
    k.put(QueueRow { paused: true, concurrency: Some(1), ..limited() }).await;
    let changed = QueueRow { worker_concurrency: Some(9), ..limited() };
    let queue = QueueRow { paused: true, concurrency: Some(1), ..changed.clone() };
    let redefined = QueueDefined { change: QueueChange::Redefined, queue: queue.clone() };
    assert_eq!(define(&k, &changed).await, redefined);
    assert_eq!(holds(&k).await, queue);
    // Each other field, one at a time; what the operator set goes when the code says otherwise.
    let mut last = changed;
    let steps: [fn(&mut QueueRow); 5] = [
        |queue| queue.concurrency = Some(6),
        |queue| queue.rate = None,
        |queue| queue.priorities = false,
        |queue| queue.partitioned = true,
        |queue| queue.worker_concurrency = None,
    ];
    let mut expected = queue;
    for step in steps {
        step(&mut last);
        step(&mut expected);
        assert_eq!(define(&k, &last).await.queue, expected);
        assert_eq!(holds(&k).await, expected);
    }
    assert!(expected.paused, "no definition has said anything of it");
}

async fn a_queue_that_an_operator_made_gets_what_a_definition_sets(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(QueueRow { paused: true, concurrency: Some(1), rate: Some((1, secs(1))), ..plain("q") })
        .await;
    let defined = QueueRow { concurrency: Some(5), ..plain("q") };
    let queue = QueueRow { paused: true, rate: Some((1, secs(1))), ..defined.clone() };
    let redefined = QueueDefined { change: QueueChange::Redefined, queue: queue.clone() };
    assert_eq!(define(&k, &defined).await, redefined);
    assert_eq!(holds(&k).await, queue);
}

async fn both_the_definition_and_what_holds_are_shown(store: &dyn Store) {
    let k = Kit::new(store);
    let inspect = || {
        let (workspace, queue) = (k.ws.clone(), "q".to_owned());
        InspectQueue { workspace, queue, partition: String::new(), now: at(1) }
    };
    k.put(plain("q")).await;
    let shown = k.ask(inspect()).await;
    assert_eq!((shown.queue, shown.defined), (Some(plain("q")), None));
    define(&k, &limited()).await;
    let by_hand = QueueRow { concurrency: Some(1), rate: None, ..limited() };
    k.put(by_hand.clone()).await;
    let shown = k.ask(inspect()).await;
    assert_eq!((shown.queue, shown.defined), (Some(by_hand), Some(limited())));
}

/// R87
async fn what_waits_follows_a_redefined_order(store: &dyn Store) {
    let k = Kit::new(store);
    define(&k, &plain("q")).await;
    for (run, priority) in [("a", 2), ("b", 1)] {
        k.started(Start { priority, ..k.on("q", run) }).await;
    }
    define(&k, &QueueRow { priorities: true, ..plain("q") }).await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 1)).await.runs), ["b", "a"]);
}
