//! Partitions: limits and order per key, and fairness between keys.

use std::time::Duration;

use steadfast_store::Store;
use steadfast_store::op::{
    Dequeue, Fork, InspectQueue, ListQueues, QueueRow, Resume, SlotTaken, Start, TakeSlot,
};

use super::kit::{Kit, at, ids, plain};

super::table! {
    concurrency_applies_per_partition,
    a_rate_applies_per_partition,
    a_workers_limit_applies_per_partition,
    order_applies_per_partition,
    serving_goes_on_after_the_partition_served_last,
    runs_without_a_partition_are_a_partition_too,
    a_full_partition_does_not_hold_up_the_others,
    a_slot_belongs_to_a_partition,
    a_partition_does_not_count_on_a_queue_without_partitions,
    a_queue_that_loses_its_partitions_keeps_its_runs,
    a_resumed_run_is_found_although_its_queue_lost_its_partitions,
    a_forked_run_is_found_although_its_queue_lost_its_partitions,
    queues_are_listed_by_name_as_they_were_put,
}

async fn queue(k: &Kit<'_>, change: impl FnOnce(&mut QueueRow)) {
    let mut queue = QueueRow { partitioned: true, ..plain("q") };
    change(&mut queue);
    k.put(queue).await;
}

async fn filled(k: &Kit<'_>, runs: &[(&str, &str)]) {
    for (partition, id) in runs {
        k.started(Start { partition: (*partition).to_owned(), ..k.on("q", id) }).await;
    }
}

const SIX: &[(&str, &str)] =
    &[("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("c", "c1"), ("c", "c2")];

/// R88
async fn concurrency_applies_per_partition(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    filled(&k, SIX).await;
    let claimed = k.ask(k.dequeue("q", "w1", 1)).await;
    assert_eq!(ids(&claimed.runs), ["a1", "b1", "c1"]);
    assert_eq!(k.ask(k.dequeue("q", "w2", 1)).await.runs, []);
}

/// R88, R86
async fn a_rate_applies_per_partition(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.rate = Some((1, Duration::from_secs(10)))).await;
    filled(&k, SIX).await;
    assert_eq!(k.ask(k.dequeue("q", "w1", 1)).await.runs.len(), 3);
    let claimed = k.ask(k.dequeue("q", "w1", 10)).await;
    assert_eq!((claimed.runs.len(), claimed.next_at), (0, Some(at(11))));
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 11)).await.runs), ["a2", "b2", "c2"]);
}

/// R88, R84
async fn a_workers_limit_applies_per_partition(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.worker_concurrency = Some(1)).await;
    filled(&k, SIX).await;
    let has = vec![("a".to_owned(), 1), ("c".to_owned(), 0)];
    let dequeue = Dequeue { worker_has: has, ..k.dequeue("q", "w1", 1) };
    assert_eq!(ids(&k.ask(dequeue).await.runs), ["b1", "c1"]);
}

/// R88, R87
async fn order_applies_per_partition(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| (q.priorities, q.concurrency) = (true, Some(1))).await;
    for (partition, id, priority) in [("a", "a1", 5), ("a", "a2", 1), ("b", "b1", 9)] {
        let partition = partition.to_owned();
        k.started(Start { partition, priority, ..k.on("q", id) }).await;
    }
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 1)).await.runs), ["a2", "b1"]);
}

/// R88
async fn serving_goes_on_after_the_partition_served_last(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |_| ()).await;
    filled(&k, SIX).await;
    let mut order = Vec::new();
    let mut after = String::new();
    for _ in 0..6 {
        let one = Dequeue { limit: 1, after_partition: after, ..k.dequeue("q", "w1", 1) };
        let claimed = k.ask(one).await.runs;
        after = claimed[0].partition.clone();
        order.push(claimed[0].run_id.clone());
    }
    assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "c2"], "a full key does not starve others");
}

/// R88
async fn runs_without_a_partition_are_a_partition_too(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    filled(&k, &[("", "n1"), ("", "n2"), ("a", "a1")]).await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 1)).await.runs), ["a1", "n1"]);
    let next = Dequeue { after_partition: "a".to_owned(), ..k.dequeue("q", "w1", 1) };
    assert_eq!(k.ask(next).await.runs, []);
}

/// R88
async fn a_full_partition_does_not_hold_up_the_others(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    filled(&k, &[("a", "a1")]).await;
    k.ask(k.dequeue("q", "w1", 1)).await;
    filled(&k, &[("a", "a2"), ("a", "a3"), ("b", "b1")]).await;
    let one = Dequeue { limit: 1, ..k.dequeue("q", "w2", 2) };
    assert_eq!(ids(&k.ask(one).await.runs), ["b1"]);
}

/// R88
async fn a_slot_belongs_to_a_partition(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| q.concurrency = Some(1)).await;
    let lease = k.owned("r").await;
    let take = |step, partition: &str| TakeSlot {
        lease: lease.clone(),
        step,
        queue: "q".to_owned(),
        partition: partition.to_owned(),
        lease_until: at(60),
        now: at(1),
    };
    assert_eq!(k.ask(take(1, "a")).await, SlotTaken::Done);
    assert_eq!(k.ask(take(2, "b")).await, SlotTaken::Done);
    assert_eq!(k.ask(take(3, "a")).await, SlotTaken::Full { until: Some(at(60)) });
    let (workspace, partition) = (k.ws.clone(), "a".to_owned());
    let inspect = InspectQueue { workspace, queue: "q".to_owned(), partition, now: at(2) };
    assert_eq!(k.ask(inspect).await.held, 1);
}

async fn a_partition_does_not_count_on_a_queue_without_partitions(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |q| (q.partitioned, q.concurrency) = (false, Some(2))).await;
    filled(&k, SIX).await;
    assert_eq!(k.get("a1").await.partition, "");
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 1)).await.runs), ["a1", "a2"]);
}

async fn a_queue_that_loses_its_partitions_keeps_its_runs(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |_| ()).await;
    filled(&k, SIX).await;
    k.put(QueueRow { partitioned: true, ..plain("other") }).await;
    k.started(Start { partition: "a".to_owned(), ..k.on("other", "o") }).await;
    queue(&k, |q| q.partitioned = false).await;
    assert_eq!(k.ask(k.dequeue("q", "w1", 1)).await.runs.len(), 6);
    assert_eq!(k.get("o").await.partition, "a", "another queue keeps its partitions");
}

async fn a_resumed_run_is_found_although_its_queue_lost_its_partitions(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |_| ()).await;
    filled(&k, &[("a", "r")]).await;
    k.cancel("r").await;
    queue(&k, |q| q.partitioned = false).await;
    k.ask(Resume { workspace: k.ws.clone(), run_id: "r".to_owned(), now: at(9) }).await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 10)).await.runs), ["r"]);
}

async fn a_forked_run_is_found_although_its_queue_lost_its_partitions(store: &dyn Store) {
    let k = Kit::new(store);
    queue(&k, |_| ()).await;
    filled(&k, &[("a", "r")]).await;
    k.cancel("r").await;
    queue(&k, |q| q.partitioned = false).await;
    let fork = Fork {
        workspace: k.ws.clone(),
        source: "r".to_owned(),
        from_step: 0,
        run_id: "f".to_owned(),
        input: None,
        patches: Vec::new(),
        app_version: None,
        timeout: None,
        seed: 1,
        now: at(9),
    };
    k.ask(fork).await;
    assert_eq!(ids(&k.ask(k.dequeue("q", "w1", 10)).await.runs), ["f"]);
}

async fn queues_are_listed_by_name_as_they_were_put(store: &dyn Store) {
    let k = Kit::new(store);
    let full = QueueRow {
        name: "b".to_owned(),
        concurrency: Some(i64::MAX),
        worker_concurrency: Some(0),
        rate: Some((5, Duration::from_micros(1_500_001))),
        priorities: true,
        partitioned: true,
        paused: true,
    };
    k.put(plain("c")).await;
    k.put(full.clone()).await;
    k.put(plain("B")).await;
    k.put(QueueRow { concurrency: Some(1), ..plain("a") }).await;
    k.put(plain("a")).await;
    let listed = k.ask(ListQueues { workspace: k.ws.clone() }).await.0;
    assert_eq!(listed, [plain("B"), plain("a"), full, plain("c")]);
}
