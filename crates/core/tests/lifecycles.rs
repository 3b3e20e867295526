//! `docs/lifecycles.md` is generated from the tables of arrows, and checked here.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "in a test a panic is the report")]

use steadfast_core::RunStatus;

fn generated() -> String {
    format!(
        "# Lifecycles\n\nGenerated from the tables in `core`; \
         `UPDATE_DOCS=1 cargo test -p steadfast-core` writes it anew.\n\n\
         ## Run\n\n```mermaid\n{}```\n",
        RunStatus::mermaid()
    )
}

#[test]
fn the_page_is_what_the_tables_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lifecycles.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, generated()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), generated());
}
