//! Words that mean "not finished": they do not reach the main branch.
//!
//! Invariants: found in code, comments, documents and settings alike, in any case, as whole words.
//! Deliberately absent: an escape hatch. Unfinished work is described in words or not committed.

use crate::source::has_word;
use crate::tree::{File, Violation};

/// Split, so that this file does not find itself.
const BANNED: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("db", "g!("),
    concat!("fix", "me"),
    concat!("xx", "x"),
];

pub(crate) fn banned(file: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let line = line.to_lowercase();
        for word in BANNED.iter().filter(|word| has_word(&line, word)) {
            let what = format!("`{word}` is not for the main branch");
            violations.push(Violation::new(&file.path, index + 1, "word", what));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_work_is_reported() {
        for word in BANNED {
            let text = format!("fine\n// a {} b)\n", word.to_uppercase());
            let found = banned(&File::new("docs/a.md", &text));
            assert_eq!(found.len(), 1, "{word}");
            assert!(found[0].to_string().starts_with("docs/a.md:2: word: "));
        }
    }

    #[test]
    fn longer_words_are_fine() {
        let text = "SF-xxxx, prefixmember, a todo list";
        assert!(banned(&File::new("docs/a.md", text)).is_empty());
    }
}
