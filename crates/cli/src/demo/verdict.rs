//! The verdict: the objective, judged by what the warehouse holds and what the vendor saw.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast::connector::{Connector, Operation, Outbound};
use steadfast::{Ingress, ListCommands, limits};
use steadfast_connectors::{Sql, SqlConnector};
use steadfast_sync::simulator::{Day, PAGER, Seen};
use steadfast_sync::status::Mark;
use steadfast_sync::{Decimal, Order, Report, job};

use super::night::Night;
use super::stage::Stage;

/// By when a night must be done.
const IN_TIME: Duration = Duration::from_secs(300);
/// Attempts at one page.
const ATTEMPTS: usize = 4;
/// What is audited where nothing is written.
const SKIPPED: &str = "snapshot.stale_detected";

/// What the warehouse holds of a day.
struct Held {
    rows: u64,
    total: Decimal,
}

/// Prints the nights; gives what is not as it was promised.
pub(super) async fn judge(stage: &Stage, nights: &[Night]) -> anyhow::Result<Vec<String>> {
    let warehouse = reader(stage)?;
    let writes = writes(&warehouse).await?;
    let log: Vec<Seen> =
        stage.vendor.log().into_iter().filter(|seen| seen.operation != PAGER).collect();
    let mut problems = requests(&log);
    println!("day         outcome   rows       total  vendor says  requests  writes");
    for night in nights {
        let date = &night.date;
        let held = held(&warehouse, date).await?;
        let day = stage.vendor.day(date);
        let written = writes.get(date).copied().unwrap_or(0);
        let asked = log.iter().filter(|seen| seen.date == *date).count();
        // A partition that was not written is not an empty one.
        let (rows, total) = match held.rows {
            0 => ("-".to_owned(), "-".to_owned()),
            rows => (rows.to_string(), held.total.to_string()),
        };
        println!(
            "{date}  {:<8}  {rows:>4}  {total:>10}  {:>11}  {asked:>8}  {written:>6}  {}",
            night.mark, day.total, night.event
        );
        let mut wrong = match night.mark {
            Mark::Loaded => loaded(&held, &day, written),
            Mark::Stale => stale(stage, night, &held, written).await?,
            other => vec![format!("{other}: {:?}", night.report)],
        };
        let ended = matches!(night.mark, Mark::Loaded | Mark::Stale);
        if ended && night.fired_at.until(night.ended_at) > IN_TIME {
            wrong.push(format!("{} at {}, which is late", night.mark, night.ended_at));
        }
        if night.twice {
            wrong.extend(fired_twice(stage, night).await?);
        }
        problems.extend(wrong.into_iter().map(|why| format!("{date}: {why}")));
    }
    Ok(problems)
}

/// What is wrong with a night that was loaded.
fn loaded(held: &Held, day: &Day, written: u32) -> Vec<String> {
    let mut wrong = Vec::new();
    if held.total != day.total || held.rows != day.rows.len() as u64 {
        wrong.push(format!("{} rows, {} are not the vendor's", held.rows, held.total));
    }
    if written != 1 {
        wrong.push(format!("written {written} times"));
    }
    wrong
}

/// What is wrong with a night without news: it too is on record.
async fn stale(
    stage: &Stage,
    night: &Night,
    held: &Held,
    written: u32,
) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    if held.rows > 0 || written > 0 {
        wrong.push("stale, and written".to_owned());
    }
    let events = stage.client.command::<Report>(&night.command_id).events().await?;
    let skips = events.iter().filter(|event| event.event_type == SKIPPED);
    let audited = skips.filter(|event| event.purpose == "audit").count();
    if audited != 1 {
        wrong.push(format!("stale, and {SKIPPED} is audited {audited} times"));
    }
    Ok(wrong)
}

/// What is wrong with a night for which the schedule fired twice: there is one command, which knows
/// of both.
async fn fired_twice(stage: &Stage, night: &Night) -> anyhow::Result<Vec<String>> {
    let command_type = Some(job::COMMAND.to_owned());
    let which = ListCommands { command_type, limit: limits::PAGE_ROWS, ..Default::default() };
    let all = stage.client.commands(which).await?.commands;
    let of_night = |payload: &str| {
        let order = serde_json::from_str::<Order>(payload);
        order.is_ok_and(|order| order.target_date == night.date)
    };
    let commands = all.iter().filter(|row| of_night(&row.payload)).count();
    let mut wrong = Vec::new();
    if commands != 1 {
        wrong.push(format!("fired twice, and there are {commands} commands"));
    }
    let info = stage.client.command::<Report>(&night.command_id).info().await?;
    let by_schedule = |door: &str| door == Ingress::ScheduledTrigger.as_str();
    let again = info.duplicates.iter().any(|fire| by_schedule(&fire.ingress));
    if info.command.collapsed < 1 || !again || !by_schedule(&info.command.ingress) {
        let times = info.command.collapsed;
        wrong.push(format!("fired twice, and its command has seen {times} further fires"));
    }
    Ok(wrong)
}

/// What the vendor's own log says: one trace for each command.
fn requests(log: &[Seen]) -> Vec<String> {
    let mut by_trace: BTreeMap<&str, Vec<&Seen>> = BTreeMap::new();
    for seen in log {
        by_trace.entry(&seen.trace).or_default().push(seen);
    }
    let mut problems = Vec::new();
    for seen in by_trace.values() {
        for (at, request) in seen.iter().enumerate() {
            let after = seen.get(at + 1);
            let date = &request.date;
            let refused = (400..500).contains(&request.status) && request.status != 429;
            if refused && after.is_some() {
                problems.push(format!("{date}: {} was tried again", request.status));
            }
            let before = seen[..at].iter().filter(|s| s.page == request.page).count();
            let passing = request.status >= 500 || request.status == 429;
            if passing && after.is_none() && before + 1 < ATTEMPTS {
                problems.push(format!("{date}: {} was not tried again", request.status));
            }
        }
    }
    problems
}

/// A way to look, of its own.
fn reader(stage: &Stage) -> anyhow::Result<SqlConnector> {
    let at = &stage.config().warehouse;
    let reads = ["warehouse.sales_daily", "warehouse.steadfast_outbound"];
    let mut sql = Sql::connect("look", &at.url);
    for table in reads {
        sql = sql.allow(Operation::read(format!("select {table}")));
    }
    Ok(sql.build()?)
}

async fn rows(warehouse: &SqlConnector, table: &str, input: Value) -> anyhow::Result<Vec<Value>> {
    let asked = Outbound::new(format!("select warehouse.{table}"), input);
    let mut found = warehouse.send(&asked).await?.output;
    Ok(found["rows"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

async fn held(warehouse: &SqlConnector, date: &str) -> anyhow::Result<Held> {
    let input = json!({ "where": { "target_date": date }, "limit": 1000 });
    let found = rows(warehouse, "sales_daily", input).await?;
    let revenue = |row: &Value| match &row["revenue"] {
        Value::String(text) => text.parse::<Decimal>().unwrap_or_default(),
        other => other.to_string().parse().unwrap_or_default(),
    };
    Ok(Held { rows: found.len() as u64, total: found.iter().map(revenue).sum() })
}

/// Loads that were committed, by day: each has left its key in the same transaction.
async fn writes(warehouse: &SqlConnector) -> anyhow::Result<BTreeMap<String, u32>> {
    let found = rows(warehouse, "steadfast_outbound", json!({ "limit": 1000 })).await?;
    let mut writes = BTreeMap::new();
    for row in &found {
        let key = row["outbound_key"].as_str().unwrap_or_default();
        let date = key.split(':').nth(2).unwrap_or_default();
        *writes.entry(date.to_owned()).or_default() += 1;
    }
    Ok(writes)
}
