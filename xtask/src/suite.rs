//! The whole test suite, and any other command, with the servers up.
//!
//! Invariants: the exit code is the command's; the servers are gone before we are.
//! Deliberately absent: benches, which measure and prove nothing.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};

use crate::schema;
use crate::servers::Servers;

/// Arguments that choose targets: whoever gives one wants that and nothing else.
const TARGET_CHOICES: [&str; 10] = [
    "--lib",
    "--bin",
    "--bins",
    "--test",
    "--tests",
    "--example",
    "--examples",
    "--bench",
    "--doc",
    "--all-targets",
];
const PACKAGE_CHOICES: [&str; 2] = ["-p", "--package"];

pub(crate) fn run(filter: Option<&str>, extra: &[String]) -> Result<u8> {
    let servers = Servers::start()?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    for args in invocations(filter, extra) {
        let code = run_one(&servers, &cargo, &args)?;
        if code != 0 {
            return Ok(code);
        }
    }
    Ok(0)
}

pub(crate) fn run_with_servers(command: &[String]) -> Result<u8> {
    let (program, args) = command.split_first().context("no command given")?;
    let servers = Servers::start()?;
    run_one(&servers, program, args)
}

fn run_one(servers: &Servers, program: &str, args: &[String]) -> Result<u8> {
    let status = Command::new(program)
        .args(args)
        .envs(servers.variables())
        .envs(schema::ensure()?)
        // Tests that kill a database ask it for one of their own.
        .env("STEADFAST_TEST_XTASK", std::env::current_exe()?)
        .status()
        .with_context(|| format!("running {program}"))?;
    Ok(code(status))
}

/// As a shell would say it: a command ended by a signal counts from 128.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(1)
}

/// The arguments of each `cargo` run: targets first, then documentation.
fn invocations(filter: Option<&str>, extra: &[String]) -> Vec<Vec<String>> {
    let own = extra.split(|arg| arg == "--").next().unwrap_or_default();
    let chooses = |choices: &[&str]| {
        own.iter().any(|arg| choices.contains(&arg.split('=').next().unwrap_or_default()))
    };
    // `--workspace` would silently win over `-p`, and `--lib` fails on a package without one:
    // cargo's own default is right for a single package, documentation included.
    let runs: &[&[&str]] = match (chooses(&PACKAGE_CHOICES), chooses(&TARGET_CHOICES)) {
        (true, _) => &[&[]],
        (false, true) => &[&["--workspace"]],
        (false, false) => &[
            &["--workspace", "--lib", "--bins", "--tests", "--examples", "--no-fail-fast"],
            &["--workspace", "--doc"],
            // In a workspace of its own, because of what it turns on in others; so is the command's
            // part that uses it.
            &["--manifest-path", "crates/policy-cedar/Cargo.toml"],
            &["--workspace", "--features", "steadfast-cli/cedar", "--test", "policy"],
        ],
    };
    runs.iter()
        .map(|targets| {
            let fixed = ["test"].iter().chain(*targets).copied();
            // The filter before the rest: after a `--` it would mean something else.
            fixed.chain(filter).map(str::to_owned).chain(extra.iter().cloned()).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(filter: Option<&str>, extra: &[&str]) -> Vec<String> {
        let extra: Vec<String> = extra.iter().map(|arg| (*arg).to_owned()).collect();
        invocations(filter, &extra).iter().map(|args| args.join(" ")).collect()
    }

    #[test]
    fn the_suite_is_targets_and_documentation() {
        assert_eq!(
            joined(None, &[]),
            [
                "test --workspace --lib --bins --tests --examples --no-fail-fast",
                "test --workspace --doc",
                "test --manifest-path crates/policy-cedar/Cargo.toml",
                "test --workspace --features steadfast-cli/cedar --test policy",
            ]
        );
    }

    #[test]
    fn a_filter_comes_before_the_tests_own_arguments() {
        assert_eq!(
            joined(Some("r053"), &["--", "--nocapture"])[1],
            "test --workspace --doc r053 -- --nocapture"
        );
    }

    #[test]
    fn a_choice_of_package_or_target_is_respected() {
        assert_eq!(
            joined(None, &["-p", "xtask", "--test", "checks"]),
            ["test -p xtask --test checks"]
        );
        assert_eq!(joined(None, &["--package=xtask"]), ["test --package=xtask"]);
        assert_eq!(joined(None, &["--doc"]), ["test --workspace --doc"]);
        assert_eq!(joined(None, &["--", "--test"]).len(), 4);
    }

    #[test]
    fn a_signal_counts_from_128() {
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
    }
}
