//! `steadfast sync check`: the file against the world.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use steadfast::connector::{Connector, Outbound};
use steadfast::{Client, CommandType, Error, ErrorClass, Retry, Steadfast};
use steadfast_connectors::secret::SecretRef;
use steadfast_connectors::spool::Spool;
use steadfast_sync::config::{Operation, Vendor};
use steadfast_sync::snapshot::{Page, Snapshot};
use steadfast_sync::vendor::{self, VendorConnector};
use steadfast_sync::workflow::{QUEUE, WAREHOUSE};
use steadfast_sync::{Config, job, warehouse};

/// How long the store is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(super) struct Args {
    /// The day to ask vendors for; yesterday (UTC) if not said.
    #[arg(long)]
    date: Option<String>,
    /// Makes tables of the warehouse that are missing.
    #[arg(long)]
    create_tables: bool,
    /// Asks no vendor.
    #[arg(long)]
    offline: bool,
}

pub(super) async fn check(config: &Config, args: &Args) -> anyhow::Result<ExitCode> {
    let date = args.date.as_deref().map_or_else(|| Ok(super::yesterday()), super::day)?;
    let mut sound = true;
    let mut line = |what: &str, found: Result<String, Error>| match found {
        Ok(text) => println!("ok    {what}: {text}"),
        Err(error) => {
            sound = false;
            println!("wrong {what}: {error}");
        }
    };
    if args.create_tables {
        let made = warehouse::create(config).await;
        line("warehouse tables", made.map(|()| "there, or made".to_owned()));
    }
    line("store", store(config).await);
    line("warehouse", tables(config).await);
    line("alerts", alerts(config));
    for vendor in &config.vendors {
        line(&format!("vendor {}", vendor.name), Ok(plan(config, vendor)));
        if !args.offline {
            let what = format!("vendor {} on {date}", vendor.name);
            line(&what, ask(vendor, &date).await);
        }
    }
    line("plan", steps(config).await);
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the store can be opened. One that is a file and not there is not made: whoever only asks
/// leaves nothing behind.
async fn store(config: &Config) -> Result<String, Error> {
    let url = config.store.address()?;
    let place = url.strip_prefix("sqlite:");
    match place.map(|place| place.strip_prefix("//").unwrap_or(place)) {
        Some(":memory:") => return Ok("in memory: nothing of it survives a restart".to_owned()),
        Some(file) if !Path::new(file).exists() => {
            return Ok(format!("there is no file {file} yet; `steadfast sync start` makes it"));
        }
        _ => {}
    }
    let look = async {
        let client = Client::connect_to(&url, config.store.workspace.as_str()).await?;
        client.triggers().await
    };
    // What may pass is tried again by the store for as long as it takes.
    match tokio::time::timeout(PATIENCE, look).await {
        Ok(found) => Ok(format!("it can be opened, and has {} schedule(s)", found?.len())),
        Err(_) => {
            let text = format!("it gave no answer in {} s", PATIENCE.as_secs());
            Err(Error::new(ErrorClass::Timeout, "SF-0401", text))
        }
    }
}

/// Whether the tables are there, with the columns that are needed.
async fn tables(config: &Config) -> Result<String, Error> {
    let way = job::warehouse(config)?;
    let mut names = Vec::new();
    for shape in warehouse::shapes(config) {
        let columns: Vec<_> = shape.columns.iter().map(|column| column.name.as_str()).collect();
        let input = json!({ "columns": columns, "limit": 0 });
        way.send(&Outbound::new(format!("select {}", shape.table), input)).await?;
        names.push(format!("{} ({} columns)", shape.table, columns.len()));
    }
    Ok(names.join(", "))
}

/// Whether the secrets of those who are told can be read.
fn alerts(config: &Config) -> Result<String, Error> {
    let pager = config.alerts.pagerduty.as_ref().map(|pager| &pager.routing_key);
    let places: Vec<_> = pager.into_iter().chain(&config.alerts.slack).collect();
    for place in &places {
        SecretRef::parse(place.as_str())?.read()?;
    }
    Ok(match places.len() {
        0 => "nobody is told when a night fails".to_owned(),
        many => format!("{many} channel(s)"),
    })
}

fn plan(config: &Config, vendor: &Vendor) -> String {
    let key = job::key(config, vendor.name.as_str(), "{target_date}");
    format!(
        "{} {}, at \"{}\" {}, as {key}, into {}",
        vendor.base_url,
        vendor::operation(vendor),
        config.schedule.cron,
        config.schedule.zone,
        config.warehouse.table,
    )
}

/// The steps of a night, as the contract has them. It is asked of a fabric in memory: everything is
/// put together as it is at night, and nothing is done.
async fn steps(config: &Config) -> Result<String, Error> {
    let builder = job::install_by_hand(Steadfast::open("sqlite::memory:"), config)?;
    let fabric = builder.start().await?;
    let contract = fabric.contract(job::COMMAND);
    fabric.shutdown().await;
    let contract = contract?;
    let mut text = format!("{} on queue {}", job::COMMAND, contract.queue);
    for (name, operation, place) in [
        ("fetch", Some(Operation::FetchVendorSnapshot), "the vendor"),
        ("hash", None, ""),
        ("compare", Some(Operation::LoadLastHash), WAREHOUSE),
        ("load", Some(Operation::UpsertWarehousePartition), WAREHOUSE),
        ("record", Some(Operation::RecordHash), WAREHOUSE),
    ] {
        let how = match operation {
            Some(operation) => {
                let name = operation.as_str();
                format!("{name} at {place}, queue {QUEUE}: {}", tries(&contract, name)?)
            }
            // It needs nobody, so there is nothing to wait for.
            None => format!("here, in the run, queue {}", contract.queue),
        };
        text.push_str(&format!("\n        {name:<8} {how}"));
    }
    Ok(text)
}

/// How often an operation is tried, after which waits, and after which errors.
fn tries(contract: &CommandType, operation: &str) -> Result<String, Error> {
    let retry: Retry = contract.compile_policy(operation)?;
    let classes = contract.retry.get(operation).map(|policy| policy.retryable.clone());
    let classes = classes.unwrap_or_default();
    let Some(first) = classes.first().filter(|_| retry.max_attempts() > 1) else {
        return Ok("1 attempt".to_owned());
    };
    let error = Error::new(*first, "SF-0001", "as an example");
    let waits = (1..retry.max_attempts()).filter_map(|n| retry.wait_after(n, &error));
    let waits: Vec<_> = waits.map(|wait| format!("{} s", wait.as_secs())).collect();
    let names = serde_json::to_value(&classes).map_err(Error::from_any)?;
    let names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
    let (names, attempts) = (names.collect::<Vec<_>>().join(", "), retry.max_attempts());
    Ok(format!("{attempts} attempts, after {}, on {names}", waits.join(", ")))
}

/// The first page, read as the sync would read it.
async fn ask(vendor: &Vendor, date: &str) -> Result<String, Error> {
    // Nothing of it stays.
    let place = tempfile::tempdir().map_err(Error::from_any)?;
    let way = VendorConnector::new(vendor, Spool::at(place.path()))?;
    let answer = way.send(&vendor::request(vendor, date, 1, None)).await?;
    let page: Page = serde_json::from_value(answer.output).map_err(Error::from_any)?;
    let (rows, more) = (page.rows, page.next.is_some());
    let reported = page.reported_rows.map_or(String::new(), |all| format!(" of {all}"));
    let total = page.reported_sum.map_or(String::new(), |sum| format!(", total {sum}"));
    let drift: Vec<_> = page.drift.iter().cloned().collect();
    let id: Value = page.snapshot_id.clone();
    let hash = Snapshot::of(page).hash()?;
    let mut text = format!("{rows} rows{reported}{total}, snapshot {id}, {}…", &hash[..19]);
    if more {
        text.push_str(", more pages");
    }
    if !drift.is_empty() {
        text.push_str(&format!("; differs: {}", drift.join(", ")));
    }
    Ok(text)
}
