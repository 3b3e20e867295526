//! Thirty nights in simulation: the real fabric and workflow over the model store, in virtual time,
//! with a vendor and a warehouse that fail, and crashes wherever a commit is.
//!
//! Invariants: vendor and warehouse survive every crash and count what really happened to them;
//! they are judged by that, not by what the fabric says of itself.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

mod office;
mod vendor;
mod warehouse;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfast::Env as _;
use steadfast_store::Store;
use steadfast_testkit::faults::{Explore, Fault, Faults, Options, Outcome, Plan, Rates};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sim::Sim;

use office::{boot, judge};
use vendor::Vendor;
use warehouse::Warehouse;

const NODE: &str = "worker";
/// Pairs of months that are lived at every test.
const SEEDS: u64 = 20;

/// So many nights, one after another, in a world with these faults.
fn world(nights: u64, plan: Plan) -> Outcome {
    let sim = Sim::new(plan.seed());
    let model = Arc::new(ModelStore::new());
    let faults = Faults::new(&sim.handle(), plan.clone(), Options::default());
    sim.set_chaos(faults.clone());
    let vendor = Vendor::new(plan.seed(), nights, faults.clone());
    let warehouse = Warehouse::new(plan.seed());
    let over = Arc::new(AtomicU64::new(0));
    let keep = {
        let (handle, faults, model) = (sim.handle(), faults.clone(), model.clone());
        let over = over.clone();
        let (vendor, warehouse) = (vendor.clone(), warehouse.clone());
        async move {
            loop {
                let env = handle.node(NODE);
                let died = env.died();
                let store: Arc<dyn Store> = faults.store(env.clone(), model.clone());
                let (vendor, warehouse) = (vendor.clone(), warehouse.clone());
                let booted = boot(env.clone(), store, vendor, warehouse, over.clone());
                env.spawn("boot", Box::pin(booted));
                died.await;
                handle.sleep(Duration::from_secs(1)).await;
            }
        }
    };
    sim.node("supervisor").spawn("keep", Box::pin(keep));
    let patience = Duration::from_secs((nights + 8) * 86_400);
    let ended = sim.run_until(move || over.load(Ordering::Relaxed) == nights, patience);
    let verdict = match ended {
        Err(stuck) => Err(format!("the nights do not end: {stuck}")),
        Ok(()) => judge(&model, &vendor, &warehouse, faults.placed()),
    };
    let outcome = faults.outcome(verdict);
    let left = Arc::downgrade(&model);
    drop((sim, model, faults, vendor, warehouse));
    assert_eq!(left.strong_count(), 0, "a fabric that is gone keeps its store");
    outcome
}

/// R28, R54: a crash before and after every commit of a night, and inside every call.
#[test]
fn r028_a_night_survives_a_crash_at_every_commit() {
    let faults = [Fault::CrashBefore, Fault::CrashAfter, Fault::Ambiguous];
    Explore::new("night").depth(1).faults(faults).run(|plan| world(2, plan)).check();
}

/// How many seeds, or which: `2000`, or `1000..2000`.
fn seeds(text: &str) -> (u64, u64) {
    let (from, until) = text.split_once("..").unwrap_or(("0", text));
    (from.parse().unwrap_or(0), until.parse().unwrap_or(SEEDS))
}

/// R54: no load twice, no 5xx given up early, no 4xx tried again, over many seeds of many faults.
/// Thousands of them: `STEADFAST_SYNC_SEEDS=2000 cargo test --release --workspace --test
/// simulated r054`.
#[test]
fn r054_thirty_nights_come_right_over_seeds_of_faults() {
    let (from, until) = seeds(&std::env::var("STEADFAST_SYNC_SEEDS").unwrap_or_default());
    let next = AtomicU64::new(from);
    let live = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= until {
                break;
            }
            // A month in which only vendor and warehouse fail, and one in which we do as well.
            for rates in [Rates::default(), Rates::swarm(seed)] {
                let outcome = world(30, Plan::random(seed, rates));
                if let Err(why) = &outcome.verdict {
                    panic!("seed {seed}, {} faults: {why}", outcome.placed.len());
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(live)).collect();
        for one in all {
            one.join().unwrap();
        }
    });
}

/// The test can fail: a warehouse that forgets its keys, and answers late, is found out.
#[test]
fn a_warehouse_that_forgets_is_found_out() {
    warehouse::FORGETS.set(true);
    let doubled = (0..40).any(|seed| {
        let rates = Rates::default().with(Fault::CrashAfter, 200);
        world(10, Plan::random(seed, rates)).verdict.is_err()
    });
    warehouse::FORGETS.set(false);
    assert!(doubled, "nothing was written twice, though nobody looked at the key");
}
