//! How many rows an operation may ask for.
//!
//! Invariants: a number beyond the largest page is refused, not cut, and none at all is refused,
//! not rounded up: a shorter page than was asked for looks like the end. Only claims may ask for no
//! rows: what is overdue is ended all the same.

use std::ops::RangeInclusive;

use steadfast_core::limits;

use super::Op;
use crate::error::Error;

const PAGE: RangeInclusive<usize> = 1..=limits::PAGE_ROWS;
const CLAIM: RangeInclusive<usize> = 0..=limits::CLAIM_BATCH;
const PURGE: RangeInclusive<usize> = 1..=limits::PURGE_BATCH;
const SEAL: RangeInclusive<usize> = 1..=limits::SEAL_BATCH;
const OUTBOX: RangeInclusive<usize> = 1..=limits::OUTBOX_BATCH;

impl Op {
    /// How many rows are asked for, and how many may be; `None` for an operation without a limit.
    fn rows(&self) -> Option<(usize, RangeInclusive<usize>)> {
        Some(match self {
            Op::ListRuns(op) => (op.limit, PAGE),
            Op::ListSteps(op) => (op.limit, PAGE),
            Op::ReadStream(op) => (op.limit, PAGE),
            Op::ListCommands(op) => (op.limit, PAGE),
            Op::ListEvents(op) => (op.limit, PAGE),
            Op::ListEffects(op) => (op.limit, PAGE),
            Op::ListInvocations(op) => (op.limit, PAGE),
            Op::ListApprovals(op) => (op.limit, PAGE),
            Op::ListBudgets(op) => (op.limit, PAGE),
            Op::ListSlots(op) => (op.limit, PAGE),
            Op::ListActivities(op) => (op.limit, PAGE),
            Op::ListDead(op) => (op.limit, PAGE),
            Op::ReadChain(op) => (op.limit, PAGE),
            Op::DueTriggers(op) => (op.limit, PAGE),
            Op::Dequeue(op) => (op.limit, CLAIM),
            Op::Wake(op) => (op.limit, CLAIM),
            Op::Purge(op) => (op.limit, PURGE),
            Op::Retain(op) => (op.limit, PURGE),
            Op::SettleCommands(op) => (op.limit, PURGE),
            Op::SettleApprovals(op) => (op.limit, PURGE),
            Op::SweepMeters(op) => (op.limit, PURGE),
            Op::Seal(op) => (op.limit, SEAL),
            Op::TakeOutbox(op) => (op.limit, OUTBOX),
            _ => return None,
        })
    }

    /// Refuses a request for more rows than fit one answer, or for none.
    pub fn check(&self) -> Result<(), Error> {
        match self.rows() {
            Some((rows, fit)) if !fit.contains(&rows) => Err(Error::Invalid(format!(
                "{} asks for {rows} rows; {} to {} may be asked for at a time",
                self.name(),
                fit.start(),
                fit.end()
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    /// An operation with a limit that is not in the table would take any number.
    #[test]
    fn every_limit_is_checked() {
        const FILES: [&str; 10] = [
            include_str!("approval.rs"),
            include_str!("command.rs"),
            include_str!("govern.rs"),
            include_str!("meter.rs"),
            include_str!("publish.rs"),
            include_str!("queue.rs"),
            include_str!("read.rs"),
            include_str!("run.rs"),
            include_str!("trigger.rs"),
            include_str!("write.rs"),
        ];
        let mut limited = Vec::new();
        for file in FILES {
            let mut of = "";
            for line in file.lines() {
                if let Some(name) = line.strip_prefix("pub struct ") {
                    of = name.trim_end_matches([' ', '{']);
                }
                if line.trim() == "pub limit: usize," {
                    limited.push(of);
                }
            }
        }
        assert!(limited.len() >= 23, "{limited:?}");
        let table = include_str!("check.rs");
        for name in limited {
            assert!(table.contains(&format!("Op::{name}(op) => (op.limit, ")), "{name}");
        }
    }
}
