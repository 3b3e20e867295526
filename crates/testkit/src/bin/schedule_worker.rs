//! A scheduler process made to be killed: one schedule that fires each second, and its command.
//!
//! `schedule_worker STORE WORKSPACE`
//!
//! Invariants: every process defines the same schedule, under the same source; what a run does is
//! in its records alone, so that a run may be begun anywhere and ended anywhere else.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use steadfast::schemars::{self, JsonSchema};
use steadfast::{Contract, Cx, Error, Result, Schedule, Steadfast};

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Second {
    scheduled_for: String,
}

/// Takes long enough to be killed in the middle of a step, and while it sleeps.
async fn beat(cx: Cx, second: Second) -> Result<String> {
    let slow = || async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        Ok::<_, String>("a beat".to_owned())
    };
    let felt = cx.step("feel", slow).await?;
    cx.sleep(Duration::from_millis(200)).await?;
    let told = cx.step("tell", || async { Ok::<_, String>("at".to_owned()) }).await?;
    Ok(format!("{felt} {told} {}", second.scheduled_for))
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let mut given = std::env::args().skip(1);
    let (Some(store), Some(workspace)) = (given.next(), given.next()) else {
        return Err(Error::app("schedule_worker STORE WORKSPACE"));
    };
    let each_second = Schedule::new("beat", "* * * * * *")
        .submits("beat", json!({ "scheduled_for": "{scheduled_for}" }))
        .catchup(1000);
    let fabric = Steadfast::open(store)
        .workspace(workspace)
        .command(beat, Contract::new().key("beat:{scheduled_for}"))
        .schedule(each_second)
        .lease(Duration::from_secs(1))
        .poll(Duration::from_millis(20), Duration::from_millis(100))
        .start()
        .await?;
    fabric.run_until_stopped().await
}
