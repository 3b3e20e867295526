//! What a run's owner writes: records, the end, a suspension.
//!
//! Invariants: only the holder of the newest lease of a PENDING run writes; a done record never
//! changes; a record and what belongs to it are written together or not at all.

use steadfast_core::driver::{Outcome, RecordState};
use steadfast_core::{Error as Failure, ErrorClass, RunEvent, RunStatus, Timestamp};
use steadfast_store::Error;
use steadfast_store::op::{
    ContinueAsNew, Entry, Finish, Lease, Record, Release, Released, RunRow, Signalled, Started,
    Suspend, Suspended, TimeOut, TimedOut, With, Written,
};

use super::{Model, Step, Told, all_of, key, numbered, signed};

impl Model {
    /// Whether a lease is the newest of a run that is being executed.
    fn is_newest(&self, lease: &Lease) -> bool {
        self.run(&lease.workspace, &lease.run_id).is_some_and(|run| {
            run.status == RunStatus::Pending
                && run.epoch == lease.epoch
                && run.worker == lease.worker
        })
    }

    /// Whether its holder may write: until the deadline.
    pub(super) fn owns(&self, lease: &Lease, now: Timestamp) -> bool {
        let run = self.run(&lease.workspace, &lease.run_id);
        self.is_newest(lease) && run.is_some_and(|run| run.deadline_at.is_none_or(|at| at > now))
    }

    pub(super) fn time_out(&mut self, op: &TimeOut) -> TimedOut {
        let (ws, run_id) = (op.lease.workspace.as_str(), op.lease.run_id.as_str());
        let Some(run) = self.run(ws, run_id).cloned() else {
            return TimedOut::Fenced;
        };
        if !self.is_newest(&op.lease) {
            let code = run.error.as_ref().map(Failure::code);
            let is_ended = run.status == RunStatus::Cancelled && code == Some("SF-0304");
            return match is_ended && run.epoch == op.lease.epoch + 1 {
                true => TimedOut::Done(Vec::new()),
                false => TimedOut::Fenced,
            };
        }
        match run.deadline_at.filter(|deadline| *deadline <= op.now) {
            Some(_) => TimedOut::Done(self.end_overdue(ws, &run, op.now)),
            None => TimedOut::NotDue(run.deadline_at),
        }
    }

    /// Ends an overdue run and its attached children; gives the children.
    pub(super) fn end_overdue(&mut self, ws: &str, run: &RunRow, now: Timestamp) -> Vec<String> {
        let reason = overdue(run.deadline_at.expect("invariant: overdue"));
        self.stop(ws, run, RunEvent::Cancel, &reason, now);
        let why = (None, Some(&reason));
        let stopped = self.stop_attached(ws, &run.run_id, &reason, now);
        self.command_follows(ws, run, RunEvent::Cancel, why, "system:deadline", now);
        stopped
    }

    pub(super) fn record(&mut self, op: &Record) -> Result<Written, Error> {
        if !self.owns(&op.lease, op.now) {
            return Ok(Written::Fenced);
        }
        self.write(&op.lease, &op.entries)
    }

    pub(super) fn finish(&mut self, op: &Finish) -> Result<Written, Error> {
        let (ws, run_id) = (op.lease.workspace.as_str(), op.lease.run_id.as_str());
        let Some(run) = self.run(ws, run_id).cloned() else {
            return Ok(Written::Fenced);
        };
        if !self.owns(&op.lease, op.now) {
            // A repeated request: the run ended so, and nobody has claimed it since.
            let mine = run.epoch == op.lease.epoch && ended_as(&run, &op.outcome);
            return Ok(if mine { Written::Done } else { Written::Fenced });
        }
        let written = self.write(&op.lease, &op.entries)?;
        if written != Written::Done {
            return Ok(written);
        }
        let event = if op.outcome.is_ok() { RunEvent::Succeed } else { RunEvent::Fail };
        self.runs.edit(&key(ws, run_id), |run| {
            over(run, event, op.now);
            run.output = op.outcome.as_ref().ok().cloned();
            run.error = op.outcome.as_ref().err().cloned();
        });
        self.free_dedupe(ws, &run);
        self.arrive(ws, &run.parent, op.now);
        let how = (op.outcome.as_deref().ok(), op.outcome.as_ref().err());
        self.command_follows(ws, &run, event, how, &op.lease.worker, op.now);
        Ok(Written::Done)
    }

    /// Something arrived for a run: it is counted, and a suspended run wakes.
    pub(super) fn arrive(&mut self, workspace: &str, run_id: &str, now: Timestamp) {
        let at = key(workspace, run_id);
        if self.runs.get(&at).is_some_and(|run| !run.status.is_terminal()) {
            self.runs.edit(&at, |run| {
                run.inbox += 1;
                if run.parked {
                    run.wake_at = run.wake_at.min(now);
                }
            });
        }
    }

    pub(super) fn suspend(&mut self, op: &Suspend) -> Result<Suspended, Error> {
        if !self.owns(&op.lease, op.now) {
            let repeated = self.gave_up(&op.lease).is_some_and(|run| run.waits == op.waits);
            return Ok(if repeated { Suspended::Done } else { Suspended::Fenced });
        }
        match self.write(&op.lease, &op.entries)? {
            Written::Done => {}
            Written::Fenced => return Ok(Suspended::Fenced),
            Written::Refused(why) => return Ok(Suspended::Refused(why)),
        }
        let at = key(&op.lease.workspace, &op.lease.run_id);
        if self.runs.get(&at).is_some_and(|run| run.inbox != op.inbox) {
            return Ok(Suspended::Arrived);
        }
        self.runs.edit(&at, |run| park(run, op.wake_at, &op.waits, op.now));
        Ok(Suspended::Done)
    }

    pub(super) fn release(&mut self, op: &Release) -> Written {
        if op.what == Released::Hold {
            return self.let_go(op);
        }
        if self.is_newest(&op.lease) {
            let at = key(&op.lease.workspace, &op.lease.run_id);
            self.runs.edit(&at, |run| park(run, op.now, "", op.now));
            return Written::Done;
        }
        let repeated = self.gave_up(&op.lease).is_some_and(|run| run.waits.is_empty());
        if repeated { Written::Done } else { Written::Fenced }
    }

    /// Nothing of a stopped run is under way any more, and nobody has claimed it since.
    fn let_go(&mut self, op: &Release) -> Written {
        let at = key(&op.lease.workspace, &op.lease.run_id);
        let stopped = self.runs.get(&at).is_some_and(|run| {
            run.epoch == op.lease.epoch + 1
                && [RunStatus::Cancelled, RunStatus::Enqueued].contains(&run.status)
        });
        if !stopped {
            return Written::Fenced;
        }
        self.runs.edit(&at, |run| run.ready_at = run.ready_at.min(op.now));
        Written::Done
    }

    /// The run of a lease whose holder gave it up, if nobody has claimed it since.
    fn gave_up(&self, lease: &Lease) -> Option<&RunRow> {
        self.run(&lease.workspace, &lease.run_id).filter(|run| {
            run.status == RunStatus::Pending && run.parked && run.epoch == lease.epoch
        })
    }

    pub(super) fn continue_as_new(&mut self, op: &ContinueAsNew) -> Written {
        let (ws, run_id) = (op.lease.workspace.as_str(), op.lease.run_id.as_str());
        let run = self.run(ws, run_id);
        if !self.owns(&op.lease, op.now) {
            // The next generation has the next epoch, so that nothing late of this one gets in.
            let next = Lease { epoch: op.lease.epoch + 1, ..op.lease.clone() };
            let mine = |run: &RunRow| run.generation == op.generation + 1 && run.input == op.input;
            let repeated = run.is_some_and(mine) && self.owns(&next, op.now);
            return if repeated { Written::Done } else { Written::Fenced };
        }
        if run.is_none_or(|run| run.generation != op.generation) {
            return Written::Fenced;
        }
        self.runs.edit(&key(ws, run_id), |run| {
            run.input.clone_from(&op.input);
            run.generation += 1;
            run.epoch += 1;
            run.started_at = Some(op.now);
            run.updated_at = op.now;
        });
        self.steps.clear(all_of(ws, run_id));
        Written::Done
    }

    fn write(&mut self, lease: &Lease, entries: &[Entry]) -> Result<Written, Error> {
        for entry in entries {
            if !self.put_step(lease, entry)? {
                continue;
            }
            if let Some(with) = &entry.with
                && let Err(why) = self.attach(lease, signed(entry.record.id), with)
            {
                return Ok(Written::Refused(why));
            }
        }
        Ok(Written::Done)
    }

    /// Writes one record. False if this owner wrote it before: then what belongs to it is there
    /// too.
    fn put_step(&mut self, lease: &Lease, entry: &Entry) -> Result<bool, Error> {
        let new = &entry.record;
        let at = numbered(&lease.workspace, &lease.run_id, signed(new.id));
        match self.steps.get(&at) {
            None if entry.replaces => {
                Err(Error::Refused(format!("step {} is not there to be settled", new.id)))
            }
            None => {
                self.steps.put(at, Step { record: new.clone(), epoch: lease.epoch });
                Ok(true)
            }
            Some(old) if entry.replaces && old.record.state != RecordState::Done => {
                self.steps.edit(&at, |step| settle(step, entry, lease.epoch));
                Ok(true)
            }
            Some(old) if old.epoch == lease.epoch && old.record.name == new.name => Ok(false),
            Some(_) => Err(Error::Refused(format!(
                "step {} of run {} is recorded already",
                new.id, lease.run_id
            ))),
        }
    }

    /// Writes what belongs to a record, or says why that cannot be.
    fn attach(&mut self, lease: &Lease, step: i64, with: &With) -> Result<(), String> {
        let (ws, run_id) = (lease.workspace.clone(), lease.run_id.clone());
        let generation = self.run(&ws, &run_id).map_or(0, |run| run.generation);
        match with {
            With::Consume(seq) => {
                let at = numbered(&ws, &run_id, *seq);
                if self.signals.get(&at).is_none_or(|signal| signal.consumed) {
                    return Err(format!("signal {seq} was consumed before"));
                }
                self.signals.edit(&at, |signal| signal.consumed = true);
            }
            With::Publish { key, value } => {
                let at = (ws, run_id, key.clone());
                let mut versions = self.values.get(&at).cloned().unwrap_or_default();
                versions.push(Told { what: value.clone(), generation, step });
                self.values.put(at, versions);
            }
            With::Append { stream, item } => {
                let end = self.stream(&ws, &run_id, stream, 0).count();
                let at = (ws, run_id, stream.clone(), signed(end as u64));
                self.items.put(at, Told { what: item.clone(), generation, step });
            }
            With::Send(signal) => match self.signal(signal) {
                Signalled::Accepted | Signalled::Duplicate => {}
                Signalled::Over => {
                    return Err(format!("run {} is over and takes no signals", signal.run_id));
                }
                Signalled::NotFound => return Err(format!("there is no run {}", signal.run_id)),
            },
            With::Spawn(child) => match self.start(child) {
                Started::New(_) | Started::Existing(_) => {}
                Started::Conflict(field) => {
                    return Err(format!("the child's id is taken by a run with another {field}"));
                }
                Started::Duplicate(run_id) => {
                    return Err(format!("run {run_id} has the deduplication id"));
                }
                Started::NoQueue => return Err("the child's queue does not exist".to_owned()),
            },
            With::Govern(what) => return self.govern(lease, what),
        }
        Ok(())
    }
}

/// What a later record of the same call changes: how far it has come, never what it is.
fn settle(step: &mut Step, entry: &Entry, epoch: i64) {
    let new = &entry.record;
    let old = &mut step.record;
    old.seq = new.seq;
    old.state = new.state;
    old.outcome.clone_from(&new.outcome);
    old.attempt = new.attempt;
    old.completed_at = new.completed_at;
    old.next_at = new.next_at;
    step.epoch = epoch;
}

/// A suspended run is PENDING, without a worker, until its time comes.
fn park(run: &mut RunRow, wake_at: Timestamp, waits: &str, now: Timestamp) {
    run.worker.clear();
    run.parked = true;
    run.wake_at = wake_at.min(run.deadline_at.unwrap_or(Timestamp::NEVER));
    run.waits = waits.to_owned();
    run.updated_at = now;
}

/// The error of a run that did not end in time.
pub(super) fn overdue(deadline: Timestamp) -> Failure {
    let text = format!("the run did not end before its deadline {deadline}");
    Failure::new(ErrorClass::Timeout, "SF-0304", text)
}

/// What every end has in common.
pub(super) fn over(run: &mut RunRow, event: RunEvent, now: Timestamp) {
    run.status = run.status.on(event).expect("invariant: the arrow was looked up").to();
    run.worker.clear();
    run.wake_at = Timestamp::NEVER;
    run.parked = false;
    run.waits.clear();
    run.finished_at = Some(now);
    run.updated_at = now;
}

fn ended_as(run: &RunRow, outcome: &Outcome) -> bool {
    match outcome {
        Ok(value) => run.status == RunStatus::Success && run.output.as_ref() == Some(value),
        Err(error) => run.status == RunStatus::Error && run.error.as_ref() == Some(error),
    }
}
