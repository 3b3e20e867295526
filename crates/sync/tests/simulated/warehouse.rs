//! The warehouse: partitions, what is known of them, and keys, in one transaction; sometimes down,
//! and sometimes silent after the commit.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::{Value, json};
use steadfast::connector::{Connector, Inbound, Operation, Outbound, Probe};
use steadfast::{Error, ErrorClass, Result};
use steadfast_testkit::sim::Rng;

thread_local! {
    /// Whether keys are forgotten, to show that the test sees it.
    pub(crate) static FORGETS: Cell<bool> = const { Cell::new(false) };
}

/// The warehouse. Cloning it gives the same one.
#[derive(Clone)]
pub(crate) struct Warehouse {
    state: Arc<Mutex<State>>,
    scope: Arc<Vec<Operation>>,
}

struct State {
    rng: Rng,
    /// By day: the rows, and what they come to.
    partitions: BTreeMap<String, (u64, String)>,
    /// What is known, by day.
    known: BTreeMap<String, Value>,
    keys: BTreeMap<String, Inbound>,
    /// Loads that were committed, by day.
    commits: BTreeMap<String, u32>,
    /// Calls since the last one that was answered, by day.
    unanswered: BTreeMap<String, u32>,
}

impl Warehouse {
    pub(crate) fn new(seed: u64) -> Self {
        let scope = vec![
            Operation::write("load warehouse.sales_daily").keyed(),
            Operation::read("select warehouse.vendor_sync_state"),
        ];
        let state = State {
            rng: Rng::new(seed ^ 0x3a7e),
            partitions: BTreeMap::new(),
            known: BTreeMap::new(),
            keys: BTreeMap::new(),
            commits: BTreeMap::new(),
            unanswered: BTreeMap::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), scope: Arc::new(scope) }
    }

    pub(crate) fn partition(&self, date: &str) -> Option<(u64, String)> {
        self.state.lock().unwrap().partitions.get(date).cloned()
    }

    pub(crate) fn known(&self, date: &str) -> Option<Value> {
        self.state.lock().unwrap().known.get(date).cloned()
    }

    pub(crate) fn commits(&self, date: &str) -> u32 {
        self.state.lock().unwrap().commits.get(date).copied().unwrap_or(0)
    }

    /// How many calls for a day got no answer in the end, one after another.
    pub(crate) fn unanswered(&self, date: &str) -> u32 {
        self.state.lock().unwrap().unanswered.get(date).copied().unwrap_or(0)
    }

    fn answer(&self, request: &Outbound) -> Result<Inbound> {
        let mut state = self.state.lock().unwrap();
        let answer = state.answer(request);
        let count = state.unanswered.entry(date_of(&request.input)).or_default();
        *count = if answer.is_ok() { 0 } else { *count + 1 };
        answer
    }
}

/// The day that a call is for.
fn date_of(input: &Value) -> String {
    let days = ["partition", "where", "up_to"].map(|part| input[part]["target_date"].as_str());
    days.into_iter().flatten().next().unwrap().to_owned()
}

impl State {
    fn answer(&mut self, request: &Outbound) -> Result<Inbound> {
        let down = |why: &str| Err(Error::new(ErrorClass::TransientConnectorError, "SF-0722", why));
        if self.rng.below(100) < 4 {
            return down("the database cannot be reached");
        }
        if request.operation.starts_with("select") {
            return Ok(select(self, request));
        }
        let answer = self.load(request);
        if self.rng.below(100) < 4 {
            return down("the connection was cut after the commit");
        }
        Ok(answer)
    }

    fn load(&mut self, request: &Outbound) -> Inbound {
        let key = request.key.clone().unwrap();
        if let Some(known) = self.keys.get(&key).filter(|_| !FORGETS.get()) {
            return known.clone();
        }
        let input = &request.input;
        let date = input["partition"]["target_date"].as_str().unwrap().to_owned();
        let pages = input["pages"].as_array().unwrap();
        let rows = pages.iter().map(|page| page["rows"].as_u64().unwrap()).sum();
        let total = input["expect"]["sum"]["is"].as_str().unwrap().to_owned();
        self.partitions.insert(date.clone(), (rows, total));
        self.known.insert(date.clone(), input["also"]["row"].clone());
        *self.commits.entry(date).or_default() += 1;
        let output = json!({ "written": rows });
        let answer = Inbound::new(output, &request.operation, format!("{rows} rows"));
        self.keys.insert(key, answer.clone());
        answer
    }
}

fn select(state: &State, request: &Outbound) -> Inbound {
    let input = &request.input;
    let own = input["where"]["target_date"].as_str();
    let most = input["up_to"]["target_date"].as_str();
    let found = match (own, most) {
        (Some(date), _) => state.known.get(date),
        (None, Some(most)) => state.known.range(..=most.to_owned()).next_back().map(|(_, row)| row),
        (None, None) => None,
    };
    let rows: Vec<_> = found.into_iter().cloned().collect();
    Inbound::new(json!({ "rows": rows, "more": false }), &request.operation, "")
}

impl Connector for Warehouse {
    fn name(&self) -> &str {
        "warehouse"
    }

    fn scope(&self) -> &[Operation] {
        &self.scope
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        Box::pin(async move { self.answer(request) })
    }

    fn probe<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Probe>> {
        let state = self.state.lock().unwrap();
        let known = state.keys.get(request.key.as_deref().unwrap_or_default()).cloned();
        Box::pin(std::future::ready(Ok(known.map_or(Probe::NotDone, Probe::Done))))
    }
}
