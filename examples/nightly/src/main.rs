//! A nightly job that runs once a day, however many processes schedule it.
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use serde::{Deserialize, Serialize};
use serde_json::json;
use steadfast::schemars::{self, JsonSchema};
use steadfast::{Contract, Cx, Result, Schedule, Steadfast};

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Sync {
    vendor: String,
    day: String,
}

/// Carries out one command: what it does is durable, step by step.
async fn sync_sales(cx: Cx, sync: Sync) -> Result<String> {
    println!("syncing {} of {} (trace {})", sync.vendor, sync.day, cx.context().trace_id);
    Ok(sync.day)
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "sqlite://nightly.db".to_owned());
    let fabric = Steadfast::open(store)
        .command(sync_sales, Contract::new().key("sync_sales:{vendor}:{day}"))
        .schedule(
            Schedule::new("nightly", "0 3 * * *")
                .zone("Europe/Berlin")
                .catchup(3) // after an outage, the last three nights
                .submits("sync_sales", json!({ "vendor": "acme_sales", "day": "{target_date}" })),
        )
        .start()
        .await?;

    // The same day by hand: the first time it runs, after that it is the same command.
    let day = Sync { vendor: "acme_sales".to_owned(), day: "2026-06-01".to_owned() };
    let command = fabric.submit(sync_sales, day).requested_by("user:me").await?;
    println!("{} ({})", command.result().await?, if command.is_new() { "new" } else { "known" });
    let next = fabric.schedule("nightly").next(1).await?;
    println!("next night: {}", next[0]);
    fabric.shutdown().await;
    Ok(())
}
