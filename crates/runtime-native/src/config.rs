//! A worker's settings, with the defaults that suit a small deployment.

use std::time::Duration;

use steadfast_core::{Error, Result};

/// How a worker behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// The workspace it serves.
    pub workspace: String,
    /// Its name, stable across restarts: a restarted worker takes its earlier runs over at once
    /// instead of waiting for their leases, and a worker that still lives under the name stops.
    /// Empty for a worker that has none.
    pub name: String,
    /// The application's version: it runs what is pinned to it, or to none.
    pub app_version: String,
    /// How long a run stays with a worker that no longer reports.
    pub lease: Duration,
    /// Most runs in memory at once.
    pub max_runs: usize,
    /// The shortest and longest time between two polls of a queue.
    pub poll: (Duration, Duration),
    /// A wait shorter than this stays in memory; a longer one is suspended.
    pub linger: Duration,
    /// How long a shutdown waits for steps under way.
    pub drain: Duration,
}

impl Config {
    /// Refuses times that cannot be kept, instead of keeping others, and a name whose incarnations
    /// would be taken for those of another.
    pub(crate) fn check(&self) -> Result<()> {
        if self.name.contains('#') {
            let why = format!("the worker name \"{}\" holds a \"#\"", self.name);
            return Err(Error::invalid("SF-0105", why));
        }
        let (least, most) = self.poll;
        let why = if self.lease.is_zero() {
            "a lease of no time would lose every run at once".to_owned()
        } else if least > most {
            format!(
                "the shortest time between two polls, {least:?}, is above the longest, {most:?}"
            )
        } else {
            return Ok(());
        };
        Err(Error::invalid("SF-0125", why))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workspace: "default".to_owned(),
            name: String::new(),
            app_version: String::new(),
            lease: Duration::from_secs(15),
            max_runs: 1000,
            poll: (Duration::from_millis(100), Duration::from_secs(5)),
            linger: Duration::from_millis(50),
            drain: Duration::from_secs(10),
        }
    }
}
