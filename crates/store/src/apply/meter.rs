//! Meters: rates, budgets and breakers that all workers share.
//!
//! Invariants: everything a request takes is taken, or nothing is; meters are locked in the order
//! of their names, so that nobody waits in a circle; what is sent again is known by a mark of its
//! own, which is a meter that holds nothing and goes with its time.

use std::time::Duration;

use steadfast_core::Timestamp;

use crate::error::Error;
use crate::gate::{Row, Tx, Value, first, params};
use crate::op::{
    BUDGET_METERS, BUDGET_METERS_END, BudgetRow, Budgets, Charge, Health, ListBudgets, MARK_TIME,
    MARKS, Spend, Spent, SweepMeters, Swept, Take, past_at,
};

/// What a meter holds: an amount, and a moment. A rate keeps the moment at which its bucket is full
/// again, a breaker its failures and the moment until which it is open, a budget what is spent and
/// the moment from which nobody takes from it any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Meter {
    amount: i64,
    at: i64,
}

pub(super) async fn spend(tx: &mut impl Tx, op: &Spend) -> Result<Spent, Error> {
    let ws = op.workspace.as_str();
    let mut takes: Vec<&Take> = op.takes.iter().collect();
    takes.sort_by(|a, b| a.meter().cmp(b.meter()));
    let mut after = Vec::new();
    for take in &takes {
        let meter = lock(tx, ws, take.meter()).await?;
        match taken(take, meter, op.now) {
            Ok(next) => after.push((take.meter(), meter, next)),
            // It may be short because this very request has taken it before.
            Err(_) if is_marked(tx, ws, &op.nonce).await? => return Ok(Spent::Done),
            Err(until) => {
                let (meter, spent) = (take.meter().to_owned(), meter.amount);
                return Ok(Spent::Short { meter, spent, until });
            }
        }
    }
    // The meters are locked: whoever took for the same request before has committed.
    if once(tx, ws, &op.nonce, op.now).await? {
        for (name, _, next) in after.into_iter().filter(|(_, before, next)| before != next) {
            put(tx, ws, name, next).await?;
        }
    }
    Ok(Spent::Done)
}

fn mark(name: &str) -> String {
    format!("{MARKS}{name}")
}

async fn is_marked(tx: &mut impl Tx, ws: &str, name: &str) -> Result<bool, Error> {
    let name = mark(name);
    Ok(first(tx, "meter_lock", params! { workspace: ws, meter: &name }).await?.is_some())
}

/// Whether a request of this name is carried out for the first time. One without a name always is.
pub(super) async fn once(
    tx: &mut impl Tx,
    ws: &str,
    name: &str,
    now: Timestamp,
) -> Result<bool, Error> {
    if name.is_empty() {
        return Ok(true);
    }
    let (name, at) = (mark(name), now.after(MARK_TIME).as_micros());
    let row = params! { workspace: ws, meter: &name, at: at, past_at: past_at(at) };
    Ok(tx.execute("meter_mark", row).await? == 1)
}

/// The meter after a take, or until when there is not enough.
fn taken(take: &Take, meter: Meter, now: Timestamp) -> Result<Meter, Option<Timestamp>> {
    let now = now.as_micros();
    match take {
        Take::Rate { calls, per, .. } => {
            let per = micros(*per);
            let each = (per / i64::from((*calls).max(1))).max(1);
            let full = meter.at.max(now).saturating_add(each);
            let wait = full - now - per;
            if wait > 0 {
                return Err(Some(Timestamp::from_micros(now + wait)));
            }
            Ok(Meter { at: full, ..meter })
        }
        Take::Budget { amount, cap, until, .. } => {
            let spent = meter.amount.saturating_add(*amount);
            if spent > *cap {
                return Err(None);
            }
            Ok(Meter { amount: spent, at: kept(meter, *until) })
        }
        Take::Breaker { failures, cool_down, .. } => {
            if meter.at > now {
                return Err(Some(Timestamp::from_micros(meter.at)));
            }
            if meter.amount < i64::from(*failures) {
                return Ok(meter);
            }
            // One is let through to try; the others wait for what it finds.
            Ok(Meter { at: now.saturating_add(micros(*cool_down)), ..meter })
        }
    }
}

/// The moment of a budget from which nobody takes from it any more.
fn kept(meter: Meter, until: Option<Timestamp>) -> i64 {
    until.map_or(meter.at, |until| meter.at.max(until.as_micros()))
}

/// A connector's call ended.
pub(super) async fn report(
    tx: &mut impl Tx,
    ws: &str,
    health: &Health,
    now: Timestamp,
) -> Result<(), Error> {
    let before = lock(tx, ws, &health.meter).await?;
    let after = reported(health, before, now);
    if after != before {
        put(tx, ws, &health.meter, after).await?;
    }
    Ok(())
}

/// Sets right what was taken of budgets before.
pub(super) async fn charge(tx: &mut impl Tx, ws: &str, charges: &[Charge]) -> Result<(), Error> {
    let mut charges: Vec<&Charge> = charges.iter().collect();
    charges.sort_by(|a, b| a.meter.cmp(&b.meter));
    for charge in charges {
        let before = lock(tx, ws, &charge.meter).await?;
        let amount = before.amount.saturating_add(charge.amount).max(0);
        let after = Meter { amount, at: kept(before, charge.until) };
        if after != before {
            put(tx, ws, &charge.meter, after).await?;
        }
    }
    Ok(())
}

fn reported(health: &Health, meter: Meter, now: Timestamp) -> Meter {
    if health.ok {
        return Meter::default();
    }
    let amount = meter.amount.saturating_add(1);
    let opens = amount >= i64::from(health.failures);
    let until = now.as_micros().saturating_add(micros(health.cool_down));
    Meter { amount, at: if opens { until } else { meter.at } }
}

pub(super) async fn sweep(tx: &mut impl Tx, op: &SweepMeters) -> Result<Swept, Error> {
    let (ws, limit) = (op.workspace.as_str(), op.limit);
    let (first, last) = (BUDGET_METERS, BUDGET_METERS_END);
    let which = params! { workspace: ws, now: op.now, limit: limit, first: first, last: last };
    let rows = tx.query("meter_past", which).await?;
    let past: Vec<_> = rows.into_iter().map(|mut row| row.text()).collect::<Result<_, _>>()?;
    let mut swept = 0;
    for meter in &past {
        let one = params! { workspace: ws, meter: meter, now: op.now, first: first, last: last };
        swept += tx.execute("meter_remove", one).await?;
    }
    Ok(Swept(swept))
}

pub(super) async fn budgets(tx: &mut impl Tx, op: &ListBudgets) -> Result<Budgets, Error> {
    let mut texts = vec!["meter > :after"];
    let mut given: Vec<(&'static str, Value<'_>)> = vec![
        ("workspace", Value::from(&op.workspace)),
        ("first", Value::from(BUDGET_METERS)),
        ("last", Value::from(BUDGET_METERS_END)),
        ("after", Value::from(op.after.as_deref().unwrap_or_default())),
        ("limit", Value::from(op.limit)),
    ];
    if !op.meters.is_empty() {
        texts.push("meter IN (:meters)");
        given.push(("meters", Value::from(op.meters.clone())));
    }
    let rows = tx.query_where("meter_list", &texts.join(" AND "), &given).await?;
    let read = |mut row: Row| {
        let (meter, spent, at) = (row.text()?, row.int()?, row.int()?);
        let until = (at > 0).then(|| Timestamp::from_micros(at));
        Ok(BudgetRow { meter, spent, until })
    };
    Ok(Budgets(rows.into_iter().map(read).collect::<Result<_, Error>>()?))
}

/// Keeps others who want the same out until this commit. There are few such places, so that they
/// do not become more with what is wanted.
pub(super) async fn hold(tx: &mut impl Tx, ws: &str, what: &str) -> Result<(), Error> {
    let place = &steadfast_core::json::fingerprint(what)[..2];
    lock(tx, ws, &format!("hold:{place}")).await.map(|_| ())
}

async fn lock(tx: &mut impl Tx, ws: &str, name: &str) -> Result<Meter, Error> {
    let at = params! { workspace: ws, meter: name };
    if let Some(mut row) = first(tx, "meter_lock", at).await? {
        return Ok(Meter { amount: row.int()?, at: row.int()? });
    }
    // There before it is locked: otherwise two would both find nothing, and both take.
    tx.execute("meter_insert", at).await?;
    match first(tx, "meter_lock", at).await? {
        Some(mut row) => Ok(Meter { amount: row.int()?, at: row.int()? }),
        None => Ok(Meter::default()),
    }
}

async fn put(tx: &mut impl Tx, ws: &str, name: &str, meter: Meter) -> Result<(), Error> {
    let past_at = past_at(meter.at);
    let set = params! {
        workspace: ws, meter: name, amount: meter.amount, at: meter.at, past_at: past_at,
    };
    tx.execute("meter_update", set).await?;
    Ok(())
}

fn micros(d: Duration) -> i64 {
    steadfast_core::time::micros(d)
}
