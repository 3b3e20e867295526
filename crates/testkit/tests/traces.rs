//! What a run logs, and what its steps log, can be found by the command's trace.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::Write;
use std::sync::{Arc, Mutex};

use steadfast::{Contract, Cx, Result, Steadfast};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;
    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

async fn child(_: Cx, _: ()) -> Result<()> {
    Ok(())
}

async fn noisy(cx: Cx, _: ()) -> Result<()> {
    cx.step("fetch", || async {
        tracing::info!("calling the vendor");
        Ok::<_, steadfast::Error>(())
    })
    .await?;
    cx.step("store", || async { Ok::<_, steadfast::Error>(()) }).await?;
    cx.child(child, ()).await
}

/// Every span that was opened, by the name that a tracer would show.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

/// Finds the name that a tracer shows.
struct Shown(Option<String>);

impl tracing::field::Visit for Shown {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "otel.name" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Spans {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        let mut shown = Shown(None);
        attributes.record(&mut shown);
        let name = shown.0.unwrap_or_else(|| attributes.metadata().name().to_owned());
        self.0.lock().unwrap().push(name);
    }
}

async fn flaky(cx: Cx, _: ()) -> Result<()> {
    let tries = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let body = move || {
        let n = tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move { if n < 2 { Err(steadfast::Error::app("not yet")) } else { Ok(()) } }
    };
    let retry = steadfast::Retry::exponential(3, std::time::Duration::from_millis(1), 1.0);
    cx.step("fetch", body).retry(retry).await
}

/// R119, R121
#[tokio::test(flavor = "current_thread")]
async fn r119_a_run_is_seen_in_spans_and_in_metrics() {
    use tracing_subscriber::layer::SubscriberExt as _;
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    let _guard = tracing::subscriber::set_default(subscriber);
    let fabric = Steadfast::open("sqlite::memory:").workflow(flaky).start().await.unwrap();
    fabric.start(flaky, ()).await.unwrap().result().await.unwrap();
    let text = fabric.metrics();
    fabric.shutdown().await;
    let seen = spans.0.lock().unwrap().clone();
    let count = |name: &str| seen.iter().filter(|span| *span == name).count();
    for name in ["workflow.start", "workflow.checkpoint", "workflow.end"] {
        assert!(count(name) >= 1, "{name}: {seen:?}");
    }
    assert_eq!(count("activity.fetch"), 3, "one for each attempt: {seen:?}");
    assert_eq!(count("activity.retry"), 2, "one for each retry: {seen:?}");
    let retries = "activity_retries_total{activity=\"fetch\",reason=\"application\"} 2";
    assert!(text.contains(retries), "{text}");
    let ended = "workflow_duration_seconds_count{name=\"flaky\",status=\"SUCCESS\"} 1";
    assert!(text.contains(ended), "{text}");
}

/// R104, R105
#[tokio::test(flavor = "current_thread")]
async fn r105_every_line_of_a_run_carries_its_trace() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(lines.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let fabric = Steadfast::open("sqlite::memory:")
        .command(noisy, Contract::new())
        .workflow(child)
        .start()
        .await
        .unwrap();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let call = fabric.submit(noisy, ()).trace_id(trace).correlation_id("night-1");
    call.await.unwrap().result().await.unwrap();
    fabric.shutdown().await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let of_runs: Vec<_> = text.lines().filter(|line| line.contains("workflow{")).collect();
    for line in &of_runs {
        assert!(line.contains(trace) && line.contains("correlation_id=\"night-1\""), "{line}");
    }
    let count = |what: &str| of_runs.iter().filter(|line| line.contains(what)).count();
    assert!(count("workflow.start") >= 2, "the run and its child:\n{text}");
    assert!(count("workflow.checkpoint") >= 1, "{text}");
    assert!(count("workflow.end") >= 2, "{text}");
    assert_eq!(count("calling the vendor"), 1, "what a step logs belongs to its run:\n{text}");
}
