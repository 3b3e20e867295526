//! Reading what has arrived for a run: signals, and the ends of its children.
//!
//! Invariants: a signal that is waited for is found however many others stand before it. A run with
//! few signals has them all in memory; one with more than a load may have is asked for by name.

use std::collections::BTreeSet;

use steadfast_core::driver::Record;
use steadfast_core::{Timestamp, limits};
use steadfast_store::Error;
use steadfast_store::op::{self, Entry, PendingSignal, With};

use super::{Execution, Step, stopped};
use crate::owner::OwnerHub;
use crate::waits::Wait;

/// What was read of a run's signals.
#[derive(Debug)]
pub(super) struct Inlet {
    /// Whether there were once too many for a load: from then on they are read by name.
    crowded: bool,
    /// The names that were read, once they are.
    names: BTreeSet<String>,
    /// Whether the store has more of those than were read.
    more: bool,
}

impl Inlet {
    /// After signals of all names were read.
    pub(super) fn of_all(signals: &[PendingSignal]) -> Self {
        let full = signals.len() >= limits::SIGNALS_PER_LOAD;
        Self { crowded: full, names: BTreeSet::new(), more: full }
    }
}

/// What a run has when it is claimed again: its records, and what has arrived for it. If nothing
/// had arrived when it was claimed, only the records are read; what arrives later is seen by the
/// suspension.
pub(super) async fn history(
    hub: &OwnerHub,
    run: &op::RunRow,
) -> Result<(Vec<Record>, op::Loaded), Error> {
    let steps = records(hub, run).await?;
    if run.inbox == 0 {
        return Ok((steps, op::Loaded::default()));
    }
    let load = op::Load {
        workspace: hub.workspace.clone(),
        run_id: run.run_id.clone(),
        children: Vec::new(),
        names: Vec::new(),
        now: hub.now(),
    };
    Ok((steps, hub.store.ask(load).await?))
}

/// All records of a run, in pages. Only its owner adds to them, so the pages fit together.
pub(super) async fn records(hub: &OwnerHub, run: &op::RunRow) -> Result<Vec<Record>, Error> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let (workspace, run_id) = (hub.workspace.clone(), run.run_id.clone());
        let limit = limits::PAGE_ROWS;
        let page = hub.store.ask(op::ListSteps { workspace, run_id, from, limit }).await?.0;
        let is_last = page.len() < limit;
        from = page.last().map_or(from, |last| i64::try_from(last.id).unwrap_or(i64::MAX)) + 1;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

impl Execution {
    /// The names of the signals that are waited for.
    fn wanted(&self) -> BTreeSet<String> {
        let name = |wait: &Wait| match wait {
            Wait::Signal { name, .. } | Wait::Answer { name } => Some(name.clone()),
            Wait::Sleep { .. } | Wait::Child { .. } | Wait::Retry { .. } => None,
        };
        self.waits.values().filter_map(name).collect()
    }

    /// Whether a signal that is waited for may be in the store without having been read.
    pub(super) fn has_unread_signals(&self) -> bool {
        if !self.inlet.crowded {
            return false;
        }
        let wanted = self.wanted();
        let used_up = self.inlet.more && self.signals.len() < limits::SIGNALS_PER_LOAD;
        wanted.iter().any(|name| used_up || !self.inlet.names.contains(name))
    }

    /// Reads what has arrived.
    pub(super) async fn look_again(&mut self) -> Step {
        let children = self.waits.values().filter_map(|wait| match wait {
            Wait::Child { run_id, .. } => Some(run_id.clone()),
            Wait::Sleep { .. } | Wait::Signal { .. } => None,
            Wait::Retry { .. } | Wait::Answer { .. } => None,
        });
        let names = if self.inlet.crowded { self.wanted() } else { BTreeSet::new() };
        let load = op::Load {
            workspace: self.hub.workspace.clone(),
            run_id: self.run.run_id.clone(),
            children: children.collect(),
            names: names.iter().cloned().collect(),
            now: self.hub.now(),
        };
        let loaded = self.hub.store.ask(load).await.map_err(stopped)?;
        let read = Inlet::of_all(&loaded.signals);
        self.inlet = Inlet { crowded: self.inlet.crowded || read.crowded, names, ..read };
        let consumed: Vec<i64> = self.pending.iter().filter_map(consumed).collect();
        self.signals = loaded.signals;
        self.signals.retain(|signal| !consumed.contains(&signal.seq));
        self.inbox = loaded.inbox;
        self.over = loaded.over.into_iter().map(|run| (run.run_id.clone(), run)).collect();
        self.missing = loaded.missing;
        let next = self.hub.now().after(self.config.lease);
        for wait in self.waits.values_mut() {
            if let Wait::Child { look_at, .. } = wait
                && *look_at != Timestamp::NEVER
            {
                *look_at = next;
            }
        }
        self.look = false;
        Ok(())
    }
}

fn consumed(entry: &Entry) -> Option<i64> {
    match &entry.with {
        Some(With::Consume(seq)) => Some(*seq),
        Some(With::Govern(what)) => what.consume,
        _ => None,
    }
}
