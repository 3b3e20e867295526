//! The example does what its comments say.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::Command;

#[test]
fn a_day_is_synced_once_however_often_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("nightly.db").display());
    let run = || {
        let output = Command::new(env!("CARGO_BIN_EXE_nightly")).arg(&url).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let first = run();
    assert!(first.contains("syncing acme_sales of 2026-06-01"), "{first}");
    assert!(first.contains("2026-06-01 (new)") && first.contains("next night: "), "{first}");
    let second = run();
    assert!(!second.contains("syncing") && second.contains("2026-06-01 (known)"), "{second}");
}
