//! `steadfast init`: a file to begin with.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

/// The file, with a word on each setting.
pub(crate) const TEMPLATE: &str = include_str!("steadfast.toml");

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write it.
    #[arg(default_value = "steadfast.toml")]
    file: PathBuf,
    /// Over what is there.
    #[arg(long)]
    force: bool,
}

pub(crate) fn init(args: &Args) -> anyhow::Result<ExitCode> {
    let file = args.file.display();
    if args.file.exists() && !args.force {
        anyhow::bail!("{file} is there already; --force writes over it");
    }
    std::fs::write(&args.file, TEMPLATE).with_context(|| format!("cannot write {file}"))?;
    println!("{file} is written. Say who your vendor is, then: steadfast sync check");
    Ok(ExitCode::SUCCESS)
}
