//! Reading: runs, records, values, streams, commands.

use steadfast_core::{RunStatus, Timestamp, limits};

use super::{command, dependency, rows};
use crate::error::Error;
use crate::gate::{Tx, Value, first, params};
use crate::op::{
    CommandDetail, CommandPage, Duplicate, Ends, FoundCommand, FoundRun, FoundValue, GetCommand,
    GetEnds, GetRun, GetValue, ListCommands, ListRuns, ListSteps, Load, Loaded, PendingSignal,
    ReadStream, RunPage, RunRow, StepPage, StreamPage,
};

pub(super) async fn get_run(tx: &mut impl Tx, op: &GetRun) -> Result<FoundRun, Error> {
    let at = params! { workspace: &op.workspace, run_id: &op.run_id };
    let row = first(tx, "run_get", at).await?.map(rows::run).transpose()?;
    Ok(FoundRun(row.map(|run| Box::new(run.as_of(op.now)))))
}

pub(super) async fn get_ends(tx: &mut impl Tx, op: &GetEnds) -> Result<Ends, Error> {
    let ids = op.run_ids.iter().map(String::as_str);
    over(tx, &op.workspace, ids.collect(), op.now).await.map(Ends)
}

/// Those of some runs that are over, by id.
async fn over(
    tx: &mut impl Tx,
    ws: &str,
    run_ids: Vec<&str>,
    now: Timestamp,
) -> Result<Vec<RunRow>, Error> {
    if run_ids.is_empty() {
        return Ok(Vec::new());
    }
    let which = params! { workspace: ws, run_ids: run_ids, now: now };
    let mut over = rows::runs(tx.query("run_over", which).await?)?;
    over = over.into_iter().map(|run| run.as_of(now)).collect();
    over.sort_by(|a, b| a.run_id.cmp(&b.run_id));
    Ok(over)
}

pub(super) async fn list_runs(tx: &mut impl Tx, op: &ListRuns) -> Result<RunPage, Error> {
    let limit = op.limit;
    let (conditions, mut params) = conditions(op);
    params.push(("workspace", Value::from(&op.workspace)));
    params.push(("limit", Value::from(limit + 1)));
    let mut runs = rows::runs(tx.query_where("run_list", &conditions, &params).await?)?;
    let more = runs.len() > limit;
    runs.truncate(limit);
    let next = runs.last().filter(|_| more).map(|run| (run.created_at, run.run_id.clone()));
    let runs = runs.into_iter().map(|run| run.as_of(op.now)).collect();
    Ok(RunPage { runs, next })
}

/// The index by parent holds only runs that have one, and is used only if that is said.
pub(crate) const CHILDREN_OF: &str = "parent = :parent AND parent <> ''";

/// The conditions of a filter: fixed texts with named parameters, never a caller's text.
fn conditions(op: &ListRuns) -> (String, Vec<(&'static str, Value<'_>)>) {
    let filter = &op.filter;
    let mut texts: Vec<&'static str> = vec!["1 = 1"];
    let mut params: Vec<(&'static str, Value)> = Vec::new();
    if !filter.status.is_empty() {
        // An overdue run counts as cancelled, whatever its row says.
        texts.push(match filter.status.contains(&RunStatus::Cancelled) {
            true => "(status IN (:statuses) OR finished_at IS NULL AND deadline_at <= :as_of)",
            false => {
                "status IN (:statuses) \
                 AND (finished_at IS NOT NULL OR deadline_at IS NULL OR deadline_at > :as_of)"
            }
        });
        let statuses: Vec<String> = filter.status.iter().map(|s| s.as_str().to_owned()).collect();
        params.push(("statuses", statuses.into()));
        params.push(("as_of", op.now.into()));
    }
    let equals = [
        ("workflow = :workflow", "workflow", &filter.workflow),
        ("queue = :queue", "queue", &filter.queue),
        ("app_version = :app_version", "app_version", &filter.app_version),
        ("forked_from = :forked_from", "forked_from", &filter.forked_from),
    ];
    for (text, name, value) in equals {
        if let Some(value) = value {
            texts.push(text);
            params.push((name, value.into()));
        }
    }
    if let Some(parent) = &filter.parent {
        texts.push(match parent.is_empty() {
            true => "parent = :parent",
            false => CHILDREN_OF,
        });
        params.push(("parent", parent.into()));
    }
    if let Some(prefix) = &filter.id_prefix {
        // A range, so that the prefix needs no escaping and compares as bytes.
        texts.push("run_id >= :prefix AND run_id < :prefix_end");
        params.push(("prefix", prefix.into()));
        params.push(("prefix_end", format!("{prefix}\u{10FFFF}").into()));
    }
    if let Some(from) = filter.created_from {
        texts.push("created_at >= :created_from");
        params.push(("created_from", from.into()));
    }
    if let Some(to) = filter.created_to {
        texts.push("created_at < :created_to");
        params.push(("created_to", to.into()));
    }
    if let Some((at, run_id)) = &op.after {
        texts.push("(created_at < :after_at OR (created_at = :after_at AND run_id < :after_id))");
        params.push(("after_at", (*at).into()));
        params.push(("after_id", run_id.into()));
    }
    (texts.join(" AND "), params)
}

pub(super) async fn list_steps(tx: &mut impl Tx, op: &ListSteps) -> Result<StepPage, Error> {
    let at = params! {
        workspace: &op.workspace, run_id: &op.run_id, from: op.from, limit: op.limit,
    };
    let rows = tx.query("step_list", at).await?;
    Ok(StepPage(rows.into_iter().map(rows::record).collect::<Result<_, _>>()?))
}

pub(super) async fn load(tx: &mut impl Tx, op: &Load) -> Result<Loaded, Error> {
    let at = params! { workspace: &op.workspace, run_id: &op.run_id };
    // The counter first: what arrives between these reads is then seen as new by the suspension.
    let run = first(tx, "run_get", at).await?.map(rows::run).transpose()?;
    let inbox = run.map_or(0, |run| run.inbox);
    let mut signals = Vec::new();
    // Those that nobody waits for may be many, and must not stand before the others.
    let wanted = if op.names.is_empty() { "1 = 1" } else { "name IN (:names)" };
    let unread = params! {
        workspace: &op.workspace, run_id: &op.run_id, signals: limits::SIGNALS_PER_LOAD,
        names: op.names.clone(),
    };
    for mut row in tx.query_where("signal_pending", wanted, unread).await? {
        signals.push(PendingSignal { seq: row.int()?, name: row.text()?, payload: row.text()? });
    }
    let children = op.children.iter().map(String::as_str);
    let over = over(tx, &op.workspace, children.collect(), op.now).await?;
    let missing = missing(tx, op, &over).await?;
    Ok(Loaded { signals, inbox, over, missing })
}

/// Children that nobody will ever announce the end of.
async fn missing(tx: &mut impl Tx, op: &Load, over: &[RunRow]) -> Result<Vec<String>, Error> {
    let is_over = |id: &String| over.iter().any(|run| run.run_id == *id);
    let mut missing: Vec<String> = op.children.iter().filter(|id| !is_over(id)).cloned().collect();
    if missing.is_empty() {
        return Ok(missing);
    }
    let which = params! { workspace: &op.workspace, run_ids: missing.clone() };
    for mut row in tx.query("run_known", which).await? {
        let known = row.text()?;
        missing.retain(|id| *id != known);
    }
    missing.sort();
    missing.dedup();
    Ok(missing)
}

pub(super) async fn get_value(tx: &mut impl Tx, op: &GetValue) -> Result<FoundValue, Error> {
    let at = params! { workspace: &op.workspace, run_id: &op.run_id, value_key: &op.key };
    Ok(FoundValue(match first(tx, "value_get", at).await? {
        Some(mut row) => Some(row.text()?),
        None => None,
    }))
}

pub(super) async fn read_stream(tx: &mut impl Tx, op: &ReadStream) -> Result<StreamPage, Error> {
    let limit = op.limit;
    let at = params! {
        workspace: &op.workspace, run_id: &op.run_id, stream: &op.stream, from: op.from,
        limit: limit,
    };
    // The run first: if it is over, no item can follow those read after.
    let run = first(tx, "run_get", at).await?.map(rows::run).transpose()?;
    let mut closed = run.is_none_or(|run| run.status.is_terminal());
    let mut items = Vec::new();
    let rows = tx.query("stream_read", at).await?;
    let full = rows.len() == limit;
    for mut row in rows {
        match row.opt_text()? {
            Some(item) => items.push(item),
            None => {
                return Ok(StreamPage { items, closed: true });
            }
        }
    }
    closed &= !full;
    Ok(StreamPage { items, closed })
}

pub(super) async fn get_command(tx: &mut impl Tx, op: &GetCommand) -> Result<FoundCommand, Error> {
    let ws = op.workspace.as_str();
    let Some(command) = command::find(tx, ws, &op.which).await? else {
        return Ok(FoundCommand(None));
    };
    let after = dependency::parents(tx, ws, &command.command_id).await?;
    let at = params! {
        workspace: ws, command_id: &command.command_id, limit: command::DUPLICATES,
    };
    let mut duplicates = Vec::new();
    for mut row in tx.query("duplicate_list", at).await? {
        let (requested_by, ingress) = (row.text()?, row.text()?);
        duplicates.push(Duplicate { requested_by, ingress, at: row.time()? });
    }
    let after = after.into_iter().map(|(parent, _)| parent).collect();
    Ok(FoundCommand(Some(Box::new(CommandDetail { command, after, duplicates }))))
}

pub(super) async fn list_commands(
    tx: &mut impl Tx,
    op: &ListCommands,
) -> Result<CommandPage, Error> {
    let limit = op.limit;
    let mut texts: Vec<&'static str> = vec!["1 = 1"];
    let mut given: Vec<(&'static str, Value)> =
        vec![("workspace", Value::from(&op.workspace)), ("limit", Value::from(limit + 1))];
    if let Some(command_type) = &op.command_type {
        texts.push("command_type = :command_type");
        given.push(("command_type", command_type.into()));
    }
    if !op.status.is_empty() {
        texts.push("status IN (:statuses)");
        let statuses: Vec<String> = op.status.iter().map(|s| s.as_str().to_owned()).collect();
        given.push(("statuses", statuses.into()));
    }
    if let Some(id) = &op.after {
        texts.push("command_id < :after_id");
        given.push(("after_id", id.into()));
    }
    let found = tx.query_where("command_list", &texts.join(" AND "), &given).await?;
    let mut commands = found.into_iter().map(rows::command).collect::<Result<Vec<_>, _>>()?;
    let more = commands.len() > limit;
    commands.truncate(limit);
    let next = commands.last().filter(|_| more).map(|c| c.command_id.clone());
    Ok(CommandPage { commands, next })
}
