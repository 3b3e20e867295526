//! `steadfast policy`: what a chain would decide, without anything being done.

mod file;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use steadfast::policy::Ruling;
use steadfast::{CommandStatus, ListBudgets, ListCommands, Tried};

use self::file::{Asked, File};
use crate::output::{At, Output, Table, spelled};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Runs the chains of a file over a command, or over past commands, and over each effect and
    /// call of theirs. Exit code 1 if anything is denied.
    Test(Test),
    /// What is spent of budgets, by name: what is counted, the command, the connector and the day,
    /// with a star where it is any.
    Budgets {
        /// How many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// The last name of the page before.
        #[arg(long)]
        after: Option<String>,
    },
}

#[derive(clap::Args)]
struct Test {
    /// The policies: grants, connectors, and a chain for each command type (TOML).
    file: PathBuf,
    /// A command (JSON): type, requested_by, payload; also ingress, effects and calls.
    #[arg(long, conflicts_with = "past", required_unless_present = "past")]
    command: Option<PathBuf>,
    /// Past commands from the store: of this type, or of all that the file has.
    #[arg(long, value_name = "TYPE", num_args = 0..=1, default_missing_value = "")]
    past: Option<String>,
    /// Only past commands in this status.
    #[arg(long, value_parser = status)]
    status: Vec<CommandStatus>,
    /// How many of them, the newest first.
    #[arg(long, default_value_t = 100)]
    limit: usize,
}

fn status(text: &str) -> Result<CommandStatus, String> {
    spelled("status", text, CommandStatus::ALL, CommandStatus::as_str)
}

/// What a chain decided of a command and of each thing that it does.
type Judged = Vec<(String, Vec<Tried>)>;

pub(crate) async fn policy(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Test(test) => try_out(&test, &args.at).await,
        Verb::Budgets { limit, after } => budgets(&args.at, limit, after).await,
    }
}

async fn budgets(at: &At, limit: usize, after: Option<String>) -> anyhow::Result<ExitCode> {
    let which = ListBudgets { limit, after, ..ListBudgets::default() };
    let mut table = Table::new(["BUDGET", "SPENT", "KEPT UNTIL"]);
    for row in at.connect().await?.spent(which).await? {
        let until = row.until.map(|at| at.iso());
        let whole = json!({ "budget": row.meter, "spent": row.spent, "kept_until": until });
        let until = until.unwrap_or_else(|| "-".to_owned());
        table.row([row.meter, row.spent.to_string(), until], whole);
    }
    table.print(at.output);
    Ok(ExitCode::SUCCESS)
}

async fn try_out(test: &Test, at: &At) -> anyhow::Result<ExitCode> {
    let file = File::read(&test.file)?;
    let judged = match &test.command {
        Some(path) => vec![given(&file, path)?],
        None => past(&file, test, at).await?,
    };
    show(&judged, at.output);
    let denied = |tried: &Tried| tried.judgement.ruling() == Ruling::Deny;
    let denied = judged.iter().any(|(_, tried)| tried.iter().any(denied));
    Ok(if denied { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn given(file: &File, path: &Path) -> anyhow::Result<(String, Vec<Tried>)> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let asked: Asked =
        serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))?;
    let contract = file.contract(&asked.command_type)?;
    let tried = file.governance()?.try_out(&contract, &file.trial(&asked)?)?;
    Ok((asked.command_type, tried))
}

async fn past(file: &File, test: &Test, at: &At) -> anyhow::Result<Judged> {
    let command_type = test.past.clone().filter(|named| !named.is_empty());
    if let Some(named) = &command_type {
        file.contract(named)?;
    }
    let governance = file.governance()?;
    let (status, limit) = (test.status.clone(), test.limit);
    let which = ListCommands { command_type, status, limit, ..ListCommands::default() };
    let (mut judged, mut others) = (Judged::new(), 0);
    for (row, trial) in at.connect().await?.past(which).await? {
        match file.has(&row.command_type) {
            true => {
                let contract = file.contract(&row.command_type)?;
                judged.push((row.command_id, governance.try_out(&contract, &trial)?));
            }
            false => others += 1,
        }
    }
    if others > 0 {
        eprintln!("{others} commands are of types that the file has no chain for");
    }
    Ok(judged)
}

fn show(judged: &Judged, out: Output) {
    let mut table = Table::new(["COMMAND", "ACT", "STAGE", "RULING", "RULE", "REASON"]);
    for (of, tried) in judged {
        for one in tried {
            for decision in &one.judgement.decisions {
                let finding = &decision.finding;
                let cells = [
                    of.clone(),
                    one.what(),
                    decision.stage.as_str().to_owned(),
                    finding.ruling.as_str().to_owned(),
                    finding.rule.clone(),
                    finding.reason.clone(),
                ];
                let mut whole = json!(decision);
                whole["command"] = of.clone().into();
                whole["act"] = one.what().into();
                table.row(cells, whole);
            }
        }
    }
    table.print(out);
}
