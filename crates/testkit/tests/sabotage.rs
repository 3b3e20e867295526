//! Who watches the watchmen: every mutant of the store must be found out, by the conformance suite
//! or by the simulation, and the honest store must survive the same.

// A test fails by panicking, and says what it tried.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use steadfast_testkit::faults::{Explore, Fault};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sabotage::{MUTANTS, Mutant, Sabotaged};
use steadfast_testkit::scenario::{Play, SHAPES, Shape};
use steadfast_testkit::suite;

/// Runs per shape, after the suite has found nothing.
const BUDGET: u64 = 60;
/// What makes zombies, repeats and recoveries; the rest only makes them wait.
const FAULTS: [Fault; 7] = [
    Fault::CrashAfter,
    Fault::Duplicate,
    Fault::CrashBefore,
    Fault::Ambiguous,
    Fault::Pause(STILL),
    Fault::Stop(STILL),
    Fault::Forget,
];
/// Longer than a lease.
const STILL: Duration = Duration::from_secs(90);

/// The first case of the suite that fails.
fn suite(mutant: Option<&'static Mutant>) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut cases = 0;
    for (name, case) in suite::store::CASES {
        cases += 1;
        let store = Sabotaged::new(Arc::new(ModelStore::new()), mutant);
        let run = std::panic::AssertUnwindSafe(case(&store)).catch_unwind();
        if runtime.block_on(run).is_err() {
            return Some(format!("suite, case {cases}: {name}"));
        }
    }
    None
}

/// The first plan of a shape that fails, and after how many runs.
fn simulate(mutant: Option<&'static Mutant>, shape: &Shape, budget: u64) -> (u64, Option<String>) {
    let cast = [(*shape, String::new())];
    let scenario = |plan| Play::new(&cast, 2).sabotaged(mutant).go(plan).outcome;
    let report = Explore::new(shape.name).faults(FAULTS).budget(budget).run(scenario);
    let failure =
        report.failure.map(|f| format!("{} with plan {}: {}", shape.name, f.plan, f.message));
    (report.runs, failure)
}

/// Without faults first: most mutants do not even survive that.
fn by_simulation(mutant: Option<&'static Mutant>, budget: u64) -> (u64, Option<String>) {
    let mut runs = 0;
    for budget in [1, budget] {
        for shape in SHAPES {
            let (more, killed) = simulate(mutant, shape, budget);
            runs += more;
            if killed.is_some() {
                return (runs, killed);
            }
        }
    }
    (runs, None)
}

/// Panics of killed cases are what is wanted: they need not be printed.
fn quietly<T>(act: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let value = act();
    std::panic::set_hook(hook);
    value
}

fn hunt(mutant: &'static Mutant) -> Result<String, String> {
    let by_suite = suite(Some(mutant));
    let budget = if by_suite.is_some() { 1 } else { BUDGET };
    let (runs, by_simulation) = by_simulation(Some(mutant), budget);
    match (&by_suite, &by_simulation) {
        (None, None) => Err(format!("{}: survived the suite and {runs} runs", mutant.name)),
        _ => Ok(format!(
            "{}: {}; {}",
            mutant.name,
            by_suite.unwrap_or_else(|| "not by the suite".to_owned()),
            by_simulation.map_or_else(
                || format!("not by {runs} simulated runs"),
                |how| format!("simulation, run {runs}: {how}")
            )
        )),
    }
}

/// X14 and the rest of the contract: a store that breaks one promise does not go unnoticed.
#[test]
fn every_mutant_is_killed() {
    let only = std::env::var("STEADFAST_MUTANT").ok();
    let begun = Instant::now();
    let (next, hunted) = (Mutex::new(MUTANTS.iter()), Mutex::new(Vec::new()));
    quietly(|| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    loop {
                        let Some(mutant) = next.lock().unwrap().next() else {
                            return;
                        };
                        if only.as_ref().is_some_and(|name| name != mutant.name) {
                            continue;
                        }
                        let hunt = hunt(mutant);
                        hunted.lock().unwrap().push(hunt);
                    }
                });
            }
        });
    });
    let hunted = hunted.into_inner().unwrap();
    hunted.iter().flatten().for_each(|line| println!("{line}"));
    println!("{} mutants in {:?}", hunted.len(), begun.elapsed());
    let survivors: Vec<_> = hunted.into_iter().filter_map(Result::err).collect();
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}

/// The canary of the canaries: what kills the mutants lets the honest store live.
#[test]
fn the_honest_store_survives() {
    assert_eq!(suite(None), None);
    let (runs, killed) = by_simulation(None, BUDGET);
    assert_eq!(killed, None, "after {runs} runs");
}

#[test]
fn there_are_many_mutants_and_each_has_a_name_of_its_own() {
    let mut names: Vec<_> = MUTANTS.iter().map(|mutant| mutant.name).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() == MUTANTS.len() && names.len() >= 24, "{}", names.len());
}
