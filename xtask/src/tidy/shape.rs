//! The outside of a Rust file: how long, how wide, how it begins, what it is called.
//!
//! Invariants: the numbers are the house style's; tests may be long but not wide.
//! Deliberately absent: the length of a function, which clippy counts.

use crate::source::lines;
use crate::tree::{File, Violation};

const CODE_LINES_MAX: usize = 500;
const LINE_CHARS_MAX: usize = 100;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] =
    &["util.rs", "utils.rs", "common.rs", "helper.rs", "helpers.rs", "types.rs"];

/// A file nobody can hold in the head.
pub(crate) fn size(file: &File) -> Vec<Violation> {
    let counted = file.crate_source().is_some()
        || file.path.starts_with("examples/")
        || file.path.starts_with("xtask/src/");
    if !file.is_rust() || !counted || file.path.contains("/tests/") {
        return Vec::new();
    }
    let code = lines(&file.text).iter().filter(|line| line.is_code() && !line.test).count();
    if code <= CODE_LINES_MAX {
        return Vec::new();
    }
    let what = format!("{code} lines of code, at most {CODE_LINES_MAX}");
    vec![Violation::new(&file.path, 1, "size", what)]
}

/// A line that does not fit beside another file.
pub(crate) fn width(file: &File) -> Vec<Violation> {
    if !file.is_rust() {
        return Vec::new();
    }
    lines(&file.text)
        .iter()
        .filter(|line| !line.raw && !line.text.contains("://"))
        .map(|line| (line.number, line.text.chars().count()))
        .filter(|(_, chars)| *chars > LINE_CHARS_MAX)
        .map(|(number, chars)| {
            let what = format!("{chars} characters, at most {LINE_CHARS_MAX}");
            Violation::new(&file.path, number, "width", what)
        })
        .collect()
}

/// A file that does not say what it is.
pub(crate) fn header(file: &File) -> Vec<Violation> {
    if !file.is_rust() || file.text.starts_with("//!") {
        return Vec::new();
    }
    vec![Violation::new(&file.path, 1, "header", "a file begins with its `//!` header")]
}

/// A file whose name does not say what it is.
pub(crate) fn name(file: &File) -> Vec<Violation> {
    let name = file.name();
    let what = if name == "mod.rs" {
        "a module is `foo.rs` beside `foo/`"
    } else if EMPTY_NAMES.contains(&name) {
        "name a file after the idea in it"
    } else {
        return Vec::new();
    };
    vec![Violation::new(&file.path, 1, "name", what)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_500_lines_of_code() {
        let full = format!("//! x\n\n// why\n{}", "a();\n".repeat(500));
        let tested = format!("{full}#[cfg(test)]\nmod tests {{\n{}}}\n", "b();\n".repeat(90));
        let over = format!("{full}c();\n");
        for path in ["crates/core/src/run.rs", "examples/orders/src/main.rs", "xtask/src/a.rs"] {
            assert!(size(&File::new(path, &full)).is_empty());
            assert!(size(&File::new(path, &tested)).is_empty());
            assert_eq!(size(&File::new(path, &over)).len(), 1);
        }
        assert!(size(&File::new("crates/core/tests/run.rs", &over)).is_empty());
        assert!(size(&File::new("examples/orders/tests/run.rs", &over)).is_empty());
    }

    #[test]
    fn a_line_has_100_characters() {
        let wide = |prefix: &str, n: usize| {
            let text = format!("{prefix}{}\n", "é".repeat(n));
            width(&File::new("crates/core/tests/run.rs", &text)).len()
        };
        assert_eq!(wide("", 100), 0);
        assert_eq!(wide("", 101), 1);
        assert_eq!(wide("// https://example.com/", 101), 0);
        assert_eq!(wide("let a = r#\"", 101), 0);
    }

    #[test]
    fn a_file_begins_with_its_header() {
        assert!(header(&File::new("crates/core/src/run.rs", "//! Runs.\n")).is_empty());
        assert_eq!(header(&File::new("crates/core/src/run.rs", "use a;\n")).len(), 1);
        assert!(header(&File::new("README.md", "# x\n")).is_empty());
    }

    #[test]
    fn a_file_is_named_after_an_idea() {
        for path in ["crates/core/src/run/mod.rs", "crates/core/src/types.rs", "xtask/src/util.rs"]
        {
            assert_eq!(name(&File::new(path, "")).len(), 1, "{path}");
        }
        assert!(name(&File::new("crates/core/src/run.rs", "")).is_empty());
    }
}
