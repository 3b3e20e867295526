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

use futures::lock::Mutex;
use steadfast_core::{Result, Timestamp, caught, limits};
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

/// Sends to one sink. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Relay {
    client: Client,
    sink: Option<Sink>,
    owner: String,
    /// One tick at a time: two of one process would not be told apart by the store.
    ticking: Arc<Mutex<()>>,
}

impl Relay {
    /// One for each sink, because none may wait for another; without sinks, one that seals.
    pub(crate) fn all(client: &Client, sinks: Vec<Sink>, owner: &str) -> Vec<Self> {
        let of = |sink| Self {
            client: client.clone(),
            sink,
            owner: owner.to_owned(),
            ticking: Arc::default(),
        };
        match sinks.is_empty() {
            true => vec![of(None)],
            false => sinks.into_iter().map(|sink| of(Some(sink))).collect(),
        }
    }

    pub(crate) fn has_sink(&self) -> bool {
        self.sink.is_some()
    }

    /// Makes the sink known, so that nothing that happens from now on passes it by.
    pub(crate) async fn begin(&self) -> Result<()> {
        if let Some(sink) = &self.sink {
            let (target, of) = (&sink.target, sink.code());
            let put = op::PutSink {
                workspace: self.client.workspace().to_owned(),
                sink: sink.name.clone(),
                kind: caught::call(of, || target.kind().to_owned())?,
                place: caught::call(of, || target.place())?,
                from: sink.from,
                now: self.client.now(),
            };
            self.client.ask(put).await?;
        }
        Ok(())
    }

    /// Seals what is new and sends what is due; gives how many events have arrived.
    pub(crate) async fn tick(&self) -> Result<usize> {
        let _alone = self.ticking.lock().await;
        let workspace = self.client.workspace().to_owned();
        let listed = self.client.ask(op::ListSinks { workspace, count_dead: false }).await?;
        let head = if listed.unsealed { self.seal().await? } else { listed.head };
        let now = self.client.now();
        let Some(sink) = &self.sink else {
            return Ok(0);
        };
        let report = listed.sinks.iter().find(|report| report.row.sink == sink.name);
        match report.is_some_and(|report| has_work(report, head, now)) {
            true => self.serve(sink).await,
            false => Ok(0),
        }
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
                // Somebody was first: there may be nothing left.
                op::Sealed::Busy => {}
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
