//! Every fault at every point: what one fault does, then what a second one does to that, and so on.
//!
//! Invariants: a plan of n faults is tried only after all its prefixes passed, so a failing plan is
//! minimal; its later faults are chosen among the points that were met in the run with its earlier
//! ones; a run that does not repeat its prefix exactly is itself a failure.
//! Deliberately absent: threads. Test binaries run their tests side by side already.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Fault, Outcome, Plan, Point};

/// An exploration to be made.
#[derive(Debug, Clone)]
pub struct Explore {
    name: String,
    depth: usize,
    seed: u64,
    budget: u64,
    faults: Vec<Fault>,
    command: String,
}

/// A plan that breaks the scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The plan: no fault of it can be left out.
    pub plan: Plan,
    /// What did not hold.
    pub message: String,
    /// A command line that runs it again.
    pub replay: String,
}

/// What was tried, and what was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The scenario.
    pub name: String,
    /// How many runs were made.
    pub runs: u64,
    /// Decision points of the run without faults.
    pub points: u64,
    /// Per depth: plans tried, of how many.
    pub tried: Vec<(u64, u64)>,
    /// How often each kind happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// What broke it, if anything.
    pub failure: Option<Failure>,
}

impl Report {
    /// Prints the line, and fails the test if a plan failed.
    pub fn check(&self) {
        println!("{self}");
        if let Some(failure) = &self.failure {
            let Failure { plan, message, replay } = failure;
            panic!("{}: plan {plan} fails: {message}\nreplay: {replay}", self.name);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} runs, {} points", self.name, self.runs, self.points)?;
        for (at, (tried, of)) in self.tried.iter().enumerate() {
            write!(f, ", depth {}: {tried} of {of}", at + 1)?;
        }
        for (at, (name, count)) in self.faults.iter().enumerate() {
            write!(f, "{} {name} {count}", if at == 0 { ";" } else { "," })?;
        }
        match &self.failure {
            Some(failure) => write!(f, "; FAILED by {}", failure.plan),
            None => Ok(()),
        }
    }
}

/// Tries every plan of up to `depth` faults, without a bound.
pub fn explore(name: &str, depth: usize, scenario: impl Fn(Plan) -> Outcome) -> Report {
    Explore::new(name).depth(depth).run(scenario)
}

/// Leaves out faults as long as the plan still fails.
pub fn shrink(plan: &Plan, scenario: impl Fn(Plan) -> Outcome) -> Plan {
    let mut smallest = plan.clone();
    // From the end: what happens after the failure cannot matter, and goes first. Halves before
    // single ones, or a long plan takes for ever.
    let mut chunk = smallest.faults().len().div_ceil(2);
    while chunk > 0 {
        let points: Vec<u64> = smallest.faults().keys().rev().copied().collect();
        for drop in points.chunks(chunk) {
            let kept = smallest.faults().iter().filter(|(point, _)| !drop.contains(point));
            let smaller = smallest.explicit(kept.map(|(point, fault)| (*point, *fault)));
            if judge(&scenario, &smaller).verdict.is_err() {
                smallest = smaller;
            }
        }
        chunk /= 2;
    }
    smallest
}

/// A plan that passed, and what was met in its run.
struct Passed {
    plan: Plan,
    points: Vec<Point>,
}

/// What the environment says is to be run again.
struct Replay {
    scenario: Option<String>,
    plan: Option<String>,
    seed: Option<String>,
}

impl Replay {
    fn from_env() -> Self {
        let read = |name| std::env::var(name).ok();
        Self {
            scenario: read("STEADFAST_SIM_SCENARIO"),
            plan: read("STEADFAST_SIM_PLAN"),
            seed: read("STEADFAST_SIM_SEED"),
        }
    }
}

impl Explore {
    /// Of this scenario: every kind of fault, one at a time.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            depth: 1,
            seed: 1,
            budget: u64::MAX,
            faults: Fault::ALL.to_vec(),
            command: "cargo test -p steadfast-testkit".to_owned(),
        }
    }

    /// Up to so many faults in one run.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// The seed of all runs.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// At most so many runs; beyond them plans are left out evenly.
    #[must_use]
    pub fn budget(mut self, runs: u64) -> Self {
        self.budget = runs;
        self
    }

    /// Only these faults.
    #[must_use]
    pub fn faults(mut self, faults: impl Into<Vec<Fault>>) -> Self {
        self.faults = faults.into();
        self
    }

    /// The command that runs this scenario, for the replay line.
    #[must_use]
    pub fn command(mut self, command: &str) -> Self {
        self.command = command.to_owned();
        self
    }

    /// Explores; or, where `STEADFAST_SIM_SCENARIO` and `STEADFAST_SIM_PLAN` say so, runs one plan.
    pub fn run(&self, scenario: impl Fn(Plan) -> Outcome) -> Report {
        self.run_with(&Replay::from_env(), &scenario)
    }

    fn run_with(&self, replay: &Replay, scenario: &dyn Fn(Plan) -> Outcome) -> Report {
        let mut report = Report { name: self.name.clone(), ..Report::default() };
        if replay.scenario.as_ref().is_some_and(|name| *name != self.name) {
            return report;
        }
        let seed = replay.seed.as_ref().map_or(self.seed, |seed| seed.parse().expect("a seed"));
        let plan = replay.plan.as_ref().map_or(Plan::none(), |text| text.parse().expect("a plan"));
        let first = self.try_plan(&mut report, scenario, plan.seeded(seed), &[]);
        let Some(first) = first else { return report };
        report.points = first.points.len() as u64;
        if replay.plan.is_some() {
            return report;
        }
        let mut frontier = vec![first];
        for level in 1..=self.depth {
            frontier = self.level(&mut report, scenario, &frontier, level);
            if report.failure.is_some() {
                break;
            }
        }
        report
    }

    /// Extends each plan that passed by one more fault.
    fn level(
        &self,
        report: &mut Report,
        scenario: &dyn Fn(Plan) -> Outcome,
        parents: &[Passed],
        level: usize,
    ) -> Vec<Passed> {
        let total = parents.iter().map(|parent| self.extensions(parent).count() as u64).sum();
        let room = self.room(report.runs, level).min(total);
        report.tried.push((0, total));
        let mut passed = Vec::new();
        let mut at: u64 = 0;
        for parent in parents {
            for (point, fault) in self.extensions(parent) {
                // Even steps through all extensions: as many as there is room for.
                let step = |n: u64| u128::from(n) * u128::from(room) / u128::from(total);
                at += 1;
                if step(at) == step(at - 1) {
                    continue;
                }
                if let Some(tried) = report.tried.last_mut() {
                    tried.0 += 1;
                }
                let plan = parent.plan.clone().with(point, fault);
                match self.try_plan(report, scenario, plan, &parent.points) {
                    Some(child) if level < self.depth => passed.push(child),
                    Some(_) => {}
                    None => return passed,
                }
            }
        }
        passed
    }

    /// Single faults come first and whole; deeper levels share what is left.
    fn room(&self, runs: u64, level: usize) -> u64 {
        let left = self.budget.saturating_sub(runs);
        if level == 1 { left } else { left / (self.depth - level + 1).max(1) as u64 }
    }

    /// Every fault at every point after the plan's last.
    fn extensions<'a>(&'a self, parent: &'a Passed) -> impl Iterator<Item = (u64, Fault)> + 'a {
        let from = parent.plan.faults().last_key_value().map_or(0, |(point, _)| point + 1);
        let skip = usize::try_from(from).unwrap_or(usize::MAX);
        let later = parent.points.iter().enumerate().skip(skip);
        later.flat_map(move |(number, point)| {
            let fits = self.faults.iter().filter(|fault| fault.fits(point));
            fits.map(move |fault| (number as u64, *fault))
        })
    }

    /// Runs a plan. `None` means that it failed, as the report says.
    fn try_plan(
        &self,
        report: &mut Report,
        scenario: &dyn Fn(Plan) -> Outcome,
        plan: Plan,
        before: &[Point],
    ) -> Option<Passed> {
        let outcome = judge(scenario, &plan);
        report.runs += 1;
        for fault in outcome.placed.values() {
            *report.faults.entry(fault.name()).or_default() += 1;
        }
        let verdict = outcome.verdict.and_then(|()| same_prefix(&plan, before, &outcome.points));
        match verdict {
            Ok(()) => Some(Passed { plan, points: outcome.points }),
            Err(message) => {
                let replay = self.replay(&plan);
                report.failure = Some(Failure { plan, message, replay });
                None
            }
        }
    }

    fn replay(&self, plan: &Plan) -> String {
        let Self { name, command, .. } = self;
        let seed = plan.seed();
        format!(
            "STEADFAST_SIM_SCENARIO='{name}' STEADFAST_SIM_PLAN='{plan}' \
             STEADFAST_SIM_SEED={seed} {command}"
        )
    }
}

/// Until the last fault the run must be the one that passed without it.
fn same_prefix(plan: &Plan, before: &[Point], now: &[Point]) -> Result<(), String> {
    let Some((last, _)) = plan.faults().last_key_value().filter(|_| !before.is_empty()) else {
        return Ok(());
    };
    let until = usize::try_from(*last).unwrap_or(usize::MAX);
    if before.get(..=until) == now.get(..=until) {
        return Ok(());
    }
    Err("the scenario is not deterministic: the run differs before its last fault".to_owned())
}

/// A panic is a verdict too.
fn judge(scenario: &dyn Fn(Plan) -> Outcome, plan: &Plan) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| scenario(plan.clone()))).unwrap_or_else(|payload| {
        let text = steadfast_core::caught::text(payload.as_ref()).to_owned();
        Outcome { points: Vec::new(), placed: plan.faults().clone(), verdict: Err(text) }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Access;
    use super::*;

    /// A world of so many writes; more after a retried one, and broken by these faults together.
    fn world(writes: usize, broken_by: &'static str) -> impl Fn(Plan) -> Outcome {
        move |plan| {
            let placed = plan.faults().clone();
            let point =
                Point { op: "Record", node: "a".into(), access: Access::Write, forgets: false };
            let retries = placed.values().filter(|fault| **fault == Fault::Ambiguous).count();
            let verdict = match broken_by.parse::<Plan>().unwrap().faults() {
                fatal
                    if !fatal.is_empty() && fatal.iter().all(|f| placed.get(f.0) == Some(f.1)) =>
                {
                    Err("broken".to_owned())
                }
                _ => Ok(()),
            };
            Outcome { points: vec![point; writes + retries], placed, verdict }
        }
    }

    #[test]
    fn every_plan_of_the_depth_is_tried_once() {
        let kinds = [Fault::Ambiguous, Fault::CrashAfter];
        let report = Explore::new("all").depth(2).faults(kinds).run(world(3, ""));
        // Without faults 1; singles 3 × 2; after each of the three points the later ones, one more
        // of them after an ambiguous fault: (3 + 2 + 1) × 2 and (2 + 1 + 0) × 2.
        assert_eq!(report.tried, vec![(6, 6), (18, 18)]);
        assert_eq!((report.runs, report.points), (25, 3));
        assert_eq!(report.faults.values().sum::<u64>(), 6 + 36);
        report.check();
    }

    #[test]
    fn a_budget_leaves_out_pairs_evenly_and_says_so() {
        let firsts = std::cell::RefCell::new(std::collections::BTreeSet::<u64>::new());
        let report = Explore::new("some").depth(2).budget(100).run(|plan| {
            if plan.faults().len() == 2 {
                firsts.borrow_mut().extend(plan.faults().keys().next());
            }
            world(5, "")(plan)
        });
        assert!(firsts.borrow().len() >= 4, "pairs begin all over the run: {firsts:?}");
        assert_eq!((report.runs, report.tried[0]), (100, (60, 60)));
        assert!(report.tried[1].0 == 39 && report.tried[1].1 > 1000, "{report}");
        assert!(report.to_string().contains("depth 2: 39 of "), "{report}");
    }

    #[test]
    fn a_failing_pair_is_found_and_can_be_replayed() {
        let scenario = world(6, "1:ambiguous,6:crash_after");
        let report = explore("pair", 2, &scenario);
        let failure = report.failure.unwrap();
        assert_eq!(failure.plan.to_string(), "1:ambiguous,6:crash_after");
        assert!(failure.replay.starts_with(
            "STEADFAST_SIM_SCENARIO='pair' STEADFAST_SIM_PLAN='1:ambiguous,6:crash_after' \
             STEADFAST_SIM_SEED=1 "
        ));
        let again = Replay {
            scenario: Some("pair".to_owned()),
            plan: Some(failure.plan.to_string()),
            seed: Some("1".to_owned()),
        };
        let replayed = Explore::new("pair").run_with(&again, &scenario);
        assert_eq!((replayed.runs, replayed.failure), (1, Some(failure)));
        assert_eq!(Explore::new("other").run_with(&again, &scenario).runs, 0);
    }

    #[test]
    fn a_long_plan_shrinks_to_what_matters() {
        let long = (0..40).fold(Plan::none().seeded(9), |plan, at| plan.with(at, Fault::Duplicate));
        let small = shrink(&long, world(50, "7:duplicate,31:duplicate"));
        assert_eq!((small.to_string().as_str(), small.seed()), ("7:duplicate,31:duplicate", 9));
    }

    #[test]
    fn a_scenario_that_does_not_repeat_itself_is_a_failure() {
        let runs = std::cell::Cell::new(0);
        let fickle = |plan: Plan| {
            runs.set(runs.get() + 1);
            let mut outcome = world(3, "")(plan);
            outcome.points[0].node = format!("{}", runs.get()).into();
            outcome
        };
        let failure = explore("fickle", 1, fickle).failure.unwrap();
        assert!(failure.message.contains("not deterministic"));
    }

    #[test]
    #[should_panic(expected = "plan 0:fail_before fails")]
    fn a_panic_in_a_scenario_fails_the_check() {
        explore("panics", 1, |plan| {
            assert!(plan.faults().is_empty(), "an assertion");
            world(1, "")(plan)
        })
        .check();
    }
}
