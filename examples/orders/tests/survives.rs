//! The README's claim about its first example, tried: killed while it sleeps, it goes on.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

fn start(dir: &std::path::Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orders"));
    command.current_dir(dir).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_killed_order_goes_on_and_is_not_charged_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = start(dir.path());
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "charging 1001\n");
    // By the time the sleep has begun, the charge is recorded.
    std::thread::sleep(std::time::Duration::from_secs(2));
    first.kill().unwrap();
    first.wait().unwrap();
    let mut second = start(dir.path());
    let mut said = String::new();
    second.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(second.wait().unwrap().success());
    assert_eq!(said, "charged: ch_1001\n");
}
