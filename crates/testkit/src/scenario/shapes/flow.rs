//! Shapes of a single run: order, parallelism, races, time, retries, effects.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{Either, join3, select};
use futures::stream::FuturesUnordered;
use serde_json::json;
use steadfast_core::retry::Retry;
use steadfast_core::workflow::Effect;
use steadfast_core::{Cx, Error, Result};
use steadfast_runtime_native::Registry;

use super::super::check::ensure;
use super::super::{Deed, How, Script, Scripted, Shape, View};
use super::{act, act_so, known, look, site};

pub(super) fn register(registry: &mut Registry) {
    known!(registry, linear, verbs, parallel, race, unordered, sleeps, retry, retries_used_up);
    known!(registry, panics, keyed, at_most_once, at_most_once_retried);
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Starts the one run of a shape from outside.
macro_rules! started {
    ($workflow:literal) => {
        |script: Script| -> Scripted {
            Box::pin(async move { script.start("run", $workflow, 7).await })
        }
    };
}

/// One step after the other. Started inside the worker.
pub(super) const LINEAR: Shape = Shape {
    name: "linear",
    nodes: 2,
    script: |script| Box::pin(async move { script.submit(script.spec("run", "linear", 7)).await }),
    check: |view| {
        let values = ["a", "b", "c"].map(|step| view.value("run", step));
        view.returned("run", &json!(values))
    },
};

pub(super) async fn linear(cx: Cx, _: u64) -> Result<Vec<u64>> {
    let a = act(&cx, "a", &[]).await?;
    let b = act(&cx, "b", &[a]).await?;
    let c = act(&cx, "c", &[a, b]).await?;
    Ok(vec![a, b, c])
}

/// Pure functions and reads between steps: their records ride along.
pub(super) const VERBS: Shape = Shape {
    name: "verbs",
    nodes: 1,
    script: started!("verbs"),
    check: |view| {
        let steps = ["double", "look", "act", "sum", "look_again", "act_again"];
        let values = steps.map(|step| view.value("run", step));
        let (look, act) = (values[1].as_u64().unwrap_or(0), values[2].as_u64().unwrap_or(0));
        ensure!(values[0] == 14 && values[3] == look + act, "computed {values:?}");
        view.returned("run", &json!(values))
    },
};

async fn verbs(cx: Cx, input: u64) -> Result<Vec<u64>> {
    let double = cx.compute("double", || input * 2)?;
    let read = look(&cx, "look").await?;
    let done = act(&cx, "act", &[double, read]).await?;
    let sum = cx.compute("sum", || read + done)?;
    let again = look(&cx, "look_again").await?;
    let last = act(&cx, "act_again", &[double, read, done, sum, again]).await?;
    Ok(vec![double, read, done, sum, again, last])
}

/// Three steps at once, then one that needs them all.
pub(super) const PARALLEL: Shape = Shape {
    name: "parallel",
    nodes: 2,
    script: started!("parallel"),
    check: |view| {
        let values = ["x", "y", "z", "after"].map(|step| view.value("run", step));
        view.returned("run", &json!(values))
    },
};

async fn parallel(cx: Cx, _: u64) -> Result<Vec<u64>> {
    let (x, y, z) = (act(&cx, "x", &[]), act(&cx, "y", &[]), act(&cx, "z", &[]));
    let (x, y, z) = join3(x.into_future(), y.into_future(), z.into_future()).await;
    let (x, y, z) = (x?, y?, z?);
    let after = act(&cx, "after", &[x, y, z]).await?;
    Ok(vec![x, y, z, after])
}

/// A step against a timer: whoever wins on the first delivery wins on every replay.
pub(super) const RACE: Shape = Shape {
    name: "race",
    nodes: 1,
    script: started!("race"),
    check: |view| {
        let won = match (view.record("run", "slow"), view.record("run", "sleep")) {
            (Some(step), Some(sleep)) => step.seq < sleep.seq,
            (step, _) => step.is_some(),
        };
        let winner = if won { view.value("run", "slow") } else { json!(0) };
        view.returned("run", &json!([winner, view.value("run", "after")]))
    },
};

async fn race(cx: Cx, _: u64) -> Result<(u64, u64)> {
    let slow = act(&cx, "slow", &[]).into_future();
    let winner = match select(slow, cx.sleep(ms(20))).await {
        Either::Left((value, _)) => value?,
        Either::Right(_) => 0,
    };
    let saw: &[u64] = if winner == 0 { &[] } else { &[winner] };
    Ok((winner, act(&cx, "after", saw).await?))
}

/// Steps that are followed up in the order in which they end.
pub(super) const UNORDERED: Shape = Shape {
    name: "unordered",
    nodes: 1,
    script: started!("unordered"),
    check: |view| {
        let mut ended = ["x", "y", "z"].map(|step| view.record("run", step).map(|r| (r.seq, step)));
        ended.sort();
        let then = |step: &str| format!("then_{step}");
        let order = ended.iter().flatten();
        let values: Vec<_> = order
            .flat_map(|(_, step)| [view.value("run", step), view.value("run", &then(step))])
            .collect();
        ensure!(values.len() == 6, "only {ended:?} ended");
        view.returned("run", &json!(values))
    },
};

async fn unordered(cx: Cx, _: u64) -> Result<Vec<u64>> {
    let steps = [("x", "then_x"), ("y", "then_y"), ("z", "then_z")];
    let mut under_way: FuturesUnordered<_> = steps
        .into_iter()
        .map(|(step, then)| {
            let call = act(&cx, step, &[]).into_future();
            async move { (call.await, then) }
        })
        .collect();
    let mut values = Vec::new();
    while let Some((value, then)) = under_way.next().await {
        let value = value?;
        values.push(value);
        values.push(act(&cx, then, &[value]).await?);
    }
    Ok(values)
}

/// Waits longer than a lease, with the run out of memory.
pub(super) const SLEEPS: Shape = Shape {
    name: "sleeps",
    nodes: 1,
    script: started!("sleeps"),
    check: |view| {
        let values = ["a", "b", "c"].map(|step| view.value("run", step));
        view.returned("run", &json!(values))?;
        let at = |step| view.calls("run", step).first().map(|call| call.started_at);
        let (Some(a), Some(b), Some(c)) = (at("a"), at("b"), at("c")) else {
            return Err("a step was never called".to_owned());
        };
        // R123: a timer is as long as it says. A wrong clock may move it by what it is wrong.
        let early = view.clock_error();
        ensure!(a.until(b) + early >= ms(50_000), "the first sleep took {:?}", a.until(b));
        ensure!(b.until(c) + early >= ms(70_000), "the second sleep took {:?}", b.until(c));
        Ok(())
    },
};

async fn sleeps(cx: Cx, _: u64) -> Result<Vec<u64>> {
    let a = act(&cx, "a", &[]).await?;
    cx.sleep(ms(50_000)).await?;
    let b = act(&cx, "b", &[a]).await?;
    cx.sleep(ms(30_000)).await?;
    cx.sleep(ms(40_000)).await?;
    let c = act(&cx, "c", &[a, b]).await?;
    Ok(vec![a, b, c])
}

/// Fails twice: the waits are durable, one in memory and one out of it.
pub(super) const RETRY: Shape = Shape {
    name: "retry",
    nodes: 1,
    script: started!("retry"),
    check: |view| {
        view.returned("run", &json!([view.value("run", "flaky"), view.value("run", "after")]))?;
        let attempt = view.record("run", "flaky").map_or(0, |record| record.attempt);
        ensure!((1..=3).contains(&attempt), "{attempt} attempts");
        Ok(())
    },
};

async fn retry(cx: Cx, _: u64) -> Result<(u64, u64)> {
    let flaky = act_so(&cx, "flaky", &[], How::FailFirst(2));
    let flaky = flaky.retry(Retry::listed([ms(30), ms(5000)])).await?;
    Ok((flaky, act(&cx, "after", &[flaky]).await?))
}

/// R77: fails for good; the error is recorded, and replayed.
pub(super) const RETRIES_USED_UP: Shape = Shape {
    name: "retries_used_up",
    nodes: 1,
    script: started!("retries_used_up"),
    check: |view| {
        view.returned("run", &json!(["planned", view.value("run", "after")]))?;
        let record = view.record("run", "hopeless").ok_or("no record")?;
        ensure!(record.attempt == 3 && record.outcome.is_err(), "{record:?}");
        ensure!(view.calls("run", "hopeless").len() >= 3, "too few calls");
        Ok(())
    },
};

async fn retries_used_up(cx: Cx, _: u64) -> Result<(String, u64)> {
    let hopeless = act_so(&cx, "hopeless", &[], How::Fail);
    let error = hopeless.retry(Retry::listed([ms(20), ms(2000)])).await;
    let text = error.map_or_else(|error| error.message().to_owned(), |_| "no error".to_owned());
    Ok((text, act(&cx, "after", &[]).await?))
}

/// A panic is an error like others.
pub(super) const PANIC: Shape = Shape {
    name: "panics",
    nodes: 1,
    script: started!("panics"),
    check: |view| {
        let wanted = json!(["SF-0205", view.value("run", "after")]);
        view.returned("run", &wanted)
    },
};

async fn panics(cx: Cx, _: u64) -> Result<(String, u64)> {
    let panicked = act_so(&cx, "panicking", &[], How::Panic).await;
    let code = panicked.map_or_else(|error| error.code().to_owned(), |_| "no error".to_owned());
    Ok((code, act(&cx, "after", &[]).await?))
}

fn effect(
    cx: &Cx,
    effect: Effect,
    step: &'static str,
    how: How,
) -> steadfast_core::workflow::Call<u64> {
    let (site, run) = (site(cx), cx.run_id().to_owned());
    cx.effect(effect, move |key| {
        let deed = Deed { run: run.clone(), step, saw: Vec::new(), key, strict: true, how };
        Arc::clone(&site).perform(deed)
    })
}

/// May be called again, always with the same key.
pub(super) const KEYED: Shape = Shape {
    name: "keyed",
    nodes: 2,
    script: started!("keyed"),
    check: |view| {
        view.returned("run", &json!([view.value("run", "charge"), view.value("run", "after")]))?;
        let calls = view.calls("run", "charge");
        ensure!(calls.iter().all(|call| call.key == "order-7"), "other keys in {calls:?}");
        Ok(())
    },
};

async fn keyed(cx: Cx, input: u64) -> Result<(u64, u64)> {
    let declared = Effect::keyed("charge", format!("order-{input}"));
    let charged = effect(&cx, declared, "charge", How::Work).await?;
    Ok((charged, act(&cx, "after", &[charged]).await?))
}

/// Is called once at the most; after a crash its outcome is unknown, and that is an outcome.
pub(super) const AT_MOST_ONCE: Shape = Shape {
    name: "at_most_once",
    nodes: 2,
    script: started!("at_most_once"),
    check: |view| {
        let calls = view.calls("run", "mail");
        ensure!(calls.len() <= 1, "called {} times: {calls:?}", calls.len());
        known_or_unknown(view)
    },
};

fn known_or_unknown(view: &View<'_>) -> std::result::Result<(), String> {
    let record = view.record("run", "mail").ok_or("no record")?;
    let mailed = match &record.outcome {
        Ok(_) => view.value("run", "mail"),
        Err(error) => {
            ensure!(error.code() == "SF-0301", "{record:?}");
            json!(0)
        }
    };
    view.returned("run", &json!([mailed, view.value("run", "after")]))
}

async fn at_most_once(cx: Cx, input: u64) -> Result<(u64, u64)> {
    let declared = Effect::at_most_once("mail", format!("mail-{input}"));
    let mailed = or_unknown(effect(&cx, declared, "mail", How::Work).await)?;
    Ok((mailed, act(&cx, "after", &[]).await?))
}

fn or_unknown(outcome: Result<u64>) -> Result<u64> {
    match outcome {
        Err(error) if error.code() == "SF-0301" => Ok(0),
        other => other.map_err(|error: Error| error),
    }
}

/// A failed attempt may be repeated, a begun one not: it is done once at the most.
pub(super) const AT_MOST_ONCE_RETRIED: Shape = Shape {
    name: "at_most_once_retried",
    nodes: 2,
    script: started!("at_most_once_retried"),
    check: |view| {
        let calls = view.calls("run", "mail");
        // A call that failed has said so; one that never answered may have been done.
        let failed = calls.iter().filter(|call| call.ended.is_some() && !call.done).count();
        ensure!(calls.len() - failed <= 1, "done more than once: {calls:?}");
        known_or_unknown(view)
    },
};

async fn at_most_once_retried(cx: Cx, input: u64) -> Result<(u64, u64)> {
    let declared = Effect::at_most_once("mail", format!("mail-{input}"));
    let mail = effect(&cx, declared, "mail", How::FailFirst(1));
    let mailed = or_unknown(mail.retry(Retry::listed([ms(30), ms(30)])).await)?;
    Ok((mailed, act(&cx, "after", &[]).await?))
}
