//! The judgement, when all is over: the ledger's log against the tables and the diaries.
//!
//! The late-call rule, precisely. A step is *known to be recorded* from the moment the supervisor
//! saw its record, or the ledger saw the next step of the same sequence being called, whichever
//! came first: no step may start before the one in front of it is durable. A call that reaches the
//! ledger later than that is a violation unless it was in flight before, which is believed in two
//! cases only:
//! - its life was dead by that moment: the bytes waited in a socket;
//! - its life was frozen at that moment or before, and the call came no later than [`IN_FLIGHT_US`]
//!   after that life was thawed: it had passed its lease check before the frost. No more calls of a
//!   run are believed than its code has at once: a zombie that begins the next step was not stopped
//!   by its lease, and is a violation, however soon it does.
//!
//! The stale-write rule. A record that one life wrote is a violation if another life, which had not
//! been heard of in that run before, called the same step later: that one had claimed the run and
//! found no record, so the first had lost it when it wrote.
//!
//! Deliberately absent: trust in the workers. Nothing they say counts, except the name of their
//! life.

use std::collections::{BTreeMap, BTreeSet};

use steadfast::{RunStatus, StepKind};
use steadfast_testkit::ledger::Arrival;

use crate::fleet::Life;
use crate::shapes::{self, LATEST, Shape};
use crate::watch::{Recorded, Watched};

/// How long after a thaw a call still counts as sent before the frost. Zombies are spared for
/// longer.
pub(crate) const IN_FLIGHT_US: u64 = 1_000_000;

/// All that is known about a storm.
pub(crate) struct History<'a> {
    pub(crate) log: &'a [Arrival],
    pub(crate) lives: &'a BTreeMap<String, Life>,
    pub(crate) runs: &'a BTreeMap<String, Watched>,
    pub(crate) acked: &'a BTreeMap<String, &'static Shape>,
}

type Calls<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Arrival>>;

/// Everything that is wrong.
pub(crate) fn check(history: &History<'_>) -> Vec<String> {
    let mut calls = Calls::new();
    for arrival in history.log {
        let step = (arrival.call.run.as_str(), arrival.call.step.as_str());
        calls.entry(step).or_default().push(arrival);
    }
    let mut faults = Vec::new();
    runs(history, &calls, &mut faults);
    late_calls(history, &calls, &mut faults);
    stale_writes(history, &calls, &mut faults);
    effects(&calls, &mut faults);
    for (run, step) in calls.keys() {
        if !history.runs.contains_key(*run) {
            faults.push(format!("step {step} was called for run {run}, which does not exist"));
        }
    }
    faults
}

/// How many calls were more than a step needs by its nature.
pub(crate) fn repeated(log: &[Arrival]) -> usize {
    let steps: BTreeSet<_> = log.iter().map(|a| (&a.call.run, &a.call.step)).collect();
    log.iter().filter(|a| a.answer.is_some()).count().saturating_sub(steps.len())
}

/// G1, G2, G3: every acknowledged start is one run that succeeded with the right result, and there
/// is no other run than those and their children.
fn runs(history: &History<'_>, calls: &Calls<'_>, faults: &mut Vec<String>) {
    for (id, shape) in history.acked {
        match history.runs.get(id) {
            None => faults.push(format!("{id} was acknowledged and does not exist")),
            Some(run) => one_run(history, calls, run, shape, faults),
        }
    }
    for (id, run) in history.runs {
        if run.row.parent.is_empty() {
            if !history.acked.contains_key(id) {
                faults.push(format!("{id} exists and was never acknowledged"));
            }
        } else {
            one_run(history, calls, run, &shapes::MEMBER, faults);
        }
    }
}

fn one_run(
    history: &History<'_>,
    calls: &Calls<'_>,
    run: &Watched,
    shape: &Shape,
    faults: &mut Vec<String>,
) {
    let (id, row) = (&run.row.run_id, &run.row);
    if row.status != RunStatus::Success {
        faults.push(format!("{id} is {}, not SUCCESS: {:?}", row.status, row.error));
        return;
    }
    let called: Vec<&Recorded> = run.records.values().filter(|r| makes_calls(r.kind)).collect();
    let names: Vec<&str> = called.iter().map(|r| r.name.as_str()).collect();
    if names != shape.steps {
        faults.push(format!("{id} recorded {names:?}, its code has {:?}", shape.steps));
    }
    let mut expected: Vec<String> = called.iter().map(|r| value(r)).collect();
    for (nonce, recorded) in expected.iter().zip(&called) {
        let given = of_step(calls, id, recorded).iter();
        let given: BTreeSet<&str> = given.filter_map(|a| a.answer.as_deref()).collect();
        let unknown = nonce == "unknown" && recorded.name == "once";
        if !unknown && !given.contains(nonce.as_str()) {
            let name = &recorded.name;
            faults.push(format!("{id} recorded {nonce} for {name}; the ledger gave {given:?}"));
        }
    }
    if shape.workflow == "signaller" {
        expected.insert(1, format!("word of {id}"));
        expected.push("none".to_owned());
    }
    if shape.workflow == LATEST.workflow {
        expected.push(row.input.clone());
    }
    let children = history.runs.values().filter(|child| child.row.parent == *id);
    // In the order of their ids, which is the order in which the parent joins them.
    children.for_each(|child| expected.extend(list(child.row.output.as_deref())));
    let result = list(row.output.as_deref());
    if result != expected {
        faults.push(format!("{id} gave {result:?} and recorded {expected:?}"));
    }
}

fn makes_calls(kind: StepKind) -> bool {
    matches!(kind, StepKind::Step | StepKind::Effect)
}

/// What the code got from a record.
fn value(recorded: &Recorded) -> String {
    match &recorded.outcome {
        Ok(text) => serde_json::from_str(text).unwrap_or_else(|_| text.clone()),
        Err(error) if error.code() == "SF-0301" => "unknown".to_owned(),
        Err(error) => error.to_string(),
    }
}

pub(crate) fn list(output: Option<&str>) -> Vec<String> {
    output.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn of_step<'a>(calls: &'a Calls<'a>, id: &'a str, step: &'a Recorded) -> &'a [&'a Arrival] {
    calls.get(&(id, step.name.as_str())).map_or(&[], Vec::as_slice)
}

/// G4, G11: nothing is called after its record, except what was in flight.
fn late_calls(history: &History<'_>, calls: &Calls<'_>, faults: &mut Vec<String>) {
    for (id, run) in history.runs {
        // Late calls that are believed to have been in flight, by the frost of a life.
        let mut believed: BTreeMap<(&str, u64), Vec<&str>> = BTreeMap::new();
        let recorded: Vec<&Recorded> =
            run.records.values().filter(|r| makes_calls(r.kind)).collect();
        for (n, step) in recorded.iter().enumerate() {
            let next = recorded.get(n + 1).filter(|_| run.row.workflow != "parallel");
            let next_us =
                next.and_then(|next| of_step(calls, id, next).first()).map(|call| call.at_us);
            let known_us = step.seen_us.min(next_us.unwrap_or(u64::MAX));
            for call in of_step(calls, id, step).iter().filter(|call| call.at_us > known_us) {
                let life = history.lives.get(&call.call.worker);
                match life.map_or(Sent::Late, |life| sent(life, call.at_us, known_us)) {
                    Sent::BeforeDeath => {}
                    Sent::BeforeFrost(frost) => {
                        let life = call.call.worker.as_str();
                        believed.entry((life, frost)).or_default().push(&step.name);
                    }
                    Sent::Late => faults.push(format!(
                        "{id} called {} after it was known to be recorded at {known_us} (seen at \
                         {}, next step at {next_us:?}): {call:?} by {life:?}",
                        step.name, step.seen_us
                    )),
                }
            }
        }
        let at_once = if run.row.workflow == "parallel" { recorded.len() } else { 1 };
        for ((life, _), steps) in believed.iter().filter(|(_, steps)| steps.len() > at_once) {
            faults.push(format!(
                "{id} was frozen with {life} in {at_once} steps at most, and then called {steps:?}"
            ));
        }
    }
}

/// When a late call was sent, as far as its caller is believed.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    /// Before its caller died.
    BeforeDeath,
    /// Before its caller was frozen at this moment.
    BeforeFrost(u64),
    /// When its caller should have known better.
    Late,
}

fn sent(life: &Life, at_us: u64, known_us: u64) -> Sent {
    if life.dead_us.is_some_and(|dead| dead <= known_us) {
        return Sent::BeforeDeath;
    }
    let thawing = |thawed: Option<u64>| thawed.is_none_or(|at| at_us <= at + IN_FLIGHT_US);
    let frost = life.frozen_us.iter().find(|(from, to)| *from <= known_us && thawing(*to));
    frost.map_or(Sent::Late, |(from, _)| Sent::BeforeFrost(*from))
}

/// X14: nobody writes after another one has claimed the run.
fn stale_writes(history: &History<'_>, calls: &Calls<'_>, faults: &mut Vec<String>) {
    for (id, run) in history.runs {
        for recorded in run.records.values().filter(|r| makes_calls(r.kind)) {
            let (of_step, nonce) = (of_step(calls, id, recorded), value(recorded));
            let Some(at) = of_step.iter().rposition(|call| call.answer.as_ref() == Some(&nonce))
            else {
                continue;
            };
            let (writer, at_us) = (&of_step[at].call.worker, of_step[at].at_us);
            // One that was frozen or dead by then, or had called steps of the run before, may have
            // claimed the run before the writer: its call was under way when its lease ended.
            let is_heir = |call: &&&Arrival| {
                let heir = &call.call.worker;
                let life = history.lives.get(heir);
                let was_out = life.is_some_and(|life| is_out(life, at_us, call.at_us))
                    || has_called(calls, id, heir, at_us);
                heir != writer && call.at_us <= recorded.seen_us && !was_out
            };
            if let Some(heir) = of_step[at..].iter().find(is_heir) {
                let (step, heir) = (&recorded.name, &heir.call.worker);
                faults.push(format!(
                    "{id} has the record of {step} that {writer} wrote after {heir} had the run"
                ));
            }
        }
    }
}

/// Whether a life had called any step of a run before a moment.
fn has_called(calls: &Calls<'_>, run: &str, life: &str, before_us: u64) -> bool {
    let of_run = calls.range((run, "")..).take_while(|((id, _), _)| *id == run);
    let mut arrivals = of_run.flat_map(|(_, arrivals)| arrivals);
    arrivals.any(|arrival| arrival.call.worker == life && arrival.at_us < before_us)
}

/// Whether a life stood still at a moment, or was over when its call arrived.
fn is_out(life: &Life, moment_us: u64, arrived_us: u64) -> bool {
    let stood_still = |(from, to): &(u64, Option<u64>)| {
        *from <= moment_us && to.is_none_or(|thawed| moment_us <= thawed)
    };
    life.dead_us.is_some_and(|dead| dead <= arrived_us) || life.frozen_us.iter().any(stood_still)
}

/// G5, G6: an effect without a key is called at most once; a key belongs to one effect for ever.
fn effects(calls: &Calls<'_>, faults: &mut Vec<String>) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for ((run, step), of_step) in calls {
        if *step == "once" && of_step.len() > 1 {
            faults.push(format!("{run} called an at-most-once effect {} times", of_step.len()));
        }
        if *step != "keyed" {
            continue;
        }
        let keys: BTreeSet<&str> = of_step.iter().map(|a| a.call.key.as_str()).collect();
        if keys.len() != 1 || keys.contains("") {
            faults.push(format!("{run} called its keyed effect with the keys {keys:?}"));
        }
        for key in keys {
            if owners.insert(key, run).is_some_and(|other| other != *run) {
                faults.push(format!("two runs used the key {key}"));
            }
        }
    }
}

#[cfg(test)]
mod tests;
