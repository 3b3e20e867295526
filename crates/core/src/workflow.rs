//! What a workflow is written with: the context, its verbs, and the futures they return.
//!
//! Invariants: a call takes its position when it is **built**, in the workflow's own code; a call
//! built in a spawned task or inside another step is refused, because its record would be lost;
//! `now`, `random` and `uuid` are functions of the recorded history and cost no record.
//! Deliberately absent: macros. Steps and workflows are plain functions.

mod calls;
mod children;
mod effects;
mod messages;
mod operation;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

pub use calls::{Call, FunctionForm, NamedForm, StepCall};
pub use children::{Child, Spawn};
pub use effects::Effect;
pub use messages::{Received, ReceivedInTime, SignalWait};
pub use operation::Operation;

use crate::caught;
use crate::command::Context;
use crate::driver::{Ask, Kind, Outcome, Shared};
use crate::error::{Error, Result};
use crate::json;
use crate::time::Timestamp;

/// The context of a run: everything durable goes through it.
///
/// It is cheap to clone, and only works inside its own run's code.
#[derive(Clone)]
pub struct Cx {
    shared: Arc<Shared>,
    /// The effect that is taken back, and by which compensation, while one runs.
    undoes: Option<Arc<(String, String)>>,
}

impl fmt::Debug for Cx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cx({})", self.shared.meta.run_id)
    }
}

impl Cx {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, undoes: None }
    }

    /// The id of this run.
    pub fn run_id(&self) -> &str {
        &self.shared.meta.run_id
    }

    /// The workspace of this run.
    pub fn workspace(&self) -> &str {
        &self.shared.meta.workspace
    }

    /// What travels with this run from its cause: the command, the trace, the schedule's slot.
    /// Empty for a run that was started without any.
    pub fn context(&self) -> &Context {
        &self.shared.meta.context
    }

    /// The time at this point of the run: when the last outcome arrived. The same on every replay.
    pub fn now(&self) -> Timestamp {
        self.shared.lock().now()
    }

    /// A random number, the same on every replay. Not for secrets.
    pub fn random(&self) -> u64 {
        let [head, _] = self.draw();
        head
    }

    /// A random UUID (version 4), the same on every replay. Not for secrets.
    pub fn uuid(&self) -> String {
        let [a, b] = self.draw();
        let a = (a & !0xf000) | 0x4000;
        let b = (b & !(0b11 << 62)) | (0b10 << 62);
        let text = format!("{a:016x}{b:016x}");
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &text[range]);
        parts.join("-")
    }

    fn draw(&self) -> [u64; 2] {
        self.guard("random");
        let meta = &self.shared.meta;
        let draw = self.shared.lock().draw();
        let mut hash = Sha256::new();
        hash.update(meta.seed.to_be_bytes());
        hash.update(meta.generation.to_be_bytes());
        hash.update(draw.to_be_bytes());
        let digest = hash.finalize();
        let half = |at: usize| {
            digest[at..at + 8].iter().fold(0u64, |value, byte| (value << 8) | u64::from(*byte))
        };
        [half(0), half(8)]
    }

    /// Something the application registered with the fabric, such as a client or a pool.
    pub fn state<T: Send + Sync + 'static>(&self) -> Result<Arc<T>> {
        self.shared.app.downcast_ref::<AppState>().and_then(|state| state.get::<T>()).ok_or_else(
            || {
                Error::invalid(
                    "SF-0107",
                    format!("no state of type {} was registered", std::any::type_name::<T>()),
                )
            },
        )
    }

    /// Waits durably: the run leaves memory, and a restart waits only for the rest.
    pub fn sleep(&self, d: Duration) -> Operation<()> {
        let until = self.now().after(d);
        self.operation("sleep", Some(format!("{d:?}")), Ask::Sleep { until })
    }

    /// Waits durably until a moment.
    pub fn sleep_until(&self, until: Timestamp) -> Operation<()> {
        self.operation("sleep", Some(until.to_string()), Ask::Sleep { until })
    }

    /// A pure function: evaluated here and now, its value recorded with the next commit.
    pub fn compute<T>(&self, name: &str, f: impl FnOnce() -> T) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let id = self.built(name)?;
        let outcome = {
            let mut state = self.shared.lock();
            // Evaluated under no lock: `f` is user code.
            match state.ride_known(id, name, Kind::Compute) {
                Some(known) => known,
                None => {
                    drop(state);
                    let made = caught::call(caught::Code("compute", name), f);
                    let made = made.and_then(|value| json::encode("the computed value", &value));
                    state = self.shared.lock();
                    state.ride(id, name, Kind::Compute, made)
                }
            }
        };
        outcome.and_then(|text| json::decode("the computed value", &text))
    }

    /// Whether this run has (or will have) the new behaviour of a change.
    ///
    /// True for runs that reach this point for the first time, false for runs whose history was
    /// made by code without the change. The answer is recorded and stays the same for the run.
    pub fn patched(&self, name: &str) -> bool {
        if !self.guard(name) {
            return false;
        }
        let mut state = self.shared.lock();
        if !state.meets_patch(name) {
            return false;
        }
        let id = state.take_id();
        state.ride_known(id, name, Kind::Patch).is_some()
            || state.ride(id, name, Kind::Patch, Ok("null".to_owned())).is_ok()
    }

    /// Says that no run without the change is left; keeps histories that have its mark readable.
    pub fn deprecate_patch(&self, name: &str) {
        let mut state = self.shared.lock();
        if state.has_patch(name) {
            let id = state.take_id();
            let _ = state.ride_known(id, name, Kind::Patch);
        }
    }

    /// Starts this run over with a new input and an empty history; pending signals are kept.
    pub async fn continue_as_new<I: Serialize, T>(&self, input: I) -> Result<T> {
        self.guard("continue_as_new");
        let input = json::encode("the input", &input)?;
        self.shared.lock().continue_with(input);
        std::future::pending().await
    }

    /// Runs work of the store's own kind, recorded in the same commit. The SDK gives it types.
    #[doc(hidden)]
    pub fn transaction<T>(&self, name: &str, work: Box<dyn Any + Send + Sync>) -> Operation<T> {
        self.operation(name, None, Ask::Transaction(work))
    }

    /// Fails the run if a call that takes no record is made where replay would not make it.
    fn guard(&self, name: &str) -> bool {
        let inside = self.shared.is_polling();
        if !inside {
            self.shared.lock().fail(elsewhere(name));
        }
        inside
    }

    fn operation<T>(&self, name: &str, input: Option<String>, ask: Ask) -> Operation<T> {
        match self.built(name) {
            Ok(id) => Operation::asking(self.shared.clone(), id, name, input, ask),
            Err(refusal) => Operation::refused(refusal),
        }
    }

    /// Takes the position of a call, or refuses it where its record would be lost.
    fn built(&self, name: &str) -> Result<u64> {
        if !self.shared.is_polling() {
            return Err(elsewhere(name));
        }
        crate::key::check("step name", name)?;
        Ok(self.shared.lock().take_id())
    }
}

fn elsewhere(name: &str) -> Error {
    Error::invalid(
        "SF-0206",
        format!(
            "\"{name}\" was called outside its workflow's own code (in a spawned task or inside \
             another step), where its record would be lost"
        ),
    )
}

/// What an application shares with its workflows, by type.
#[derive(Default, Clone)]
pub struct AppState {
    values: BTreeMap<&'static str, Arc<dyn Any + Send + Sync>>,
}

impl AppState {
    /// Adds a value; a second one of the same type replaces the first.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.values.insert(std::any::type_name::<T>(), Arc::new(value));
    }

    fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let value = self.values.get(std::any::type_name::<T>())?;
        value.clone().downcast::<T>().ok()
    }
}

/// A workflow as the registry keeps it: JSON in, JSON out.
pub type Code = Arc<dyn Fn(Cx, String) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// A plain async function that can be run durably: `async fn(Cx, I) -> Result<T, E>`.
pub trait Workflow<M>: Send + Sync + Sized + 'static {
    /// The input type.
    type Input: Serialize + DeserializeOwned + Send + 'static;
    /// The value it returns.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The durable name: the function's own.
    fn name(&self) -> Result<&'static str> {
        crate::key::function_name(self)
    }

    /// The same code over JSON.
    fn code(self) -> Code;
}

impl<F, I, T, E, Fut> Workflow<(I, T, E, Fut)> for F
where
    F: Fn(Cx, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = std::result::Result<T, E>> + Send + 'static,
    I: Serialize + DeserializeOwned + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
    E: fmt::Display + Send + 'static,
{
    type Input = I;
    type Output = T;

    fn code(self) -> Code {
        let f = Arc::new(self);
        Arc::new(move |cx, input| {
            let f = f.clone();
            Box::pin(async move {
                let input = json::decode("the input", &input)?;
                let value = f(cx, input).await.map_err(Error::from_any)?;
                json::encode("the result", &value)
            })
        })
    }
}
