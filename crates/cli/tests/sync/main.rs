//! The sync from a shell: the demonstration, and an operator's verbs on a vendor of our own.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod check;
mod interrupt;

use std::path::Path;
use std::process::Command;

use steadfast_sync::simulator::{Answer, FIELDS, Simulator};
use tempfile::TempDir;

fn steadfast(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    let output = command.args(args).current_dir(dir).env("USER", "operator").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// R54: thirty nights, judged by the vendor's log and the warehouse; and what was kept of them.
#[test]
fn r054_the_demonstration_holds_its_objective() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, err) = steadfast(dir.path(), &["demo", "--keep", "nights"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("The objective holds"), "{out}");
    assert!(out.contains("paged 2 times"), "{out}");
    let nights = out.lines().filter(|line| line.starts_with("20")).count();
    assert_eq!(nights, 30, "{out}");
    for told in ["kill -9", "401", "400", "429", "503", "cancelled", "twice", "nothing new"] {
        assert!(out.contains(told), "{told}: {out}");
    }
    let (code, out, err) =
        steadfast(dir.path(), &["sync", "status", "--config", "nights/steadfast.toml"]);
    assert_eq!(code, 0, "{err}");
    // Between 03:00 and 05:00 there is one more night, which nobody plays.
    let (all, but_one) = ("# loaded 27  = stale 3\n", "# loaded 26  = stale 3  o missed 1");
    assert!(out.contains(all) || out.contains(but_one), "{out}");
    // An earlier demonstration is not written over.
    let (code, _, err) = steadfast(dir.path(), &["demo", "--keep", "nights"]);
    assert_ne!(code, 0);
    assert!(err.contains("earlier demonstration"), "{err}");
}

/// Whoever has read enough closes the pipe, and gets no backtrace for it.
#[test]
fn nobody_has_to_read_to_the_end() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    let output = command.args(["explain", "SF-1002"]).stdout(writer).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn a_file_is_written_once_and_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, _) = steadfast(dir.path(), &["init"]);
    assert_eq!(code, 0, "{out}");
    let (code, _, err) = steadfast(dir.path(), &["init"]);
    assert_ne!(code, 0);
    assert!(err.contains("--force"), "{err}");
    let (code, out, err) =
        steadfast(dir.path(), &["sync", "check", "--offline", "--create-tables"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("sync_vendor_sales:acme_sales:{target_date}"), "{out}");
}

#[test]
fn what_is_wrong_is_said_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = steadfast(dir.path(), &["sync", "check"]);
    assert_ne!(code, 0);
    assert!(err.contains("steadfast.toml") && err.contains("steadfast init"), "{err}");
    steadfast(dir.path(), &["init"]);
    let file = dir.path().join("steadfast.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, good.replace("state_table", "stat_table")).unwrap();
    let (code, _, err) = steadfast(dir.path(), &["sync", "check"]);
    assert_ne!(code, 0);
    assert!(err.contains("steadfast.toml:14:1") && err.contains("`state_table`"), "{err}");
    std::fs::write(&file, good).unwrap();
    let (code, _, err) = steadfast(dir.path(), &["sync", "run", "--vendor", "acme"]);
    assert_ne!(code, 0);
    assert!(err.contains("there are: acme_sales"), "{err}");
    let (code, _, err) = steadfast(dir.path(), &["sync", "run", "--date", "2026-02-30"]);
    assert_ne!(code, 0);
    assert!(err.contains("2026-02-30"), "{err}");
    let (code, _, err) = steadfast(dir.path(), &["sync", "status"]);
    assert_ne!(code, 0);
    assert!(err.contains("sync start"), "{err}");
    // The warehouse is not there: said, and not made.
    let (code, out, _) = steadfast(dir.path(), &["sync", "check", "--offline"]);
    assert_ne!(code, 0);
    assert!(out.contains("wrong warehouse") && out.contains("there is no file"), "{out}");
    assert!(!dir.path().join("warehouse.db").exists());
}

/// A folder with a file for a vendor, and what else it says.
pub(crate) fn folder(url: &str, more: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "let-me-in\n").unwrap();
    let text = format!(
        "[store]\nurl = \"sqlite://s.db\"\nspool = \"spool\"\n\
         [warehouse]\nurl = \"sqlite://{0}/w.db\"\n{more}\n\
         [[vendor]]\nname = \"acme_sales\"\nbase_url = \"{url}\"\nallow_private = true\n\
         auth = {{ secret = \"file:{0}/token\" }}\n\
         pagination = {{ style = \"cursor\", param = \"cursor\", next = \"next_cursor\" }}\n\
         [vendor.fields]\n{FIELDS}\n\
         [vendor.totals]\nrows = \"row_count\"\nrevenue = \"total_revenue\"\ncolumn = \"revenue\"\n\
         tolerance = \"0.01\"\n",
        dir.path().display()
    );
    std::fs::write(dir.path().join("steadfast.toml"), text).unwrap();
    dir
}

/// Runs it while the vendor is served.
pub(crate) async fn run(dir: &TempDir, args: &[&str]) -> (i32, String, String) {
    let at = dir.path().to_owned();
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let run = move || steadfast(&at, &args.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// R50: whoever waits for a day is told what it waits for, each thing once.
#[tokio::test(flavor = "multi_thread")]
async fn r050_a_retry_is_told_to_whoever_waits() {
    let vendor = Simulator::new().token("let-me-in");
    let url = vendor.listen().await.unwrap();
    let soon = "[retry.fetch_vendor_snapshot]\nretryable = [\"transient_connector_error\"]\n\
                max_attempts = 3\nbackoff_seconds = [2]\n";
    let dir = folder(&url, soon);
    let (code, out, err) = run(&dir, &["sync", "check", "--offline", "--create-tables"]).await;
    assert_eq!(code, 0, "{out}{err}");
    vendor.on("2026-06-01", [Answer::Status(503), Answer::Status(503)]);
    let (code, out, err) = run(&dir, &["sync", "run", "--date", "2026-06-01"]).await;
    assert_eq!(code, 0, "{out}{err}");
    let told: Vec<_> = err.lines().filter(|line| line.contains("next at")).collect();
    assert_eq!(told.len(), 2, "{err}");
    for (line, attempt) in told.iter().zip(["attempt 1", "attempt 2"]) {
        let all = ["2026-06-01: fetch_vendor_snapshot", attempt, "503", "+00:00"];
        assert!(all.iter().all(|part| line.contains(part)), "{line}");
    }
    assert!(out.contains("2026-06-01: loaded"), "{out}");
}

/// R55: by hand, once; `--again` on purpose, `--force` though nothing is new; a range of days.
#[tokio::test(flavor = "multi_thread")]
async fn r055_an_operator_syncs_days_by_hand() {
    let vendor = Simulator::new().token("let-me-in");
    let url = vendor.listen().await.unwrap();
    let dir = folder(&url, "");
    let run = async |args: &[&str]| run(&dir, args).await;
    let (code, out, err) = run(&["sync", "check", "--create-tables", "--date", "2026-06-01"]).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("snap-2026-06-01-0") && out.contains("more pages"), "{out}");
    let asked = vendor.log().len();
    let day = ["sync", "run", "--date", "2026-06-01"];
    let (code, out, err) = run(&day).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("2026-06-01: loaded"), "{out}");
    let (code, out, _) = run(&day).await;
    assert_eq!(code, 0);
    assert!(out.contains("was done before"), "{out}");
    assert_eq!(vendor.log().len(), asked + 2, "two pages, once");
    vendor.revise("2026-06-01");
    let (code, out, _) = run(&["sync", "run", "--date", "2026-06-01", "--again"]).await;
    assert_eq!(code, 0, "{out}");
    assert!(out.contains(":r2)"), "{out}");
    let (code, out, _) = run(&["sync", "run", "--date", "2026-06-01", "--again"]).await;
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("stale") && out.contains("--force") && out.contains(":r3)"), "{out}");
    let (code, out, _) = run(&["sync", "run", "--date", "2026-06-01", "--force"]).await;
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("2026-06-01: loaded") && out.contains(":r4)"), "{out}");
    vendor.on("2026-06-03", [Answer::Status(400)]);
    let days = ["sync", "backfill", "--from", "2026-06-01", "--to", "2026-06-03"];
    let (code, out, _) = run(&[&days[..], &["--dry-run"]].concat()).await;
    assert_eq!(code, 0);
    assert!(out.contains("2026-06-02: would be synced"), "{out}");
    let (code, out, _) = run(&days).await;
    assert_eq!(code, 1, "one of them failed: {out}");
    let (code, again, _) = run(&days).await;
    assert_eq!(code, 0, "what failed is tried again: {again}");
    let (code, _, err) = run(&["sync", "run", "--date", "2999-01-01"]).await;
    assert_ne!(code, 0);
    assert!(err.contains("not over yet"), "{err}");
    assert!(out.contains("2026-06-02: loaded") && out.contains("2026-06-03: failed"), "{out}");
}
