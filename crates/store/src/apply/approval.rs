//! Questions to people: asked once, answered by different people, settled once.
//!
//! Invariants: votes count while the question is pending and in time; what waits (a run, or a
//! command that has not begun) goes on in the commit that settles the question.

use steadfast_core::approval::Vote;
use steadfast_core::{
    ApprovalEvent, ApprovalStatus, CommandEvent, CommandStatus, Error as Failure, ErrorClass,
    Timestamp,
};

use super::command::{self, Move};
use super::{dependency, event, rows, signal, steer};
use crate::error::Error;
use crate::gate::{Tx, Value, first, params};
use crate::op::{
    ApprovalRow, Approvals, Decide, Decided, ListApprovals, NewApproval, SettleApprovals,
    SettledApprovals, Signal, VoteRow, supplied_between,
};
use crate::sabotage;

/// Asks, unless it was asked before.
pub(super) async fn ask(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
    run_id: &str,
    asked: &NewApproval,
    now: Timestamp,
) -> Result<(), Error> {
    let due = asked.escalate_at.unwrap_or(asked.expires_at).min(asked.expires_at);
    let row = params! {
        workspace: ws, approval_id: &asked.approval_id, command_id: command_id, run_id: run_id,
        approval_type: &asked.approval_type, action: &asked.action, reason: &asked.reason,
        payload: &asked.payload, request_hash: &asked.digest, requested_by: &asked.requested_by,
        approvers: asked.approvers, among: serde_json::Value::from(asked.among.clone()).to_string(),
        expires_at: asked.expires_at, escalate_at: asked.escalate_at, due_at: due, now: now,
    };
    let new = tx.execute("approval_insert", row).await? == 1;
    if !new || !run_id.is_empty() {
        // A run tells of its questions itself, with what else it has to say.
        return Ok(());
    }
    let (of, by) = ((command_id, &*asked.approval_id), &asked.requested_by);
    tell(tx, ws, of, "requested", "approval.requested", asked.told(), by, now).await
}

async fn find(tx: &mut impl Tx, ws: &str, id: &str) -> Result<Option<ApprovalRow>, Error> {
    let at = params! { workspace: ws, approval_id: id };
    let Some(row) = first(tx, "approval_get", at).await? else {
        return Ok(None);
    };
    with_votes(tx, ws, rows::approval(row)?).await.map(Some)
}

async fn with_votes(
    tx: &mut impl Tx,
    ws: &str,
    mut row: ApprovalRow,
) -> Result<ApprovalRow, Error> {
    let at = params! { workspace: ws, approval_id: &row.asked.approval_id };
    let votes = tx.query("vote_list", at).await?;
    row.votes = votes.into_iter().map(rows::vote).collect::<Result<_, _>>()?;
    Ok(row)
}

/// The question, with everything it may move locked: the run, the command, itself.
async fn lock(tx: &mut impl Tx, ws: &str, id: &str) -> Result<Option<ApprovalRow>, Error> {
    let Some(seen) = find(tx, ws, id).await? else {
        return Ok(None);
    };
    if !seen.run_id.is_empty() {
        steer::lock(tx, ws, &seen.run_id).await?;
    }
    command::lock(tx, ws, &seen.command_id).await?;
    let at = params! { workspace: ws, approval_id: id };
    first(tx, "approval_lock", at).await?;
    find(tx, ws, id).await
}

/// Whether they asked for it, or gave the payload that it is about.
async fn is_own(tx: &mut impl Tx, op: &Decide, row: &ApprovalRow) -> Result<bool, Error> {
    let asked = op.approver == row.asked.requested_by;
    if asked && !sabotage::is_left_out("nobody approves what they asked for") {
        return Ok(true);
    }
    let (first_id, last_id) = supplied_between(&row.command_id);
    let by = params! {
        workspace: &op.workspace, first: &first_id, last: &last_id, actor: &op.approver,
    };
    Ok(!row.command_id.is_empty() && first(tx, "event_by", by).await?.is_some())
}

pub(super) async fn decide(tx: &mut impl Tx, op: &Decide) -> Result<Decided, Error> {
    let ws = op.workspace.as_str();
    let Some(row) = lock(tx, ws, &op.approval_id).await? else {
        return Ok(Decided::NotFound);
    };
    let before = row.votes.iter().find(|vote| vote.approver == op.approver);
    if before.is_some_and(|vote| vote.vote == op.vote) {
        return Ok(Decided::Again(row.status));
    }
    let late = row.asked.expires_at <= op.now && !sabotage::is_left_out("an answer comes in time");
    if row.status != ApprovalStatus::Pending || late {
        return Ok(Decided::Late(row.status));
    }
    if op.vote == Vote::Approved && is_own(tx, op, &row).await? {
        return Ok(Decided::Own);
    }
    if !row.may(&op.approver) {
        return Ok(Decided::NotAsked);
    }
    let vote = params! {
        workspace: ws, approval_id: &op.approval_id, approver: &op.approver,
        vote: op.vote.as_str(), reason: &op.reason, now: op.now,
    };
    if tx.execute("vote_insert", vote).await? != 1 {
        tx.execute("vote_update", vote).await?;
    }
    let said = serde_json::json!({
        "approval_id": op.approval_id, "vote": op.vote.as_str(), "reason": op.reason,
    });
    // A changed mind is an event of its own.
    let mark = format!("v{} {}", op.approver, op.vote.as_str());
    tell(tx, ws, named(&row), &mark, "approval.voted", said, &op.approver, op.now).await?;
    let row = find(tx, ws, &op.approval_id).await?.unwrap_or(row);
    let yes = row.yes();
    let event = match op.vote {
        Vote::Approved if yes >= row.asked.approvers => ApprovalEvent::Approve,
        Vote::Approved => return Ok(Decided::Counted(row.asked.approvers - yes)),
        Vote::Rejected | Vote::RequestChanges => ApprovalEvent::Reject,
    };
    let reason = format!("{} by {}: {}", op.vote.as_str(), op.approver, op.reason);
    close(tx, ws, &row, event, &reason, &op.approver, op.now).await?;
    let to = row.status.on(event).map_err(|e| Error::Incompatible(e.to_string()))?.to();
    Ok(Decided::Settled(to))
}

/// Settles a locked question, and lets what waits for it go on.
async fn close(
    tx: &mut impl Tx,
    ws: &str,
    row: &ApprovalRow,
    event: ApprovalEvent,
    reason: &str,
    actor: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let Ok(arrow) = row.status.on(event) else {
        return Ok(());
    };
    let to = arrow.to();
    let set = params! {
        workspace: ws, approval_id: &row.asked.approval_id, from: arrow.from().as_str(),
        to: to.as_str(), now: now,
    };
    tx.execute("approval_move", set).await?;
    let payload = serde_json::json!({
        "approval_id": row.asked.approval_id, "action": row.asked.action,
        "digest": row.asked.digest, "by": row.approved_by(), "reason": reason,
    });
    tell(tx, ws, named(row), to.as_str(), &format!("approval.{to}"), payload, actor, now).await?;
    if row.run_id.is_empty() {
        return begin_or_end(tx, ws, row, to, reason, actor, now).await;
    }
    if to != ApprovalStatus::Cancelled {
        let answer = serde_json::json!({
            "status": to.as_str(), "by": row.approved_by(), "reason": reason,
        });
        let told = Signal {
            workspace: ws.to_owned(),
            run_id: row.run_id.clone(),
            name: format!("approval:{}", row.asked.approval_id),
            signal_id: format!("approval:{}", row.asked.approval_id),
            payload: answer.to_string(),
            now,
        };
        signal::signal(tx, &told).await?;
    }
    Ok(())
}

/// A command that waited as a whole begins, or never will.
async fn begin_or_end(
    tx: &mut impl Tx,
    ws: &str,
    row: &ApprovalRow,
    to: ApprovalStatus,
    reason: &str,
    actor: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let Some(held) = command::lock(tx, ws, &row.command_id).await? else {
        return Ok(());
    };
    if held.status != CommandStatus::WaitingForApproval {
        return Ok(());
    }
    let error = refusal(&row.asked.approval_id, to, reason);
    let (event, error) = match to {
        ApprovalStatus::Approved => (CommandEvent::Approve, None),
        ApprovalStatus::Expired => (CommandEvent::Expire, Some(&error)),
        ApprovalStatus::Pending | ApprovalStatus::Cancelled => return Ok(()),
        ApprovalStatus::Rejected => (CommandEvent::Fail, Some(&error)),
    };
    let moved = Move {
        ws,
        command_id: &row.command_id,
        event,
        result: None,
        error,
        actor,
        until: held.due(),
        now,
    };
    moved.take(tx, &held).await?;
    let over = match event {
        CommandEvent::Approve => dependency::release_one(tx, ws, &row.command_id, now).await?,
        _ => true,
    };
    if over {
        dependency::release(tx, ws, &row.command_id, now).await?;
    }
    Ok(())
}

/// Why something was not done.
pub(super) fn refusal(approval_id: &str, to: ApprovalStatus, reason: &str) -> Failure {
    let text = format!("approval \"{approval_id}\" is {to}: {reason}");
    Failure::new(ErrorClass::ApprovalRejected, "SF-0813", text)
}

/// A question by its command and its id.
fn named(row: &ApprovalRow) -> (&str, &str) {
    (&row.command_id, &row.asked.approval_id)
}

#[allow(clippy::too_many_arguments, reason = "each is a fact about one event")]
async fn tell(
    tx: &mut impl Tx,
    ws: &str,
    (command_id, approval_id): (&str, &str),
    mark: &str,
    event_type: &str,
    payload: serde_json::Value,
    actor: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let held = command::lock(tx, ws, command_id).await?;
    let mark = steadfast_core::json::fingerprint(mark);
    let told = event::Told {
        ws,
        command_id,
        context: held.as_ref().map_or("{}", |held| held.context.as_str()),
        event_id: format!("evt_{command_id}_q{approval_id}{mark}"),
        event_type,
        payload,
        actor,
        now,
    };
    event::audit(tx, told).await
}

/// Nobody needs the questions of a command any more.
pub(super) async fn cancel_all(
    tx: &mut impl Tx,
    ws: &str,
    command_id: &str,
    actor: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let of = params! { workspace: ws, command_id: command_id };
    for row in tx.query("approval_pending", of).await? {
        let row = rows::approval(row)?;
        let reason = "what it was for was stopped";
        close(tx, ws, &row, ApprovalEvent::Cancel, reason, actor, now).await?;
    }
    Ok(())
}

pub(super) async fn settle(
    tx: &mut impl Tx,
    op: &SettleApprovals,
) -> Result<SettledApprovals, Error> {
    let ws = op.workspace.as_str();
    let limit = op.limit;
    let which = params! { workspace: ws, now: op.now, limit: limit };
    let rows = tx.query("approval_due", which).await?;
    let due: Vec<_> = rows.into_iter().map(|mut row| row.text()).collect::<Result<_, _>>()?;
    let mut settled = Vec::new();
    for id in due {
        let Some(row) = lock(tx, ws, &id).await? else { continue };
        if row.status != ApprovalStatus::Pending {
            continue;
        }
        if row.asked.expires_at <= op.now {
            let reason = "nobody said enough in time";
            close(tx, ws, &row, ApprovalEvent::Expire, reason, "system:expiry", op.now).await?;
        } else {
            let payload = serde_json::json!({
                "approval_id": id, "action": row.asked.action,
                "expires_at": row.asked.expires_at.iso(),
            });
            let actor = "system:escalation";
            let kind = "approval.escalated";
            tell(tx, ws, named(&row), "escalated", kind, payload, actor, op.now).await?;
            let set = params! { workspace: ws, approval_id: &id, due_at: row.asked.expires_at };
            tx.execute("approval_wait", set).await?;
        }
        settled.push(id);
    }
    Ok(SettledApprovals(settled))
}

pub(super) async fn list(tx: &mut impl Tx, op: &ListApprovals) -> Result<Approvals, Error> {
    let mut texts = vec!["1 = 1"];
    let mut given: Vec<(&'static str, Value<'_>)> =
        vec![("workspace", Value::from(&op.workspace)), ("limit", Value::from(op.limit))];
    let wanted = [
        ("approval_id", "approval_id = :approval_id", op.approval_id.as_deref()),
        ("command_id", "command_id = :command_id", op.command_id.as_deref()),
        ("status", "status = :status", op.status.map(ApprovalStatus::as_str)),
    ];
    for (name, text, value) in wanted {
        if let Some(value) = value {
            texts.push(text);
            given.push((name, Value::from(value)));
        }
    }
    let mut found = Vec::new();
    for row in tx.query_where("approval_list", &texts.join(" AND "), &given).await? {
        found.push(with_votes(tx, &op.workspace, rows::approval(row)?).await?);
    }
    Ok(Approvals(found))
}

impl ApprovalRow {
    /// Who said yes, oldest first.
    pub fn approved_by(&self) -> Vec<String> {
        let yes = self.votes.iter().filter(|vote| vote.vote == Vote::Approved);
        yes.map(|vote: &VoteRow| vote.approver.clone()).collect()
    }

    /// How many said yes.
    pub fn yes(&self) -> i64 {
        i64::try_from(self.approved_by().len()).unwrap_or(i64::MAX)
    }

    /// Whether somebody may answer.
    pub fn may(&self, approver: &str) -> bool {
        self.asked.may(approver)
    }
}

impl crate::op::NewApproval {
    /// Whether somebody may answer.
    pub fn may(&self, approver: &str) -> bool {
        let is = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => approver.starts_with(start),
            None => pattern == approver,
        };
        self.among.is_empty() || self.among.iter().any(is)
    }
}
