//! A database server of a test's own, made to be killed: every process of it gets SIGKILL, and its
//! guard starts it again on the same data.
//!
//! Invariants: it waits for the disk as its own defaults say, because what survives its death is
//! the question; it is gone when it is dropped; without `cargo xtask` there is none, and the test
//! is skipped, except in CI, where it fails.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use steadfast_testkit::db::{DbKind, command};

/// Names the program that starts servers.
const XTASK: &str = "STEADFAST_TEST_XTASK";
/// The database that the test uses on it.
const DATABASE: &str = "outage";
/// How long recovery may take after a kill.
const RECOVERY: Duration = Duration::from_secs(60);

/// A durable server.
pub(crate) struct Server {
    kind: DbKind,
    keeper: Child,
    /// Where the test's database is.
    pub(crate) url: String,
    pid_file: PathBuf,
}

impl Server {
    /// Starts one, if this test runs under `cargo xtask test`.
    pub(crate) fn start(kind: DbKind) -> Option<Self> {
        let xtask = std::env::var_os(XTASK);
        let in_ci = std::env::var_os("CI").is_some();
        assert!(xtask.is_some() || !in_ci, "{XTASK} is not set: use `cargo xtask test`");
        let word = match kind {
            DbKind::Postgres => "postgres",
            DbKind::Mysql => "mariadb",
            DbKind::Sqlite => panic!("SQLite has no server"),
        };
        let mut keeper = Command::new(xtask?)
            .args(["server", word])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program that starts servers");
        let said = BufReader::new(keeper.stdout.take().expect("invariant: it is piped"));
        let mut lines = said.lines().map_while(Result::ok);
        let (Some(url), Some(pid_file)) = (lines.next(), lines.next()) else {
            panic!("no {word} was started: {:?}", keeper.wait());
        };
        command(kind, &url, &format!("CREATE DATABASE {DATABASE}")).expect("a database");
        let (server, _) = url.rsplit_once('/').expect("a URL has a path");
        let url = format!("{server}/{DATABASE}");
        Some(Self { kind, keeper, url, pid_file: pid_file.into() })
    }

    /// Kills all of it at once, and waits until it answers again; gives how long that took. What it
    /// had not written to its files is lost.
    pub(crate) async fn kill(&self) -> Duration {
        let pid = self.pid();
        // A Postgres that sees a child die ends the others in order: it must not see it.
        signal("STOP", &pid);
        for child in children(&pid) {
            signal("KILL", &child);
        }
        signal("KILL", &pid);
        let began = Instant::now();
        while let Err(error) = command(self.kind, &self.url, "SELECT 1") {
            assert!(began.elapsed() < RECOVERY, "{:?} is not back: {error}", self.kind);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_ne!(self.pid(), pid, "the server is still the one that was killed");
        began.elapsed()
    }

    fn pid(&self) -> String {
        let text = std::fs::read_to_string(&self.pid_file).expect("a running server has one");
        text.lines().next().expect("a process id").trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

fn signal(name: &str, pid: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), pid]).stderr(Stdio::null()).status();
    assert!(sent.is_ok(), "the program `kill` is needed to send SIG{name}");
}

/// The processes that a process has started, from `/proc`.
fn children(pid: &str) -> Vec<String> {
    let listed = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = listed.filter_map(|entry| entry.file_name().into_string().ok());
    let is_child = |of: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).unwrap_or_default();
        // After the name, which may hold anything: the state, then the parent.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(pid)
    };
    pids.filter(is_child).collect()
}
