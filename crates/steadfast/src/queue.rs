//! A queue's description.

use std::time::Duration;

use steadfast_store::op::{QueueReport, QueueRow};

/// A queue: an order, and limits on what runs at once. Changing one takes effect at once,
/// everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue(QueueRow);

impl Queue {
    /// A queue without limits.
    pub fn new(name: impl Into<String>) -> Self {
        Self(QueueRow { name: name.into(), ..QueueRow::default() })
    }

    /// Most active runs and held step slots, over all workers.
    pub fn concurrency(mut self, most: u32) -> Self {
        self.0.concurrency = Some(i64::from(most));
        self
    }

    /// Most active runs per worker.
    pub fn worker_concurrency(mut self, most: u32) -> Self {
        self.0.worker_concurrency = Some(i64::from(most));
        self
    }

    /// Most starts in any period, over all workers.
    pub fn rate(mut self, most: u32, period: Duration) -> Self {
        self.0.rate = Some((i64::from(most), period));
        self
    }

    /// Lets priorities count: lower first, then oldest first. One that comes in while others are
    /// being claimed is met by the next look at the whole line, a second later at most.
    pub fn priorities(mut self) -> Self {
        self.0.priorities = true;
        self
    }

    /// Applies order and limits per partition key, and serves the keys in turn.
    pub fn partitioned(mut self) -> Self {
        self.0.partitioned = true;
        self
    }

    /// Holds new starts back; what runs goes on.
    pub fn paused(mut self, paused: bool) -> Self {
        self.0.paused = paused;
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether new starts are held back.
    pub fn is_paused(&self) -> bool {
        self.0.paused
    }

    pub(crate) fn into_row(self) -> QueueRow {
        self.0
    }

    pub(crate) fn from_row(row: QueueRow) -> Self {
        Self(row)
    }
}

/// A queue as it is: what holds, what code defined, and how full it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInfo {
    /// What holds now: the definition, and what operators have changed since.
    pub queue: Queue,
    /// The definition that a program brought last; `None` if an operator made the queue.
    pub defined: Option<Queue>,
    /// Runs that wait. Of a partitioned queue, those without a partition key.
    pub waiting: i64,
    /// Places that are held by runs and steps, of the same partition.
    pub held: i64,
}

impl QueueInfo {
    pub(crate) fn of(report: QueueReport) -> Option<Self> {
        let (waiting, held) = (report.waiting, report.held);
        let (queue, defined) =
            (Queue::from_row(report.queue?), report.defined.map(Queue::from_row));
        Some(Self { queue, defined, waiting, held })
    }

    /// Whether an operator has changed what code defined.
    pub fn is_changed(&self) -> bool {
        self.defined.as_ref().is_some_and(|defined| *defined != self.queue)
    }
}
