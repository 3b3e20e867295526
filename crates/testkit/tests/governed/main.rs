//! A governed command through every crash: three steps against a world that fails and forgets, a
//! person who answers, and a ledger kept by the other side.
//!
//! Invariants: the world outside survives every crash and counts what really happened to it; the
//! fabric under test is the real one, over the model store, in virtual time.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

mod crm;
mod nodes;
mod office;
mod stops;

use std::sync::Arc;
use std::time::Duration;

use steadfast_core::CommandStatus;
use steadfast_core::env::Env as _;
use steadfast_testkit::faults::{Explore, Fault, Faults, Options, Outcome, Plan, Rates};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sim::Sim;

use crm::Crm;
use nodes::{CRASHES, STOPS};
use office::{Ending, boot, ended, person};

/// What is tried: how the sale ends when nothing crashes.
const ENDINGS: [Ending; 3] = [Ending::Sold, Ending::Refused, Ending::Rejected];

/// One world: nodes that are raised again when they die, and a person who answers.
fn world(ending: Ending, nodes: usize, plan: Plan) -> Outcome {
    let sim = Sim::new(plan.seed());
    let model = Arc::new(ModelStore::new());
    let faults = Faults::new(&sim.handle(), plan, Options::default());
    sim.set_chaos(faults.clone());
    let crm = Crm::new(ending);
    let seller = crm.clone();
    nodes::raise(nodes, &sim, &faults, &model, move |env, store| {
        Box::pin(boot(env, store, seller.clone()))
    });
    let desk = sim.node("person");
    desk.spawn("person", Box::pin(person(desk.clone(), model.clone(), crm.clone())));
    let watched = model.clone();
    let over = sim.run_until(move || ended(&watched).is_some(), Duration::from_secs(3600));
    let verdict = match over {
        Err(stuck) => {
            Err(format!("the command does not end: {stuck}; it is {:?}", office::told(&model)))
        }
        Ok(()) => judge(ending, &crm, &model),
    };
    faults.outcome(verdict)
}

/// What must be true of the world outside, whatever crashed.
fn judge(ending: Ending, crm: &Crm, model: &Arc<ModelStore>) -> Result<(), String> {
    let status = ended(model).expect("invariant: it has ended");
    let wanted = match ending {
        Ending::Sold | Ending::Forgetful => CommandStatus::Succeeded,
        Ending::Refused | Ending::Rejected => CommandStatus::Compensated,
    };
    if status != wanted {
        return Err(format!("it ended as {status}, not as {wanted}: {:?}", office::told(model)));
    }
    crm.judge(ending)?;
    office::check_ledger(model, crm)
}

/// R110, R111, R112, R114, R122, R123: a crash before and after every commit and inside every call.
#[test]
fn a_governed_command_survives_a_crash_at_every_commit() {
    for ending in ENDINGS {
        let report = Explore::new(ending.name()).depth(1).faults(CRASHES);
        report.run(|plan| world(ending, 1, plan)).check();
    }
}

/// R112, X14: the same with a second node, and one that stands still for longer than its lease and
/// goes on.
#[test]
fn a_governed_command_survives_a_node_that_stops_and_continues() {
    for ending in ENDINGS {
        let report = Explore::new(ending.name()).depth(1).faults(STOPS).budget(150);
        report.run(|plan| world(ending, 2, plan)).check();
    }
}

/// R111, R112: zero duplicate effects over many seeds of many faults.
#[test]
fn no_effect_is_doubled_over_seeds_of_faults() {
    let seeds: u64 = std::env::var("STEADFAST_GOVERNED_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(400);
    for seed in 0..seeds {
        let ending = ENDINGS[usize::try_from(seed).unwrap() % ENDINGS.len()];
        let outcome = world(ending, 2, Plan::random(seed, Rates::swarm(seed)));
        if let Err(why) = &outcome.verdict {
            panic!("seed {seed} ({}): {why}", ending.name());
        }
    }
}

/// The test can fail: a receiver that forgets its keys is found out.
#[test]
fn a_receiver_that_forgets_is_found_out() {
    let doubled = (0..200).any(|at| {
        let plan = Plan::none().with(at, Fault::CrashAfter);
        world(Ending::Forgetful, 1, plan).verdict.is_err()
    });
    assert!(doubled, "no crash doubled anything, though nobody looked at the key");
}
