//! Just enough of Rust's surface to judge lines: comments, raw strings and test modules.
//!
//! Invariants: a line keeps its number, starting at 1. A construct this reader does not know (a
//! block comment, say) counts as code, so that a rule errs on the strict side.
//! Deliberately absent: a parser. rustfmt has run before us, so a line is a good enough unit.

/// One line and what it belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) number: usize,
    pub(crate) text: &'a str,
    /// Touches a raw string: its length and content are not ours to format.
    pub(crate) raw: bool,
    /// Within the file's test module.
    pub(crate) test: bool,
}

impl Line<'_> {
    /// Neither blank nor a comment.
    pub(crate) fn is_code(&self) -> bool {
        let text = self.text.trim_start();
        !text.is_empty() && (self.raw || !text.starts_with("//"))
    }
}

/// The lines of a Rust file.
pub(crate) fn lines(text: &str) -> Vec<Line<'_>> {
    let texts: Vec<&str> = text.lines().collect();
    let mut open: Option<usize> = None;
    let mut test = false;
    let mut lines = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().copied().enumerate() {
        let began_raw = open.is_some();
        let raw = scan_raw(text, &mut open);
        test |= !began_raw && text == "#[cfg(test)]" && opens_module(&texts[index + 1..]);
        lines.push(Line { number: index + 1, text, raw, test });
    }
    lines
}

/// Whether an inline module follows. `#[cfg(test)] use x;` or `mod tests;` near the top of a file
/// must not excuse all that comes after it.
fn opens_module(rest: &[&str]) -> bool {
    rest.iter()
        .find(|line| !line.starts_with("#[") && !line.starts_with("//"))
        .is_some_and(|line| line.contains("mod ") && line.trim_end().ends_with('{'))
}

/// Follows raw strings through a line; `open` is the number of `#` of the one not yet closed.
fn scan_raw(line: &str, open: &mut Option<usize>) -> bool {
    let mut touched = open.is_some();
    let mut rest = line;
    loop {
        if let Some(hashes) = *open {
            let Some(end) = rest.find(&format!("\"{}", "#".repeat(hashes))) else {
                return touched;
            };
            *open = None;
            rest = &rest[end + 1 + hashes..];
        } else {
            if line.trim_start().starts_with("//") && !touched {
                return false;
            }
            let Some((hashes, after)) = raw_start(rest) else {
                return touched;
            };
            touched = true;
            *open = Some(hashes);
            rest = after;
        }
    }
}

/// The next `r"` or `r#"` that does not end a longer word: its hashes and what follows the quote.
fn raw_start(text: &str) -> Option<(usize, &str)> {
    for (at, _) in text.match_indices('r') {
        let before = text[..at].trim_end_matches(['b', 'c']);
        let tail = &text[at + 1..];
        let hashes = tail.len() - tail.trim_start_matches('#').len();
        if !before.ends_with(is_word) && !before.ends_with('"') && tail[hashes..].starts_with('"') {
            return Some((hashes, &tail[hashes + 1..]));
        }
    }
    None
}

/// A character that may stand inside an identifier.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `needle` occurs with no identifier character touching its word-like ends.
pub(crate) fn has_word(text: &str, needle: &str) -> bool {
    text.match_indices(needle).any(|(at, _)| {
        let opens = !needle.starts_with(is_word) || !text[..at].ends_with(is_word);
        let closes = !needle.ends_with(is_word) || !text[at + needle.len()..].starts_with(is_word);
        opens && closes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_blank_lines_are_not_code() {
        let code: Vec<usize> = lines("//! x\n\nfn a() {}\n    // why\n}\n")
            .iter()
            .filter(|line| line.is_code())
            .map(|line| line.number)
            .collect();
        assert_eq!(code, [3, 5]);
    }

    #[test]
    fn a_raw_string_is_followed_to_its_end() {
        let text = "let a = r#\"one\n// two\nthree\"#;\nlet b = 1;\nlet c = br\"x\";\n";
        let raw: Vec<bool> = lines(text).iter().map(|line| line.raw).collect();
        assert_eq!(raw, [true, true, true, false, true]);
    }

    #[test]
    fn a_word_ending_in_r_does_not_open_a_raw_string() {
        assert!(!lines("for x in chr(\"a\", var\"b\") {\n")[0].raw);
    }

    #[test]
    fn only_an_inline_test_module_excuses_the_rest() {
        let excused = |text| lines(text).last().map(|line| line.test);
        assert_eq!(excused("#[cfg(test)]\nmod tests {\n}\n"), Some(true));
        assert_eq!(excused("#[cfg(test)]\n#[allow(x)]\nmod tests {\n}\n"), Some(true));
        assert_eq!(excused("#[cfg(test)]\nmod tests;\nfn a() {}\n"), Some(false));
        assert_eq!(excused("#[cfg(test)]\nuse a::b;\nfn a() {}\n"), Some(false));
    }

    #[test]
    fn a_word_is_whole() {
        assert!(has_word("let tokio = 1", "tokio"));
        assert!(has_word("a(tokio::x)", "tokio::"));
        assert!(!has_word("my_tokio::x", "tokio::"));
        assert!(!has_word("tokio_util", "tokio"));
    }
}
