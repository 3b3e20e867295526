//! What an operator asks of events: whether they are as they were written, where they went, and how
//! long they stay.

use std::time::Duration;

use steadfast_core::event::{Anchor, Break, Walk, genesis};
use steadfast_core::{Error, ErrorClass, Result, Timestamp, limits};
use steadfast_store::op::{self, DeadLetter, SinkSet, SinkState, Sinks};

use crate::client::Client;

/// Batches removed in one go; the rest follows with the next.
const BATCHES: usize = 20;

/// What a look at the whole chain of events has found.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified {
    /// How far the chain is whole. Noted elsewhere, it can be compared later.
    pub whole: Anchor,
    /// What comes before was removed by retention.
    pub base: Anchor,
    /// Events that are as they were sealed.
    pub kept: u64,
    /// Events among them that retention removed.
    pub removed: u64,
    /// The first place where it is not whole.
    pub broken: Option<Break>,
}

/// How long events are kept, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    audit: u32,
    event: u32,
    agent_step: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { audit: limits::AUDIT_DAYS, event: 30, agent_step: 30 }
    }
}

impl Retention {
    /// Audit events for 90 days, others for 30.
    pub fn new() -> Self {
        Self::default()
    }

    /// Days for audit events: 90 at the least.
    pub fn audit_days(mut self, days: u32) -> Self {
        self.audit = days;
        self
    }

    /// Days for plain events.
    pub fn event_days(mut self, days: u32) -> Self {
        self.event = days;
        self
    }

    /// Days for the steps of agents.
    pub fn agent_step_days(mut self, days: u32) -> Self {
        self.agent_step = days;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.audit < limits::AUDIT_DAYS {
            return Err(too_young(self.audit));
        }
        Ok(())
    }
}

fn too_young(days: u32) -> Error {
    let least = limits::AUDIT_DAYS;
    let text = format!("audit events are kept for {least} days at the least, not for {days}");
    Error::invalid("SF-0901", text)
}

impl Client {
    /// Walks the whole chain of events, and says where it is broken, if it is. `noted` is an
    /// earlier end of the chain: with it, a chain that was rewritten as a whole is found out too.
    pub async fn verify_events(&self, noted: Option<&Anchor>) -> Result<Verified> {
        let found = self.walk_events(noted).await?;
        match found.broken {
            // Retention, and whoever numbers what it tells, may have come between two pages.
            Some(Break::Untold(_)) => self.walk_events(noted).await,
            _ => Ok(found),
        }
    }

    async fn walk_events(&self, noted: Option<&Anchor>) -> Result<Verified> {
        let mut page = self.links(0).await?;
        let mut walk = Walk::from(page.base.clone());
        let mut base = page.base.clone();
        let begun = base.seq > 0 || base.hash == genesis(self.inner.workspace());
        let as_noted = noted.is_none_or(|n| n.seq != base.seq || n.hash == base.hash);
        let mut broken = (!begun || !as_noted).then_some(Break::Head(base.seq));
        while broken.is_none() {
            let more = page.links.len() == limits::PAGE_ROWS;
            if let Err(found) = walk.follow(&page.links, &page.head, more, noted) {
                broken = Some(found);
                break;
            }
            if !more {
                broken = walk.all_told(&page.base, &page.unsealed).err();
                break;
            }
            page = self.links(walk.at().seq).await?;
            if page.base.seq > walk.at().seq {
                // Retention was here meanwhile.
                base = page.base.clone();
                walk.skip_to(base.clone());
                page = self.links(base.seq).await?;
            }
        }
        let (kept, removed) = (walk.kept, walk.removed);
        Ok(Verified { whole: walk.at().clone(), base, kept, removed, broken })
    }

    async fn links(&self, after: i64) -> Result<op::ChainPage> {
        let workspace = self.inner.workspace().to_owned();
        self.inner.ask(op::ReadChain { workspace, after, limit: limits::PAGE_ROWS }).await
    }

    /// Gives numbers to events that have none yet. The fabric does this by itself, each second.
    pub async fn seal_events(&self) -> Result<Anchor> {
        loop {
            let workspace = self.inner.workspace().to_owned();
            let seal = op::Seal { workspace, limit: limits::SEAL_BATCH };
            if let op::Sealed::Done(0, head) = self.inner.ask(seal).await? {
                return Ok(head);
            }
        }
    }

    /// Removes what is older than it need be; gives how many events that were. The fabric does this
    /// by itself, now and then.
    pub async fn retain_events(&self, retention: &Retention) -> Result<usize> {
        retention.check()?;
        let now = self.inner.now();
        let kept = [
            ("event", retention.event),
            ("agent_step", retention.agent_step),
            ("audit", retention.audit),
        ];
        let mut removed = 0;
        for (purpose, days) in kept {
            let before = now.before(Duration::from_secs(86_400) * days);
            for _ in 0..BATCHES {
                let count = self.retain(purpose, before, now, days).await?;
                removed += count;
                if count < limits::PURGE_BATCH {
                    break;
                }
            }
        }
        Ok(removed)
    }

    async fn retain(
        &self,
        purpose: &str,
        before: Timestamp,
        now: Timestamp,
        days: u32,
    ) -> Result<usize> {
        let retain = op::Retain {
            workspace: self.inner.workspace().to_owned(),
            purpose: purpose.to_owned(),
            before,
            limit: limits::PURGE_BATCH,
            now,
        };
        match self.inner.ask(retain).await? {
            op::Retained::Done(count) => Ok(count),
            op::Retained::TooYoung => Err(too_young(days)),
        }
    }

    /// The sinks, how far each got, and what waits for them.
    pub async fn sinks(&self) -> Result<Sinks> {
        let workspace = self.inner.workspace().to_owned();
        self.inner.ask(op::ListSinks { workspace, count_dead: true }).await
    }

    /// Events that could not be sent, by sink and number.
    pub async fn dead_letters(
        &self,
        sink: Option<&str>,
        after: Option<(String, i64)>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>> {
        let (workspace, sink) = (self.inner.workspace().to_owned(), sink.map(str::to_owned));
        Ok(self.inner.ask(op::ListDead { workspace, sink, after, limit }).await?.0)
    }

    /// Has dead letters of a sink sent again: one, or all. Gives how many. The audit has who
    /// wanted it.
    pub async fn redrive(&self, sink: &str, event_id: Option<&str>, actor: &str) -> Result<u64> {
        steadfast_core::key::check("actor", actor)?;
        if !self.sinks().await?.sinks.iter().any(|report| report.row.sink == sink) {
            return Err(no_sink(sink));
        }
        let redrive = op::Redrive {
            workspace: self.inner.workspace().to_owned(),
            sink: sink.to_owned(),
            event_id: event_id.map(str::to_owned),
            actor: actor.to_owned(),
            now: self.inner.now(),
        };
        Ok(self.inner.ask(redrive).await?.0)
    }

    /// Starts or stops a sink. Whether it was otherwise before.
    pub async fn set_sink(
        &self,
        sink: &str,
        state: SinkState,
        reason: &str,
        actor: &str,
    ) -> Result<bool> {
        let set = op::SetSink {
            workspace: self.inner.workspace().to_owned(),
            sink: sink.to_owned(),
            state,
            reason: reason.to_owned(),
            actor: actor.to_owned(),
            now: self.inner.now(),
        };
        match self.inner.ask(set).await? {
            SinkSet::Done => Ok(true),
            SinkSet::Unchanged => Ok(false),
            SinkSet::NotFound => Err(no_sink(sink)),
        }
    }
}

fn no_sink(sink: &str) -> Error {
    Error::new(ErrorClass::NotFound, "SF-0906", format!("there is no sink \"{sink}\""))
}
