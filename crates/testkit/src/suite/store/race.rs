//! Races: many requests at once, where a store that counts and then writes goes wrong.
//!
//! Invariants: these cases prove little on a store that serves one request at a time, and must hold
//! on it all the same.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join;
use steadfast_core::RunStatus;
use steadfast_store::Store;
use steadfast_store::op::{
    Cancelled, Debounce, Debounced, Dequeue, QueueRow, Signalled, SlotTaken, Start, Started,
    Suspended, TakeSlot, Wake, With, Written,
};

use super::kit::{Kit, at, done, plain, with};

super::table! {
    one_of_many_starts_of_an_id_is_new,
    one_of_many_starts_with_a_deduplication_id_wins,
    many_debounced_calls_make_one_run,
    many_claimers_never_get_the_same_run,
    many_claimers_never_pass_a_concurrency_limit,
    many_claimers_never_pass_a_limit_per_partition,
    many_claimers_never_pass_a_rate,
    many_takers_never_pass_the_limit_of_slots,
    many_recoverers_never_get_the_same_run,
    many_signals_are_all_kept_in_one_order,
    one_of_many_signals_with_an_id_is_accepted,
    a_signal_and_a_suspension_at_once_lose_nothing,
    an_end_and_a_cancel_at_once_have_one_winner,
    a_recovery_and_an_end_at_once_have_one_winner,
    children_that_end_at_once_are_all_counted,
    two_runs_that_send_to_each_other_both_get_through,
}

async fn one_of_many_starts_of_an_id_is_new(store: &dyn Store) {
    let k = Kit::new(store);
    let starts = (0..16).map(|seed| Start { seed, ..k.start("r") }).collect();
    let replies = k.ask_all(starts).await;
    assert_eq!(replies.iter().filter(|r| **r == Started::New(None)).count(), 1, "{replies:?}");
    let existing = Started::Existing(RunStatus::Enqueued);
    assert_eq!(replies.iter().filter(|r| **r == existing).count(), 15, "{replies:?}");
}

async fn one_of_many_starts_with_a_deduplication_id_wins(store: &dyn Store) {
    let k = Kit::new(store);
    let start = |i| Start { dedupe_id: "d".to_owned(), ..k.start(&format!("r{i}")) };
    let replies = k.ask_all((0..16).map(start).collect()).await;
    assert_eq!(replies.iter().filter(|r| **r == Started::New(None)).count(), 1, "{replies:?}");
    assert_eq!(k.ask(k.dequeue("default", "w1", 1)).await.runs.len(), 1);
}

async fn many_debounced_calls_make_one_run(store: &dyn Store) {
    let k = Kit::new(store);
    let call = |i| {
        let start = Start { seed: i, ..k.start(&format!("r{i}")) };
        Debounce { start, key: "d".to_owned(), max_wait: None }
    };
    let replies = k.ask_all((0..16).map(call).collect()).await;
    assert_eq!(replies.iter().filter(|r| **r == Debounced::New).count(), 1, "{replies:?}");
    let replaced = |r: &&Debounced| matches!(r, Debounced::Replaced(_));
    assert_eq!(replies.iter().filter(replaced).count(), 15, "{replies:?}");
    assert_eq!(k.ask(k.dequeue("default", "w1", 1)).await.runs.len(), 1);
}

async fn filled(k: &Kit<'_>, queue: QueueRow, runs: usize) {
    let (name, partitioned) = (queue.name.clone(), queue.partitioned);
    k.put(queue).await;
    let start = |i: usize| {
        let partition = if partitioned { format!("p{}", i % 3) } else { String::new() };
        Start { partition, ..k.on(&name, &format!("r{i:03}")) }
    };
    k.ask_all((0..runs).map(start).collect()).await;
}

/// Many workers dequeue at once, again and again until the queue gives nothing.
async fn grab(k: &Kit<'_>, limit: usize, now: i64) -> Vec<String> {
    let mut got = Vec::new();
    loop {
        let dequeue = |w| Dequeue { limit, ..k.dequeue("q", &format!("w{w}"), now) };
        let claimed = k.ask_all((0..8).map(dequeue).collect()).await;
        let round: Vec<_> = claimed.into_iter().flat_map(|c| c.runs).collect();
        if round.is_empty() {
            return got;
        }
        got.extend(round.into_iter().map(|run| run.run_id));
    }
}

/// R91
async fn many_claimers_never_get_the_same_run(store: &dyn Store) {
    let k = Kit::new(store);
    filled(&k, plain("q"), 60).await;
    let got = grab(&k, 4, 1).await;
    assert_eq!(got.len(), 60);
    assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), 60);
    assert_eq!(k.get("r000").await.epoch, 1);
}

/// R85
async fn many_claimers_never_pass_a_concurrency_limit(store: &dyn Store) {
    let k = Kit::new(store);
    filled(&k, QueueRow { concurrency: Some(5), ..plain("q") }, 40).await;
    assert_eq!(grab(&k, 3, 1).await.len(), 5);
}

/// R85, R88
async fn many_claimers_never_pass_a_limit_per_partition(store: &dyn Store) {
    let k = Kit::new(store);
    let queue = QueueRow { concurrency: Some(2), partitioned: true, ..plain("q") };
    filled(&k, queue, 30).await;
    assert_eq!(grab(&k, 3, 1).await.len(), 6);
}

/// R86
async fn many_claimers_never_pass_a_rate(store: &dyn Store) {
    let k = Kit::new(store);
    let rate = Some((7, Duration::from_secs(10)));
    filled(&k, QueueRow { rate, ..plain("q") }, 40).await;
    assert_eq!(grab(&k, 3, 1).await.len(), 7);
    assert_eq!(grab(&k, 3, 10).await.len(), 0);
    assert_eq!(grab(&k, 3, 11).await.len(), 7);
}

/// R85
async fn many_takers_never_pass_the_limit_of_slots(store: &dyn Store) {
    let k = Kit::new(store);
    k.put(QueueRow { concurrency: Some(3), ..plain("q") }).await;
    let mut takes = Vec::new();
    for i in 0..12 {
        let lease = k.owned(&format!("r{i}")).await;
        takes.push(TakeSlot {
            lease,
            step: 1,
            queue: "q".to_owned(),
            partition: String::new(),
            lease_until: at(60),
            now: at(1),
        });
    }
    let replies = k.ask_all(takes).await;
    assert_eq!(replies.iter().filter(|r| **r == SlotTaken::Done).count(), 3, "{replies:?}");
}

/// R91
async fn many_recoverers_never_get_the_same_run(store: &dyn Store) {
    let k = Kit::new(store);
    for i in 0..24 {
        k.owned(&format!("r{i:02}")).await;
    }
    let mut got = Vec::new();
    for _ in 0..8 {
        let wake = |w| Wake { limit: 3, ..k.wake(&format!("w{w}"), 100) };
        let claimed = k.ask_all((0..8).map(wake).collect()).await;
        got.extend(claimed.into_iter().flat_map(|c| c.runs));
    }
    assert_eq!(got.len(), 24);
    assert!(got.iter().all(|run| run.epoch == 2 && run.attempts == 2));
}

async fn many_signals_are_all_kept_in_one_order(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.suspend(&lease, 0).await;
    let signals = (0..24).map(|i| k.signal_op("r", "s", &format!("s{i}"))).collect();
    let replies = k.ask_all(signals).await;
    assert!(replies.iter().all(|r| *r == Signalled::Accepted), "{replies:?}");
    let loaded = k.load("r").await;
    let seqs: BTreeSet<_> = loaded.signals.iter().map(|s| s.seq).collect();
    assert_eq!((seqs.len(), loaded.inbox), (24, 24));
}

async fn one_of_many_signals_with_an_id_is_accepted(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    let replies = k.ask_all((0..12).map(|_| k.signal_op("r", "s", "same")).collect()).await;
    assert_eq!(replies.iter().filter(|r| **r == Signalled::Accepted).count(), 1, "{replies:?}");
    assert_eq!(k.load("r").await.signals.len(), 1);
}

/// Whoever commits first, the run ends up awake or due.
async fn a_signal_and_a_suspension_at_once_lose_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    for i in 0..12 {
        let id = format!("r{i:02}");
        let lease = k.owned(&id).await;
        let (suspended, sent) = join(k.suspend(&lease, 0), k.signal(&id, "s", "s1")).await;
        assert_eq!(sent, Signalled::Accepted);
        let run = k.get(&id).await;
        match suspended {
            Suspended::Arrived => assert!(!run.parked && run.worker == "w1"),
            Suspended::Done => assert!(run.parked && run.wake_at <= at(4), "{run:?}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(k.load(&id).await.signals.len(), 1);
    }
}

async fn an_end_and_a_cancel_at_once_have_one_winner(store: &dyn Store) {
    let k = Kit::new(store);
    for i in 0..12 {
        let id = format!("r{i}");
        let lease = k.owned(&id).await;
        match join(k.finish(&lease), k.cancel(&id)).await {
            (Written::Done, Cancelled::AlreadyOver(RunStatus::Success)) => {
                assert_eq!(k.status(&id).await, RunStatus::Success);
            }
            (Written::Fenced, Cancelled::Done(_)) => {
                assert_eq!(k.status(&id).await, RunStatus::Cancelled);
            }
            both => panic!("two winners or none: {both:?}"),
        }
    }
}

/// X14
async fn a_recovery_and_an_end_at_once_have_one_winner(store: &dyn Store) {
    let k = Kit::new(store);
    for i in 0..12 {
        let id = format!("r{i}");
        let lease = k.owned(&id).await;
        let (ended, claimed) = join(k.finish(&lease), k.ask(k.wake("w2", 60))).await;
        match (ended, claimed.runs.len()) {
            (Written::Done, 0) => assert_eq!(k.status(&id).await, RunStatus::Success),
            (Written::Fenced, 1) => {
                assert_eq!(k.finish(&k.lease_of(&claimed)).await, Written::Done);
            }
            both => panic!("two winners or none: {both:?}"),
        }
    }
}

async fn children_that_end_at_once_are_all_counted(store: &dyn Store) {
    let k = Kit::new(store);
    let parent = k.owned("p").await;
    let mut ends = Vec::new();
    for i in 0..12 {
        let start = Start { parent: "p".to_owned(), ..k.start(&format!("c{i}")) };
        let lease = k.owned_by(start, "w1").await;
        ends.push(k.finish_op(&lease, "true"));
    }
    k.suspend(&parent, 0).await;
    let replies = k.ask_all(ends).await;
    assert!(replies.iter().all(|r| *r == Written::Done), "{replies:?}");
    let run = k.get("p").await;
    assert_eq!((run.inbox, run.wake_at), (12, at(5)));
}

/// Two transactions that lock the same two runs in opposite order.
async fn two_runs_that_send_to_each_other_both_get_through(store: &dyn Store) {
    let k = Kit::new(store);
    let (a, b) = (k.owned("a").await, k.owned("b").await);
    for i in 0..8u64 {
        let send = |to: &str| {
            vec![with(done(i, "send", "1"), With::Send(k.signal_op(to, "s", &format!("s{i}"))))]
        };
        let both = join(k.record(&a, send("b")), k.record(&b, send("a"))).await;
        assert_eq!(both, (Written::Done, Written::Done));
    }
    assert_eq!((k.get("a").await.inbox, k.get("b").await.inbox), (8, 8));
}
