//! `steadfast demo`: orders run by a worker process that is killed with SIGKILL, and what came of
//! it.
//!
//! Everything is real: an embedded store in a file, another process, kill -9. A step's only effect
//! is a line in a file outside of the store, so that what ran how often can be counted from
//! outside.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use steadfast::{Client, Cx, Error, Result, Run, RunStatus, Steadfast};
use tokio::process::{Child, Command};

const ORDERS: u32 = 12;
const KILLS: u32 = 5;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Keep the store and the log in this directory instead of a temporary one.
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    dir: PathBuf,
}

/// Where the steps leave their traces.
struct Log(PathBuf);

async fn fulfil_order(cx: Cx, order: u32) -> Result<String> {
    let mut receipt = Vec::new();
    for step in ["reserve", "charge", "pack"] {
        receipt.push(traced(&cx, step, order).await?);
    }
    cx.sleep(Duration::from_millis(300)).await?; // the courier comes later
    receipt.push(traced(&cx, "ship", order).await?);
    Ok(receipt.join(" "))
}

/// A step that takes a moment and leaves one line.
async fn traced(cx: &Cx, name: &'static str, order: u32) -> Result<String> {
    let log = cx.state::<Log>()?;
    let body = move || {
        let log = log.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let mut file = std::fs::File::options().append(true).create(true).open(&log.0)?;
            // One write: orders that log at the same time must not mix their lines.
            file.write_all(format!("{order} {name}\n").as_bytes())?;
            Ok::<_, std::io::Error>(format!("{name}#{order}"))
        }
    };
    cx.step(name, body).await
}

pub(crate) async fn worker(args: WorkerArgs) -> anyhow::Result<ExitCode> {
    let fabric = Steadfast::open(store_url(&args.dir))
        .workflow(fulfil_order)
        .state(Log(args.dir.join("effects.log")))
        .worker_name("demo")
        .max_runs(6)
        .poll(Duration::from_millis(20), Duration::from_millis(200))
        .start()
        .await?;
    fabric.run_until_stopped().await?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn demo(args: Args) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::tempdir()?;
    let dir = match &args.keep {
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            dir.clone()
        }
        None => temporary.path().to_owned(),
    };
    let began = Instant::now();
    let client = Client::connect(&store_url(&dir)).await?;
    let mut runs: Vec<Run<String>> = Vec::new();
    for order in 1..=ORDERS {
        let id = format!("order-{order:02}");
        runs.push(client.start_named("fulfil_order", &order).id(id).await?);
    }
    println!(
        "{ORDERS} orders are accepted and durable. A worker starts, and is killed {KILLS} times."
    );
    let mut worker = start_worker(&dir)?;
    for kill in 1..=KILLS {
        tokio::time::sleep(Duration::from_millis(300 + u64::from(kill) * 37)).await;
        worker.kill().await?;
        println!("  kill -9 no. {kill}: {}", progress(&runs).await?);
        worker = start_worker(&dir)?;
    }
    for run in &runs {
        let result = run.result_within(Duration::from_secs(60)).await;
        result.with_context(|| format!("{} did not end well", run.id()))?;
    }
    worker.kill().await?;
    let sound = report(&client, &runs, &dir).await?;
    println!("\n{ORDERS} orders through {KILLS} kills in {:.1} s.", began.elapsed().as_secs_f64());
    if let Some(dir) = &args.keep {
        println!("The store is {}: look into it with sqlite3.", dir.join("demo.db").display());
    }
    println!("Next: read examples/orders, and write a workflow of your own.");
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn store_url(dir: &Path) -> String {
    format!("sqlite://{}", dir.join("demo.db").display())
}

fn start_worker(dir: &Path) -> anyhow::Result<Child> {
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    Ok(command.arg("demo-worker").arg(dir).kill_on_drop(true).spawn()?)
}

async fn progress(runs: &[Run<String>]) -> Result<String, Error> {
    let mut done = 0;
    for run in runs {
        done += usize::from(run.status().await? == RunStatus::Success);
    }
    Ok(format!("{done} of {} orders done", runs.len()))
}

/// Shows each order with how often each step ran, and says whether all is as promised.
async fn report(client: &Client, runs: &[Run<String>], dir: &Path) -> anyhow::Result<bool> {
    let log = std::fs::read_to_string(dir.join("effects.log"))?;
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    for line in log.lines() {
        *times.entry(line).or_default() += 1;
    }
    println!("\norder      status   recoveries  steps (times run)");
    let (mut again, mut sound) = (0, true);
    for (order, run) in (1..).zip(runs) {
        let info = client.get(run.id()).await?;
        let mut shown = Vec::new();
        for step in ["reserve", "charge", "pack", "ship"] {
            let count = times.get(format!("{order} {step}").as_str()).copied().unwrap_or(0);
            again += count.saturating_sub(1);
            sound &= count >= 1;
            shown.push(if count == 1 { step.to_owned() } else { format!("{step}×{count}") });
        }
        sound &= info.status == RunStatus::Success;
        let recoveries = info.attempts - 1;
        println!("{}   {}  {recoveries:>10}  {}", run.id(), info.status, shown.join(" → "));
    }
    println!(
        "\nEvery order ended. {again} step(s) were cut by a kill before their record was \
         durable and ran again; no recorded step did."
    );
    Ok(sound)
}
