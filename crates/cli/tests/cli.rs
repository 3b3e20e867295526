//! The command from outside: exit codes and what a person reads.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

use std::process::Command;

fn steadfast(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_steadfast")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
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

/// A store with a schedule whose nights have passed, and a command of it.
fn nightly() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("s.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = steadfast::Client::connect(&store).await.unwrap();
        let trigger = steadfast::Trigger {
            trigger_id: "nightly".to_owned(),
            enabled: true,
            when: steadfast::When::Cron(steadfast::Cron::cron("0 3 * * *")),
            command: steadfast::CommandType {
                key_template: Some("sync:{day}".to_owned()),
                ..steadfast::CommandType::new("sync")
            },
            payload: serde_json::json!({ "day": "{target_date}" }),
        };
        client.define(&trigger).await.unwrap();
    });
    (folder, store)
}

#[test]
fn an_operator_sees_and_steers_a_schedule() {
    let (_folder, store) = nightly();
    let at = |args: &[&str]| {
        let (code, out, err) = steadfast(&[args, &["--store", &store]].concat());
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        (out, err)
    };
    let (out, _) = at(&["schedule", "list"]);
    assert!(out.contains("nightly  cron  active") && out.contains("At 03:00"), "{out}");
    let (out, _) = at(&["schedule", "next", "nightly", "--count", "3", "-o", "ids"]);
    assert_eq!(out.lines().count(), 3);
    assert!(out.lines().all(|line| line.ends_with("T03:00:00+00:00")), "{out}");
    let range = ["--from", "2026-06-02", "--to", "2026-06-04"];
    let backfill = [&["schedule", "backfill", "nightly"], &range[..]].concat();
    let (out, err) = at(&[&backfill[..], &["--dry-run"]].concat());
    assert_eq!(out.matches("would be made").count(), 3, "{out}");
    assert!(err.contains("0 of 3"), "{err}");
    assert!(at(&backfill).1.contains("3 of 3"));
    assert!(at(&backfill).1.contains("0 of 3"), "a repetition makes nothing");
    let (out, _) = at(&["schedule", "slots", "nightly"]);
    assert_eq!(out.matches("fired").count(), 3, "{out}");
    let (out, _) = at(&["command", "get", "sync:2026-06-01"]);
    assert!(out.contains("queued") && out.contains("further triggers  1"), "{out}");
    assert!(out.contains("command.created"), "{out}");
    let (out, _) = at(&["command", "list", "--status", "queued", "-o", "json"]);
    assert_eq!(out.lines().count(), 3);
    let id = serde_json::from_str::<serde_json::Value>(out.lines().next().unwrap()).unwrap();
    let id = id["command_id"].as_str().unwrap().to_owned();
    assert!(at(&["command", "cancel", &id, "--reason", "no"]).1.contains("is cancelled"));
    assert!(at(&["schedule", "pause", "nightly", "--reason", "audit"]).1.contains("is paused"));
    assert!(at(&["schedule", "get", "nightly"]).0.contains("paused: audit"));
    assert!(at(&["schedule", "resume", "nightly"]).1.contains("is active"));
    assert!(at(&["schedule", "trigger", "nightly"]).0.contains("new"));
}

/// R33, R30
#[test]
fn an_operator_reads_events_and_verifies_them() {
    let (_folder, store) = nightly();
    let run = |args: &[&str]| steadfast(&[args, &["--store", &store]].concat());
    let at = |args: &[&str]| {
        let (code, out, err) = run(args);
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        (out, err)
    };
    let range = ["--from", "2026-06-02", "--to", "2026-06-03"];
    at(&[&["schedule", "backfill", "nightly"], &range[..]].concat());
    let (out, _) = at(&["event", "list", "--type", "command.", "-o", "ids"]);
    assert_eq!(out.lines().count(), 6, "{out}");
    let (out, err) = at(&["event", "list", "--limit", "2", "--json"]);
    assert_eq!(out.lines().count(), 2, "{out}");
    let event: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&event["event_type"], &event["purpose"]),
        (&"command.created".into(), &"event".into())
    );
    let next = err.trim().strip_prefix("more: --after ").unwrap();
    assert_eq!(at(&["event", "list", "--after", next, "-o", "ids"]).0.lines().count(), 4);
    let id = event["command_id"].as_str().unwrap();
    assert_eq!(at(&["event", "list", "--command", id, "-o", "ids"]).0.lines().count(), 3);
    assert_eq!(at(&["event", "list", "--purpose", "audit", "-o", "ids"]).0, "");
    assert_eq!(at(&["event", "list", "--since", "2999-01-01", "-o", "ids"]).0, "");
    let (out, err) = at(&["audit", "verify"]);
    assert!(out.starts_with("0:") && err.starts_with("whole: 0 events"), "{out}{err}");
    seal(&store);
    let (out, err) = at(&["audit", "verify"]);
    assert!(out.starts_with("6:") && err.starts_with("whole: 6 events"), "{out}{err}");
    at(&["audit", "verify", "--anchor", out.trim()]);
    let other = format!("6:{}", "0".repeat(64));
    let (code, out, err) = run(&["audit", "verify", "--anchor", &other, "-o", "json"]);
    assert!(code == 1 && err.contains("number 6") && err.contains("SF-0902"), "{out}{err}");
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&found["whole"], &found["broken"]["seq"]), (&false.into(), &6.into()));
    assert!(at(&["event", "sinks"]).0.starts_with("SINK"));
    assert!(at(&["event", "dead"]).0.starts_with("EVENT"));
    for verb in ["redrive", "enable", "disable"] {
        let (code, _, err) = run(&["event", verb, "hook"]);
        assert!(code != 0 && err.contains("SF-0906"), "{verb}: {err}");
    }
}

fn seal(store: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = steadfast::Client::connect(store).await.unwrap();
        assert_eq!(client.seal_events().await.unwrap().seq, 6);
    });
}

#[test]
fn what_is_not_there_is_said_with_its_code() {
    let (_folder, store) = nightly();
    let fails = |args: &[&str]| {
        let (code, _, err) = steadfast(&[args, &["--store", &store]].concat());
        assert_ne!(code, 0, "{args:?}");
        err
    };
    assert!(fails(&["schedule", "slots", "daily"]).contains("SF-0608"));
    assert!(fails(&["command", "get", "x"]).contains("SF-0505"));
    assert!(fails(&["command", "list", "--status", "lost"]).contains("there is no status lost"));
    let range = ["--from", "2026-06-04", "--to", "soon"];
    let err = fails(&[&["schedule", "backfill", "nightly"], &range[..]].concat());
    assert!(err.contains("SF-0605"), "{err}");
    let (code, _, err) = steadfast(&["schedule", "list", "--store", "sqlite:///nowhere/s.db"]);
    assert_ne!(code, 0);
    assert!(err.contains("there is no SQLite file /nowhere/s.db"), "{err}");
    let (code, _, err) = steadfast(&["schedule", "list"]);
    assert_ne!(code, 0);
    assert!(err.contains("--store"), "{err}");
}

#[test]
fn a_list_of_no_rows_or_too_many_is_refused_by_every_verb() {
    let (_folder, store) = nightly();
    let lists: [&[&str]; 8] = [
        &["command", "list", "--limit"],
        &["event", "list", "--limit"],
        &["event", "dead", "--limit"],
        &["effect", "list", "--limit"],
        &["effect", "calls", "--limit"],
        &["policy", "budgets", "--limit"],
        &["schedule", "slots", "nightly", "--count"],
        &["schedule", "next", "nightly", "--count"],
    ];
    for list in lists {
        for limit in ["0", "1001", "18446744073709551615"] {
            let (code, _, err) = steadfast(&[list, &[limit, "--store", &store]].concat());
            assert_ne!(code, 0, "{list:?} {limit}");
            assert!(err.contains("SF-0124") && err.contains("1 to 1000"), "{list:?}: {err}");
        }
    }
}

/// R33, X11: an empty store has nothing to approve, and says what is wrong with an answer.
#[test]
fn approvals_and_effects_are_listed_and_bad_answers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.db");
    let store = format!("sqlite://{}", file.display());
    std::fs::write(&file, "").unwrap();
    for noun in ["approval", "effect"] {
        let (code, out, err) = steadfast(&[noun, "list", "--store", &store]);
        assert_eq!(code, 0, "{err}");
        assert!(out.starts_with("ID"), "{out}");
    }
    let (code, _, err) = steadfast(&["approval", "approve", "apr_1", "--store", &store]);
    assert_ne!(code, 0);
    assert!(err.contains("SF-0818"), "{err}");
    let resolve = ["effect", "resolve", "eff_1", "--not-done", "--reason", "x", "--store", &store];
    let (code, _, err) = steadfast(&resolve);
    assert_ne!(code, 0);
    assert!(err.contains("SF-0834"), "{err}");
    let (code, _, err) =
        steadfast(&["effect", "resolve", "eff_1", "--reason", "x", "--store", &store]);
    assert_ne!(code, 0);
    assert!(err.contains("--done"), "{err}");
}
