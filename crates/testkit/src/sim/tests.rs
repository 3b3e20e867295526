//! The executor's promises: reproducible, ordered, and merciless to crashed nodes.
//!
//! Invariants: each test is a sentence about one promise. Deliberately absent: the store and
//! faults.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::channel::{mpsc, oneshot};
use futures::stream::{FuturesUnordered, StreamExt};

use super::*;

const SEC: Duration = Duration::from_secs(1);

/// A little of everything: channels, timers, spawns, random numbers. Returns hash and order.
fn busy_world(seed: u64) -> (u64, Vec<usize>) {
    let sim = Sim::new(seed);
    let (sender, receiver) = mpsc::unbounded();
    for i in 0..20 {
        let env = sim.node(if i % 2 == 0 { "a" } else { "b" });
        let sender = sender.clone();
        env.clone().spawn(
            "worker",
            Box::pin(async move {
                for _ in 0..10 {
                    env.sleep(Duration::from_millis(env.random() % 3)).await;
                    sender.unbounded_send(i).unwrap();
                }
            }),
        );
    }
    drop(sender);
    let order = sim.block_on(receiver.collect());
    (sim.trace_hash(), order)
}

#[test]
fn the_same_seed_makes_the_same_run_and_another_seed_another() {
    assert_eq!(busy_world(1), busy_world(1));
    let hashes: std::collections::BTreeSet<u64> = (0..50).map(|s| busy_world(s).0).collect();
    assert_eq!(hashes.len(), 50);
    assert_ne!(busy_world(1).1, busy_world(2).1, "the order of equal timers is drawn");
}

#[test]
fn the_order_of_ready_tasks_is_drawn() {
    let order = |seed| {
        let sim = Sim::new(seed);
        let (sender, receiver) = mpsc::unbounded();
        for i in 0..10 {
            let sender = sender.clone();
            let task = async move { sender.unbounded_send(i).unwrap() };
            sim.node("a").spawn("send", Box::pin(task));
        }
        drop(sender);
        sim.block_on(receiver.collect::<Vec<usize>>())
    };
    assert_eq!(order(1), order(1));
    let orders: std::collections::BTreeSet<_> = (0..50).map(order).collect();
    assert!(orders.len() > 45, "{}", orders.len());
}

#[test]
fn timers_fire_in_order_and_at_their_time() {
    let sim = Sim::new(1);
    let env = sim.node("a");
    let start = sim.now();
    let done = sim.block_on(async move {
        let sleeps: FuturesUnordered<_> = [5u64, 1, 3, 2, 4]
            .into_iter()
            .map(|n| {
                let env = env.clone();
                async move {
                    env.sleep(SEC * u32::try_from(n).unwrap()).await;
                    (n, start.until(env.now()))
                }
            })
            .collect();
        sleeps.collect::<Vec<_>>().await
    });
    assert_eq!(done, (1..=5).map(|n| (n, Duration::from_secs(n))).collect::<Vec<_>>());
}

struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_crash_drops_the_tasks_and_timers_of_its_node_only() {
    let sim = Sim::new(1);
    let ticks = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let dropped = Arc::new(AtomicBool::new(false));
    for (at, name) in ["a", "b"].into_iter().enumerate() {
        let (env, ticks) = (sim.node(name), ticks.clone());
        let flag = (name == "a").then(|| Flag(dropped.clone()));
        env.clone().spawn(
            "tick",
            Box::pin(async move {
                let _flag = flag;
                loop {
                    env.sleep(SEC).await;
                    ticks[at].fetch_add(1, Ordering::SeqCst);
                }
            }),
        );
    }
    let old = sim.node("a");
    sim.run_for(Duration::from_millis(3500));
    sim.crash("a");
    assert!(dropped.load(Ordering::SeqCst) && old.is_dead() && !sim.is_up("a"));
    old.spawn("ghost", Box::pin(async { panic!("a dead node starts nothing") }));
    sim.run_for(SEC * 5);
    assert_eq!([3, 8], [0, 1].map(|i| ticks[i].load(Ordering::SeqCst)));
    assert_eq!(sim.tasks(), vec![("b".to_owned(), "tick")]);
    assert!(!sim.node("a").is_dead() && old.is_dead(), "a new life does not revive the old one");
}

struct CrashAt(&'static str);

impl Chaos for CrashAt {
    fn crashes(&self, _node: &str, point: &'static str) -> bool {
        point == self.0
    }
}

#[test]
fn a_crash_point_ends_the_poll_without_further_effects_and_wakes_the_supervisor() {
    let sim = Sim::new(1);
    sim.set_chaos(Arc::new(CrashAt("here")));
    let env = sim.node("a");
    let after = Arc::new(AtomicBool::new(false));
    let (inner, seen) = (env.clone(), after.clone());
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Flag(dropped.clone());
    let sibling = std::future::pending::<()>();
    env.spawn("sibling", Box::pin(async move { (sibling.await, flag).0 }));
    env.spawn(
        "victim",
        Box::pin(async move {
            inner.crash_point("elsewhere");
            // Code that catches panics, as a step's caller does, must not survive either.
            let caught = std::panic::catch_unwind(AssertUnwindSafe(|| inner.crash_point("here")));
            assert!(caught.is_err());
            inner.sleep(SEC).await;
            seen.store(true, Ordering::SeqCst);
        }),
    );
    let died = env.died();
    sim.block_on(died);
    sim.run_for(SEC * 10);
    assert!(!after.load(Ordering::SeqCst) && dropped.load(Ordering::SeqCst));
}

#[test]
fn a_paused_node_does_nothing_until_the_pause_is_over() {
    let sim = Sim::new(1);
    let env = sim.node("a");
    let (sender, receiver) = oneshot::channel();
    let start = sim.now();
    sim.pause("a", SEC * 30);
    sim.pause("a", SEC * 10);
    env.clone().spawn(
        "late",
        Box::pin(async move {
            env.sleep(SEC).await;
            sender.send(env.now()).unwrap();
        }),
    );
    let woke = sim.block_on(receiver).unwrap();
    // Spawned while paused: the sleep begins only after it.
    assert_eq!(start.until(woke), SEC * 31);
}

#[test]
fn skew_moves_one_clock_and_survives_a_crash() {
    let sim = Sim::new(1);
    let env = sim.node("a");
    sim.skew("a", -5_000_000);
    assert_eq!(env.now().until(sim.node("b").now()), SEC * 5);
    sim.crash("a");
    assert_eq!(sim.node("a").now().until(sim.now()), SEC * 5);
}

#[test]
fn stuck_names_what_still_waits() {
    let sim = Sim::new(1);
    sim.node("a").spawn("waiter", Box::pin(std::future::pending()));
    let stuck = sim.run_until(|| false, SEC).unwrap_err();
    assert_eq!((stuck.why, stuck.tasks.len()), (Why::Idle, 1));
    assert!(stuck.to_string().contains("a/waiter"), "{stuck}");
    let env = sim.node("a");
    env.clone().spawn(
        "clock",
        Box::pin(async move {
            loop {
                env.sleep(SEC).await;
            }
        }),
    );
    assert_eq!(sim.run_until(|| false, SEC * 9).unwrap_err().why, Why::Limit);
    sim.node("a").spawn(
        "spin",
        Box::pin(async {
            loop {
                let mut polled = false;
                std::future::poll_fn(|cx| {
                    cx.waker().wake_by_ref();
                    if std::mem::replace(&mut polled, true) {
                        std::task::Poll::Ready(())
                    } else {
                        std::task::Poll::Pending
                    }
                })
                .await;
            }
        }),
    );
    assert_eq!(sim.run_until(|| false, SEC).unwrap_err().why, Why::Spin);
}

#[test]
fn dropping_the_simulation_drops_its_tasks() {
    let sim = Sim::new(1);
    let dropped = Arc::new(AtomicBool::new(false));
    let (env, flag) = (sim.node("a"), Flag(dropped.clone()));
    env.clone().spawn(
        "held",
        Box::pin(async move {
            let _flag = flag;
            // The task holds its environment: a cycle, unless the owner breaks it.
            env.sleep(SEC * 1000).await;
        }),
    );
    sim.run_for(SEC);
    drop(sim);
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
#[should_panic(expected = "the code under test is wrong")]
fn a_failed_assertion_in_a_task_fails_the_test() {
    let sim = Sim::new(1);
    sim.node("a").spawn("wrong", Box::pin(async { panic!("the code under test is wrong") }));
    sim.run_for(SEC);
}
