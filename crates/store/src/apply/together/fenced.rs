//! A batch on Postgres: the statements that write for owners check the fences themselves, so
//! nothing is read before, and all of them are under way at once.
//!
//! Invariants: no record is committed without its fence having been checked in the same
//! transaction: by its own statement, or for the last record of a run by that of its end, which
//! spoils the whole if it finds no lease. Records are sent before what suspends their runs; where
//! that has overtaken them, or a record is there already, the whole is spoiled too, and then done
//! one by one.

use std::collections::{HashMap, HashSet};

use futures::future::try_join5;

use super::{Crowd, Done, lease};
use crate::apply::{own, queue, start};
use crate::error::Error;
use crate::gate::{Fields, Tx, columns, fields, params};
use crate::op::{Op, Record, Reply, Start, Suspend, Suspended, Written};

/// Carries out those of the operations that are simple; the others are left open. Each gate leads
/// to the same transaction, and statements on different ones may be under way together.
pub(crate) async fn together<T: Tx>(
    gate: impl Fn() -> T,
    ops: &[&Op],
) -> Result<Vec<Option<Reply>>, Error> {
    let Some(Crowd { ws, worker, starts, owned }) = Crowd::of(ops) else {
        return Ok(vec![None; ops.len()]);
    };
    let (mut first, mut second, mut third, mut fourth) = (gate(), gate(), gate(), gate());
    let mut fifth = gate();
    // All are under way at once, records before what suspends their runs.
    let (started, recorded, ended, suspended, ()) = try_join5(
        start_all(&mut first, &starts),
        record_all(&mut second, worker, &owned),
        end_all(&mut third, ws, &owned),
        suspend_all(&mut fourth, &owned),
        record_last(&mut fifth, &owned),
    )
    .await?;
    Ok(super::in_place(ops.len(), [started, recorded, ended, suspended].into_iter().flatten()))
}

async fn start_all(tx: &mut impl Tx, starts: &[(usize, &Start)]) -> Result<Done, Error> {
    let (mut done, placed) = super::placed(tx, starts).await?;
    if placed.is_empty() {
        return Ok(done);
    }
    let rows: Vec<_> = placed.iter().map(|(_, op, on_queue)| start::fields(op, on_queue)).collect();
    let mut made = HashSet::new();
    for mut row in tx.query("all_run_insert", params! { rows: rows }).await? {
        made.insert(row.text()?);
    }
    for (place, op, on_queue) in &placed {
        // A taken id is left open: the operation's own function compares.
        if made.contains(&op.run_id) {
            done.push((*place, Reply::Start(start::made(op, on_queue))));
        }
    }
    Ok(done)
}

/// Writes the last records of runs that end here, whose fences their ends check.
async fn record_last(tx: &mut impl Tx, owned: &[(usize, &Op)]) -> Result<(), Error> {
    let rows = records(owned, |op| matches!(op, Op::Finish(_)));
    if !rows.is_empty() {
        tx.execute("all_step_insert_last", params! { rows: rows }).await?;
    }
    Ok(())
}

/// The columns of the records of some operations.
pub(super) fn records<'a>(
    owned: &[(usize, &'a Op)],
    which: impl Fn(&Op) -> bool,
) -> Vec<Fields<'a>> {
    let mut rows = Vec::new();
    let some = owned.iter().filter(|(_, op)| which(op));
    for (lease, entries) in some.filter_map(|(_, op)| lease(op)) {
        rows.extend(entries.iter().map(|entry| own::record_fields(lease, &entry.record)));
    }
    rows
}

/// Writes the records of every run whose lease is good, which it stays until this transaction ends.
async fn record_all(tx: &mut impl Tx, worker: &str, owned: &[(usize, &Op)]) -> Result<Done, Error> {
    let rows = records(owned, |op| !matches!(op, Op::Finish(_)));
    if rows.is_empty() {
        return Ok(Done::new());
    }
    let count = rows.len() as u64;
    let sent = params! { rows: rows, worker: worker, at: super::latest(owned) };
    let are_all = tx.execute("all_step_insert", sent).await? == count;
    let records = owned.iter().filter_map(|(place, op)| match op {
        Op::Record(op) => Some((*place, op)),
        _ => None,
    });
    let done = |(place, _)| (place, Reply::Record(Written::Done));
    if are_all {
        return Ok(records.map(done).collect());
    }
    // Some lease is void. Whose run is suspended here as well may have been so before its record.
    let is_doubtful = |op: &Op| matches!(op, Op::Suspend(op) if !op.entries.is_empty());
    if owned.iter().any(|(_, op)| is_doubtful(op)) {
        return Err(Error::Transient("a lease of the batch is void".to_owned()));
    }
    let which = records.clone().map(|(_, op)| held_key(op)).collect();
    let mut held = HashSet::new();
    for mut row in tx.query("all_run_held", &columns(which)).await? {
        held.insert((row.text()?, row.int()?, row.text()?));
    }
    let is_held = |(_, op): &(usize, &Record)| {
        let lease = &op.lease;
        held.contains(&(lease.run_id.clone(), lease.epoch, lease.worker.clone()))
    };
    Ok(records.filter(is_held).map(done).collect())
}

fn held_key(op: &Record) -> Fields<'_> {
    fields! { workspace: &op.lease.workspace, run_id: &op.lease.run_id, now: op.now }
}

async fn end_all(tx: &mut impl Tx, ws: &str, owned: &[(usize, &Op)]) -> Result<Done, Error> {
    let (mut done, mut rows, mut ends) = (Done::new(), Vec::new(), HashMap::new());
    for (place, op) in owned {
        let Op::Finish(op) = op else { continue };
        rows.push(own::end_fields(op, own::end_arrow(op)?));
        ends.insert(op.lease.run_id.as_str(), (*place, op));
    }
    if rows.is_empty() {
        return Ok(done);
    }
    for mut row in tx.query("all_run_end", &columns(rows)).await? {
        let Some((place, op)) = ends.remove(row.text()?.as_str()) else { continue };
        let (parent, queue, dedupe_id) = (row.text()?, row.text()?, row.text()?);
        queue::free(tx, ws, &queue, &dedupe_id, &op.lease.run_id).await?;
        own::arrive(tx, ws, &parent, op.now).await?;
        own::tell(tx, op, row.opt_text()?.as_deref()).await?;
        done.push((place, Reply::Finish(Written::Done)));
    }
    // What has written nothing may be left open.
    match ends.values().any(|(_, op)| !op.entries.is_empty()) {
        true => Err(Error::Transient("a run of the batch cannot be ended".to_owned())),
        false => Ok(done),
    }
}

async fn suspend_all(tx: &mut impl Tx, owned: &[(usize, &Op)]) -> Result<Done, Error> {
    let suspends: Vec<_> = owned
        .iter()
        .filter_map(|(place, op)| match op {
            Op::Suspend(op) => Some((*place, op)),
            _ => None,
        })
        .collect();
    if suspends.is_empty() {
        return Ok(Done::new());
    }
    let rows = suspends.iter().map(|(_, op)| own::suspend_fields(op)).collect();
    let mut parked = HashSet::new();
    for mut row in tx.query("all_run_suspend", &columns(rows)).await? {
        parked.insert(row.text()?);
    }
    let reply = |op: &Suspend| match parked.contains(&op.lease.run_id) {
        true => Some(Reply::Suspend(Suspended::Done)),
        // Its records were written, so the lease is good: something has arrived.
        false if !op.entries.is_empty() => Some(Reply::Suspend(Suspended::Arrived)),
        // Or the lease is lost: the operation's own function tells.
        false => None,
    };
    let done = suspends.iter().filter_map(|(place, op)| Some((*place, reply(op)?)));
    Ok(done.collect())
}
