//! `steadfast explain`: an error code's page, or what a run waits for.

use std::process::ExitCode;

use anyhow::Context;
use steadfast::Client;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// An error code such as SF-0110, or a run's id.
    what: String,
    /// The store that the run is in.
    #[arg(long, env = "STEADFAST_STORE")]
    store: Option<String>,
    /// The workspace that the run is in.
    #[arg(long, default_value = "default")]
    workspace: String,
}

/// The pages, as they were when this program was built.
const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

pub(crate) async fn explain(args: Args) -> anyhow::Result<ExitCode> {
    let code = args.what.to_ascii_uppercase();
    if let Some((_, page)) = PAGES.iter().find(|(name, _)| *name == code) {
        println!("{}", page.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    if code.starts_with("SF-") {
        anyhow::bail!("there is no error code {code}");
    }
    let store = args.store.context("to explain a run, name its store with --store URL")?;
    let client = Client::connect_to(&store, &args.workspace).await?;
    println!("{}", client.explain(&args.what).await?);
    Ok(ExitCode::SUCCESS)
}
