//! Sinks: one sender at a time, events of a key in order, what fails parked by itself.

use std::collections::HashSet;

use steadfast_core::{Timestamp, limits};
use steadfast_store::op::{
    Batch, DeadLetter, DeadLetters, Fate, ListDead, ListSinks, Outbox, OutboxSettled, Outgoing,
    PutSink, Redrive, Redriven, SetSink, SettleOutbox, SinkFrom, SinkPut, SinkReport, SinkRow,
    SinkSet, SinkState, Sinks, TakeOutbox,
};

use super::{Model, all_of, key, numbered};

/// An event that waits, or a dead letter.
#[derive(Debug, Clone)]
pub(super) struct Parked {
    event_id: String,
    key: String,
    dead: bool,
    attempt: u32,
    next_at: Timestamp,
    error: String,
    updated_at: Timestamp,
}

impl Model {
    pub(super) fn put_sink(&mut self, op: &PutSink) -> SinkPut {
        let at = key(&op.workspace, &op.sink);
        let known = self.outward.sinks.edit(&at, |sink| {
            sink.kind.clone_from(&op.kind);
            sink.place.clone_from(&op.place);
        });
        if known {
            return SinkPut { created: false };
        }
        let cursor = match op.from {
            SinkFrom::Beginning => 0,
            SinkFrom::Now => self.chain(&op.workspace).0.seq,
        };
        let row = SinkRow {
            sink: op.sink.clone(),
            kind: op.kind.clone(),
            place: op.place.clone(),
            state: SinkState::Active,
            reason: String::new(),
            cursor,
            owner: String::new(),
            epoch: 0,
            lease_until: Timestamp::from_micros(0),
            created_at: op.now,
        };
        self.outward.sinks.put(at, row);
        SinkPut { created: true }
    }

    pub(super) fn set_sink(&mut self, op: &SetSink) -> SinkSet {
        match self.outward.sinks.get(&key(&op.workspace, &op.sink)) {
            None => return SinkSet::NotFound,
            Some(sink) if sink.state == op.state => return SinkSet::Unchanged,
            Some(_) => {}
        }
        self.change_sink(op);
        SinkSet::Done
    }

    fn change_sink(&mut self, op: &SetSink) {
        let mut epoch = 0;
        self.outward.sinks.edit(&key(&op.workspace, &op.sink), |sink| {
            epoch = sink.epoch;
            sink.state = op.state;
            sink.reason.clone_from(&op.reason);
            sink.epoch += 1;
            sink.owner = String::new();
            sink.lease_until = Timestamp::from_micros(0);
        });
        let event_type = match op.state {
            SinkState::Active => "sink.enabled",
            SinkState::Disabled => "sink.disabled",
        };
        let payload = serde_json::json!({ "sink": op.sink, "reason": op.reason });
        let id = format!("evt_sink_{}@{epoch:08}", op.sink);
        self.tell_audit(&op.workspace, id, event_type, &payload, &op.actor, op.now);
    }

    /// Lets others take the sinks of workers at once.
    pub(super) fn free_sinks(&mut self, workspace: &str, which: &dyn Fn(&str) -> bool) {
        let sinks = self.outward.sinks.iter();
        let theirs = sinks.filter(|((ws, _), sink)| ws == workspace && which(&sink.owner));
        let theirs: Vec<_> = theirs.map(|(at, _)| at.clone()).collect();
        for at in &theirs {
            self.outward.sinks.edit(at, |sink| sink.lease_until = Timestamp::from_micros(0));
        }
    }

    pub(super) fn take_outbox(&mut self, op: &TakeOutbox) -> Outbox {
        let (ws, at) = (op.workspace.as_str(), key(&op.workspace, &op.sink));
        let Some(sink) = self.outward.sinks.get(&at).cloned() else {
            return Outbox::NotFound;
        };
        if sink.state == SinkState::Disabled {
            return Outbox::Disabled;
        }
        let free = sink.owner.is_empty() || sink.owner == op.owner || sink.lease_until <= op.now;
        if !free {
            return Outbox::Held;
        }
        self.outward.sinks.edit(&at, |sink| {
            sink.owner.clone_from(&op.owner);
            sink.lease_until = op.lease_until;
            sink.epoch += 1;
        });
        let limit = op.limit;
        let (mut held, mut due, mut parked) = (HashSet::new(), Vec::new(), Vec::new());
        for ((_, _, seq), row) in self.outward.parked.range(all_of(ws, &op.sink)) {
            if row.dead {
                continue;
            }
            parked.push((*seq, row.key.clone()));
            if held.contains(&row.key) {
                continue;
            }
            if row.next_at > op.now || due.len() == limit {
                held.insert(row.key.clone());
            } else {
                due.push((*seq, row.attempt));
            }
        }
        let outgoing = self.outgoing(ws);
        let find = |wanted: i64| outgoing.iter().find(|event| event.seq == wanted).cloned();
        let due: Vec<_> =
            due.into_iter().filter_map(|(seq, attempt)| Some((find(seq)?, attempt))).collect();
        let room = if parked.len() < limits::PARKED_EVENTS { limit - due.len() } else { 0 };
        let behind = outgoing.into_iter().filter(|event| event.seq > sink.cursor);
        let fresh = behind.take(room).collect();
        let marks = self
            .outward
            .marks
            .iter()
            .filter(|((of, sink, _), _)| *of == op.workspace && *sink == op.sink);
        let marks = marks.map(|((_, _, mark), at)| (mark.clone(), *at)).collect();
        let (epoch, cursor) = (sink.epoch + 1, sink.cursor);
        Outbox::Taken(Box::new(Batch { epoch, cursor, due, fresh, parked, marks }))
    }

    fn outgoing(&self, ws: &str) -> Vec<Outgoing> {
        let context = |id: &str| self.commands.get(&key(ws, id)).map(|c| c.row.context.clone());
        let sealed = self.sealed(ws).into_iter();
        sealed
            .map(|(seal, event)| Outgoing {
                seq: seal.seq,
                context: context(&event.command_id),
                event,
            })
            .collect()
    }

    pub(super) fn settle_outbox(&mut self, op: &SettleOutbox) -> OutboxSettled {
        let at = key(&op.workspace, &op.sink);
        let mine = self.outward.sinks.get(&at).is_some_and(|sink| {
            sink.owner == op.owner && sink.epoch == op.epoch && sink.cursor <= op.cursor
        });
        if !mine {
            return OutboxSettled::Fenced;
        }
        self.outward.sinks.edit(&at, |sink| {
            sink.owner = String::new();
            sink.lease_until = Timestamp::from_micros(0);
            sink.cursor = op.cursor;
        });
        for sent in &op.sent {
            let at = numbered(&op.workspace, &op.sink, sent.seq);
            self.outward.parked.remove(&at);
            let (dead, attempt, next_at, error) = match &sent.fate {
                Fate::Done => continue,
                Fate::Parked { attempt, next_at, error } => (false, *attempt, *next_at, error),
                Fate::Dead { attempt, error } => (true, *attempt, Timestamp::NEVER, error),
            };
            let (event_id, key) = (sent.event_id.clone(), sent.key.clone());
            let (error, updated_at) = (error.clone(), op.now);
            let row = Parked { event_id, key, dead, attempt, next_at, error, updated_at };
            self.outward.parked.put(at, row);
        }
        if !op.marks.is_empty() {
            let old = self.outward.marks.iter().filter(|((ws, sink, _), at)| {
                *ws == op.workspace && *sink == op.sink && **at < op.forget_before
            });
            for old in old.map(|(at, _)| at.clone()).collect::<Vec<_>>() {
                self.outward.marks.remove(&old);
            }
        }
        for (mark, at) in &op.marks {
            let place = (op.workspace.clone(), op.sink.clone(), mark.clone());
            self.outward.marks.put(place, *at);
        }
        if let Some(reason) = &op.gone {
            self.change_sink(&SetSink {
                workspace: op.workspace.clone(),
                sink: op.sink.clone(),
                state: SinkState::Disabled,
                reason: reason.clone(),
                actor: "system:relay".to_owned(),
                now: op.now,
            });
        }
        OutboxSettled::Done
    }

    pub(super) fn list_sinks(&self, op: &ListSinks) -> Sinks {
        let ws = op.workspace.as_str();
        let report = |row: &SinkRow| {
            let of = || self.outward.parked.range(all_of(ws, &row.sink)).map(|(_, row)| row);
            let count = |dead: bool| of().filter(|row| row.dead == dead).count();
            SinkReport {
                row: row.clone(),
                parked: i64::try_from(count(false)).unwrap(),
                due_at: of().filter(|row| !row.dead).map(|row| row.next_at).min(),
                dead: if op.count_dead { i64::try_from(count(true)).unwrap() } else { 0 },
            }
        };
        let mine = self.outward.sinks.iter().filter(|((of, _), _)| of == ws);
        Sinks {
            head: self.chain(ws).0.seq,
            unsealed: !self.unsealed(ws).is_empty(),
            sinks: mine.map(|(_, row)| report(row)).collect(),
        }
    }

    pub(super) fn list_dead(&self, op: &ListDead) -> DeadLetters {
        let of = |(ws, sink, seq): &(String, String, i64)| {
            let behind = op.after.as_ref().is_none_or(|(s, n)| (sink, seq) > (s, n));
            *ws == op.workspace && op.sink.as_ref().is_none_or(|only| only == sink) && behind
        };
        let dead = self.outward.parked.iter().filter(|(at, row)| row.dead && of(at));
        let letter = |((_, sink, seq), row): (&(String, String, i64), &Parked)| DeadLetter {
            sink: sink.clone(),
            seq: *seq,
            event_id: row.event_id.clone(),
            key: row.key.clone(),
            attempt: i64::from(row.attempt),
            error: row.error.clone(),
            died_at: row.updated_at,
        };
        DeadLetters(dead.map(letter).take(op.limit).collect())
    }

    pub(super) fn redrive(&mut self, op: &Redrive) -> Redriven {
        let id = op.told_as();
        if let Some(told) = self.events.get(&key(&op.workspace, &id)) {
            let said: serde_json::Value = serde_json::from_str(&told.payload).unwrap();
            if told.actor == op.actor {
                return Redriven(said["count"].as_u64().unwrap());
            }
        }
        let mine = self.outward.parked.range(all_of(&op.workspace, &op.sink));
        let wanted = mine.filter(|(_, row)| {
            row.dead && op.event_id.as_ref().is_none_or(|id| *id == row.event_id)
        });
        let wanted: Vec<_> = wanted.map(|(at, _)| at.clone()).collect();
        for at in &wanted {
            self.outward.parked.edit(at, |row| {
                row.dead = false;
                row.attempt = 0;
                row.next_at = Timestamp::from_micros(0);
                row.updated_at = op.now;
            });
        }
        let count = wanted.len() as u64;
        if count > 0 {
            let (ws, told) = (op.workspace.as_str(), op.told(count));
            self.tell_audit(ws, id, "sink.redriven", &told, &op.actor, op.now);
        }
        Redriven(count)
    }
}
