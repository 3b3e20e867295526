//! `steadfast demo`: thirty nights of the sync in a few seconds, with everything going wrong that
//! does, and a verdict from outside.
//!
//! Everything is real but the calendar: a store and a warehouse in files, a vendor behind HTTP, a
//! worker in another process that is killed with SIGKILL, a `steadfast.toml` as anybody writes it.
//! The clock leaps from night to night and over the waits; what is judged is what the vendor saw
//! and what the warehouse holds.

mod night;
mod stage;
mod verdict;
mod worker;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;

pub(crate) use worker::{Args as WorkerArgs, worker};

use stage::Stage;

/// How many nights are played.
const NIGHTS: usize = 30;
/// How many commands fail for good, so that somebody is paged: a 400 and a 401.
const FAILURES: usize = 2;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Keep the store, the warehouse and the configuration in this directory.
    #[arg(long)]
    keep: Option<PathBuf>,
}

pub(crate) async fn demo(args: Args) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::tempdir()?;
    let dir = match &args.keep {
        Some(dir) => {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            if dir.join("steadfast.db").exists() {
                anyhow::bail!("{} holds an earlier demonstration; name another", dir.display());
            }
            dir.canonicalize()?
        }
        None => temporary.path().to_owned(),
    };
    tokio::select! {
        played = play(dir, args.keep.is_some()) => played,
        // The worker goes with the stage.
        _ = tokio::signal::ctrl_c() => {
            clear(temporary.path()).await;
            println!("\nStopped. Nothing is left running.");
            Ok(ExitCode::from(130))
        }
    }
}

/// Removes a folder. Whoever was killed in it may still write its last, so it is tried for a while.
async fn clear(folder: &Path) {
    for _ in 0..50 {
        // Whether it is gone says more than why it was not.
        let _ = std::fs::remove_dir_all(folder);
        if !folder.exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn play(dir: PathBuf, kept: bool) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let mut stage = Stage::set(dir).await?;
    println!(
        "A vendor at {}, a warehouse and a store in files, a worker in another process.\n\
         {NIGHTS} nights of sync_vendor_sales at 03:00 UTC, each for the sales of the day before; \
         the clock skips\nthe days between. # is a night that was loaded, = one without news: \
         nothing is written.\n",
        stage.url
    );
    print!("  ");
    let mut nights = Vec::new();
    for plan in night::plans(&stage.dates) {
        let night = night::play(&mut stage, plan).await?;
        print!("{}", night.mark.sign());
        std::io::stdout().flush()?;
        nights.push(night);
    }
    println!("\n");
    let mut problems = verdict::judge(&stage, &nights).await?;
    let paged = stage.paged().await?;
    if paged != FAILURES {
        problems.push(format!("on-call was paged {paged} times for {FAILURES} failures"));
    }
    stage.end().await;
    let seconds = began.elapsed().as_secs_f64();
    println!("\n{NIGHTS} nights in {seconds:.1} s; on-call was paged {paged} times.");
    if problems.is_empty() {
        println!(
            "The objective holds: every night by 03:05 the partition matches the vendor's totals, \
             or the snapshot\nwas stale and nothing was written; no write twice, no 5xx given up \
             too early, no 4xx tried again."
        );
    } else {
        println!("The objective does NOT hold:");
        problems.iter().for_each(|problem| println!("  {problem}"));
    }
    next_steps(&stage, kept);
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn next_steps(stage: &Stage, kept: bool) {
    // As it was called: after a `cargo run` it is on nobody's path.
    let steadfast = std::env::args().next().unwrap_or_else(|| "steadfast".to_owned());
    if !kept {
        println!(
            "\nNext:\n  {steadfast} demo --keep nights   # the same, and its files to look at\n\
             \x20 {steadfast} init                 # a steadfast.toml for a vendor of your own"
        );
        return;
    }
    let (dir, store) = (stage.dir.display(), stage.config().store.url.clone());
    println!(
        "\nLook around:\n  {steadfast} sync status --long --config {dir}/steadfast.toml\n  \
         {steadfast} command list --store {store}\n  \
         {steadfast} event list --store {store}\n  \
         {steadfast} audit verify --store {store}\n\
         The vendor was part of the demonstration and is gone; what it sold is in \
         {dir}/warehouse.db."
    );
}
