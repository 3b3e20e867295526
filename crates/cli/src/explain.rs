//! `steadfast explain`: an error code's page, or what a run or a command waits for.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;
use steadfast::{Client, CommandInfo, ErrorClass, ListApprovals};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// An error code such as SF-0110, a run's id, or a command's id or key.
    what: String,
    /// The store that it is in.
    #[arg(long, env = "STEADFAST_STORE", hide_env_values = true)]
    store: Option<String>,
    /// The workspace that it is in.
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
    let store = crate::output::address(&store)?;
    let client = Client::connect_to(&store, &args.workspace).await?;
    let unknown = match client.explain(&args.what).await {
        Ok(explanation) => {
            println!("{explanation}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) if error.class() == ErrorClass::NotFound => error,
        Err(error) => return Err(error.into()),
    };
    let by_id = client.command::<Value>(&args.what).info().await.ok();
    let found = match by_id {
        Some(info) => Some(info),
        None => client.command_by_key(&args.what).await?,
    };
    match found {
        Some(info) => explain_command(&client, &info).await?,
        None => return Err(unknown.into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// What a command waits for: its run, or what keeps it from having one.
async fn explain_command(client: &Client, info: &CommandInfo) -> anyhow::Result<()> {
    let row = &info.command;
    println!("command {} ({}) is {}", row.command_id, row.command_type, row.status);
    if let Some(error) = &row.error {
        println!("  {error}");
    }
    for parent in &info.after {
        let status = client.command::<Value>(&parent.command_id).status().await?;
        println!("  it waits for command {}, which is {status}", parent.command_id);
    }
    let which = ListApprovals {
        command_id: Some(row.command_id.clone()),
        status: Some(steadfast::ApprovalStatus::Pending),
        limit: 10,
        ..ListApprovals::default()
    };
    for asked in client.approvals(which).await? {
        let (id, needed) = (&asked.asked.approval_id, asked.asked.approvers);
        println!(
            "  approval {id} waits until {}: {} of {needed} said yes to \"{}\"",
            asked.asked.expires_at.iso(),
            asked.approved_by().len(),
            asked.asked.action
        );
    }
    match client.explain(&row.workflow_id).await {
        Ok(explanation) => println!("{explanation}"),
        Err(error) if error.class() == ErrorClass::NotFound => println!("  it has no run yet"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
