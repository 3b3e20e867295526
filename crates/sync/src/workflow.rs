//! `sync_vendor_sales`: fetch, hash, compare, load, confirm.
//!
//! Invariants: nothing is written where the snapshot is the one that was loaded last; the load and
//! what is known of it are one transaction of the warehouse, so the confirmation can only find both
//! or neither; pages that were lost on the way are fetched again; a run that comes to a worker
//! without its vendor waits for another one. Deterministic: whatever differs from one execution to
//! the next is a recorded step.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use steadfast::connector::Outbound;
use steadfast::schemars::{self, JsonSchema};
use steadfast::{Call, Cx, Effect, Error, ErrorClass, Result};
use steadfast_connectors::spool;

use crate::config::{Operation, Vendor};
use crate::job::{Job, Jobs};
use crate::snapshot::{Page, Snapshot, is_stale};
use crate::vendor;

/// The queue under whose limits connectors are called.
pub const QUEUE: &str = "connector_calls";
/// The connector of the warehouse.
pub const WAREHOUSE: &str = "warehouse";
/// The one effect.
pub const EFFECT: &str = "warehouse_partition.write";
/// Most pages of a snapshot: the load names them all.
const PAGES: u64 = 15_000;
/// How often a snapshot that changes while it is fetched, or is lost on the way, is begun again.
const BEGINNINGS: u32 = 3;
/// How often a worker that has the vendor is looked for at first: whoever looks takes the run, so
/// with several workers it goes to the right one within a few looks.
const LOOK: Duration = Duration::from_secs(15);
/// For how long it is looked so often: the night is still in time then.
const SOON: Duration = Duration::from_secs(300);
/// How often after that.
const LATER_LOOK: Duration = Duration::from_secs(300);
/// When it is given up: by then the next night is due.
const GIVEN_UP: Duration = Duration::from_secs(86_400);

/// What is asked for: one vendor, one day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Whose sales.
    pub vendor_name: String,
    /// Of which day, as `2026-06-01`.
    pub target_date: String,
    /// Where they are asked for.
    pub vendor_base_url: String,
    /// Whether they are loaded although nothing has changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Loaded or stale.
    pub outcome: Outcome,
    /// Rows of the snapshot.
    pub rows: u64,
    /// What they come to, where a column is summed.
    pub total: String,
    /// Requests that had an answer worth reading.
    pub pages: u64,
    /// The snapshot's hash.
    pub hash: String,
}

/// The two good ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The partition holds the snapshot.
    Loaded,
    /// The snapshot is the one that was loaded last; nothing was written.
    Stale,
}

/// Carries an order out.
pub async fn sync_vendor_sales(cx: Cx, order: Order) -> Result<Report> {
    let jobs = cx.state::<Jobs>()?;
    let sync = Sync { job: section(&cx, &jobs, &order).await?, cx, order };
    let mut beginning = 1;
    loop {
        let snapshot = sync.fetch().await?;
        let hash = sync.hash(&snapshot)?;
        if sync.is_known(&snapshot, &hash).await? {
            return sync.skip(&snapshot, hash).await;
        }
        match sync.load(&snapshot, &hash).await {
            Ok(()) => {
                sync.confirm(&hash).await?;
                return Ok(report(Outcome::Loaded, &snapshot, hash));
            }
            // Another machine fetched it, or somebody tidied up.
            Err(lost) if lost.code() == spool::GONE && beginning < BEGINNINGS => beginning += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The vendor's section of the file. Files differ while a new one is brought out: a run that comes
/// to a worker without the vendor waits for one that has it.
async fn section(cx: &Cx, jobs: &Jobs, order: &Order) -> Result<Job> {
    let begun = cx.now();
    let mut told = false;
    while !cx.compute("vendor.found", || jobs.of(order).is_some())? {
        if !told {
            let why = jobs.why_not(order).message().to_owned();
            cx.audit("vendor.awaited", about(order, json!({ "why": why }))).await?;
            told = true;
        }
        let waited = begun.until(cx.now());
        if waited >= GIVEN_UP {
            return Err(jobs.why_not(order));
        }
        cx.sleep(if waited < SOON { LOOK } else { LATER_LOOK }).await?;
    }
    match jobs.of(order) {
        Some(job) => Ok(job),
        // A worker that had it is gone, and what was recorded there cannot be gone through here.
        // From the beginning, then: the load has the command's key, so it is done once even so.
        None => cx.continue_as_new(order).await,
    }
}

fn about(order: &Order, more: Value) -> Value {
    let mut about = json!({ "vendor_name": order.vendor_name, "target_date": order.target_date });
    if let (Some(about), Value::Object(more)) = (about.as_object_mut(), more) {
        about.extend(more);
    }
    about
}

fn report(outcome: Outcome, snapshot: &Snapshot, hash: String) -> Report {
    let (rows, total) = (snapshot.rows, snapshot.sum.to_string());
    Report { outcome, rows, total, pages: snapshot.pages.len() as u64, hash }
}

struct Sync {
    cx: Cx,
    job: Job,
    order: Order,
}

impl Sync {
    fn vendor(&self) -> &Vendor {
        &self.job.vendor
    }

    fn signal(&self, snapshot: &Snapshot) -> String {
        snapshot.signal(self.vendor().staleness, &self.job.mapping())
    }

    /// All pages of one snapshot.
    async fn fetch(&self) -> Result<Snapshot> {
        for _ in 0..BEGINNINGS {
            self.cx.emit("vendor.fetch.started", self.about(json!({}))).await?;
            let Some(snapshot) = self.pages().await? else {
                continue;
            };
            snapshot.check(self.vendor().totals.tolerance)?;
            let about = json!({
                "rows": snapshot.rows, "pages": snapshot.pages.len(),
                "total": snapshot.sum.to_string(),
            });
            self.cx.emit("vendor.fetch.succeeded", self.about(about)).await?;
            if !snapshot.drift.is_empty() {
                let about = self.about(json!({ "differs": snapshot.drift }));
                self.cx.audit("vendor.schema_drift", about).await?;
            }
            return Ok(snapshot);
        }
        let text = "the vendor changes the snapshot faster than it can be fetched";
        Err(Error::new(ErrorClass::ValidationError, "SF-1004", text))
    }

    /// None if the vendor has changed the snapshot between two pages.
    async fn pages(&self) -> Result<Option<Snapshot>> {
        let first = self.page(1, None).await?;
        let mut cursor = first.next.clone();
        let mut snapshot = Snapshot::of(first);
        let (mut number, mut seen) = (1, BTreeSet::new());
        while let Some(at) = cursor {
            number += 1;
            let endless = |why: &str| {
                let text = format!("the pages do not end: {why} after {number} pages");
                Err(Error::invalid("SF-1006", text))
            };
            if number > PAGES {
                return endless("the next one is still named");
            }
            if !seen.insert(at.clone()) {
                return endless("one is named that was fetched before");
            }
            let page = self.page(number, Some(&at)).await?;
            if snapshot.reported_rows.is_some_and(|all| snapshot.rows + page.rows > all) {
                return endless("there are more rows than the vendor says");
            }
            cursor = page.next.clone();
            if !snapshot.add(page) {
                return Ok(None);
            }
        }
        Ok(Some(snapshot))
    }

    fn page(&self, number: u64, cursor: Option<&str>) -> Call<Page> {
        let vendor = self.vendor();
        let request = vendor::request(vendor, &self.order.target_date, number, cursor);
        let name = Operation::FetchVendorSnapshot.as_str();
        let call = self.cx.call(name, vendor.name.as_str(), request);
        call.queue(QUEUE).retried_as("vendor.fetch.retried")
    }

    fn hash(&self, snapshot: &Snapshot) -> Result<String> {
        let made = self.cx.compute("compute_snapshot_hash", || snapshot.hash().ok())?;
        made.ok_or_else(|| Error::invalid("SF-1001", "the snapshot's name cannot be hashed"))
    }

    /// Whether the snapshot is the one that this day, or else the last day before it, holds, and
    /// nobody insists on it.
    async fn is_known(&self, snapshot: &Snapshot, hash: &str) -> Result<bool> {
        let signal = self.signal(snapshot);
        let about = json!({ "hash": hash, "signal": signal });
        self.cx.audit("snapshot.hashed", self.about(about.clone())).await?;
        let asked = json!({
            "where": self.job.owner(&self.order), "key": ["target_date"], "last_first": true,
            "up_to": { "target_date": self.order.target_date }, "limit": 1,
        });
        let found: Value = self.select(Operation::LoadLastHash, asked).await?;
        let last = &found["rows"][0];
        let same_signal = is_stale(&signal, last["signal"].as_str());
        let stale = is_stale(hash, last["content_hash"].as_str()) && same_signal;
        match (stale, self.order.force) {
            (true, false) => {}
            (true, true) => self.cx.audit("snapshot.load_forced", self.about(about)).await?,
            (false, _) => self.cx.audit("snapshot.fresh_detected", self.about(about)).await?,
        }
        Ok(stale && !self.order.force)
    }

    /// The skip is on record like everything else that was decided.
    async fn skip(&self, snapshot: &Snapshot, hash: String) -> Result<Report> {
        let skipped = self.cx.compute("record_skipped", || hash.clone())?;
        self.cx.audit("snapshot.stale_detected", self.about(json!({ "hash": skipped }))).await?;
        Ok(report(Outcome::Stale, snapshot, hash))
    }

    async fn load(&self, snapshot: &Snapshot, hash: &str) -> Result<()> {
        self.cx.audit("warehouse.upsert.started", self.about(json!({ "hash": hash }))).await?;
        // Its payload says what is written, not by which pages: a snapshot that had to be fetched
        // again is the same effect.
        let effect = Effect::of(EFFECT)
            .step(Operation::UpsertWarehousePartition.as_str())
            .payload(self.job.partition(&self.order));
        let request = self.load_request(snapshot, hash);
        let load = self.cx.effect_via(effect, WAREHOUSE, request).queue(QUEUE);
        let loaded: Value = load.retried_as("warehouse.upsert.retried").await?;
        self.cx.audit("warehouse.upsert.succeeded", self.about(loaded)).await
    }

    fn load_request(&self, snapshot: &Snapshot, hash: &str) -> Outbound {
        let vendor = self.vendor();
        let page = |(name, rows): &(String, u64)| json!({ "name": name, "rows": rows });
        let partition = self.job.partition(&self.order);
        let mut expect = json!({ "rows": snapshot.rows });
        if let Some(column) = &vendor.totals.column {
            let is = snapshot.reported_sum.unwrap_or(snapshot.sum);
            let within = vendor.totals.tolerance;
            expect["sum"] = json!({ "column": column.as_str(), "is": is, "within": within });
        }
        let mut row: Map<String, Value> = partition.clone();
        for (name, value) in [
            ("content_hash", json!(hash)),
            ("snapshot_id", json!(snapshot.snapshot_id.to_string())),
            ("signal", json!(self.signal(snapshot))),
            ("row_count", json!(snapshot.rows)),
            ("command_key", json!(self.cx.context().idempotency_key)),
        ] {
            row.insert(name.to_owned(), value);
        }
        let own: Vec<&str> = vendor
            .fields
            .iter()
            .filter(|(_, f)| f.key)
            .map(|(column, _)| column.as_str())
            .collect();
        let of_partition: Vec<&str> = partition.keys().map(String::as_str).collect();
        let key = [of_partition.clone(), own].concat();
        let input = json!({
            "partition": partition,
            "key": key,
            "columns": snapshot.columns,
            "pages": snapshot.pages.iter().map(page).collect::<Vec<_>>(),
            "expect": expect,
            "also": { "upsert": self.job.state_table.as_str(), "key": of_partition, "row": row },
        });
        Outbound::new(format!("load {}", self.job.table), input)
    }

    /// Reads back what the load has left, and does not believe it otherwise.
    async fn confirm(&self, hash: &str) -> Result<()> {
        let asked = json!({ "where": self.job.partition(&self.order), "limit": 1 });
        let found: Value = self.select(Operation::RecordHash, asked).await?;
        match found["rows"][0]["content_hash"].as_str() == Some(hash) {
            true => Ok(()),
            false => Err(Error::invalid(
                "SF-1005",
                "the warehouse does not hold what was loaded; somebody else has written to it",
            )),
        }
    }

    fn select(&self, operation: Operation, asked: Value) -> Call<Value> {
        let request = Outbound::new(format!("select {}", self.job.state_table), asked);
        let call = self.cx.call(operation.as_str(), WAREHOUSE, request).queue(QUEUE);
        call.retried_as("warehouse.select.retried")
    }

    fn about(&self, more: Value) -> Value {
        about(&self.order, more)
    }
}
