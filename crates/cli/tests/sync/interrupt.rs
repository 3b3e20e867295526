//! Ctrl-C in the middle of the demonstration: it ends, and leaves nothing behind.

#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// The processes whose command line names a folder.
fn at_work_in(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    // Those that end while one looks are no matter.
    let lines = processes.filter_map(|one| std::fs::read(one.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains("demo-worker") && line.contains(folder)).collect()
}

/// Waits until something is so; says whether it came to that.
fn comes(mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Waits for a process to end by itself.
fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    let over = comes(|| {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    if !over {
        child.kill().unwrap();
    }
    status.expect("it ends by itself")
}

#[test]
fn a_demonstration_that_is_interrupted_leaves_nothing_behind() {
    // Its temporary folder is made in here, and its worker is told so: both are its own.
    let home = tempfile::tempdir().unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_steadfast"))
        .arg("demo")
        .current_dir(home.path())
        .env("TMPDIR", home.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(demo.stdout.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    assert!(first.starts_with("A vendor at"), "{first}");
    assert!(comes(|| !at_work_in(home.path()).is_empty()), "the worker is another process");
    assert!(std::fs::read_dir(home.path()).unwrap().count() >= 1, "and so is its folder");
    let sent = Command::new("kill").args(["-INT", &demo.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let status = ended(&mut demo);
    assert_eq!(status.code(), Some(130));
    assert!(comes(|| at_work_in(home.path()).is_empty()), "{:?}", at_work_in(home.path()));
    let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    // Read to the end, so that it was never held up by a pipe that is full.
    let rest: Vec<String> = said.lines().map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line.starts_with("Stopped.")), "{rest:?}");
}
