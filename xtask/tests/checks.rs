//! The checks from outside: the built program on this tree and on small made-up ones.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A tree with the given files.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = TempDir::new().expect("a temporary folder");
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    root
}

fn xtask(args: &[&str], root: Option<&Path>) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(args);
    if let Some(root) = root {
        command.arg("--root").arg(root);
    }
    let output = command.output().expect("xtask runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    (output.status.code().expect("an exit code"), text)
}

const WORKSPACE: (&str, &str) =
    ("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/core\"]\n");
const CORE: &str = "[package]\nname = \"steadfast-core\"\nedition = \"2024\"\n";
const LIB: (&str, &str) = ("crates/core/src/lib.rs", "//! Meaning.\n");

#[test]
fn r053_boundaries_are_clean_on_this_tree() {
    assert_eq!(xtask(&["boundaries"], None), (0, String::new()));
}

#[test]
fn tidy_is_clean_on_this_tree() {
    assert_eq!(xtask(&["tidy"], None), (0, String::new()));
}

#[test]
fn r053_a_clean_tree_exits_0() {
    let root = tree(&[WORKSPACE, ("crates/core/Cargo.toml", CORE), LIB]);
    assert_eq!(xtask(&["boundaries"], Some(root.path())), (0, String::new()));
    assert_eq!(xtask(&["tidy"], Some(root.path())), (0, String::new()));
}

#[test]
fn r053_violations_exit_1_with_path_line_and_rule() {
    let manifest = format!("{CORE}\n[dependencies]\nserde = \"1\"\ndbos = \"1\"\n");
    let root = tree(&[
        WORKSPACE,
        ("crates/core/Cargo.toml", &manifest),
        ("crates/core/src/lib.rs", "//! Meaning.\nuse dbos::Client;\n"),
    ]);
    let why = "a runtime library stays in its adapter";
    let expected = format!(
        "crates/core/Cargo.toml:7: pin: steadfast-core may not use dbos: {why}\n\
         crates/core/src/lib.rs:2: pin: steadfast-core may not use dbos: {why}\n"
    );
    assert_eq!(xtask(&["boundaries"], Some(root.path())), (1, expected));
}

#[test]
fn tidy_violations_exit_1_with_path_line_and_rule() {
    let root = tree(&[
        WORKSPACE,
        ("crates/core/Cargo.toml", CORE),
        ("crates/core/src/lib.rs", "mod util;\n"),
        ("crates/core/src/util.rs", "//! Things.\n"),
    ]);
    let expected = "crates/core/src/lib.rs:1: header: a file begins with its `//!` header\n\
                    crates/core/src/util.rs:1: name: name a file after the idea in it\n";
    assert_eq!(xtask(&["tidy"], Some(root.path())), (1, expected.to_owned()));
}

#[test]
fn r053_bad_arguments_exit_2() {
    let empty = tree(&[]);
    let broken = tree(&[("Cargo.toml", "[workspace\n")]);
    for check in ["boundaries", "tidy"] {
        assert_eq!(xtask(&[check, "--rot", "x"], None).0, 2);
        assert_eq!(xtask(&[check, "--root"], None).0, 2);
        assert_eq!(xtask(&[check], Some(empty.path())).0, 2);
        assert_eq!(xtask(&[check], Some(&empty.path().join("absent"))).0, 2);
    }
    assert_eq!(xtask(&["boundaries"], Some(broken.path())).0, 2);
    assert_eq!(xtask(&[], None).0, 2);
}
