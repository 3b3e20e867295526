//! What a caller is told: whether a run is new, how long a sleep was, why a run does not go on.

use std::time::Duration;

use futures::future::join_all;
use steadfast::{Cx, Result, Rule, StepKind, Timestamp};
use steadfast_core::env::Env;
use steadfast_store::StoreExt;
use steadfast_store::op::{DEFAULT_QUEUE, Rest, Start, Started};

use super::{Fixture, SOON, case_table, until};

case_table! {
    a_debounced_call_that_replaces_an_input_is_not_new,
    a_fork_with_a_known_id_is_not_new,
    the_stream_of_a_run_that_does_not_exist_is_an_error_and_no_endless_wait,
    a_sleep_is_listed_with_its_time,
    a_due_run_without_a_worker_of_its_version_is_explained,
}

async fn same(_: Cx, n: u32) -> Result<u32> {
    Ok(n)
}

async fn a_debounced_call_that_replaces_an_input_is_not_new(on: Fixture) {
    let client = on.client();
    let call = async |n: u32| {
        let call = client.start_named::<u32>("same", &n);
        call.debounce("k", Duration::from_secs(3600), None).await.unwrap()
    };
    let first = call(1).await;
    assert!(first.is_new());
    for n in 2..4 {
        let again = call(n).await;
        assert_eq!((again.id(), again.is_new()), (first.id(), false));
    }
    let other = client.start_named::<u32>("same", &1);
    assert!(other.debounce("other", Duration::ZERO, None).await.unwrap().is_new());
}

async fn a_fork_with_a_known_id_is_not_new(on: Fixture) {
    let fabric = on.fabric().workflow(same).start().await.unwrap();
    let source = fabric.start(same, 7).await.unwrap();
    assert_eq!(source.result_within(SOON).await.unwrap(), 7);
    for is_new in [true, false, false] {
        let fork = fabric.fork::<u32>(source.id(), 0).id("fork").await.unwrap();
        assert_eq!(fork.is_new(), is_new);
    }
    assert!(fabric.fork::<u32>(source.id(), 0).await.unwrap().is_new());
    fabric.shutdown().await;
}

async fn the_stream_of_a_run_that_does_not_exist_is_an_error_and_no_endless_wait(on: Fixture) {
    let client = on.client();
    let mut log = client.run::<u32>("nobody").stream::<u32>("log");
    let next = tokio::time::timeout(SOON, log.next()).await.expect("it does not wait");
    assert_eq!(next.unwrap_err().code(), "SF-0109");
}

async fn naps(cx: Cx, ms: u64) -> Result<()> {
    cx.sleep(Duration::from_millis(ms)).await
}

/// One that stays in memory, and one that is suspended.
async fn a_sleep_is_listed_with_its_time(on: Fixture) {
    let fabric = on.fabric().workflow(naps).start().await.unwrap();
    let lists_it = async |ms: u64| {
        let run = fabric.start(naps, ms).await.unwrap();
        run.result_within(SOON).await.unwrap();
        let [sleep] = &fabric.steps(run.id()).await.unwrap()[..] else { panic!("one record") };
        assert_eq!(sleep.kind, StepKind::Sleep);
        let took = sleep.started_at.until(sleep.completed_at);
        assert!(took >= Duration::from_millis(ms), "{ms} ms are listed as {took:?}");
    };
    join_all([30, 400].map(lists_it)).await;
    fabric.shutdown().await;
}

async fn a_due_run_without_a_worker_of_its_version_is_explained(on: Fixture) {
    // Left by a worker of version 1 that nobody has heard of for long: suspended, and due.
    let now = steadfast::TokioEnv::current().now();
    let began = Timestamp::from_micros(now.as_micros() - 3_600_000_000);
    let rest = Rest { wake_at: began.after(Duration::from_secs(1)), waits: "[]".to_owned() };
    let start = Start {
        workspace: on.workspace.clone(),
        run_id: "old".to_owned(),
        workflow: "same".to_owned(),
        input: "1".to_owned(),
        queue: DEFAULT_QUEUE.to_owned(),
        partition: String::new(),
        priority: 0,
        dedupe_id: String::new(),
        app_version: "1".to_owned(),
        max_attempts: 9,
        ready_at: began,
        timeout: None,
        deadline_at: None,
        parent: String::new(),
        detached: false,
        seed: 1,
        context: None,
        claim: Some(("gone".to_owned(), began.after(Duration::from_secs(9)))),
        rest: Some(rest),
        now: began,
    };
    assert!(matches!(on.store.ask(start).await, Ok(Started::New(Some(_)))));
    let other = on.fabric().workflow(same).version("2").start().await.unwrap();
    let why = other.explain("old").await.unwrap();
    assert_eq!(why.rule, Rule::NoWorkerOfVersion, "{why}");
    let right = on.fabric().workflow(same).version("1").start().await.unwrap();
    until("it goes on", async || other.get("old").await.unwrap().status.is_terminal()).await;
    other.shutdown().await;
    right.shutdown().await;
}
