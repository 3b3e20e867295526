//! The relay: gives new events their numbers, and sends them to sinks.
//!
//! Invariants: an event is sent at least once, with the same id each time; events of one key arrive
//! in their order, and one that cannot be sent holds up only those of its key; one process sends to
//! a sink at a time, and what a slower one did is fenced by the store; an idle tick is one read.
//! Deliberately absent: exactly once. A crash between sending and noting it sends again, so
//! receivers keep the ids they have seen.

mod batch;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use steadfast_core::{Result, Timestamp, limits};
use steadfast_runtime_native::Client;
use steadfast_store::op;

use crate::sink::Sink;

/// How long a sender is left alone. Within the first half of it events are begun, and none takes
/// longer than [`batch::PATIENCE`].
pub(super) const LEASE: Duration = Duration::from_secs(90);
/// Batches sent to one sink in one tick.
const BATCHES: usize = 50;
/// Batches sealed in one tick.
const SEALS: usize = 50;

/// Sends. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Relay {
    client: Client,
    sinks: Arc<Vec<Sink>>,
    owner: String,
}

impl Relay {
    pub(crate) fn new(client: Client, sinks: Vec<Sink>, owner: &str) -> Self {
        Self { client, sinks: Arc::new(sinks), owner: owner.to_owned() }
    }

    pub(crate) fn has_sinks(&self) -> bool {
        !self.sinks.is_empty()
    }

    /// Makes the sinks known, so that nothing that happens from now on passes them by.
    pub(crate) async fn begin(&self) -> Result<()> {
        for sink in self.sinks.iter() {
            let put = op::PutSink {
                workspace: self.client.workspace().to_owned(),
                sink: sink.name.clone(),
                kind: sink.target.kind().to_owned(),
                place: sink.target.place(),
                from: sink.from,
                now: self.client.now(),
            };
            self.client.ask(put).await?;
        }
        Ok(())
    }

    /// Seals what is new and sends what is due; gives how many events have arrived.
    pub(crate) async fn tick(&self) -> Result<usize> {
        let workspace = self.client.workspace().to_owned();
        let listed = self.client.ask(op::ListSinks { workspace, count_dead: false }).await?;
        let head = if listed.unsealed { self.seal().await? } else { listed.head };
        let now = self.client.now();
        let busy = self.sinks.iter().filter(|sink| {
            let report = listed.sinks.iter().find(|report| report.row.sink == sink.name);
            report.is_some_and(|report| has_work(report, head, now))
        });
        let mut arrived = 0;
        for sent in join_all(busy.map(|sink| self.serve(sink))).await {
            arrived += sent?;
        }
        Ok(arrived)
    }

    /// Gives numbers to new events; gives the last number.
    async fn seal(&self) -> Result<i64> {
        let mut head = 0;
        for _ in 0..SEALS {
            let workspace = self.client.workspace().to_owned();
            let seal = op::Seal { workspace, limit: limits::SEAL_BATCH };
            match self.client.ask(seal).await? {
                op::Sealed::Done(count, at) => {
                    head = at.seq;
                    if count == 0 {
                        break;
                    }
                }
                // Whoever was first goes on with it.
                op::Sealed::Busy => break,
            }
        }
        Ok(head)
    }

    /// Sends to one sink until nothing is left to send, or somebody else does it.
    async fn serve(&self, sink: &Sink) -> Result<usize> {
        let mut arrived = 0;
        for _ in 0..BATCHES {
            let now = self.client.now();
            let take = op::TakeOutbox {
                workspace: self.client.workspace().to_owned(),
                sink: sink.name.clone(),
                owner: self.owner.clone(),
                lease_until: now.after(LEASE),
                limit: limits::OUTBOX_BATCH,
                now,
            };
            let op::Outbox::Taken(taken) = self.client.ask(take).await? else {
                break;
            };
            self.client.env().crash_point("outbox taken");
            let (settle, sent) = batch::send(&self.client, sink, &self.owner, *taken, now).await;
            self.client.env().crash_point("outbox sent");
            let (gone, nothing) = (settle.gone.clone(), sent == 0);
            if self.client.ask(settle).await? == op::OutboxSettled::Fenced {
                tracing::warn!(sink = sink.name, "another process sends to the sink now");
                break;
            }
            arrived += sent;
            if let Some(reason) = gone {
                tracing::warn!(sink = sink.name, reason, "the sink wants no more events");
            }
            if nothing {
                break;
            }
        }
        Ok(arrived)
    }
}

fn has_work(report: &op::SinkReport, head: i64, now: Timestamp) -> bool {
    let due = report.due_at.is_some_and(|due| due <= now);
    let fresh = report.row.cursor < head && report.parked < limits::PARKED_EVENTS as i64;
    report.row.state == op::SinkState::Active && (due || fresh)
}
