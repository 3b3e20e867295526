//! An activity through every crash: the real fabric over the model store, in virtual time.
//!
//! Invariants: the tasks count how often they ran to their end, outside of anything that crashes.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::{Value, json};
use steadfast::{
    Activity, Cx, Env as _, Envelope, EventMatch, Ingress, Result, RunStatus, Steadfast,
};
use steadfast_store::{Store, StoreExt as _, op};
use steadfast_testkit::faults::{Explore, Fault, Faults, Options, Outcome, Plan};
use steadfast_testkit::model::ModelStore;
use steadfast_testkit::sim::{Sim, SimEnv};

const ACTIVITY: &str = "orders";

/// How often each task began, by its run's id.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<BTreeMap<String, u32>>>);

async fn remind(cx: Cx, input: Value) -> Result<Value> {
    let begun = cx.state::<Begun>()?.0.clone();
    let run_id = cx.run_id().to_owned();
    cx.step("mail", move || {
        *begun.lock().unwrap().entry(run_id.clone()).or_default() += 1;
        async { Ok::<_, steadfast::Error>(()) }
    })
    .await?;
    Ok(input)
}

fn event() -> Envelope {
    let event = json!({
        "event_id": "evt_1", "type": "order.paid", "source": "shop", "subject": "order/1",
        "occurred_at": "2026-06-01T12:00:00Z", "trace_id": "t", "payload": {},
    });
    Envelope::read(&event).unwrap()
}

/// A node: the fabric, and the event, which comes again after every crash.
async fn boot(env: Arc<SimEnv>, store: Arc<dyn Store>, begun: Begun) {
    let paid = EventMatch { event_type: "order.paid".to_owned(), filter: None };
    let activity = Activity::on_event(ACTIVITY, paid)
        .task("mail", "remind", json!({ "to": "customer" }))
        .task("mail", "remind", json!({ "to": "desk" }))
        .task("call", "remind", json!({ "to": "desk" }));
    let built = Steadfast::open("given").store(store).env(env.clone()).worker_name("worker");
    let Ok(fabric) = built.state(begun).workflow(remind).activity(activity).start().await else {
        return;
    };
    while fabric.deliver(&event(), Ingress::SystemEvent).await.is_err() {
        env.sleep(Duration::from_secs(1)).await;
    }
    // A node has its program until it dies: the last handle would end it.
    std::future::pending::<()>().await;
}

fn executions(model: &ModelStore) -> Vec<(op::ActivityRow, Vec<op::TaskRow>)> {
    let (workspace, activity_id) = ("default".to_owned(), ACTIVITY.to_owned());
    let list = op::ListActivities { workspace, activity_id, limit: 10 };
    model.ask(list).now_or_never().unwrap().unwrap().0
}

fn over(model: &ModelStore) -> bool {
    let done = |task: &op::TaskRow| task.status == Some(RunStatus::Success);
    executions(model).iter().any(|(_, tasks)| tasks.iter().all(done))
}

fn judge(model: &ModelStore, begun: &Begun) -> std::result::Result<(), String> {
    let noted = executions(model);
    let [(run, tasks)] = noted.as_slice() else {
        return Err(format!("{} executions are noted", noted.len()));
    };
    let ids: Vec<_> = tasks.iter().map(|task| task.id.clone()).collect();
    let wanted = ["call:0", "mail:0", "mail:1"].map(|rest| format!("task-{}:{rest}", run.run_id));
    if ids != wanted {
        return Err(format!("the tasks are {ids:?}"));
    }
    let (workspace, filter) = ("default".to_owned(), op::RunFilter::default());
    let now = steadfast_core::Timestamp::from_micros(0);
    let runs = op::ListRuns { workspace, filter, after: None, limit: 100, now };
    let runs = model.ask(runs).now_or_never().unwrap().unwrap().runs;
    let begun = begun.0.lock().unwrap();
    // The activity's own run, and its tasks: what is not noted was not started either.
    if runs.len() != 4 || begun.len() != 3 {
        return Err(format!("{} runs, {} tasks began", runs.len(), begun.len()));
    }
    Ok(())
}

fn world(plan: Plan) -> Outcome {
    let sim = Sim::new(plan.seed());
    let (model, begun) = (Arc::new(ModelStore::new()), Begun::default());
    let faults = Faults::new(&sim.handle(), plan, Options::default());
    sim.set_chaos(faults.clone());
    let keep = {
        let (handle, faults, model) = (sim.handle(), faults.clone(), model.clone());
        let begun = begun.clone();
        async move {
            loop {
                let env = handle.node("worker");
                let died = env.died();
                let store: Arc<dyn Store> = faults.store(env.clone(), model.clone());
                env.spawn("boot", Box::pin(boot(env.clone(), store, begun.clone())));
                died.await;
                handle.sleep(Duration::from_secs(1)).await;
            }
        }
    };
    sim.node("supervisor").spawn("keep", Box::pin(keep));
    let watched = model.clone();
    let verdict = match sim.run_until(move || over(&watched), Duration::from_secs(3600)) {
        Err(stuck) => Err(format!("the tasks do not end: {stuck}")),
        Ok(()) => judge(&model, &begun),
    };
    faults.outcome(verdict)
}

/// R61, R70, R71, R72: a crash before and after every commit, and the event again after each.
#[test]
fn r070_an_activity_starts_its_tasks_once_through_every_crash() {
    let faults = [Fault::CrashBefore, Fault::CrashAfter, Fault::Ambiguous];
    Explore::new("activity").depth(2).faults(faults).run(world).check();
}
