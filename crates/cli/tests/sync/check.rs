//! `sync check`: whoever has made a mistake is told which, before the night is.

use steadfast_sync::simulator::{Answer, Simulator};
use tempfile::TempDir;

use super::{folder, run};

const CHECK: [&str; 4] = ["sync", "check", "--date", "2026-06-01"];

/// A folder with a file, and its tables; the vendor wants the token that the file names.
async fn ready(vendor: &Simulator) -> TempDir {
    let url = vendor.listen().await.unwrap();
    let dir = folder(&url, "");
    let (code, out, err) = run(&dir, &["sync", "check", "--offline", "--create-tables"]).await;
    assert_eq!(code, 0, "{out}{err}");
    dir
}

/// Changes something in the file.
fn change(dir: &TempDir, from: &str, to: &str) {
    let file = dir.path().join("steadfast.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from}");
    std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
}

/// What is said of it, which must be wrong in one line that has all these words.
async fn wrong(dir: &TempDir, words: &[&str]) {
    let (code, out, err) = run(dir, &CHECK).await;
    assert_eq!(code, 1, "{out}{err}");
    let lines: Vec<_> = out.lines().filter(|line| line.starts_with("wrong ")).collect();
    assert_eq!(lines.len(), 1, "{out}");
    assert!(words.iter().all(|word| lines[0].contains(word)), "{words:?}: {}", lines[0]);
    assert!(!out.contains("let-me-in") && !err.contains("let-me-in"), "a secret is not shown");
}

/// R52: no access.
#[tokio::test(flavor = "multi_thread")]
async fn r052_a_vendor_that_does_not_let_one_in_is_named() {
    let vendor = Simulator::new().token("another-token");
    let dir = ready(&vendor).await;
    wrong(&dir, &["vendor acme_sales on 2026-06-01", "401", "GET /sales/daily"]).await;
    assert_eq!(vendor.log().len(), 1, "asked once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vendor_that_is_down_is_named() {
    let vendor = Simulator::new().token("let-me-in");
    let dir = ready(&vendor).await;
    vendor.on("2026-06-01", [Answer::Status(503)]);
    wrong(&dir, &["vendor acme_sales on 2026-06-01", "503"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_the_table_lacks_is_named() {
    let vendor = Simulator::new().token("let-me-in");
    let dir = ready(&vendor).await;
    let (code, out, err) = run(&dir, &CHECK).await;
    assert_eq!(code, 0, "{out}{err}");
    // The table was made before the file had this column.
    change(&dir, "revenue = { type", "brand = { optional = true }\nrevenue = { type");
    wrong(&dir, &["warehouse", "brand"]).await;
    // A table that is there is not changed.
    let (code, out, _) = run(&dir, &["sync", "check", "--offline", "--create-tables"]).await;
    assert_eq!(code, 1, "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_not_where_they_were_said_to_be_are_named() {
    let vendor = Simulator::new().token("let-me-in");
    let dir = ready(&vendor).await;
    change(&dir, "allow_private = true", "allow_private = true\nrows = \"data.rowz\"");
    wrong(&dir, &["vendor acme_sales", "no list at \"data.rowz\""]).await;
}

/// R43: the plan is the contract's, with what the file has changed in it.
#[tokio::test(flavor = "multi_thread")]
async fn r043_the_plan_has_the_steps_with_their_waits_and_queues() {
    let vendor = Simulator::new().token("let-me-in");
    let dir = ready(&vendor).await;
    let retry = "[retry.record_hash]\nretryable = [\"timeout\"]\nmax_attempts = 2\n\
                 backoff_seconds = [7]\n[[vendor]]";
    change(&dir, "[[vendor]]", retry);
    let (code, out, err) = run(&dir, &["sync", "check", "--offline"]).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("sync_vendor_sales on queue scheduled_maintenance"), "{out}");
    let usual = "queue connector_calls: 4 attempts, after 30 s, 120 s, 600 s, on";
    let at = |line: &str| out.find(line).unwrap_or_else(|| panic!("no {line} in {out}"));
    let places = [
        at("fetch    fetch_vendor_snapshot at the vendor"),
        at("hash     here"),
        at("compare  load_last_hash at warehouse"),
        at("load     upsert_warehouse_partition at warehouse"),
        at("record   record_hash at warehouse, queue connector_calls: 2 attempts, after 7 s, on \
            timeout"),
    ];
    assert!(places.is_sorted(), "{out}");
    assert_eq!(out.matches(usual).count(), 3, "{out}");
}

/// Whoever only asks makes no store; one that is there is opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_opened_and_not_made() {
    let vendor = Simulator::new().token("let-me-in");
    let dir = ready(&vendor).await;
    let store = dir.path().join("s.db");
    let (code, out, err) = run(&dir, &CHECK).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("store: there is no file s.db yet"), "{out}");
    assert!(!store.exists());
    let (code, out, err) = run(&dir, &["sync", "run", "--date", "2026-06-01"]).await;
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = run(&dir, &CHECK).await;
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("store: it can be opened"), "{out}");
    std::fs::write(dir.path().join("text.db"), "this is no database\n".repeat(100)).unwrap();
    change(&dir, "sqlite://s.db", "sqlite://text.db");
    wrong(&dir, &["store", "text.db"]).await;
}
