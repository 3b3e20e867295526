//! A disk that is full for a while: a small one is made for the test, where that is permitted.

#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use steadfast_core::Timestamp;
use steadfast_store::op::{DEFAULT_QUEUE, GetRun, Start};
use steadfast_store::{Op, Store, StoreExt};

/// A disk in memory, unmounted with the test.
struct Disk(tempfile::TempDir);

impl Disk {
    /// `None` where this process may not mount.
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (mut mount, tmpfs) = (Command::new("mount"), ["-t", "tmpfs", "-o", "size=8m", "none"]);
        let mounted = mount.args(tmpfs).arg(dir.path()).output();
        mounted.is_ok_and(|done| done.status.success()).then(|| Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes until there is no space left.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.path().join("filler")).unwrap();
        for size in [1 << 16, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn make_room(&self) {
        std::fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

fn start(run_id: &str) -> Start {
    let now = Timestamp::from_micros(1);
    Start {
        workspace: "w".into(),
        run_id: run_id.into(),
        workflow: "order".into(),
        input: format!("\"{}\"", "1".repeat(200_000)),
        queue: DEFAULT_QUEUE.into(),
        partition: String::new(),
        priority: 0,
        dedupe_id: String::new(),
        app_version: String::new(),
        max_attempts: 1,
        ready_at: now,
        timeout: None,
        deadline_at: None,
        parent: String::new(),
        detached: false,
        seed: 0,
        context: None,
        claim: None,
        rest: None,
        now,
    }
}

/// R82
#[tokio::test(flavor = "multi_thread")]
async fn r082_a_start_on_a_full_disk_is_answered_within_a_second_of_recovery() {
    let Some(disk) = Disk::new() else {
        return println!("skipped: this process may not mount a disk");
    };
    let url = format!("sqlite://{}", disk.path().join("store.db").display());
    let store = std::sync::Arc::new(steadfast_store::open(&url).await.unwrap());
    store.ask(start("before")).await.unwrap();
    disk.fill();
    let starts = ["a", "b"].map(|run_id| {
        let store = store.clone();
        tokio::spawn(async move {
            let answer = store.call(Op::Start(start(run_id))).await;
            (Instant::now(), answer)
        })
    });
    // Long enough for waits that double to be longer than the second that is promised.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(starts.iter().all(|start| !start.is_finished()), "the disk is full");
    // What is there is read all the while.
    let (workspace, run_id) = ("w".to_owned(), "before".to_owned());
    let get = GetRun { workspace, run_id, now: Timestamp::from_micros(2) };
    assert!(store.ask(get).await.unwrap().0.is_some());
    let freed_at = Instant::now();
    disk.make_room();
    for start in starts {
        let (answered_at, answer) = start.await.unwrap();
        answer.unwrap();
        let late = answered_at - freed_at;
        assert!(late < Duration::from_secs(1), "answered {late:?} after there was room");
    }
}
