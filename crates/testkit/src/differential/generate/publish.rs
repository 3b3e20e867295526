//! Sealing, retention and sinks: two sinks and three senders, so that they get in each other's way.
//!
//! Invariants: what is settled was given to somebody before, mostly to who settles it.

use std::time::Duration;

use steadfast_core::Timestamp;
use steadfast_store::op::{
    Batch, Fate, ListDead, ListSinks, Outbox, PutSink, ReadChain, Redrive, Retain, Seal, Sent,
    SetSink, SettleOutbox, SinkFrom, SinkState, TakeOutbox,
};
use steadfast_store::{Op, Reply};

use super::{Generator, SECOND};

pub(in crate::differential) const SINKS: &[&str] = &["hook", "HOOK", "log"];

/// What was taken last, by whom.
#[derive(Debug, Clone)]
pub(super) struct Taking {
    sink: String,
    owner: String,
    batch: Option<Batch>,
}

impl Generator {
    /// An operation on events that go out.
    pub(super) fn outward(&mut self) -> Op {
        let (workspace, now) = (self.ws(), self.now());
        match self.random.below(100) {
            0..30 => {
                let limit = usize::try_from(*self.random.pick(&[&1, &3, &20, &200])).unwrap();
                Op::Seal(Seal { workspace, limit })
            }
            30..36 => Op::Retain(self.retain()),
            36..41 => Op::PutSink(PutSink {
                workspace,
                sink: self.random.text(SINKS),
                kind: "webhook".to_owned(),
                place: self.random.text(&["here", "there"]),
                from: *self.random.pick(&[&SinkFrom::Beginning, &SinkFrom::Now]),
                now,
            }),
            41..46 => Op::SetSink(SetSink {
                workspace,
                sink: self.random.text(SINKS),
                state: *self.random.pick(&[
                    &SinkState::Active,
                    &SinkState::Active,
                    &SinkState::Disabled,
                ]),
                reason: self.random.text(&["", "enough"]),
                actor: "user:1".to_owned(),
                now,
            }),
            46..62 => {
                let (sink, owner) = (self.random.text(SINKS), self.random.text(&["a", "A", "b"]));
                self.taking =
                    Some(Taking { sink: sink.clone(), owner: owner.clone(), batch: None });
                let lease_until = self.lease_until();
                let limit = usize::try_from(self.random.below(12)).unwrap();
                Op::TakeOutbox(TakeOutbox { workspace, sink, owner, lease_until, limit, now })
            }
            62..80 => Op::SettleOutbox(self.settle_outbox()),
            80..84 => {
                let (sink, event_id) = (self.random.text(SINKS), self.event_id());
                let event_id = self.random.maybe(30, |_| event_id);
                Op::Redrive(Redrive { workspace, sink, event_id, actor: "user:2".to_owned(), now })
            }
            84..90 => {
                let (after, limit) = (self.random.number(0, 30), 10);
                Op::ReadChain(ReadChain { workspace, after, limit })
            }
            90..96 => {
                let count_dead = self.random.chance(50);
                Op::ListSinks(ListSinks { workspace, count_dead })
            }
            _ => {
                let sink = self.random.maybe(50, |r| r.text(SINKS));
                let after = self.random.maybe(30, |r| (r.text(SINKS), r.number(0, 20)));
                Op::ListDead(ListDead { workspace, sink, after, limit: 5 })
            }
        }
    }

    /// Keeps what was taken.
    pub(super) fn learn_outward(&mut self, reply: &Reply) {
        if let Reply::TakeOutbox(reply) = reply
            && let Some(taking) = self.taking.take()
            && let Outbox::Taken(batch) = reply
        {
            let batch = Some((**batch).clone());
            self.taken.push(Taking { batch, ..taking });
        }
    }

    fn event_id(&mut self) -> String {
        format!("evt_c{:02}_{:06}", self.random.below(10), self.random.below(4))
    }

    fn retain(&mut self) -> Retain {
        let purpose = self.random.text(&["event", "event", "event", "agent_step", "audit"]);
        let back = *self.random.pick(&[&1, &20, &100, &(91 * 86_400)]) * SECOND;
        let limit = usize::try_from(self.random.below(9)).unwrap();
        let (workspace, now) = (self.ws(), self.now());
        let before = Timestamp::from_micros(self.now - back);
        Retain { workspace, purpose, before, limit, now }
    }

    fn settle_outbox(&mut self) -> SettleOutbox {
        let taken = self.taken.pop().filter(|_| self.random.chance(95));
        let (sink, owner) = (self.random.text(SINKS), self.random.text(&["a", "A", "b"]));
        let taken = taken.unwrap_or(Taking { sink, owner, batch: None });
        let mut op = SettleOutbox {
            workspace: self.ws(),
            sink: taken.sink.clone(),
            owner: taken.owner.clone(),
            epoch: self.random.number(0, 3),
            cursor: self.random.number(0, 9),
            sent: Vec::new(),
            marks: Vec::new(),
            forget_before: self.now().before(Duration::from_secs(20)),
            gone: self.random.maybe(4, |_| "410".to_owned()),
            now: self.now(),
        };
        if let Some(batch) = &taken.batch {
            (op.epoch, op.cursor) = (batch.epoch, batch.cursor);
            let due = batch.due.iter().map(|(event, attempt)| (event, *attempt));
            for (event, attempt) in due.chain(batch.fresh.iter().map(|event| (event, 0))) {
                op.cursor = op.cursor.max(event.seq);
                let facts = event.event.facts(&op.workspace);
                let (event_id, key) = (facts.event_id.to_owned(), facts.key().to_owned());
                let fate = self.fate(attempt);
                op.sent.push(Sent { seq: event.seq, event_id, key, fate });
            }
            if self.random.chance(30) {
                op.marks.push((self.random.text(&["m", "M", "n"]), self.now()));
            }
            if self.random.chance(10) {
                op.epoch -= 1;
            }
            // At times it is settled once more.
            if self.random.chance(15) {
                self.taken.push(taken);
            }
        }
        op
    }

    fn fate(&mut self, attempt: u32) -> Fate {
        let (attempt, error) = (attempt + 1, "no".to_owned());
        match self.random.below(10) {
            0..6 => Fate::Done,
            6 | 7 => {
                let wait = self.random.number(0, 30) * SECOND;
                let next_at = Timestamp::from_micros(self.now + wait);
                Fate::Parked { attempt, next_at, error }
            }
            8 => Fate::Parked {
                attempt: 0,
                next_at: Timestamp::from_micros(0),
                error: String::new(),
            },
            _ => Fate::Dead { attempt, error },
        }
    }
}
