//! Queues: limits, order, fairness, pause, deduplication, delay, slots.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use steadfast::{Cx, Error, Queue, Result, Rule, RunStatus};
use tokio::sync::Semaphore;

use super::{Fixture, SOON, case_table, until};

case_table! {
    global_concurrency_holds_over_two_workers,
    worker_concurrency_holds_for_each_worker,
    a_raised_limit_is_heard_by_a_full_worker,
    a_rate_limit_holds_in_every_window,
    priorities_go_first_when_the_queue_has_them,
    who_comes_in_front_is_met_while_more_comes_behind,
    partitions_have_limits_of_their_own_and_none_starves,
    a_paused_queue_starts_nothing_until_it_is_resumed,
    a_delayed_start_waits,
    a_deduplication_id_is_taken_while_its_run_is_active,
    a_debounced_start_takes_the_last_input,
    a_full_queue_is_explained_with_its_holders,
    steps_hold_slots_of_a_queue,
    a_missing_queue_is_refused,
    what_an_operator_changed_outlasts_a_restart,
}

/// Watches how many are inside, and in which order they came.
#[derive(Default)]
struct Gauge {
    inside: AtomicI64,
    most: AtomicI64,
    order: Mutex<Vec<u32>>,
    at: Mutex<Vec<tokio::time::Instant>>,
}

impl Gauge {
    async fn pass(&self, n: u32, stay: Duration) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        self.order.lock().unwrap().push(n);
        self.at.lock().unwrap().push(tokio::time::Instant::now());
        tokio::time::sleep(stay).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> i64 {
        self.most.load(Ordering::SeqCst)
    }
}

async fn passes(cx: Cx, n: u32) -> Result<u32> {
    let gauge = cx.state::<Arc<Gauge>>()?;
    let body = move || {
        let gauge = gauge.clone();
        async move {
            gauge.pass(n, Duration::from_millis(25)).await;
            Ok::<_, Error>(n)
        }
    };
    cx.step("pass", body).await
}

/// R85 R91
async fn global_concurrency_holds_over_two_workers(on: Fixture) {
    let gauge = Arc::new(Gauge::default());
    let build = || on.fabric().workflow(passes).state(gauge.clone());
    let one = build().queue(Queue::new("q").concurrency(3)).start().await.unwrap();
    let two = build().start().await.unwrap();
    let mut runs = Vec::new();
    for n in 0..24 {
        runs.push(one.start(passes, n).queue("q").await.unwrap());
    }
    for (n, run) in (0..).zip(&runs) {
        assert_eq!(run.result_within(SOON).await.unwrap(), n);
    }
    assert!(gauge.most() <= 3, "{} at once", gauge.most());
    assert_eq!(gauge.order.lock().unwrap().len(), 24, "each ran once");
    one.shutdown().await;
    two.shutdown().await;
}

/// R84
async fn worker_concurrency_holds_for_each_worker(on: Fixture) {
    let (mine, theirs) = (Arc::new(Gauge::default()), Arc::new(Gauge::default()));
    let build = |gauge: &Arc<Gauge>| on.fabric().workflow(passes).state(gauge.clone());
    let one = build(&mine).queue(Queue::new("q").worker_concurrency(2)).start().await.unwrap();
    let two = build(&theirs).start().await.unwrap();
    let mut runs = Vec::new();
    for n in 0..24 {
        runs.push(one.start(passes, n).queue("q").await.unwrap());
    }
    for run in &runs {
        run.result_within(SOON).await.unwrap();
    }
    assert!(mine.most() <= 2 && theirs.most() <= 2, "{} and {}", mine.most(), theirs.most());
    one.shutdown().await;
    two.shutdown().await;
}

/// Has a place until the test opens the gate.
async fn stays(cx: Cx, _: ()) -> Result<()> {
    let gate = cx.state::<Arc<Semaphore>>()?;
    let body = move || {
        let gate = gate.clone();
        async move {
            gate.acquire().await.expect("a gate that is never closed").forget();
            Ok::<_, Error>(())
        }
    };
    cx.step("stay", body).await
}

/// R84: a worker that has no place left hears of new ones, whoever makes them.
async fn a_raised_limit_is_heard_by_a_full_worker(on: Fixture) {
    let (gate, queue) = (Arc::new(Semaphore::new(0)), |n| Queue::new("q").worker_concurrency(n));
    let fabric = on.patient().workflow(stays).state(gate.clone()).queue(queue(1));
    let fabric = fabric.start().await.unwrap();
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(fabric.start(stays, ()).queue("q").await.unwrap());
    }
    let begun = async |n: usize| {
        until("as many have begun as there are places", async || {
            let mut begun = 0;
            for run in &runs {
                begun += usize::from(run.status().await.unwrap() == RunStatus::Pending);
            }
            begun == n
        })
        .await;
    };
    begun(1).await;
    fabric.put_queue(queue(2)).await.unwrap();
    begun(2).await;
    on.client().put_queue(queue(3)).await.unwrap();
    begun(3).await;
    gate.add_permits(3);
    for run in &runs {
        run.result_within(SOON).await.unwrap();
    }
    fabric.shutdown().await;
}

/// R86
async fn a_rate_limit_holds_in_every_window(on: Fixture) {
    let period = Duration::from_millis(600);
    let gauge = Arc::new(Gauge::default());
    let fabric = on.fabric().workflow(passes).state(gauge.clone());
    let fabric = fabric.queue(Queue::new("q").rate(4, period)).start().await.unwrap();
    let mut runs = Vec::new();
    for n in 0..12 {
        runs.push(fabric.start(passes, n).queue("q").await.unwrap());
    }
    for run in &runs {
        run.result_within(SOON).await.unwrap();
    }
    // Judged by the starts the store recorded, not by when a busy machine got to them.
    let mut starts = Vec::new();
    for run in &runs {
        starts.push(run.info().await.unwrap().started_at.unwrap());
    }
    starts.sort_unstable();
    for window in starts.windows(5) {
        let span = window[0].until(window[4]);
        assert!(span >= period, "five starts within {span:?}");
    }
    fabric.shutdown().await;
}

/// R87
async fn priorities_go_first_when_the_queue_has_them(on: Fixture) {
    for priorities in [true, false] {
        let name = if priorities { "ranked" } else { "plain" };
        let queue = Queue::new(name).concurrency(1);
        let queue = if priorities { queue.priorities() } else { queue };
        let client = on.client();
        client.put_queue(queue).await.unwrap();
        let mut runs = Vec::new();
        for n in 0..6u32 {
            let start = client.start_named::<u32>("passes", &n).queue(name);
            runs.push(start.priority(i64::from(10 - n)).await.unwrap());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let gauge = Arc::new(Gauge::default());
        let fabric = on.fabric().workflow(passes).state(gauge.clone()).start().await.unwrap();
        for run in &runs {
            run.result_within(SOON).await.unwrap();
        }
        let expected = if priorities { [5, 4, 3, 2, 1, 0] } else { [0, 1, 2, 3, 4, 5] };
        assert_eq!(*gauge.order.lock().unwrap(), expected);
        fabric.shutdown().await;
    }
}

/// R87: claims go on from where the last one ended, but not for ever.
async fn who_comes_in_front_is_met_while_more_comes_behind(on: Fixture) {
    let gauge = Arc::new(Gauge::default());
    let queue = Queue::new("q").worker_concurrency(20).priorities();
    let fabric = on.fabric().workflow(passes).state(gauge.clone()).queue(queue);
    let fabric = fabric.start().await.unwrap();
    let (begun, started) = (|| gauge.order.lock().unwrap().len(), AtomicI64::new(0));
    let more = async {
        loop {
            // There is always more behind than there are places.
            while usize::try_from(started.load(Ordering::SeqCst)).unwrap() < begun() + 60 {
                started.fetch_add(1, Ordering::SeqCst);
                fabric.start(passes, 0).queue("q").priority(5).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let urgent = async {
        until("a queue is being drained", async || begun() > 100).await;
        let run = fabric.start(passes, 1).queue("q").priority(0).await.unwrap();
        run.result_within(SOON).await.unwrap()
    };
    let result = tokio::select! {
        result = urgent => result,
        () = more => unreachable!("there is always more"),
    };
    assert_eq!(result, 1);
    fabric.shutdown().await;
}

/// R88
async fn partitions_have_limits_of_their_own_and_none_starves(on: Fixture) {
    let client = on.client();
    client.put_queue(Queue::new("q").partitioned().concurrency(1)).await.unwrap();
    let mut runs = Vec::new();
    for n in 0..30u32 {
        // One key has nearly all the work.
        let key = if n % 10 == 9 { format!("small-{n}") } else { "big".to_owned() };
        let start = client.start_named::<u32>("passes", &n).queue("q").partition(key);
        runs.push(start.await.unwrap());
    }
    let gauge = Arc::new(Gauge::default());
    let fabric = on.fabric().workflow(passes).state(gauge.clone()).start().await.unwrap();
    for run in &runs {
        run.result_within(SOON).await.unwrap();
    }
    assert!(gauge.most() <= 4, "one for each of four keys, {} at once", gauge.most());
    let order = gauge.order.lock().unwrap().clone();
    let big: Vec<u32> = order.iter().copied().filter(|n| n % 10 != 9).collect();
    assert!(big.is_sorted(), "oldest first inside a key");
    let last_small = order.iter().rposition(|n| n % 10 == 9).unwrap();
    assert!(last_small < 15, "the small keys did not wait behind the big one: {order:?}");
    fabric.shutdown().await;
}

async fn a_paused_queue_starts_nothing_until_it_is_resumed(on: Fixture) {
    let gauge = Arc::new(Gauge::default());
    let fabric = on.fabric().workflow(passes).state(gauge.clone());
    let fabric = fabric.queue(Queue::new("q").paused(true)).start().await.unwrap();
    let run = fabric.start(passes, 1).queue("q").await.unwrap();
    let why = fabric.explain(run.id()).await.unwrap();
    assert_eq!(why.rule, Rule::QueuePaused);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(run.status().await.unwrap(), RunStatus::Enqueued);
    assert!(!fabric.put_queue(Queue::new("q")).await.unwrap(), "changed, not made");
    run.result_within(SOON).await.unwrap();
    fabric.shutdown().await;
}

async fn a_delayed_start_waits(on: Fixture) {
    let gauge = Arc::new(Gauge::default());
    let fabric = on.fabric().workflow(passes).state(gauge.clone()).start().await.unwrap();
    let delay = Duration::from_millis(400);
    let run = fabric.start(passes, 1).delay(delay).await.unwrap();
    assert_eq!(fabric.explain(run.id()).await.unwrap().rule, Rule::Delayed);
    run.result_within(SOON).await.unwrap();
    let info = run.info().await.unwrap();
    assert!(info.created_at.until(info.started_at.unwrap()) >= delay);
    fabric.shutdown().await;
}

async fn a_deduplication_id_is_taken_while_its_run_is_active(on: Fixture) {
    let fabric = on.fabric().workflow(waits).start().await.unwrap();
    let run = fabric.start(waits, ()).dedupe("d").await.unwrap();
    let refused = fabric.start(waits, ()).dedupe("d").await.unwrap_err();
    assert_eq!(refused.code(), "SF-0111");
    assert!(refused.message().contains(run.id()));
    run.signal("go", ()).await.unwrap();
    run.result_within(SOON).await.unwrap();
    let next = fabric.start(waits, ()).dedupe("d").await.unwrap();
    next.cancel("").await.unwrap();
    fabric.start(waits, ()).dedupe("d").await.unwrap().cancel("").await.unwrap();
    fabric.shutdown().await;
}

async fn waits(cx: Cx, _: ()) -> Result<()> {
    cx.wait_signal::<()>("go").await
}

async fn a_debounced_start_takes_the_last_input(on: Fixture) {
    let gauge = Arc::new(Gauge::default());
    let fabric = on.fabric().workflow(passes).state(gauge.clone()).start().await.unwrap();
    let quiet = Duration::from_millis(500);
    let first = fabric.start(passes, 1).debounce("k", quiet, None).await.unwrap();
    for n in 2..=4 {
        let again = fabric.start(passes, n).debounce("k", quiet, None).await.unwrap();
        assert_eq!(again.id(), first.id());
    }
    assert_eq!(first.result_within(SOON).await.unwrap(), 4);
    assert_eq!(*gauge.order.lock().unwrap(), [4]);
    let other = fabric.start(passes, 9).debounce("k", Duration::ZERO, None).await.unwrap();
    assert_ne!(other.id(), first.id());
    assert_eq!(other.result_within(SOON).await.unwrap(), 9);
    fabric.shutdown().await;
}

/// R85
async fn a_full_queue_is_explained_with_its_holders(on: Fixture) {
    let fabric = on.fabric().workflow(waits);
    let fabric = fabric.queue(Queue::new("q").concurrency(1)).start().await.unwrap();
    let holder = fabric.start(waits, ()).id("holder").queue("q").await.unwrap();
    until("it holds the slot", async || {
        holder.status().await.is_ok_and(|status| status == RunStatus::Pending)
    })
    .await;
    let waiting = fabric.start(waits, ()).queue("q").await.unwrap();
    let why = fabric.explain(waiting.id()).await.unwrap();
    assert_eq!(why.rule, Rule::QueueFull);
    assert_eq!(why.holders[0].run_id, "holder");
    assert!(why.to_string().contains("held by holder"));
    holder.signal("go", ()).await.unwrap();
    waiting.signal("go", ()).await.unwrap();
    waiting.result_within(SOON).await.unwrap();
    fabric.shutdown().await;
}

async fn slotted(cx: Cx, n: u32) -> Result<u32> {
    let gauge = cx.state::<Arc<Gauge>>()?;
    let body = move || {
        let gauge = gauge.clone();
        async move {
            gauge.pass(n, Duration::from_millis(20)).await;
            Ok::<_, Error>(n)
        }
    };
    cx.step("slotted", body).queue("narrow").await
}

async fn steps_hold_slots_of_a_queue(on: Fixture) {
    let gauge = Arc::new(Gauge::default());
    let fabric = on.fabric().workflow(slotted).state(gauge.clone());
    let fabric = fabric.queue(Queue::new("narrow").concurrency(2)).start().await.unwrap();
    let mut runs = Vec::new();
    for n in 0..10 {
        runs.push(fabric.start(slotted, n).await.unwrap());
    }
    for run in &runs {
        run.result_within(SOON).await.unwrap();
    }
    assert!(gauge.most() <= 2, "{} at once", gauge.most());
    fabric.shutdown().await;
}

async fn a_missing_queue_is_refused(on: Fixture) {
    let fabric = on.fabric().workflow(passes).start().await.unwrap();
    let refused = fabric.start(passes, 1).queue("nowhere").await.unwrap_err();
    assert_eq!(refused.code(), "SF-0112");
    let zero = fabric.put_queue(Queue::new("q").concurrency(0)).await.unwrap_err();
    assert_eq!(zero.code(), "SF-0117");
    assert!(fabric.queues().await.unwrap().is_empty(), "nothing changed");
    fabric.shutdown().await;
}

/// As schedules do.
async fn what_an_operator_changed_outlasts_a_restart(on: Fixture) {
    let gauge = Arc::new(Gauge::default());
    let start = async |queue: Queue| {
        let fabric = on.fabric().workflow(passes).state(gauge.clone());
        fabric.queue(queue).start().await.unwrap()
    };
    let defined = || Queue::new("q").concurrency(3);
    start(defined()).await.shutdown().await;
    let operator = on.client();
    let shown = operator.queue("q").await.unwrap().unwrap();
    assert_eq!((shown.queue.clone(), shown.defined), (defined(), Some(defined())));
    operator.put_queue(shown.queue.concurrency(1).paused(true)).await.unwrap();
    let fabric = start(defined()).await;
    let run = fabric.start(passes, 7).queue("q").await.unwrap();
    let shown = fabric.queue("q").await.unwrap().unwrap();
    assert!(shown.is_changed() && shown.queue.is_paused(), "{shown:?}");
    assert_eq!(shown.defined, Some(defined()));
    let paused = fabric.explain(run.id()).await.unwrap();
    assert_eq!(paused.rule, Rule::QueuePaused);
    fabric.shutdown().await;
    // New code with another limit: the pause is the operator's still.
    let fabric = start(defined().concurrency(2)).await;
    let shown = fabric.queue("q").await.unwrap().unwrap();
    assert_eq!(shown.queue, defined().concurrency(2).paused(true));
    assert_eq!(fabric.explain(run.id()).await.unwrap().rule, Rule::QueuePaused);
    operator.put_queue(shown.queue.paused(false)).await.unwrap();
    fabric.shutdown().await;
    let fabric = start(defined().concurrency(2)).await;
    assert_eq!(run.result_within(SOON).await.unwrap(), 7);
    assert!(!fabric.queue("q").await.unwrap().unwrap().is_changed());
    assert!(fabric.queue("nowhere").await.unwrap().is_none());
    fabric.shutdown().await;
}
