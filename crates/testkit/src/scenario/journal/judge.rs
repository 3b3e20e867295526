//! Whether one reply was allowed, given all replies before it.
//!
//! Invariants: epochs only rise; a write is accepted from the newest lease alone, or is the repeat
//! of one that was; nobody is claimed under a live lease or before its time; a final record keeps
//! its value for ever; a signal is consumed once; what is over stays over.

use steadfast_core::Timestamp;
use steadfast_core::driver::RecordState;
use steadfast_store::op::{
    self, Cancelled, Claimed, Debounced, Entry, Forked, Lease, Released, Signalled, Started,
    Suspended, With, Written,
};
use steadfast_store::{Op, Reply};

use super::{ClaimSeen, Held, Known, Settled};
use crate::model::Forgotten;

type Judged<T = ()> = Result<T, String>;

/// Who claims, when.
struct By<'a> {
    tick: u64,
    worker: &'a str,
    until: Timestamp,
    now: Timestamp,
    dequeued: bool,
}

impl Known {
    pub(super) fn judge(&mut self, tick: u64, op: &Op, reply: &Reply) -> Judged {
        match (op, reply) {
            (Op::Start(op), Reply::Start(Started::New(lease))) => {
                self.started(tick, op, lease.as_ref());
            }
            (Op::Debounce(op), Reply::Debounce(Debounced::New)) => {
                self.started(tick, &op.start, None);
            }
            (Op::Dequeue(op), Reply::Dequeue(claimed)) => {
                let (worker, until, now) = (op.worker.as_str(), op.lease_until, op.now);
                return self.claimed(&By { tick, worker, until, now, dequeued: true }, claimed);
            }
            (Op::Wake(op), Reply::Wake(claimed)) => {
                let (worker, until, now) = (op.worker.as_str(), op.lease_until, op.now);
                return self.claimed(&By { tick, worker, until, now, dequeued: false }, claimed);
            }
            (Op::TakeOver(op), Reply::TakeOver(_)) => self.taken_over(op),
            (Op::Heartbeat(op), Reply::Heartbeat(beaten)) => return self.beaten(op, beaten),
            (Op::EndLeases(op), Reply::EndLeases(op::LeasesEnded::Done(_))) => {
                self.leases_ended(op);
            }
            (Op::Record(op), Reply::Record(Written::Done)) => {
                self.owner_in_time(&op.lease, "Record", op.now)?;
                return self.entries(tick, &op.lease, &op.entries);
            }
            (Op::Finish(op), Reply::Finish(Written::Done)) => return self.finished(tick, op),
            (Op::Suspend(op), Reply::Suspend(suspended)) => {
                return self.suspended(tick, op, suspended);
            }
            (Op::Release(op), Reply::Release(Written::Done)) if op.what == Released::Run => {
                return self.park(&op.lease, op.now, "Release");
            }
            (Op::ContinueAsNew(op), Reply::ContinueAsNew(Written::Done)) => {
                let known = self.runs.get(&op.lease.run_id);
                let repeated = |run: &Held| {
                    run.generation == op.generation + 1 && run.epoch == op.lease.epoch + 1
                };
                if known.is_some_and(repeated) {
                    return Ok(());
                }
                let run = self.owner_in_time(&op.lease, "ContinueAsNew", op.now)?;
                run.generation = op.generation + 1;
                run.epoch += 1;
            }
            (Op::Cancel(op), Reply::Cancel(cancelled)) => {
                return self.cancelled(tick, op, cancelled);
            }
            (Op::TimeOut(op), Reply::TimeOut(op::TimedOut::Done(others))) => {
                return self.timed_out(tick, op, others);
            }
            (Op::Resume(op), Reply::Resume(op::Resumed::Done)) => {
                self.stop_if_overdue(tick, &op.run_id, op.now);
                let run = self.runs.entry(op.run_id.clone()).or_default();
                (run.over, run.enqueued, run.attempts) = (false, true, 0);
                run.deadline = None;
                self.stopped.remove(&op.run_id);
            }
            (Op::Fork(op), Reply::Fork(Forked::Done)) => self.forked(op),
            (Op::Signal(op), Reply::Signal(signalled)) => return self.signalled(op, signalled),
            (Op::DefineQueue(op), Reply::DefineQueue(defined)) => {
                self.queues.insert(op.queue.name.clone(), defined.queue.clone());
            }
            (Op::PutQueue(op), _) => {
                self.queues.insert(op.queue.name.clone(), op.queue.clone());
            }
            _ => {}
        }
        Ok(())
    }

    fn forked(&mut self, op: &op::Fork) {
        let max_attempts = self.runs.get(&op.source).map_or(0, |run| run.max_attempts);
        let run = Held { enqueued: true, forked: true, max_attempts, ..Held::default() };
        self.runs.entry(op.run_id.clone()).or_insert(run);
    }

    fn leases_ended(&mut self, op: &op::EndLeases) {
        let mine = |run: &&mut Held| run.worker == op.worker && !run.over && !run.parked;
        for run in self.runs.values_mut().filter(mine) {
            run.until = run.until.min(op.now);
        }
    }

    fn started(&mut self, tick: u64, op: &op::Start, lease: Option<&Lease>) {
        if self.runs.contains_key(&op.run_id) {
            return;
        }
        let mut run = Held {
            enqueued: lease.is_none(),
            max_attempts: op.max_attempts,
            parent: op.parent.clone(),
            deadline: if lease.is_some() { op.deadline_by() } else { op.deadline_at },
            ..Held::default()
        };
        if let Some(lease) = lease {
            (run.epoch, run.attempts) = (lease.epoch, 1);
            run.worker.clone_from(&lease.worker);
            run.until = op.claim.as_ref().map_or(op.now, |(_, until)| *until);
            self.claims.push(ClaimSeen {
                run: op.run_id.clone(),
                queue: op.queue.clone(),
                worker: lease.worker.clone(),
                epoch: lease.epoch,
                tick,
                now: op.now,
                dequeued: true,
                recovered: false,
                before: Held::default(),
                forgotten: None,
            });
        }
        self.runs.insert(op.run_id.clone(), run);
    }

    fn claimed(&mut self, by: &By<'_>, claimed: &Claimed) -> Judged {
        for row in &claimed.runs {
            let id = &row.run_id;
            let run = self.runs.entry(id.clone()).or_default();
            if run.over {
                return Err(format!("{id} was claimed after it was over"));
            }
            if row.epoch <= run.epoch {
                return Err(format!("{id} was claimed with epoch {} again", row.epoch));
            }
            if run.enqueued != by.dequeued {
                return Err(format!("{id} was claimed by the wrong kind of claim"));
            }
            if !by.dequeued && run.until > by.now {
                let what = if run.parked { "waits" } else { "is leased" };
                return Err(format!(
                    "{id} was claimed at {} but {what} until {}",
                    by.now, run.until
                ));
            }
            let again = |claim: &ClaimSeen| {
                claim.run == *id && claim.worker == by.worker && claim.epoch == row.epoch
            };
            let forgotten = self.claims.iter().filter(|claim| claim.forgotten.is_some());
            if forgotten.clone().any(again) {
                return Err(format!(
                    "{id} was claimed by {} with epoch {} again, after a crash",
                    by.worker, row.epoch
                ));
            }
            let before = run.clone();
            let recovered = !run.parked && !by.dequeued;
            run.attempts += i64::from(!run.parked);
            run.epoch = row.epoch;
            by.worker.clone_into(&mut run.worker);
            (run.until, run.parked, run.enqueued) = (by.until, false, false);
            if run.deadline.is_some_and(|known| row.deadline_at.is_none_or(|now| now > known)) {
                return Err(format!(
                    "{id} had to end at {:?}, and now at a later time",
                    run.deadline
                ));
            }
            run.deadline = row.deadline_at;
            self.claims.push(ClaimSeen {
                run: id.clone(),
                queue: row.queue.clone(),
                worker: by.worker.to_owned(),
                epoch: row.epoch,
                tick: by.tick,
                now: by.now,
                dequeued: by.dequeued,
                recovered,
                before,
                forgotten: None,
            });
        }
        self.ended_by_claim(by, claimed)
    }

    /// Runs that a claim ended instead of taking them.
    fn ended_by_claim(&mut self, by: &By<'_>, claimed: &Claimed) -> Judged {
        for id in &claimed.overdue {
            let run = self.runs.entry(id.clone()).or_default();
            let with_parent = claimed.overdue.contains(&run.parent);
            if run.over || !(with_parent || run.deadline.is_some_and(|at| at <= by.now)) {
                return Err(format!("{id} was ended as overdue at {}, but {run:?}", by.now));
            }
            self.stop(by.tick, id, by.now);
        }
        for id in &claimed.exhausted {
            let run = self.runs.entry(id.clone()).or_default();
            if run.attempts <= run.max_attempts || run.parked || run.over {
                return Err(format!("{id} was parked as exhausted too early"));
            }
            self.stop(by.tick, id, by.now);
        }
        Ok(())
    }

    /// Claims that a crash of the server undid, the newest first: their runs wait on their queues
    /// again, and who holds such a claim may write nothing.
    pub(super) fn forget(&mut self, forgotten: &[Forgotten], now: Timestamp) {
        for Forgotten { run_id, epoch } in forgotten {
            let is_it = |claim: &&mut ClaimSeen| claim.run == *run_id && claim.epoch == *epoch;
            if let Some(claim) = self.claims.iter_mut().rev().find(is_it) {
                claim.forgotten = Some(now);
                self.runs.insert(run_id.clone(), claim.before.clone());
            }
        }
    }

    fn taken_over(&mut self, op: &op::TakeOver) {
        let earlier = |worker: &str| {
            let of_name = worker.strip_prefix(&op.name).is_some_and(|id| id.starts_with('#'));
            of_name && worker != op.worker
        };
        self.fenced_off(earlier, op.now);
    }

    /// The owners write nothing more to their runs, and anybody may claim those.
    fn fenced_off(&mut self, owner: impl Fn(&str) -> bool, now: Timestamp) {
        for run in self.runs.values_mut().filter(|run| !run.over && !run.parked) {
            if owner(&run.worker) {
                run.until = run.until.min(now);
                run.epoch += 1;
            }
        }
    }

    fn beaten(
        &mut self,
        op: &op::Heartbeat,
        op::Beaten { lost, superseded_by }: &op::Beaten,
    ) -> Judged {
        if superseded_by.is_some() {
            self.fenced_off(|worker| worker == op.worker, op.now);
            return Ok(());
        }
        for (id, epoch) in &op.leases {
            let run = self.runs.entry(id.clone()).or_default();
            let mine = run.worker == op.worker && run.epoch == *epoch && !run.over && !run.parked;
            if mine == lost.contains(id) {
                return Err(format!(
                    "{id} of epoch {epoch}: owner {mine}, heartbeat says otherwise"
                ));
            }
            if mine {
                run.until = run.until.max(op.lease_until);
            }
        }
        Ok(())
    }

    /// The run, if the lease is its newest.
    fn owner(&mut self, lease: &Lease, what: &str) -> Judged<&mut Held> {
        let run = self.runs.entry(lease.run_id.clone()).or_default();
        if run.over || run.parked || run.worker != lease.worker || run.epoch != lease.epoch {
            return Err(format!(
                "{what} of {} by {} with epoch {} was accepted, but {run:?}",
                lease.run_id, lease.worker, lease.epoch
            ));
        }
        Ok(run)
    }

    /// The same before its deadline: every read shows it as ended from then on.
    fn owner_in_time(&mut self, lease: &Lease, what: &str, now: Timestamp) -> Judged<&mut Held> {
        let run = self.owner(lease, what)?;
        if let Some(deadline) = run.deadline.filter(|deadline| *deadline <= now) {
            let id = &lease.run_id;
            return Err(format!("{what} of {id} at {now} was accepted after {deadline}"));
        }
        Ok(run)
    }

    /// Only the newest owner ends its run for its deadline, and only after that.
    fn timed_out(&mut self, tick: u64, op: &op::TimeOut, others: &[String]) -> Judged {
        let id = &op.lease.run_id;
        let known = self.runs.get(id);
        if known.is_some_and(|run| run.over && run.epoch == op.lease.epoch + 1) {
            return Ok(());
        }
        let run = self.owner(&op.lease, "TimeOut")?;
        if run.deadline.is_none_or(|deadline| deadline > op.now) {
            return Err(format!("{id} was timed out at {}, but {run:?}", op.now));
        }
        for id in others.iter().chain([id]) {
            self.stop(tick, id, op.now);
        }
        Ok(())
    }

    /// An operator's request meets a run whose deadline has passed: its end is written first.
    fn stop_if_overdue(&mut self, tick: u64, id: &str, now: Timestamp) {
        let is_overdue =
            |run: &Held| !run.over && run.deadline.is_some_and(|deadline| deadline <= now);
        if !self.runs.get(id).is_some_and(is_overdue) {
            return;
        }
        let mut down = vec![id.to_owned()];
        while let Some(id) = down.pop() {
            let children = self.runs.iter().filter(|(_, run)| run.parent == id && !run.over);
            down.extend(children.map(|(id, _)| id.clone()));
            self.stop(tick, &id, now);
        }
    }

    fn finished(&mut self, tick: u64, op: &op::Finish) -> Judged {
        let id = &op.lease.run_id;
        let known = self.runs.get(id);
        if known.is_some_and(|run| run.over && run.epoch == op.lease.epoch) {
            return Ok(());
        }
        self.owner_in_time(&op.lease, "Finish", op.now)?;
        self.entries(tick, &op.lease, &op.entries)?;
        self.end(id, op.now);
        Ok(())
    }

    fn end(&mut self, id: &str, now: Timestamp) {
        let run = self.runs.entry(id.to_owned()).or_default();
        (run.over, run.parked, run.enqueued) = (true, false, false);
        run.worker.clear();
        let parent = run.parent.clone();
        self.arrive(&parent, now);
    }

    fn stop(&mut self, tick: u64, id: &str, now: Timestamp) {
        self.end(id, now);
        self.runs.entry(id.to_owned()).or_default().epoch += 1;
        self.stopped.insert(id.to_owned(), (tick, now));
    }

    fn arrive(&mut self, id: &str, now: Timestamp) {
        if let Some(run) = self.runs.get_mut(id).filter(|run| run.parked) {
            run.until = run.until.min(now);
        }
    }

    fn suspended(&mut self, tick: u64, op: &op::Suspend, suspended: &Suspended) -> Judged {
        let id = &op.lease.run_id;
        match suspended {
            Suspended::Fenced | Suspended::Refused(_) => return Ok(()),
            Suspended::Arrived => {
                self.owner_in_time(&op.lease, "Suspend", op.now)?;
                return self.entries(tick, &op.lease, &op.entries);
            }
            Suspended::Done => {}
        }
        if self.runs.get(id).is_some_and(|run| run.parked && run.epoch == op.lease.epoch) {
            return Ok(());
        }
        self.owner_in_time(&op.lease, "Suspend", op.now)?;
        self.entries(tick, &op.lease, &op.entries)?;
        self.park(&op.lease, op.wake_at, "Suspend")
    }

    fn park(&mut self, lease: &Lease, until: Timestamp, what: &str) -> Judged {
        if self.runs.get(&lease.run_id).is_some_and(|r| r.parked && r.epoch == lease.epoch) {
            return Ok(());
        }
        let run = self.owner(lease, what)?;
        (run.parked, run.until) = (true, until);
        run.worker.clear();
        Ok(())
    }

    fn cancelled(&mut self, tick: u64, op: &op::Cancel, reply: &Cancelled) -> Judged {
        self.stop_if_overdue(tick, &op.run_id, op.now);
        match reply {
            Cancelled::Done(others) => {
                for id in others.iter().chain([&op.run_id]) {
                    if self.runs.get(id).is_none_or(|run| run.over) {
                        return Err(format!("{id} was cancelled after it was over"));
                    }
                    self.stop(tick, id, op.now);
                }
            }
            Cancelled::AlreadyOver(_) if self.runs.get(&op.run_id).is_none_or(|run| !run.over) => {
                return Err(format!("{} is not over, but a cancel was told so", op.run_id));
            }
            Cancelled::AlreadyOver(_) | Cancelled::NotFound => {}
        }
        Ok(())
    }

    fn signalled(&mut self, op: &op::Signal, reply: &Signalled) -> Judged {
        let is_over = |run: &Held| run.over || run.deadline.is_some_and(|at| at <= op.now);
        let over = self.runs.get(&op.run_id).is_some_and(is_over);
        let new = (op.run_id.clone(), op.signal_id.clone());
        match reply {
            Signalled::Accepted if over => Err(format!("{} is over and took a signal", op.run_id)),
            Signalled::Accepted => {
                self.arrive(&op.run_id, op.now);
                match self.accepted.insert(new) {
                    true => Ok(()),
                    false => Err(format!("signal {} was accepted twice", op.signal_id)),
                }
            }
            Signalled::Duplicate if !self.accepted.contains(&new) => {
                Err(format!("signal {} is new, but called a duplicate", op.signal_id))
            }
            Signalled::Over if !over => Err(format!("{} is not over", op.run_id)),
            Signalled::Duplicate | Signalled::Over | Signalled::NotFound => Ok(()),
        }
    }

    fn entries(&mut self, tick: u64, lease: &Lease, entries: &[Entry]) -> Judged {
        let generation = self.runs.get(&lease.run_id).map_or(0, |run| run.generation);
        for Entry { record, with, .. } in entries {
            if record.state != RecordState::Done {
                continue;
            }
            let at = (lease.run_id.clone(), generation, record.id);
            if let Some(known) = self.settled.get(&at) {
                if known.record.outcome != record.outcome || known.record.name != record.name {
                    return Err(format!(
                        "step {} of {} was {:?} and became {:?}",
                        record.id, lease.run_id, known.record.outcome, record.outcome
                    ));
                }
                continue;
            }
            self.settled.insert(at, Settled { tick, record: record.clone() });
            match with {
                Some(With::Consume(seq)) if !self.consumed.insert((lease.run_id.clone(), *seq)) => {
                    return Err(format!("signal {seq} of {} was consumed twice", lease.run_id));
                }
                Some(With::Send(signal)) => {
                    let new = (signal.run_id.clone(), signal.signal_id.clone());
                    self.accepted.insert(new);
                    self.arrive(&signal.run_id, signal.now);
                }
                Some(With::Spawn(start)) => self.started(tick, start, None),
                _ => {}
            }
        }
        Ok(())
    }
}
