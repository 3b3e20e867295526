//! `cargo xtask`: everything the repository does to itself, as ordinary Rust.
//!
//! Invariants: a check exits 0 when clean, 1 with one line per violation, 2 when it could not run
//! (bad arguments included); servers started here die with this process, however it dies.
//! Deliberately absent: anything a user of Steadfast would need; that is the `steadfast` binary.

#![allow(clippy::print_stdout, reason = "the checks' findings are this program's output")]

mod bench;
mod boundaries;
mod schema;
mod servers;
mod source;
mod suite;
mod tidy;
mod torture;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The check could not be made: the arguments, or the tree they name, make no sense.
const BAD_ARGUMENTS: u8 = 2;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The repository's own tools")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the whole test suite, with Postgres, MariaDB and NATS servers of its own.
    Test {
        /// Run only tests whose name contains NAME.
        #[arg(long, value_name = "NAME")]
        filter: Option<String>,
        /// Further arguments of `cargo test`.
        #[arg(last = true)]
        extra: Vec<String>,
    },
    /// Run a command with the test servers up; its exit code is ours.
    Servers {
        /// The command and its arguments.
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// Measure our speed beside the peers', as ratios, on databases that wait for the disk.
    Bench(bench::Args),
    /// Check who may depend on whom.
    Boundaries {
        /// The tree to check; this workspace when absent.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
    },
    /// Check sizes, headers, names, banned words, error pages, statements and the README.
    Tidy {
        /// The tree to check; this workspace when absent.
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
    },
    /// Run the long forms of the tests: hundreds of kills, thousands of simulated worlds.
    Torture(torture::Args),
    /// Run one durable database that is started again when it is killed (used by tests).
    #[command(hide = true)]
    Server { kind: servers::Kind },
    /// Keep one server alive until standard input closes (started by `test` and `servers`).
    #[command(hide = true)]
    Guard(servers::guard::Args),
}

fn main() -> ExitCode {
    // Exit codes travel as values, so that every server is dropped before the process ends.
    let outcome = match Args::parse().command {
        Command::Test { filter, extra } => suite::run(filter.as_deref(), &extra),
        Command::Servers { command } => suite::run_with_servers(&command),
        Command::Bench(args) => bench::run(&args),
        Command::Boundaries { root } => check(root, boundaries::check),
        Command::Tidy { root } => check(root, tidy::check),
        Command::Torture(args) => torture::run(&args),
        Command::Server { kind } => servers::serve(kind),
        Command::Guard(args) => servers::guard::run(&args),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(BAD_ARGUMENTS)
        }
    }
}

fn check(
    root: Option<PathBuf>,
    rules: fn(&tree::Tree) -> anyhow::Result<Vec<tree::Violation>>,
) -> anyhow::Result<u8> {
    let root = match root {
        Some(root) => root,
        None => tree::workspace_root()?,
    };
    let mut violations = rules(&tree::Tree::read(&root)?)?;
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    Ok(u8::from(!violations.is_empty()))
}
