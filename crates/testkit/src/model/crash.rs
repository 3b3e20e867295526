//! A crash of the server: which claims it forgets, and how later claims are told from those.
//!
//! Invariants: only claims from a queue whose runs need not be counted, and that begin no command,
//! are acknowledged before they are flushed; whatever else is written flushes all of them, because
//! a log is flushed from its beginning; a worker that lived through a crash never gets the epoch of
//! a claim that was forgotten.
//! Deliberately absent: time. A real server flushes by itself after a moment, or not, and must be
//! right in both cases.

use std::collections::BTreeMap;

use steadfast_core::Timestamp;
use steadfast_store::Op;
use steadfast_store::op::{QueueRow, RunRow};

use super::{Key, Model, ModelStore};
use crate::faults::Server;

/// What each crash adds to the stride of claims by workers that lived through it.
const STRIDE: i64 = 1_000_000;

/// What the server has acknowledged and not flushed, and how often it crashed.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    /// Runs as they were before claims that are not flushed, oldest first.
    unflushed: Vec<(Key, RunRow)>,
    /// Those of the operation under way.
    claims: Vec<(Key, RunRow)>,
    crashes: i64,
    /// How many there had been when each worker was first heard of.
    born: BTreeMap<String, i64>,
    /// Whether it is wrong on purpose.
    reuses_epochs: bool,
}

/// A claim that never happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgotten {
    /// The run.
    pub run_id: String,
    /// The epoch that the claim had given out.
    pub epoch: i64,
}

impl Log {
    /// A worker is heard of.
    pub(super) fn hear_of(&mut self, worker: &str) {
        if !self.born.contains_key(worker) {
            self.born.insert(worker.to_owned(), self.crashes);
        }
    }

    /// By how much a claim of this worker raises an epoch.
    pub(super) fn stride(&self, worker: &str) -> i64 {
        let born = self.born.get(worker).copied().unwrap_or(0);
        let lost = if self.reuses_epochs { 0 } else { self.crashes - born };
        1 + lost * STRIDE
    }

    /// A run is about to be claimed from a queue.
    pub(super) fn claim(&mut self, queue: &QueueRow, key: &Key, run: &RunRow) {
        let is_counted = queue.concurrency.is_some() || queue.rate.is_some() || queue.partitioned;
        if !is_counted && run.context.is_none() {
            self.claims.push((key.clone(), run.clone()));
        }
    }

    /// An operation is committed; so many rows were changed by it.
    pub(super) fn commit(&mut self, op: &Op, changes: usize) {
        let claims = std::mem::take(&mut self.claims);
        match op {
            // Nothing but claims that need not wait.
            Op::Dequeue(_) if claims.len() == changes => self.unflushed.extend(claims),
            _ if changes > 0 => self.unflushed.clear(),
            _ => {}
        }
    }
}

impl Model {
    fn crash(&mut self) -> Vec<Forgotten> {
        self.log.crashes += 1;
        let mut forgotten = Vec::new();
        for (key, before) in std::mem::take(&mut self.log.unflushed).into_iter().rev() {
            let epoch = self.runs.get(&key).map_or(before.epoch, |run| run.epoch);
            forgotten.push(Forgotten { run_id: key.1.clone(), epoch });
            self.runs.put(key, before);
        }
        self.runs.keep();
        forgotten
    }
}

impl ModelStore {
    /// Crashes and restarts: claims that were not flushed are given back, the newest first.
    pub fn crash(&self) -> Vec<Forgotten> {
        self.0.lock().unwrap().crash()
    }

    /// From now on, claims after a crash give the epochs of forgotten ones again: wrong on purpose.
    pub fn reuse_epochs(&self) {
        self.0.lock().unwrap().log.reuses_epochs = true;
    }
}

impl Server for ModelStore {
    fn has_unflushed(&self) -> bool {
        !self.0.lock().unwrap().log.unflushed.is_empty()
    }

    fn crash(&self, _: Timestamp) {
        self.crash();
    }
}
