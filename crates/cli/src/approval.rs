//! `steadfast approval`: what people are asked, and their answers.

use std::process::ExitCode;

use serde_json::json;
use steadfast::{ApprovalRow, ApprovalStatus, Client, ListApprovals, Timestamp, Vote};

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
    /// Questions; those that wait, unless told otherwise.
    #[command(visible_alias = "ls")]
    List {
        /// In this status, or `all`.
        #[arg(long, default_value = "pending", value_parser = status)]
        status: Which,
        /// Only of this command.
        #[arg(long)]
        command: Option<String>,
    },
    /// One question: what will be done, with what, who was asked and what they said.
    Get { id: String },
    /// Says yes.
    Approve(Answer),
    /// Says no.
    Reject(Answer),
    /// Says: not like this.
    RequestChanges(Answer),
}

#[derive(clap::Args)]
struct Answer {
    id: String,
    /// Why.
    #[arg(long, default_value = "")]
    reason: String,
    /// Who answers; the user of this shell unless given.
    #[arg(long = "as")]
    who: Option<String>,
}

#[derive(Debug, Clone, Copy)]
enum Which {
    All,
    In(ApprovalStatus),
}

fn status(text: &str) -> Result<Which, String> {
    if text == "all" {
        return Ok(Which::All);
    }
    spelled("status", text, ApprovalStatus::ALL, ApprovalStatus::as_str)
        .map(Which::In)
        .map_err(|why| format!("{why}, all"))
}

pub(crate) async fn approval(args: Args) -> anyhow::Result<ExitCode> {
    let (client, out, by) = (args.at.connect().await?, args.at.output, args.at.requested_by());
    let (vote, answer) = match args.verb {
        Verb::List { status, command } => {
            let status = match status {
                Which::All => None,
                Which::In(status) => Some(status),
            };
            let which = ListApprovals {
                status,
                command_id: command,
                limit: 1000,
                ..ListApprovals::default()
            };
            return list(&client, which, out).await;
        }
        Verb::Get { id } => return get(&client, id, out).await,
        Verb::Approve(answer) => (Vote::Approved, answer),
        Verb::Reject(answer) => (Vote::Rejected, answer),
        Verb::RequestChanges(answer) => (Vote::RequestChanges, answer),
    };
    let who = answer.who.unwrap_or(by);
    let status = client.decide(&answer.id, &who, vote, &answer.reason).await?;
    eprintln!("{} is {status}", answer.id);
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, which: ListApprovals, out: Output) -> anyhow::Result<ExitCode> {
    let mut table = Table::new(["ID", "STATUS", "ACTION", "YES", "EXPIRES", "REASON"]);
    for row in client.approvals(which).await? {
        let whole = whole(&row);
        let (yes, asked) = (format!("{}/{}", row.yes(), row.asked.approvers), row.asked);
        let cells = [
            asked.approval_id,
            row.status.as_str().to_owned(),
            asked.action,
            yes,
            asked.expires_at.iso(),
            asked.reason,
        ];
        table.row(cells, whole);
    }
    table.print(out);
    Ok(ExitCode::SUCCESS)
}

async fn get(client: &Client, id: String, out: Output) -> anyhow::Result<ExitCode> {
    let which =
        ListApprovals { approval_id: Some(id.clone()), limit: 1, ..ListApprovals::default() };
    let Some(row) = client.approvals(which).await?.into_iter().next() else {
        anyhow::bail!("there is no approval {id} [SF-0818]");
    };
    if out == Output::Json {
        println!("{}", whole(&row));
        return Ok(ExitCode::SUCCESS);
    }
    let asked = &row.asked;
    let among = if asked.among.is_empty() { "anybody".to_owned() } else { asked.among.join(", ") };
    let mut table = Table::new(["FIELD", "VALUE"]);
    for (name, value) in [
        ("approval", asked.approval_id.clone()),
        ("status", row.status.to_string()),
        ("action", asked.action.clone()),
        ("with", asked.payload.clone()),
        ("bound to", asked.digest.clone()),
        ("because", asked.reason.clone()),
        ("requested by", asked.requested_by.clone()),
        ("needs", format!("{} of {among}", asked.approvers)),
        ("expires", asked.expires_at.iso()),
        ("command", row.command_id.clone()),
    ] {
        table.row([name.to_owned(), value], json!({}));
    }
    for vote in &row.votes {
        let said = format!("{} {}", vote.vote.as_str(), vote.reason);
        table.row([vote.approver.clone(), said], json!({}));
    }
    table.print(out);
    Ok(ExitCode::SUCCESS)
}

fn whole(row: &ApprovalRow) -> serde_json::Value {
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
    let votes = row.votes.iter().map(|vote| {
        json!({
            "approver": vote.approver, "vote": vote.vote.as_str(), "reason": vote.reason,
            "at": vote.at.iso(),
        })
    });
    json!({
        "approval_id": row.asked.approval_id, "status": row.status.as_str(),
        "approval_type": row.asked.approval_type, "action": row.asked.action,
        "reason": row.asked.reason, "payload": read(&row.asked.payload),
        "digest": row.asked.digest, "requested_by": row.asked.requested_by,
        "approvers": row.asked.approvers, "among": row.asked.among,
        "command_id": row.command_id, "run_id": row.run_id,
        "expires_at": row.asked.expires_at.iso(), "created_at": row.created_at.iso(),
        "decided_at": row.decided_at.map(Timestamp::iso), "votes": votes.collect::<Vec<_>>(),
    })
}
