//! Every error code has a page, and every page a code.
//!
//! Invariants: a code is `SF-` and four digits; its page is `docs/errors/SF-dddd.md`.
//! Deliberately absent: test modules, which may make codes up.

use std::collections::BTreeMap;

use crate::source::{is_word, lines};
use crate::tree::{File, Violation};

const FOLDER: &str = "docs/errors/";
const PREFIX: &str = "SF-";
const DIGITS: usize = 4;

pub(crate) fn check(files: &[File]) -> Vec<Violation> {
    let mentions = mentions(files);
    let pages: BTreeMap<&str, &str> = files.iter().filter_map(page).collect();
    let missing = mentions.iter().filter(|(code, _)| !pages.contains_key(*code)).map(
        |(code, (path, line))| {
            Violation::new(*path, *line, "error-page", format!("{code} has no {FOLDER}{code}.md"))
        },
    );
    let unused =
        pages.iter().filter(|(code, _)| !mentions.contains_key(*code)).map(|(code, path)| {
            Violation::new(*path, 1, "error-page", format!("no code mentions {code}"))
        });
    missing.chain(unused).collect()
}

/// Each code with the place that mentions it first.
fn mentions(files: &[File]) -> BTreeMap<&str, (&str, usize)> {
    let mut mentions = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust() && file.crate_source().is_some()) {
        for line in lines(&file.text).iter().filter(|line| !line.test) {
            for code in codes(line.text) {
                mentions.entry(code).or_insert((file.path.as_str(), line.number));
            }
        }
    }
    mentions
}

fn codes(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(PREFIX).filter_map(|(at, _)| {
        let end = at + PREFIX.len() + DIGITS;
        let digits = text.get(at + PREFIX.len()..end)?;
        let whole = !text[..at].ends_with(is_word) && !text[end..].starts_with(is_word);
        (whole && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| &text[at..end])
    })
}

fn page(file: &File) -> Option<(&str, &str)> {
    let code = file.path.strip_prefix(FOLDER)?.strip_suffix(".md")?;
    (codes(code).next() == Some(code)).then_some((code, file.path.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::new(path, text)).collect();
        check(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_code_without_a_page_is_reported() {
        assert_eq!(
            found(&[("crates/core/src/error.rs", "//! x\n/// SF-0107: stale.\n")]),
            ["crates/core/src/error.rs:2: error-page: SF-0107 has no docs/errors/SF-0107.md"]
        );
    }

    #[test]
    fn a_page_without_a_code_is_reported() {
        assert_eq!(
            found(&[("docs/errors/SF-0107.md", "# Stale\n")]),
            ["docs/errors/SF-0107.md:1: error-page: no code mentions SF-0107"]
        );
    }

    #[test]
    fn a_code_with_its_page_is_clean() {
        let test = "\n#[cfg(test)]\nmod tests {\n    const NONE: &str = \"SF-9999\";\n}\n";
        let code = format!("const STALE: &str = \"SF-0107\"; // SF-01, SF-01078{test}");
        assert!(
            found(&[
                ("crates/core/src/error.rs", &code),
                ("docs/errors/SF-0107.md", "# Stale\n"),
                ("docs/errors/README.md", "# Errors\n"),
            ])
            .is_empty()
        );
    }
}
