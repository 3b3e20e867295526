//! Events seen from outside: by a receiver over HTTP, by a person who is alerted, and by somebody
//! with a database shell.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

mod alerts;
mod answers;
mod audit;
mod receiver;
mod schema;
mod streams;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::schemars::{self, JsonSchema};
use steadfast::{Builder, Contract, Cx, Error, ErrorClass, Result, Steadfast};
use steadfast_core::env::Env;
use steadfast_testkit::suite::runtime::Clock;

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
struct Greeting {
    to: String,
}

async fn greet(_: Cx, greeting: Greeting) -> Result<String> {
    if greeting.to == "nobody" {
        let why = "the vendor answered 403 Forbidden";
        return Err(Error::new(ErrorClass::PermanentConnectorError, "SF-0001", why));
    }
    Ok(greeting.to)
}

fn to(name: &str) -> Greeting {
    Greeting { to: name.to_owned() }
}

/// A fabric on a database, with the command `greet`.
fn fabric(url: &str, clock: Option<&Arc<Clock>>) -> Builder {
    let built = Steadfast::open(url).command(greet, Contract::new().key("greet:{to}"));
    match clock {
        Some(clock) => built.env(clock.clone()),
        None => built,
    }
}

fn later(clock: &Clock, seconds: u64) {
    clock.set(clock.now().after(Duration::from_secs(seconds)));
}

/// Waits until a condition holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up = tokio::time::Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(tokio::time::Instant::now() < give_up, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
