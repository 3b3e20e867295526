//! What each fault does to a toy store, and that exploration finds a planted bug.
//!
//! Invariants: the toy counts what is applied, so "once" and "twice" are numbers.
//! Deliberately absent: the engine; its scenarios are tests of their own.

use std::sync::atomic::{AtomicI64, Ordering};

use futures::future::BoxFuture;
use steadfast_core::Timestamp;
use steadfast_store::op::{ListQueues, PutQueue, QueuePut, QueueRow, Queues};

use super::*;
use crate::sim::Sim;

const SEC: Duration = Duration::from_secs(1);

/// Counts writes. A queue's `concurrency` is the write's number, for writes that are recognised.
#[derive(Default)]
struct Toy {
    applied: AtomicI64,
    seen: Mutex<std::collections::BTreeSet<String>>,
    recognises: bool,
}

impl Store for Toy {
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        let reply = match op {
            Op::PutQueue(put) => {
                let created = self.seen.lock().unwrap().insert(put.queue.name);
                if created || !self.recognises {
                    self.applied.fetch_add(1, Ordering::SeqCst);
                }
                Reply::PutQueue(QueuePut { created })
            }
            _ => Reply::ListQueues(Queues(Vec::new())),
        };
        Box::pin(async { Ok(reply) })
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

fn write(n: i64) -> Op {
    let queue = QueueRow { name: n.to_string(), ..QueueRow::default() };
    Op::PutQueue(PutQueue { workspace: "w".to_owned(), queue, now: Timestamp::default() })
}

fn read() -> Op {
    Op::ListQueues(ListQueues { workspace: "w".to_owned() })
}

struct World {
    sim: Sim,
    toy: Arc<Toy>,
    faults: Arc<Faults>,
}

impl World {
    fn new(plan: &str, retrying: bool) -> Self {
        let sim = Sim::new(1);
        let plan = plan.parse().unwrap();
        let faults = Faults::new(&sim, plan, Options { retrying, ..Options::default() });
        Self { sim, toy: Arc::default(), faults }
    }

    fn store(&self, node: &str) -> Arc<FaultStore> {
        self.faults.store(self.sim.node(node), self.toy.clone())
    }

    fn call(&self, op: Op) -> (Result<Reply, Error>, Duration) {
        let (store, start) = (self.store("a"), self.sim.now());
        let reply = self.sim.block_on(async move { store.call(op).await });
        (reply, start.until(self.sim.now()))
    }

    fn applied(&self) -> i64 {
        self.toy.applied.load(Ordering::SeqCst)
    }
}

fn put(created: bool) -> Result<Reply, Error> {
    Ok(Reply::PutQueue(QueuePut { created }))
}

#[test]
fn errors_are_shown_or_met_by_trying_again() {
    for (plan, applied_first) in [("0:fail_before", 0), ("0:ambiguous", 1), ("0:late", 0)] {
        let world = World::new(plan, false);
        let (reply, took) = world.call(write(1));
        assert!(reply.unwrap_err().is_retryable() && took < SEC, "{plan}");
        assert_eq!(world.applied(), applied_first, "{plan}");

        let world = World::new(plan, true);
        let (reply, took) = world.call(write(1));
        assert_eq!(reply, put(applied_first == 0), "{plan}: the repeated call's reply is seen");
        assert!(took > SEC && took < SEC * 2, "{plan}");
        assert_eq!(world.applied(), applied_first + 1, "{plan}");
        assert_eq!(world.faults.count(), 2, "{plan}: the retry is a point of its own");
        world.sim.run_for(SEC * 60);
        let late = i64::from(plan == "0:late");
        assert_eq!(world.applied(), applied_first + 1 + late, "{plan}");
    }
    let world = World::new("0:duplicate", true);
    assert_eq!((world.call(write(1)).0, world.applied()), (put(false), 2));
}

#[test]
fn a_crash_takes_the_caller_with_it_before_or_after_the_write() {
    for (plan, applied) in [("0:crash_before", 0), ("0:crash_after", 1)] {
        let world = World::new(plan, true);
        let (env, store) = (world.sim.node("a"), world.store("a"));
        let task = store.clone();
        env.spawn(
            "writer",
            Box::pin(async move {
                drop(task.call(write(1)).await);
                panic!("the crashed node saw a reply");
            }),
        );
        world.sim.block_on(env.died());
        world.sim.run_for(SEC * 5);
        assert_eq!(world.applied(), applied, "{plan}");
        // Somebody who kept the dead node's store is refused.
        let refused = world.sim.block_on(async move { store.call(write(2)).await });
        assert_eq!((refused, world.applied()), (Err(Error::Closed), applied));
        assert_eq!(world.call(write(3)).0, put(true), "the next life works");
    }
}

#[test]
fn a_caller_from_elsewhere_survives_the_crash() {
    for plan in ["0:crash_before", "0:crash_after"] {
        let world = World::new(plan, true);
        assert_eq!(world.call(write(1)).0, Err(Error::Closed));
        assert!(!world.sim.is_up("a"));
    }
}

#[test]
fn a_pause_lets_the_world_go_on_before_the_reply_is_seen() {
    let world = World::new("0:pause=90000ms", true);
    let (env, store) = (world.sim.node("a"), world.store("a"));
    let (sender, receiver) = futures::channel::oneshot::channel();
    let start = world.sim.now();
    env.clone().spawn(
        "writer",
        Box::pin(async move {
            drop(store.call(write(1)).await);
            sender.send(start.until(env.now())).unwrap();
        }),
    );
    world.sim.run_for(SEC);
    assert_eq!(world.applied(), 1);
    assert!(world.sim.block_on(receiver).unwrap() >= SEC * 90);
}

#[test]
fn a_stopped_node_sends_its_request_when_it_goes_on() {
    let world = World::new("0:stop=90000ms", true);
    let (env, store) = (world.sim.node("a"), world.store("a"));
    env.spawn("writer", Box::pin(async move { drop(store.call(write(1)).await) }));
    world.sim.run_for(SEC * 80);
    assert_eq!(world.applied(), 0);
    world.sim.run_for(SEC * 11);
    assert_eq!(world.applied(), 1);
}

/// Counts crashes, and has something to forget until the first.
#[derive(Default)]
struct Frail(AtomicI64);

impl Server for Frail {
    fn has_unflushed(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    fn crash(&self, _: Timestamp) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_server_that_has_something_to_forget_crashes_where_the_plan_says_so() {
    let plan = "0:forget,1:forget";
    let world = World::new(plan, true);
    assert!(world.call(write(1)).1 < SEC, "there is no server to crash");
    let world = World::new(plan, true);
    let server = Arc::new(Frail::default());
    world.faults.set_server(server.clone());
    assert_eq!(world.call(write(1)).0, put(true), "the call is made again");
    assert_eq!((world.applied(), server.0.load(Ordering::SeqCst)), (1, 1));
    let outcome = world.faults.outcome(Ok(()));
    assert_eq!((outcome.points[0].forgets, outcome.points[1].forgets), (true, false));
    assert_eq!(outcome.placed.len(), 1, "nothing is left to forget");
}

#[test]
fn while_the_store_is_down_nobody_gets_through() {
    let world = World::new("0:store_down=40000ms", true);
    let other = world.store("b");
    assert!(world.call(write(1)).1 >= SEC * 40);
    assert!(world.sim.block_on(async move { other.call(write(2)).await }).is_ok());
    let world = World::new("0:store_down=40000ms", false);
    assert!(matches!(world.call(read()).0, Err(Error::Transient(_))));
    assert!(matches!(world.call(write(1)).0, Err(Error::Transient(_))));
    world.faults.heal();
    assert!(world.call(write(1)).0.is_ok());
}

#[test]
fn a_clock_jump_is_noticed_by_the_next_sync() {
    let world = World::new("0:clock_jump=-20000ms", true);
    let store = world.store("a");
    let call = || {
        let store = store.clone();
        world.sim.block_on(async move { store.call(read()).await }).unwrap();
    };
    call();
    assert_eq!(world.sim.node("a").now().until(world.sim.now()), SEC * 20);
    assert_eq!(store.clock_offset_us(), 0);
    world.sim.run_for(SEC * 31);
    call();
    assert_eq!(store.clock_offset_us(), 20_000_000);
}

#[test]
fn lost_hints_stay_lost_until_the_world_is_healed() {
    let world = World::new("1:lost_notification", true);
    let heard = |world: &World| {
        let store = world.store("a");
        world.sim.block_on_for(SEC * 60, async move { store.changed().await }).is_ok()
    };
    world.call(read()).0.unwrap();
    assert!(heard(&world));
    world.call(read()).0.unwrap();
    assert!(!heard(&world) && world.faults.hints_lost());
    world.faults.heal();
    assert!(heard(&world));
}

#[test]
fn random_faults_are_reproduced_by_the_plan_of_what_happened() {
    let run = |plan: Plan| {
        let sim = Sim::new(plan.seed());
        let options = Options { retrying: true, ..Options::default() };
        let faults = Faults::new(&sim, plan, options);
        let toy: Arc<Toy> = Arc::default();
        let env = sim.node("a");
        let (first, inner) = (faults.clone(), toy.clone());
        sim.node("supervisor").spawn(
            "restarts",
            Box::pin(async move {
                let sim = env.sim().clone();
                loop {
                    let env = sim.node("a");
                    let store = first.store(env.clone(), inner.clone());
                    env.spawn(
                        "writer",
                        Box::pin(async move {
                            for n in 0.. {
                                drop(store.call(write(n)).await);
                            }
                        }),
                    );
                    env.died().await;
                    sim.sleep(SEC).await;
                }
            }),
        );
        sim.run_for(SEC * 20);
        let verdict = Err(format!("{:x} {}", sim.trace_hash(), toy.applied.load(Ordering::SeqCst)));
        faults.outcome(verdict)
    };
    for seed in 0..20 {
        let plan = Plan::random(seed, Rates::uniform(20));
        let outcome = run(plan.clone());
        let again = run(plan.explicit(outcome.placed.clone()));
        assert_eq!((outcome.verdict, outcome.placed), (again.verdict, again.placed), "seed {seed}");
    }
}

/// A worker that writes 1, 2, 3 and is restarted when it crashes; it asks what is there already.
fn three_writes(plan: Plan, recognises: bool) -> Outcome {
    let sim = Sim::new(plan.seed());
    let faults = Faults::new(&sim, plan, Options::default());
    let toy = Arc::new(Toy { recognises, ..Toy::default() });
    let (plan_at_work, store) = (faults.clone(), toy.clone());
    let handle = sim.handle();
    let work = async move {
        let done = Arc::new(AtomicI64::new(0));
        while done.load(Ordering::SeqCst) < 3 {
            let (env, done) = (handle.node("a"), done.clone());
            let store = plan_at_work.store(env.clone(), store.clone());
            let (over, ended) = futures::channel::oneshot::channel::<()>();
            env.clone().spawn(
                "worker",
                Box::pin(async move {
                    for n in done.load(Ordering::SeqCst)..3 {
                        store.call(write(n)).await.unwrap();
                        env.crash_point("written");
                        done.store(n + 1, Ordering::SeqCst);
                    }
                    drop(over);
                }),
            );
            let _ = ended.await;
        }
    };
    let verdict = sim.block_on_for(SEC * 600, work).map_err(|stuck| stuck.to_string());
    // Whatever is still under way arrives.
    sim.run_for(SEC * 120);
    let applied = toy.applied.load(Ordering::SeqCst);
    let once = if applied == 3 { Ok(()) } else { Err(format!("applied {applied} times, not 3")) };
    faults.outcome(verdict.and(once))
}

#[test]
fn exploration_passes_a_worker_whose_writes_are_recognised() {
    let report = explore("recognised", 2, |plan| three_writes(plan, true));
    report.check();
    // Three writes with twelve faults each, three crash points with one.
    assert_eq!((report.points, report.tried[0]), (6, (39, 39)));
    assert_eq!(report.faults.len(), 11, "{report}");
    assert!(report.tried[1].0 > 400, "{report}");
}

#[test]
fn exploration_finds_a_worker_that_counts_twice() {
    let report = explore("twice", 2, |plan| three_writes(plan, false));
    let failure = report.failure.expect("the canary must fail");
    assert_eq!(failure.plan.to_string(), "0:ambiguous");
    assert_eq!(failure.message, "applied 4 times, not 3");
}
