//! The engine under every fault: each shape with every placement of one fault and as many pairs as
//! the budget has room for, then random worlds of all shapes at once.
//!
//! Replay a failure with the variables it prints: `STEADFAST_SIM_SCENARIO`, `STEADFAST_SIM_PLAN`,
//! `STEADFAST_SIM_SEED`. `STEADFAST_SIM_BUDGET` (runs per shape) and `STEADFAST_SIM_SEEDS` set how
//! much is tried.

// A test fails by panicking, and says what it tried.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use steadfast_testkit::faults::{Explore, Fault, Plan, Rates, Report, shrink};
use steadfast_testkit::sabotage::MUTANTS;
use steadfast_testkit::scenario::{LEASE, Play, Played, SHAPES, Shape, play};

/// Shapes small enough for every pair of faults.
const WHOLE: [&str; 14] = [
    "linear",
    "verbs",
    "parallel",
    "race",
    "unordered",
    "panics",
    "keyed",
    "at_most_once",
    "signal_first",
    "stream",
    "continued",
    "deadline",
    "shutdown",
    "debounced",
];
/// Runs of any other shape: single faults come first, pairs share what is left.
const BUDGET: u64 = 1500;
/// Random worlds.
const SEEDS: u64 = 300;
/// Runs in a random world.
const CAST: usize = 20;
const THREADS: usize = 2;

fn set(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Does something with every item, two at a time.
fn side_by_side<T: Sync>(items: &[T], act: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    act(item);
                }
            });
        }
    });
}

fn explore(shape: &Shape) -> Report {
    let whole = WHOLE.contains(&shape.name);
    let budget = if whole { u64::MAX } else { BUDGET };
    let budget = set("STEADFAST_SIM_BUDGET").unwrap_or(budget);
    Explore::new(shape.name)
        .depth(2)
        .budget(budget)
        .command("cargo test -p steadfast-testkit --test simulation every_shape -- --nocapture")
        .run(|plan| {
            if std::env::var("STEADFAST_SIM_PLAN").is_err() {
                return play(shape, plan);
            }
            let cast = [(*shape, String::new())];
            let played = Play::new(&cast, shape.nodes).timeline(2000).go(plan);
            println!("{}", played.timeline.join("\n"));
            played.outcome
        })
}

/// R74, R76, R77, R78, R79, R80, R84, R85, R86, R93, R94, R123, X16: every shape keeps its promises
/// under every single fault and under pairs of them.
#[test]
fn every_shape_survives_every_fault_and_pairs_of_faults() {
    let (begun, reports) = (Instant::now(), Mutex::new(Vec::new()));
    side_by_side(SHAPES, |shape| {
        let report = explore(shape);
        println!("{report}");
        reports.lock().unwrap().push(report);
    });
    let reports = reports.into_inner().unwrap();
    let runs: u64 = reports.iter().map(|report| report.runs).sum();
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in reports.iter().flat_map(|report| &report.faults) {
        *faults.entry(name).or_default() += count;
    }
    println!("{runs} runs of {} shapes in {:?}: {faults:?}", reports.len(), begun.elapsed());
    let failed: Vec<_> = reports
        .iter()
        .filter_map(|report| report.failure.as_ref().map(|f| (&report.name, f)))
        .map(|(name, f)| {
            format!("{name}: plan {} fails: {}\nreplay: {}", f.plan, f.message, f.replay)
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Twenty runs of shapes drawn by the seed, on three nodes.
fn cast(seed: u64) -> Vec<(Shape, String)> {
    let rng = steadfast_testkit::sim::Rng::new(seed);
    let draw = |_| {
        let at = usize::try_from(rng.below(SHAPES.len() as u64)).unwrap_or(0);
        SHAPES[at]
    };
    (0..CAST).map(draw).enumerate().map(|(at, shape)| (shape, format!("-{at}-"))).collect()
}

fn random_world(seed: u64, plan: Plan) -> Played {
    Play::new(&cast(seed), 3).healing().go(plan)
}

fn fails(seed: u64, played: &Played) -> Option<String> {
    let why = played.outcome.verdict.as_ref().err()?;
    let explicit = Plan::random(seed, Rates::default())
        .explicit(played.outcome.placed.iter().map(|(point, fault)| (*point, *fault)));
    let plan = shrink(&explicit, |plan| random_world(seed, plan).outcome);
    Some(format!(
        "seed {seed} fails: {why}\nreplay: STEADFAST_SIM_SCENARIO='random' \
         STEADFAST_SIM_PLAN='{plan}' \
         STEADFAST_SIM_SEED={seed} cargo test -p steadfast-testkit --test simulation random"
    ))
}

/// R93: whatever goes wrong, in whatever mixture, once it stops everything is finished rightly; and
/// the same seed makes the same world.
#[test]
fn random_worlds_come_right_and_repeat_themselves() {
    match std::env::var("STEADFAST_SIM_SCENARIO") {
        Ok(name) if name == "random" => return replay_random(),
        Ok(_) => return,
        Err(_) => {}
    }
    let begun = Instant::now();
    let seeds: Vec<u64> = match set("STEADFAST_SIM_SEED") {
        Some(seed) => vec![seed],
        None => (0..set("STEADFAST_SIM_SEEDS").unwrap_or(SEEDS)).collect(),
    };
    let (failed, faults, calls) =
        (Mutex::new(Vec::new()), AtomicUsize::new(0), AtomicUsize::new(0));
    side_by_side(&seeds, |seed| {
        let plan = || Plan::random(*seed, Rates::swarm(*seed));
        let played = random_world(*seed, plan());
        faults.fetch_add(played.outcome.placed.len(), Ordering::Relaxed);
        calls.fetch_add(played.calls, Ordering::Relaxed);
        failed.lock().unwrap().extend(fails(*seed, &played));
        if seed % 20 == 0 && random_world(*seed, plan()).hash != played.hash {
            failed.lock().unwrap().push(format!("seed {seed} does not repeat itself"));
        }
    });
    println!(
        "{} worlds of {CAST} scenarios, {} faults, {} calls in {:?}",
        seeds.len(),
        faults.into_inner(),
        calls.into_inner(),
        begun.elapsed()
    );
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

fn replay_random() {
    let seed = set("STEADFAST_SIM_SEED").expect("a seed");
    let plan: Plan = std::env::var("STEADFAST_SIM_PLAN").expect("a plan").parse().expect("a plan");
    let played = Play::new(&cast(seed), 3).healing().timeline(4000).go(plan.seeded(seed));
    println!("{}", played.timeline.join("\n"));
    played.outcome.verdict.expect("a world that comes right");
}

/// The canary: a store without fences is found out, so a green run means something.
#[test]
fn a_store_that_ignores_fences_is_found_out() {
    let shape = SHAPES.iter().find(|shape| shape.name == "slow_steps");
    let cast = [(*shape.expect("a shape"), String::new())];
    let mutant = MUTANTS.iter().find(|mutant| mutant.name == "record_unfenced");
    assert!(mutant.is_some());
    let scenario = |plan| Play::new(&cast, 2).sabotaged(mutant).go(plan).outcome;
    // A little longer than the lease: the zombie comes back while its successor is at work.
    let pause = Fault::Pause(LEASE + Duration::from_secs(1));
    let report = Explore::new("unfenced").depth(1).faults([pause]).run(scenario);
    let failure = report.failure.expect("a plan that breaks it");
    assert!(failure.message.contains("was accepted, but"), "{}", failure.message);
    // The same plan is harmless where the fence is looked at.
    let fenced = Play::new(&cast, 2).go(failure.plan.clone());
    assert_eq!(fenced.outcome.verdict, Ok(()), "{}", failure.plan);
}

#[test]
fn a_late_write_of_an_earlier_generation_changes_nothing() {
    let shape = SHAPES.iter().find(|shape| shape.name == "continued");
    let faults: Vec<Fault> = Fault::ALL
        .into_iter()
        .filter(|fault| matches!(fault, Fault::Late(_) | Fault::Pause(_)))
        .collect();
    let shape = shape.expect("a shape");
    let report = Explore::new(shape.name).depth(2).faults(faults);
    report.run(|plan| play(shape, plan)).check();
}

/// The first plan of these faults, placed one at a time, that finds a mutant in a shape; and that
/// the honest store survives it.
fn found_by(mutant: &str, shape: &str, faults: &[Fault]) -> String {
    let shape = SHAPES.iter().find(|known| known.name == shape).expect("a shape");
    let mutant = MUTANTS.iter().find(|known| known.name == mutant).expect("a mutant");
    let cast = [(*shape, String::new())];
    let scenario = |plan| Play::new(&cast, shape.nodes).sabotaged(Some(mutant)).go(plan).outcome;
    let untouched = scenario(Plan::none().seeded(1));
    assert_eq!(untouched.verdict, Ok(()), "{} needs no fault to be found", mutant.name);
    let report = Explore::new(mutant.name).depth(1).faults(faults).run(scenario);
    println!("{report}");
    let failure = report.failure.unwrap_or_else(|| panic!("{} is not found", mutant.name));
    assert_eq!(play(shape, failure.plan.clone()).verdict, Ok(()), "{}", failure.plan);
    failure.message
}

/// An owner that ends its run without showing its lease is found once it stands still for longer
/// than the run's deadline, whether before it sends a request or after that was carried out.
#[test]
fn an_owner_that_ends_its_successors_run_for_its_own_deadline_is_found_out() {
    let stops = [Fault::Stop(LEASE * 6), Fault::Pause(LEASE * 6)];
    for stop in stops {
        let message = found_by("time_out_as_a_cancel", "deadline_resume", &[stop]);
        assert!(message.contains("TimeOut"), "{stop}: {message}");
    }
}

/// A store that gives out the epoch of a forgotten claim again, and an execution that goes on with
/// what it knew under one, are found where a server forgets claims.
#[test]
fn a_claim_that_a_crash_forgot_and_that_is_taken_for_the_next_is_found_out() {
    let message = found_by("epoch_not_raised_after_a_crash", "debounced_late", &[Fault::Forget]);
    assert!(message.contains("again, after a crash"), "{message}");
    let message =
        found_by("claim_after_a_crash_gives_the_old_row", "debounced_late", &[Fault::Forget]);
    assert!(message.contains("computed") || message.contains("began at"), "{message}");
}
