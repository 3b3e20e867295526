//! `steadfast schedule`: what fires when, what became of it, and the operator's hands on it.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;
use steadfast::parts::core::schedule::parse_moment;
use steadfast::{Backfill, Client, Error, SlotStatus, Timestamp, When};

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
    /// Every schedule and event trigger.
    #[command(visible_alias = "ls")]
    List,
    /// One schedule: its cron in words, its policies, where it stands.
    Get { id: String },
    /// The next nominal times.
    Next {
        id: String,
        /// How many.
        #[arg(long, default_value_t = 5)]
        count: usize,
    },
    /// What became of the latest nominal times.
    Slots {
        id: String,
        /// How many.
        #[arg(long, default_value_t = 30)]
        count: usize,
    },
    /// Fires it now, as one more command; its own slots are not touched.
    Trigger { id: String },
    /// Stops it from firing.
    Pause {
        id: String,
        /// Why; its missed slots will tell.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Lets it fire again; what it missed is decided by its misfire policy.
    Resume { id: String },
    /// Makes the commands of past slots, behind fresh ones.
    Backfill {
        id: String,
        /// The first nominal time: a day, or ISO 8601.
        #[arg(long)]
        from: String,
        /// The last one; a day is meant whole.
        #[arg(long)]
        to: String,
        /// Leaves alone what has fired.
        #[arg(long)]
        only_missing: bool,
        /// Shows what would be done, and does nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) async fn schedule(args: Args) -> anyhow::Result<ExitCode> {
    let (client, out, by) = (args.at.connect().await?, args.at.output, args.at.requested_by());
    match args.verb {
        Verb::List => list(&client, out).await?,
        Verb::Get { id } => get(&client, &id, out).await?,
        Verb::Next { id, count } => {
            let times = client.schedule(id).next(count).await?;
            let mut table = Table::new(["NEXT"]);
            for at in times {
                table.row([at.iso()], json!({ "scheduled_for": at.iso() }));
            }
            table.print(out);
        }
        Verb::Slots { id, count } => slots(&client, &id, count, out).await?,
        Verb::Trigger { id } => {
            let (command_id, new) = client.schedule(id).trigger(&by).await?;
            let word = if new { "new" } else { "there already" };
            let mut table = Table::new(["COMMAND", "STATE"]);
            let whole = json!({ "command_id": command_id, "new": new });
            table.row([command_id, word.to_owned()], whole);
            table.print(out);
        }
        Verb::Pause { id, reason } => {
            client.schedule(id.clone()).pause(&reason).await?;
            eprintln!("{id} is paused");
        }
        Verb::Resume { id } => {
            client.schedule(id.clone()).resume().await?;
            eprintln!("{id} is active");
        }
        Verb::Backfill { id, from, to, only_missing, dry_run } => {
            let which =
                Backfill { from: parse_moment(&from)?, until: end_of(&to)?, only_missing, dry_run };
            return backfill(&client, &id, &which, &by, out).await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The end of a day, or a moment.
fn end_of(text: &str) -> Result<Timestamp, Error> {
    let at = parse_moment(text)?;
    let day = std::time::Duration::from_secs(86_400) - std::time::Duration::from_micros(1);
    Ok(if text.len() == 10 { at.after(day) } else { at })
}

async fn list(client: &Client, out: Output) -> anyhow::Result<()> {
    let mut table = Table::new(["ID", "KIND", "STATE", "NEXT", "FIRES", "SUBMITS"]);
    for row in client.triggers().await? {
        // One that cannot be read must not hide the others.
        let described = describe(&row);
        let (fires, submits) =
            described.unwrap_or_else(|e| (format!("unreadable: {e}"), "-".into()));
        let next = match row.due_at {
            Timestamp::NEVER => "-".to_owned(),
            at => at.iso(),
        };
        let whole = json!({
            "id": row.trigger_id, "kind": row.kind, "state": row.state.as_str(),
            "reason": row.reason, "next": next, "revision": row.revision,
            "spec": serde_json::from_str::<serde_json::Value>(&row.spec).unwrap_or_default(),
        });
        let state = row.state.as_str().to_owned();
        table.row([row.trigger_id, row.kind, state, next, fires, submits], whole);
    }
    table.print(out);
    Ok(())
}

/// When a trigger fires, in words, and what it submits.
fn describe(row: &steadfast::TriggerInfo) -> anyhow::Result<(String, String)> {
    let trigger: steadfast::Trigger = serde_json::from_str(&row.spec)?;
    let fires = match &trigger.when {
        When::Cron(cron) => steadfast::Calendar::new(cron)?.describe(),
        When::Event(event) => match &event.filter {
            Some(filter) => format!("on {} where {filter}", event.event_type),
            None => format!("on {}", event.event_type),
        },
    };
    Ok((fires, trigger.command.name))
}

async fn get(client: &Client, id: &str, out: Output) -> anyhow::Result<()> {
    let row = client.schedule(id).info().await?;
    let (fires, submits) = describe(&row)?;
    let spec: serde_json::Value = serde_json::from_str(&row.spec)?;
    let mut table = Table::new(["FIELD", "VALUE"]);
    // Why it was away once is told by its slots.
    let is_active = row.state == steadfast::TriggerState::Active;
    let mut fields = vec![
        ("id", row.trigger_id.clone()),
        ("state", row.state.as_str().to_owned()),
        ("reason", if is_active { String::new() } else { row.reason.clone() }),
        ("fires", fires),
        ("submits", submits),
        ("revision", row.revision.to_string()),
        ("decided up to", row.cursor_at.iso()),
        ("next", row.due_at.iso()),
    ];
    for name in [
        "misfire_policy",
        "catchup_limit",
        "catchup_window_seconds",
        "grace_seconds",
        "jitter_seconds",
        "overlap",
        "filter",
    ] {
        if let Some(value) = spec["when"].get(name).filter(|value| !value.is_null()) {
            fields.push((name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        }
    }
    for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
        let whole = json!({ "field": name, "value": value });
        table.row([name.to_owned(), value], whole);
    }
    table.print(out);
    Ok(())
}

async fn slots(client: &Client, id: &str, count: usize, out: Output) -> anyhow::Result<()> {
    let schedule = client.schedule(id);
    schedule.info().await?;
    let mut table = Table::new(["SCHEDULED FOR", "STATUS", "LAG", "COMMAND", "REASON"]);
    for slot in schedule.slots(count).await? {
        let lag = format!("{:.1}s", slot.lag_us as f64 / 1e6);
        let whole = json!({
            "scheduled_for": slot.nominal_at.iso(), "status": slot.status.as_str(),
            "lag_seconds": slot.lag_us as f64 / 1e6, "command_id": slot.command_id,
            "reason": slot.reason, "into": slot.into_at.map(Timestamp::iso),
            "window_from": slot.window_from.map(Timestamp::iso), "revision": slot.revision,
        });
        let command = if slot.command_id.is_empty() { "-".to_owned() } else { slot.command_id };
        let status = slot.status.as_str().to_owned();
        table.row([slot.nominal_at.iso(), status, lag, command, slot.reason], whole);
    }
    table.print(out);
    Ok(())
}

async fn backfill(
    client: &Client,
    id: &str,
    which: &Backfill,
    by: &str,
    out: Output,
) -> anyhow::Result<ExitCode> {
    let filled = client.schedule(id).backfill(which, by).await?;
    if filled.is_empty() {
        bail!("{id} has no nominal times in that range");
    }
    let mut table = Table::new(["SCHEDULED FOR", "WAS", "NOW"]);
    for line in &filled {
        let was = line.before.map_or("-", SlotStatus::as_str).to_owned();
        let now = match &line.command {
            Some((id, true)) => format!("command {id}"),
            Some((id, false)) => format!("command {id} was there already"),
            None if line.note.is_empty() => "would be made".to_owned(),
            None => line.note.clone(),
        };
        let whole = json!({
            "scheduled_for": line.nominal.iso(), "was": was,
            "command_id": line.command.as_ref().map(|(id, _)| id),
            "new": line.command.as_ref().map(|(_, new)| new), "note": line.note,
        });
        table.row([line.nominal.iso(), was, now], whole);
    }
    table.print(out);
    let made = filled.iter().filter(|line| line.command.as_ref().is_some_and(|(_, new)| *new));
    eprintln!("{} of {} slots: new commands", made.count(), filled.len());
    Ok(ExitCode::SUCCESS)
}
