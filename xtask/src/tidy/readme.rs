//! The README's first example is a program the tests run.
//!
//! Invariants: one ```` ```rust ```` block of the README holds the example's file, to the letter.
//! Deliberately absent: other blocks; they may be excerpts.

use crate::tree::{File, Violation};

const README: &str = "README.md";
const EXAMPLE: &str = "examples/orders/src/main.rs";

pub(crate) fn check(files: &[File]) -> Vec<Violation> {
    let text = |path| files.iter().find(|file| file.path == path).map(|file| file.text.as_str());
    let (Some(readme), Some(example)) = (text(README), text(EXAMPLE)) else {
        return Vec::new();
    };
    if blocks(readme).iter().any(|block| block.contains(example.trim_end())) {
        return Vec::new();
    }
    let what = format!("no ```rust block equals {EXAMPLE}");
    vec![Violation::new(README, 1, "readme", what)]
}

fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in markdown.lines() {
        match &mut block {
            None if line.starts_with("```rust") => block = Some(String::new()),
            None => {}
            Some(_) if line.starts_with("```") => blocks.extend(block.take()),
            Some(text) => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(readme: &str) -> usize {
        let files = [File::new(README, readme), File::new(EXAMPLE, "//! x\n\nfn main() {}\n")];
        check(&files).len()
    }

    #[test]
    fn the_example_stands_in_the_readme() {
        assert_eq!(found("# x\n\n```rust\n//! x\n\nfn main() {}\n```\n"), 0);
        assert_eq!(found("# x\n\n```rust\n//! x\n\nfn main() { }\n```\n"), 1);
        assert_eq!(found("# x\n\n```sh\n//! x\n\nfn main() {}\n```\n"), 1);
    }

    #[test]
    fn without_an_example_there_is_nothing_to_compare() {
        assert!(check(&[File::new(README, "# x\n")]).is_empty());
    }
}
