//! Steering from outside: cancel, resume, fork, purge, signal.
//!
//! Invariants: what is over stays over, unless a stopped run is resumed; a fork leaves its source
//! as it was; a purge takes only what is over; a signal is accepted once and in order.

use std::collections::BTreeMap;

use steadfast_core::driver::{Outcome, RecordState};
use steadfast_core::{Error, RunEvent, RunStatus, Timestamp};
use steadfast_store::op::{
    Cancelled, Fork, Forked, Purge, Purged, Resume, Resumed, RunRow, Signal, Signalled,
};

use super::{Dedupe, Model, Sent, Step, all_of, key, numbered, own, signed};

impl Model {
    /// Stops a run and its attached children, and with it the command that it carries out.
    pub(super) fn cancel_run(
        &mut self,
        ws: &str,
        run_id: &str,
        reason: &Error,
        actor: &str,
        now: Timestamp,
    ) -> Cancelled {
        self.write_overdue(ws, run_id, now);
        let Some(run) = self.run(ws, run_id).cloned() else {
            return Cancelled::NotFound;
        };
        if run.status.is_terminal() {
            return Cancelled::AlreadyOver(run.status);
        }
        self.stop(ws, &run, RunEvent::Cancel, reason, now);
        self.command_follows(ws, &run, RunEvent::Cancel, (None, Some(reason)), actor, now);
        Cancelled::Done(self.stop_attached(ws, run_id, reason, now))
    }

    /// Writes the end of a run whose deadline has passed.
    fn write_overdue(&mut self, ws: &str, run_id: &str, now: Timestamp) {
        let is_overdue = |run: &&RunRow| {
            !run.status.is_terminal() && run.deadline_at.is_some_and(|deadline| deadline <= now)
        };
        if let Some(run) = self.run(ws, run_id).filter(is_overdue).cloned() {
            self.end_overdue(ws, &run, now);
        }
    }

    /// Stops the attached descendants of a run; gives their ids.
    pub(super) fn stop_attached(
        &mut self,
        ws: &str,
        run_id: &str,
        reason: &Error,
        now: Timestamp,
    ) -> Vec<String> {
        let mut stopped = Vec::new();
        let mut parents = vec![run_id.to_owned()];
        while let Some(parent) = parents.pop() {
            for child in self.attached_to(ws, &parent) {
                self.stop(ws, &child, RunEvent::Cancel, reason, now);
                stopped.push(child.run_id.clone());
                parents.push(child.run_id);
            }
        }
        stopped.sort();
        stopped
    }

    /// Active children that go down with their parent.
    fn attached_to(&self, workspace: &str, parent: &str) -> Vec<RunRow> {
        self.runs_of(workspace)
            .filter(|run| run.parent == parent && !run.detached && !run.status.is_terminal())
            .cloned()
            .collect()
    }

    /// Ends an active run from outside; whoever executes it is fenced off.
    pub(super) fn stop(
        &mut self,
        workspace: &str,
        run: &RunRow,
        event: RunEvent,
        reason: &Error,
        now: Timestamp,
    ) {
        self.runs.edit(&key(workspace, &run.run_id), |run| {
            if !run.worker.is_empty() {
                // Until then, its owner may not have heard of it.
                run.ready_at = run.wake_at;
            }
            own::over(run, event, now);
            run.epoch += 1;
            run.error = Some(reason.clone());
        });
        self.slots.clear(all_of(workspace, &run.run_id));
        self.free_dedupe(workspace, run);
        self.arrive(workspace, &run.parent, now);
    }

    pub(super) fn resume(&mut self, op: &Resume) -> Resumed {
        self.write_overdue(&op.workspace, &op.run_id, op.now);
        let at = key(&op.workspace, &op.run_id);
        let Some(run) = self.runs.get(&at) else {
            return Resumed::NotFound;
        };
        let Ok(arrow) = run.status.on(RunEvent::Resume) else {
            return Resumed::NotStopped(run.status);
        };
        if let Some(refusal) = self.forbids(&op.workspace, run) {
            return refusal;
        }
        let before = run.clone();
        let partition = self.partition_now(&op.workspace, run);
        let name = (op.workspace.clone(), before.queue.clone(), before.dedupe_id.clone());
        // Another run may have it by now.
        let is_free = !before.dedupe_id.is_empty() && !self.dedupes.has(&name);
        if is_free {
            self.dedupes.put(name, Dedupe { run_id: before.run_id.clone() });
        }
        self.runs.edit(&at, |run| {
            run.status = arrow.to();
            run.partition = partition;
            run.error = None;
            run.attempts = 0;
            run.ready_at = match run.started_at {
                Some(_) => run.ready_at.max(op.now),
                None => op.now,
            };
            run.finished_at = None;
            run.deadline_at = None;
            if !is_free {
                run.dedupe_id.clear();
            }
            run.updated_at = op.now;
        });
        let (ws, by) = (op.workspace.as_str(), "system:resume");
        self.command_follows(ws, &before, RunEvent::Resume, (None, None), by, op.now);
        Resumed::Done
    }

    /// Where a run belongs if it is put on its queue now: the queue may have changed since.
    fn partition_now(&self, workspace: &str, run: &RunRow) -> String {
        let queue = self.queue_or_default(workspace, &run.queue);
        let partitioned = queue.is_some_and(|queue| queue.partitioned);
        if partitioned { run.partition.clone() } else { String::new() }
    }

    pub(super) fn fork(&mut self, op: &Fork) -> Forked {
        let ws = op.workspace.as_str();
        if self.run(ws, &op.run_id).is_some() {
            return match self.forks.get(&key(ws, &op.run_id)) {
                Some(known) if known.source != op.source => Forked::Conflict("source"),
                Some(known) if !asks_the_same(known, op) => Forked::Conflict("request"),
                Some(known) if known.seed == op.seed => Forked::Done,
                Some(_) => Forked::Existing,
                None => Forked::Conflict("source"),
            };
        }
        let Some(source) = self.run(ws, &op.source).cloned() else {
            return Forked::NotFound;
        };
        if let Some(patch) = op.patches.iter().find(|patch| signed(patch.id) >= op.from_step) {
            return Forked::NoSuchStep(signed(patch.id));
        }
        let partition = self.partition_now(ws, &source);
        self.runs.put(key(ws, &op.run_id), forked(op, &source, partition));
        let copied: Vec<Step> = self
            .steps
            .range(all_of(ws, &op.source))
            .filter(|((_, _, id), _)| *id < op.from_step)
            .filter(|(_, step)| step.record.state == RecordState::Done)
            .map(|(_, step)| Step { record: step.record.clone(), epoch: 0 })
            .collect();
        for step in copied {
            self.steps.put(numbered(ws, &op.run_id, signed(step.record.id)), step);
        }
        self.forks.put(key(ws, &op.run_id), op.clone());
        self.copy_told(op, source.generation);
        for patch in &op.patches {
            let at = numbered(ws, &op.run_id, signed(patch.id));
            let patched = self.steps.edit(&at, |step| {
                step.record.outcome.clone_from(&patch.outcome);
            });
            if !patched {
                return Forked::NoSuchStep(signed(patch.id));
            }
        }
        Forked::Done
    }

    /// Values and stream items from before the cut belong to the fork, too.
    fn copy_told(&mut self, op: &Fork, generation: i64) {
        let (ws, source, to) = (&op.workspace, &op.source, &op.run_id);
        let of_source = |w: &String, r: &String| w == ws && r == source;
        let versions = self.values.iter().filter(|((w, r, _), _)| of_source(w, r));
        let versions: Vec<_> = versions.map(|((_, _, k), v)| (k.clone(), v.clone())).collect();
        for (name, mut versions) in versions {
            versions.retain(|version| version.is_before(generation, op.from_step));
            if !versions.is_empty() {
                self.values.put((ws.clone(), to.clone(), name), versions);
            }
        }
        let items = self.items.iter().filter(|((w, r, ..), _)| of_source(w, r));
        let items = items.filter(|(_, item)| item.is_before(generation, op.from_step));
        let items: Vec<_> = items.map(|((.., s, _), item)| (s.clone(), item.clone())).collect();
        let mut ends = BTreeMap::<String, i64>::new();
        for (stream, item) in items {
            let end = ends.entry(stream.clone()).or_default();
            self.items.put((ws.clone(), to.clone(), stream, *end), item);
            *end += 1;
        }
    }

    pub(super) fn purge(&mut self, op: &Purge) -> Purged {
        let ws = op.workspace.as_str();
        let mut gone: Vec<_> = self
            .runs_of(ws)
            .filter(|run| run.created_at < op.before)
            .filter(|run| run.finished_at.is_some_and(|at| at < op.before))
            .map(|run| (run.created_at, run.run_id.clone()))
            .collect();
        gone.sort();
        gone.truncate(op.limit);
        for (_, run_id) in &gone {
            self.runs.remove(&key(ws, run_id));
            self.steps.clear(all_of(ws, run_id));
            self.signals.clear(all_of(ws, run_id));
            self.slots.clear(all_of(ws, run_id));
            self.forks.remove(&key(ws, run_id));
            let keys = self.debounces.iter().filter(|((w, ..), q)| w == ws && q.run_id == *run_id);
            let keys: Vec<_> = keys.map(|(at, _)| at.clone()).collect();
            keys.iter().for_each(|at| {
                self.debounces.remove(at);
            });
            let of_run = |(w, r): (&String, &String)| w == ws && r == run_id;
            let values: Vec<_> = self
                .values
                .iter()
                .filter(|((w, r, _), _)| of_run((w, r)))
                .map(|(at, _)| at.clone())
                .collect();
            values.iter().for_each(|at| {
                self.values.remove(at);
            });
            let items: Vec<_> = self
                .items
                .iter()
                .filter(|((w, r, _, _), _)| of_run((w, r)))
                .map(|(at, _)| at.clone())
                .collect();
            items.iter().for_each(|at| {
                self.items.remove(at);
            });
        }
        Purged(gone.len() as u64)
    }

    pub(super) fn signal(&mut self, op: &Signal) -> Signalled {
        let (ws, run_id) = (op.workspace.as_str(), op.run_id.as_str());
        let Some(run) = self.run(ws, run_id) else {
            return Signalled::NotFound;
        };
        let known = self.signals.range(all_of(ws, run_id));
        if known.map(|(_, sent)| &sent.signal_id).any(|id| *id == op.signal_id) {
            return Signalled::Duplicate;
        }
        if run.status.is_terminal() || run.deadline_at.is_some_and(|deadline| deadline <= op.now) {
            return Signalled::Over;
        }
        let next = self.signals.range(all_of(ws, run_id)).count();
        let sent = Sent {
            signal_id: op.signal_id.clone(),
            name: op.name.clone(),
            payload: op.payload.clone(),
            consumed: false,
        };
        self.signals.put(numbered(ws, run_id, signed(next as u64)), sent);
        self.arrive(ws, run_id, op.now);
        Signalled::Accepted
    }
}

/// Whether two requests for one id mean the same fork.
fn asks_the_same(known: &Fork, op: &Fork) -> bool {
    let patches = |fork: &Fork| -> BTreeMap<u64, Outcome> {
        fork.patches.iter().map(|patch| (patch.id, patch.outcome.clone())).collect()
    };
    (known.from_step, &known.input, &known.app_version, known.timeout)
        == (op.from_step, &op.input, &op.app_version, op.timeout)
        && patches(known) == patches(op)
}

/// A new run with the beginning of another: what that was started with, and a fresh budget. It
/// keeps the seed, the generation and the first start, so that the copied records replay as they
/// were made.
fn forked(op: &Fork, source: &RunRow, partition: String) -> RunRow {
    RunRow {
        run_id: op.run_id.clone(),
        status: RunStatus::Enqueued,
        input: op.input.clone().unwrap_or_else(|| source.input.clone()),
        output: None,
        error: None,
        partition,
        dedupe_id: String::new(),
        app_version: op.app_version.clone().unwrap_or_else(|| source.app_version.clone()),
        worker: String::new(),
        epoch: 0,
        attempts: 0,
        created_at: op.now,
        updated_at: op.now,
        finished_at: None,
        ready_at: op.now,
        wake_at: Timestamp::NEVER,
        parked: false,
        waits: String::new(),
        timeout: op.timeout.or(source.timeout),
        deadline_at: None,
        forked_from: op.source.clone(),
        parent: String::new(),
        detached: false,
        inbox: 0,
        context: None,
        ..source.clone()
    }
}
