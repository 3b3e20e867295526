//! Events on their way out: numbered in order, linked to what came before, removed by age.

use std::collections::HashSet;
use std::time::Duration;

use steadfast_core::event::{self, Anchor, Link, LinkBody, Removal};
use steadfast_core::{Timestamp, limits};
use steadfast_store::op::{
    ChainPage, EventRow, ReadChain, Retain, Retained, Seal, Sealed, SinkRow, SinkState,
};

use super::outbox::Parked;
use super::table::Table;
use super::{Key, Model, Numbered, Undo, key};

/// What is kept of events beside the events.
#[derive(Debug, Clone, Default)]
pub(super) struct Outward {
    /// By workspace and event.
    pub(super) seals: Table<Key, Anchor>,
    /// Head and base, by workspace.
    chains: Table<String, (Anchor, Anchor)>,
    tombstones: Table<(String, i64), String>,
    pub(super) sinks: Table<Key, SinkRow>,
    /// By workspace, sink and number.
    pub(super) parked: Table<Numbered, Parked>,
    pub(super) marks: Table<(String, String, String), Timestamp>,
}

impl Outward {
    pub(super) fn each(&mut self, end: &mut dyn FnMut(&mut dyn Undo)) {
        end(&mut self.seals);
        end(&mut self.chains);
        end(&mut self.tombstones);
        end(&mut self.sinks);
        end(&mut self.parked);
        end(&mut self.marks);
    }
}

fn beginning(ws: &str) -> Anchor {
    Anchor { seq: 0, hash: event::genesis(ws) }
}

impl Model {
    /// Where the chain ends, and where it begins.
    pub(super) fn chain(&self, ws: &str) -> (Anchor, Anchor) {
        let known = self.outward.chains.get(&ws.to_owned()).cloned();
        known.unwrap_or_else(|| (beginning(ws), beginning(ws)))
    }

    /// Events of a workspace without a number, by time and id.
    pub(super) fn unsealed(&self, ws: &str) -> Vec<EventRow> {
        let mine = self.events.iter().filter(|((of, _), _)| of == ws);
        let new = mine.filter(|(at, _)| !self.outward.seals.has(at));
        let mut new: Vec<_> = new.map(|(_, event)| event.clone()).collect();
        new.sort_by_key(EventRow::cursor);
        new
    }

    pub(super) fn seal(&mut self, op: &Seal) -> Sealed {
        let (ws, limit) = (op.workspace.as_str(), op.limit);
        let mut new = self.unsealed(ws);
        let later: HashSet<_> = new.iter().skip(limit).map(|row| row.event_id.clone()).collect();
        new.truncate(limit);
        event::in_order(&mut new, |row| (row.command_id.clone(), row.event_id.clone()));
        // An event whose predecessor is not in the page waits, and those behind it.
        let mut held = HashSet::new();
        new.retain(|row| {
            if event::predecessor(&row.event_id).is_some_and(|id| later.contains(&id)) {
                held.insert(row.command_id.clone());
            }
            row.command_id.is_empty() || !held.contains(&row.command_id)
        });
        // Where the whole page waits, what it waits for goes alone.
        let all = self.unsealed(ws);
        if let (true, Some(first)) = (new.is_empty(), all.first()) {
            let mut row = first;
            let before = |row: &EventRow| {
                let id = event::predecessor(&row.event_id)?;
                all.iter().find(|other| other.event_id == id)
            };
            while let Some(earlier) = before(row) {
                row = earlier;
            }
            new.push(row.clone());
        }
        let (mut head, base) = self.chain(ws);
        for row in &new {
            let hash = event::link(&head.hash, &row.facts(ws).digest());
            head = Anchor { seq: head.seq + 1, hash };
            self.outward.seals.put(key(ws, &row.event_id), head.clone());
        }
        if !new.is_empty() {
            self.outward.chains.put(ws.to_owned(), (head.clone(), base));
        }
        Sealed::Done(new.len(), head)
    }

    /// Sealed events of a workspace, by number.
    pub(super) fn sealed(&self, ws: &str) -> Vec<(Anchor, EventRow)> {
        let mine = self.events.iter().filter(|((of, _), _)| of == ws);
        let mut sealed: Vec<_> = mine
            .filter_map(|(at, event)| Some((self.outward.seals.get(at)?.clone(), event.clone())))
            .collect();
        sealed.sort_by_key(|(seal, _)| seal.seq);
        sealed
    }

    pub(super) fn read_chain(&self, op: &ReadChain) -> ChainPage {
        let ws = op.workspace.as_str();
        let (head, base) = self.chain(ws);
        let kept = self.sealed(ws).into_iter();
        let mut links: Vec<_> =
            kept.map(|(seal, row)| Link::kept(seal.seq, &row.facts(ws), seal.hash)).collect();
        let gone = self.outward.tombstones.iter().filter(|((of, _), _)| of == ws);
        links.extend(
            gone.map(|((_, seq), digest)| Link {
                seq: *seq,
                body: LinkBody::Removed(digest.clone()),
            }),
        );
        links.sort_by_key(|link| link.seq);
        links.retain(|link| link.seq > op.after);
        links.truncate(op.limit);
        let unsealed = self.unsealed(ws).into_iter();
        let unsealed = unsealed.filter_map(|row| Removal::of(&row.facts(ws))).collect();
        ChainPage { base, head, links, unsealed }
    }

    pub(super) fn retain(&mut self, op: &Retain) -> Retained {
        let ws = op.workspace.as_str();
        let least = Duration::from_secs(86_400) * limits::AUDIT_DAYS;
        if op.purpose == "audit" && op.before > op.now.before(least) {
            return Retained::TooYoung;
        }
        let active = self
            .outward
            .sinks
            .iter()
            .filter(|((of, _), sink)| of == ws && sink.state == SinkState::Active);
        let upto = active.map(|(_, sink)| sink.cursor).min().unwrap_or(i64::MAX);
        let parked: HashSet<_> = self.outward.parked.iter().map(|(at, _)| at.clone()).collect();
        let waits = |seq| parked.iter().any(|(of, _, parked)| of == ws && *parked == seq);
        let mut old: Vec<_> = self
            .sealed(ws)
            .into_iter()
            .filter(|(_, row)| row.purpose == op.purpose && row.created_at < op.before)
            .filter(|(seal, _)| seal.seq <= upto && !waits(seal.seq))
            .collect();
        old.sort_by_key(|(_, row)| row.cursor());
        let limit = op.limit;
        let (tells, others): (Vec<_>, Vec<_>) =
            old.into_iter().partition(|(_, row)| row.event_type == Removal::TYPE);
        let mut numbers = Vec::new();
        for (seal, row) in others.iter().take(limit) {
            numbers.push(self.bury(ws, seal, row));
        }
        let mut base = self.rebase(ws);
        for (seal, row) in tells.iter().take(limit).filter(|_| op.purpose == "audit") {
            if Removal::of(&row.facts(ws)).is_none_or(|told| told.is_past(&base)) {
                numbers.push(self.bury(ws, seal, row));
            }
        }
        if op.purpose == "audit" {
            base = self.rebase(ws);
        }
        let removed = numbers.len();
        if removed > 0 {
            self.tell_removed(op, &Removal::new(numbers, base));
        }
        Retained::Done(removed)
    }

    fn bury(&mut self, ws: &str, seal: &Anchor, row: &EventRow) -> i64 {
        self.outward.tombstones.put((ws.to_owned(), seal.seq), row.facts(ws).digest());
        self.events.remove(&key(ws, &row.event_id));
        self.outward.seals.remove(&key(ws, &row.event_id));
        seal.seq
    }

    /// Tells of a removal, and of the disabled sinks that have missed some of it.
    fn tell_removed(&mut self, op: &Retain, removal: &Removal) {
        let ws = op.workspace.as_str();
        let sinks = self.outward.sinks.iter().filter(|((of, _), _)| of == ws);
        let idle = sinks.filter(|(_, sink)| sink.state == SinkState::Disabled);
        let idle: Vec<_> = idle.map(|(_, sink)| (sink.sink.as_str(), sink.cursor)).collect();
        let payload = removal.to_json(&op.purpose, &op.before.iso(), &idle);
        let (first, last) = removal.ends();
        let id = format!("evt_retention_{}_{first}-{last}", op.purpose);
        self.tell_audit(ws, id, Removal::TYPE, &payload, "system:retention", op.now);
    }

    fn rebase(&mut self, ws: &str) -> Anchor {
        let (head, mut base) = self.chain(ws);
        for _ in 0..2 * limits::PURGE_BATCH {
            let next = (ws.to_owned(), base.seq + 1);
            let Some(digest) = self.outward.tombstones.get(&next) else { break };
            base = Anchor { seq: base.seq + 1, hash: event::link(&base.hash, digest) };
            self.outward.tombstones.remove(&next);
        }
        if base.seq > self.chain(ws).1.seq {
            self.outward.chains.put(ws.to_owned(), (head, base.clone()));
        }
        base
    }

    pub(super) fn tell_audit(
        &mut self,
        ws: &str,
        event_id: String,
        event_type: &str,
        payload: &serde_json::Value,
        actor: &str,
        now: Timestamp,
    ) {
        let at = key(ws, &event_id);
        if self.events.has(&at) {
            return;
        }
        let event = EventRow {
            event_id,
            command_id: String::new(),
            purpose: "audit".to_owned(),
            event_type: event_type.to_owned(),
            payload: payload.to_string(),
            actor: actor.to_owned(),
            trace_id: String::new(),
            created_at: now,
        };
        self.events.put(at, event);
    }
}
