//! What is wrong with the file, where, and what was probably meant.

use std::fmt;
use std::path::Path;

/// A mistake in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    place: String,
    why: String,
    hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.why)?;
        match &self.hint {
            Some(hint) => write!(f, "; did you mean `{hint}`?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Problem {}

impl Problem {
    pub(super) fn of_file(path: &Path, error: &std::io::Error) -> Self {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "there is no such file; `steadfast init` writes one".to_owned()
            }
            _ => error.to_string(),
        };
        Self { place: path.display().to_string(), why, hint: None }
    }

    pub(super) fn of_toml(name: &str, text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map_or(0, |span| span.start);
        let found = error.message().trim().replace('\n', " ");
        let why = several(text, at).filter(|_| found == "invalid type: map, expected a sequence");
        let why = why.unwrap_or(found);
        let hint = meant(&why);
        Self { place: place(name, text, at), why, hint }
    }

    /// At the line that has this word; the file alone if none has.
    pub(super) fn at_key(name: &str, text: &str, word: &str, why: String) -> Self {
        let place = match text.find(word) {
            Some(at) => place(name, text, at),
            None => name.to_owned(),
        };
        Self { place, why, hint: None }
    }
}

fn place(name: &str, text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
    format!("{name}:{line}:{column}")
}

/// What to say of a section that is there once and may be there several times, if this is its line.
fn several(text: &str, at: usize) -> Option<String> {
    let line = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let section = text[line..].strip_prefix('[')?.split(['.', ']']).next()?;
    Some(format!("there may be several of `{section}`, and each begins with a line [[{section}]]"))
}

/// Of the names that would have been right, the one that is most like the one that was written.
fn meant(why: &str) -> Option<String> {
    let names: Vec<&str> = why.split('`').skip(1).step_by(2).collect();
    let (written, known) = names.split_first()?;
    if !why.starts_with("unknown") {
        return None;
    }
    let close = |name: &&&str| strsim::damerau_levenshtein(written, name) <= 1 + name.len() / 4;
    let nearest = known.iter().filter(close);
    nearest.min_by_key(|name| strsim::damerau_levenshtein(written, name)).map(ToString::to_string)
}
