//! From one owner to the next: after a cancel and a resume, at the end of a shutdown, after the
//! program was dropped. Never two attempts at once, and no wait for a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use steadfast::{Cx, Error, Result, Steadfast};
use tokio::sync::Semaphore;

use super::{Fixture, SOON, case_table, until};

case_table! {
    a_resumed_run_begins_at_once_and_after_its_last_attempt,
    a_run_resumed_by_another_process_waits_for_its_last_owner,
    a_shutdown_that_is_out_of_time_aborts_steps_and_gives_their_runs_back,
    a_dropped_program_gives_its_runs_back,
}

/// A lease is 60 s: what follows within this was not waited for.
const AT_ONCE: Duration = Duration::from_secs(20);

struct Attempts {
    begun: AtomicU32,
    under_way: AtomicU32,
    most: AtomicU32,
    gate: Semaphore,
}

/// An attempt that is under way, whether it goes on or is aborted.
struct UnderWay(Arc<Attempts>);

impl UnderWay {
    fn begin(attempts: Arc<Attempts>) -> Self {
        attempts.begun.fetch_add(1, Ordering::SeqCst);
        let now = attempts.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        attempts.most.fetch_max(now, Ordering::SeqCst);
        Self(attempts)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn waits(cx: Cx, _: ()) -> Result<u32> {
    let attempts = cx.state::<Arc<Attempts>>()?;
    let wait = move || {
        let attempts = attempts.clone();
        async move {
            let attempt = UnderWay::begin((*attempts).clone());
            attempt.0.gate.acquire().await.map_err(Error::from_any)?.forget();
            Ok::<_, Error>(7u32)
        }
    };
    cx.step("wait", wait).await
}

fn attempts() -> Arc<Attempts> {
    let zero = || AtomicU32::new(0);
    let gate = Semaphore::new(0);
    Arc::new(Attempts { begun: zero(), under_way: zero(), most: zero(), gate })
}

impl Attempts {
    async fn have_begun(&self, times: u32) {
        until("an attempt begins", async || self.begun.load(Ordering::SeqCst) == times).await;
    }

    fn most(&self) -> u32 {
        self.most.load(Ordering::SeqCst)
    }
}

async fn patient(on: &Fixture, attempts: &Arc<Attempts>) -> Steadfast {
    on.patient().workflow(waits).state(attempts.clone()).start().await.unwrap()
}

/// R74
async fn a_resumed_run_begins_at_once_and_after_its_last_attempt(on: Fixture) {
    let attempts = attempts();
    let fabric = patient(&on, &attempts).await;
    let run = fabric.start(waits, ()).await.unwrap();
    for time in 1..4 {
        attempts.have_begun(time).await;
        let began = Instant::now();
        fabric.cancel(run.id(), "not now").await.unwrap();
        fabric.resume(run.id()).await.unwrap();
        attempts.have_begun(time + 1).await;
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    }
    attempts.gate.add_permits(1);
    assert_eq!(run.result_within(SOON).await.unwrap(), 7);
    assert_eq!(attempts.most(), 1, "attempts at once");
    fabric.shutdown().await;
}

/// R74: the owner hears of the cancel with its next heartbeat, and two more are eager.
async fn a_run_resumed_by_another_process_waits_for_its_last_owner(on: Fixture) {
    let attempts = attempts();
    // A heartbeat each second, and a machine so busy that three are late does not count.
    let lease = Duration::from_secs(4);
    let builder = || on.fabric().lease(lease).workflow(waits).state(attempts.clone());
    let owner = builder().start().await.unwrap();
    let run = owner.start(waits, ()).await.unwrap();
    attempts.have_begun(1).await;
    let others = [builder().start().await.unwrap(), builder().start().await.unwrap()];
    let client = on.client();
    client.cancel(run.id(), "not now").await.unwrap();
    client.resume(run.id()).await.unwrap();
    attempts.have_begun(2).await;
    attempts.gate.add_permits(1);
    assert_eq!(run.result_within(SOON).await.unwrap(), 7);
    assert_eq!(attempts.most(), 1, "attempts at once");
    for fabric in others.iter().chain([&owner]) {
        fabric.shutdown().await;
    }
}

/// Two programs, the first of which executes the run; ends the first and sees the other go on.
async fn hands_over<Ends: Future<Output = ()>>(on: Fixture, end: impl FnOnce(Steadfast) -> Ends) {
    let attempts = attempts();
    let builder = on.patient().drain(Duration::from_millis(100));
    let first = builder.workflow(waits).state(attempts.clone()).start().await.unwrap();
    let run_id = first.start(waits, ()).await.unwrap().id().to_owned();
    attempts.have_begun(1).await;
    let other = patient(&on, &attempts).await;
    let began = Instant::now();
    end(first).await;
    attempts.have_begun(2).await;
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    attempts.gate.add_permits(1);
    let result = other.run::<u32>(&run_id).result_within(SOON).await.unwrap();
    assert_eq!((result, attempts.most()), (7, 1), "the result, and attempts at once");
    other.shutdown().await;
}

async fn a_shutdown_that_is_out_of_time_aborts_steps_and_gives_their_runs_back(on: Fixture) {
    hands_over(on, |first| async move {
        let began = Instant::now();
        first.shutdown().await;
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!(first.live_runs(), 0);
    })
    .await;
}

async fn a_dropped_program_gives_its_runs_back(on: Fixture) {
    hands_over(on, |first| async move {
        let clone = first.clone();
        drop(first);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(clone.live_runs(), 1, "not the last handle");
        drop(clone);
    })
    .await;
}
