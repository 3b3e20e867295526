//! Code that changes under running runs.

use steadfast::{Cx, Error, Result};

use super::{Fixture, SOON, case_table, until};

case_table! {
    changed_code_is_stopped_and_names_both_steps,
    a_patch_lets_old_runs_keep_their_path,
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
