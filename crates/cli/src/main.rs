//! The `steadfast` command: a demonstration, and explanations of error codes and runs.
//!
//! Invariants: what a person asked for goes to stdout, everything else to stderr; exit code 0 only
//! if what was asked for is so. Deliberately absent: logic. Commands call the SDK.
#![allow(clippy::print_stdout, reason = "this is the face that talks")]

mod demo;
mod explain;

use clap::{Parser, Subcommand};

/// Durable execution: runs that end, through crashes.
#[derive(Parser)]
#[command(name = "steadfast", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Plays a dozen orders through a worker that is killed again and again.
    Demo(demo::Args),
    /// Explains an error code (SF-0110), or what a run waits for (with --store).
    Explain(explain::Args),
    /// The worker that the demonstration kills.
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<std::process::ExitCode> {
    match Cli::parse().command {
        Command::Demo(args) => demo::demo(args).await,
        Command::Explain(args) => explain::explain(args).await,
        Command::DemoWorker(args) => demo::worker(args).await,
    }
}
