//! An order that is charged once, whatever happens.
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;
use steadfast::{Cx, Result, Steadfast};

/// Any side effect: it runs, its result is recorded, and it is never run again.
async fn charge_card(order: String) -> Result<String> {
    println!("charging {order}");
    Ok(format!("ch_{order}"))
}

/// A workflow is a plain async function.
async fn process_order(cx: Cx, order: String) -> Result<String> {
    let charge = cx.step(charge_card, order).await?;
    cx.sleep(Duration::from_secs(5)).await?; // durable: a day would do as well
    Ok(charge)
}

#[tokio::main]
async fn main() -> Result<()> {
    let fabric = Steadfast::open("sqlite://orders.db")
        .workflow(process_order)
        .worker_name("orders-1") // a restart goes on at once
        .start()
        .await?;

    let run = fabric.start(process_order, "1001".to_owned()).id("order-1001").await?;
    println!("charged: {}", run.result().await?);
    fabric.shutdown().await;
    Ok(())
}
