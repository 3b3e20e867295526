//! The worker's process: a fabric made of the file, told by lines on its input.
//!
//! `ahead N` sets the clock, `fire DAY` is a second scheduler that fires for a day, `again DAY` is
//! an operator who has it synced anew; the end of the input ends it in order.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use steadfast::{Ingress, Steadfast};
use steadfast_sync::job::{self, Asking};
use steadfast_sync::leap::LeapEnv;
use steadfast_sync::{Config, Report};
use tokio::io::{AsyncBufReadExt as _, BufReader};

#[derive(clap::Args)]
pub(crate) struct Args {
    file: PathBuf,
    #[arg(long, allow_hyphen_values = true)]
    ahead: i64,
}

pub(crate) async fn worker(args: Args) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let clock = LeapEnv::ahead_by(args.ahead);
    let builder = Steadfast::open(config.store.address()?)
        .env(clock.clone())
        .worker_name("demo")
        .poll(Duration::from_millis(5), Duration::from_millis(20));
    let fabric = job::install(builder, &config)?.start().await?;
    let again = async |day: &str| {
        let what = (&config.vendors[0], day);
        job::ask(&fabric, &config, what, Asking::Again, "user:operator").await.map(drop)
    };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.split_once(' ') {
            Some(("ahead", us)) => clock.set_ahead_us(us.parse()?),
            Some(("fire", day)) => fire(&fabric, &config, day).await?,
            Some(("again", day)) => again(day).await?,
            _ => anyhow::bail!("the demonstration said \"{line}\""),
        }
    }
    fabric.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

/// A fire by the schedule's own name, through its own door. The key is the contract's, as it is for
/// the first.
async fn fire(fabric: &Steadfast, config: &Config, day: &str) -> steadfast::Result<()> {
    let order = job::order(&config.vendors[0], day);
    let call = fabric.submit_named::<Report>(job::COMMAND, &order);
    call.requested_by("system:scheduler").ingress(Ingress::ScheduledTrigger).await.map(drop)
}
