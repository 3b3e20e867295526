//! Is a workflow crash safe? Run it, crash it at every place where something becomes durable, and
//! see that nothing comes out differently.
//!
//! Invariants: the workflow runs on the real engine, over the model store, in virtual time; one
//! node executes it, crashes once per world at a place that the world without crashes has met,
//! comes back and goes on; a world ends when every run of it is over.
//! Deliberately absent: sockets and real timers. Steps run on the simulation's executor; what they
//! await must be ready by itself. With [`CrashSafe::tokio`] a body may use tokio's types, but what
//! tokio's reactor wakes cannot move virtual time.

mod world;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use steadfast_core::driver::{Driver, Outcome, RunMeta, Turn};
use steadfast_core::workflow::{Code, Workflow};
use steadfast_core::{RunStatus, json};
use steadfast_runtime_native::Registry;
use steadfast_store::op::RunRow;

use crate::faults::{Access, Fault, Plan, Point};
use world::{Seen, World};

/// The id of the run under test.
pub const RUN: &str = "run";
/// The outcome of an effect that may not be repeated is unknown after a crash: an answer, no
/// defect.
const UNKNOWN: &str = "SF-0301";

/// Panics with a report unless the workflow survives a crash at every place.
///
/// ```
/// # use steadfast_core::{Cx, Result};
/// async fn greet(cx: Cx, name: String) -> Result<String> {
/// let greeting = cx.step("greet", move || {
/// let name = name.clone();
/// async move { Ok::<_, steadfast_core::Error>(format!("hello {name}")) }
/// });
/// greeting.await
/// }
/// steadfast_testkit::crash_safe::assert_crash_safe(greet, "you".to_owned());
/// ```
#[track_caller]
pub fn assert_crash_safe<W: Workflow<M> + Clone, M>(workflow: W, input: W::Input) {
    CrashSafe::new(workflow, input).check();
}

/// A workflow about to be crashed.
pub struct CrashSafe {
    registry: Registry,
    codes: BTreeMap<String, Code>,
    workflow: String,
    input: String,
    signals: Vec<(String, String)>,
    runtime: Option<tokio::runtime::Handle>,
    prepare: Box<dyn Fn()>,
}

/// What was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survived {
    /// Worlds with a crash.
    pub crashes: usize,
    /// How the run ended in all of them.
    pub status: RunStatus,
}

/// What did not survive, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defect {
    /// The workflow.
    pub workflow: String,
    /// Where the node crashed.
    pub crash: String,
    /// What came of it.
    pub found: String,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workflow, crash, found } = self;
        write!(f, "\"{workflow}\" is not crash safe\n  crash: {crash}\n  found: {found}")
    }
}

impl CrashSafe {
    /// This workflow with this input.
    ///
    /// # Panics
    /// When the workflow has no name, or the input is not JSON.
    pub fn new<W: Workflow<M> + Clone, M>(workflow: W, input: W::Input) -> Self {
        let name = workflow.name().expect("a workflow with a name of its own").to_owned();
        let input = json::encode("the input", &input).expect("an input that is JSON");
        let made = Self {
            registry: Registry::default(),
            codes: BTreeMap::new(),
            workflow: name,
            input,
            signals: Vec::new(),
            runtime: None,
            prepare: Box::new(|| ()),
        };
        made.register(workflow)
    }

    /// Another workflow that this one starts.
    ///
    /// # Panics
    /// When two workflows have one name.
    #[must_use]
    pub fn register<W: Workflow<M> + Clone, M>(mut self, workflow: W) -> Self {
        let name = workflow.name().expect("a workflow with a name of its own").to_owned();
        self.codes.insert(name, workflow.clone().code());
        self.registry.add(workflow).expect("a workflow that was not registered before");
        self
    }

    /// A signal that is sent as soon as the run exists; it is kept until the run waits for it.
    ///
    /// # Panics
    /// When the payload is not JSON.
    #[must_use]
    pub fn signal(mut self, name: &str, payload: impl Serialize) -> Self {
        let payload = json::encode("the signal", &payload).expect("a payload that is JSON");
        self.signals.push((name.to_owned(), payload));
        self
    }

    /// What `cx.state` gives.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.registry.state.insert(value);
        self
    }

    /// Done before each world begins: puts back what the workflow changes outside of the store.
    #[must_use]
    pub fn prepare(mut self, prepare: impl Fn() + 'static) -> Self {
        self.prepare = Box::new(prepare);
        self
    }

    /// Lets steps use tokio's types: they are polled inside this runtime's context.
    #[must_use]
    pub fn tokio(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Panics with a report unless the workflow survives.
    #[track_caller]
    pub fn check(&self) -> Survived {
        match self.try_check() {
            Ok(survived) => survived,
            Err(defect) => panic!("{defect}"),
        }
    }

    /// Crashes it everywhere; gives the first defect.
    pub fn try_check(&self) -> Result<Survived, Defect> {
        let entered = self.runtime.as_ref().map(|runtime| runtime.enter());
        let calm = self.world(Plan::none(), "none")?;
        let again = self.world(Plan::none(), "none, for the second time")?;
        let repeatable = calm.row.output == again.row.output && calm.row.error == again.row.error;
        let mut crashes = 0;
        for (at, point) in calm.points.iter().enumerate() {
            for fault in [Fault::CrashBefore, Fault::CrashAfter] {
                if !fault.fits(point) || point.access == Access::Read {
                    continue;
                }
                let place = place(at, calm.points.len(), point, fault);
                let plan = Plan::none().with(at as u64, fault);
                let crashed = self.world(plan, &place)?;
                self.compare(&calm, &crashed, repeatable, &place)?;
                crashes += 1;
            }
        }
        drop(entered);
        Ok(Survived { crashes, status: calm.row.status })
    }

    fn world(&self, plan: Plan, crash: &str) -> Result<Seen, Defect> {
        (self.prepare)();
        let world = World {
            registry: &self.registry,
            workflow: &self.workflow,
            input: &self.input,
            signals: &self.signals,
        };
        world.run(plan).map_err(|found| self.defect(crash, found))
    }

    fn defect(&self, crash: &str, found: String) -> Defect {
        Defect { workflow: self.workflow.clone(), crash: crash.to_owned(), found }
    }

    fn compare(
        &self,
        calm: &Seen,
        crashed: &Seen,
        repeatable: bool,
        crash: &str,
    ) -> Result<(), Defect> {
        let unknown = crashed.row.error.as_ref().is_some_and(|error| error.code() == UNKNOWN);
        let (was, is) = (&calm.row, &crashed.row);
        if was.status != is.status && !unknown {
            let found = format!("the run ended as {}, without the crash as {}", end(is), end(was));
            return Err(self.defect(crash, found));
        }
        for (row, history) in &crashed.runs {
            self.replay(row, history).map_err(|found| self.defect(crash, found))?;
        }
        if repeatable && !unknown && end(was) != end(is) {
            let found = format!("the run ended as {}, without the crash as {}", end(is), end(was));
            return Err(self.defect(crash, found));
        }
        // Calls that lost a race have no record, so only a world without them can be counted.
        let countable = calm.begun == calm.recorded;
        let allowed = crashed.recorded.saturating_sub(crashed.kept);
        if countable && !unknown && crashed.begun_after > allowed {
            let found = format!(
                "{} calls began after the crash, but only {allowed} were not recorded before it",
                crashed.begun_after
            );
            return Err(self.defect(crash, found));
        }
        Ok(())
    }

    /// The code over its own history must come to its own end: this is what recovery relies on.
    fn replay(
        &self,
        row: &RunRow,
        history: &[steadfast_core::driver::Record],
    ) -> Result<(), String> {
        let ended = match (row.status, &row.output, &row.error) {
            (RunStatus::Success, Some(value), _) => Ok(value.clone()),
            (RunStatus::Error, _, Some(error)) => Err(error.clone()),
            _ => return Ok(()),
        };
        let Some(code) = self.codes.get(&row.workflow).cloned() else {
            return Ok(());
        };
        let meta = RunMeta {
            workspace: world::WORKSPACE.to_owned(),
            run_id: row.run_id.clone(),
            workflow: row.workflow.clone(),
            generation: u32::try_from(row.generation).unwrap_or(u32::MAX),
            seed: u64::from_be_bytes(row.seed.to_be_bytes()),
            started_at: row.started_at.unwrap_or(row.created_at),
            context: Default::default(),
            strict_replay: true,
        };
        let state = std::sync::Arc::new(self.registry.state.clone());
        let input = row.input.clone();
        let mut driver = Driver::new(meta, history.to_vec(), state, move |cx| code(cx, input));
        let says = match driver.turn() {
            Turn::Done(outcome) if outcome == ended => return Ok(()),
            Turn::Done(outcome) => format!("gives {}", told(&outcome)),
            Turn::ContinueAsNew(input) => format!("continues as new with {input}"),
            Turn::Ask { start, .. } => {
                let names: Vec<_> = start.iter().map(|request| request.name.as_str()).collect();
                format!("asks for {names:?}, which it had not asked for")
            }
        };
        Err(format!(
            "the code of \"{}\" ended with {}, but over the same recorded steps it {says}: \
             something between the steps is not the same each time; take it from a step, or from \
             cx.now, cx.random and cx.uuid",
            row.workflow,
            told(&ended)
        ))
    }
}

fn told(outcome: &Outcome) -> String {
    match outcome {
        Ok(value) => value.clone(),
        Err(error) => format!("the error \"{error}\""),
    }
}

fn end(row: &RunRow) -> String {
    let what = match (&row.output, &row.error) {
        (Some(value), _) => value.clone(),
        (None, Some(error)) => error.to_string(),
        (None, None) => String::new(),
    };
    format!("{} {what}", row.status)
}

fn place(at: usize, of: usize, point: &Point, fault: Fault) -> String {
    let when = match (point.access, fault) {
        (Access::CrashPoint, _) => "at",
        (_, Fault::CrashAfter) => "after the commit of",
        _ => "before the commit of",
    };
    format!("{when} {} (point {at} of {of})", point.op)
}
