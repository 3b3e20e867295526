//! `steadfast sync status`: a strip of nights.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use steadfast::Env as _;
use steadfast_sync::Config;
use steadfast_sync::status::{Mark, Night, nights};

use crate::output::{Output, Table};

#[derive(clap::Args)]
pub(super) struct Args {
    /// How many nights.
    #[arg(long, default_value_t = 30)]
    nights: u64,
    /// Each night on a line of its own.
    #[arg(long)]
    long: bool,
}

pub(super) async fn status(config: &Config, args: &Args, how: Output) -> anyhow::Result<ExitCode> {
    let client = super::reader(config).await?;
    let until = steadfast::TokioEnv::current().now();
    let first = until.before(Duration::from_secs(args.nights * 86_400)).utc_date(0);
    let from = steadfast::parse_moment(&first)?;
    for vendor in &config.vendors {
        let mut found = nights(&client, config, vendor, (from, until)).await?;
        let surplus = found.len().saturating_sub(usize::try_from(args.nights)?);
        found.drain(..surplus);
        let name = vendor.name.as_str();
        match how {
            Output::Table if !args.long => strip(name, &found),
            _ => table(name, &found).print(how),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn strip(vendor: &str, nights: &[Night]) {
    let signs: String = nights.iter().map(|night| night.mark.sign()).collect();
    println!("{vendor}  {signs}");
    let mut legend = Vec::new();
    for mark in [
        Mark::Loaded,
        Mark::Stale,
        Mark::Late,
        Mark::Failed,
        Mark::Cancelled,
        Mark::Running,
        Mark::Missed,
        Mark::Compressed,
        Mark::Skipped,
    ] {
        let many = nights.iter().filter(|night| night.mark == mark).count();
        if many > 0 {
            legend.push(format!("{} {mark} {many}", mark.sign()));
        }
    }
    let legend = if legend.is_empty() { "no nights yet".to_owned() } else { legend.join("  ") };
    println!("  {legend}");
}

fn table(vendor: &str, nights: &[Night]) -> Table<6> {
    let mut table = Table::new(["DAY", "VENDOR", "MARK", "ROWS", "TOTAL", "WHY"]);
    for night in nights {
        let (rows, total) = match &night.report {
            Some(report) => (report.rows.to_string(), report.total.clone()),
            None => (String::new(), String::new()),
        };
        let whole = json!({
            "target_date": night.target_date, "vendor_name": vendor, "mark": night.mark.as_str(),
            "command_id": night.command_id, "report": night.report, "reason": night.reason,
            "revision": night.revision, "collapsed": night.collapsed,
        });
        let cells = [
            night.target_date.clone(),
            vendor.to_owned(),
            night.mark.to_string(),
            rows,
            total,
            night.reason.clone(),
        ];
        table.row(cells, whole);
    }
    table
}
