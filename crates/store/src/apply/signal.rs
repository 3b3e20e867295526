//! Accepting a signal: numbered under the run's lock, so order and wake-up cannot be lost.

use super::{own, steer};
use crate::error::Error;
use crate::gate::{Tx, first, params};
use crate::op::{Signal, Signalled};

pub(super) async fn signal(tx: &mut impl Tx, op: &Signal) -> Result<Signalled, Error> {
    let at = params! {
        workspace: &op.workspace, run_id: &op.run_id, signal_id: &op.signal_id,
    };
    let Some(run) = steer::lock(tx, &op.workspace, &op.run_id).await? else {
        return Ok(Signalled::NotFound);
    };
    if first(tx, "signal_known", at).await?.is_some() {
        return Ok(Signalled::Duplicate);
    }
    if run.status.is_terminal() || run.is_overdue(op.now) {
        return Ok(Signalled::Over);
    }
    let end = first(tx, "signal_end", at).await?.map_or(Ok(-1), |mut row| row.int())?;
    let fields = params! {
        workspace: &op.workspace, run_id: &op.run_id, seq: end + 1, signal_id: &op.signal_id,
        name: &op.name, payload: &op.payload, now: op.now,
    };
    tx.execute("signal_insert", fields).await?;
    own::arrive(tx, &op.workspace, &op.run_id, op.now).await?;
    Ok(Signalled::Accepted)
}
