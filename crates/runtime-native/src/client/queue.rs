//! Queues: what code defines, what an operator changes, and what holds.

use steadfast_core::{Error, Result, key};
use steadfast_store::{StoreExt, op};

use super::Client;

impl Client {
    /// Creates or changes a queue, for an operator.
    pub async fn put_queue(&self, queue: op::QueueRow) -> Result<bool> {
        check_queue(&queue)?;
        let (workspace, now) = (self.hub.workspace.clone(), self.hub.now());
        let put = self.hub.store.ask(op::PutQueue { workspace, queue, now }).await?;
        self.hub.ready.ring();
        Ok(put.created)
    }

    /// Creates a queue as code defines it, or applies what has changed in its definition.
    pub async fn define_queue(&self, queue: op::QueueRow) -> Result<op::QueueDefined> {
        check_queue(&queue)?;
        let (workspace, now) = (self.hub.workspace.clone(), self.hub.now());
        let define = op::DefineQueue { workspace, queue: queue.clone(), now };
        let defined = self.hub.store.ask(define).await?;
        if defined.queue != queue {
            tracing::info!(
                queue = queue.name, holds = ?defined.queue, defined = ?queue,
                "the queue is not as defined: what an operator has changed stays"
            );
        }
        self.hub.ready.ring();
        Ok(defined)
    }

    /// A queue: what holds, what code defined, and how full it is.
    pub async fn queue(&self, name: &str, partition: &str) -> Result<op::QueueReport> {
        let inspect = op::InspectQueue {
            workspace: self.hub.workspace.clone(),
            queue: name.to_owned(),
            partition: partition.to_owned(),
            now: self.hub.now(),
        };
        Ok(self.hub.store.ask(inspect).await?)
    }

    /// Every queue.
    pub async fn queues(&self) -> Result<Vec<op::QueueRow>> {
        let workspace = self.hub.workspace.clone();
        Ok(self.hub.store.ask(op::ListQueues { workspace }).await?.0)
    }
}

fn check_queue(queue: &op::QueueRow) -> Result<()> {
    key::check("queue name", &queue.name)?;
    let positive = [queue.concurrency, queue.worker_concurrency, queue.rate.map(|(n, _)| n)];
    if positive.into_iter().flatten().any(|n| n < 1) {
        return Err(Error::invalid(
            "SF-0117",
            format!("limits of queue \"{}\" are at least 1; pause it to stop it", queue.name),
        ));
    }
    if queue.rate.is_some_and(|(_, period)| period.is_zero()) {
        return Err(Error::invalid("SF-0117", "a rate needs a period above zero"));
    }
    Ok(())
}
