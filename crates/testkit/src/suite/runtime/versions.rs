//! Code that changes under running runs.

use std::time::Duration;

use steadfast::{Cx, Effect, Error, ListEvents, Result, Steadfast};

use super::{Fixture, SOON, case_table, until};

case_table! {
    changed_code_is_stopped_and_names_both_steps,
    a_patch_lets_old_runs_keep_their_path,
    another_input_on_replay_is_audited_once_and_the_record_counts,
    strict_replay_ends_a_run_at_another_input,
    a_fork_replays_the_inputs_of_its_source,
}

async fn double(n: u32) -> Result<u32> {
    Ok(n * 2)
}

async fn before(cx: Cx, _: ()) -> Result<u32> {
    cx.step(double, 1).await?;
    cx.step(double, 5).await?;
    cx.wait_signal::<()>("go").await?;
    cx.step(double, 2).await
}

async fn after(cx: Cx, _: ()) -> Result<u32> {
    cx.step("renamed", || async { Ok::<u32, Error>(2) }).await?;
    cx.wait_signal::<()>("go").await?;
    cx.step(double, 2).await
}

async fn patched(cx: Cx, _: ()) -> Result<u32> {
    cx.step(double, 1).await?;
    if cx.patched("check") {
        cx.step("check", || async { Ok::<_, Error>(()) }).await?;
    }
    cx.step(double, 5).await?;
    cx.wait_signal::<()>("go").await?;
    cx.step(double, 2).await
}

/// Starts a run on old code that then waits, and stops the old worker.
async fn left_waiting(on: &Fixture) {
    let fabric = on.fabric().workflow_named("wf", None, before).start().await.unwrap();
    fabric.start_named::<u32>("wf", &()).id("r").await.unwrap();
    until("it waits", async || fabric.get("r").await.is_ok_and(|run| run.parked)).await;
    fabric.shutdown().await;
}

/// X10
async fn changed_code_is_stopped_and_names_both_steps(on: Fixture) {
    left_waiting(&on).await;
    let fabric = on.fabric().workflow_named("wf", None, after).start().await.unwrap();
    fabric.signal("r", "go", ()).await.unwrap();
    let error = fabric.run::<u32>("r").result_within(SOON).await.unwrap_err();
    assert_eq!(error.code(), "SF-0201");
    assert!(error.message().contains("double") && error.message().contains("renamed"));
    fabric.shutdown().await;
}

async fn a_patch_lets_old_runs_keep_their_path(on: Fixture) {
    left_waiting(&on).await;
    let fabric = on.fabric().workflow_named("wf", None, patched).start().await.unwrap();
    fabric.signal("r", "go", ()).await.unwrap();
    assert_eq!(fabric.run::<u32>("r").result_within(SOON).await.unwrap(), 4);
    let new = fabric.start_named::<u32>("wf", &()).id("new").await.unwrap();
    new.signal("go", ()).await.unwrap();
    assert_eq!(new.result_within(SOON).await.unwrap(), 4);
    let names = |steps: Vec<steadfast::StepRecord>| steps.into_iter().map(|s| s.name).collect();
    let old: Vec<String> = names(fabric.steps("r").await.unwrap());
    let now: Vec<String> = names(fabric.steps("new").await.unwrap());
    assert_eq!(old, ["double", "double", "go", "double"]);
    assert_eq!(now, ["double", "check", "check", "double", "go", "double"]);
    fabric.shutdown().await;
}

async fn altered(cx: Cx, _: ()) -> Result<u32> {
    let one = cx.step(double, 1).await?;
    let ten = cx.step(double, 6).await?;
    cx.wait_signal::<()>("go").await?;
    cx.wait_signal::<()>("on").await?;
    Ok(one + ten)
}

async fn changes(fabric: &Steadfast) -> Vec<serde_json::Value> {
    let event_type = Some("replay.input_changed".to_owned());
    let which = ListEvents { event_type, limit: 10, ..Default::default() };
    let events = fabric.events(which).await.unwrap();
    assert!(events.iter().all(|event| event.purpose == "audit"));
    events.iter().map(|event| serde_json::from_str(&event.payload).unwrap()).collect()
}

async fn another_input_on_replay_is_audited_once_and_the_record_counts(on: Fixture) {
    left_waiting(&on).await;
    let fabric = on.fabric().workflow_named("wf", None, altered).start().await.unwrap();
    fabric.signal("r", "go", ()).await.unwrap();
    let waits_on = async || {
        let run = fabric.get("r").await.unwrap();
        run.parked && run.waits.contains("\"on\"")
    };
    until("it waits again", waits_on).await;
    assert_eq!(changes(&fabric).await.len(), 1);
    // The next signal replays the same records once more.
    fabric.signal("r", "on", ()).await.unwrap();
    assert_eq!(fabric.run::<u32>("r").result_within(SOON).await.unwrap(), 12, "2 and 10");
    let told = changes(&fabric).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((&told[0]["run_id"], &told[0]["step"]), (&"r".into(), &1.into()));
    assert_eq!((&told[0]["name"], &told[0]["kind"]), (&"double".into(), &"step".into()));
    fabric.shutdown().await;
}

async fn strict_replay_ends_a_run_at_another_input(on: Fixture) {
    left_waiting(&on).await;
    let strict = on.fabric().workflow_named("wf", None, altered).strict_replay();
    let fabric = strict.start().await.unwrap();
    fabric.signal("r", "go", ()).await.unwrap();
    let error = fabric.run::<u32>("r").result_within(SOON).await.unwrap_err();
    assert_eq!(error.code(), "SF-0308");
    assert!(error.message().contains("step 1 was recorded as step \"double\""), "{error}");
    assert!(changes(&fabric).await.is_empty(), "the run's error says it");
    fabric.shutdown().await;
}

async fn forkable(cx: Cx, _: ()) -> Result<String> {
    let id = cx.uuid();
    cx.publish("id", &id).await?;
    cx.sleep(Duration::from_millis(1)).await?;
    let child = cx.spawn(kid, 7).await?;
    cx.effect(Effect::of("paid").payload(&id), |_| async { Ok::<_, Error>(()) }).await?;
    cx.step(same, cx.now().to_string()).await?;
    child.result().await?;
    Ok(id)
}

async fn same(text: String) -> Result<String> {
    Ok(text)
}

async fn kid(_: Cx, n: u32) -> Result<u32> {
    Ok(n)
}

/// Ids and keys that follow from the run's own id are another in a fork; that is no change.
async fn a_fork_replays_the_inputs_of_its_source(on: Fixture) {
    let build = on.fabric().workflow(forkable).strict_replay().workflow(kid);
    let fabric = build.start().await.unwrap();
    let run = fabric.start(forkable, ()).id("source").await.unwrap();
    let id = run.result_within(SOON).await.unwrap();
    let steps = fabric.steps("source").await.unwrap();
    assert!(steps.iter().all(|step| step.input_digest.is_some()), "{steps:?}");
    let last = steps.last().unwrap().id;
    let fork = fabric.fork::<String>("source", last + 1).id("fork").await.unwrap();
    assert_eq!(fork.result_within(SOON).await.unwrap(), id);
    fabric.shutdown().await;
}
