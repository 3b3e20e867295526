//! The house style as a check: what a reviewer should never have to say.
//!
//! Invariants: each rule is a pure function over paths and texts, tested with a text that breaks it
//! and one that keeps it.
//! Deliberately absent: what rustfmt, clippy and the compiler already check.

mod pages;
mod readme;
mod shape;
mod statements;
mod words;

use anyhow::Result;

use crate::tree::{File, Tree, Violation};

type FileRule = fn(&File) -> Vec<Violation>;
type TreeRule = fn(&[File]) -> Vec<Violation>;

const FILE_RULES: &[FileRule] =
    &[shape::size, shape::width, shape::header, shape::name, words::banned];
const TREE_RULES: &[TreeRule] = &[pages::check, statements::check, readme::check];

pub(crate) fn check(tree: &Tree) -> Result<Vec<Violation>> {
    let files = &tree.files;
    let by_file = files.iter().flat_map(|file| FILE_RULES.iter().flat_map(|rule| rule(file)));
    let by_tree = TREE_RULES.iter().flat_map(|rule| rule(files));
    Ok(by_file.chain(by_tree).collect())
}
