//! What no store takes: a page of no rows or too many, a text with a NUL character.

use std::fmt::{self, Write as _};

use steadfast_store::{Error, Op};

/// Refuses what a database would refuse before it is asked.
pub(super) fn check(op: &Op) -> Result<(), Error> {
    op.check()?;
    let mut search = Search::default();
    // Whatever text an operation holds is in what it prints.
    let _ = write!(search, "{op:?}");
    match search.found {
        true => Err(Error::Invalid("a text holds a NUL character (U+0000)".to_owned())),
        false => Ok(()),
    }
}

/// Looks for `\0`, as a NUL is printed, and not for `\\0`, which is a backslash before a zero.
#[derive(Default)]
struct Search {
    is_escaped: bool,
    found: bool,
}

impl fmt::Write for Search {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.found |= self.is_escaped && byte == b'0';
            self.is_escaped = !self.is_escaped && byte == b'\\';
        }
        Ok(())
    }
}
