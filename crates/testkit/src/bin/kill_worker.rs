//! A worker process made to be killed: workflows of every shape, whose steps call the ledger.
//!
//! `kill_worker STORE LEDGER LIFE [--name NAME] [--max-runs N] [--lease-ms N]`
//!
//! Invariants: every workflow gives the list of the nonces its steps were answered with, so its
//! result can be checked against the ledger; SIGTERM drains and exits with 0 (X16).
//! Deliberately absent: queues. The supervisor makes them, so that no start of a worker writes more
//! than a worker must.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join3};
use steadfast::{Cx, Effect, Error, Result, Retry, Steadfast};
use steadfast_testkit::crash::CrashEnv;
use steadfast_testkit::ledger::LedgerClient;

type Nonces = Result<Vec<String>>;

fn body(
    cx: &Cx,
    step: &'static str,
) -> Result<impl Fn() -> futures::future::BoxFuture<'static, Result<String, String>> + use<>> {
    let (ledger, run): (Arc<LedgerClient>, Arc<str>) = (cx.state()?, cx.run_id().into());
    Ok(move || -> futures::future::BoxFuture<'static, Result<String, String>> {
        let (ledger, run) = (ledger.clone(), run.clone());
        Box::pin(async move { ledger.call(&run, step, "").await })
    })
}

/// A step that calls the ledger and gives its nonce.
async fn note(cx: &Cx, step: &'static str) -> Result<String> {
    cx.step(step, body(cx, step)?).await
}

async fn linear(cx: Cx, _: u32) -> Nonces {
    let mut nonces = Vec::new();
    for step in ["one", "two", "three", "four", "five"] {
        nonces.push(note(&cx, step).await?);
    }
    Ok(nonces)
}

async fn parallel(cx: Cx, _: u32) -> Nonces {
    let (a, b, c) = join3(note(&cx, "left"), note(&cx, "middle"), note(&cx, "right")).await;
    Ok(vec![a?, b?, c?])
}

async fn retry(cx: Cx, _: u32) -> Nonces {
    let before = note(&cx, "before").await?;
    let retry = Retry::exponential(20, Duration::from_millis(40), 1.0);
    let flaky = cx.step("flaky", body(&cx, "flaky")?).retry(retry).await?;
    Ok(vec![before, flaky])
}

async fn sleeper(cx: Cx, n: u32) -> Nonces {
    let nap = Duration::from_millis(200 + u64::from(n % 4) * 100);
    let first = note(&cx, "first").await?;
    cx.sleep(nap).await?;
    let second = note(&cx, "second").await?;
    cx.sleep(nap).await?;
    let third = note(&cx, "third").await?;
    Ok(vec![first, second, third])
}

async fn family(cx: Cx, n: u32) -> Nonces {
    let mut nonces = vec![note(&cx, "birth").await?];
    let (a, b) = join(cx.child(member, n), cx.child(member, n + 1)).await;
    nonces.extend(a?);
    nonces.extend(b?);
    Ok(nonces)
}

async fn member(cx: Cx, _: u32) -> Nonces {
    Ok(vec![note(&cx, "one").await?, note(&cx, "two").await?])
}

/// Gets its signal once, however often it was sent.
async fn signaller(cx: Cx, _: u32) -> Nonces {
    let before = note(&cx, "before").await?;
    let word: String = cx.wait_signal("go").await?;
    let after = note(&cx, "after").await?;
    let again: Option<String> = cx.wait_signal("go").timeout(Duration::from_millis(100)).await?;
    Ok(vec![before, word, after, again.unwrap_or_else(|| "none".to_owned())])
}

/// An effect whose receiver has no memory: after a crash in the middle its outcome is unknown.
async fn once(cx: Cx, _: u32) -> Nonces {
    let ledger: Arc<LedgerClient> = cx.state()?;
    let run: Arc<str> = cx.run_id().into();
    let before = note(&cx, "before").await?;
    let call = move |key: String| {
        let (ledger, run) = (ledger.clone(), run.clone());
        async move { ledger.call(&run, "once", &key).await }
    };
    let nonce = match cx.effect(Effect::at_most_once("once", cx.run_id()), call).await {
        Err(error) if error.code() == "SF-0301" => "unknown".to_owned(),
        outcome => outcome?,
    };
    Ok(vec![before, nonce])
}

/// An effect whose key is drawn at random: every call of it, in whatever process, has the same.
async fn keyed(cx: Cx, _: u32) -> Nonces {
    let ledger: Arc<LedgerClient> = cx.state()?;
    let run: Arc<str> = cx.run_id().into();
    let before = note(&cx, "before").await?;
    let call = move |key: String| {
        let (ledger, run) = (ledger.clone(), run.clone());
        async move { ledger.call(&run, "keyed", &key).await }
    };
    let nonce = cx.effect(Effect::keyed("keyed", cx.uuid()), call).await?;
    Ok(vec![before, nonce])
}

async fn queued(cx: Cx, _: u32) -> Nonces {
    Ok(vec![note(&cx, "one").await?, note(&cx, "two").await?])
}

/// Knows after a sleep what time it was when it began: replay must not draw it anew.
async fn clocked(cx: Cx, n: u32) -> Nonces {
    let began = cx.now().as_micros();
    let recorded = cx.read("began", move || async move { Ok::<_, Error>(began) }).await?;
    let early = note(&cx, "early").await?;
    cx.sleep(Duration::from_millis(100 + u64::from(n % 4) * 100)).await?;
    let late = note(&cx, "late").await?;
    match recorded == began {
        true => Ok(vec![early, late]),
        false => Err(Error::app(format!("it began at {recorded}, and by a replay at {began}"))),
    }
}

/// Carries out the last input that it was given before it began.
async fn latest(cx: Cx, n: u32) -> Nonces {
    let seen = note(&cx, "seen").await?;
    Ok(vec![seen, n.to_string()])
}

async fn slow(cx: Cx, _: u32) -> Nonces {
    Ok(vec![note(&cx, "slow1").await?, note(&cx, "slow2").await?, note(&cx, "slow3").await?])
}

/// Stalls until its deadline ends it; once resumed, it takes less than a second.
async fn hurried(cx: Cx, _: u32) -> Nonces {
    let mut nonces = Vec::new();
    for step in ["slow1", "stall", "slow2", "slow3"] {
        nonces.push(note(&cx, step).await?);
    }
    Ok(nonces)
}

async fn stalled(cx: Cx, _: u32) -> Nonces {
    Ok(vec![note(&cx, "stall").await?, note(&cx, "after").await?])
}

/// Stalls in a step that holds a slot of the queue `single`.
async fn slotted(cx: Cx, _: u32) -> Nonces {
    let stall = cx.step("stall", body(&cx, "stall")?).queue("single").await?;
    Ok(vec![stall, note(&cx, "after").await?])
}

struct Args {
    store: String,
    ledger: String,
    life: String,
    name: Option<String>,
    max_runs: usize,
    lease: Duration,
}

fn args() -> Option<Args> {
    let mut given = std::env::args().skip(1);
    let (store, ledger, life) = (given.next()?, given.next()?, given.next()?);
    let lease = Duration::from_secs(1);
    let mut args = Args { store, ledger, life, name: None, max_runs: 100, lease };
    while let Some(flag) = given.next() {
        let value = given.next()?;
        match flag.as_str() {
            "--name" => args.name = Some(value),
            "--max-runs" => args.max_runs = value.parse().ok()?,
            "--lease-ms" => args.lease = Duration::from_millis(value.parse().ok()?),
            _ => return None,
        }
    }
    Some(args)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let usage = "kill_worker STORE LEDGER LIFE [--name NAME] [--max-runs N] [--lease-ms N]";
    let args = args().ok_or_else(|| Error::app(usage))?;
    let mut builder = Steadfast::open(&args.store)
        .env(CrashEnv::from_variables())
        .state(LedgerClient::new(&args.ledger, &args.life))
        .workflow(linear)
        .workflow(parallel)
        .workflow(retry)
        .workflow(sleeper)
        .workflow(family)
        .workflow(member)
        .workflow(signaller)
        .workflow(once)
        .workflow(keyed)
        .workflow(queued)
        .workflow(clocked)
        .workflow(latest)
        .workflow(slow)
        .workflow(hurried)
        .workflow(stalled)
        .workflow(slotted)
        .lease(args.lease)
        .max_runs(args.max_runs)
        .poll(Duration::from_millis(20), Duration::from_millis(100));
    if let Some(name) = args.name {
        builder = builder.worker_name(name);
    }
    let fabric = builder.start().await?;
    fabric.run_until_stopped().await
}
