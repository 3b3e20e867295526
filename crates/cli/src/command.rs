//! `steadfast command`: which there are, what happened to one, and stopping it.

use std::process::ExitCode;

use serde_json::json;
use steadfast::{Client, CommandRow, CommandStatus, ListCommands};

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
    /// Commands, newest first.
    #[command(visible_alias = "ls")]
    List {
        /// Only of this type.
        #[arg(long = "type")]
        command_type: Option<String>,
        /// Only in this status.
        #[arg(long, value_parser = status)]
        status: Vec<CommandStatus>,
        /// How many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// The last id of the page before.
        #[arg(long)]
        after: Option<String>,
    },
    /// One command, by its id or its key, with everything that happened to it.
    Get { id: String },
    /// Stops a command: what is under way is let end, nothing else begins.
    Cancel {
        id: String,
        /// Why.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Takes a failed command back, where that has halted: goes on with what is left to undo.
    TakeBack { id: String },
}

fn status(text: &str) -> Result<CommandStatus, String> {
    spelled("status", text, CommandStatus::ALL, CommandStatus::as_str)
}

pub(crate) async fn command(args: Args) -> anyhow::Result<ExitCode> {
    let (client, out, by) = (args.at.connect().await?, args.at.output, args.at.requested_by());
    match args.verb {
        Verb::List { command_type, status, limit, after } => {
            let which =
                ListCommands { command_type, status, limit, after, ..ListCommands::default() };
            let page = client.commands(which).await?;
            let mut table = Table::new(["ID", "TYPE", "STATUS", "CREATED", "KEY"]);
            for row in page.commands {
                let whole = whole(&row);
                let key = row.idempotency_key.unwrap_or_else(|| "-".to_owned());
                let status = row.status.as_str().to_owned();
                table.row(
                    [row.command_id, row.command_type, status, row.created_at.iso(), key],
                    whole,
                );
            }
            table.print(out);
            if let Some(next) = page.next {
                eprintln!("more: --after {next}");
            }
        }
        Verb::Get { id } => return get(&client, &id, out).await,
        Verb::Cancel { id, reason } => {
            let status = client.command::<()>(id.clone()).cancel(&reason, &by).await?;
            eprintln!("{id} is {status}");
        }
        Verb::TakeBack { id } => {
            let run_id = client.command::<()>(id.clone()).take_back(&by).await?;
            eprintln!("{id} is taken back by run {run_id}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn whole(row: &CommandRow) -> serde_json::Value {
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
    json!({
        "command_id": row.command_id, "command_type": row.command_type,
        "status": row.status.as_str(), "requested_by": row.requested_by, "ingress": row.ingress,
        "idempotency_key": row.idempotency_key, "workflow_id": row.workflow_id,
        "payload": read(&row.payload), "context": read(&row.context),
        "result": row.result.as_deref().map(read), "error": row.error,
        "collapsed": row.collapsed, "created_at": row.created_at.iso(),
        "completed_at": row.completed_at.map(steadfast::Timestamp::iso),
    })
}

async fn get(client: &Client, id: &str, out: Output) -> anyhow::Result<ExitCode> {
    let by_key = client.command_by_key(id).await?;
    let handle = client.command::<()>(by_key.map_or(id.to_owned(), |c| c.command.command_id));
    let info = handle.info().await?;
    let events = handle.events().await?;
    if out == Output::Json {
        let mut whole = whole(&info.command);
        whole["after"] = info.after.iter().map(|p| json!(p.command_id)).collect();
        let told = events.iter().map(|event| {
            let at = event.created_at.iso();
            let payload: serde_json::Value =
                serde_json::from_str(&event.payload).unwrap_or_default();
            json!({ "type": event.event_type, "at": at, "actor": event.actor, "payload": payload })
        });
        whole["events"] = told.collect();
        println!("{whole}");
        return Ok(ExitCode::SUCCESS);
    }
    let row = &info.command;
    let mut table = Table::new(["FIELD", "VALUE"]);
    let further = Some(row.collapsed.to_string()).filter(|_| row.collapsed > 0);
    let error = row.error.as_ref().map(ToString::to_string).unwrap_or_default();
    let after: Vec<_> = info.after.iter().map(|p| p.command_id.as_str()).collect();
    for (name, value) in [
        ("command", row.command_id.clone()),
        ("type", row.command_type.clone()),
        ("status", row.status.to_string()),
        ("requested by", format!("{} ({})", row.requested_by, row.ingress)),
        ("key", row.idempotency_key.clone().unwrap_or_default()),
        ("run", row.workflow_id.clone()),
        ("payload", row.payload.clone()),
        ("result", row.result.clone().unwrap_or_default()),
        ("error", error),
        ("waits for", after.join(", ")),
        ("further triggers", further.unwrap_or_default()),
    ] {
        if !value.is_empty() {
            table.row([name.to_owned(), value], json!({}));
        }
    }
    table.print(out);
    println!();
    let mut table = Table::new(["AT", "EVENT", "ACTOR"]);
    for event in &events {
        let [at, name, actor] =
            [event.created_at.iso(), event.event_type.clone(), event.actor.clone()];
        table.row([at, name, actor], json!({}));
    }
    table.print(out);
    decisions(&events, out);
    Ok(ExitCode::SUCCESS)
}

/// What policies have decided of the command and of what left for it, stage by stage.
fn decisions(events: &[steadfast::EventRow], out: Output) {
    let mut table = Table::new(["OF", "STAGE", "SAYS", "RULE", "BECAUSE"]);
    let mut any = false;
    for event in events.iter().filter(|event| event.event_type == "policy.evaluated") {
        let judged: serde_json::Value = serde_json::from_str(&event.payload).unwrap_or_default();
        let of = judged["step"].as_str().unwrap_or("the command").to_owned();
        for decision in judged["decisions"].as_array().into_iter().flatten() {
            let text = |field: &str| decision[field].as_str().unwrap_or_default().to_owned();
            let row = [of.clone(), text("stage"), text("ruling"), text("rule"), text("reason")];
            table.row(row, json!({}));
            any = true;
        }
    }
    if any {
        println!();
        table.print(out);
    }
}
