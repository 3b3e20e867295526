//! The vendor: two pages a night, and a script of troubles drawn from the seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::json;
use steadfast::connector::{Connector, Inbound, Operation, Outbound, classify};
use steadfast::{Error, ErrorClass, Result, Timestamp};
use steadfast_sync::Decimal;
use steadfast_sync::snapshot::Page;
use steadfast_testkit::faults::Faults;
use steadfast_testkit::sim::Rng;

/// The first day: the one before virtual time begins, which the first night asks for.
const FIRST: Timestamp = Timestamp::from_micros(1_767_139_200_000_000);

/// What became of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) page: u64,
    pub(crate) status: u16,
    /// How many faults had happened before it.
    pub(crate) faults: u64,
}

/// The vendor. Cloning it gives the same one.
#[derive(Clone)]
pub(crate) struct Vendor {
    state: Arc<Mutex<State>>,
    faults: Arc<Faults>,
    scope: Arc<Vec<Operation>>,
}

struct State {
    /// Statuses to answer with, by day, before the pages.
    script: BTreeMap<String, VecDeque<u16>>,
    /// The day whose snapshot a day has: its own, unless it is stale.
    source: BTreeMap<String, String>,
    log: BTreeMap<String, Vec<Seen>>,
}

impl Vendor {
    pub(crate) fn new(seed: u64, nights: u64, faults: Arc<Faults>) -> Self {
        let rng = Rng::new(seed ^ 0x7e4d);
        let (mut script, mut source) = (BTreeMap::new(), BTreeMap::new());
        let mut before: Option<String> = None;
        for night in 0..nights {
            let date = FIRST.utc_date(i64::try_from(night).unwrap());
            let answers: Vec<u16> = match rng.below(100) {
                0..12 => vec![503; usize::try_from(rng.below(5)).unwrap()],
                12..18 => vec![429],
                18..22 => vec![400],
                22..26 => vec![401],
                26..32 => vec![0],
                32..36 => vec![500, 0, 429],
                _ => vec![],
            };
            let stale = rng.below(100) < 12;
            let of = before.clone().filter(|_| stale).unwrap_or_else(|| date.clone());
            script.insert(date.clone(), answers.into());
            source.insert(date.clone(), of.clone());
            before = Some(of);
        }
        let state = State { script, source, log: BTreeMap::new() };
        let scope = vec![Operation::read("GET /sales/daily")];
        Self { state: Arc::new(Mutex::new(state)), faults, scope: Arc::new(scope) }
    }

    pub(crate) fn dates(&self) -> Vec<String> {
        self.state.lock().unwrap().source.keys().cloned().collect()
    }

    pub(crate) fn seen(&self, date: &str) -> Vec<Seen> {
        self.state.lock().unwrap().log.get(date).cloned().unwrap_or_default()
    }

    /// The snapshot's name, its rows and what they come to.
    pub(crate) fn day(&self, date: &str) -> (String, u64, Decimal) {
        let source = self.state.lock().unwrap().source.get(date).cloned();
        let source = source.unwrap_or_else(|| panic!("no such day: {date}"));
        let rows = 10 + u64::from(source.bytes().last().unwrap());
        (format!("snap-{source}"), rows, format!("{rows}.50").parse().unwrap())
    }

    fn answer(&self, request: &Outbound) -> Result<Inbound> {
        let date = request.input["target_date"].as_str().unwrap().to_owned();
        let page = request.input["page"].as_u64().unwrap();
        let status = {
            let mut state = self.state.lock().unwrap();
            let next = state.script.get_mut(&date).and_then(VecDeque::pop_front);
            let (status, faults) = (next.unwrap_or(200), self.faults.placed());
            let seen = Seen { page, status, faults };
            state.log.entry(date.clone()).or_default().push(seen);
            status
        };
        match status {
            200 => {}
            0 => return Err(Error::new(ErrorClass::Timeout, "SF-0714", "no answer")),
            other => return Err(Error::new(classify(other), "SF-0714", other.to_string())),
        }
        let (name, rows, sum) = self.day(&date);
        let (here, next) = if page == 1 { (rows - 3, Some("2".to_owned())) } else { (3, None) };
        let output = Page {
            name: format!("{name}-{page}"),
            rows: here,
            sum: if page == 1 { sum } else { Decimal::default() },
            snapshot_id: json!(name),
            next,
            reported_rows: Some(rows),
            reported_sum: Some(sum),
            columns: vec!["revenue".to_owned(), "sku".to_owned()],
            drift: BTreeSet::new(),
        };
        let output = serde_json::to_value(output).unwrap();
        Ok(Inbound::new(output, &request.operation, "200"))
    }
}

impl Connector for Vendor {
    fn name(&self) -> &str {
        "acme_sales"
    }

    fn scope(&self) -> &[Operation] {
        &self.scope
    }

    fn send<'a>(&'a self, request: &'a Outbound) -> BoxFuture<'a, Result<Inbound>> {
        Box::pin(async move { self.answer(request) })
    }
}
