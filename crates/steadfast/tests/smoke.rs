//! The SDK from outside, on an embedded store: what a newcomer tries first.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfast::{Client, Cx, Error, Queue, Result, Retry, RunStatus, Steadfast};

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

async fn patient(cx: Cx, _: ()) -> Result<String> {
    cx.sleep(Duration::from_millis(200)).await?;
    let name: String = cx.wait_signal("name").await?;
    let none: Option<u8> = cx.wait_signal("never").timeout(Duration::from_millis(100)).await?;
    assert_eq!(none, None);
    cx.publish("greeted", &name).await?;
    for i in 0..3 {
        cx.append("log", i).await?;
    }
    Ok(format!("hello {name}"))
}

#[tokio::test]
async fn a_suspended_run_leaves_memory_and_wakes_by_signal() -> Result<()> {
    let fabric = Steadfast::open("sqlite::memory:").workflow(patient).start().await?;
    let run = fabric.start(patient, ()).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fabric.live_runs(), 0);
    assert_eq!(fabric.explain(run.id()).await?.detail, "waits for a signal \"name\"");
    run.signal("name", "world").await?;
    assert_eq!(run.result_within(Duration::from_secs(10)).await?, "hello world");
    assert_eq!(run.value::<String>("greeted", Duration::ZERO).await?.as_deref(), Some("world"));
    let mut log = run.stream::<u32>("log");
    let mut items = Vec::new();
    while let Some(item) = log.next().await? {
        items.push(item);
    }
    assert_eq!(items, [0, 1, 2]);
    fabric.shutdown().await;
    Ok(())
}

async fn parent(cx: Cx, n: u32) -> Result<u32> {
    let (a, b) = futures::future::join(cx.child(two_steps, n), cx.child(two_steps, n + 1)).await;
    Ok(a? + b?)
}

#[tokio::test]
async fn children_run_side_by_side_and_are_joined() -> Result<()> {
    let fabric =
        Steadfast::open("sqlite::memory:").workflow(parent).workflow(two_steps).start().await?;
    let run = fabric.start(parent, 1).await?;
    assert_eq!(run.result_within(Duration::from_secs(20)).await?, 4 + 6);
    fabric.shutdown().await;
    Ok(())
}

struct Tries(AtomicU32);

async fn stubborn(cx: Cx, _: ()) -> Result<u32> {
    let tries = cx.state::<Tries>()?;
    let attempt = move || {
        let tries = tries.clone();
        async move {
            match tries.0.fetch_add(1, Ordering::SeqCst) {
                n if n < 2 => Err(Error::app("not yet")),
                n => Ok(n),
            }
        }
    };
    let retry = Retry::exponential(3, Duration::from_millis(20), 2.0);
    cx.step("try", attempt).retry(retry).await
}

#[tokio::test]
async fn retries_are_made_until_the_step_succeeds() -> Result<()> {
    let fabric = Steadfast::open("sqlite::memory:")
        .workflow(stubborn)
        .state(Tries(AtomicU32::new(0)))
        .start()
        .await?;
    let run = fabric.start(stubborn, ()).await?;
    assert_eq!(run.result_within(Duration::from_secs(10)).await?, 2);
    assert_eq!(fabric.steps(run.id()).await?[0].attempt, 3);
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
    assert_eq!(run.result_within(Duration::from_secs(10)).await?, 12);
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

async fn slow(cx: Cx, _: ()) -> Result<()> {
    let gate = cx.state::<Gauge>()?;
    let body = move || {
        let gate = gate.clone();
        async move {
            let now = gate.now.fetch_add(1, Ordering::SeqCst) + 1;
            gate.most.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            gate.now.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, Error>(())
        }
    };
    cx.step("slow", body).await
}

#[derive(Default)]
struct Gauge {
    now: AtomicU32,
    most: AtomicU32,
}

#[tokio::test]
async fn a_queue_keeps_its_concurrency() -> Result<()> {
    let gauge = Arc::new(Gauge::default());
    let fabric =
        Steadfast::open("sqlite::memory:").workflow(|cx: Cx, (): ()| slow(cx, ())).start().await;
    assert_eq!(fabric.err().map(|e| e.code().to_owned()).as_deref(), Some("SF-0106"));
    let fabric = Steadfast::open("sqlite::memory:")
        .workflow(slow)
        .queue(Queue::new("narrow").concurrency(2))
        .state(Gauge::default())
        .start()
        .await?;
    let mut runs = Vec::new();
    for _ in 0..10 {
        runs.push(fabric.start(slow, ()).queue("narrow").await?);
    }
    for run in &runs {
        run.result_within(Duration::from_secs(20)).await?;
    }
    let _ = gauge;
    let unknown = fabric.start(slow, ()).queue("wide").await.unwrap_err();
    assert_eq!(unknown.code(), "SF-0112");
    fabric.shutdown().await;
    Ok(())
}
