//! A batch on MySQL and MariaDB: the runs are locked and read first, so that fences are decided
//! here, and then everything of a sort is written by statements of many rows. Where there are only
//! ends that nobody is to be told of, nothing need be read, and the ends check the fences.
//!
//! Invariants: only runs whose lease is good are written to, and they stay locked until the
//! transaction ends. What a lock has shown of a run holds until this batch itself tells runs of
//! others' ends, so that comes last. Statements come in a few sizes, so that each is prepared once;
//! where rows are missing to a size the last one is repeated, which no statement here minds. A
//! record that is there already spoils the whole, which is then done one by one. New runs among
//! which one was there already are left open: alone each finds out which it is, and one that was
//! made just now gets the answer of one that was just made.
//! Deliberately absent: `JSON_TABLE` and tables of `UNION ALL`, which cost the server two to three
//! times as much as rows of parameters, and text with values in it, which costs twice as much.

use std::collections::HashMap;

use steadfast_core::RunStatus;

use super::{Crowd, Done, lease};
use crate::apply::{own, queue, start};
use crate::error::Error;
use crate::gate::{Fields, Tx, Value, params};
use crate::op::{Finish, Lease, Op, Reply, Start, Suspend, Suspended, Written};
use crate::statement::width;

/// Rows of one statement, at most: beyond it they cost the same each, and some of what a statement
/// does grows with the square.
const ROWS: usize = 64;
/// Bytes of text in one statement, unless a row has more: a server takes packets of several
/// megabytes.
const BYTES: usize = 1 << 20;
/// How most runs end.
const SUCCESS: &str = RunStatus::Success.as_str();

/// What a lock shows of a run.
struct Held {
    epoch: i64,
    inbox: i64,
    parent: String,
    queue: String,
    dedupe_id: String,
    context: Option<String>,
}

/// Carries out those of the operations that are simple; the others are left open.
pub(crate) async fn together(tx: &mut impl Tx, ops: &[&Op]) -> Result<Vec<Option<Reply>>, Error> {
    let Some(Crowd { ws, worker, mut starts, mut owned }) = Crowd::of(ops) else {
        return Ok(vec![None; ops.len()]);
    };
    let held = lock(tx, ws, worker, &owned).await?;
    let is_held = |of: &Lease| held.get(&of.run_id).is_some_and(|run| run.epoch == of.epoch);
    owned.retain(|(_, op)| lease(op).is_some_and(|(lease, _)| is_held(lease)));
    let mut done = record_all(tx, &owned).await?;
    done.extend(suspend_all(tx, ws, &owned, &held).await?);
    starts.sort_unstable_by_key(|(_, op)| &op.run_id);
    done.extend(start_all(tx, &starts).await?);
    done.extend(end_all(tx, ws, &owned, &held).await?);
    Ok(super::in_place(ops.len(), done))
}

/// Ends, and nothing else, with their last records: of runs that have all succeeded.
pub(crate) struct Ends<'a> {
    ws: &'a str,
    worker: &'a str,
    epoch: i64,
    owned: Vec<(usize, &'a Op)>,
}

impl<'a> Ends<'a> {
    /// `None` if there is anything else among the operations, or records with companions, or runs
    /// that have failed or were claimed more often than others.
    pub(crate) fn of(ops: &[&'a Op]) -> Option<Self> {
        let ends: Vec<&Finish> = ops.iter().map_while(|op| end(op)).collect();
        let epoch = ends.first()?.lease.epoch;
        if ends.len() != ops.len() || ends.iter().any(|op| op.lease.epoch != epoch) {
            return None;
        }
        let Crowd { ws, worker, owned, .. } = Crowd::of(ops)?;
        let is_whole = owned.len() == ops.len() && all_succeed(ends.into_iter());
        is_whole.then_some(Self { ws, worker, epoch, owned })
    }

    /// Carries them out as those of plain runs: nobody is to be told of their end. `None` when one
    /// of them is not plain or its lease is void; what was written must then be taken back.
    pub(crate) async fn plainly(&self, tx: &mut impl Tx) -> Result<Option<Vec<Reply>>, Error> {
        let mut rows = Vec::new();
        for op in self.owned.iter().filter_map(|(_, op)| end(op)) {
            rows.push(own::end_fields(op, own::end_arrow(op)?));
        }
        let of = params! {
            workspace: self.ws, worker: self.worker, epoch: self.epoch, to: SUCCESS,
            at: super::latest(&self.owned),
        };
        if write(tx, "many_run_end_plain", of, rows).await? < self.owned.len() as u64 {
            return Ok(None);
        }
        record_all(tx, &self.owned).await?;
        Ok(Some(vec![Reply::Finish(Written::Done); self.owned.len()]))
    }
}

fn end(op: &Op) -> Option<&Finish> {
    match op {
        Op::Finish(op) => Some(op),
        _ => None,
    }
}

/// Whether all of the ends come to the same, with no error to tell.
fn all_succeed<'a>(mut ends: impl Iterator<Item = &'a Finish>) -> bool {
    ends.all(|op| op.outcome.is_ok())
}

/// Locks the runs of owners' writes; gives those that the worker executes.
async fn lock(
    tx: &mut impl Tx,
    ws: &str,
    worker: &str,
    owned: &[(usize, &Op)],
) -> Result<HashMap<String, Held>, Error> {
    let mut held = HashMap::with_capacity(owned.len());
    let leases = owned.iter().filter_map(|(_, op)| lease(op));
    let run_ids: Vec<&str> = leases.map(|(lease, _)| lease.run_id.as_str()).collect();
    if run_ids.is_empty() {
        return Ok(held);
    }
    let now = super::latest(owned);
    let these = params! { workspace: ws, worker: worker, run_ids: run_ids, now: now };
    for mut row in tx.query("many_run_lock", these).await? {
        let run_id = row.text()?;
        let run = Held {
            epoch: row.int()?,
            inbox: row.int()?,
            parent: row.text()?,
            queue: row.text()?,
            dedupe_id: row.text()?,
            context: row.opt_text()?,
        };
        held.insert(run_id, run);
    }
    Ok(held)
}

/// Writes the records of every operation.
async fn record_all(tx: &mut impl Tx, owned: &[(usize, &Op)]) -> Result<Done, Error> {
    let mut rows = Vec::new();
    for (lease, entries) in owned.iter().filter_map(|(_, op)| lease(op)) {
        rows.extend(entries.iter().map(|entry| own::record_fields(lease, &entry.record)));
    }
    let count = rows.len() as u64;
    if write(tx, "many_step_insert", &[], rows).await? != count {
        return Err(Error::Transient("a record of the batch is there already".to_owned()));
    }
    let records = owned.iter().filter(|(_, op)| matches!(op, Op::Record(_)));
    Ok(records.map(|(place, _)| (*place, Reply::Record(Written::Done))).collect())
}

async fn suspend_all(
    tx: &mut impl Tx,
    ws: &str,
    owned: &[(usize, &Op)],
    held: &HashMap<String, Held>,
) -> Result<Done, Error> {
    let (mut done, mut rows) = (Done::new(), Vec::new());
    let stands = |op: &Suspend| held.get(&op.lease.run_id).is_some_and(|run| run.inbox == op.inbox);
    for (place, op) in owned {
        let Op::Suspend(op) = op else { continue };
        let reply = match stands(op) {
            true => Suspended::Done,
            false => Suspended::Arrived,
        };
        if reply == Suspended::Done {
            rows.push(own::suspend_fields(op));
        }
        done.push((*place, Reply::Suspend(reply)));
    }
    update(tx, "many_run_suspend", params! { workspace: ws }, rows).await?;
    Ok(done)
}

async fn end_all(
    tx: &mut impl Tx,
    ws: &str,
    owned: &[(usize, &Op)],
    held: &HashMap<String, Held>,
) -> Result<Done, Error> {
    let (mut done, mut rows, mut ends) = (Done::new(), Vec::new(), Vec::new());
    for (place, op) in owned {
        let Op::Finish(op) = op else { continue };
        rows.push(own::end_fields(op, own::end_arrow(op)?));
        done.push((*place, Reply::Finish(Written::Done)));
        ends.extend(held.get(&op.lease.run_id).map(|run| (op, run)));
    }
    match all_succeed(ends.iter().map(|(op, _)| *op)) {
        true => {
            let of = params! { workspace: ws, to: SUCCESS };
            update(tx, "many_run_end_alike", of, rows).await?;
        }
        false => update(tx, "many_run_end", params! { workspace: ws }, rows).await?,
    }
    for (op, run) in ends {
        queue::free(tx, ws, &run.queue, &run.dedupe_id, &op.lease.run_id).await?;
        own::arrive(tx, ws, &run.parent, op.now).await?;
        own::tell(tx, op, run.context.as_deref()).await?;
    }
    Ok(done)
}

async fn start_all(tx: &mut impl Tx, starts: &[(usize, &Start)]) -> Result<Done, Error> {
    let (mut done, placed) = super::placed(tx, starts).await?;
    let rows: Vec<_> = placed.iter().map(|(_, op, on_queue)| start::fields(op, on_queue)).collect();
    if write(tx, "many_run_insert", &[], rows).await? == placed.len() as u64 {
        for (place, op, on_queue) in &placed {
            done.push((*place, Reply::Start(start::made(op, on_queue))));
        }
    }
    Ok(done)
}

/// Changes locked runs, all of them.
async fn update(
    tx: &mut impl Tx,
    statement: &'static str,
    more: &[(&'static str, Value<'_>)],
    rows: Vec<Fields<'_>>,
) -> Result<(), Error> {
    let count = rows.len() as u64;
    match write(tx, statement, more, rows).await? == count {
        true => Ok(()),
        false => Err(Error::Transient("a locked run was not changed".to_owned())),
    }
}

/// Runs a statement for all rows, in portions; gives how many rows it changed.
async fn write(
    tx: &mut impl Tx,
    statement: &'static str,
    more: &[(&'static str, Value<'_>)],
    mut rows: Vec<Fields<'_>>,
) -> Result<u64, Error> {
    let mut changed = 0;
    while !rows.is_empty() {
        let rest = rows.split_off(portion(&rows));
        let mut params = more.to_vec();
        params.push(("rows", Value::Rows(rows)));
        changed += tx.execute(statement, &params).await?;
        rows = rest;
    }
    Ok(changed)
}

/// How many of the rows the next statement takes: as many as stay within the bound, together with
/// the repetitions of the last.
fn portion(rows: &[Fields<'_>]) -> usize {
    let (mut portion, mut bytes) = (1, 0);
    for (row, count) in rows.iter().zip(1..=ROWS) {
        let weight = weight(row);
        bytes += weight;
        if bytes + (width(count) - count) * weight <= BYTES {
            portion = count;
        }
    }
    portion
}

/// The bytes of a row's texts.
fn weight(row: &Fields<'_>) -> usize {
    let texts = row.iter().filter_map(|(_, value)| match value {
        Value::Text(Some(text)) => Some(text.len()),
        _ => None,
    });
    texts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portions(mut rows: Vec<Fields<'_>>) -> Vec<usize> {
        let mut portions = Vec::new();
        while !rows.is_empty() {
            portions.push(portion(&rows));
            rows.drain(..portions[portions.len() - 1]);
        }
        portions
    }

    fn rows(count: usize, text: &str) -> Vec<Fields<'_>> {
        vec![vec![("input", Value::from(text))]; count]
    }

    #[test]
    fn rows_go_together_and_large_ones_in_small_portions() {
        assert_eq!(portions(rows(5, "")), [5]);
        assert_eq!(portions(rows(37, "")), [37]);
        assert_eq!(portions(rows(200, "")), [64, 64, 64, 8]);
        let large = "x".repeat(BYTES / 3);
        assert_eq!(portions(rows(4, &large)), [2, 2]);
        // 33 rows would be 40, the last of them eight times.
        let mut one_large = rows(32, "");
        one_large.extend(rows(1, &large));
        assert_eq!(portions(one_large), [32, 1]);
        let larger = "x".repeat(BYTES + 1);
        assert_eq!(portions(rows(3, &larger)), [1, 1, 1]);
    }
}
