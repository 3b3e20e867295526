//! `docs/lifecycles.md` is generated from the tables of arrows, and checked here.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

use steadfast_core::schedule::SlotStatus;
use steadfast_core::{ApprovalStatus, CommandStatus, EffectStatus, RunStatus};

fn generated() -> String {
    let mut page = "# Lifecycles\n\nGenerated from the tables in `core`; \
        `UPDATE_DOCS=1 cargo test -p steadfast-core` writes it anew.\n"
        .to_owned();
    let machines = [
        ("Command", CommandStatus::mermaid()),
        ("Run", RunStatus::mermaid()),
        ("Effect", EffectStatus::mermaid()),
        ("Approval", ApprovalStatus::mermaid()),
        ("Slot of a schedule", SlotStatus::mermaid()),
    ];
    for (name, diagram) in machines {
        page.push_str(&format!("\n## {name}\n\n```mermaid\n{diagram}```\n"));
    }
    page
}

#[test]
fn the_page_is_what_the_tables_say() {
    // Asked when it runs: a cache of builds may hold one that was made of another copy.
    let path =
        std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs it") + "/../../docs/lifecycles.md";
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, generated()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), generated());
}
