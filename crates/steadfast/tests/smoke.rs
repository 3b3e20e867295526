//! The SDK from outside, on an embedded store: what a newcomer tries first.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

use std::time::Duration;

use steadfast::{Client, Cx, Error, Result, RunStatus, Steadfast};

async fn double(n: u32) -> Result<u32> {
    Ok(n * 2)
}

async fn two_steps(cx: Cx, n: u32) -> Result<u32> {
    let a = cx.step(double, n).await?;
    let b = cx.step("add", move || async move { Ok::<_, Error>(a + 1) }).await?;
    cx.compute("more", || b + 1)
}

#[tokio::test]
async fn a_run_gives_its_result_and_the_same_id_gives_the_same_run() -> Result<()> {
    let fabric = Steadfast::open("sqlite::memory:").workflow(two_steps).start().await?;
    let run = fabric.start(two_steps, 20).id("a").await?;
    assert!(run.is_new());
    assert_eq!(run.result().await?, 42);
    let again = fabric.start(two_steps, 20).id("a").await?;
    assert!(!again.is_new());
    assert_eq!(again.result().await?, 42);
    let other = fabric.start(two_steps, 21).id("a").await.unwrap_err();
    assert_eq!(other.code(), "SF-0110");
    let names: Vec<_> = fabric.steps("a").await?.into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["double", "add", "more"]);
    fabric.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn a_client_starts_and_a_worker_of_another_connection_runs() -> Result<()> {
    let dir = tempfile::tempdir().map_err(Error::from_any)?;
    let url = format!("sqlite://{}", dir.path().join("s.db").display());
    let client = Client::connect(&url).await?;
    let run = client.start_named::<u32>("two_steps", &5u32).id("far").await?;
    assert_eq!(run.status().await?, RunStatus::Enqueued);
    let fabric = Steadfast::open(&url).workflow(two_steps).start().await?;
    assert_eq!(run.result_within(Duration::from_secs(60)).await?, 12);
    fabric.shutdown().await;
    Ok(())
}

async fn panics(cx: Cx, _: ()) -> Result<u32> {
    cx.step("boom", || async { if true { panic!("ouch") } else { Ok::<u32, Error>(1) } }).await
}

#[tokio::test]
async fn a_panic_is_a_recorded_error_and_the_worker_lives_on() -> Result<()> {
    let fabric =
        Steadfast::open("sqlite::memory:").workflow(panics).workflow(two_steps).start().await?;
    let error = fabric.start(panics, ()).await?.result().await.unwrap_err();
    assert_eq!(error.code(), "SF-0205");
    assert!(error.message().contains("ouch"));
    assert_eq!(fabric.start(two_steps, 1).await?.result().await?, 4);
    fabric.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn a_closure_has_no_name_to_be_registered_under() {
    let nameless = |cx: Cx, n: u32| two_steps(cx, n);
    let refused = Steadfast::open("sqlite::memory:").workflow(nameless).start().await;
    assert_eq!(refused.err().map(|e| e.code().to_owned()).as_deref(), Some("SF-0106"));
    let named = Steadfast::open("sqlite::memory:").workflow_named("sum", None, nameless);
    let fabric = named.start().await.unwrap();
    let run = fabric.start_named::<u32>("sum", &1u32).await.unwrap();
    assert_eq!(run.result_within(Duration::from_secs(60)).await.unwrap(), 4);
    fabric.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_opened_is_refused_with_a_reason() {
    let refused = Steadfast::open("sqlite:///no/such/folder/s.db").start().await.err().unwrap();
    assert_eq!(refused.code(), "SF-0403");
    assert!(refused.message().contains("/no/such/folder/s.db"), "{refused}");
    let refused = Steadfast::open("orders.db").start().await.err().unwrap();
    assert!(refused.message().contains("use sqlite://file"), "{refused}");
}
