//! The driver from outside: a tiny host that keeps records in memory and replays them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

mod inputs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::executor::block_on;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use steadfast_core::driver::{Ask, Drift, Driver, Outcome, Record, Request, RunMeta, Turn};
use steadfast_core::workflow::{AppState, Workflow};
use steadfast_core::{Cx, Error, Result, Timestamp};

/// Carries out requests in an order of its own and keeps what became of them.
struct Host {
    now: i64,
    records: Vec<Record>,
    /// Which of the outstanding requests is carried out next.
    choose: fn(&[Request]) -> usize,
    /// Stops after this many deliveries, as a crash would.
    stop_after: usize,
    /// Whether another input than the recorded one is an error.
    strict: bool,
    /// Calls that were made with another one.
    drifts: Vec<Drift>,
}

impl Host {
    fn new() -> Self {
        Self {
            now: 0,
            records: Vec::new(),
            choose: |_| 0,
            stop_after: usize::MAX,
            strict: false,
            drifts: Vec::new(),
        }
    }

    fn run<W: Workflow<M>, M>(&mut self, workflow: W, input: &str) -> Option<Outcome> {
        let meta = RunMeta {
            workspace: "w".into(),
            run_id: "r".into(),
            workflow: "wf".into(),
            generation: 0,
            seed: 7,
            started_at: Timestamp::from_micros(0),
            context: Default::default(),
            strict_replay: self.strict,
        };
        let (code, input) = (workflow.code(), input.to_owned());
        let state = Arc::new(AppState::default());
        let mut driver = Driver::new(meta, self.records.clone(), state, move |cx| code(cx, input));
        let mut outstanding: Vec<Request> = Vec::new();
        for delivered in 0.. {
            let turn = driver.turn();
            self.drifts.extend(driver.take_drifts());
            match turn {
                Turn::Done(outcome) => {
                    self.records.extend(driver.take_rides());
                    return Some(outcome);
                }
                Turn::ContinueAsNew(input) => return Some(Ok(input)),
                Turn::Ask { start, dropped } => {
                    outstanding.extend(start);
                    outstanding.retain(|request| !dropped.contains(&request.id));
                }
            }
            self.records.extend(driver.take_rides());
            if delivered == self.stop_after {
                return None;
            }
            let request = outstanding.remove((self.choose)(&outstanding));
            let kind = request.ask.kind();
            let outcome = match &request.ask {
                Ask::Call { body, .. } => block_on(body()),
                Ask::Sleep { until } => {
                    self.now = self.now.max(until.as_micros());
                    Ok("null".to_owned())
                }
                Ask::Spawn(child) => Ok(format!("\"{}\"", child.run_id)),
                _ => Ok("null".to_owned()),
            };
            let at = Timestamp::from_micros(self.now);
            let seq = driver.deliver(request.id, outcome.clone(), at);
            let mut record = Record::done(request.id, seq, &request.name, kind, outcome);
            record.completed_at = at;
            record.input_digest = request.input_digest;
            self.records.push(record);
        }
        None
    }
}

async fn counted(n: u32) -> Result<u32> {
    Ok(n + 1)
}

/// Calls made by the one test that counts them.
static CALLS: AtomicU32 = AtomicU32::new(0);

async fn noted(n: u32) -> Result<u32> {
    CALLS.fetch_add(1, Ordering::SeqCst);
    Ok(n + 1)
}

async fn noting(cx: Cx, n: u32) -> Result<u32> {
    let a = cx.step(noted, n).await?;
    let b = cx.step(noted, a).await?;
    cx.step(noted, b).await
}

async fn linear(cx: Cx, n: u32) -> Result<u32> {
    let a = cx.step(counted, n).await?;
    let b = cx.step(counted, a).await?;
    cx.step(counted, b).await
}

/// R76
#[test]
fn r076_replay_returns_recorded_outputs_without_running_the_steps() {
    let mut host = Host { stop_after: 2, ..Host::new() };
    assert!(host.run(noting, "1").is_none());
    let before = CALLS.load(Ordering::SeqCst);
    host.stop_after = usize::MAX;
    assert_eq!(host.run(noting, "1"), Some(Ok("4".into())));
    assert_eq!(CALLS.load(Ordering::SeqCst), before + 1, "only the third step ran");
    let ids: Vec<_> = host.records.iter().map(|r| r.id).collect();
    assert_eq!(ids, [0, 1, 2]);
}

async fn failing(cx: Cx, (): ()) -> Result<String> {
    let tried = cx.step("fails", || async { Err::<u32, _>(Error::app("declined")) }).await;
    Ok(tried.unwrap_err().to_string())
}

/// R77
#[test]
fn r077_a_recorded_error_is_raised_again() {
    let mut host = Host::new();
    let first = host.run(failing, "null");
    assert_eq!(first, Some(Ok("\"declined\"".into())));
    assert_eq!(host.run(failing, "null"), first);
    assert_eq!(host.records.len(), 1);
}

async fn changed(cx: Cx, n: u32) -> Result<u32> {
    let a = cx.step(counted, n).await?;
    cx.step("inserted", || async { Ok::<_, Error>(()) }).await?;
    cx.step(counted, a).await
}

/// X10
#[test]
fn x010_another_step_at_the_same_place_is_reported_with_both_names() {
    let mut host = Host::new();
    host.run(linear, "1");
    let error = host.run(changed, "1").unwrap().unwrap_err();
    assert_eq!(error.code(), "SF-0201");
    assert!(error.message().contains("\"counted\"") && error.message().contains("\"inserted\""));
}

async fn shorter(cx: Cx, n: u32) -> Result<u32> {
    cx.step(counted, n).await
}

#[test]
fn code_that_ends_before_its_history_is_reported() {
    let mut host = Host::new();
    host.run(linear, "1");
    assert_eq!(host.run(shorter, "1").unwrap().unwrap_err().code(), "SF-0202");
}

async fn patched(cx: Cx, n: u32) -> Result<u32> {
    let a = cx.step(counted, n).await?;
    if cx.patched("check-stock") {
        cx.step("inserted", || async { Ok::<_, Error>(()) }).await?;
    }
    let b = cx.step(counted, a).await?;
    cx.step(counted, b).await
}

async fn deprecated(cx: Cx, n: u32) -> Result<u32> {
    let a = cx.step(counted, n).await?;
    cx.deprecate_patch("check-stock");
    cx.step("inserted", || async { Ok::<_, Error>(()) }).await?;
    let b = cx.step(counted, a).await?;
    cx.step(counted, b).await
}

#[test]
fn a_patch_keeps_old_histories_and_changes_new_ones() {
    let mut old = Host::new();
    old.run(linear, "1");
    assert_eq!(old.run(patched, "1"), Some(Ok("4".into())), "old history, old path");
    let mut new = Host::new();
    assert_eq!(new.run(patched, "1"), Some(Ok("4".into())));
    assert_eq!(new.records.len(), 5, "the mark and the new step");
    assert_eq!(new.run(patched, "1"), Some(Ok("4".into())));
    assert_eq!(new.run(deprecated, "1"), Some(Ok("4".into())));
    let mut fresh = Host::new();
    assert_eq!(fresh.run(deprecated, "1"), Some(Ok("4".into())));
    assert_eq!(fresh.records.len(), 4, "no mark any more");
}

async fn by_completion(cx: Cx, (): ()) -> Result<Vec<u32>> {
    let mut steps = FuturesUnordered::new();
    for n in 0..4u32 {
        steps.push(std::future::IntoFuture::into_future(cx.step(counted, n)));
    }
    let mut order = Vec::new();
    while let Some(n) = steps.next().await {
        let n = n?;
        order.push(n);
        // What is asked next depends on the order of completion.
        cx.compute(&format!("after-{n}"), || n)?;
    }
    Ok(order)
}

#[test]
fn outcomes_replay_in_the_order_in_which_they_first_arrived() {
    let mut host = Host { choose: |waiting| waiting.len() - 1, ..Host::new() };
    let first = host.run(by_completion, "null");
    assert_eq!(first, Some(Ok("[4,3,2,1]".into())));
    host.choose = |_| 0;
    assert_eq!(host.run(by_completion, "null"), first);
}

async fn raced(cx: Cx, (): ()) -> Result<String> {
    let step = std::future::IntoFuture::into_future(cx.step(counted, 1));
    let sleep = cx.sleep(Duration::from_secs(60));
    let winner = match futures::future::select(step, sleep).await {
        futures::future::Either::Left(_) => "step",
        futures::future::Either::Right(_) => "sleep",
    };
    cx.compute(winner, || ())?;
    Ok(winner.to_owned())
}

#[test]
fn a_race_has_the_same_winner_on_replay_and_its_loser_is_withdrawn() {
    let mut host = Host { choose: |waiting| waiting.len() - 1, ..Host::new() };
    assert_eq!(host.run(raced, "null"), Some(Ok("\"sleep\"".into())));
    host.choose = |_| 0;
    assert_eq!(host.run(raced, "null"), Some(Ok("\"sleep\"".into())));
    assert!(host.records.iter().all(|r| r.name != "counted"), "the loser left no record");
}

async fn biased(cx: Cx, (): ()) -> Result<String> {
    let mut left = std::future::IntoFuture::into_future(cx.step(counted, 1)).fuse();
    let mut right = std::future::IntoFuture::into_future(cx.step(counted, 2)).fuse();
    let mut order = Vec::new();
    for _ in 0..2 {
        let winner = futures::select_biased! { _ = left => "left", _ = right => "right" };
        cx.compute(winner, || ())?;
        order.push(winner);
    }
    Ok(order.join(" "))
}

#[test]
fn a_biased_select_has_the_same_winner_on_replay() {
    let mut host = Host { choose: |waiting| waiting.len() - 1, ..Host::new() };
    assert_eq!(host.run(biased, "null"), Some(Ok("\"right left\"".into())));
    // Both outcomes are there now, and the first branch is looked at first.
    host.choose = |_| 0;
    assert_eq!(host.run(biased, "null"), Some(Ok("\"right left\"".into())));
}

async fn waits_for_a_channel(_: Cx, (): ()) -> Result<()> {
    let (_keep, never) = futures::channel::oneshot::channel::<()>();
    never.await.map_err(Error::from_any)
}

#[test]
fn a_foreign_wait_is_reported_at_once() {
    let error = Host::new().run(waits_for_a_channel, "null").unwrap().unwrap_err();
    assert_eq!(error.code(), "SF-0203");
}

async fn nested(cx: Cx, (): ()) -> Result<String> {
    let inner = cx.clone();
    let refused = cx.step("outer", move || {
        let cx = inner.clone();
        async move { cx.step(counted, 1).await }
    });
    let nested = refused.await.unwrap_err();
    let spawned = cx.clone();
    let thread = std::thread::spawn(move || block_on(spawned.sleep(Duration::from_secs(1))));
    let spawned = thread.join().unwrap().unwrap_err();
    Ok(format!("{} {}", nested.code(), spawned.code()))
}

#[test]
fn a_call_whose_record_would_be_lost_is_refused() {
    assert_eq!(Host::new().run(nested, "null"), Some(Ok("\"SF-0206 SF-0206\"".into())));
}

/// Does something with the context inside a step's body.
async fn inside(cx: Cx, act: impl Fn(&Cx) + Clone + Send + Sync + 'static) -> Result<u32> {
    let outer = cx.clone();
    let body = move || {
        let (cx, act) = (outer.clone(), act.clone());
        async move {
            act(&cx);
            Ok::<_, Error>(1u32)
        }
    };
    cx.step("outer", body).await
}

async fn draws_inside(cx: Cx, (): ()) -> Result<u32> {
    inside(cx, |cx| _ = cx.random()).await
}

async fn makes_an_id_inside(cx: Cx, (): ()) -> Result<u32> {
    inside(cx, |cx| _ = cx.uuid()).await
}

async fn begins_anew_inside(cx: Cx, (): ()) -> Result<u32> {
    inside(cx, |cx| drop(cx.continue_as_new::<u32, u32>(2).now_or_never())).await
}

#[test]
fn what_takes_no_record_is_refused_where_replay_would_not_do_it() {
    let codes = [
        Host::new().run(draws_inside, "null"),
        Host::new().run(makes_an_id_inside, "null"),
        Host::new().run(begins_anew_inside, "null"),
    ];
    for outcome in codes {
        assert_eq!(outcome.unwrap().unwrap_err().code(), "SF-0206");
    }
}

async fn appends_after_the_end(cx: Cx, (): ()) -> Result<String> {
    cx.append("a", 1).await?;
    cx.close_stream("a").await?;
    cx.append("b", 1).await?;
    let refused = cx.append("a", 2).await.unwrap_err();
    Ok(refused.code().to_owned())
}

#[test]
fn nothing_is_appended_to_a_closed_stream() {
    let mut host = Host { stop_after: 2, ..Host::new() };
    assert_eq!(host.run(appends_after_the_end, "null"), None);
    host.stop_after = usize::MAX;
    let refused = Some(Ok("\"SF-0120\"".to_owned()));
    assert_eq!(host.run(appends_after_the_end, "null"), refused);
    assert_eq!(host.run(appends_after_the_end, "null"), refused, "and on replay");
    assert_eq!(host.records.len(), 3, "what was refused left no record");
}

async fn deterministic(cx: Cx, (): ()) -> Result<(u64, String, Timestamp)> {
    let drawn = cx.random();
    cx.sleep(Duration::from_secs(90)).await?;
    Ok((drawn, cx.uuid(), cx.now()))
}

#[test]
fn time_and_chance_are_the_same_on_replay_and_cost_no_record() {
    let mut host = Host::new();
    let first = host.run(deterministic, "null").unwrap().unwrap();
    host.now = 10_000_000_000;
    assert_eq!(host.run(deterministic, "null").unwrap().unwrap(), first);
    assert_eq!(host.records.len(), 1);
    let (_, uuid, now): (u64, String, Timestamp) = serde_json::from_str(&first).unwrap();
    assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"));
    assert_eq!(now.as_micros(), 90_000_000);
}

async fn panics(_: Cx, (): ()) -> Result<()> {
    panic!("in the workflow itself")
}

#[test]
fn a_panic_in_workflow_code_is_an_error() {
    let error = Host::new().run(panics, "null").unwrap().unwrap_err();
    assert_eq!(error.code(), "SF-0205");
    assert!(error.message().contains("in the workflow itself"));
}

async fn forever(cx: Cx, n: u32) -> Result<u32> {
    if n < 3 {
        return cx.continue_as_new(n + 1).await;
    }
    Ok(n)
}

#[test]
fn continue_as_new_gives_the_next_input() {
    assert_eq!(Host::new().run(forever, "1"), Some(Ok("2".into())));
    assert_eq!(Host::new().run(forever, "3"), Some(Ok("3".into())));
}
