//! What must hold after every scenario, whatever its shape.
//!
//! Invariants: judged from the outside: the calls that bodies made, the commits that were accepted,
//! and what the store says in the end.
//! Deliberately absent: leniency. Only an owner that could not know better (its node stood still,
//! or a clock was wrong) may act after its time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use steadfast_core::RunStatus;
use steadfast_core::driver::{Kind, Record, RecordState};
use steadfast_store::op::{self, RunRow};

use super::journal::{ClaimSeen, Known};
use super::site::Performed;
use super::{LEASE, WORKSPACE, World};
use crate::faults::Fault;

/// After so long a worker has heard that it lost a run: a heartbeat, and what may delay it.
const HEARD_WITHIN: Duration =
    Duration::from_millis(LEASE.as_millis() as u64 / 3).saturating_add(Duration::from_secs(5));

type Checked = Result<(), String>;

/// Fails with a message unless something holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}
pub(super) use ensure;

/// Every general rule.
pub(super) fn all(world: &World, placed: &BTreeMap<u64, Fault>) -> Checked {
    let known = world.journal.known();
    for (run_id, held) in &known.runs {
        let row = world.row(run_id).ok_or(format!("{run_id} was accepted and is gone"))?;
        ensure!(row.status.is_terminal(), "{run_id} is {}", row.status);
        ensure!(row.epoch == held.epoch, "{run_id}: epoch {} of {}", row.epoch, held.epoch);
        let (is, counted) = (row.attempts, held.attempts);
        ensure!(is == counted, "{run_id}: {is} attempts, but {counted} claims");
        same_records(world, &known, run_id)?;
        signals_add_up(world, &known, run_id)?;
    }
    drop(known);
    let calls = world.books.calls();
    let excuses = Excuses::of(world, placed);
    let known = world.journal.known();
    let by_run = by_run(&known);
    for call in &calls {
        let claims = by_run.get(call.run.as_str()).map_or(&[][..], Vec::as_slice);
        let owner = Owner::of(call, claims);
        follows_the_rules(&known, &excuses, call, &owner, &calls)?;
    }
    no_overlap(&calls, &by_run)
}

fn by_run(known: &Known) -> BTreeMap<&str, Vec<ClaimSeen>> {
    let mut by_run: BTreeMap<&str, Vec<ClaimSeen>> = BTreeMap::new();
    for claim in &known.claims {
        by_run.entry(claim.run.as_str()).or_default().push(claim.clone());
    }
    by_run
}

/// What was committed is what is stored, no more and no less.
fn same_records(world: &World, known: &Known, run_id: &str) -> Checked {
    let held = &known.runs[run_id];
    let stored = records(world, run_id);
    let of_run = |step: u64| {
        known.settled.get(&(run_id.to_owned(), held.generation, step)).map(|s| &s.record)
    };
    for record in stored.iter().filter(|record| record.state == RecordState::Done) {
        match of_run(record.id) {
            Some(seen) => ensure!(
                seen.outcome == record.outcome
                    && seen.name == record.name
                    && seen.seq == record.seq,
                "{run_id}: {record:?} is stored, {seen:?} was committed"
            ),
            None => ensure!(held.forked, "{run_id}: {record:?} was never committed"),
        }
    }
    let from = (run_id.to_owned(), held.generation, 0);
    let to = (run_id.to_owned(), held.generation, u64::MAX);
    let committed = known.settled.range(from..=to).count();
    let done = stored.iter().filter(|record| record.state == RecordState::Done);
    let done = done.filter(|record| of_run(record.id).is_some()).count();
    ensure!(committed == done, "{run_id}: {committed} records were committed, {done} are stored");
    Ok(())
}

fn signals_add_up(world: &World, known: &Known, run_id: &str) -> Checked {
    let accepted = known.accepted.iter().filter(|(run, _)| run == run_id).count();
    let consumed = known.consumed.iter().filter(|(run, _)| run == run_id).count();
    let load = op::Load {
        workspace: WORKSPACE.to_owned(),
        run_id: run_id.to_owned(),
        now: world.sim.now(),
        children: Vec::new(),
        names: Vec::new(),
    };
    let pending = world.journal.peek(load).signals.len();
    ensure!(
        accepted == consumed + pending,
        "{run_id}: {accepted} signals accepted, {consumed} consumed, {pending} pending"
    );
    Ok(())
}

fn records(world: &World, run_id: &str) -> Vec<Record> {
    let (workspace, run_id) = (WORKSPACE.to_owned(), run_id.to_owned());
    world.journal.peek(op::ListSteps { workspace, run_id, from: 0, limit: 1000 }).0
}

/// Faults after which a node may act without knowing that it is too late: it stood still, or a
/// clock (its own, or that of whoever took the run from it) was wrong.
struct Excuses {
    nodes: Vec<String>,
    clocks: bool,
    slow: bool,
}

impl Excuses {
    fn of(world: &World, placed: &BTreeMap<u64, Fault>) -> Self {
        let outcome = world.faults.outcome(Ok(()));
        let jumps = |fault: &Fault| matches!(fault, Fault::ClockJump(_));
        let blinds = |fault: &Fault| fault.stops_a_node();
        let slows = |fault: &Fault| {
            jumps(fault) || blinds(fault) || matches!(fault, Fault::StoreDown(_) | Fault::Late(_))
        };
        let node = |point: &u64| {
            let at = usize::try_from(*point).unwrap_or(usize::MAX);
            outcome.points.get(at).map(|point| point.node.to_string())
        };
        let nodes = placed.iter().filter(|(_, f)| blinds(f)).filter_map(|(p, _)| node(p));
        Self {
            nodes: nodes.collect(),
            clocks: placed.values().any(jumps),
            slow: placed.values().any(slows),
        }
    }

    fn has(&self, call: &Performed) -> bool {
        self.clocks || self.nodes.iter().any(|node| **node == *call.node)
    }
}

/// The claim under which a call was made, and the one that ended it.
struct Owner<'a> {
    claim: Option<&'a ClaimSeen>,
    next: Option<&'a ClaimSeen>,
    /// Whether the same worker had the run before and lost it, so that the call may be the earlier
    /// owner's.
    again: bool,
}

impl<'a> Owner<'a> {
    fn of(call: &Performed, claims: &'a [ClaimSeen]) -> Self {
        let mine = |c: &&ClaimSeen| c.worker == call.worker && c.tick < call.started;
        let claim = claims.iter().rev().find(mine);
        let next = claim.and_then(|mine| claims.iter().find(|c| c.epoch > mine.epoch));
        let again = claims.iter().filter(mine).skip(1).any(|claim| claim.recovered);
        Self { claim, next, again }
    }

    /// Whether a crash of the server undid the claim: the owner may go on until it hears of it.
    fn has_not_heard(&self, call: &Performed, excuses: &Excuses) -> bool {
        let forgotten = self.claim.and_then(|claim| claim.forgotten);
        forgotten.is_some_and(|at| excuses.slow || at.until(call.started_at) <= HEARD_WITHIN)
    }

    /// Whether somebody else had the run when the call started.
    fn was_late(&self, call: &Performed) -> bool {
        self.next.is_some_and(|next| next.tick < call.started)
    }
}

fn follows_the_rules(
    known: &Known,
    excuses: &Excuses,
    call: &Performed,
    owner: &Owner<'_>,
    calls: &[Performed],
) -> Checked {
    let Performed { run, step, .. } = call;
    let worker = &call.worker;
    ensure!(
        owner.claim.is_some(),
        "{run}/{step} was called by {worker}, who never claimed the run"
    );
    // A read changes nothing: an owner whose time is up may make it without looking at its lease,
    // also where the next owner is the same worker.
    let harmless = !call.strict && (owner.was_late(call) || owner.again);
    let excused = excuses.has(call) || harmless || owner.has_not_heard(call, excuses);
    ensure!(
        excused || !owner.was_late(call),
        "{run}/{step} was called by {worker} after somebody else had claimed the run"
    );
    let of_run = known.settled.range((run.clone(), 0, 0)..=(run.clone(), i64::MAX, u64::MAX));
    let settled: Vec<_> = of_run.map(|(_, settled)| settled).collect();
    // R76: what is recorded is not run again.
    let own = settled.iter().find(|settled| settled.record.name == *step);
    let again = own.is_some_and(|own| own.tick < call.started);
    ensure!(excused || !again, "{run}/{step} was called again after its record was durable");
    for saw in call.saw.iter().filter(|_| call.strict) {
        let durable = settled.iter().any(|settled| {
            settled.tick < call.started && settled.record.outcome == Ok(saw.to_string())
        });
        let inherited = known.runs.get(run).is_some_and(|held| held.forked);
        ensure!(durable || inherited, "{run}/{step} was called with {saw}, which is not durable");
    }
    if let Some(own) =
        own.filter(|own| matches!(own.record.kind, Kind::Step | Kind::Effect | Kind::Read))
        && let Ok(value) = &own.record.outcome
    {
        let mut same = calls.iter().filter(|c| c.run == *run && c.step == *step && c.done);
        let real = same.any(|c| c.nonce.to_string() == *value && c.started < own.tick);
        ensure!(real, "{run}/{step} is recorded as {value}, which no call returned");
    }
    stops_when_told(known, excuses, call)
}

/// An executor that has not heard of a stop may begin one more step, but not for long.
fn stops_when_told(known: &Known, excuses: &Excuses, call: &Performed) -> Checked {
    let Some((tick, at)) = known.stopped.get(&call.run).copied() else {
        return Ok(());
    };
    if call.started < tick || excuses.slow {
        return Ok(());
    }
    let Performed { run, step, .. } = call;
    ensure!(
        at.until(call.started_at) <= HEARD_WITHIN,
        "{run}/{step} was called at {}, though the run was stopped at {at}",
        call.started_at
    );
    Ok(())
}

/// Calls of one run by two owners overlap only if the older one's claim had been taken over.
fn no_overlap(calls: &[Performed], by_run: &BTreeMap<&str, Vec<ClaimSeen>>) -> Checked {
    for (at, older) in calls.iter().enumerate() {
        let end = older.ended.unwrap_or(u64::MAX);
        for newer in calls[at + 1..].iter().filter(|newer| newer.run == older.run) {
            if newer.worker == older.worker || newer.started > end {
                continue;
            }
            let claims = by_run.get(newer.run.as_str()).map_or(&[][..], Vec::as_slice);
            let (old, new) = (Owner::of(older, claims), Owner::of(newer, claims));
            let both = old.claim.zip(new.claim);
            // A worker that was born after a crash may get the epoch that another one has lost.
            ensure!(
                both.is_some_and(|(old, new)| old.forgotten.is_some() || old.epoch != new.epoch),
                "{}: {} and {} run at once under one claim",
                older.run,
                older.step,
                newer.step
            );
        }
    }
    Ok(())
}

/// What a shape's own check looks at.
pub struct View<'a> {
    world: &'a World,
    prefix: &'a str,
    placed: &'a BTreeMap<u64, Fault>,
}

impl<'a> View<'a> {
    pub(super) fn new(world: &'a World, prefix: &'a str, placed: &'a BTreeMap<u64, Fault>) -> Self {
        Self { world, prefix, placed }
    }

    /// The id of a run (or a queue) of this scenario.
    pub fn id(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether a clock was wrong at some time.
    pub fn clocks_jumped(&self) -> bool {
        self.placed.values().any(|fault| matches!(fault, Fault::ClockJump(_)))
    }

    /// By how much a moment may be off, since clocks were: forth and back again, for each jump.
    pub fn clock_error(&self) -> Duration {
        let jumps = self.placed.values().filter(|fault| matches!(fault, Fault::ClockJump(_)));
        Duration::from_secs(41) * u32::try_from(jumps.count()).unwrap_or(u32::MAX)
    }

    /// Whether anything at all went wrong.
    pub fn was_disturbed(&self) -> bool {
        !self.placed.is_empty()
    }

    /// Whether the store was away, so that requests arrived long after they were made.
    pub fn was_cut_off(&self) -> bool {
        self.placed.values().any(|fault| matches!(fault, Fault::StoreDown(_)))
    }

    /// How often the server of the store crashed.
    pub fn crashes_of_the_server(&self) -> usize {
        self.placed.values().filter(|fault| **fault == Fault::Forget).count()
    }

    /// Whether nodes stood still, clocks were wrong or claims were forgotten, so that an owner may
    /// not know that it lost.
    pub fn has_zombies(&self) -> bool {
        let makes = |fault: &Fault| fault.stops_a_node() || *fault == Fault::Forget;
        self.clocks_jumped() || self.placed.values().any(makes)
    }

    /// The run.
    pub fn row(&self, name: &str) -> Result<RunRow, String> {
        self.world.row(&self.id(name)).ok_or_else(|| format!("there is no run {name}"))
    }

    /// Its records.
    pub fn records(&self, name: &str) -> Vec<Record> {
        records(self.world, &self.id(name))
    }

    /// The record of a step.
    pub fn record(&self, name: &str, step: &str) -> Option<Record> {
        self.records(name).into_iter().find(|record| record.name == step)
    }

    /// The recorded value of a step; null if there is none.
    pub fn value(&self, name: &str, step: &str) -> Value {
        let outcome = self.record(name, step).and_then(|record| record.outcome.ok());
        outcome.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Calls of a step, in order.
    pub fn calls(&self, name: &str, step: &str) -> Vec<Performed> {
        let (run, calls) = (self.id(name), self.world.books.calls());
        calls.into_iter().filter(|call| call.run == run && call.step == step).collect()
    }

    /// What the run returned, if it succeeded.
    pub fn result(&self, name: &str) -> Result<Value, String> {
        let row = self.row(name)?;
        ensure!(row.status == RunStatus::Success, "{name} is {}: {:?}", row.status, row.error);
        let text = row.output.ok_or("a success without a value")?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    /// The run succeeded with this value.
    pub fn returned(&self, name: &str, wanted: &Value) -> Checked {
        let result = self.result(name)?;
        ensure!(result == *wanted, "{name} returned {result}, not {wanted}");
        Ok(())
    }

    /// The run ended so, with an error of this code.
    pub fn stopped(&self, name: &str, status: RunStatus, code: &str) -> Checked {
        let row = self.row(name)?;
        let is = row.error.as_ref().map(|error| error.code().to_owned());
        ensure!(
            row.status == status && is.as_deref() == Some(code),
            "{name} is {} with {:?}",
            row.status,
            row.error
        );
        Ok(())
    }

    /// Whether all that a run has written was written before another was stopped: by the order of
    /// commits. Who stops a run gives the time at which it asked for that.
    pub fn wrote_before_stop(&self, name: &str, stopped: &str) -> bool {
        let known = self.world.journal.known();
        let (run, stopped) = (self.id(name), known.stopped.get(&self.id(stopped)));
        let mut of_run = known.settled.iter().filter(|((of, ..), _)| *of == run);
        stopped.is_none_or(|(stop, _)| of_run.all(|(_, settled)| settled.tick < *stop))
    }

    /// Items of a stream, and whether it is closed.
    pub fn stream(&self, name: &str, stream: &str) -> (Vec<String>, bool) {
        let page = self.world.journal.peek(op::ReadStream {
            workspace: WORKSPACE.to_owned(),
            run_id: self.id(name),
            stream: stream.to_owned(),
            from: 0,
            limit: 100,
        });
        (page.items, page.closed)
    }

    /// A published value.
    pub fn published(&self, name: &str, key: &str) -> Option<String> {
        let (workspace, run_id) = (WORKSPACE.to_owned(), self.id(name));
        self.world.journal.peek(op::GetValue { workspace, run_id, key: key.to_owned() }).0
    }

    /// When runs of a queue were taken from it, in commit order.
    pub fn dequeued_at(&self, queue: &str) -> Vec<steadfast_core::Timestamp> {
        let (queue, known) = (self.id(queue), self.world.journal.known());
        let of_queue = known.claims.iter().filter(|c| c.dequeued && c.queue == queue);
        of_queue.map(|claim| claim.now).collect()
    }
}
