//! `steadfast sync`: the nightly sync, for those who run it.
//!
//! Invariants: every verb reads the same file; `check` and `status` change nothing; `run` and
//! `backfill` make the same commands as the schedule does, by the same keys, and wait for them.

mod check;
mod status;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Subcommand;
use steadfast::{Client, CommandInfo, CommandStatus, Steadfast};
use steadfast_sync::config::Vendor;
use steadfast_sync::job::{self, Asking};
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
    /// Syncs the days from one to another that were not synced, or failed.
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
    /// As a new revision that is loaded although the vendor has nothing new.
    #[arg(long)]
    force: bool,
}

impl RunArgs {
    fn how(&self) -> Asking {
        match (self.again, self.force) {
            (_, true) => Asking::Forced,
            (true, false) => Asking::Again,
            (false, false) => Asking::Once,
        }
    }
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

/// A fabric for work by hand: what others have scheduled stays as it is.
async fn by_hand(config: &Config) -> anyhow::Result<Steadfast> {
    let builder = Steadfast::open(config.store.address()?);
    Ok(job::install_by_hand(builder, config)?.start().await?)
}

/// A client of a store that is there.
async fn reader(config: &Config) -> anyhow::Result<Client> {
    let url = config.store.address()?;
    if let Some(file) = url.strip_prefix("sqlite://")
        && !std::path::Path::new(file).exists()
    {
        bail!("there is no store {file} yet; `steadfast sync start` makes it");
    }
    Ok(Client::connect_to(&url, config.store.workspace.as_str()).await?)
}

async fn start(config: &Config) -> anyhow::Result<ExitCode> {
    let builder = Steadfast::open(config.store.address()?);
    let fabric = job::install(builder, config)?.start().await?;
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
    let date = args.date.as_deref().map_or_else(|| Ok(yesterday()), over)?;
    let fabric = by_hand(config).await?;
    let ended = submit(&fabric, config, vendor, &date, args.how()).await;
    fabric.shutdown().await;
    let Some((new, info)) = ended? else { return Ok(ExitCode::from(130)) };
    show(&date, new, &info);
    Ok(if info.command.status == CommandStatus::Succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A day that is over: half a day under the day's key would stay half.
fn over(text: &str) -> anyhow::Result<String> {
    let date = day(text)?;
    if date > yesterday() {
        bail!("{date} is not over yet (UTC); its sales are not complete");
    }
    Ok(date)
}

/// Submits a day and waits for its end; says whether it is a new command. None if somebody would
/// not wait.
async fn submit(
    fabric: &Steadfast,
    config: &Config,
    vendor: &Vendor,
    date: &str,
    how: Asking,
) -> anyhow::Result<Option<(bool, CommandInfo)>> {
    let command = job::ask(fabric, config, (vendor, date), how, &requested_by()).await?;
    let new = command.is_new();
    if new {
        eprintln!("{date}: {} is under way", command.id());
    }
    tokio::select! {
        ended = watch::ended(&command, date) => Ok(Some((new, ended?))),
        _ = tokio::signal::ctrl_c() => {
            eprintln!(
                "{} is not over: a worker (`steadfast sync start`) goes on with it, \
                 `steadfast command cancel` stops it",
                command.id()
            );
            Ok(None)
        }
    }
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
                Outcome::Stale if new => "stale, nothing written (--force loads it)",
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
    let (from, to) = (day(&args.from)?, over(&args.to)?);
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
        let client = reader(config).await?;
        for date in dates {
            let key = job::key(config, vendor.name.as_str(), &date);
            let last = job::latest(&client, &key).await?;
            let state =
                last.map_or("would be synced".to_owned(), |(_, i)| i.command.status.to_string());
            println!("{date}: {state}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let fabric = by_hand(config).await?;
    let failed = fill(&fabric, config, vendor, &dates).await;
    fabric.shutdown().await;
    Ok(if failed? == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Syncs days; gives how many failed. One that cannot be submitted does not keep the others back.
async fn fill(
    fabric: &Steadfast,
    config: &Config,
    vendor: &Vendor,
    dates: &[String],
) -> anyhow::Result<u32> {
    let mut failed = 0;
    for date in dates {
        let last = job::latest(fabric, &job::key(config, vendor.name.as_str(), date)).await?;
        let lost = [CommandStatus::Failed, CommandStatus::Cancelled, CommandStatus::Expired];
        let how = match last {
            Some((_, info)) if lost.contains(&info.command.status) => Asking::Again,
            _ => Asking::Fill,
        };
        match submit(fabric, config, vendor, date, how).await {
            Ok(Some((new, info))) => {
                show(date, new, &info);
                failed += u32::from(info.command.status != CommandStatus::Succeeded);
            }
            Ok(None) => return Ok(failed + 1),
            Err(error) => {
                println!("{date}: {error:#}");
                failed += 1;
            }
        }
    }
    Ok(failed)
}
