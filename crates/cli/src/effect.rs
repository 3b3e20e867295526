//! `steadfast effect`: the ledger, and what a person says of an effect that nobody knows about.

use std::process::ExitCode;

use serde_json::json;
use steadfast::{EffectRow, EffectStatus, InvocationRow, ListEffects, ListInvocations, Truth};

use crate::output::{At, Table, spelled};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Effects, in the order of their commands.
    #[command(visible_alias = "ls")]
    List {
        /// Only of this command.
        #[arg(long)]
        command: Option<String>,
        /// Only in this status; `unknown` are those that wait for a person.
        #[arg(long, value_parser = status)]
        status: Option<EffectStatus>,
        /// How many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Calls of connectors: what was meant against what was done.
    Calls {
        /// Only of this command.
        #[arg(long)]
        command: Option<String>,
        /// Only of this connector.
        #[arg(long)]
        connector: Option<String>,
        /// How many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Says what became of an effect whose outcome nobody knows; its run goes on from there.
    Resolve {
        id: String,
        /// It was done, with this result (JSON).
        #[arg(long, group = "truth", value_name = "RESULT", num_args = 0..=1,
              default_missing_value = "null")]
        done: Option<String>,
        /// It was not done, and is not to be.
        #[arg(long, group = "truth")]
        not_done: bool,
        /// It was not done, and is to be done now.
        #[arg(long, group = "truth")]
        again: bool,
        /// How that is known.
        #[arg(long)]
        reason: String,
    },
}

fn status(text: &str) -> Result<EffectStatus, String> {
    spelled("status", text, EffectStatus::ALL, EffectStatus::as_str)
}

pub(crate) async fn effect(args: Args) -> anyhow::Result<ExitCode> {
    let (client, out, by) = (args.at.connect().await?, args.at.output, args.at.requested_by());
    match args.verb {
        Verb::List { command, status, limit } => {
            let which =
                ListEffects { command_id: command, status, limit, ..ListEffects::default() };
            let mut table = Table::new(["ID", "COMMAND", "EFFECT", "STATUS", "KEY", "UNDONE"]);
            for row in client.effects(which).await? {
                let whole = whole(&row);
                let undone = match (&row.compensation, row.compensated_at) {
                    (_, Some(at)) => at.iso(),
                    (Some(by), None) => format!("by {by}, if it must be"),
                    (None, None) => "-".to_owned(),
                };
                let status = row.status.as_str().to_owned();
                let key = row.idempotency_key;
                table.row(
                    [row.effect_id, row.command_id, row.effect_type, status, key, undone],
                    whole,
                );
            }
            table.print(out);
        }
        Verb::Calls { command, connector, limit } => {
            let which = ListInvocations {
                command_id: command,
                connector,
                limit,
                ..ListInvocations::default()
            };
            let mut table = Table::new(["ID", "AT", "CONNECTOR", "MEANT", "IS", "COST", "ANSWER"]);
            for row in client.invocations(which).await? {
                let whole = whole_call(&row);
                let answer = row.error.as_ref().map_or(row.outputs.clone(), ToString::to_string);
                let cost = row.cost_units.map_or_else(|| "-".to_owned(), |units| units.to_string());
                let (at, is) = (row.created_at.iso(), row.verification);
                let cells = [row.invocation_id, at, row.connector, row.intended, is, cost, answer];
                table.row(cells, whole);
            }
            table.print(out);
        }
        Verb::Resolve { id, done, not_done, again, reason } => {
            let truth = match (done, not_done, again) {
                (Some(result), _, _) => {
                    let value: serde_json::Value = serde_json::from_str(&result)
                        .map_err(|e| anyhow::anyhow!("the result is no JSON: {e}"))?;
                    Truth::Done(value.to_string())
                }
                (None, true, _) => Truth::NotDone,
                (None, _, true) => Truth::Again,
                (None, false, false) => {
                    anyhow::bail!("say what is true: --done [RESULT], --not-done or --again")
                }
            };
            client.resolve_effect(&id, truth, &by, &reason).await?;
            eprintln!("{id} is resolved");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn whole(row: &EffectRow) -> serde_json::Value {
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
    json!({
        "effect_id": row.effect_id, "command_id": row.command_id, "run_id": row.run_id,
        "ordinal": row.ordinal, "effect_type": row.effect_type, "status": row.status.as_str(),
        "idempotency_key": row.idempotency_key, "payload": read(&row.payload),
        "result": row.result.as_deref().map(read), "error": row.error,
        "compensation": row.compensation, "compensates": row.compensates,
        "compensated_at": row.compensated_at.map(steadfast::Timestamp::iso),
        "created_at": row.created_at.iso(),
        "completed_at": row.completed_at.map(steadfast::Timestamp::iso),
    })
}

fn whole_call(row: &InvocationRow) -> serde_json::Value {
    json!({
        "invocation_id": row.invocation_id, "command_id": row.command_id, "run_id": row.run_id,
        "connector": row.connector, "agent": row.agent, "intended": row.intended,
        "actual": row.actual, "inputs": row.inputs, "outputs": row.outputs,
        "side_effect": row.side_effect, "idempotency_key": row.idempotency_key,
        "verification": row.verification, "error": row.error, "latency_us": row.latency_us,
        "cost_units": row.cost_units,
        "at": row.created_at.iso(),
    })
}
