//! What the supervisor sees in the tables while workers die: every run and record, again and again.
//!
//! Invariants watched in every sample: an epoch never decreases; a run that is over stays as it is;
//! a record that is done never changes; no more runs of the narrow queue are PENDING than it
//! allows. Where the database may forget a claim in a crash, an epoch may go back.
//! Deliberately absent: completeness. What came and went between two samples is found only by the
//! checks at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use steadfast::{Client, Result, RunFilter, RunInfo, RunStatus, StepKind, StepRecord, StepState};
use steadfast_testkit::ledger::Ledger;

/// The queue that the watch counts.
pub(crate) const NARROW: &str = "narrow";
/// How many runs of it may be PENDING.
pub(crate) const NARROW_MOST: u32 = 3;

/// A record that is done.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) kind: StepKind,
    pub(crate) outcome: Result<String>,
    /// When it was first seen: it was durable by then.
    pub(crate) seen_us: u64,
}

/// A run, as last seen.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    pub(crate) row: RunInfo,
    pub(crate) records: BTreeMap<u64, Recorded>,
}

/// Everything seen so far.
pub(crate) struct Watch<'a> {
    client: Client,
    ledger: &'a Ledger,
    pub(crate) runs: BTreeMap<String, Watched>,
    pub(crate) faults: Vec<String>,
    pub(crate) samples: u64,
    /// Runs that were not over in the last sample.
    pub(crate) open: usize,
    /// Whether the database may forget a claim that it has shown already.
    pub(crate) forgets: bool,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(client: Client, ledger: &'a Ledger) -> Self {
        let (runs, faults) = (BTreeMap::new(), Vec::new());
        Self { client, ledger, runs, faults, samples: 0, open: 0, forgets: false }
    }

    /// Looks at every run that is not over, or was not when last seen.
    pub(crate) async fn sample(&mut self) -> Result<()> {
        self.samples += 1;
        let was_open: Vec<String> = self
            .runs
            .iter()
            .filter(|(_, run)| !run.row.status.is_terminal())
            .map(|(id, _)| id.clone())
            .collect();
        let open = vec![RunStatus::Enqueued, RunStatus::Pending];
        let filter = RunFilter { status: open, ..RunFilter::default() };
        let rows = self.client.list(filter, 1000).await?.runs;
        self.open = rows.len();
        let narrow = |run: &&RunInfo| run.queue == NARROW && run.status == RunStatus::Pending;
        let held = rows.iter().filter(narrow).count();
        if held > NARROW_MOST as usize {
            self.faults
                .push(format!("{held} runs of the queue were PENDING, {NARROW_MOST} may be"));
        }
        let listed: BTreeMap<String, RunInfo> =
            rows.into_iter().map(|row| (row.run_id.clone(), row)).collect();
        for id in was_open.iter().filter(|id| !listed.contains_key(*id)) {
            let row = self.client.get(id).await?;
            if !row.status.is_terminal() {
                self.faults.push(format!("{id} is {} after it was over", row.status));
            }
            self.look(row).await?;
        }
        for row in listed.into_values() {
            self.look(row).await?;
        }
        Ok(())
    }

    /// Looks at every run there is, once more.
    pub(crate) async fn last_look(&mut self) -> Result<()> {
        for id in self.client.matching(RunFilter::default()).await? {
            let row = self.client.get(&id).await?;
            self.look(row).await?;
        }
        Ok(())
    }

    /// Waits for the end of a run, and looks at it.
    pub(crate) async fn end_of(&mut self, run_id: &str) -> Result<()> {
        let run = self.client.run::<Vec<String>>(run_id);
        run.result_within(Duration::from_secs(30)).await?;
        let row = self.client.get(run_id).await?;
        self.look(row).await
    }

    async fn look(&mut self, row: RunInfo) -> Result<()> {
        let id = row.run_id.clone();
        // Read after the row: records of a run that is over are all there.
        let steps = match row.status {
            RunStatus::Enqueued => Vec::new(),
            _ => self.client.steps(&id).await?,
        };
        let seen_us = self.ledger.now_us();
        let faults = &mut self.faults;
        let watched = self
            .runs
            .entry(id)
            .or_insert_with(|| Watched { row: row.clone(), records: BTreeMap::new() });
        compare(&watched.row, &row, self.forgets, faults);
        watched.row = row;
        for step in steps.into_iter().filter(|step| step.state == StepState::Done) {
            note(watched, step, seen_us, faults);
        }
        Ok(())
    }
}

fn compare(before: &RunInfo, now: &RunInfo, forgets: bool, faults: &mut Vec<String>) {
    let id = &now.run_id;
    if now.epoch < before.epoch && !forgets {
        faults.push(format!("the epoch of {id} went from {} to {}", before.epoch, now.epoch));
    }
    let end = |run: &RunInfo| (run.status, run.output.clone(), run.finished_at);
    if before.status.is_terminal() && end(before) != end(now) {
        faults.push(format!("{id} was over and changed: {:?}, {:?}", end(before), end(now)));
    }
}

fn note(watched: &mut Watched, step: StepRecord, seen_us: u64, faults: &mut Vec<String>) {
    let recorded = Recorded { name: step.name, kind: step.kind, outcome: step.outcome, seen_us };
    let known = watched.records.entry(step.id).or_insert_with(|| recorded.clone());
    if known.name != recorded.name || known.outcome != recorded.outcome {
        let id = &watched.row.run_id;
        faults.push(format!("record {} of {id} changed: {known:?}, {recorded:?}", step.id));
    }
}
