//! `steadfast event`: what happened, where it was sent, and what could not be.

use std::process::ExitCode;

use serde_json::json;
use steadfast::parts::core::schedule::parse_moment;
use steadfast::{Client, EventRow, ListEvents, SinkState, Timestamp};

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
    /// Events, oldest first.
    #[command(visible_alias = "ls")]
    List(List),
    /// Where events are sent: how far each sink got, and what waits.
    Sinks,
    /// Events that were given up, by sink.
    Dead {
        /// Only of this sink.
        sink: Option<String>,
        /// How many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Sends dead letters of a sink again: one, or all. The audit has who wanted it.
    Redrive {
        sink: String,
        /// Only this event.
        #[arg(long)]
        id: Option<String>,
    },
    /// Lets a sink be sent to again; it goes on where it was.
    Enable {
        sink: String,
        /// Why.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Stops sending to a sink.
    Disable {
        sink: String,
        /// Why.
        #[arg(long, default_value = "")]
        reason: String,
    },
}

#[derive(clap::Args)]
struct List {
    /// Only of this command.
    #[arg(long)]
    command: Option<String>,
    /// Only of types that begin so: `command.`.
    #[arg(long = "type", value_name = "PREFIX")]
    type_prefix: Option<String>,
    /// Only for this purpose.
    #[arg(long, value_parser = ["event", "audit", "agent_step"])]
    purpose: Option<String>,
    /// Only from this moment on: a day, or ISO 8601.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only before then.
    #[arg(long)]
    until: Option<String>,
    /// How many.
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Where the last page ended.
    #[arg(long, value_name = "TIME,ID")]
    after: Option<String>,
    /// The same as --output json.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn event(args: Args) -> anyhow::Result<ExitCode> {
    let (client, out, by) = (args.at.connect().await?, args.at.output, args.at.requested_by());
    match args.verb {
        Verb::List(which) => list(&client, which, out).await?,
        Verb::Sinks => sinks(&client, out).await?,
        Verb::Dead { sink, limit } => dead(&client, sink.as_deref(), limit, out).await?,
        Verb::Redrive { sink, id } => {
            let count = client.redrive(&sink, id.as_deref(), &by).await?;
            eprintln!("{count} will be sent again to {sink}");
            if count == 0 && id.is_some() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Enable { sink, reason } => {
            client.set_sink(&sink, SinkState::Active, &reason, &by).await?;
            eprintln!("{sink} is active");
        }
        Verb::Disable { sink, reason } => {
            client.set_sink(&sink, SinkState::Disabled, &reason, &by).await?;
            eprintln!("{sink} is disabled");
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(client: &Client, which: List, out: Output) -> anyhow::Result<()> {
    let after = which.after.as_deref().map(cursor).transpose()?;
    let asked = ListEvents {
        command_id: which.command,
        type_prefix: which.type_prefix,
        purpose: which.purpose,
        since: which.since.as_deref().map(parse_moment).transpose()?,
        until: which.until.as_deref().map(parse_moment).transpose()?,
        after,
        limit: which.limit,
        ..ListEvents::default()
    };
    let events = client.events(asked).await?;
    let mut table = Table::new(["ID", "AT", "TYPE", "PURPOSE", "ACTOR", "COMMAND"]);
    let next = events.last().filter(|_| events.len() >= which.limit).map(EventRow::cursor);
    for event in events {
        let whole = whole(&event);
        let EventRow { event_id, event_type, purpose, actor, command_id, .. } = event;
        let at = event.created_at.iso();
        table.row([event_id, at, event_type, purpose, actor, command_id], whole);
    }
    table.print(if which.json { Output::Json } else { out });
    if let Some((at, id)) = next {
        eprintln!("more: --after {},{id}", at.as_micros());
    }
    Ok(())
}

/// A time in microseconds and an id.
fn cursor(text: &str) -> anyhow::Result<(Timestamp, String)> {
    let parts = text.split_once(',').and_then(|(at, id)| Some((at.parse().ok()?, id)));
    match parts {
        Some((at, id)) => Ok((Timestamp::from_micros(at), id.to_owned())),
        None => anyhow::bail!("--after takes what the page before has shown"),
    }
}

fn whole(event: &EventRow) -> serde_json::Value {
    let payload = serde_json::from_str::<serde_json::Value>(&event.payload).unwrap_or_default();
    json!({
        "event_id": event.event_id, "command_id": event.command_id, "purpose": event.purpose,
        "event_type": event.event_type, "payload": payload, "actor": event.actor,
        "trace_id": event.trace_id, "created_at": event.created_at.iso(),
    })
}

async fn sinks(client: &Client, out: Output) -> anyhow::Result<()> {
    let listed = client.sinks().await?;
    let mut table = Table::new(["SINK", "KIND", "STATE", "BEHIND", "PARKED", "DEAD", "PLACE"]);
    for report in listed.sinks {
        let row = report.row;
        let behind = listed.head - row.cursor;
        let state = row.state.as_str();
        let shown = match row.reason.as_str() {
            "" => state.to_owned(),
            reason => format!("{state}: {reason}"),
        };
        let whole = json!({
            "sink": row.sink, "kind": row.kind, "state": state, "reason": row.reason,
            "cursor": row.cursor, "behind": behind, "parked": report.parked,
            "dead": report.dead, "place": row.place, "owner": row.owner,
        });
        let numbers = [behind, report.parked, report.dead].map(|number| number.to_string());
        let [behind, parked, dead] = numbers;
        table.row([row.sink, row.kind, shown, behind, parked, dead, row.place], whole);
    }
    table.print(out);
    Ok(())
}

async fn dead(
    client: &Client,
    sink: Option<&str>,
    limit: usize,
    out: Output,
) -> anyhow::Result<()> {
    let mut table = Table::new(["EVENT", "SINK", "ATTEMPTS", "GIVEN UP", "ERROR"]);
    for letter in client.dead_letters(sink, None, limit).await? {
        let died_at = letter.died_at.iso();
        let whole = json!({
            "event_id": letter.event_id, "sink": letter.sink, "seq": letter.seq,
            "key": letter.key, "attempts": letter.attempt, "died_at": died_at,
            "error": letter.error,
        });
        let attempts = letter.attempt.to_string();
        table.row([letter.event_id, letter.sink, attempts, died_at, letter.error], whole);
    }
    table.print(out);
    Ok(())
}
