//! Inputs of calls: their digests go on record, and what replay finds changed is reported.
//!
//! Invariants: every record of a call whose input is known carries its digest, whichever commit it
//! is part of; a change is one audit event of a position and run, however often it is replayed.

use steadfast_core::driver::{Drift, RecordState};
use steadfast_store::op::{self, Entry};

use super::Execution;

/// The calls whose final records are among these.
pub(super) fn done(entries: &[Entry]) -> Vec<u64> {
    let done = entries.iter().filter(|entry| entry.record.state == RecordState::Done);
    done.map(|entry| entry.record.id).collect()
}

impl Execution {
    /// Puts the digests of inputs into the records that are about to be written.
    pub(super) fn with_digests(&self, mut entries: Vec<Entry>) -> Vec<Entry> {
        for record in entries.iter_mut().map(|entry| &mut entry.record) {
            record.input_digest = self.digests.get(&record.id).cloned();
        }
        entries
    }

    /// Forgets the digests of calls whose final records are durable.
    pub(super) fn forget_digests(&mut self, done: &[u64]) {
        done.iter().for_each(|id| drop(self.digests.remove(id)));
    }

    /// Reports recorded calls that the code made with another input. The code goes on with what is
    /// on record.
    pub(super) async fn report(&mut self, drifts: Vec<Drift>) {
        for drift in drifts {
            let (run_id, workflow) = (self.run.run_id.as_str(), self.run.workflow.as_str());
            let (step, name, kind) = (drift.id, drift.name.as_str(), drift.kind.as_str());
            tracing::warn!(
                run_id,
                workflow,
                step,
                name,
                kind,
                "replay calls a recorded step with another input; its recorded outcome is used"
            );
            let payload = serde_json::json!({
                "run_id": run_id, "workflow": workflow, "step": step, "name": name, "kind": kind,
            });
            let command_id = self.context.command_id.clone();
            let tell = op::Tell {
                workspace: self.hub.workspace.clone(),
                event_id: format!("evt_{command_id}_s{}.replay", self.place(drift.id)),
                command_id,
                event_type: "replay.input_changed".to_owned(),
                payload: payload.to_string(),
                actor: self.lease.worker.clone(),
                trace_id: self.context.trace_id.clone(),
                now: self.hub.now(),
            };
            if let Err(error) = self.hub.store.ask(tell).await {
                // The next replay reports it again.
                tracing::error!(%error, run_id, step, "a changed input could not be audited");
            }
        }
    }
}
