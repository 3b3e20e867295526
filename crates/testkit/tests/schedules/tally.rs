//! What was met in all lives: a kind of event that never happens proves nothing.

use std::collections::BTreeMap;

use steadfast::SlotStatus;

use crate::world::{Deed, Row, Said, World, fired};

/// What many lives must have met.
pub(crate) const KINDS: [&str; 17] = [
    "ticks",
    "several at once",
    "refused deeds",
    "deaths",
    "half-written gaps",
    "open questions",
    "interrupted deeds",
    "definitions",
    "absences",
    "fired",
    "windows",
    "compressed",
    "missed",
    "missed while absent",
    "older than the window",
    "beyond the limit",
    "closed by a change",
];

/// How often things happened.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally(BTreeMap<&'static str, usize>);

impl Tally {
    pub(crate) fn add(&mut self, kind: &'static str, count: usize) {
        *self.0.entry(kind).or_default() += count;
    }

    pub(crate) fn of(&self, kind: &str) -> usize {
        self.0.get(kind).copied().unwrap_or(0)
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(kind, count)| self.add(kind, *count));
    }

    /// Counts deeds that were done at once.
    pub(crate) fn deeds(&mut self, deeds: &[Deed], said: &[Said]) {
        self.add("ticks", deeds.iter().filter(|deed| matches!(deed, Deed::Tick)).count());
        self.add("several at once", usize::from(deeds.len() > 1));
        self.add("refused deeds", said.iter().filter(|said| said.is_err()).count());
    }

    /// Counts what a life has left behind.
    pub(crate) fn bury(&mut self, rows: &[Row], world: &World) {
        let count = |which: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| which(row)).count();
        let told = |text: &str| count(&|row| row.verdict.reason.contains(text));
        self.add("definitions", world.lifetimes.len());
        self.add("absences", world.absences.len());
        self.add("slots", rows.len());
        self.add("fired", count(&fired));
        self.add("windows", count(&|row| row.verdict.covers.is_some()));
        self.add("compressed", count(&|row| row.verdict.status == SlotStatus::Compressed));
        self.add("missed", count(&|row| row.verdict.status == SlotStatus::Missed));
        self.add("missed while absent", told("paused") + told("disabled"));
        self.add("older than the window", told("older than the catch-up window"));
        self.add("beyond the limit", told("beyond the catch-up limit"));
        self.add("closed by a change", told("was changed meanwhile"));
    }
}
