//! From the file to a fabric: contract, policies, connectors, schedules, alerts.
//!
//! Invariants: what a vendor's job may touch follows from its section and nothing else: one
//! operation of the vendor, the load of one table, the reading of another; the contract names
//! them, so that a command is refused at the door and not in the middle.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use steadfast::connector::{Connector, Operation as Allowed};
use steadfast::policy::{ApprovalClass, Classes, Reversibility, Sensitivity};
use steadfast::{
    AlertRule, Alerts, Budget, Builder, Capability, Client, Command, CommandInfo, Contract,
    EffectType, Error, ErrorClass, Governance, Ingress, Queue, Result, Retention, RetryPolicy,
    Schedule, Sink,
};
use steadfast_connectors::spool::Spool;
use steadfast_connectors::{Alert, Sql, SqlConnector};
use steadfast_core::limits;

use crate::config::{Config, Field, Name, Operation, Table, Vendor};
use crate::vendor::{self, VendorConnector};
use crate::workflow::{EFFECT, Order, Outcome, QUEUE, Report, WAREHOUSE, sync_vendor_sales};

/// The command type.
pub const COMMAND: &str = "sync_vendor_sales";
/// The queue of its runs.
const NIGHTLY: &str = "scheduled_maintenance";

/// The jobs of a process, by vendor.
#[derive(Debug, Clone)]
pub struct Jobs(BTreeMap<String, Job>);

/// What the workflow needs to know of one vendor.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its section.
    pub vendor: Vendor,
    /// Where its rows go.
    pub table: Table,
    /// Where it is kept what was loaded.
    pub state_table: Table,
    tenant: Option<(Name, String)>,
}

impl Jobs {
    /// As the file says.
    pub fn new(config: &Config) -> Self {
        let job = |vendor: &Vendor| Job {
            vendor: vendor.clone(),
            table: config.warehouse.table.clone(),
            state_table: config.warehouse.state_table.clone(),
            tenant: tenant(config),
        };
        let named = |vendor: &Vendor| (vendor.name.as_str().to_owned(), job(vendor));
        Self(config.vendors.iter().map(named).collect())
    }

    /// The job of an order, where it is one of this process.
    pub fn of(&self, order: &Order) -> Option<Job> {
        let job = self.0.get(&order.vendor_name)?;
        // The command says whom to ask: nobody else is asked in its name.
        (job.vendor.base_url.as_str() == order.vendor_base_url).then(|| job.clone())
    }

    /// Why an order is none of this process.
    pub fn why_not(&self, order: &Order) -> Error {
        let name = &order.vendor_name;
        let why = match self.0.get(name) {
            None => {
                let known: Vec<_> = self.0.keys().map(String::as_str).collect();
                format!("there is no vendor \"{name}\" here; there are: {}", known.join(", "))
            }
            Some(job) => format!(
                "the command is for {}, and vendor \"{name}\" is at {} now",
                order.vendor_base_url, job.vendor.base_url
            ),
        };
        Error::new(ErrorClass::ValidationError, "SF-1002", why)
    }
}

fn tenant(config: &Config) -> Option<(Name, String)> {
    let column = config.warehouse.tenant_column.clone()?;
    Some((column, config.store.workspace.as_str().to_owned()))
}

impl Job {
    /// Whose rows.
    pub fn owner(&self, order: &Order) -> Map<String, Value> {
        let mut owner = Map::new();
        if let Some((column, workspace)) = &self.tenant {
            owner.insert(column.as_str().to_owned(), json!(workspace));
        }
        owner.insert("vendor_name".to_owned(), json!(order.vendor_name));
        owner
    }

    /// What becomes of a vendor's rows, in short: written in another way, or elsewhere, they are
    /// not the same.
    pub fn mapping(&self) -> String {
        let field = |(column, field): (&Name, &Field)| {
            let from = field.from.as_ref().map_or(column.as_str(), |from| from.as_str());
            (column.as_str().to_owned(), json!([from, field.kind.as_str(), field.key]))
        };
        let fields: BTreeMap<String, Value> = self.vendor.fields.iter().map(field).collect();
        let whole = json!([self.table.as_str(), self.vendor.rows.as_str(), fields]);
        steadfast_core::json::fingerprint(&whole.to_string())
    }

    /// Which rows.
    pub fn partition(&self, order: &Order) -> Map<String, Value> {
        let mut partition = self.owner(order);
        partition.insert("target_date".to_owned(), json!(order.target_date));
        partition
    }
}

/// The order that a command for a vendor and a day carries.
pub fn order(vendor: &Vendor, target_date: &str) -> Order {
    Order {
        vendor_name: vendor.name.as_str().to_owned(),
        target_date: target_date.to_owned(),
        vendor_base_url: vendor.base_url.as_str().to_owned(),
        force: false,
    }
}

/// The key of a vendor's day, in a workspace that is not the default with that before it.
pub fn key(config: &Config, vendor: &str, target_date: &str) -> String {
    let own = format!("{COMMAND}:{vendor}:{target_date}");
    match config.store.workspace.as_str() {
        "default" => own,
        workspace => format!("{workspace}/{own}"),
    }
}

/// The key of a later attempt at the same day: the first is revision 1.
pub fn revision(key: &str, number: u32) -> String {
    if number <= 1 { key.to_owned() } else { format!("{key}:r{number}") }
}

/// The last command for a vendor's day, and which revision it is.
pub async fn latest(client: &Client, key: &str) -> Result<Option<(u32, CommandInfo)>> {
    let mut found = None;
    for number in 1.. {
        match client.command_by_key(&revision(key, number)).await? {
            Some(info) => found = Some((number, info)),
            None => break,
        }
    }
    Ok(found)
}

/// How a day is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// Only if nobody has asked for it yet.
    Once,
    /// The same, behind fresh nights.
    Fill,
    /// As a new revision.
    Again,
    /// As a new revision, which is loaded although nothing has changed.
    Forced,
}

/// Asks for a vendor's day; gives the command that carries it out, or did.
pub async fn ask(
    client: &Client,
    config: &Config,
    (vendor, date): (&Vendor, &str),
    how: Asking,
    by: &str,
) -> Result<Command<Report>> {
    let key = key(config, vendor.name.as_str(), date);
    let number = match (how, latest(client, &key).await?) {
        (Asking::Once | Asking::Fill, Some((_, info))) => {
            return Ok(client.command(info.command.command_id));
        }
        (_, last) => last.map_or(1, |(number, _)| number + 1),
    };
    let order = Order { force: how == Asking::Forced, ..order(vendor, date) };
    let mut call = client.submit_named(COMMAND, &order).ingress(Ingress::UserRequest);
    if how == Asking::Fill {
        call = call.priority(limits::BACKGROUND_PRIORITY);
    }
    call.requested_by(by).key(revision(&key, number)).await
}

/// The command that says what became of a vendor's day: the first that loaded it, or else the last.
pub async fn telling(client: &Client, key: &str) -> Result<Option<(u32, CommandInfo)>> {
    let mut found = None;
    for number in 1.. {
        let Some(info) = client.command_by_key(&revision(key, number)).await? else { break };
        let loaded = info.command.result.as_deref().is_some_and(|text| {
            let report = serde_json::from_str::<Report>(text);
            report.is_ok_and(|report| report.outcome == Outcome::Loaded)
        });
        found = Some((number, info));
        if loaded {
            break;
        }
    }
    Ok(found)
}

/// The id of a vendor's schedule.
pub fn schedule_id(vendor: &str) -> String {
    format!("{COMMAND}.{vendor}")
}

/// What every command of the type is held to.
pub fn contract(config: &Config) -> Contract {
    let passing =
        [ErrorClass::TransientConnectorError, ErrorClass::RateLimited, ErrorClass::Timeout];
    let standard = RetryPolicy::on(passing).attempts(4).backoff([30, 120, 600]);
    let classes = Classes::new(ApprovalClass::A0, Reversibility::R1, Sensitivity::S1);
    let write = EffectType::new(EFFECT).key("{idempotency_key}").classes(classes).not_undone(
        "an idempotent upsert of one partition: running it again overwrites it in place",
    );
    let warehouse = &config.warehouse;
    let mut calls = vec![
        format!("{WAREHOUSE} load {}", warehouse.table),
        format!("{WAREHOUSE} select {}", warehouse.state_table),
    ];
    calls.extend(config.vendors.iter().map(|v| format!("{} {}", v.name, vendor::operation(v))));
    let mut contract = Contract::new()
        .key("sync_vendor_sales:{vendor_name}:{target_date}")
        .policies(["permission", "connector_scope", "rate_limit", "cost"])
        .requires(["warehouse.write/{vendor_name}/{target_date}", "connector.{vendor_name}.read"])
        .calls(calls)
        .effect(write)
        .needs([
            Capability::DurableWorkflows,
            Capability::DurableSteps,
            Capability::Queues,
            Capability::Schedules,
        ])
        .queue(NIGHTLY);
    for operation in Operation::ALL {
        contract = contract.retry(operation.as_str(), standard.clone());
    }
    for (operation, policy) in &config.retry {
        contract = contract.retry(operation.as_str(), policy.clone());
    }
    contract
}

/// Who may do what.
pub fn governance(config: &Config) -> Governance {
    let mut governance = Governance::new();
    for (who, what) in &config.policy.grants {
        governance = governance.grant(who, what.clone());
    }
    if let Some(calls) = config.policy.calls_per_command {
        governance = governance.budget(Budget::per_command(calls.into()));
    }
    if let Some(retries) = config.policy.retries_per_command {
        governance = governance.budget(Budget::per_command(retries.into()).retries());
    }
    governance
}

/// The pages on their way.
pub fn spool(config: &Config) -> Spool {
    Spool::at(&config.store.spool)
}

/// The way to the warehouse.
pub fn warehouse(config: &Config) -> Result<SqlConnector> {
    let at = &config.warehouse;
    let mut sql = Sql::connect(WAREHOUSE, &at.url)
        .allow(Allowed::write(format!("load {}", at.table)).keyed())
        .allow(Allowed::write(format!("upsert {}", at.state_table)))
        .allow(Allowed::read(format!("select {}", at.state_table)))
        .allow(Allowed::read(format!("select {}", at.table)))
        .spool(spool(config))
        .timeout(Duration::from_secs(at.timeout_seconds));
    if let Some(password) = &at.password {
        sql = sql.password(password.as_str());
    }
    sql.build()
}

/// The schedule of a vendor: each fire asks for the day before. What was missed is not made up
/// unless the file says so: an operator asks for it.
pub fn schedule(config: &Config, vendor: &Vendor) -> Schedule {
    let payload = order(vendor, "{target_date}");
    Schedule::new(schedule_id(vendor.name.as_str()), config.schedule.cron.as_str())
        .zone(config.schedule.zone.as_str())
        .misfire(config.schedule.misfire)
        .submits(COMMAND, payload)
}

/// Adds all that the file describes to a fabric.
pub fn install(builder: Builder, config: &Config) -> Result<Builder> {
    install_with(builder, config, warehouse(config)?)
}

/// The same without schedules and alerts: for work by hand, which must not change what others have
/// defined.
pub fn install_by_hand(builder: Builder, config: &Config) -> Result<Builder> {
    let mut builder = parts(builder, config, warehouse(config)?)?.source("by_hand");
    for vendor in &config.vendors {
        builder = builder.connector(VendorConnector::new(vendor, spool(config))?);
    }
    Ok(builder)
}

/// The same with another way to the warehouse.
pub fn install_with(
    builder: Builder,
    config: &Config,
    warehouse: impl Connector,
) -> Result<Builder> {
    let mut builder = parts(builder, config, warehouse)?.source(config.store.group.as_str());
    for vendor in &config.vendors {
        builder = builder
            .connector(VendorConnector::new(vendor, spool(config))?)
            .schedule(schedule(config, vendor));
    }
    for sink in alerts(config)? {
        builder = builder.sink(sink);
    }
    Ok(builder)
}

fn parts(builder: Builder, config: &Config, warehouse: impl Connector) -> Result<Builder> {
    let retention = Retention::new()
        .audit_days(config.policy.audit_days.0)
        .event_days(config.policy.event_days.0);
    Ok(builder
        .workspace(config.store.workspace.as_str())
        .state(Jobs::new(config))
        .command(sync_vendor_sales, contract(config))
        .govern(governance(config))
        .queue(Queue::new(QUEUE))
        .queue(Queue::new(NIGHTLY))
        .retention(retention)
        .connector(warehouse))
}

/// Every failed night, and whatever else the standard rules find.
fn alerts(config: &Config) -> Result<Vec<Sink>> {
    let failed = AlertRule::new("sync_failed", "command.failed").summary("a night's sync failed");
    let rules = Alerts::default().rule(failed);
    let mut sinks = Vec::new();
    if let Some(pager) = &config.alerts.pagerduty {
        let key = pager.routing_key.as_str();
        let alert = match &pager.url {
            Some(url) => Alert::pagerduty_at(url, key, rules.clone())?,
            None => Alert::pagerduty(key, rules.clone())?,
        };
        sinks.push(Sink::new("alerts-pagerduty", alert));
    }
    if let Some(url) = &config.alerts.slack {
        sinks.push(Sink::new("alerts-slack", Alert::slack(url.as_str(), rules)?));
    }
    Ok(sinks)
}
