//! Stores that are wrong on purpose: each breaks one promise, and something must notice.
//!
//! Invariants: a mutant is the real model behind a bent request or a false reply, so nothing else
//! about it is wrong (one is the model's own: what a crash does is no request); without a mutant
//! the wrapper changes nothing.
//! Deliberately absent: changes to production code. What a wrapper cannot falsify is not a mutant.

mod mutants;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use steadfast_store::op::{self, Lease, RunRow};
use steadfast_store::{Error, Op, Reply, Store};

pub use mutants::MUTANTS;

/// What becomes of a request.
#[allow(clippy::large_enum_variant, reason = "made once for each operation of a test")]
pub enum Bent {
    /// It is carried out, perhaps changed.
    Do(Op),
    /// It is answered without being carried out.
    Say(Reply),
}

/// One way to be wrong.
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    bend: fn(&Memory, Op) -> Bent,
    twist: fn(&Memory, &Op, Reply) -> Reply,
    /// Whether the request is shown the true inbox first, as a careless store would use it.
    reads_inbox: bool,
    /// Whether claims after a crash of the server give the epochs of forgotten ones again.
    reuses_epochs: bool,
}

impl Mutant {
    /// Whether the model itself is to be wrong, which no wrapper can do: see
    /// [`crate::model::ModelStore::reuse_epochs`].
    pub fn reuses_epochs(&self) -> bool {
        self.reuses_epochs
    }
}

impl std::fmt::Debug for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What a mutant remembers: who owns what.
#[derive(Debug, Default)]
pub struct Memory(Mutex<Past>);

#[derive(Debug, Default)]
struct Past {
    owners: BTreeMap<(String, String), Lease>,
    /// Runs as they were first claimed from their queues.
    first: BTreeMap<(String, String), RunRow>,
    last: Option<RunRow>,
    count: u64,
}

impl Memory {
    fn owner(&self, lease: &Lease) -> Lease {
        let at = (lease.workspace.clone(), lease.run_id.clone());
        self.0.lock().unwrap().owners.get(&at).cloned().unwrap_or_else(|| lease.clone())
    }

    fn last(&self) -> Option<RunRow> {
        self.0.lock().unwrap().last.clone()
    }

    /// A run as it was first claimed.
    fn first(&self, workspace: &str, run_id: &str) -> Option<RunRow> {
        let at = (workspace.to_owned(), run_id.to_owned());
        self.0.lock().unwrap().first.get(&at).cloned()
    }

    fn next(&self) -> u64 {
        let mut past = self.0.lock().unwrap();
        past.count += 1;
        past.count
    }

    fn learn(&self, op: &Op, reply: &Reply) {
        let mut past = self.0.lock().unwrap();
        let (workspace, claimed) = match (op, reply) {
            (Op::Dequeue(op), Reply::Dequeue(claimed)) => (&op.workspace, claimed),
            (Op::Wake(op), Reply::Wake(claimed)) => (&op.workspace, claimed),
            (_, Reply::Start(op::Started::New(Some(lease)))) => {
                let at = (lease.workspace.clone(), lease.run_id.clone());
                past.owners.insert(at, lease.clone());
                return;
            }
            _ => return,
        };
        for run in &claimed.runs {
            let lease = Lease {
                workspace: workspace.clone(),
                run_id: run.run_id.clone(),
                worker: run.worker.clone(),
                epoch: run.epoch,
            };
            let at = (workspace.clone(), run.run_id.clone());
            past.owners.insert(at.clone(), lease);
            past.first.entry(at).or_insert_with(|| run.clone());
            past.last = Some(run.clone());
        }
    }
}

/// A store with a mutant in it.
pub struct Sabotaged {
    inner: Arc<dyn Store>,
    mutant: Option<&'static Mutant>,
    memory: Memory,
}

impl Sabotaged {
    /// This store, wrong in this way, or not at all.
    pub fn new(inner: Arc<dyn Store>, mutant: Option<&'static Mutant>) -> Self {
        Self { inner, mutant, memory: Memory::default() }
    }

    async fn carry_out(&self, mut op: Op) -> Result<Reply, Error> {
        let Some(mutant) = self.mutant else {
            return self.inner.call(op).await;
        };
        if let Op::Suspend(suspend) = &mut op
            && mutant.reads_inbox
        {
            let load = op::Load {
                workspace: suspend.lease.workspace.clone(),
                run_id: suspend.lease.run_id.clone(),
                now: suspend.now,
                children: Vec::new(),
                names: Vec::new(),
            };
            if let Reply::Load(loaded) = self.inner.call(Op::Load(load)).await? {
                suspend.inbox = loaded.inbox;
            }
        }
        let asked = op.clone();
        let reply = match (mutant.bend)(&self.memory, op) {
            Bent::Say(reply) => return Ok(reply),
            Bent::Do(op) => self.inner.call(op).await?,
        };
        self.memory.learn(&asked, &reply);
        Ok((mutant.twist)(&self.memory, &asked, reply))
    }
}

impl Store for Sabotaged {
    fn call(&self, op: Op) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(self.carry_out(op))
    }

    fn clock_offset_us(&self) -> i64 {
        self.inner.clock_offset_us()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        self.inner.changed()
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        self.inner.ended()
    }

    fn announce(&self) {
        self.inner.announce();
    }
}
