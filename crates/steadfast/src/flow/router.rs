//! The event router: an event becomes one command for each trigger that matches it.
//!
//! Invariants: the same event again makes nothing new, whoever brings it; what one trigger refuses
//! does not keep the event from the others; when routing is done, everything is durable, so that a
//! source may forget the event.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steadfast_core::command::Ingress;
use steadfast_core::envelope::Envelope;
use steadfast_core::trigger::{Trigger, When, event_run_id};
use steadfast_core::{Error, Result, Timestamp};
use steadfast_store::op::{self, TriggerState};

use super::filter::{Failure, Filter};
use super::ingress::{self, Request};
use crate::client::{Client, Told};

/// How long a list of triggers is good: a change elsewhere takes effect within this time.
const FRESH: Duration = Duration::from_secs(1);

/// What became of an event.
#[derive(Debug, Clone, Default)]
pub struct Routed {
    /// The event's id; given by its content if it had none.
    pub event_id: String,
    /// Commands, by trigger: the command's id, and whether the event made it.
    pub commands: Vec<(String, String, bool)>,
    /// Triggers that matched and could not submit, with the reason.
    pub refused: Vec<(String, Error)>,
}

/// Routes events. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Router {
    known: Arc<Mutex<Known>>,
    /// Failures of filters that this process has reported.
    reported: Arc<Mutex<HashSet<String>>>,
}

#[derive(Default)]
struct Known {
    read_at: Option<Timestamp>,
    triggers: Vec<Arc<Listener>>,
}

/// A trigger that listens for events.
struct Listener {
    trigger: Trigger,
    revision: i64,
    changed_at: Timestamp,
    filter: Option<Filter>,
}

impl Router {
    /// Forgets the triggers, because one has changed.
    pub(crate) fn forget(&self) {
        self.known.lock().expect("invariant: not poisoned").read_at = None;
    }

    /// Makes the commands of an event.
    pub(crate) async fn route(
        &self,
        client: &Client,
        envelope: &Envelope,
        ingress: Ingress,
    ) -> Result<Routed> {
        let event = envelope.to_value();
        let mut undecided = None;
        let mut routed = Routed { event_id: envelope.event_id.clone(), ..Routed::default() };
        for listener in self.listeners(client).await? {
            let When::Event(wanted) = &listener.trigger.when else { continue };
            if !wanted.takes(&envelope.event_type) {
                continue;
            }
            match listener.filter.as_ref().map_or(Ok(true), |filter| filter.matches(&event)) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(failure) => {
                    self.report(client, &listener, envelope, &failure).await?;
                    continue;
                }
            }
            let trigger_id = listener.trigger.trigger_id.clone();
            match self.submit(client, &listener, envelope, &event, ingress).await {
                Ok((command_id, new)) => {
                    if !new {
                        let event_id = &envelope.event_id;
                        tracing::info!(trigger_id, event_id, command_id, "event again: no-op");
                    }
                    routed.commands.push((trigger_id, command_id, new));
                }
                // The store's own trouble is the caller's: the event is to come again.
                Err(error) if error.class() == steadfast_core::ErrorClass::Store => {
                    return Err(error);
                }
                // So is what this process may not decide: another one can. The others get theirs.
                Err(error) if error.code() == "SF-0808" => undecided = Some(error),
                Err(error) => {
                    tracing::error!(trigger_id, event_id = envelope.event_id, %error, "refused");
                    let (id, source) = (&envelope.event_id, &envelope.source);
                    let what = format!("{trigger_id}\n{id}\n{}", error.code());
                    let about = serde_json::json!({
                        "source": source, "event_id": id, "trigger_id": trigger_id, "error": error,
                    });
                    let from = (source.as_str(), envelope.trace_id.as_str());
                    client.tell_once(Told::Rejected, from, &what, &about).await?;
                    routed.refused.push((trigger_id, error));
                }
            }
        }
        undecided.map_or(Ok(routed), Err)
    }

    /// Reports a filter that failed for an event: counted each time; logged and on record once for
    /// each revision of the trigger and kind of failure, because the next event fails alike.
    async fn report(
        &self,
        client: &Client,
        listener: &Listener,
        envelope: &Envelope,
        failure: &Failure,
    ) -> Result<()> {
        let (trigger_id, kind) = (&listener.trigger.trigger_id, failure.kind);
        client.inner.filter_failed(trigger_id, kind);
        let what = format!("{trigger_id}\n{}\n{kind}", listener.revision);
        if !self.reported.lock().expect("invariant: not poisoned").insert(what.clone()) {
            return Ok(());
        }
        let (source, event_id) = (&envelope.source, &envelope.event_id);
        let error = &failure.message;
        tracing::warn!(trigger_id, kind, event_id, error, "a filter failed for an event");
        let about = serde_json::json!({
            "trigger_id": trigger_id, "kind": kind, "error": error,
            "source": source, "event_id": event_id,
        });
        let from = (source.as_str(), envelope.trace_id.as_str());
        let told = client.tell_once(Told::FilterFailed, from, &what, &about).await;
        if told.is_err() {
            // The event comes again, and so does the report.
            self.reported.lock().expect("invariant: not poisoned").remove(&what);
        }
        told
    }

    async fn submit(
        &self,
        client: &Client,
        listener: &Listener,
        envelope: &Envelope,
        event: &serde_json::Value,
        ingress: Ingress,
    ) -> Result<(String, bool)> {
        let trigger = &listener.trigger;
        let contract = client.contracts.of(trigger)?;
        let payload = trigger.payload_for(event)?;
        client.contracts.check(&contract.name, &payload)?;
        let run_id = event_run_id(&trigger.trigger_id, &envelope.event_id);
        let mut request = Request::new(&format!("event:{}", envelope.source), ingress);
        request.run_id = Some(run_id.clone());
        request.trace_id = Some(envelope.trace_id.clone());
        request.request_id = Some(envelope.event_id.clone());
        let submit = ingress::submit_op(
            &client.inner,
            client.governance.as_deref(),
            contract,
            &payload,
            request,
        )?;
        match client.carry_out(submit).await {
            // The trigger was edited since the event came first: it is the same event all the same.
            Err(error) if error.code() == "SF-0501" => {
                let which = op::CommandRef::Run(run_id);
                let first = client.inner.find_command(which).await?.map(|found| found.command);
                let first = first.filter(|first| {
                    first.command_type == contract.name && first.created_at < listener.changed_at
                });
                first.map(|first| (first.command_id, false)).ok_or(error)
            }
            carried => carried,
        }
    }

    async fn listeners(&self, client: &Client) -> Result<Vec<Arc<Listener>>> {
        let now = client.inner.now();
        {
            let known = self.known.lock().expect("invariant: not poisoned");
            if known.read_at.is_some_and(|at| at <= now && now < at.after(FRESH)) {
                return Ok(known.triggers.clone());
            }
        }
        let workspace = client.inner.workspace().to_owned();
        let kind = Some("event".to_owned());
        let rows = client
            .inner
            .ask(op::ListTriggers { kind, ..op::ListTriggers::all(workspace) })
            .await?
            .0;
        let mut known = self.known.lock().expect("invariant: not poisoned");
        let old: HashMap<_, _> =
            known.triggers.drain(..).map(|l| (l.trigger.trigger_id.clone(), l)).collect();
        for row in rows.iter().filter(|row| row.state == TriggerState::Active) {
            let same = old.get(&row.trigger_id).filter(|l| l.revision == row.revision).cloned();
            match same.map_or_else(|| Listener::read(row).map(Arc::new), Ok) {
                Ok(listener) => known.triggers.push(listener),
                Err(error) => {
                    tracing::error!(trigger_id = row.trigger_id, %error, "unusable trigger");
                }
            }
        }
        known.read_at = Some(now);
        Ok(known.triggers.clone())
    }
}

impl Listener {
    fn read(row: &op::TriggerRow) -> Result<Self> {
        let trigger: Trigger = serde_json::from_str(&row.spec)
            .map_err(|e| Error::invalid("SF-0606", format!("its definition: {e}")))?;
        let filter = check_filter(&trigger)?;
        let (revision, changed_at) = (row.revision, row.updated_at);
        Ok(Self { trigger, revision, changed_at, filter })
    }
}

/// The filter of a definition, compiled; an error if it cannot be one.
pub(crate) fn check_filter(trigger: &Trigger) -> Result<Option<Filter>> {
    match &trigger.when {
        When::Event(event) => event.filter.as_deref().map(Filter::compile).transpose(),
        When::Cron(_) => Ok(None),
    }
}
