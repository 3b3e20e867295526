//! Shapes of queues: concurrency, rates, slots, priorities, debouncing.

use std::time::Duration;

use serde_json::json;
use steadfast_core::{Cx, Result, RunStatus, Timestamp};
use steadfast_runtime_native::{Registry, StartSpec};
use steadfast_store::op::QueueRow;

use super::super::check::ensure;
use super::super::{How, Performed, Script, Shape, View};
use super::{act, act_so, known};

pub(super) fn register(registry: &mut Registry) {
    known!(registry, queued, slotted, debounced, debounced_late);
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const RUNS: [&str; 4] = ["r0", "r1", "r2", "r3"];

/// Makes a queue and puts four runs on it.
async fn four_on(script: &Script, queue: QueueRow) {
    let name = queue.name.clone();
    script.client.put_queue(queue).await.expect("a valid queue");
    for (at, run) in RUNS.into_iter().enumerate() {
        let spec = script.spec(run, "queued", 1);
        let priority = -i64::try_from(at).unwrap_or(0);
        let spec = StartSpec { queue: name.clone(), priority, ..spec };
        script.client.start(spec).await.expect("a start that can be repeated");
    }
}

fn all_returned(view: &View<'_>) -> Result<(), String> {
    RUNS.into_iter().try_for_each(|run| {
        let values = [view.value(run, "a"), view.value(run, "b")];
        view.returned(run, &json!(values))
    })
}

async fn queued(cx: Cx, _: u64) -> Result<(u64, u64)> {
    let a = act(&cx, "a", &[]).await?;
    Ok((a, act_so(&cx, "b", &[a], How::Slow(300)).await?))
}

/// Calls of runs that should never be under way at the same time.
fn overlap(calls: &[Performed], same: fn(&Performed, &Performed) -> bool) -> Option<String> {
    calls.iter().enumerate().find_map(|(at, first)| {
        let end = first.ended.unwrap_or(first.started);
        let clash = |second: &&Performed| {
            second.run != first.run && second.started < end && same(first, second)
        };
        let second = calls[at + 1..].iter().find(clash)?;
        Some(format!("{}/{} and {}/{}", first.run, first.step, second.run, second.step))
    })
}

fn calls_of(view: &View<'_>, runs: &[&str], steps: &[&str]) -> Vec<Performed> {
    let mut calls: Vec<_> =
        runs.iter().flat_map(|run| steps.iter().flat_map(|step| view.calls(run, step))).collect();
    calls.sort_by_key(|call| call.started);
    calls
}

/// R85: one at a time, on two nodes.
pub(super) const QUEUE: Shape = Shape {
    name: "queue",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            let name = script.id("one");
            let queue = QueueRow { name, concurrency: Some(1), ..QueueRow::default() };
            four_on(&script, queue).await;
        })
    },
    check: |view| {
        all_returned(view)?;
        let calls = calls_of(view, &RUNS, &["a", "b"]);
        let clash = overlap(&calls, |_, _| true).filter(|_| !view.has_zombies());
        ensure!(clash.is_none(), "at once: {clash:?}");
        Ok(())
    },
};

/// R84: one at a time per worker.
pub(super) const WORKER_LIMIT: Shape = Shape {
    name: "worker_limit",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            let name = script.id("each");
            let queue = QueueRow { name, worker_concurrency: Some(1), ..QueueRow::default() };
            four_on(&script, queue).await;
        })
    },
    check: |view| {
        all_returned(view)?;
        let calls = calls_of(view, &RUNS, &["a", "b"]);
        let clash = overlap(&calls, |a, b| a.worker == b.worker);
        let clash = clash.filter(|_| !view.has_zombies());
        ensure!(clash.is_none(), "at once on one worker: {clash:?}");
        Ok(())
    },
};

/// R86: two starts in any twenty seconds.
pub(super) const RATE: Shape = Shape {
    name: "rate",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            let name = script.id("slow");
            let queue = QueueRow { name, rate: Some((2, secs(20))), ..QueueRow::default() };
            four_on(&script, queue).await;
        })
    },
    check: |view| {
        all_returned(view)?;
        let mut starts = view.dequeued_at("slow");
        starts.sort();
        let tight = starts.windows(3).find(|three| three[0].until(three[2]) < secs(20));
        // The window is measured by the time that a claimer gives, which may be wrong, or long ago
        // when its request arrives.
        let skewed = view.clocks_jumped() || view.was_cut_off();
        ensure!(tight.is_none() || skewed, "three starts at {tight:?}");
        Ok(())
    },
};

/// Steps that share a slot.
pub(super) const SLOTS: Shape = Shape {
    name: "slots",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            let name = script.id("slot");
            let queue = QueueRow { name, concurrency: Some(1), ..QueueRow::default() };
            script.client.put_queue(queue).await.expect("a valid queue");
            for run in &RUNS[..3] {
                script.start(run, "slotted", script.id("slot")).await;
            }
        })
    },
    check: |view| {
        for run in &RUNS[..3] {
            view.returned(run, &json!([view.value(run, "a"), view.value(run, "b")]))?;
        }
        let calls = calls_of(view, &RUNS[..3], &["b"]);
        let clash = overlap(&calls, |_, _| true).filter(|_| !view.has_zombies());
        ensure!(clash.is_none(), "in one slot: {clash:?}");
        Ok(())
    },
};

async fn slotted(cx: Cx, slot: String) -> Result<(u64, u64)> {
    let a = act(&cx, "a", &[]).await?;
    Ok((a, act_so(&cx, "b", &[a], How::Slow(200)).queue(slot).await?))
}

/// The last in line has the best priority, and the queue is opened when all are there.
pub(super) const PRIORITY: Shape = Shape {
    name: "priority",
    nodes: 1,
    script: |script| {
        Box::pin(async move {
            let queue = |script: &Script, paused| QueueRow {
                name: script.id("ranked"),
                concurrency: Some(1),
                priorities: true,
                paused,
                ..QueueRow::default()
            };
            // A script that began again must not close what it has opened.
            let opened = script.client.find(&script.id("r3")).await;
            let closed = !matches!(opened, Ok(Some(_)));
            four_on(&script, queue(&script, closed)).await;
            // More than once: a late write of the closed queue may come after.
            for _ in 0..3 {
                script.client.put_queue(queue(&script, false)).await.expect("a valid queue");
                script.sleep(30_000).await;
            }
        })
    },
    check: |view| {
        all_returned(view)?;
        let first = RUNS.map(|run| view.row(run).ok().and_then(|row| row.started_at));
        let ordered = first.windows(2).all(|pair| pair[0] >= pair[1]);
        // A crash of the script, or a late write, may open the queue early.
        ensure!(ordered || view.was_disturbed() || view.clocks_jumped(), "started at {first:?}");
        Ok(())
    },
};

/// Each call replaces the input and waits anew; one run comes of it.
pub(super) const DEBOUNCE: Shape = Shape {
    name: "debounced",
    nodes: 1,
    script: |script| {
        Box::pin(async move {
            for input in 1..=3 {
                let spec = script.spec(&format!("run{input}"), "debounced", input);
                // Starts the next run when the one of this key has begun.
                let key = script.id("key");
                drop(script.client.debounce(spec, &key, secs(5), Some(secs(60))).await);
                script.sleep(1000).await;
            }
        })
    },
    check: |view| {
        let runs: Vec<_> = (1..=3).filter_map(|n| view.row(&format!("run{n}")).ok()).collect();
        ensure!(!runs.is_empty(), "nothing was started");
        ensure!(runs.len() == 1 || view.was_disturbed(), "{} runs of one key", runs.len());
        for run in &runs {
            ensure!(run.status == RunStatus::Success, "{} is {}", run.run_id, run.status);
            ensure!(run.output.as_ref() == Some(&run.input), "{:?} of {}", run.output, run.input);
        }
        let input = runs.last().map(|run| run.input.clone());
        ensure!(input.as_deref() == Some("3") || view.was_disturbed(), "the input is {input:?}");
        Ok(())
    },
};

async fn debounced(cx: Cx, input: u64) -> Result<u64> {
    act(&cx, "a", &[]).await?;
    Ok(input)
}

/// Debounced again when its run has just been claimed: where the store forgets that claim, the run
/// gets the new input after all, and begins at another time.
pub(super) const DEBOUNCE_LATE: Shape = Shape {
    name: "debounced_late",
    nodes: 2,
    script: |script| {
        Box::pin(async move {
            let (key, first) = (script.id("key"), script.spec("run1", "debounced_late", 1));
            let started = script.client.debounce(first, &key, secs(2), None).await;
            // Refused only when a script that began again finds the run begun.
            if started.is_ok() {
                script.claimed("run1").await;
            }
            script.sleep(script.draw(1000)).await;
            let again = script.spec("run2", "debounced_late", 2);
            drop(script.client.debounce(again, &key, secs(2), None).await);
        })
    },
    check: |view| {
        let runs: Vec<_> = (1..=2).filter_map(|n| view.row(&format!("run{n}")).ok()).collect();
        for run in &runs {
            ensure!(run.status == RunStatus::Success, "{} is {}", run.run_id, run.status);
            let output: (u64, i64) = serde_json::from_str(run.output.as_deref().unwrap_or("null"))
                .map_err(|error| error.to_string())?;
            let input = output.0.to_string();
            ensure!(input == run.input, "{} computed {input} of {}", run.run_id, run.input);
            let began = run.started_at.map(Timestamp::as_micros);
            let is_its_own = began == Some(output.1);
            ensure!(is_its_own, "{} began at {began:?}, and told {}", run.run_id, output.1);
        }
        ensure!(runs.iter().any(|run| run.input == "2"), "the last call was dropped");
        Ok(())
    },
};

async fn debounced_late(cx: Cx, input: u64) -> Result<(u64, i64)> {
    let began = cx.now().as_micros();
    act_so(&cx, "a", &[], How::Slow(3000)).await?;
    Ok((input, began))
}
