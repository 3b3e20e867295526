//! Shapes of runs that talk: children, signals, sends, streams, new beginnings.

use std::time::Duration;

use futures::future::join;
use serde_json::json;
use steadfast_core::{Cx, Result, RunStatus};
use steadfast_runtime_native::Registry;

use super::super::Shape;
use super::super::check::ensure;
use super::{act, known};

pub(super) fn register(registry: &mut Registry) {
    known!(registry, children, child, two_children, signal_first, signal_in_time);
    known!(registry, sender, receiver, stream, continued, tick);
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A child whose result is awaited, and one that goes its own way. R78.
pub(super) const CHILDREN: Shape = Shape {
    name: "children",
    nodes: 2,
    script: |script| Box::pin(async move { script.start("run", "children", 1).await }),
    check: |view| {
        let child = view.value("run/1", "work");
        view.returned("run", &json!([view.value("run", "before"), child]))?;
        view.returned("run/1", &child)?;
        ensure!(view.row("run/2")?.status == RunStatus::Success, "the detached child failed");
        ensure!(view.row("run/1")?.parent == view.id("run"), "the child has another parent");
        Ok(())
    },
};

async fn children(cx: Cx, input: u64) -> Result<(u64, u64)> {
    let before = act(&cx, "before", &[]).await?;
    let attached = cx.spawn(child, input).await?;
    cx.spawn(child, input).detached().await?;
    let result = attached.result().await?;
    Ok((before, result))
}

async fn child(cx: Cx, _: u64) -> Result<u64> {
    act(&cx, "work", &[]).await
}

/// Two children at once.
pub(super) const TWO_CHILDREN: Shape = Shape {
    name: "two_children",
    nodes: 2,
    script: |script| Box::pin(async move { script.start("run", "two_children", 1).await }),
    check: |view| {
        let results = [view.value("run/0", "work"), view.value("run/1", "work")];
        let after = view.value("run", "after");
        view.returned("run", &json!([results[0], results[1], after]))
    },
};

async fn two_children(cx: Cx, input: u64) -> Result<(u64, u64, u64)> {
    let (left, right) = join(cx.child(child, input), cx.child(child, input + 1)).await;
    let (left, right) = (left?, right?);
    Ok((left, right, act(&cx, "after", &[left, right]).await?))
}

/// A signal that is there before anybody waits for it.
pub(super) const SIGNAL_FIRST: Shape = Shape {
    name: "signal_first",
    nodes: 1,
    script: |script| {
        Box::pin(async move {
            script.start("run", "signal_first", 1).await;
            for (id, payload) in [("one", "1"), ("two", "2")] {
                // Refused only when a script that began again finds the run over.
                let id_of_run = script.id("run");
                drop(script.client.signal(&id_of_run, "go", payload.to_owned(), Some(id)).await);
            }
        })
    },
    check: |view| view.returned("run", &json!([view.value("run", "a"), 1, 2])),
};

async fn signal_first(cx: Cx, _: u64) -> Result<(u64, u64, u64)> {
    let a = act(&cx, "a", &[]).await?;
    let first = cx.wait_signal::<u64>("go").await?;
    let second = cx.wait_signal::<u64>("go").await?;
    Ok((a, first, second))
}

/// A signal against a limit of time: one of them wins, once.
pub(super) const SIGNAL_IN_TIME: Shape = Shape {
    name: "signal_in_time",
    nodes: 1,
    script: |script| {
        Box::pin(async move {
            script.start("run", "signal_in_time", 1).await;
            script.sleep(10_000).await;
            let run = script.id("run");
            drop(script.client.signal(&run, "go", "5".to_owned(), Some("only")).await);
        })
    },
    check: |view| {
        let got = view.record("run", "go").ok_or("no record of the wait")?;
        let got = if got.outcome == Ok("[5]".to_owned()) { json!(5) } else { json!(null) };
        view.returned("run", &json!([got, view.value("run", "after")]))
    },
};

async fn signal_in_time(cx: Cx, _: u64) -> Result<(Option<u64>, u64)> {
    let got = cx.wait_signal::<u64>("go").timeout(secs(30)).await?;
    Ok((got, act(&cx, "after", &[]).await?))
}

/// One run sends to another: each signal once, in order.
pub(super) const SEND: Shape = Shape {
    name: "send",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            script.start("to", "receiver", 1).await;
            script.start("run", "sender", script.id("to")).await;
        })
    },
    check: |view| {
        let sent = ["a", "b"].map(|step| view.value("run", step));
        view.returned("run", &json!(sent))?;
        view.returned("to", &json!(sent))
    },
};

async fn sender(cx: Cx, to: String) -> Result<(u64, u64)> {
    let a = act(&cx, "a", &[]).await?;
    cx.send(&to, "mail", a).await?;
    let b = act(&cx, "b", &[a]).await?;
    cx.send(&to, "mail", b).await?;
    Ok((a, b))
}

async fn receiver(cx: Cx, _: u64) -> Result<(u64, u64)> {
    let first = cx.wait_signal::<u64>("mail").await?;
    let second = cx.wait_signal::<u64>("mail").await?;
    Ok((first, second))
}

/// Items in order, each once, and a value that is the newest.
pub(super) const STREAM: Shape = Shape {
    name: "stream",
    nodes: 1,
    script: |script| Box::pin(async move { script.start("run", "stream", 1).await }),
    check: |view| {
        let a = view.value("run", "a");
        view.returned("run", &a)?;
        let wanted = ["1".to_owned(), "2".to_owned(), a.to_string()];
        let (items, closed) = view.stream("run", "items");
        ensure!(items == wanted && closed, "the stream has {items:?}, closed: {closed}");
        let value = view.published("run", "state");
        ensure!(value.as_deref() == Some("\"done\""), "the value is {value:?}");
        Ok(())
    },
};

async fn stream(cx: Cx, _: u64) -> Result<u64> {
    cx.publish("state", "begun").await?;
    cx.append("items", 1).await?;
    cx.append("items", 2).await?;
    let a = act(&cx, "a", &[]).await?;
    cx.append("items", a).await?;
    cx.publish("state", "done").await?;
    cx.close_stream("items").await?;
    Ok(a)
}

/// Three lives of one run; a signal outlasts them.
pub(super) const CONTINUE: Shape = Shape {
    name: "continued",
    nodes: 1,
    script: |script| {
        Box::pin(async move {
            script.start("run", "continued", json!([])).await;
            let run = script.id("run");
            drop(script.client.signal(&run, "end", "9".to_owned(), Some("end")).await);
        })
    },
    check: |view| {
        let row = view.row("run")?;
        ensure!(row.generation == 2, "generation {}", row.generation);
        let (items, _) = view.stream("run", "values");
        let values: Vec<u64> = items.iter().filter_map(|item| item.parse().ok()).collect();
        ensure!(values.len() == 3, "the stream has {items:?}");
        view.returned("run", &json!([values, 9]))
    },
};

async fn continued(cx: Cx, mut so_far: Vec<u64>) -> Result<(Vec<u64>, u64)> {
    let step = ["first", "second", "third"][so_far.len().min(2)];
    let value = act(&cx, step, &[]).await?;
    cx.append("values", value).await?;
    so_far.push(value);
    if so_far.len() < 3 {
        return cx.continue_as_new(so_far).await;
    }
    Ok((so_far, cx.wait_signal::<u64>("end").await?))
}

/// A run that lives for ever, a tick at a time: every tick waits as long as the first. R123.
pub(super) const TICK: Shape = Shape {
    name: "tick",
    nodes: 1,
    script: |script| Box::pin(async move { script.start("run", "tick", 0).await }),
    check: |view| {
        view.result("run")?;
        let at = ["tick_0", "tick_1", "tick_2"]
            .map(|step| view.calls("run", step).first().map(|call| call.started_at));
        let [Some(first), Some(second), Some(third)] = at else {
            return Err("a tick was left out".to_owned());
        };
        let early = view.clock_error();
        ensure!(first.until(second) + early >= secs(60), "took {:?}", first.until(second));
        ensure!(second.until(third) + early >= secs(60), "took {:?}", second.until(third));
        Ok(())
    },
};

async fn tick(cx: Cx, n: usize) -> Result<u64> {
    cx.sleep(secs(60)).await?;
    let value = act(&cx, ["tick_0", "tick_1", "tick_2"][n.min(2)], &[]).await?;
    if n < 2 {
        return cx.continue_as_new(n + 1).await;
    }
    Ok(value)
}
