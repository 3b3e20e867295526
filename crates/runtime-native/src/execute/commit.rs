//! The commits of an execution: records, the end, a suspension, a new beginning.

use std::sync::Arc;

use futures::channel::mpsc;
use steadfast_core::driver::Outcome;
use steadfast_core::{RunStatus, limits};
use steadfast_store::op::{self, Entry, Suspended, Written};

use super::stopped::outcomes;
use super::{Execution, Exit, Step, drift, driver, stopped};
use crate::client::RunEnd;
use crate::waits::Wait;

impl Execution {
    /// Makes every pending record durable.
    pub(super) async fn flush(&mut self) -> Step {
        self.urgent = false;
        self.flush_down_to(0).await
    }

    /// Makes pending records durable, the oldest first, until at most so many are left. In parts:
    /// what thousands of computed values take in one commit, other runs would wait for.
    async fn flush_down_to(&mut self, most: usize) -> Step {
        while self.pending.len() > most {
            let part = self.pending.len().min(limits::COMMIT_BATCH);
            let entries = self.pending.drain(..part).collect();
            if let Some(refusal) = self.record(entries).await? {
                tracing::error!(run_id = self.run.run_id, refusal, "a record was refused");
                return Err(Exit::Stopped);
            }
        }
        Ok(())
    }

    /// Writes entries in one commit; gives the reason if they were refused.
    pub(super) async fn record(&mut self, entries: Vec<Entry>) -> Step<Option<String>> {
        self.hub.env.crash_point("record.before");
        tracing::debug_span!("workflow.checkpoint")
            .in_scope(|| tracing::debug!(records = entries.len(), "workflow.checkpoint"));
        let ends = outcomes(&entries);
        let done = drift::done(&entries);
        let entries = self.with_digests(entries);
        let record = op::Record { lease: self.lease.clone(), entries, now: self.hub.now() };
        let written = self.hub.store.ask(record).await.map_err(stopped)?;
        self.hub.env.crash_point("record.after");
        match written {
            Written::Done => {
                self.forget_digests(&done);
                Ok(None)
            }
            Written::Fenced => {
                self.untold.extend(ends);
                Err(Exit::Stopped)
            }
            Written::Refused(why) => Ok(Some(why)),
        }
    }

    /// Ends the run, with its last records.
    pub(super) async fn finish(&mut self, outcome: Outcome) -> Exit {
        if let Err(exit) = self.flush_down_to(limits::COMMIT_BATCH).await {
            return exit;
        }
        self.hub.env.crash_point("finish.before");
        let entries = std::mem::take(&mut self.pending);
        let ends = outcomes(&entries);
        let finish = op::Finish {
            lease: self.lease.clone(),
            entries: self.with_digests(entries),
            outcome: outcome.clone(),
            now: self.hub.now(),
        };
        let written = match self.hub.store.ask(finish).await {
            Ok(written) => written,
            Err(error) => return stopped(error),
        };
        self.hub.env.crash_point("finish.after");
        if written != Written::Done {
            self.untold.extend(ends);
            return Exit::Stopped;
        }
        let status = if outcome.is_ok() { RunStatus::Success } else { RunStatus::Error };
        let took = self.run.started_at.unwrap_or(self.run.created_at).until(self.hub.now());
        self.hub.metrics.ended(&self.run.workflow, status.as_str(), took);
        self.hub.ended(&self.run.run_id, &RunEnd { status, outcome });
        if !self.run.parent.is_empty() {
            self.hub.arrived(&self.run.parent);
        }
        let frees_place = self.holds_place && self.hub.queues.is_shared(&self.run.queue);
        // It may start those that come after it, or what makes up for it.
        let settles = !self.context.command_id.is_empty();
        if settles {
            self.hub.ready.ring();
        }
        if frees_place || settles || !self.run.parent.is_empty() {
            self.hub.store.announce();
        }
        Exit::Finished
    }

    /// Suspends the run: its records become durable and it leaves memory, unless something arrived.
    pub(super) async fn suspend(&mut self) -> Step {
        self.flush_down_to(limits::COMMIT_BATCH).await?;
        self.hub.env.crash_point("suspend.before");
        let entries = std::mem::take(&mut self.pending);
        let ends = outcomes(&entries);
        let wake_at = self.next_moment();
        let suspend = op::Suspend {
            lease: self.lease.clone(),
            entries: self.with_digests(entries),
            inbox: self.inbox,
            wake_at,
            waits: Wait::describe_all(self.waits.values()),
            now: self.hub.now(),
        };
        self.urgent = false;
        let suspended = self.hub.store.ask(suspend).await.map_err(stopped)?;
        self.hub.env.crash_point("suspend.after");
        match suspended {
            Suspended::Done => {
                self.hub.due.at(wake_at);
                Err(Exit::Parked)
            }
            Suspended::Arrived => {
                self.look = true;
                Ok(())
            }
            Suspended::Fenced => {
                self.untold.extend(ends);
                Err(Exit::Stopped)
            }
            Suspended::Refused(refusal) => {
                tracing::error!(run_id = self.run.run_id, refusal, "a record was refused");
                Err(Exit::Stopped)
            }
        }
    }

    /// Gives the run back, its records durable, for another worker to go on with.
    pub(super) async fn release(&mut self) -> Step {
        self.flush().await?;
        let (lease, now) = (self.lease.clone(), self.hub.now());
        let release = op::Release { lease, what: op::Released::Run, now };
        self.hub.store.ask(release).await.map_err(stopped)?;
        Err(Exit::Parked)
    }

    /// Starting over raised the epoch: nothing late of the generation before gets in.
    fn raise_epoch(&mut self) {
        self.lease.epoch += 1;
        if let Some(live) = self.hub.live().get_mut(&self.run.run_id)
            && Arc::ptr_eq(&live.lease_until, &self.lease_until)
        {
            live.epoch = self.lease.epoch;
        }
    }

    /// Starts the run over with a new input and no history.
    pub(super) async fn renew(&mut self, input: String) -> Step {
        // What the old history did to others (sends, spawns, consumed signals) must not be lost.
        self.flush().await?;
        let now = self.hub.now();
        let renew = op::ContinueAsNew {
            lease: self.lease.clone(),
            input: input.clone(),
            generation: self.run.generation,
            now,
        };
        match self.hub.store.ask(renew).await.map_err(stopped)? {
            Written::Done => {}
            Written::Fenced | Written::Refused(_) => return Err(Exit::Stopped),
        }
        for (id, call) in std::mem::take(&mut self.calls) {
            self.abandon(id, call);
        }
        // Positions begin anew: what an attempt of the old history still says must not be heard.
        (self.end, self.ended) = mpsc::unbounded();
        self.running.clear();
        self.waits.clear();
        self.backlog.clear();
        self.digests.clear();
        self.run.input = input;
        self.run.generation += 1;
        self.raise_epoch();
        // The logical clock begins anew too: a first sleep counts from here.
        self.run.started_at = Some(now);
        let code = driver(&self.hub, &self.registry, &self.run, Vec::new());
        self.driver = code.ok_or(Exit::Stopped)?;
        Ok(())
    }
}
