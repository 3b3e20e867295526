//! Gathers the error pages into the program, so that `steadfast explain` needs no files.

use std::fmt::Write as _;
use std::path::PathBuf;

fn main() {
    let docs = PathBuf::from(env("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    println!("cargo::rerun-if-changed={}", docs.display());
    let mut files: Vec<PathBuf> = std::fs::read_dir(&docs)
        .expect("docs/errors is part of the source")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "md"))
        .collect();
    files.sort();
    let mut pages = String::from("&[\n");
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let path = file.canonicalize().expect("the page was just listed");
        writeln!(pages, "({name:?}, include_str!({path:?})),").expect("a string takes all text");
    }
    pages.push(']');
    std::fs::write(PathBuf::from(env("OUT_DIR")).join("pages.rs"), pages)
        .expect("OUT_DIR is writable");
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
