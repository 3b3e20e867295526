//! Waiting for a command where somebody looks on: what holds it up is said, each thing once.

use std::time::Duration;

use serde_json::Value;
use steadfast::{Command, CommandInfo, EventRow};
use steadfast_sync::Report;

/// How often it is looked what has happened.
const GLANCE: Duration = Duration::from_millis(500);

/// Waits for the end of a day's command.
pub(super) async fn ended(command: &Command<Report>, date: &str) -> anyhow::Result<CommandInfo> {
    let over = command.ended();
    tokio::pin!(over);
    // What happened before somebody looked is told too: it is why nothing happens now.
    let mut told = 0;
    loop {
        tokio::select! {
            info = &mut over => return Ok(info?),
            () = tokio::time::sleep(GLANCE) => {
                // A store that does not answer for a moment is no reason to stop waiting.
                let Ok(events) = command.events().await else { continue };
                for line in events.iter().skip(told).filter_map(line) {
                    eprintln!("{date}: {line}");
                }
                told = events.len();
            }
        }
    }
}

/// What an event says of waiting, if that is what it is about.
fn line(event: &EventRow) -> Option<String> {
    let about: Value = serde_json::from_str(&event.payload).ok()?;
    let text = |at: &str| about.pointer(at).and_then(Value::as_str).unwrap_or("?").to_owned();
    match event.event_type.as_str() {
        "vendor.awaited" => Some(format!("waits for a worker that has it: {}", text("/why"))),
        other if other.ends_with(".retried") => Some(format!(
            "{}: attempt {} failed with {}; next at {}",
            text("/operation"),
            about["attempt"],
            text("/error/message"),
            to_the_second(&text("/next_at")),
        )),
        _ => None,
    }
}

/// Nobody needs to know the microsecond.
fn to_the_second(at: &str) -> String {
    match at.split_once('.') {
        Some((seconds, _)) => format!("{seconds}+00:00"),
        None => at.to_owned(),
    }
}
