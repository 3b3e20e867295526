//! `steadfast policy`: what a chain would decide, without anything being done.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Value, json};
use steadfast::policy::{Classes, Judgement, Ruling};
use steadfast::{CommandType, Governance, ListCommands};

use crate::output::{At, Output, Table};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Runs the chains of a file over a command, or over past commands. Exit code 1 if any is
    /// denied.
    Test {
        /// The policies: grants, and a chain for each command type (TOML).
        file: PathBuf,
        /// A command (JSON): type, requested_by, payload.
        #[arg(long, conflicts_with = "past")]
        command: Option<PathBuf>,
        /// Past commands of this type, from the store.
        #[arg(long, value_name = "TYPE")]
        past: Option<String>,
        /// How many of them, the newest first.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
}

/// A file of policies.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    grants: Vec<Grant>,
    commands: BTreeMap<String, Chain>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Grant {
    principal: String,
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chain {
    policies: Vec<String>,
    #[serde(default)]
    requires: Vec<String>,
    #[serde(default)]
    classes: Option<Classes>,
}

/// A command, as a file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(rename = "type")]
    command_type: String,
    requested_by: String,
    payload: Value,
}

impl File {
    fn read(path: &PathBuf) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("in {}", path.display()))
    }

    fn governance(&self) -> Governance {
        self.grants.iter().fold(Governance::new(), |all, grant| {
            all.grant(grant.principal.clone(), grant.allow.clone())
        })
    }

    fn contract(&self, name: &str) -> anyhow::Result<CommandType> {
        let Some(chain) = self.commands.get(name) else {
            let known: Vec<_> = self.commands.keys().map(String::as_str).collect();
            anyhow::bail!("the file has no chain for \"{name}\"; it has: {}", known.join(", "));
        };
        let contract = CommandType {
            policies: chain.policies.clone(),
            requires: chain.requires.clone(),
            classes: chain.classes,
            ..CommandType::new(name)
        };
        contract.check()?;
        Ok(contract)
    }
}

pub(crate) async fn policy(args: Args) -> anyhow::Result<ExitCode> {
    let Verb::Test { file, command, past, limit } = args.verb;
    let file = File::read(&file)?;
    let governance = file.governance();
    let mut judged: Vec<(String, Judgement)> = Vec::new();
    match (command, past) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("reading {}", path.display()))?;
            let asked: Asked =
                serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))?;
            let contract = file.contract(&asked.command_type)?;
            let decided = governance.judge(&contract, &asked.payload, &asked.requested_by)?;
            judged.push((asked.command_type, decided));
        }
        (None, Some(command_type)) => {
            let contract = file.contract(&command_type)?;
            let client = args.at.connect().await?;
            let command_type = Some(command_type);
            let which = ListCommands { command_type, limit, ..ListCommands::default() };
            for row in client.commands(which).await?.commands {
                let payload: Value = serde_json::from_str(&row.payload)?;
                let decided = governance.judge(&contract, &payload, &row.requested_by)?;
                judged.push((row.command_id, decided));
            }
        }
        (None, None) => anyhow::bail!("give a command with --command FILE, or --past TYPE"),
    }
    show(&judged, args.at.output);
    let denied = judged.iter().any(|(_, judgement)| judgement.ruling() == Ruling::Deny);
    Ok(if denied { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(judged: &[(String, Judgement)], out: Output) {
    let mut table = Table::new(["COMMAND", "STAGE", "RULING", "RULE", "REASON"]);
    for (of, judgement) in judged {
        for decision in &judgement.decisions {
            let finding = &decision.finding;
            let cells = [
                of.clone(),
                decision.stage.as_str().to_owned(),
                finding.ruling.as_str().to_owned(),
                finding.rule.clone(),
                finding.reason.clone(),
            ];
            let mut whole = json!(decision);
            whole["command"] = of.clone().into();
            table.row(cells, whole);
        }
    }
    table.print(out);
}
