//! Signals, sends, published values, streams, transactional company.

use std::time::Duration;

use steadfast::{Cx, Result, RunStatus};

use super::{Fixture, SOON, case_table, until};

case_table! {
    a_signal_before_the_wait_is_kept,
    signals_are_consumed_once_and_in_order,
    a_signal_is_found_behind_a_thousand_others,
    a_signal_of_the_same_id_arrives_once,
    a_wait_with_a_limit_ends_without_a_signal,
    a_signal_of_null_is_not_a_timeout,
    a_suspended_run_leaves_memory_and_is_explained,
    a_run_sends_to_another_once,
    a_send_to_nobody_is_an_error_the_code_can_catch,
    published_values_are_read_from_outside,
    a_stream_is_followed_live_to_its_end,
}

async fn collects(cx: Cx, n: usize) -> Result<Vec<u32>> {
    let mut got = Vec::new();
    for _ in 0..n {
        got.push(cx.wait_signal("n").await?);
    }
    Ok(got)
}

async fn a_signal_before_the_wait_is_kept(on: Fixture) {
    let client = on.client();
    let run = client.start_named::<Vec<u32>>("collects", &2).await.unwrap();
    run.signal("n", 1).await.unwrap();
    run.signal("other", 9).await.unwrap();
    run.signal("n", 2).await.unwrap();
    let fabric = on.fabric().workflow(collects).start().await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), [1, 2]);
    fabric.shutdown().await;
}

async fn signals_are_consumed_once_and_in_order(on: Fixture) {
    let fabric = on.fabric().workflow(collects).start().await.unwrap();
    let run = fabric.start(collects, 30).await.unwrap();
    for n in 0..30u32 {
        run.signal("n", n).await.unwrap();
    }
    assert_eq!(run.result_within(SOON).await.unwrap(), (0..30).collect::<Vec<u32>>());
    let late = run.signal("n", 31).await.unwrap_err();
    assert_eq!(late.code(), "SF-0113");
    fabric.shutdown().await;
}

async fn late_name(cx: Cx, _: ()) -> Result<(u32, u32)> {
    let first = cx.wait_signal("first").await?;
    Ok((first, cx.wait_signal("second").await?))
}

async fn a_signal_is_found_behind_a_thousand_others(on: Fixture) {
    let client = on.client();
    let run = client.start_named::<(u32, u32)>("late_name", &()).await.unwrap();
    let noise = (0..1001u32).map(|n| run.signal("noise", n));
    for sent in futures::future::join_all(noise).await {
        sent.unwrap();
    }
    run.signal("second", 2).await.unwrap();
    let fabric = on.fabric().workflow(late_name).start().await.unwrap();
    // Found although it stands behind the others, and although another name was read first.
    run.signal("first", 1).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), (1, 2));
    fabric.shutdown().await;
}

async fn a_signal_of_the_same_id_arrives_once(on: Fixture) {
    let fabric = on.fabric().workflow(collects).start().await.unwrap();
    let run = fabric.start(collects, 2).await.unwrap();
    for _ in 0..3 {
        fabric.signal_once(run.id(), "n", 1, "first").await.unwrap();
    }
    fabric.signal_once(run.id(), "n", 2, "second").await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), [1, 2]);
    fabric.shutdown().await;
}

async fn limited(cx: Cx, _: ()) -> Result<(Option<u32>, Option<u32>)> {
    let none = cx.wait_signal("n").timeout(Duration::from_millis(100)).await?;
    let some = cx.wait_signal("n").timeout(SOON).await?;
    Ok((none, some))
}

async fn a_wait_with_a_limit_ends_without_a_signal(on: Fixture) {
    let fabric = on.fabric().workflow(limited).start().await.unwrap();
    let run = fabric.start(limited, ()).await.unwrap();
    until("the first wait is over", async || {
        fabric.steps(run.id()).await.is_ok_and(|steps| steps.len() == 1)
    })
    .await;
    run.signal("n", 7).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), (None, Some(7)));
    fabric.shutdown().await;
}

async fn unit(cx: Cx, _: ()) -> Result<bool> {
    let got: Option<Option<u8>> = cx.wait_signal("maybe").timeout(SOON).await?;
    Ok(got == Some(None))
}

async fn a_signal_of_null_is_not_a_timeout(on: Fixture) {
    let fabric = on.fabric().workflow(unit).start().await.unwrap();
    let run = fabric.start(unit, ()).await.unwrap();
    run.signal("maybe", None::<u8>).await.unwrap();
    assert!(run.result_within(SOON).await.unwrap());
    fabric.shutdown().await;
}

async fn a_suspended_run_leaves_memory_and_is_explained(on: Fixture) {
    let fabric = on.fabric().workflow(collects).start().await.unwrap();
    let run = fabric.start(collects, 1).await.unwrap();
    until("it left memory", async || {
        fabric.live_runs() == 0 && run.info().await.is_ok_and(|run| run.parked)
    })
    .await;
    assert_eq!(run.status().await.unwrap(), RunStatus::Pending);
    assert_eq!(fabric.explain(run.id()).await.unwrap().detail, "waits for a signal \"n\"");
    run.signal("n", 3).await.unwrap();
    assert_eq!(run.result_within(SOON).await.unwrap(), [3]);
    fabric.shutdown().await;
}

async fn sends(cx: Cx, to: String) -> Result<()> {
    cx.send(&to, "n", 41).await?;
    cx.sleep(Duration::from_millis(150)).await?; // replayed: the send is not repeated
    cx.send(&to, "n", 42).await
}

async fn a_run_sends_to_another_once(on: Fixture) {
    let fabric = on.fabric().workflow(collects).workflow(sends).start().await.unwrap();
    let receiver = fabric.start(collects, 2).id("receiver").await.unwrap();
    let sender = fabric.start(sends, "receiver".to_owned()).await.unwrap();
    assert_eq!(receiver.result_within(SOON).await.unwrap(), [41, 42]);
    sender.result_within(SOON).await.unwrap();
    fabric.shutdown().await;
}

async fn a_send_to_nobody_is_an_error_the_code_can_catch(on: Fixture) {
    let fabric = on.fabric().workflow(sends).start().await.unwrap();
    let run = fabric.start(sends, "nobody".to_owned()).await.unwrap();
    let error = run.result_within(SOON).await.unwrap_err();
    assert_eq!(error.code(), "SF-0303");
    fabric.shutdown().await;
}

async fn publishes(cx: Cx, _: ()) -> Result<()> {
    cx.publish("progress", 50).await?;
    cx.wait_signal::<()>("go").await?;
    cx.publish("progress", 100).await
}

async fn published_values_are_read_from_outside(on: Fixture) {
    let fabric = on.fabric().workflow(publishes).start().await.unwrap();
    let run = fabric.start(publishes, ()).await.unwrap();
    assert_eq!(run.value::<u32>("progress", SOON).await.unwrap(), Some(50));
    assert_eq!(run.value::<u32>("other", Duration::ZERO).await.unwrap(), None);
    run.signal("go", ()).await.unwrap();
    run.result_within(SOON).await.unwrap();
    assert_eq!(run.value::<u32>("progress", SOON).await.unwrap(), Some(100));
    fabric.shutdown().await;
}

async fn streams(cx: Cx, _: ()) -> Result<()> {
    for n in 0..3 {
        cx.append("log", n).await?;
    }
    cx.wait_signal::<()>("go").await?;
    cx.append("log", 3).await?;
    cx.close_stream("log").await
}

async fn a_stream_is_followed_live_to_its_end(on: Fixture) {
    let fabric = on.fabric().workflow(streams).start().await.unwrap();
    let run = fabric.start(streams, ()).await.unwrap();
    let mut log = run.stream::<u32>("log");
    for n in 0..3 {
        assert_eq!(log.next().await.unwrap(), Some(n), "before the run is over");
    }
    run.signal("go", ()).await.unwrap();
    assert_eq!(log.next().await.unwrap(), Some(3));
    assert_eq!(log.next().await.unwrap(), None);
    fabric.shutdown().await;
}
