//! The nodes of a world: workers, each raised again when it dies.
//!
//! Invariants: a command that one of them submits, the others submit too; with two, one that stands
//! still finds that the other has gone on with its runs.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast_core::env::Env as _;
use steadfast_store::Store;
use steadfast_testkit::faults::{Fault, Faults};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sim::{Sim, SimEnv};

/// Their names: also those of their workers, so that a restarted one takes its runs over.
const NODES: [&str; 2] = ["worker", "other"];

/// What has a node stand still for longer than any lease, before a request and after it.
pub(crate) const STOPS: [Fault; 2] = [Fault::Stop(STILL), Fault::Pause(STILL)];
const STILL: Duration = Duration::from_secs(90);
/// What ends a node, or makes it ask again.
pub(crate) const CRASHES: [Fault; 3] = [Fault::CrashBefore, Fault::CrashAfter, Fault::Ambiguous];

/// Boots so many nodes with their environments and views of the store, now and after each crash.
pub(crate) fn raise<B>(
    nodes: usize,
    sim: &Sim,
    faults: &Arc<Faults>,
    model: &Arc<ModelStore>,
    boot: B,
) where
    B: Fn(Arc<SimEnv>, Arc<dyn Store>) -> BoxFuture<'static, ()> + Clone + Send + 'static,
{
    faults.set_server(model.clone());
    for name in NODES.into_iter().take(nodes) {
        let (handle, faults) = (sim.handle(), faults.clone());
        let (model, boot) = (model.clone(), boot.clone());
        let keep = async move {
            loop {
                let env = handle.node(name);
                let died = env.died();
                let store: Arc<dyn Store> = faults.store(env.clone(), model.clone());
                env.spawn("boot", boot(env.clone(), store));
                died.await;
                handle.sleep(Duration::from_secs(1)).await;
            }
        };
        sim.node("supervisor").spawn("keep", Box::pin(keep));
    }
}
