//! The `steadfast` command: a demonstration, the nightly sync, explanations, and an operator's
//! hands on schedules, commands, approvals, effects and events.
//!
//! Invariants: what a person asked for goes to stdout, everything else to stderr; exit code 0 only
//! if what was asked for is so. Deliberately absent: logic. Commands call the SDK.
#![allow(clippy::print_stdout, reason = "this is the face that talks")]

mod approval;
mod audit;
mod command;
mod demo;
mod effect;
mod event;
mod explain;
mod init;
mod output;
mod policy;
mod schedule;
mod sync;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Many small pieces that one thread makes and another frees: glibc is slow at that.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Durable execution: runs that end, through crashes.
#[derive(Parser)]
#[command(name = "steadfast", version)]
struct Cli {
    #[command(subcommand)]
    noun: Noun,
}

#[derive(Subcommand)]
enum Noun {
    /// Plays thirty nights of the sync, with everything going wrong that does.
    Demo(demo::Args),
    /// Writes a steadfast.toml with a word on each setting.
    Init(init::Args),
    /// The nightly sync of vendors' sales: check, start, run, backfill, status.
    Sync(sync::Args),
    /// Explains an error code (SF-0110), or what a run waits for (with --store).
    Explain(explain::Args),
    /// Schedules: what fires when, what became of it, pause, trigger, backfill.
    Schedule(schedule::Args),
    /// Commands: which there are, what happened to one, cancel.
    Command(command::Args),
    /// Approvals: what people are asked, and their answers.
    Approval(approval::Args),
    /// Effects: the ledger, and those that nobody knows about.
    Effect(effect::Args),
    /// Policies: what a chain would decide, without anything being done.
    Policy(policy::Args),
    /// Events: what happened, where it was sent, what could not be.
    Event(event::Args),
    /// Whether events are still what they were when they were written.
    Audit(audit::Args),
    /// The worker that the demonstration kills.
    #[command(hide = true)]
    DemoWorker(demo::WorkerArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    stay_quiet_when_nobody_reads();
    answer(Cli::parse().noun).await.unwrap_or_else(|error| {
        // Not as anyhow would: whoever mistyped a setting has no use for a backtrace.
        eprintln!("Error: {error}");
        error.chain().skip(1).for_each(|cause| eprintln!("  because: {cause}"));
        ExitCode::FAILURE
    })
}

async fn answer(noun: Noun) -> anyhow::Result<ExitCode> {
    match noun {
        Noun::Demo(args) => demo::demo(args).await,
        Noun::Init(args) => init::init(&args),
        Noun::Sync(args) => sync::sync(args).await,
        Noun::Explain(args) => explain::explain(args).await,
        Noun::Schedule(args) => schedule::schedule(args).await,
        Noun::Command(args) => command::command(args).await,
        Noun::Approval(args) => approval::approval(args).await,
        Noun::Effect(args) => effect::effect(args).await,
        Noun::Policy(args) => policy::policy(args).await,
        Noun::Event(args) => event::event(args).await,
        Noun::Audit(args) => audit::audit(args).await,
        Noun::DemoWorker(args) => demo::worker(args).await,
    }
}

/// `steadfast … | head` is no mistake of anybody's: what is being done ends, without a backtrace.
fn stay_quiet_when_nobody_reads() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload().downcast_ref::<String>();
        let unread = |text: &String| {
            text.starts_with("failed printing to stdout") && text.contains("Broken pipe")
        };
        if !text.is_some_and(unread) {
            usual(panic);
        }
    }));
}
