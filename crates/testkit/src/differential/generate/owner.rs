//! What an owner writes: records and what belongs to them, ends, suspensions.
//!
//! Invariants: a record that spawns names its child, as every caller's record does.

use steadfast_core::driver::{Kind, Outcome, Record, RecordState};
use steadfast_core::{Error, Timestamp, json};
use steadfast_store::op::{
    ContinueAsNew, Entry, Finish, Lease, Record as Write, Rest, Start, Suspend, With,
};

use super::{CHILDREN, Generator, KEYS, SECOND, STREAMS};

impl Generator {
    fn outcome(&mut self) -> Outcome {
        if self.random.chance(75) {
            return Ok(self.value());
        }
        Err(Error::app(self.random.text(&["no stock", "büsy "])))
    }

    pub(super) fn step(&mut self) -> Record {
        let outcome = self.outcome();
        let (input, drawn) = (self.value(), self.value());
        let r = &mut self.random;
        let id = r.below(8);
        Record {
            id,
            seq: r.below(20),
            name: if r.chance(96) { format!("s{id}") } else { "other".to_owned() },
            kind: *r.pick(&[&Kind::Step, &Kind::Effect, &Kind::Spawn, &Kind::Signal]),
            state: *r.pick(&[
                &RecordState::Done,
                &RecordState::Done,
                &RecordState::Done,
                &RecordState::Executing,
                &RecordState::Retrying,
            ]),
            input: r.maybe(30, |_| input),
            input_digest: r.maybe(50, |_| json::fingerprint(&drawn)),
            outcome,
            child: None,
            attempt: u32::try_from(r.below(4)).unwrap(),
            started_at: Timestamp::from_micros(self.now - r.number(0, 9)),
            completed_at: Timestamp::from_micros(self.now),
            next_at: Timestamp::from_micros(self.now + r.number(0, 9)),
            seen: false,
        }
    }

    fn entries(&mut self, lease: &Lease) -> Vec<Entry> {
        let many = *self.random.pick(&[&0u64, &1, &1, &1, &2, &3]);
        (0..many).map(|_| self.entry(lease)).collect()
    }

    fn entry(&mut self, lease: &Lease) -> Entry {
        let mut record = self.step();
        let with = self.random.chance(40).then(|| self.with(lease));
        if let Some(With::Spawn(child)) = &with {
            record.child = Some(child.run_id.clone());
        }
        Entry { record, replaces: self.random.chance(25), with }
    }

    fn with(&mut self, lease: &Lease) -> With {
        match self.random.below(18) {
            12.. => With::Govern(Box::new(self.govern(lease))),
            0..2 => With::Consume(self.random.number(0, 3)),
            2..4 => With::Publish { key: self.random.text(KEYS), value: self.value() },
            4..6 => {
                let stream = self.random.text(STREAMS);
                let item = self.random.chance(85).then(|| self.value());
                With::Append { stream, item }
            }
            6..8 => With::Send(self.signal()),
            _ => {
                let run_id = self.random.text(CHILDREN);
                let parent = lease.run_id.clone();
                let detached = self.random.chance(30);
                With::Spawn(Box::new(Start { run_id, parent, detached, ..self.start() }))
            }
        }
    }

    pub(super) fn record(&mut self) -> Write {
        let lease = self.lease();
        Write { entries: self.entries(&lease), lease, now: self.now() }
    }

    pub(super) fn finish(&mut self) -> Finish {
        let lease = self.lease();
        let entries = if self.random.chance(30) { self.entries(&lease) } else { Vec::new() };
        Finish { lease, entries, outcome: self.outcome(), now: self.now() }
    }

    pub(super) fn suspend(&mut self) -> Suspend {
        let lease = self.lease();
        let entries = if self.random.chance(40) { self.entries(&lease) } else { Vec::new() };
        let Rest { wake_at, waits } = self.rest();
        let inbox = *self.random.pick(&[&0i64, &0, &0, &1, &2, &3]);
        Suspend { lease, entries, inbox, wake_at, waits, now: self.now() }
    }

    pub(super) fn rest(&mut self) -> Rest {
        let wake = self.random.number(-1, 40) * SECOND;
        let wake_at = match self.random.chance(20) {
            true => Timestamp::NEVER,
            false => Timestamp::from_micros(self.now + wake),
        };
        Rest { wake_at, waits: self.random.text(&["", "[1]", "[2]"]) }
    }

    pub(super) fn continue_as_new(&mut self) -> ContinueAsNew {
        let (lease, input) = (self.lease(), self.value());
        ContinueAsNew { lease, input, generation: self.random.number(0, 2), now: self.now() }
    }
}
