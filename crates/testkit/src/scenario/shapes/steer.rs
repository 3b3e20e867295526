//! Shapes of runs that are steered or endangered: cancel, resume, fork, deadline, poison, shutdown.

use std::time::Duration;

use serde_json::json;
use steadfast_core::{Cx, Result, RunStatus};
use steadfast_runtime_native::{Registry, StartSpec};
use steadfast_store::op;

use super::super::check::ensure;
use super::super::{How, Shape};
use super::{act, act_so, known};

pub(super) fn register(registry: &mut Registry) {
    known!(registry, long, leaf, renewed, forked, late, hurried, bystander, drained);
    registry.add_named("poison", 2, poison).expect("invariant: a name of its own");
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Stopped from outside at some moment, children included.
pub(super) const CANCEL: Shape = Shape {
    name: "cancel",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            script.start("run", "long", 1).await;
            script.sleep(script.draw(15_000)).await;
            // An error says that it had ended before.
            drop(script.client.cancel(&script.id("run"), "enough").await);
        })
    },
    check: |view| match view.row("run")?.status {
        RunStatus::Success => Ok(()),
        _ => {
            view.stopped("run", RunStatus::Cancelled, "SF-0305")?;
            // A child that was started is stopped with its parent.
            let child = view.row("run/1").map_or(RunStatus::Cancelled, |row| row.status);
            ensure!(
                matches!(child, RunStatus::Cancelled | RunStatus::Success),
                "the child is {child}"
            );
            Ok(())
        }
    },
};

/// Stopped after a new beginning: the child of the old one is stopped too.
pub(super) const CANCEL_RENEWED: Shape = Shape {
    name: "cancel_renewed",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            script.start("run", "renewed", 0).await;
            script.sleep(2000 + script.draw(6000)).await;
            // An error says that it had ended before.
            drop(script.client.cancel(&script.id("run"), "enough").await);
        })
    },
    check: |view| {
        let (run, child) = (view.row("run")?, view.row("run/1").ok());
        if run.status == RunStatus::Success {
            return Ok(());
        }
        view.stopped("run", RunStatus::Cancelled, "SF-0305")?;
        // It was stopped with its parent, or had ended before that.
        let fine = child.is_none_or(|child| match child.status {
            RunStatus::Cancelled => true,
            status => status.is_terminal() && view.wrote_before_stop("run/1", "run"),
        });
        ensure!(fine, "the child went on");
        Ok(())
    },
};

async fn renewed(cx: Cx, round: u64) -> Result<u64> {
    if round == 0 {
        act(&cx, "a", &[]).await?;
        cx.spawn(leaf, round).await?;
        return cx.continue_as_new(round + 1).await;
    }
    cx.sleep(secs(20)).await?;
    act(&cx, "b", &[]).await
}

async fn long(cx: Cx, input: u64) -> Result<u64> {
    let a = act(&cx, "a", &[]).await?;
    let spawned = cx.spawn(leaf, input).await?;
    cx.sleep(secs(4)).await?;
    let b = act(&cx, "b", &[a]).await?;
    spawned.result().await?;
    act(&cx, "c", &[a, b]).await
}

async fn leaf(cx: Cx, _: u64) -> Result<u64> {
    let d = act(&cx, "d", &[]).await?;
    cx.sleep(secs(6)).await?;
    act(&cx, "e", &[d]).await
}

/// Stopped, put back, and finished without doing anything twice. R74.
pub(super) const CANCEL_RESUME: Shape = Shape {
    name: "cancel_resume",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            script.start("run", "drained", 1).await;
            script.sleep(3000).await;
            let run = script.id("run");
            if script.client.cancel(&run, "").await.is_ok() {
                script.sleep(1000).await;
            }
            // A script that began again may meet it active, or finished.
            drop(script.client.resume(&run).await);
        })
    },
    check: |view| {
        // With a cancel that came back from the past it stays stopped, and that is right too.
        if view.row("run")?.status == RunStatus::Cancelled {
            return Ok(());
        }
        let values = ["a", "b", "c"].map(|step| view.value("run", step));
        view.returned("run", &json!(values))
    },
};

/// R94: a new run from the first steps of another, which stays as it was.
pub(super) const FORK: Shape = Shape {
    name: "fork",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            script.start("run", "forked", 1).await;
            script.wait("run").await;
            let fork = op::Fork {
                workspace: String::new(),
                source: script.id("run"),
                from_step: 2,
                run_id: script.id("fork"),
                input: None,
                patches: Vec::new(),
                app_version: None,
                timeout: None,
                seed: 0,
                now: script.client.now(),
            };
            script.client.fork(fork).await.expect("a fork that can be repeated");
        })
    },
    check: |view| {
        let [a, b, c] = ["a", "b", "c"].map(|step| view.value("run", step));
        view.returned("run", &json!([a, b, c]))?;
        let again = view.value("fork", "c");
        ensure!(again != c, "the fork has the source's own step");
        view.returned("fork", &json!([a, b, again]))?;
        ensure!(view.calls("fork", "a").is_empty(), "a copied step was called");
        Ok(())
    },
};

async fn forked(cx: Cx, input: u64) -> Result<Vec<u64>> {
    super::flow::linear(cx, input).await
}

/// Stopped by its own limit of time.
pub(super) const DEADLINE: Shape = Shape {
    name: "deadline",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            let spec = script.spec("run", "late", 1);
            let spec = StartSpec { timeout: Some(secs(20)), ..spec };
            script.client.start(spec).await.expect("a start that can be repeated");
        })
    },
    check: |view| {
        ensure!(view.calls("run", "b").is_empty(), "a step began after the deadline");
        view.stopped("run", RunStatus::Cancelled, "SF-0304")
    },
};

/// Stopped by its limit of time, put back with a new one: an owner of its first life that comes
/// back with the old deadline must not end the second. A node that stands still for 90 s comes back
/// in the middle of it.
pub(super) const DEADLINE_RESUME: Shape = Shape {
    name: "deadline_resume",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            let spec = script.spec("run", "hurried", 1);
            let spec = StartSpec { timeout: Some(secs(60)), ..spec };
            script.client.start(spec).await.expect("a start that can be repeated");
            for _ in 0..2 {
                if script.wait("run").await.status == RunStatus::Success {
                    return;
                }
                script.sleep(script.draw(30_000)).await;
                // A script that began again may meet it active, or finished.
                drop(script.client.resume(&script.id("run")).await);
            }
        })
    },
    check: |view| {
        if view.row("run")?.status == RunStatus::Success {
            let values = ["a", "b"].map(|step| view.value("run", step));
            return view.returned("run", &json!(values));
        }
        view.stopped("run", RunStatus::Cancelled, "SF-0304")
    },
};

async fn hurried(cx: Cx, _: u64) -> Result<Vec<u64>> {
    let a = act(&cx, "a", &[]).await?;
    // Not a sleep: that would be over in the second life.
    let b = act_so(&cx, "b", &[a], How::Slow(45_000)).await?;
    Ok(vec![a, b])
}

async fn late(cx: Cx, _: u64) -> Result<u64> {
    let a = act(&cx, "a", &[]).await?;
    cx.sleep(secs(120)).await?;
    act(&cx, "b", &[a]).await
}

/// R79: takes its node down every time, until it is parked; others go on.
pub(super) const POISON: Shape = Shape {
    name: "poison",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            let spec = StartSpec { max_attempts: 2, ..script.spec("run", "poison", 1) };
            script.client.start(spec).await.expect("a start that can be repeated");
            script.start("other", "bystander", 1).await;
        })
    },
    check: |view| {
        view.stopped("run", RunStatus::RetriesExceeded, "SF-0302")?;
        let calls = view.calls("run", "fatal").len();
        // A claim that the server forgot counts as if it had not been: its call comes on top.
        let most = 3 + view.crashes_of_the_server();
        ensure!(calls <= most, "{calls} calls, but {most} are allowed: two are recoveries");
        view.returned("other", &view.value("other", "b"))
    },
};

async fn poison(cx: Cx, _: u64) -> Result<u64> {
    act_so(&cx, "fatal", &[], How::Die).await
}

async fn bystander(cx: Cx, _: u64) -> Result<u64> {
    let a = act(&cx, "a", &[]).await?;
    cx.sleep(secs(20)).await?;
    act(&cx, "b", &[a]).await
}

/// Steps that take as long as it takes to lose a lease: a zombie meets its successor at work.
pub(super) const SLOW_STEPS: Shape = Shape {
    name: "slow_steps",
    nodes: 2,
    script: |script| Box::pin(async move { script.start("run", "drained", 1).await }),
    check: |view| {
        let values = ["a", "b", "c"].map(|step| view.value("run", step));
        view.returned("run", &json!(values))
    },
};

/// X16: a worker that stops gives its runs back, and leaves nothing running.
pub(super) const SHUTDOWN: Shape = Shape {
    name: "shutdown",
    nodes: 1,
    script: |script| {
        Box::pin(async move {
            script.submit(script.spec("run", "drained", 1)).await;
            script.sleep(script.draw(3000)).await;
            script.shut_down().await;
        })
    },
    check: |view| {
        let values = ["a", "b", "c"].map(|step| view.value("run", step));
        view.returned("run", &json!(values))
    },
};

async fn drained(cx: Cx, _: u64) -> Result<Vec<u64>> {
    let a = act_so(&cx, "a", &[], How::Slow(2000)).await?;
    let b = act_so(&cx, "b", &[a], How::Slow(3000)).await?;
    let c = act_so(&cx, "c", &[a, b], How::Slow(2000)).await?;
    Ok(vec![a, b, c])
}
