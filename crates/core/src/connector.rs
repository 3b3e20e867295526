//! Connectors: the only way out, each with a scope, as the fabric sees them.
//!
//! Invariants: a connector is asked only for operations of its scope, checked before anything is
//! sent and once more by the connector itself; its errors carry a class, so that what is worth
//! another try is decided in one place; secrets are named, never carried.
//! Deliberately absent: sockets. The `connectors` crate has them.

mod known;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::known::Known;
use crate::error::{Error, ErrorClass, Result};
use crate::key;
use crate::policy::Classes;
use crate::retry::Retry;

/// One thing a connector is meant for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// What it is called in requests, such as `GET /sales/daily` or
    /// `upsert warehouse.sales_daily`. A `{}` in it stands for one part of a path.
    pub name: String,
    /// Whether it changes anything over there: then it is called by an effect only.
    pub mutates: bool,
    /// Whether the receiver honours an idempotency key, so that sending again is safe.
    pub keyed: bool,
    /// How serious it is, where it changes something.
    #[serde(default)]
    pub classes: Option<Classes>,
    /// What a call of it costs, in units; `None` where only the answer says, `Some(0)` where it
    /// is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_units: Option<u64>,
}

impl Operation {
    /// An operation that only reads.
    pub fn read(name: impl Into<String>) -> Self {
        Self { name: name.into(), mutates: false, keyed: false, classes: None, cost_units: None }
    }

    /// An operation that writes.
    pub fn write(name: impl Into<String>) -> Self {
        Self { mutates: true, ..Self::read(name) }
    }

    /// The receiver honours an idempotency key.
    pub fn keyed(mut self) -> Self {
        self.keyed = true;
        self
    }

    /// What a call of it costs. What a unit is worth is for you to say (a cent, a millionth of a
    /// dollar), once for all prices and budgets of a workspace.
    pub fn costs(mut self, units: u64) -> Self {
        self.cost_units = Some(units);
        self
    }

    /// Whether a request's operation is this one.
    pub fn is(&self, asked: &str) -> bool {
        let (mut mine, mut theirs) = (self.name.split('/'), asked.split('/'));
        loop {
            match (mine.next(), theirs.next()) {
                (None, None) => return true,
                (Some("{}"), Some(part)) if !part.is_empty() && part != ".." => {}
                (Some(a), Some(b)) if a == b => {}
                _ => return false,
            }
        }
    }
}

/// What a connector is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outbound {
    /// Which operation of its scope: a method and a path, a verb and a table.
    pub operation: String,
    /// What it needs, in the connector's own form.
    pub input: Value,
    /// The key by which the receiver knows a write, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The trace, to be passed on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace_id: String,
    /// What all that follows from one cause has in common, to be passed on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub correlation_id: String,
}

impl Outbound {
    /// A request.
    pub fn new(operation: impl Into<String>, input: Value) -> Self {
        let (trace_id, correlation_id) = (String::new(), String::new());
        Self { operation: operation.into(), input, key: None, trace_id, correlation_id }
    }

    /// The trace as W3C's header has it, if there is one.
    pub fn traceparent(&self) -> Option<String> {
        let (trace, span) = (&self.trace_id, self.trace_id.get(..16)?);
        Some(format!("00-{trace}-{span}-01"))
    }
}

/// What a connector answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inbound {
    /// The value.
    pub output: Value,
    /// What was really done, in the words of [`Outbound::operation`]: the ledger compares.
    pub actual: String,
    /// A line for people: a status, a number of rows.
    pub summary: String,
    /// What it really cost, in units, where the other side says: budgets count this instead of the
    /// operation's price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_units: Option<u64>,
}

impl Inbound {
    /// An answer, by somebody who does not say what it cost.
    pub fn new(output: Value, actual: impl Into<String>, summary: impl Into<String>) -> Self {
        Self { output, actual: actual.into(), summary: summary.into(), cost_units: None }
    }

    /// What it really cost.
    pub fn costing(mut self, units: impl Into<Option<u64>>) -> Self {
        self.cost_units = units.into();
        self
    }
}

/// A way out.
pub trait Connector: Send + Sync + 'static {
    /// Its name, by which code, grants and policies know it.
    fn name(&self) -> &str;

    /// What it is meant for. Anything else is refused.
    fn scope(&self) -> &[Operation];

    /// Carries a request out, once. Errors have the class that [`classify`] or the connector's own
    /// knowledge gives.
    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>>;

    /// Whether a write of this key has been done, for receivers that can say so. After a crash this
    /// is asked before anything is repeated.
    fn probe<'a>(&'a self, _request: &'a Outbound) -> BoxFuture<'a, Result<Probe>> {
        Box::pin(std::future::ready(Ok(Probe::CannotTell)))
    }

    /// The limits that all workers share.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// How its operations are tried again where the contract does not say.
    fn retry(&self) -> Retry {
        default_retry()
    }
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq)]
pub enum Probe {
    /// It was done, with this answer.
    Done(Inbound),
    /// It was not done.
    NotDone,
    /// The receiver cannot say.
    CannotTell,
}

/// What all workers together may ask of a connector.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Calls in a time.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// When to stop asking for a while.
    #[serde(default)]
    pub breaker: Option<Breaker>,
}

impl Limits {
    /// Refuses limits that let nothing through, or hold nothing back.
    pub fn check(&self, connector: &str) -> Result<()> {
        let wrong = match (self.rate, self.breaker) {
            (Some(rate), _) if rate.calls == 0 => "rate: no calls at all",
            (Some(rate), _) if rate.per.is_zero() => "rate: no time",
            (_, Some(breaker)) if breaker.failures == 0 => "breaker: no failures",
            (_, Some(breaker)) if breaker.cool_down.is_zero() => "breaker: no time to cool down",
            _ => return Ok(()),
        };
        Err(Error::invalid("SF-0805", format!("connector \"{connector}\": {wrong}")))
    }
}

/// A bucket of tokens that fills again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// How many calls.
    pub calls: u32,
    /// In how long.
    pub per: Duration,
}

/// After so many failures in a row nobody asks for a while; then one is let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    /// Failures in a row.
    pub failures: u32,
    /// How long nobody asks.
    pub cool_down: Duration,
}

/// Three attempts, exponential with jitter, at most 60 s of waiting.
pub fn default_retry() -> Retry {
    Retry::exponential(3, Duration::from_secs(2), 4.0).jittered().within(Duration::from_secs(60))
}

/// The class of an HTTP answer that is not a success.
pub fn classify(status: u16) -> ErrorClass {
    match status {
        408 => ErrorClass::Timeout,
        429 => ErrorClass::RateLimited,
        400 | 422 => ErrorClass::ValidationError,
        400..=499 => ErrorClass::PermanentConnectorError,
        _ => ErrorClass::TransientConnectorError,
    }
}

/// The connectors of a process, by name.
#[derive(Clone, Default)]
pub struct Connectors(BTreeMap<String, Arc<dyn Connector>>);

impl fmt::Debug for Connectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Connectors {
    /// Adds a connector. Its scope, limits and retries are read now, once.
    pub fn add(&mut self, connector: Arc<dyn Connector>) -> Result<()> {
        let connector = Known::read(connector)?;
        let name = connector.name().to_owned();
        key::check("connector", &name)?;
        match self.0.insert(name.clone(), Arc::new(connector)) {
            None => Ok(()),
            Some(_) => {
                Err(Error::invalid("SF-0108", format!("two connectors are called \"{name}\"")))
            }
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Connector>> {
        self.0.values()
    }

    /// A connector by its name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Connector>> {
        self.0.get(name)
    }

    /// The operation of a connector's scope that a request asks for.
    pub fn operation(&self, connector: &str, asked: &str) -> Option<&Operation> {
        self.0.get(connector)?.scope().iter().find(|operation| operation.is(asked))
    }
}

/// The connectors as workflow code is given them: it can name them, and only the host opens it.
/// Otherwise any step could send by them, past the gate and the ledger.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct Ways(pub(crate) Connectors);

impl Ways {
    /// Closes them up.
    pub fn new(connectors: Connectors) -> Self {
        Self(connectors)
    }
}

/// The refusal of an operation that is not in a connector's scope.
pub fn out_of_scope(connector: &str, operation: &str) -> Error {
    let text = format!("connector \"{connector}\" is not meant for \"{operation}\"");
    Error::new(ErrorClass::PolicyDenied, "SF-0806", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R45, R117, R118
    #[test]
    fn r045_answers_are_classified() {
        for (status, class) in [
            (500, ErrorClass::TransientConnectorError),
            (503, ErrorClass::TransientConnectorError),
            (400, ErrorClass::ValidationError),
            (422, ErrorClass::ValidationError),
            (401, ErrorClass::PermanentConnectorError),
            (403, ErrorClass::PermanentConnectorError),
            (404, ErrorClass::PermanentConnectorError),
            (402, ErrorClass::PermanentConnectorError),
            (409, ErrorClass::PermanentConnectorError),
            (410, ErrorClass::PermanentConnectorError),
            (429, ErrorClass::RateLimited),
            (408, ErrorClass::Timeout),
        ] {
            assert_eq!(classify(status), class, "{status}");
        }
    }

    /// R14
    #[test]
    fn r014_a_scope_is_exact() {
        let daily = Operation::read("GET /sales/daily");
        assert!(daily.is("GET /sales/daily"));
        for other in ["POST /sales/daily", "GET /sales", "GET /sales/daily/1", "get /sales/daily"] {
            assert!(!daily.is(other), "{other}");
        }
        let one = Operation::read("GET /deals/{}");
        assert!(one.is("GET /deals/7"));
        assert!(!one.is("GET /deals/"));
        assert!(!one.is("GET /deals/.."));
        assert!(!one.is("GET /deals/7/notes"));
    }

    /// R116
    #[test]
    fn r116_the_default_waits_at_most_a_minute() {
        let retry = default_retry();
        let failed = Error::new(ErrorClass::Timeout, "SF-0001", "no answer");
        assert_eq!(retry.max_attempts(), 3);
        let waits: Vec<_> = (1..=3).map_while(|n| retry.wait_after(n, &failed)).collect();
        assert_eq!(waits.len(), 2);
        assert!(waits.iter().sum::<Duration>() <= Duration::from_secs(60));
    }
}
