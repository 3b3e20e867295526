//! The file: `steadfast.toml`, as data.
//!
//! Invariants: what is read has been checked, each value where it stands, so that whoever made a
//! mistake is told the file, the line and what was meant; unknown keys are mistakes; secrets are
//! named, never written down.
//! Deliberately absent: defaults that send something somewhere.

mod check;
mod problem;
mod values;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use steadfast::{Misfire, RetryPolicy};
use steadfast_connectors::secret::SecretRef;
use steadfast_core::decimal::Decimal;

pub use problem::Problem;
pub use values::{BaseUrl, Cron, Days, Kind, Name, Pointer, RoutePath, SecretName, Table, Zone};

/// All of it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where commands, runs and events are.
    pub store: StoreSection,
    /// Where the sales go.
    pub warehouse: WarehouseSection,
    /// When.
    #[serde(default)]
    pub schedule: ScheduleSection,
    /// Retries by operation, in place of the standard ones.
    #[serde(default)]
    pub retry: BTreeMap<Operation, RetryPolicy>,
    /// Who may do what, and how much of it.
    #[serde(default)]
    pub policy: PolicySection,
    /// Who is told when something is wrong.
    #[serde(default)]
    pub alerts: AlertsSection,
    /// From whom.
    #[serde(rename = "vendor")]
    pub vendors: Vec<Vendor>,
}

/// An operation of the workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A page of the vendor's answer.
    FetchVendorSnapshot,
    /// What is known of the last load.
    LoadLastHash,
    /// The load.
    UpsertWarehousePartition,
    /// The confirmation.
    RecordHash,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::FetchVendorSnapshot,
        Self::LoadLastHash,
        Self::UpsertWarehousePartition,
        Self::RecordHash,
    ];

    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FetchVendorSnapshot => "fetch_vendor_snapshot",
            Self::LoadLastHash => "load_last_hash",
            Self::UpsertWarehousePartition => "upsert_warehouse_partition",
            Self::RecordHash => "record_hash",
        }
    }
}

/// `[store]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    /// `sqlite://file`, `postgres://…` or `mysql://…`; or `env:NAME` or `file:/path` where it is a
    /// secret.
    pub url: String,
    /// The tenant, where there are several.
    #[serde(default = "default_workspace")]
    pub workspace: Name,
    /// Whose vendors these are: workers with another file in the same workspace have another. A
    /// start removes the schedules of vendors that its own group no longer has.
    #[serde(default = "default_group")]
    pub group: Name,
    /// Where pages wait on their way to the warehouse.
    #[serde(default = "default_spool")]
    pub spool: PathBuf,
}

impl StoreSection {
    /// The URL, from where it is kept.
    pub fn address(&self) -> steadfast::Result<String> {
        match SecretRef::is_meant(&self.url) {
            true => Ok(SecretRef::parse(&self.url)?.read()?.reveal().to_owned()),
            false => Ok(self.url.clone()),
        }
    }
}

fn default_workspace() -> Name {
    Name::trusted("default")
}

fn default_group() -> Name {
    Name::trusted("sync_vendor_sales")
}

fn default_spool() -> PathBuf {
    std::env::temp_dir().join("steadfast-spool")
}

/// `[warehouse]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarehouseSection {
    /// `postgres://…`, `mysql://…` or `sqlite:///path` without a password, or `env:NAME`.
    pub url: String,
    /// Where the password is.
    #[serde(default)]
    pub password: Option<SecretName>,
    /// Where the rows go.
    #[serde(default = "default_table")]
    pub table: Table,
    /// Where it is kept what was loaded.
    #[serde(default = "default_state")]
    pub state_table: Table,
    /// The column that tells tenants apart; needed where the workspace is not the default.
    #[serde(default)]
    pub tenant_column: Option<Name>,
    /// Longest time of one load.
    #[serde(default = "ten_minutes")]
    pub timeout_seconds: u64,
}

fn default_table() -> Table {
    Table::trusted("warehouse.sales_daily")
}

fn default_state() -> Table {
    Table::trusted("warehouse.vendor_sync_state")
}

fn ten_minutes() -> u64 {
    600
}

/// `[schedule]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSection {
    /// When it fires: the day before is what is asked for.
    pub cron: Cron,
    /// Whose clock.
    pub zone: Zone,
    /// Minutes after the fire by which it must be done to be in time.
    pub late_after_minutes: u64,
    /// What becomes of nights that passed while nobody could fire them.
    pub misfire: Misfire,
}

impl Default for ScheduleSection {
    fn default() -> Self {
        Self {
            cron: Cron::trusted("0 3 * * *"),
            zone: Zone::trusted("UTC"),
            late_after_minutes: 5,
            misfire: Misfire::Skip,
        }
    }
}

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicySection {
    /// What principals may do. `*` at the end stands for whatever follows.
    pub grants: BTreeMap<String, Vec<String>>,
    /// Calls of connectors that one command may make before people are asked.
    pub calls_per_command: Option<u32>,
    /// Attempts after the first that one command may make, of all its operations together, before
    /// people are asked.
    pub retries_per_command: Option<u32>,
    /// Days that audit rows are kept, 90 at least.
    pub audit_days: Days<90>,
    /// Days that other events are kept.
    pub event_days: Days<1>,
}

impl Default for PolicySection {
    fn default() -> Self {
        let all = || vec!["warehouse.write/*".to_owned(), "connector.*".to_owned()];
        let who = ["system:scheduler", "user:*"];
        Self {
            grants: who.map(|who| (who.to_owned(), all())).into(),
            calls_per_command: None,
            retries_per_command: None,
            audit_days: Days(90),
            event_days: Days(30),
        }
    }
}

/// `[alerts]`
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlertsSection {
    /// Somebody's pager.
    pub pagerduty: Option<Pager>,
    /// The address of a chat's incoming webhook.
    pub slack: Option<SecretName>,
}

/// A pager.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pager {
    /// Where the key of the integration is.
    pub routing_key: SecretName,
    /// Something else that speaks PagerDuty's Events API, version 2.
    #[serde(default)]
    pub url: Option<String>,
}

/// `[[vendor]]`
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vendor {
    /// Its name, in keys, partitions and events.
    pub name: Name,
    /// What lies before every path.
    pub base_url: BaseUrl,
    /// Where a day's sales are.
    #[serde(default = "default_path")]
    pub path: RoutePath,
    /// What is asked for; `{target_date}` stands for the day.
    #[serde(default = "default_query")]
    pub query: BTreeMap<String, String>,
    /// Lets it be on this machine or in a private network.
    #[serde(default)]
    pub allow_private: bool,
    /// Seconds that one request may take.
    #[serde(default = "half_a_minute")]
    pub timeout_seconds: u64,
    /// The largest page, in MiB: it is held in memory.
    #[serde(default = "sixteen")]
    pub page_mib: usize,
    /// How one is let in.
    #[serde(default)]
    pub auth: Option<Auth>,
    /// How often all workers together may ask.
    #[serde(default)]
    pub rate: RateSection,
    /// How an answer is cut into pages.
    #[serde(default)]
    pub pagination: Pagination,
    /// Where in an answer the rows are.
    #[serde(default = "default_rows")]
    pub rows: Pointer,
    /// Where in an answer the vendor's name for the snapshot is.
    #[serde(default = "default_snapshot")]
    pub snapshot_id: Pointer,
    /// Where in an answer the day is, to be compared with what was asked for.
    #[serde(default)]
    pub date: Option<Pointer>,
    /// What must be the same for a snapshot to be the last one's.
    #[serde(default)]
    pub staleness: Staleness,
    /// What the vendor says the rows come to.
    #[serde(default)]
    pub totals: Totals,
    /// The warehouse's columns, and where in a row their values are.
    pub fields: BTreeMap<Name, Field>,
    /// What to do when the vendor's rows change.
    #[serde(default)]
    pub drift: Drift,
}

fn default_path() -> RoutePath {
    RoutePath::trusted("/sales/daily")
}

fn default_query() -> BTreeMap<String, String> {
    BTreeMap::from([("date".to_owned(), "{target_date}".to_owned())])
}

fn half_a_minute() -> u64 {
    30
}

fn sixteen() -> usize {
    16
}

fn default_rows() -> Pointer {
    Pointer::trusted("rows")
}

fn default_snapshot() -> Pointer {
    Pointer::trusted("latest_snapshot_id")
}

/// A secret in a header.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// The header.
    #[serde(default = "authorization")]
    pub header: String,
    /// Where the secret is.
    pub secret: SecretName,
    /// What is sent, `{}` standing for the secret.
    #[serde(default = "bearer")]
    pub form: String,
}

fn authorization() -> String {
    "authorization".to_owned()
}

fn bearer() -> String {
    "Bearer {}".to_owned()
}

/// How often one may ask.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateSection {
    /// How many calls.
    pub calls: u32,
    /// In how long.
    pub per_seconds: u64,
}

impl Default for RateSection {
    fn default() -> Self {
        Self { calls: 600, per_seconds: 60 }
    }
}

/// How an answer is cut into pages.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, tag = "style", rename_all = "snake_case")]
pub enum Pagination {
    /// It is not.
    #[default]
    None,
    /// Each page says how the next one is asked for.
    Cursor {
        /// The parameter.
        param: String,
        /// Where in a page the next cursor is; none, null or empty on the last one.
        next: Pointer,
    },
    /// Pages are numbered from 1; one without rows is the end.
    Page {
        /// The parameter.
        param: String,
    },
}

/// What must be the same for a snapshot to be the last one's: nothing is written then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Staleness {
    /// The vendor's name for it.
    SnapshotId,
    /// Its name, the number of rows, and their sum.
    #[default]
    Totals,
    /// Its name and every row, in the order in which they come.
    Content,
}

/// What the vendor says, and how exactly the warehouse must agree.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Totals {
    /// Where in an answer the number of rows is.
    pub rows: Option<Pointer>,
    /// Where in an answer the total revenue is.
    pub revenue: Option<Pointer>,
    /// The column whose sum that is.
    pub column: Option<Name>,
    /// How far the sum may be off.
    pub tolerance: Decimal,
}

/// One column.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Where in a row it is; the column's own name if not said.
    #[serde(default)]
    pub from: Option<Pointer>,
    /// What it is.
    #[serde(rename = "type", default)]
    pub kind: Kind,
    /// Whether it tells rows of one day apart.
    #[serde(default)]
    pub key: bool,
    /// Whether rows may go without it.
    #[serde(default)]
    pub optional: bool,
}

/// What to do when the vendor's rows change.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Drift {
    /// A field that nobody asked for.
    pub new: Reaction,
    /// A field that is gone.
    pub missing: Reaction,
    /// A value that is not what it was said to be.
    pub retyped: Reaction,
}

impl Default for Drift {
    fn default() -> Self {
        Self { new: Reaction::Warn, missing: Reaction::Fail, retyped: Reaction::Fail }
    }
}

/// What is done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reaction {
    /// Nothing; the column stays empty.
    Ignore,
    /// An event tells of it; the column stays empty.
    Warn,
    /// The command fails, and nothing is loaded.
    Fail,
}

impl Config {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, Problem> {
        let text = std::fs::read_to_string(path).map_err(|e| Problem::of_file(path, &e))?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads a text; `name` is what it is called in messages.
    pub fn parse(text: &str, name: &str) -> Result<Self, Problem> {
        let config: Self = toml::from_str(text).map_err(|e| Problem::of_toml(name, text, &e))?;
        config.check().map_err(|(at, why)| Problem::at_key(name, text, &at, why))?;
        Ok(config)
    }
}
