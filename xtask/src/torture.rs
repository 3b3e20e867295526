//! The long forms of the tests: what the suite does for seconds, done for as long as it takes to
//! find what is rare.
//!
//! Invariants: a part is a test of the suite with a larger number in a variable, so nothing is
//! tested here that the suite does not test as well; each part is run even if another failed.
//! Deliberately absent: figures. The tests print their own; docs/reliability.md keeps those of the
//! last run.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::schema;
use crate::servers::Servers;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The parts to run; all of them when none is named.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
    /// List the parts and what they do.
    #[arg(long)]
    list: bool,
}

/// A test of the suite, and how much of it there is to be.
struct Part {
    name: &'static str,
    about: &'static str,
    /// The package, its test program, and the test.
    test: [&'static str; 3],
    variables: &'static [(&'static str, &'static str)],
}

const TESTKIT: &str = "steadfast-testkit";

const PARTS: &[Part] = &[
    Part {
        name: "outages",
        about: "Postgres and MariaDB killed with SIGKILL under load, 200 times each",
        test: [TESTKIT, "kill", "r091_servers_that_are_killed"],
        variables: &[("STEADFAST_OUTAGE_COUNT", "200")],
    },
    Part {
        name: "kills",
        about: "workers killed with SIGKILL under load, 1,000 times on each database",
        test: [TESTKIT, "kill", "runs_survive_workers"],
        variables: &[("STEADFAST_KILL_COUNT", "1000")],
    },
    Part {
        name: "schedulers",
        about: "schedulers killed with SIGKILL, 1,000 times on each database",
        test: [TESTKIT, "schedulers", ""],
        variables: &[("STEADFAST_KILL_COUNT", "1000")],
    },
    Part {
        name: "faults",
        about: "every shape of a workflow under up to 20,000 pairs of faults, simulated",
        test: [TESTKIT, "simulation", "every_shape"],
        variables: &[("STEADFAST_SIM_BUDGET", "20000")],
    },
    Part {
        name: "worlds",
        about: "5,000 random worlds of 20 runs on three nodes, simulated",
        test: [TESTKIT, "simulation", "random_worlds"],
        variables: &[("STEADFAST_SIM_SEEDS", "5000")],
    },
    Part {
        name: "governed",
        about: "2,000 random governed commands under faults, simulated",
        test: [TESTKIT, "governed", ""],
        variables: &[("STEADFAST_GOVERNED_SEEDS", "2000")],
    },
];

pub(crate) fn run(args: &Args) -> Result<u8> {
    if args.list {
        PARTS.iter().for_each(|part| println!("{:<12}{}", part.name, part.about));
        return Ok(0);
    }
    let parts = chosen(&args.parts)?;
    let servers = Servers::start()?;
    let mut done = Vec::new();
    for part in parts {
        println!("== {}: {}", part.name, part.about);
        let began = Instant::now();
        let is_ok = test(part, &servers)?;
        done.push((part, is_ok, began.elapsed()));
    }
    for (part, is_ok, took) in &done {
        let verdict = if *is_ok { "passed" } else { "FAILED" };
        println!("{:<12}{verdict} in {:.0} s: {}", part.name, took.as_secs_f64(), part.about);
    }
    Ok(u8::from(done.iter().any(|(_, is_ok, _)| !is_ok)))
}

fn chosen(names: &[String]) -> Result<Vec<&'static Part>> {
    let known = || PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
    if let Some(name) = names.iter().find(|name| PARTS.iter().all(|part| part.name != *name)) {
        bail!("there is no part \"{name}\"; the parts are {}", known());
    }
    let is_chosen = |part: &&Part| names.is_empty() || names.iter().any(|name| name == part.name);
    Ok(PARTS.iter().filter(is_chosen).collect())
}

fn test(part: &Part, servers: &Servers) -> Result<bool> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let [package, program, name] = part.test;
    let status = Command::new(cargo)
        .args(["test", "--package", package, "--test", program])
        .args((!name.is_empty()).then_some(name))
        .args(["--", "--nocapture"])
        .envs(servers.variables())
        .envs(schema::ensure()?)
        .env("STEADFAST_TEST_XTASK", std::env::current_exe()?)
        .envs(part.variables.iter().copied())
        .status()
        .with_context(|| format!("running the tests of {package}"))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_name_and_a_name_that_is_unknown_is_refused() {
        let names = |chosen: &[&str]| {
            let chosen: Vec<String> = chosen.iter().map(|name| (*name).to_owned()).collect();
            let parts = super::chosen(&chosen);
            parts.map(|parts| parts.iter().map(|part| part.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), PARTS.len());
        assert_eq!(names(&["worlds", "kills"]).unwrap(), ["kills", "worlds"]);
        let refused = names(&["worlds", "floods"]).unwrap_err().to_string();
        assert!(refused.contains("\"floods\"") && refused.contains("outages"), "{refused}");
    }
}
