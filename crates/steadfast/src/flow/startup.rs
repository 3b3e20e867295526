//! What is looked at before a fabric starts: whatever could never work is said then, by its name.

use std::collections::BTreeSet;

use steadfast_core::command::{Capability, CommandType};
use steadfast_core::runtime::ExecutionRuntime;
use steadfast_core::trigger::Trigger;
use steadfast_core::{Error, Result};
use steadfast_runtime_native::Client;
use steadfast_store::op::{DEFAULT_QUEUE, ListQueues};

use crate::contract::Contracts;

/// Refuses contracts and triggers that the runtime or the store cannot do.
pub(crate) async fn check(
    runtime: &Client,
    contracts: &Contracts,
    triggers: &[Trigger],
) -> Result<()> {
    let (name, has) = (runtime.name(), runtime.capabilities());
    for registered in contracts.all() {
        registered.command.check_runtime(name, has)?;
        registered.command.check_effects(name, has)?;
    }
    if !triggers.is_empty() && !has.contains(&Capability::Schedules) {
        let text = format!("triggers need schedules, which {name} lacks");
        return Err(Error::invalid("SF-0511", text));
    }
    // The second would replace the first at every start.
    let mut seen = BTreeSet::new();
    if let Some(twice) = triggers.iter().find(|trigger| !seen.insert(&trigger.trigger_id)) {
        let text = format!("two triggers are called \"{}\"", twice.trigger_id);
        return Err(Error::invalid("SF-0108", text));
    }
    check_queues(runtime, contracts).await
}

/// Refuses contracts whose queue is not there: none of their commands could begin.
async fn check_queues(runtime: &Client, contracts: &Contracts) -> Result<()> {
    if contracts.all().all(|registered| registered.command.queue == DEFAULT_QUEUE) {
        return Ok(());
    }
    let workspace = runtime.workspace().to_owned();
    let there = runtime.ask(ListQueues { workspace }).await?.0;
    for registered in contracts.all() {
        let CommandType { name, queue, .. } = &registered.command;
        if queue != DEFAULT_QUEUE && !there.iter().any(|row| row.name == *queue) {
            let text = format!(
                "command type \"{name}\": queue: there is no \"{queue}\"; add it with .queue(…)"
            );
            return Err(Error::invalid("SF-0112", text));
        }
    }
    Ok(())
}
