//! Many simple operations of different runs, as a few statements for all of them.
//!
//! Invariants: what comes of an operation is what it would have come to alone. What is not simple
//! (a lost lease, a taken id, a record with companions) is left open, untouched, for the
//! operation's own function; what cannot be told apart (a record that is there already) spoils the
//! whole, which is then done one by one. The runs are all different, so the order does not matter.

use std::collections::{HashMap, HashSet};

use futures::future::try_join;
use steadfast_core::{RunEvent, RunStatus};

use super::{own, queue, rows, start};
use crate::error::Error;
use crate::gate::{Fields, Tx, columns, fields};
use crate::op::{Entry, Lease, Op, Reply, Start, Started, Suspended, Written};

/// Carries out those of the operations that are simple; the others are left open. Each gate leads
/// to the same transaction, and statements on different ones may be under way together.
pub(crate) async fn together<T: Tx>(
    gate: impl Fn() -> T,
    ops: &[&Op],
) -> Result<Vec<Option<Reply>>, Error> {
    let mut replies = vec![None; ops.len()];
    let Some(ws) = ops.iter().find_map(|op| workspace(op)) else {
        return Ok(replies);
    };
    let (mut starts, mut owned) = (Vec::new(), Vec::new());
    for (place, op) in ops.iter().enumerate().filter(|(_, op)| workspace(op) == Some(ws)) {
        match op {
            Op::Start(op) => starts.push((place, op)),
            op => owned.push((place, *op)),
        }
    }
    let (mut first, mut second, mut third) = (gate(), gate(), gate());
    let write = async {
        let held = lock_all(&mut second, &mut owned).await?;
        let ends = end_all(&mut third, ws, &owned, &held);
        let ((), mut done) = try_join(record_all(&mut second, &owned), ends).await?;
        // After the ends: one of them may be what a suspension waits for.
        done.extend(suspend_all(&mut second, &owned).await?);
        let recorded = owned.iter().filter(|(_, op)| matches!(op, Op::Record(_)));
        done.extend(recorded.map(|(place, _)| (*place, Reply::Record(Written::Done))));
        Ok(done)
    };
    let (started, written) = try_join(start_all(&mut first, &starts), write).await?;
    for (place, reply) in started.into_iter().chain(written) {
        replies[place] = Some(reply);
    }
    Ok(replies)
}

/// What came of operations, by their places in the batch.
type Done = Vec<(usize, Reply)>;

/// The workspace of an operation that is simple.
fn workspace(op: &Op) -> Option<&str> {
    let plain = |entries: &[Entry]| entries.iter().all(|e| e.with.is_none() && !e.replaces);
    match op {
        Op::Start(op) => op.dedupe_id.is_empty().then_some(&op.workspace),
        op => lease(op).filter(|(_, entries)| plain(entries)).map(|(lease, _)| &*lease.workspace),
    }
}

/// The lease of an owner's write, and its records.
fn lease(op: &Op) -> Option<(&Lease, &[Entry])> {
    match op {
        Op::Record(op) => Some((&op.lease, &op.entries)),
        Op::Finish(op) => Some((&op.lease, &op.entries)),
        Op::Suspend(op) => Some((&op.lease, &op.entries)),
        _ => None,
    }
}

async fn start_all(tx: &mut impl Tx, starts: &[(usize, &Start)]) -> Result<Done, Error> {
    let (mut done, mut placed) = (Done::new(), Vec::new());
    for (place, op) in starts {
        match start::place(tx, op).await? {
            Some(on_queue) => placed.push((*place, *op, on_queue)),
            None => done.push((*place, Reply::Start(Started::NoQueue))),
        }
    }
    if placed.is_empty() {
        return Ok(done);
    }
    let rows = placed.iter().map(|(_, op, on_queue)| start::fields(op, on_queue)).collect();
    let mut made = HashSet::new();
    for mut row in tx.query("all_run_insert", &columns(rows)).await? {
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

/// What is known of a run whose lease was found good.
struct Held {
    parent: String,
    queue: String,
    dedupe_id: String,
    context: Option<String>,
}

/// Locks the runs and keeps the operations whose lease is good; the leases stay good until this
/// transaction ends.
async fn lock_all(
    tx: &mut impl Tx,
    owned: &mut Vec<(usize, &Op)>,
) -> Result<HashMap<String, Held>, Error> {
    let mut held = HashMap::new();
    if owned.is_empty() {
        return Ok(held);
    }
    let leases = owned.iter().filter_map(|(_, op)| lease(op)).map(|(lease, _)| lease);
    let which = leases.map(|lease| fields! { workspace: &lease.workspace, run_id: &lease.run_id });
    let which = columns(which.collect());
    let mut good = HashMap::new();
    for mut row in tx.query("all_run_lock", &which).await? {
        let (run_id, status) = (row.text()?, rows::status(&row.text()?)?);
        let (epoch, worker) = (row.int()?, row.text()?);
        if status == RunStatus::Pending {
            good.insert(run_id.clone(), (epoch, worker));
        }
        let (parent, queue, dedupe_id) = (row.text()?, row.text()?, row.text()?);
        let about = Held { parent, queue, dedupe_id, context: row.opt_text()? };
        held.insert(run_id, about);
    }
    owned.retain(|(_, op)| {
        lease(op).is_some_and(|(lease, _)| {
            let found = good.get(&lease.run_id);
            found.is_some_and(|(epoch, worker)| *epoch == lease.epoch && *worker == lease.worker)
        })
    });
    Ok(held)
}

async fn record_all(tx: &mut impl Tx, owned: &[(usize, &Op)]) -> Result<(), Error> {
    let mut rows: Vec<Fields<'_>> = Vec::new();
    for (lease, entries) in owned.iter().filter_map(|(_, op)| lease(op)) {
        rows.extend(entries.iter().map(|entry| own::record_fields(lease, &entry.record)));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let count = rows.len() as u64;
    if tx.execute("all_step_insert", &columns(rows)).await? != count {
        return Err(Error::Transient("a record of the batch is there already".to_owned()));
    }
    Ok(())
}

async fn end_all(
    tx: &mut impl Tx,
    ws: &str,
    owned: &[(usize, &Op)],
    held: &HashMap<String, Held>,
) -> Result<Done, Error> {
    let (mut done, mut rows) = (Done::new(), Vec::new());
    for (place, op) in owned {
        let Op::Finish(op) = op else { continue };
        let event = if op.outcome.is_ok() { RunEvent::Succeed } else { RunEvent::Fail };
        let arrow = RunStatus::Pending.on(event);
        rows.push(own::end_fields(op, arrow.map_err(|e| Error::Incompatible(e.to_string()))?));
        done.push((*place, Reply::Finish(Written::Done)));
    }
    if rows.is_empty() {
        return Ok(done);
    }
    let count = rows.len() as u64;
    if tx.execute("all_run_end", &columns(rows)).await? != count {
        return Err(Error::Transient("a run of the batch cannot be ended".to_owned()));
    }
    for (_, op) in owned {
        let Op::Finish(op) = op else { continue };
        if let Some(run) = held.get(&op.lease.run_id) {
            queue::free(tx, ws, &run.queue, &run.dedupe_id, &op.lease.run_id).await?;
            own::arrive(tx, ws, &run.parent, op.now).await?;
            own::tell(tx, op, run.context.as_deref()).await?;
        }
    }
    Ok(done)
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
    let reply = |run_id| match parked.contains(run_id) {
        true => Suspended::Done,
        false => Suspended::Arrived,
    };
    let done = suspends.iter().map(|(place, op)| (*place, Reply::Suspend(reply(&op.lease.run_id))));
    Ok(done.collect())
}
