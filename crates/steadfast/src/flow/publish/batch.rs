//! One batch: events of a key one after the other, keys side by side.
//!
//! Invariants: after the first event of a key that did not arrive, none of that key is sent; what
//! was not tried is parked as it was, so that the cursor can pass everything that was taken.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{Either, select};
use steadfast_core::command::Context;
use steadfast_core::event::CloudEvent;
use steadfast_core::sink::{Delivery, backoff};
use steadfast_core::{Error, ErrorClass, Timestamp, caught};
use steadfast_runtime_native::Client;
use steadfast_store::op::{Batch, Fate, Outgoing, Sent, SettleOutbox};

use super::LEASE;
use crate::sink::Sink;

/// How long one event may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Keys sent at the same time.
const TOGETHER: usize = 16;

/// An event in its lane.
struct Item {
    event: Outgoing,
    attempt: u32,
    was_parked: bool,
}

/// What all lanes of a batch share.
struct Shared<'a> {
    client: &'a Client,
    sink: &'a Sink,
    /// What was told, and when; by this batch or before.
    marks: Mutex<HashMap<String, Timestamp>>,
    told: Mutex<Vec<(String, Timestamp)>>,
    window: Mutex<Duration>,
    gone: Mutex<Option<String>>,
    over: AtomicBool,
    /// Nothing is begun after this.
    until: Timestamp,
}

/// Sends a batch; gives what became of it, and how many events have arrived.
pub(super) async fn send(
    client: &Client,
    sink: &Sink,
    owner: &str,
    batch: Batch,
    now: Timestamp,
) -> (SettleOutbox, usize) {
    let last = batch.fresh.last().map_or(batch.cursor, |event| event.seq);
    let (epoch, cursor) = (batch.epoch, last.max(batch.cursor));
    let shared = Shared {
        client,
        sink,
        marks: Mutex::new(batch.marks.iter().cloned().collect()),
        told: Mutex::default(),
        window: Mutex::default(),
        gone: Mutex::default(),
        over: AtomicBool::new(false),
        until: now.after(LEASE / 2),
    };
    let (lanes, mut sent) = lanes(client.workspace(), batch);
    let arrived: usize = {
        let mut running = futures::stream::iter(lanes.into_values().map(|lane| shared.lane(lane)))
            .buffer_unordered(TOGETHER);
        let mut arrived = 0;
        while let Some((count, fates)) = running.next().await {
            arrived += count;
            sent.extend(fates);
        }
        arrived
    };
    sent.sort_by_key(|sent| sent.seq);
    let window = *shared.window.lock().expect("invariant: not poisoned");
    let settle = SettleOutbox {
        workspace: client.workspace().to_owned(),
        sink: sink.name.clone(),
        owner: owner.to_owned(),
        epoch,
        cursor,
        sent,
        marks: shared.told.into_inner().expect("invariant: not poisoned"),
        forget_before: now.before(window),
        gone: shared.gone.into_inner().expect("invariant: not poisoned"),
        now: client.now(),
    };
    (settle, arrived)
}

/// Events by key; and those that cannot be sent because one of their key waits.
fn lanes(workspace: &str, batch: Batch) -> (BTreeMap<String, Vec<Item>>, Vec<Sent>) {
    let due: HashSet<i64> = batch.due.iter().map(|(event, _)| event.seq).collect();
    let waiting = batch.parked.iter().filter(|(seq, _)| !due.contains(seq));
    let held: HashSet<&str> = waiting.map(|(_, key)| key.as_str()).collect();
    let (mut lanes, mut behind) = (BTreeMap::<String, Vec<Item>>::new(), Vec::new());
    let parked = batch.due.into_iter().map(|(event, attempt)| (event, attempt, true));
    let fresh = batch.fresh.into_iter().map(|event| (event, 0, false));
    for (event, attempt, was_parked) in parked.chain(fresh) {
        let key = event.event.facts(workspace).key().to_owned();
        let item = Item { event, attempt, was_parked };
        if !was_parked && held.contains(key.as_str()) {
            behind.push(untried(&key, &item));
        } else {
            lanes.entry(key).or_default().push(item);
        }
    }
    (lanes, behind)
}

/// It waits as it did, and may be sent as soon as nothing of its key is before it.
fn untried(key: &str, item: &Item) -> Sent {
    let (next_at, error) = (Timestamp::from_micros(0), String::new());
    fate(key, item, Fate::Parked { attempt: item.attempt, next_at, error })
}

fn fate(key: &str, item: &Item, fate: Fate) -> Sent {
    let (seq, event_id) = (item.event.seq, item.event.event.event_id.clone());
    Sent { seq, event_id, key: key.to_owned(), fate }
}

/// It failed, and nobody said when to come back.
fn again(error: Error) -> Delivery {
    Delivery::Again { error, after: None }
}

impl Shared<'_> {
    /// Sends the events of one key, until one does not arrive.
    async fn lane(&self, items: Vec<Item>) -> (usize, Vec<Sent>) {
        let (mut arrived, mut fates, mut stuck) = (0, Vec::new(), false);
        for item in &items {
            let facts = item.event.event.facts(self.client.workspace());
            let key = facts.key();
            let late = self.client.now() >= self.until || self.over.load(Ordering::Acquire);
            if stuck || late {
                fates.push(untried(key, item));
                continue;
            }
            match self.send(item).await {
                Delivery::Done => {
                    arrived += 1;
                    if item.was_parked {
                        fates.push(fate(key, item, Fate::Done));
                    }
                }
                Delivery::Again { error, after } => {
                    let failed = self.failed(item, &error, after);
                    // A dead letter holds up nobody.
                    stuck = matches!(failed, Fate::Parked { .. });
                    fates.push(fate(key, item, failed));
                }
                Delivery::Gone(error) => {
                    self.over.store(true, Ordering::Release);
                    *self.gone.lock().expect("invariant: not poisoned") = Some(error.to_string());
                    fates.push(untried(key, item));
                    stuck = true;
                }
            }
        }
        (arrived, fates)
    }

    fn failed(&self, item: &Item, error: &Error, after: Option<Duration>) -> Fate {
        let (attempt, event_id) = (item.attempt + 1, &item.event.event.event_id);
        let (sink, error) = (&self.sink.name, error.to_string());
        if attempt >= self.sink.attempts {
            tracing::error!(sink, event_id, attempt, error, "an event became a dead letter");
            return Fate::Dead { attempt, error };
        }
        tracing::warn!(sink, event_id, attempt, error, "an event was not taken");
        let wait = after.unwrap_or_default().max(backoff(attempt));
        Fate::Parked { attempt, next_at: self.client.now().after(wait), error }
    }

    /// Sends everything that one row is published as.
    async fn send(&self, item: &Item) -> Delivery {
        let facts = item.event.event.facts(self.client.workspace());
        let context = item.event.context.as_deref().and_then(|text| Context::parse(text).ok());
        let correlation = context.as_ref().map(|context| context.correlation_id.as_str());
        for event in CloudEvent::of(&facts, item.event.seq, correlation) {
            match self.sink.wants(&event) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(error) => return again(error),
            }
            match self.send_one(&event).await {
                Delivery::Done => {}
                other => return other,
            }
        }
        Delivery::Done
    }

    async fn send_one(&self, event: &CloudEvent) -> Delivery {
        let (target, now) = (&self.sink.target, self.client.now());
        let dedup = match caught::call(self.sink.code(), || target.dedup(event)) {
            Ok(dedup) => dedup,
            Err(error) => return again(error),
        };
        if let Some(dedup) = &dedup {
            let mut window = self.window.lock().expect("invariant: not poisoned");
            *window = (*window).max(dedup.window);
            let mut marks = self.marks.lock().expect("invariant: not poisoned");
            let known = marks.get(&dedup.key);
            if known.is_some_and(|told| told.after(dedup.window) > now) {
                return Delivery::Done;
            }
            // Noted before it is sent, so that its twin in the next lane is not sent as well.
            marks.insert(dedup.key.clone(), now);
        }
        let late = self.client.env().sleep(PATIENCE);
        let sent = caught::future(self.sink.code(), || target.send(event, now));
        let sent = match select(sent, late).await {
            Either::Left((sent, _)) => sent.unwrap_or_else(again),
            Either::Right(_) => {
                again(Error::new(ErrorClass::Timeout, "SF-0905", "no answer in time"))
            }
        };
        if let Some(dedup) = dedup {
            if sent == Delivery::Done {
                self.told.lock().expect("invariant: not poisoned").push((dedup.key, now));
            } else {
                self.marks.lock().expect("invariant: not poisoned").remove(&dedup.key);
            }
        }
        sent
    }
}
