//! Reading: runs, records, values, streams, workers.
//!
//! Invariants: a page holds at most what was asked for and at most [`limits::PAGE_ROWS`], at least
//! one; a cursor is where the page ended, so that pages taken one after the other miss nothing that
//! was there before and show nothing twice.

use std::collections::BTreeSet;

use steadfast_core::{RunStatus, Timestamp, limits};
use steadfast_store::op::{
    Ends, FoundRun, FoundValue, GetEnds, GetRun, GetValue, ListRuns, ListSteps, Load, Loaded,
    PendingSignal, ReadStream, RunFilter, RunPage, RunRow, StepPage, StreamPage,
};

use super::{Model, all_of, numbered};

impl Model {
    pub(super) fn get_run(&self, op: &GetRun) -> FoundRun {
        let run = self.run(&op.workspace, &op.run_id).cloned();
        FoundRun(run.map(|run| Box::new(shown(run, op.now))))
    }

    pub(super) fn get_ends(&self, op: &GetEnds) -> Ends {
        Ends(self.over(&op.workspace, &op.run_ids, op.now))
    }

    /// Those of some runs that are over, by id.
    fn over(&self, ws: &str, run_ids: &[String], now: Timestamp) -> Vec<RunRow> {
        let ids: BTreeSet<&String> = run_ids.iter().collect();
        let runs = ids.into_iter().filter_map(|id| self.run(ws, id));
        let runs = runs.map(|run| shown(run.clone(), now));
        runs.filter(|run| run.status.is_terminal()).collect()
    }

    pub(super) fn list_runs(&self, op: &ListRuns) -> RunPage {
        let limit = op.limit;
        let mut runs: Vec<RunRow> = self
            .runs_of(&op.workspace)
            .map(|run| shown(run.clone(), op.now))
            .filter(|run| matches(&op.filter, run))
            .filter(|run| {
                op.after.as_ref().is_none_or(|(at, id)| (run.created_at, &run.run_id) < (*at, id))
            })
            .collect();
        runs.sort_by(|a, b| (b.created_at, &b.run_id).cmp(&(a.created_at, &a.run_id)));
        let more = runs.len() > limit;
        runs.truncate(limit);
        let next = runs.last().filter(|_| more).map(|run| (run.created_at, run.run_id.clone()));
        RunPage { runs, next }
    }

    pub(super) fn list_steps(&self, op: &ListSteps) -> StepPage {
        let from = numbered(&op.workspace, &op.run_id, op.from);
        let to = numbered(&op.workspace, &op.run_id, i64::MAX);
        let steps = self.steps.range(from..=to).take(op.limit);
        StepPage(steps.map(|(_, step)| step.record.clone()).collect())
    }

    pub(super) fn load(&self, op: &Load) -> Loaded {
        let (ws, run_id) = (op.workspace.as_str(), op.run_id.as_str());
        let wanted = |name: &String| op.names.is_empty() || op.names.contains(name);
        let signals = self.signals.range(all_of(ws, run_id));
        let signals = signals.filter(|(_, sent)| !sent.consumed && wanted(&sent.name));
        let over = self.over(ws, &op.children, op.now);
        let gone = |child: &&String| self.run(ws, child).is_none();
        let missing: BTreeSet<String> = op.children.iter().filter(gone).cloned().collect();
        Loaded {
            missing: missing.into_iter().collect(),
            signals: signals
                .take(limits::SIGNALS_PER_LOAD)
                .map(|((_, _, seq), sent)| PendingSignal {
                    seq: *seq,
                    name: sent.name.clone(),
                    payload: sent.payload.clone(),
                })
                .collect(),
            inbox: self.run(ws, run_id).map_or(0, |run| run.inbox),
            over,
        }
    }

    pub(super) fn get_value(&self, op: &GetValue) -> FoundValue {
        let at = (op.workspace.clone(), op.run_id.clone(), op.key.clone());
        let newest = self.values.get(&at).and_then(|versions| versions.last());
        FoundValue(newest.map(|version| version.what.clone()))
    }

    /// A stream from a position on, its end mark included.
    pub(super) fn stream(
        &self,
        workspace: &str,
        run_id: &str,
        stream: &str,
        from: i64,
    ) -> impl Iterator<Item = &Option<String>> {
        let at =
            |position: i64| (workspace.to_owned(), run_id.to_owned(), stream.to_owned(), position);
        self.items.range(at(from)..=at(i64::MAX)).map(|(_, item)| &item.what)
    }

    pub(super) fn read_stream(&self, op: &ReadStream) -> StreamPage {
        let limit = op.limit;
        let read: Vec<&Option<String>> =
            self.stream(&op.workspace, &op.run_id, &op.stream, op.from).take(limit).collect();
        let items: Vec<String> = read.iter().map_while(|item| (*item).clone()).collect();
        let ended = items.len() < read.len();
        // Nothing can be appended any more, and nothing was left for another page.
        let over = self.run(&op.workspace, &op.run_id).is_none_or(|run| run.status.is_terminal());
        StreamPage { closed: ended || (over && read.len() < limit), items }
    }
}

/// Whether a run passes every condition that a filter sets.
/// A run past its deadline was cancelled at that moment, whatever its row says.
fn shown(run: RunRow, now: Timestamp) -> RunRow {
    match run.deadline_at {
        Some(deadline) if deadline <= now && !run.status.is_terminal() => RunRow {
            status: RunStatus::Cancelled,
            error: Some(super::own::overdue(deadline)),
            worker: String::new(),
            parked: false,
            waits: String::new(),
            wake_at: Timestamp::NEVER,
            finished_at: Some(deadline),
            updated_at: run.updated_at.max(deadline),
            ..run
        },
        _ => run,
    }
}

pub(crate) fn matches(filter: &RunFilter, run: &RunRow) -> bool {
    let equal = |wanted: &Option<String>, is: &str| wanted.as_ref().is_none_or(|w| w == is);
    (filter.status.is_empty() || filter.status.contains(&run.status))
        && equal(&filter.workflow, &run.workflow)
        && equal(&filter.queue, &run.queue)
        && equal(&filter.app_version, &run.app_version)
        && equal(&filter.parent, &run.parent)
        && equal(&filter.forked_from, &run.forked_from)
        && filter.id_prefix.as_ref().is_none_or(|prefix| run.run_id.starts_with(prefix))
        && filter.created_from.is_none_or(|from| run.created_at >= from)
        && filter.created_to.is_none_or(|to| run.created_at < to)
}
