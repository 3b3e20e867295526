//! The ledger: effects and what became of them, and every call of a connector.
//!
//! Invariants: an effect is entered once and moves by its arrows; two effects of one command with
//! the same key and different payloads are refused, because the receiver would take one for the
//! other; a child of a command that was stopped begins nothing more.

use steadfast_core::{CommandEvent, CommandStatus, EffectEvent, EffectStatus, Timestamp};

use super::command::{self, Move};
use super::{event, meter, rows, saga, signal, steer};
use crate::error::Error;
use crate::gate::{Tx, Value, first, params};
use crate::op::{
    EffectChange, EffectRow, Effects, EnterCalls, Entered, Govern, InvocationRow, Invocations,
    ListEffects, ListInvocations, NewEffect, Resolve, ResolvedEffect, Signal, Truth, contradiction,
    is_stopped, met, not_begun,
};

/// Enters or moves an effect. False when it was there already, or could not move; the reason if it
/// cannot be.
pub(super) async fn change(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
    what: &Govern,
    change: &EffectChange,
) -> Result<Result<bool, String>, Error> {
    if what.child
        && !matches!(change, EffectChange::Move { .. })
        && let Some(refusal) = stopped(tx, ws, what).await?
    {
        return Ok(Err(refusal));
    }
    match change {
        EffectChange::Plan(new) => enter(tx, ws, run_id, what, new, EffectStatus::Planned).await,
        EffectChange::Begin(new) => {
            if new.once
                && let Some(refusal) = done_elsewhere(tx, ws, new).await?
            {
                return Ok(Err(refusal));
            }
            match find(tx, ws, &new.effect_id).await? {
                Some(known) => {
                    Ok(Ok(moves(tx, ws, &known, EffectEvent::Begin, (None, None), what).await?))
                }
                None => enter(tx, ws, run_id, what, new, EffectStatus::Executing).await,
            }
        }
        EffectChange::Move { effect_id, event, result, error } => {
            let Some(known) = find(tx, ws, effect_id).await? else {
                return Ok(Ok(false));
            };
            let error = error.as_ref().map(rows::error_text);
            Ok(Ok(moves(tx, ws, &known, *event, (result.as_deref(), error), what).await?))
        }
    }
}

/// Why an effect does not begin whose receiver has no memory, if another one has its key. Who wants
/// the same key at the same time waits here, so that one of them is first.
async fn done_elsewhere(
    tx: &mut impl Tx,
    ws: &str,
    new: &NewEffect,
) -> Result<Option<String>, Error> {
    meter::hold(tx, ws, &format!("{}\n{}", new.effect_type, new.idempotency_key)).await?;
    let of = params! {
        workspace: ws, effect_id: &new.effect_id, effect_type: &new.effect_type,
        idempotency_key: &new.idempotency_key,
        compensates: new.compensates.as_deref().unwrap_or_default(),
    };
    let other = first(tx, "effect_same", of).await?.map(rows::effect).transpose()?;
    Ok(other.map(|other| met(new, &other)))
}

/// Why nothing of a command begins any more, if so. It stays so until this transaction ends.
async fn stopped(tx: &mut impl Tx, ws: &str, what: &Govern) -> Result<Option<String>, Error> {
    let held = command::lock(tx, ws, &what.command_id).await?;
    let stopped = held.filter(|held| is_stopped(held.status));
    Ok(stopped.map(|held| not_begun(&what.command_id, held.status)))
}

async fn enter(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
    what: &Govern,
    new: &NewEffect,
    status: EffectStatus,
) -> Result<Result<bool, String>, Error> {
    let same = params! {
        workspace: ws, command_id: &what.command_id, effect_id: &new.effect_id,
        effect_type: &new.effect_type, idempotency_key: &new.idempotency_key,
        payload: &new.payload, compensates: new.compensates.as_deref().unwrap_or_default(),
    };
    if first(tx, "effect_clash", same).await?.is_some() {
        return Ok(Err(format!(
            "effect \"{}\" of this command has the key \"{}\" already, with another payload",
            new.effect_type, new.idempotency_key
        )));
    }
    let last = first(tx, "effect_last", same).await?.map_or(Ok(None), |mut row| row.opt_int())?;
    let ordinal = last.unwrap_or(0) + 1;
    // An effect that is begun at once has been planned all the same.
    let before = if status == EffectStatus::Planned { "" } else { EffectStatus::Planned.as_str() };
    let row = params! {
        workspace: ws, effect_id: &new.effect_id, command_id: &what.command_id, run_id: run_id,
        ordinal: ordinal, effect_type: &new.effect_type, payload: &new.payload,
        idempotency_key: &new.idempotency_key, status: status.as_str(), prev_status: before,
        compensates: new.compensates.as_deref(), compensation: new.compensation.as_deref(),
        now: what.now,
    };
    Ok(Ok(tx.execute("effect_insert", row).await? == 1))
}

/// Takes an arrow; no arrow, no move.
async fn moves(
    tx: &mut impl Tx,
    ws: &str,
    known: &EffectRow,
    event: EffectEvent,
    (result, error): (Option<&str>, Option<String>),
    what: &Govern,
) -> Result<bool, Error> {
    let Ok(arrow) = known.status.on(event) else {
        return Ok(false);
    };
    let set = params! {
        workspace: ws, effect_id: &known.effect_id, from: arrow.from().as_str(),
        to: arrow.to().as_str(), result: result, error: error, now: what.now,
        completed_at: arrow.to().is_terminal().then_some(what.now),
    };
    Ok(tx.execute("effect_move", set).await? == 1)
}

async fn find(tx: &mut impl Tx, ws: &str, effect_id: &str) -> Result<Option<EffectRow>, Error> {
    let at = params! { workspace: ws, effect_id: effect_id };
    first(tx, "effect_get", at).await?.map(rows::effect).transpose()
}

/// A person says what became of an effect: its run goes on from there.
pub(super) async fn resolve(tx: &mut impl Tx, op: &Resolve) -> Result<ResolvedEffect, Error> {
    let ws = op.workspace.as_str();
    let Some(seen) = find(tx, ws, &op.effect_id).await? else {
        return Ok(ResolvedEffect::NotFound);
    };
    // Who takes the command back waits for it, or else the run that began it; a child that is not
    // stopped with its command does in any case. Runs first, as everybody does.
    let undoing = saga::undoing(tx, ws, &seen.command_id).await?;
    let began = steer::lock(tx, ws, &seen.run_id).await?;
    if let Some(run_id) = &undoing {
        steer::lock(tx, ws, run_id).await?;
    }
    let held = command::lock(tx, ws, &seen.command_id).await?;
    let compensating = |held: &command::Locked| held.status == CommandStatus::Compensating;
    if undoing.is_none() && held.as_ref().is_some_and(compensating) {
        return Err(Error::Transient("the command is taken back since".to_owned()));
    }
    let mut known = find(tx, ws, &op.effect_id).await?.unwrap_or(seen);
    let what = Govern { now: op.now, ..Govern::default() };
    // Left behind by a run that is over: nobody will ever say more of it than a person can.
    let left = began.is_none_or(|run| run.status.is_terminal()) && undoing.is_none();
    if left
        && known.status == EffectStatus::Executing
        && moves(tx, ws, &known, EffectEvent::Lose, (None, None), &what).await?
    {
        known.status = EffectStatus::Unknown;
    }
    let said = last_said(tx, op, &known).await?;
    if said == Some(Said::Now) || known.status != EffectStatus::Unknown {
        return Ok(match said {
            Some(Said::Now | Said::Before) => ResolvedEffect::Done,
            None => ResolvedEffect::Known(known.status),
        });
    }
    let (event, result) = match &op.truth {
        Truth::Done(result) => (EffectEvent::Succeed, Some(result.as_str())),
        Truth::NotDone => (EffectEvent::Fail, None),
        Truth::Again => (EffectEvent::Begin, None),
    };
    moves(tx, ws, &known, event, (result, None), &what).await?;
    if let Some(held) = held {
        let moved = Move {
            ws,
            command_id: &known.command_id,
            event: CommandEvent::Run,
            result: None,
            error: None,
            actor: &op.actor,
            until: None,
            now: op.now,
        };
        moved.take(tx, &held).await?;
        let told = event::Told {
            ws,
            command_id: &known.command_id,
            context: &held.context,
            event_id: resolved_event(&known, op.now),
            event_type: "effect.resolved",
            payload: serde_json::json!({
                "effect_id": known.effect_id, "truth": op.truth.as_str(), "reason": op.reason,
            }),
            actor: &op.actor,
            now: op.now,
        };
        event::audit(tx, told).await?;
    }
    let truth = (op.truth.as_str(), result);
    for run_id in std::iter::once(&known.run_id).chain(&undoing) {
        tell(tx, ws, run_id, &known.effect_id, truth, op.now).await?;
    }
    Ok(ResolvedEffect::Done)
}

/// Each answer has an event of its own: an effect may be lost again after it was repeated.
fn resolved_event(effect: &EffectRow, now: Timestamp) -> String {
    format!("evt_{}_e{}r{:020}", effect.command_id, effect.effect_id, now.as_micros())
}

/// What a person who gives an answer has said of the same effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// This very answer: it is being given a second time, because nobody heard that it was taken.
    Now,
    /// The same, as the last that was said of it.
    Before,
}

async fn last_said(
    tx: &mut impl Tx,
    op: &Resolve,
    known: &EffectRow,
) -> Result<Option<Said>, Error> {
    let (first_id, last_id) =
        (resolved_event(known, Timestamp::from_micros(0)), resolved_event(known, Timestamp::NEVER));
    let between = params! { workspace: &op.workspace, first: &first_id, last: &last_id };
    let Some(mut row) = first(tx, "event_resolved", between).await? else {
        return Ok(None);
    };
    let (event_id, actor, payload) = (row.text()?, row.text()?, row.text()?);
    let said: serde_json::Value = serde_json::from_str(&payload).unwrap_or_default();
    let same = match &op.truth {
        Truth::Done(result) => known.result.as_ref() == Some(result),
        Truth::NotDone | Truth::Again => true,
    };
    if !same || actor != op.actor || said["truth"] != op.truth.as_str() {
        return Ok(None);
    }
    let now = event_id == resolved_event(known, op.now);
    Ok(Some(if now { Said::Now } else { Said::Before }))
}

/// Tells the run that waits for it what became of an effect.
async fn tell(
    tx: &mut impl Tx,
    ws: &str,
    run_id: &str,
    effect_id: &str,
    (truth, result): (&str, Option<&str>),
    now: Timestamp,
) -> Result<(), Error> {
    let told = Signal {
        workspace: ws.to_owned(),
        run_id: run_id.to_owned(),
        name: format!("effect:{effect_id}"),
        signal_id: format!("effect:{effect_id}:{}", now.as_micros()),
        payload: serde_json::json!({ "truth": truth, "result": result }).to_string(),
        now,
    };
    signal::signal(tx, &told).await?;
    Ok(())
}

/// The worker of a stopped run says what became of an effect that it had under way. Who takes the
/// command back may wait to hear it.
pub(super) async fn came_to(
    tx: &mut impl Tx,
    ws: &str,
    undoing: Option<&str>,
    effect_id: &str,
    now: Timestamp,
) -> Result<(), Error> {
    let Some((run_id, row)) = undoing.zip(find(tx, ws, effect_id).await?) else {
        return Ok(());
    };
    let truth = match row.status {
        EffectStatus::Succeeded => Truth::Done(String::new()),
        EffectStatus::Failed => Truth::NotDone,
        EffectStatus::Planned | EffectStatus::Executing | EffectStatus::Unknown => return Ok(()),
    };
    tell(tx, ws, run_id, effect_id, (truth.as_str(), row.result.as_deref()), now).await
}

/// Whether the ledger has come to another end of an effect than the worker that was at it. Then the
/// ledger stays as it is, because something may have been built on it, and people are told.
pub(super) async fn contradicts(
    tx: &mut impl Tx,
    ws: &str,
    what: &Govern,
    effect_id: &str,
    event: EffectEvent,
) -> Result<bool, Error> {
    let Some(known) = find(tx, ws, effect_id).await? else { return Ok(false) };
    let told = match event {
        EffectEvent::Succeed => EffectStatus::Succeeded,
        EffectEvent::Fail => EffectStatus::Failed,
        EffectEvent::Begin | EffectEvent::Lose => return Ok(false),
    };
    if !known.status.is_terminal() || known.status == told {
        return Ok(false);
    }
    let Some(held) = command::lock(tx, ws, &known.command_id).await? else { return Ok(false) };
    let event = event::Told {
        ws,
        command_id: &known.command_id,
        context: &held.context,
        event_id: format!("evt_{}_e{effect_id}x", known.command_id),
        event_type: "effect.contradicted",
        payload: contradiction(&known, told),
        actor: &what.actor,
        now: what.now,
    };
    event::audit(tx, event).await?;
    Ok(true)
}

pub(super) async fn list(tx: &mut impl Tx, op: &ListEffects) -> Result<Effects, Error> {
    let mut texts = vec!["1 = 1"];
    let mut given: Vec<(&'static str, Value<'_>)> =
        vec![("workspace", Value::from(&op.workspace)), ("limit", Value::from(op.limit))];
    let wanted = [
        ("command_id", "command_id = :command_id", op.command_id.as_deref()),
        ("idempotency_key", "idempotency_key = :idempotency_key", op.key.as_deref()),
        ("effect_id", "domain_effect_id = :effect_id", op.effect_id.as_deref()),
        ("status", "status = :status", op.status.map(EffectStatus::as_str)),
    ];
    for (name, text, value) in wanted {
        if let Some(value) = value {
            texts.push(text);
            given.push((name, Value::from(value)));
        }
    }
    if op.to_undo {
        texts.push(
            "(status = 'executing' OR status IN ('succeeded', 'unknown') \
             AND declared_compensation IS NOT NULL) \
             AND compensates_effect_id IS NULL AND compensated_at IS NULL",
        );
    }
    let statement = if op.last_first { "effect_list_last" } else { "effect_list" };
    let rows = tx.query_where(statement, &texts.join(" AND "), &given).await?;
    Ok(Effects(rows.into_iter().map(rows::effect).collect::<Result<_, _>>()?))
}

/// Enters calls of which no record will tell.
pub(super) async fn enter_calls(tx: &mut impl Tx, op: &EnterCalls) -> Result<Entered, Error> {
    let mut entered = 0;
    let ws = op.lease.workspace.as_str();
    for call in &op.calls {
        entered += u64::from(called(tx, ws, call).await?);
    }
    if entered > 0 {
        meter::charge(tx, ws, &op.charges).await?;
    }
    Ok(Entered(entered))
}

/// Enters a call in the ledger; false if it is there already.
pub(super) async fn called(
    tx: &mut impl Tx,
    ws: &str,
    call: &InvocationRow,
) -> Result<bool, Error> {
    let row = params! {
        workspace: ws, invocation_id: &call.invocation_id, command_id: &call.command_id,
        run_id: &call.run_id, connector: &call.connector, agent: &call.agent,
        intended: &call.intended, actual: &call.actual, inputs: &call.inputs,
        outputs: &call.outputs, side_effect: call.side_effect,
        idempotency_key: &call.idempotency_key, verification: &call.verification,
        error: call.error.as_ref().map(rows::error_text), latency_us: call.latency_us,
        cost_units: call.cost_units, now: call.created_at,
    };
    Ok(tx.execute("invocation_insert", row).await? == 1)
}

pub(super) async fn invocations(
    tx: &mut impl Tx,
    op: &ListInvocations,
) -> Result<Invocations, Error> {
    let mut texts = vec!["1 = 1"];
    let mut given: Vec<(&'static str, Value<'_>)> =
        vec![("workspace", Value::from(&op.workspace)), ("limit", Value::from(op.limit))];
    if let Some(id) = &op.command_id {
        texts.push("command_id = :command_id");
        given.push(("command_id", Value::from(id)));
    }
    if let Some(connector) = &op.connector {
        texts.push("connector_name = :connector");
        given.push(("connector", Value::from(connector)));
    }
    if let Some((at, id)) = &op.after {
        texts.push(
            "(created_at > :after_at OR (created_at = :after_at AND invocation_id > :after_id))",
        );
        given.push(("after_at", Value::from(*at)));
        given.push(("after_id", Value::from(id)));
    }
    let rows = tx.query_where("invocation_list", &texts.join(" AND "), &given).await?;
    Ok(Invocations(rows.into_iter().map(rows::invocation).collect::<Result<_, _>>()?))
}
