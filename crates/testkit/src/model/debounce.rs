//! Debounced starts: one run for the calls of a quiet time.
//!
//! Invariants: a key belongs to one workflow; a run that has begun, ended, or was ever stopped is
//! not replaced; a call that was answered before gets the same answer and changes nothing.

use steadfast_core::{RunStatus, Timestamp, limits};
use steadfast_store::op::{Debounce, Debounced, RunRow, Start, Started};

use super::{Model, key};

/// The latest run of a key, since when it waits, and the latest calls with what they came to.
#[derive(Debug, Clone)]
pub(super) struct Quiet {
    pub(super) run_id: String,
    first_at: Timestamp,
    calls: Vec<(i64, Debounced)>,
}

impl Model {
    pub(super) fn debounce(&mut self, op: &Debounce) -> Debounced {
        let start = &op.start;
        let limit = |first_at: Timestamp| {
            start.ready_at.min(op.max_wait.map_or(Timestamp::NEVER, |d| first_at.after(d)))
        };
        let name = (start.workspace.clone(), start.workflow.clone(), op.key.clone());
        let known = self.debounces.get(&name).cloned();
        let (mut calls, waiting) = match known {
            Some(quiet) => (quiet.calls.clone(), Some(quiet).filter(|quiet| self.waits(op, quiet))),
            None => (Vec::new(), None),
        };
        if let Some((_, answer)) = calls.iter().find(|(seed, _)| *seed == start.seed) {
            return answer.clone();
        }
        let (answer, run_id, first_at) = match waiting {
            Some(Quiet { run_id, first_at, .. }) => {
                self.runs.edit(&key(&start.workspace, &run_id), |run| {
                    run.input.clone_from(&start.input);
                    run.ready_at = limit(first_at);
                    run.updated_at = start.now;
                });
                (Debounced::Replaced(run_id.clone()), run_id, first_at)
            }
            None => {
                let next = Start { ready_at: limit(start.now), ..start.clone() };
                match self.start(&next) {
                    Started::New(_) => (Debounced::New, start.run_id.clone(), start.now),
                    Started::Existing(_) => return Debounced::Conflict("id"),
                    Started::Conflict(field) => return Debounced::Conflict(field),
                    Started::Duplicate(run_id) => return Debounced::Duplicate(run_id),
                    Started::NoQueue => return Debounced::NoQueue,
                }
            }
        };
        calls.push((start.seed, answer.clone()));
        calls.drain(..calls.len().saturating_sub(limits::DEBOUNCE_CALLS));
        self.debounces.put(name, Quiet { run_id, first_at, calls });
        answer
    }

    /// Whether the run of a key has never begun and still may.
    fn waits(&self, op: &Debounce, quiet: &Quiet) -> bool {
        let is_overdue =
            |run: &RunRow| run.deadline_at.is_some_and(|deadline| deadline <= op.start.now);
        self.run(&op.start.workspace, &quiet.run_id).is_some_and(|run| {
            run.status == RunStatus::Enqueued && run.epoch == 0 && !is_overdue(run)
        })
    }
}
