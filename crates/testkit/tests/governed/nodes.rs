//! The nodes of a world: two workers, each raised again when it dies.
//!
//! Invariants: a command that one of them submits, the other submits too; whoever stands still finds
//! that the other has gone on with its runs.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use steadfast_core::env::Env as _;
use steadfast_store::Store;
use steadfast_testkit::faults::Faults;
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sim::{Sim, SimEnv};

/// Their names: also those of their workers, so that a restarted one takes its runs over.
const NODES: [&str; 2] = ["worker", "other"];

/// Boots every node with its environment and its view of the store, now and after each crash.
pub(crate) fn raise<B>(sim: &Sim, faults: &Arc<Faults>, model: &Arc<ModelStore>, boot: B)
where
    B: Fn(Arc<SimEnv>, Arc<dyn Store>) -> BoxFuture<'static, ()> + Clone + Send + 'static,
{
    faults.set_server(model.clone());
    for name in NODES {
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
