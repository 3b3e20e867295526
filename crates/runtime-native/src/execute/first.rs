//! The first turn of a run's code, taken before the run is started.
//!
//! Invariants: nothing leaves the process in a turn, so a start that fails, or that finds the run
//! there already, leaves no trace of it; a run that was started goes on from it.

use steadfast_core::Timestamp;
use steadfast_core::driver::{Ask, Driver, Request, Turn};
use steadfast_store::op;

use super::driver;
use crate::config::Config;
use crate::hub::Hub;
use crate::registry::Registry;
use crate::waits::Wait;

/// Code after its first turn, and what it wants.
pub(crate) struct First {
    pub(super) driver: Driver,
    pub(super) turn: Turn,
}

impl First {
    /// Takes the first turn of a run without a history.
    pub(crate) fn turn(hub: &Hub, registry: &Registry, run: &op::RunRow) -> Option<Self> {
        let mut driver = driver(hub, registry, run, Vec::new())?;
        let turn = driver.turn();
        Some(Self { driver, turn })
    }

    /// What the code waits for, if it has come to rest: it wants nothing else, has nothing to put
    /// on record, and waits for longer than is worth staying in memory.
    pub(crate) fn rest(&self, hub: &Hub, config: &Config, run: &op::RunRow) -> Option<op::Rest> {
        let Turn::Ask { start, dropped } = &self.turn else { return None };
        if !dropped.is_empty() || self.driver.has_rides() {
            return None;
        }
        let wait = |request: &Request| match (&request.ask, request.asked_at) {
            (Ask::Sleep { until }, asked_at) => Some(Wait::Sleep { asked_at, until: *until }),
            (Ask::Signal { until }, asked_at) => {
                Some(Wait::Signal { name: request.name.clone(), asked_at, until: *until })
            }
            _ => None,
        };
        let waits = start.iter().map(wait);
        let waits = waits.collect::<Option<Vec<_>>>()?;
        let moments = waits.iter().map(Wait::until).chain(run.deadline_at);
        let wake_at = moments.min().unwrap_or(Timestamp::NEVER);
        let soon = hub.now().after(config.linger);
        (wake_at > soon).then(|| op::Rest { wake_at, waits: Wait::describe_all(waits.iter()) })
    }
}
