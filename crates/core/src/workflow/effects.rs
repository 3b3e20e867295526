//! The governed verbs: `effect`, `call`, `approval` and `emit`.
//!
//! Invariants: what leaves by them is judged, entered in the ledger and audited by the host,
//! whoever wrote the workflow; an effect has its key before it begins, and the same one on every
//! attempt.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::calls::outcome;
use super::{Call, Cx, Operation};
use crate::approval::{ApprovalRequest, Approved};
use crate::command::{Book, CommandType};
use crate::connector::{self, Connector, Inbound, Outbound, Probe, Ways};
use crate::driver::{Ask, Body, CallOptions, EffectClass, Guard, Outcome, Probing, Said, Verb};
use crate::effect::EffectSpec;
use crate::error::{Error, Result};
use crate::gate::Calling;
use crate::retry::Retry;
use crate::{json, key};

type Asks = Arc<dyn Fn(String) -> BoxFuture<'static, Result<Option<Outcome>>> + Send + Sync>;

/// A declared write: its type, the key the receiver knows it by, what it is done with, and what may
/// be repeated.
#[derive(Clone)]
pub struct Effect {
    name: String,
    step: Option<String>,
    key: Option<String>,
    class: EffectClass,
    payload: Result<Value>,
    dry: Option<Value>,
    probe: Option<Asks>,
}

impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Effect({}, {:?}, {:?})", self.name, self.key, self.class)
    }
}

impl Effect {
    /// An effect of the command's contract, with the key that the contract gives it. The receiver
    /// honours the key: after a crash the call is made again with the same one.
    pub fn of(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            step: None,
            key: None,
            class: EffectClass::Keyed,
            payload: Ok(Value::Null),
            dry: None,
            probe: None,
        }
    }

    /// The receiver honours the key: after a crash the call is made again with the same key.
    pub fn keyed(name: impl Into<String>, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..Self::of(name) }
    }

    /// The receiver has no memory: after a crash in the middle the call is **not** made again. A
    /// plain run's step fails with `SF-0301` (outcome unknown); a command's waits for a person.
    pub fn at_most_once(name: impl Into<String>, key: impl Into<String>) -> Self {
        Self::keyed(name, key).once()
    }

    /// Not to be repeated after a crash in the middle: the receiver has no memory.
    pub fn once(mut self) -> Self {
        self.class = EffectClass::AtMostOnce;
        self
    }

    /// What its step is called, where the plan has a name for it that is not the effect's. Retries
    /// of the contract go by it.
    pub fn step(mut self, name: impl Into<String>) -> Self {
        self.step = Some(name.into());
        self
    }

    /// What it is done with: kept in the ledger, judged by policies, bound to approvals.
    pub fn payload(mut self, payload: impl Serialize) -> Self {
        self.payload = json::value("the effect's payload", &payload);
        self
    }

    /// What it yields in a dry run, in which nothing is done.
    pub fn dry(mut self, value: impl Serialize) -> Self {
        match json::value("the effect's dry value", &value) {
            Ok(value) => self.dry = Some(value),
            Err(refusal) => self.payload = self.payload.and(Err(refusal)),
        }
        self
    }

    /// Asks the receiver whether it was done (`Some`) or not (`None`), by the key. Used after a
    /// crash in the middle, instead of a person.
    pub fn probe<F, Fut, T, E>(mut self, ask: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Option<T>, E>> + Send + 'static,
        T: Serialize + 'static,
        E: fmt::Display + 'static,
    {
        self.probe = Some(Arc::new(move |key| {
            let asked = ask(key);
            Box::pin(async move {
                let found = asked.await.map_err(Error::from_any)?;
                Ok(found.map(|value| json::encode("the effect's result", &value)))
            })
        }));
        self
    }
}

impl Cx {
    /// Performs a declared write on the outside world: judged, recorded as begun before it starts,
    /// and as done after. What happens when a crash leaves it begun is the effect's class to say.
    pub fn effect<B, Fut, T, E>(&self, effect: Effect, body: B) -> Call<T>
    where
        B: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize + DeserializeOwned + 'static,
        E: fmt::Display + 'static,
    {
        let perform = move |key: String, _: &Arc<Guard>| -> BoxFuture<'static, Outcome> {
            let made = body(key);
            Box::pin(async move { outcome(made.await) })
        };
        self.perform(effect, None, perform, Retry::none())
    }

    /// Performs a declared write by a connector. It is repeated after a crash where the connector's
    /// receiver honours keys; otherwise the connector is asked whether it was done.
    pub fn effect_via<T: DeserializeOwned>(
        &self,
        effect: Effect,
        connector: &str,
        request: Outbound,
    ) -> Call<T> {
        let (way, operation) = match self.way_out(connector, &request.operation) {
            Ok(found) => found,
            Err(refusal) => return Call::of(Operation::refused(refusal)),
        };
        let mut effect = effect;
        if operation.is_some_and(|keyed| !keyed) {
            effect.class = EffectClass::AtMostOnce;
        }
        if effect.payload == Ok(Value::Null) {
            effect.payload = Ok(request.input.clone());
        }
        let calling = match calling(connector, &request) {
            Ok(calling) => calling,
            Err(refusal) => return Call::of(Operation::refused(refusal)),
        };
        let request = self.traced(request);
        if effect.probe.is_none() {
            effect.probe = Some(probing(way.clone(), request.clone()));
        }
        let retry = way.retry();
        let perform = move |key: String, guard: &Arc<Guard>| -> BoxFuture<'static, Outcome> {
            let request = Outbound { key: Some(key), ..request.clone() };
            send(way.clone(), request, guard.clone())
        };
        self.perform(effect, Some(calling), perform, retry)
    }

    /// Asks a connector for something that changes nothing: judged, entered in the ledger, retried
    /// as the contract says for an operation of this name, or else as the connector does.
    pub fn call<T: DeserializeOwned>(
        &self,
        name: &str,
        connector: &str,
        request: Outbound,
    ) -> Call<T> {
        let prepared = || {
            let key = request.key.as_deref();
            self.by_contract(|contract| contract.check_call(name, key)).transpose()?;
            let (way, _) = self.way_out(connector, &request.operation)?;
            Ok((way, calling(connector, &request)?))
        };
        let (way, calling) = match prepared() {
            Ok(prepared) => prepared,
            Err(refusal) => return Call::of(Operation::refused(refusal)),
        };
        let input = Some(calling.input.clone());
        let guard = Arc::new(Guard { calling: Some(calling), ..Guard::default() });
        let retry = self.retry_of(name).unwrap_or_else(|| way.retry());
        let (request, said) = (self.traced(request), guard.clone());
        let body: Body = Box::new(move || send(way.clone(), request.clone(), said.clone()));
        let options = Arc::new(CallOptions { guard: Some(guard), retry, ..CallOptions::default() });
        Call::of(self.operation(name, input, Ask::Call { verb: Verb::Step, body, options }))
    }

    /// Asks people, and waits without holding a worker until enough have said yes. A no, or nothing
    /// in time, is an error of class `approval_rejected`.
    pub fn approval(&self, request: ApprovalRequest) -> Operation<Approved> {
        match request.check() {
            Err(refusal) => Operation::refused(refusal),
            Ok(()) => {
                let name = request.approval_type.clone();
                let input = Some(Value::from(request.action.as_str()).to_string());
                self.operation(&name, input, Ask::Approval(Box::new(request)))
            }
        }
    }

    /// Tells that something happened, in the run's next commit: an event of this command.
    pub fn emit(&self, event_type: &str, payload: impl Serialize) -> Operation<()> {
        self.tell(event_type, &payload, false)
    }

    /// The same for auditors: it is kept as long as audit rows are.
    pub fn audit(&self, event_type: &str, payload: impl Serialize) -> Operation<()> {
        self.tell(event_type, &payload, true)
    }

    fn tell(&self, event_type: &str, payload: &impl Serialize, audit: bool) -> Operation<()> {
        let made = crate::key::check_event(event_type);
        match made.and_then(|()| json::encode("the event", payload)) {
            Ok(payload) => self.operation(event_type, None, Ask::Emit { payload, audit }),
            Err(refusal) => Operation::refused(refusal),
        }
    }

    /// This context, for the compensation of an effect.
    #[doc(hidden)]
    pub fn undoing(&self, effect_id: &str, compensation: &str) -> Self {
        let undoes = Some(Arc::new((effect_id.to_owned(), compensation.to_owned())));
        Self { undoes, ..self.clone() }
    }

    /// Finds out what became of an effect that the command's own runs left open: the host asks its
    /// receiver, repeats it where that is safe, or waits for a person. The ledger has the answer.
    #[doc(hidden)]
    pub fn settle(&self, effect_id: &str, effect_type: &str) -> Operation<Value> {
        let effect_id = effect_id.to_owned();
        self.operation(effect_type, None, Ask::Settle { effect_id })
    }

    /// Notes that an effect was taken back.
    #[doc(hidden)]
    pub fn undone(&self, effect_id: &str, compensation: &str) -> Operation<()> {
        let (effect_id, compensation) = (effect_id.to_owned(), compensation.to_owned());
        self.operation("undone", None, Ask::Undone { effect_id, compensation })
    }

    fn perform<T, P>(
        &self,
        effect: Effect,
        calling: Option<Calling>,
        perform: P,
        retry: Retry,
    ) -> Call<T>
    where
        P: Fn(String, &Arc<Guard>) -> BoxFuture<'static, Outcome> + Send + Sync + 'static,
    {
        let (name, class) = (effect.step.as_ref().unwrap_or(&effect.name).clone(), effect.class);
        let retry = match self.retry_of(&name) {
            Some(own) => own,
            // What must be undone is worth another try.
            None if self.undoes.is_some() => connector::default_retry(),
            None => retry,
        };
        let given_key = effect.key.is_some();
        let (spec, probe) = match self.spec(effect) {
            Ok(made) => made,
            Err(refusal) => return Call::of(Operation::refused(refusal)),
        };
        let (key, input) = (spec.key.clone(), spec_input(&spec));
        let effect = Some(spec);
        let guard = Arc::new(Guard { effect, given_key, calling, probe, ..Guard::default() });
        let said = guard.clone();
        let body: Body = Box::new(move || perform(key.clone(), &said));
        let options = Arc::new(CallOptions { guard: Some(guard), retry, ..CallOptions::default() });
        Call::of(self.operation(&name, Some(input), Ask::Effect { class, body, options }))
    }

    fn spec(&self, effect: Effect) -> Result<(EffectSpec, Option<Probing>)> {
        let payload = effect.payload?;
        let key = match effect.key {
            Some(key) => key,
            None => self.own_key(&effect.name, &payload)?,
        };
        crate::key::check("effect key", &key)?;
        let asked = key.clone();
        let probe = effect.probe.map(|ask| -> Probing { Box::new(move || ask(asked.clone())) });
        let spec = EffectSpec {
            effect_type: effect.name,
            key,
            class: effect.class,
            payload: json::encode("the effect's payload", &payload)?,
            undoes: self.undoes.as_ref().map(|undoing| undoing.0.clone()),
            compensation: self.undoes.as_ref().map(|undoing| undoing.1.clone()),
            dry: effect.dry.map(|value| value.to_string()),
        };
        Ok((spec, probe))
    }

    /// The key that the contract gives an effect.
    fn own_key(&self, name: &str, payload: &Value) -> Result<String> {
        let by_contract = self.by_contract(|c| c.effect_key(name, payload, self.context()));
        let Some(key) = by_contract else {
            return Ok(key::derived(self.run_id(), &format!(":{name}")));
        };
        // Two effects of one type are undone by two, which must not be taken for one.
        match &self.undoes {
            Some(undoing) => Ok(key::derived(&key?, &format!(":{}", undoing.0))),
            None => key,
        }
    }

    /// Looks something up in the contract of the command that this run belongs to.
    fn by_contract<T>(&self, look: impl FnOnce(&CommandType) -> T) -> Option<T> {
        let book = self.state::<Book>().ok()?;
        book.0.get(&self.context().command_type).map(look)
    }

    fn retry_of(&self, operation: &str) -> Option<Retry> {
        self.by_contract(|contract| contract.compile_policy(operation).ok())?
    }

    /// A connector, and whether the operation's receiver honours keys; none where it is not in the
    /// scope, which the gate will say.
    fn way_out(
        &self,
        connector: &str,
        operation: &str,
    ) -> Result<(Arc<dyn Connector>, Option<bool>)> {
        let none = || {
            let text = format!("there is no connector \"{connector}\" here");
            Error::invalid("SF-0805", text)
        };
        let connectors = &self.state::<Ways>().map_err(|_| none())?.0;
        let way = connectors.get(connector).ok_or_else(none)?.clone();
        Ok((way, connectors.operation(connector, operation).map(|o| o.keyed)))
    }

    fn traced(&self, request: Outbound) -> Outbound {
        let (trace_id, correlation_id) =
            (self.context().trace_id.clone(), self.context().correlation_id.clone());
        Outbound { trace_id, correlation_id, ..request }
    }
}

fn spec_input(spec: &EffectSpec) -> String {
    match spec.payload.as_str() {
        "null" => Value::from(spec.key.as_str()).to_string(),
        payload => format!("{{\"key\":{},\"payload\":{payload}}}", Value::from(spec.key.as_str())),
    }
}

fn calling(connector: &str, request: &Outbound) -> Result<Calling> {
    Ok(Calling {
        connector: connector.to_owned(),
        operation: request.operation.clone(),
        input: json::encode("the request", &request.input)?,
    })
}

/// Sends, and leaves for the ledger what was really done.
fn send(
    way: Arc<dyn Connector>,
    request: Outbound,
    guard: Arc<Guard>,
) -> BoxFuture<'static, Outcome> {
    Box::pin(async move {
        if !way.scope().iter().any(|operation| operation.is(&request.operation)) {
            return Err(connector::out_of_scope(way.name(), &request.operation));
        }
        let Inbound { output, actual, summary, cost_units } = way.send(&request).await?;
        let said = Said { actual, summary, cost_units };
        *guard.said.lock().expect("invariant: not poisoned") = Some(said);
        json::encode("the connector's answer", &output)
    })
}

fn probing(way: Arc<dyn Connector>, request: Outbound) -> Asks {
    Arc::new(move |key| {
        let (way, request) = (way.clone(), Outbound { key: Some(key), ..request.clone() });
        Box::pin(async move {
            match way.probe(&request).await? {
                Probe::Done(inbound) => {
                    Ok(Some(json::encode("the connector's answer", &inbound.output)))
                }
                Probe::NotDone => Ok(None),
                Probe::CannotTell => {
                    Err(Error::app("the receiver cannot say whether it was done").permanent())
                }
            }
        })
    })
}
