//! The command from outside: exit codes and what a person reads.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

use std::process::Command;

fn steadfast(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_steadfast")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_demonstration_ends_every_order_through_its_kills() {
    let (code, out, err) = steadfast(&["demo"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("kill -9 no. 5"), "{out}");
    assert_eq!(out.matches("SUCCESS").count(), 12, "{out}");
}

#[test]
fn an_error_code_is_explained_and_an_unknown_one_is_refused() {
    let (code, out, _) = steadfast(&["explain", "sf-0110"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("# SF-0110: The id is taken by something else"));
    let (code, _, err) = steadfast(&["explain", "SF-9999"]);
    assert_ne!(code, 0);
    assert!(err.contains("there is no error code SF-9999"));
}

#[test]
fn a_run_needs_its_store_to_be_explained() {
    let (code, _, err) = steadfast(&["explain", "order-1"]);
    assert_ne!(code, 0);
    assert!(err.contains("--store"), "{err}");
    let (code, _, err) = steadfast(&["explain", "order-1", "--store", "sqlite::memory:"]);
    assert_ne!(code, 0);
    assert!(err.contains("there is no run \"order-1\""), "{err}");
}
