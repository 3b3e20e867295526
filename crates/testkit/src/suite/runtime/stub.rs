//! A connector that answers as it is told, and remembers what it was asked: for faults and counts.
//! What really leaves a process is tested with real servers, elsewhere.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::json;
use steadfast::connector::{Connector, Inbound, Limits, Operation, Outbound, Probe};
use steadfast::{Result, Retry};

/// What the stub says next; when it has nothing to say, it says yes.
type Script = VecDeque<Result<()>>;

/// A connector under a test's control.
#[derive(Clone)]
pub(super) struct Stub {
    name: &'static str,
    scope: Arc<Vec<Operation>>,
    limits: Limits,
    /// What was sent.
    sent: Arc<Mutex<Vec<Outbound>>>,
    script: Arc<Mutex<Script>>,
    /// What it says it did, where that is not what it was asked.
    lies: Option<&'static str>,
    /// What it says that a call cost.
    bill: Option<u64>,
    /// What it says when it is asked whether something was done; then, that it cannot tell.
    memory: Arc<Mutex<VecDeque<Result<Probe>>>>,
    /// How long it takes to answer.
    takes: Duration,
}

impl Stub {
    pub(super) fn new(name: &'static str, scope: impl IntoIterator<Item = Operation>) -> Self {
        Self {
            name,
            scope: Arc::new(scope.into_iter().collect()),
            limits: Limits::default(),
            sent: Arc::default(),
            script: Arc::default(),
            lies: None,
            bill: None,
            memory: Arc::default(),
            takes: Duration::ZERO,
        }
    }

    pub(super) fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    pub(super) fn lying(mut self, actual: &'static str) -> Self {
        self.lies = Some(actual);
        self
    }

    pub(super) fn billing(mut self, units: u64) -> Self {
        self.bill = Some(units);
        self
    }

    pub(super) fn slow(mut self, takes: Duration) -> Self {
        self.takes = takes;
        self
    }

    pub(super) fn remembers(&self, answers: impl IntoIterator<Item = Result<Probe>>) {
        self.memory.lock().unwrap().extend(answers);
    }

    pub(super) fn answers(&self, answers: impl IntoIterator<Item = Result<()>>) {
        self.script.lock().unwrap().extend(answers);
    }

    /// What was sent, in order.
    pub(super) fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap().iter().map(|request| request.operation.clone()).collect()
    }

    /// The keys that were sent, in order.
    pub(super) fn keys(&self) -> Vec<String> {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter_map(|request| request.key.clone()).collect()
    }
}

impl Connector for Stub {
    fn name(&self) -> &str {
        self.name
    }

    fn scope(&self) -> &[Operation] {
        &self.scope
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        Box::pin(async move {
            self.sent.lock().unwrap().push(request.clone());
            tokio::time::sleep(self.takes).await;
            let said = self.script.lock().unwrap().pop_front().unwrap_or(Ok(()));
            said?;
            let actual = self.lies.unwrap_or(&request.operation).to_owned();
            Ok(Inbound::new(json!({ "ok": true }), actual, "200").costing(self.bill))
        })
    }

    fn probe<'a>(&'a self, _: &'a Outbound) -> BoxFuture<'a, Result<Probe>> {
        let known = self.memory.lock().unwrap().pop_front();
        Box::pin(std::future::ready(known.unwrap_or(Ok(Probe::CannotTell))))
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn retry(&self) -> Retry {
        Retry::none()
    }
}
