//! `steadfast sync`: the nightly sync, for those who run it.
//!
//! Invariants: every verb reads the same file; `check` and `status` change nothing; `run` and
//! `backfill` make the same commands as the schedule does, by the same keys, and wait for them.

mod check;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use steadfast::{Client, CommandInfo, CommandStatus, Ingress, Steadfast};
use steadfast_sync::config::Vendor;
use steadfast_sync::job::{self, COMMAND};
use steadfast_sync::{Config, Outcome, Report};

use crate::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file that describes vendors and warehouse.
    #[arg(long, env = "STEADFAST_CONFIG", default_value = "steadfast.toml", global = true)]
    config: PathBuf,
    /// How results are shown.
    #[arg(short, long, value_enum, default_value_t = Output::Table, global = true)]
    output: Output,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Tries the file out on the real vendor and the real warehouse, and shows the plan.
    Check(check::Args),
    /// Runs schedule and workers until it is stopped.
    Start,
    /// Syncs one day now. A day that was synced is not synced again.
    Run(RunArgs),
    /// Syncs the days from one to another that have no partition yet.
    Backfill(BackfillArgs),
    /// What became of the last nights, vendor by vendor.
    Status(status::Args),
}

#[derive(clap::Args)]
struct RunArgs {
    /// Whose sales.
    #[arg(long)]
    vendor: Option<String>,
    /// Of which day, as 2026-06-01; yesterday (UTC) if not said.
    #[arg(long)]
    date: Option<String>,
    /// As a new revision, although the day was synced.
    #[arg(long)]
    again: bool,
}

#[derive(clap::Args)]
struct BackfillArgs {
    /// Whose sales.
    #[arg(long)]
    vendor: Option<String>,
    /// The first day.
    #[arg(long)]
    from: String,
    /// The last day.
    #[arg(long)]
    to: String,
    /// Shows what would be done.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn sync(args: Args) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.config)?;
    match args.verb {
        Verb::Check(check) => check::check(&config, &check).await,
        Verb::Start => start(&config).await,
        Verb::Run(run) => one_day(&config, &run).await,
        Verb::Backfill(backfill) => days(&config, &backfill).await,
        Verb::Status(which) => status::status(&config, &which, args.output).await,
    }
}

/// A fabric as the file describes it.
async fn fabric(config: &Config) -> anyhow::Result<Steadfast> {
    let builder = job::install(Steadfast::open(&config.store.url), config)?;
    Ok(builder.start().await?)
}

async fn start(config: &Config) -> anyhow::Result<ExitCode> {
    let fabric = fabric(config).await?;
    for vendor in &config.vendors {
        let next = fabric.schedule(job::schedule_id(vendor.name.as_str())).next(1).await?;
        let next = next.first().map_or("never".to_owned(), |at| at.iso());
        println!("{}: next at {next}", vendor.name);
    }
    println!("Running until Ctrl-C.");
    fabric.run_until_stopped().await?;
    Ok(ExitCode::SUCCESS)
}

/// The vendor that is meant: the only one, unless one is named.
fn meant<'a>(config: &'a Config, name: Option<&str>) -> anyhow::Result<&'a Vendor> {
    let known: Vec<_> = config.vendors.iter().map(|vendor| vendor.name.as_str()).collect();
    match (name, &config.vendors[..]) {
        (None, [only]) => Ok(only),
        (None, _) => bail!("name one with --vendor; there are: {}", known.join(", ")),
        (Some(name), all) => {
            let found = all.iter().find(|vendor| vendor.name.as_str() == name);
            found.with_context(|| {
                format!("there is no vendor {name}; there are: {}", known.join(", "))
            })
        }
    }
}

fn day(text: &str) -> anyhow::Result<String> {
    let at = steadfast::parse_moment(text)?;
    if at.utc_date(0) != text {
        bail!("{text} is no day; write it like 2026-06-01");
    }
    Ok(text.to_owned())
}

fn yesterday() -> String {
    use steadfast::Env as _;
    steadfast::TokioEnv::current().now().utc_date(-1)
}

async fn one_day(config: &Config, args: &RunArgs) -> anyhow::Result<ExitCode> {
    let vendor = meant(config, args.vendor.as_deref())?;
    let date = args.date.as_deref().map_or_else(|| Ok(yesterday()), day)?;
    let fabric = fabric(config).await?;
    let ended = submit(&fabric, config, vendor, &date, args.again).await;
    fabric.shutdown().await;
    let (new, info) = ended?;
    show(&date, new, &info);
    Ok(if info.command.status == CommandStatus::Succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Submits a day and waits for its end; says whether it is a new command.
pub(crate) async fn submit(
    fabric: &Steadfast,
    config: &Config,
    vendor: &Vendor,
    date: &str,
    again: bool,
) -> anyhow::Result<(bool, CommandInfo)> {
    let key = job::key(config, vendor.name.as_str(), date);
    let order = job::order(vendor, date);
    let mut call = fabric.submit_named::<Report>(COMMAND, &order).requested_by(requested_by());
    call = call.ingress(Ingress::UserRequest);
    if again {
        let last = job::latest(fabric, &key).await?.map_or(0, |(number, _)| number);
        call = call.key(job::revision(&key, last + 1));
    }
    let command = call.await?;
    Ok((command.is_new(), command.ended().await?))
}

fn requested_by() -> String {
    let user = std::env::var("USER").unwrap_or_default();
    format!("user:{}", if user.is_empty() { "cli" } else { &user })
}

fn show(date: &str, new: bool, info: &CommandInfo) {
    let row = &info.command;
    let was = if new { "" } else { " (was done before; --again makes a new revision)" };
    let report = row.result.as_deref().and_then(|text| serde_json::from_str::<Report>(text).ok());
    match (&report, &row.error) {
        (Some(report), _) => {
            let what = match report.outcome {
                Outcome::Loaded => "loaded",
                Outcome::Stale => "stale, nothing written",
            };
            println!("{date}: {what}: {} rows, total {}{was}", report.rows, report.total);
        }
        (None, Some(error)) => println!("{date}: {}: {error}{was}", row.status),
        (None, None) => println!("{date}: {}{was}", row.status),
    }
    println!("  {} ({})", row.command_id, row.idempotency_key.as_deref().unwrap_or_default());
}

async fn days(config: &Config, args: &BackfillArgs) -> anyhow::Result<ExitCode> {
    let vendor = meant(config, args.vendor.as_deref())?;
    let (from, to) = (day(&args.from)?, day(&args.to)?);
    if from > to {
        bail!("--from {from} is after --to {to}");
    }
    let mut dates = Vec::new();
    let mut at = steadfast::parse_moment(&from)?;
    while at.utc_date(0) <= to {
        dates.push(at.utc_date(0));
        at = at.after(Duration::from_secs(86_400));
    }
    if args.dry_run {
        let client = Client::connect_to(&config.store.url, config.store.workspace.as_str()).await?;
        for date in dates {
            let key = job::key(config, vendor.name.as_str(), &date);
            let last = job::latest(&client, &key).await?;
            let state =
                last.map_or("would be synced".to_owned(), |(_, i)| i.command.status.to_string());
            println!("{date}: {state}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let fabric = fabric(config).await?;
    let mut failed = 0;
    for date in dates {
        let (new, info) = submit(&fabric, config, vendor, &date, false).await?;
        show(&date, new, &info);
        failed += u32::from(info.command.status != CommandStatus::Succeeded);
    }
    fabric.shutdown().await;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
