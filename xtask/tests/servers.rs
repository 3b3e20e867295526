//! The promise about the test servers: they never outlive the program that started them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);

/// Starts Postgres below `folder` (the others take the same path) and returns its address.
fn start(folder: &Path) -> (Child, String) {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"))
        // `cat` ends with its input: it does not outlive this test either.
        .args(["servers", "--", "sh", "-c", "echo $STEADFAST_TEST_POSTGRES_URL; exec cat"])
        .env_remove("STEADFAST_TEST_POSTGRES_URL")
        .env("STEADFAST_TEST_MYSQL_URL", "not needed")
        .env("STEADFAST_TEST_NATS_URL", "not needed")
        .env("TMPDIR", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("xtask starts");
    let mut url = String::new();
    let stdout = xtask.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut url).expect("a line");
    let address = url.trim().trim_start_matches("postgres://postgres@");
    let address = address.trim_end_matches("/postgres").to_owned();
    (xtask, address)
}

fn is_gone(folder: &Path, address: &str) -> bool {
    let is_empty = fs::read_dir(folder).expect("the folder").next().is_none();
    is_empty && TcpStream::connect(address).is_err()
}

#[test]
fn a_server_ends_with_the_program_that_started_it_however_that_ends() {
    // Installing packages is `xtask test`'s business, not a single test's.
    if !Path::new("/usr/lib/postgresql").exists() {
        eprintln!("skipped: no Postgres here");
        return;
    }
    let folder = TempDir::new().expect("a temporary folder");
    // The server's account has to get in.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("permissions");

    let (mut xtask, address) = start(folder.path());
    assert!(TcpStream::connect(&address).is_ok(), "{address}");
    drop(xtask.stdin.take());
    assert!(xtask.wait().expect("an end").success());
    assert!(is_gone(folder.path(), &address), "after a regular end");

    let (mut xtask, address) = start(folder.path());
    assert!(TcpStream::connect(&address).is_ok(), "{address}");
    xtask.kill().expect("SIGKILL");
    xtask.wait().expect("an end");
    let deadline = Instant::now() + LIMIT;
    while !is_gone(folder.path(), &address) {
        assert!(Instant::now() < deadline, "still there after SIGKILL");
        thread::sleep(Duration::from_millis(50));
    }
}
