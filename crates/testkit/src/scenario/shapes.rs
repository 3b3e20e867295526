//! The shapes: what workflows are made of, each as small as it can be.
//!
//! Invariants: step names are unique in a run; every result is a function of recorded values, so a
//! check can compute it; a script can be repeated from its start.
//! Deliberately absent: realistic workflows. What they do is a sum of these.

mod flow;
mod limit;
mod steer;
mod talk;

use std::sync::Arc;

use futures::future::BoxFuture;
use steadfast_core::workflow::Call;
use steadfast_core::{Cx, Result};
use steadfast_runtime_native::Registry;

use super::{Deed, How, Shape, Site};

/// Every shape.
pub const SHAPES: &[Shape] = &[
    flow::LINEAR,
    flow::VERBS,
    flow::PARALLEL,
    flow::RACE,
    flow::UNORDERED,
    flow::SLEEPS,
    flow::RETRY,
    flow::RETRIES_USED_UP,
    flow::PANIC,
    flow::KEYED,
    flow::AT_MOST_ONCE,
    flow::AT_MOST_ONCE_RETRIED,
    talk::CHILDREN,
    talk::TWO_CHILDREN,
    talk::SIGNAL_FIRST,
    talk::SIGNAL_IN_TIME,
    talk::SEND,
    talk::STREAM,
    talk::CONTINUE,
    talk::TICK,
    steer::CANCEL,
    steer::CANCEL_RENEWED,
    steer::CANCEL_RESUME,
    steer::FORK,
    steer::DEADLINE,
    steer::DEADLINE_RESUME,
    steer::POISON,
    steer::SHUTDOWN,
    steer::SLOW_STEPS,
    limit::QUEUE,
    limit::WORKER_LIMIT,
    limit::RATE,
    limit::SLOTS,
    limit::PRIORITY,
    limit::DEBOUNCE,
    limit::DEBOUNCE_LATE,
];

/// Makes every shape's workflows known to a worker.
pub(super) fn register(registry: &mut Registry) {
    flow::register(registry);
    talk::register(registry);
    steer::register(registry);
    limit::register(registry);
}

/// Adds a workflow under its shape's name.
macro_rules! known {
    ($registry:expr, $($workflow:ident),+ $(,)?) => {
        $($registry.add($workflow).expect("invariant: every shape has a name of its own");)+
    };
}
use known;

/// A step that gives a nonce, after seeing earlier ones.
fn act(cx: &Cx, step: &'static str, saw: &[u64]) -> Call<u64> {
    act_so(cx, step, saw, How::Work)
}

/// A step of a certain kind.
fn act_so(cx: &Cx, step: &'static str, saw: &[u64], how: How) -> Call<u64> {
    let (site, run) = (site(cx), cx.run_id().to_owned());
    let deed = Deed { run, step, saw: saw.to_vec(), key: String::new(), strict: true, how };
    cx.step(step, body(site, deed))
}

/// A read that gives a nonce.
fn look(cx: &Cx, step: &'static str) -> Call<u64> {
    let (site, run) = (site(cx), cx.run_id().to_owned());
    let deed =
        Deed { run, step, saw: Vec::new(), key: String::new(), strict: false, how: How::Work };
    cx.read(step, body(site, deed))
}

fn site(cx: &Cx) -> Arc<Site> {
    let site = cx.state::<Arc<Site>>().expect("invariant: every node has a site");
    Arc::clone(&site)
}

fn body(
    site: Arc<Site>,
    deed: Deed,
) -> impl Fn() -> BoxFuture<'static, Result<u64>> + Send + Sync + 'static {
    move || Box::pin(site.clone().perform(deed.clone()))
}
