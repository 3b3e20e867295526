//! Workers: what they report, who succeeds whom, and the end of what a silent one holds.
//!
//! Invariants: a worker that was superseded never owns a run again, because its name's newer
//! incarnation has raised the epochs of its runs; leases end early only for a worker that has not
//! reported since it was looked at.

use std::time::Duration;

use steadfast_core::limits;

use super::rows;
use crate::error::Error;
use crate::gate::{Tx, first, params};
use crate::op::{
    Beaten, EndLeases, Heartbeat, LeasesEnded, ListPeers, ListWorkers, Peer, Peers, TakeOver,
    TakenOver, WorkerRow, Workers,
};
use crate::sabotage;

/// A worker that has not reported for a day is not worth listing.
const FORGOTTEN: Duration = Duration::from_secs(86_400);
/// One that was superseded may have been stopped for longer, and is told of it when it goes on.
const LONG_FORGOTTEN: Duration = Duration::from_secs(30 * 86_400);

pub(super) async fn take_over(tx: &mut impl Tx, op: &TakeOver) -> Result<TakenOver, Error> {
    // A range, because SQLite's LIKE ignores case: `#` and what follows it, up to the next byte.
    let range = (format!("{}#", op.name), format!("{}$", op.name));
    let set = params! {
        workspace: &op.workspace, first: &range.0, end: &range.1, worker: &op.worker,
        now: op.now, stride: tx.claim_stride(),
    };
    let mut former = Vec::new();
    for mut row in tx.query("worker_former", set).await? {
        former.push((row.text()?, row.time()?));
    }
    tx.execute("worker_supersede", set).await?;
    let runs = tx.execute("run_take_over", set).await?;
    tx.execute("slot_take_over", set).await?;
    tx.execute("sink_take_over", set).await?;
    Ok(TakenOver { runs, former })
}

pub(super) async fn heartbeat(tx: &mut impl Tx, op: &Heartbeat) -> Result<Beaten, Error> {
    let me = params! {
        workspace: &op.workspace, worker: &op.worker, app_version: &op.app_version, now: op.now,
        workflows: serde_json::Value::from(op.workflows.clone()).to_string(), lease_us: op.lease,
        before: op.now.before(FORGOTTEN), long_before: op.now.before(LONG_FORGOTTEN),
    };
    if tx.execute("worker_insert", me).await? == 1 {
        tx.execute("worker_prune", me).await?;
    } else if tx.execute("worker_update", me).await? == 0 {
        // Superseded; or nothing has changed, and MySQL counts only rows that have.
        let row = first(tx, "worker_successor", me).await?;
        let successor = row.map(|mut row| row.text()).transpose()?;
        if let Some(successor) = successor.filter(|worker| !worker.is_empty()) {
            return give_up(tx, op, successor).await;
        }
    }
    let mut lost = Vec::new();
    for chunk in op.leases.chunks(limits::CLAIM_BATCH) {
        let ids: Vec<String> = chunk.iter().map(|(run_id, _)| run_id.clone()).collect();
        let asked = params! { workspace: &op.workspace, worker: &op.worker, run_ids: ids };
        let mut owned = Vec::new();
        for mut row in tx.query("run_owned", asked).await? {
            owned.push((row.text()?, row.int()?));
        }
        lost.extend(chunk.iter().filter(|l| !owned.contains(l)).map(|(id, _)| id.clone()));
        // Only these: an earlier life of this worker must not keep a run that a later one claimed.
        let all = sabotage::is_left_out("only the leases that were named are extended");
        owned.retain(|lease| all || chunk.contains(lease));
        if owned.is_empty() {
            continue;
        }
        let ids: Vec<String> = owned.into_iter().map(|(run_id, _)| run_id).collect();
        let mine = params! {
            workspace: &op.workspace, worker: &op.worker, run_ids: ids, lease_until: op.lease_until,
            now: op.now,
        };
        tx.execute("run_beat", mine).await?;
        tx.execute("slot_beat", mine).await?;
    }
    Ok(Beaten { lost, superseded_by: None })
}

/// What a superseded worker has claimed since it was superseded is taken from it, too.
async fn give_up(tx: &mut impl Tx, op: &Heartbeat, successor: String) -> Result<Beaten, Error> {
    // Its id and nothing longer: no id holds a control character.
    let range = (&op.worker, format!("{}\u{1}", op.worker));
    let set = params! {
        workspace: &op.workspace, first: range.0, end: &range.1, worker: &successor, now: op.now,
        stride: tx.claim_stride(),
    };
    tx.execute("run_take_over", set).await?;
    tx.execute("slot_take_over", set).await?;
    tx.execute("sink_take_over", set).await?;
    let lost = op.leases.iter().map(|(run_id, _)| run_id.clone()).collect();
    Ok(Beaten { lost, superseded_by: Some(successor) })
}

pub(super) async fn end_leases(tx: &mut impl Tx, op: &EndLeases) -> Result<LeasesEnded, Error> {
    let of = params! { workspace: &op.workspace, worker: &op.worker, now: op.now };
    let seen_at = first(tx, "worker_seen", of).await?.map(|mut row| row.time()).transpose()?;
    if seen_at != Some(op.seen_at) {
        return Ok(LeasesEnded::Reports);
    }
    tx.execute("worker_lose", of).await?;
    let runs = tx.execute("run_lose", of).await?;
    tx.execute("slot_lose", of).await?;
    tx.execute("sink_lose", of).await?;
    Ok(LeasesEnded::Done(runs))
}

pub(super) async fn list(tx: &mut impl Tx, op: &ListWorkers) -> Result<Workers, Error> {
    let at = params! { workspace: &op.workspace, since: op.since };
    let mut workers = Vec::new();
    for mut row in tx.query("worker_list", at).await? {
        workers.push(WorkerRow {
            worker: row.text()?,
            app_version: row.text()?,
            workflows: serde_json::from_str(&row.text()?).unwrap_or_default(),
            started_at: row.time()?,
            seen_at: row.time()?,
        });
    }
    Ok(Workers(workers))
}

pub(super) async fn peers(tx: &mut impl Tx, op: &ListPeers) -> Result<Peers, Error> {
    let at = params! {
        workspace: &op.workspace, worker: &op.worker, after: &op.after,
        limit: limits::PEERS,
    };
    let mut peers = Vec::new();
    for mut row in tx.query("worker_peers", at).await? {
        let (worker, seen_at) = (row.text()?, row.time()?);
        peers.push(Peer { worker, seen_at, lease: rows::duration(row.int()?) });
    }
    Ok(Peers(peers))
}
