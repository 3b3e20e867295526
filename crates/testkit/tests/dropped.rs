//! A program that is dropped without a shutdown leaves no thread and no connection behind.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use steadfast::{Cx, Error, Result, Steadfast};
use steadfast_testkit::db::TestDb;

async fn slow(cx: Cx, n: u32) -> Result<u32> {
    let wait = || async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok::<_, Error>(1u32)
    };
    match n {
        0 => cx.step("slow", wait).await,
        1 => cx.sleep(Duration::from_secs(3600)).await.map(|()| 1),
        _ => cx.wait_signal("never").await,
    }
}

/// Threads of this process, and what it has open.
fn left() -> (usize, usize) {
    let count = |dir: &str| std::fs::read_dir(dir).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// One program with work under way, dropped in the middle of it.
async fn lives_and_is_dropped(url: &str) {
    let program = Steadfast::open(url).workflow(slow).start().await.unwrap();
    for n in 0..6u32 {
        program.start(slow, n % 3).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let other = program.clone();
    drop(program);
    assert!(other.list(steadfast::RunFilter::default(), 10).await.unwrap().runs.len() >= 6);
    drop(other);
}

async fn back_to(before: (usize, usize), what: &str) {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        let now = left();
        if now.0 <= before.0 && now.1 <= before.1 {
            return;
        }
        assert!(Instant::now() < give_up, "{what}: {before:?} threads and files, now {now:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The only test of this file: whatever else ran in this process would be counted.
#[test]
fn a_dropped_program_leaves_no_threads_and_connections_behind() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // Threads for what blocks stay for this long by themselves.
    let builder = builder.worker_threads(2).enable_all().thread_keep_alive(Duration::ZERO);
    let runtime = builder.build().unwrap();
    runtime.block_on(async {
        for db in TestDb::all() {
            // What is made once in a process is made by now.
            lives_and_is_dropped(&db.url).await;
            tokio::time::sleep(Duration::from_secs(4)).await;
            let before = left();
            for _ in 0..3 {
                lives_and_is_dropped(&db.url).await;
            }
            back_to(before, &format!("{:?}", db.kind())).await;
        }
    });
}
