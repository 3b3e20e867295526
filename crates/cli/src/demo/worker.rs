//! The worker's process: a fabric made of the file, told by lines on its input.
//!
//! `ahead N` sets the clock, `submit DAY` is a second fire for a day, `again DAY` is an operator
//! who has it synced anew; the end of the input ends it in order.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use steadfast::Steadfast;
use steadfast_sync::Config;
use steadfast_sync::job::{self, Asking};
use steadfast_sync::leap::LeapEnv;
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
    let ask = async |day: &str, how| {
        let what = (&config.vendors[0], day);
        job::ask(&fabric, &config, what, how, "user:operator").await.map(drop)
    };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.split_once(' ') {
            Some(("ahead", us)) => clock.set_ahead_us(us.parse()?),
            Some(("submit", day)) => ask(day, Asking::Fire).await?,
            Some(("again", day)) => ask(day, Asking::Again).await?,
            _ => anyhow::bail!("the demonstration said \"{line}\""),
        }
    }
    fabric.shutdown().await;
    Ok(ExitCode::SUCCESS)
}
