//! What the execution of a run sees of its process: everything but the right to write for others.
//!
//! Invariants: an execution asks the store only for reads and for what carries its lease, by the
//! types of the operations ([`ByOwner`]). What it believes about its run, such as a deadline, is
//! compared by the store under that lease, and never comes as an operator's request.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;

use steadfast_core::Timestamp;
use steadfast_core::driver::Outcome;
use steadfast_store::op::{self, ByOwner};
use steadfast_store::{Error, OpenStore, StoreExt};

use crate::hub::Hub;

/// A hub whose store is an owner's. It is used like a hub; its own `store` stands before the hub's.
#[derive(Clone)]
pub(crate) struct OwnerHub {
    hub: Arc<Hub>,
    pub(crate) store: OwnerStore,
}

impl OwnerHub {
    pub(crate) fn new(hub: Arc<Hub>) -> Self {
        let store = OwnerStore(hub.store.clone());
        Self { hub, store }
    }

    /// Spawns a task whose result is not awaited.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.hub.spawn(name, task);
    }
}

impl Deref for OwnerHub {
    type Target = Hub;

    fn deref(&self) -> &Hub {
        &self.hub
    }
}

/// A store as the owner of a run may use it.
#[derive(Clone)]
pub(crate) struct OwnerStore(OpenStore);

impl OwnerStore {
    /// Carries out an owner's operation, or a read.
    pub(crate) fn ask<O: ByOwner + Send + 'static>(
        &self,
        op: O,
    ) -> impl Future<Output = Result<O::Reply, Error>> + Send {
        self.0.ask(op)
    }

    /// Tells where the worker of a stopped run stands: what it says carries the lease that it had.
    pub(crate) async fn leave(&self, left: op::Left, now: Timestamp) -> Result<(), Error> {
        let workspace = left.lease.workspace.clone();
        let settle = op::SettleCommands { workspace, left: Some(left), limit: 1, now };
        self.0.ask(settle).await.map(drop)
    }

    /// Runs the caller's own work on the database, with the owner's record.
    pub(crate) async fn transact(
        &self,
        records: op::Record,
        work: Box<dyn Any + Send + Sync>,
    ) -> Result<(op::Written, Outcome), Error> {
        self.0.transact(records, work).await
    }

    /// Hints to other processes that something may have become ready.
    pub(crate) fn announce(&self) {
        self.0.announce();
    }
}
