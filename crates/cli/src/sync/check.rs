//! `steadfast sync check`: the file against the world.

use std::process::ExitCode;

use serde_json::{Value, json};
use steadfast::Error;
use steadfast::connector::{Connector, Outbound};
use steadfast_connectors::secret::SecretRef;
use steadfast_connectors::spool::Spool;
use steadfast_sync::config::Vendor;
use steadfast_sync::snapshot::{Page, Snapshot};
use steadfast_sync::vendor::{self, VendorConnector};
use steadfast_sync::{Config, job, warehouse};

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
    line("store", config.store.address().map(|_| "its address is known".to_owned()));
    line("warehouse", tables(config).await);
    line("alerts", alerts(config));
    for vendor in &config.vendors {
        line(&format!("vendor {}", vendor.name), Ok(plan(config, vendor)));
        if !args.offline {
            let what = format!("vendor {} on {date}", vendor.name);
            line(&what, ask(vendor, &date).await);
        }
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
