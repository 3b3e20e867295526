//! The pages of a load, read and put into the database's words while the last ones are written.
//!
//! Invariants: a thread of its own is at most a few pieces ahead, however many rows there are; a
//! page's content is checked before any of its rows is handed on; whoever takes the pieces asks at
//! the end whether they were all, and writes nothing for good before.

use std::sync::Arc;

use serde_json::Value;
use steadfast_core::error::Result;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Load, Page, line};
use crate::spool::Spool;
use crate::sql::dialect::ROWS_MAX;
use crate::sql::failure;
use crate::sql::request::refused;

/// How much of COPY's text is sent at once.
const PIECE_BYTES: usize = 256 * 1024;
/// How many pieces are ready before the first of them is sent: enough for both sides to be busy.
const PIECES_AHEAD: usize = 2;

/// Pieces of a load, in their order.
pub(in crate::sql) struct Pieces<T> {
    ready: mpsc::Receiver<T>,
    reading: JoinHandle<Result<u64>>,
}

impl<T> Pieces<T> {
    /// The next piece; there is none after the last, nor after a failure.
    pub(in crate::sql) async fn next(&mut self) -> Option<T> {
        self.ready.recv().await
    }

    /// How many rows the pieces had, or why they are not all.
    pub(in crate::sql) async fn end(self) -> Result<u64> {
        drop(self.ready);
        self.reading.await.unwrap_or_else(|error| Err(failure::passing(error)))
    }
}

/// What the thread reads from.
struct Source {
    spool: Spool,
    pages: Arc<[Page]>,
    /// Values of a row in a page.
    width: usize,
    /// The partition's values, which stand behind every row.
    tail: Vec<Value>,
}

impl Source {
    fn of(load: &Load, spool: &Spool) -> Self {
        let partition = load.write.partition.as_ref().into_iter().flatten();
        let tail: Vec<Value> = partition.map(|(_, value)| value.clone()).collect();
        let width = load.write.columns.len() - tail.len();
        Self { spool: spool.clone(), pages: load.pages.clone(), width, tail }
    }

    /// Hands every row of every page on; gives how many there were.
    fn lines(&self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
        let mut all = 0;
        for page in &*self.pages {
            let bytes = self.spool.get(&page.name)?;
            let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
            let mut rows = 0;
            for line in lines {
                each(line)?;
                rows += 1;
            }
            if rows != page.rows {
                return Err(refused(format!("a page of {} rows has {rows}", page.rows)));
            }
            all += rows;
        }
        Ok(all)
    }

    fn fits(&self, values: usize) -> Result<()> {
        match values == self.width {
            true => Ok(()),
            false => {
                let text = format!("a row of {values} values for {} columns", self.width);
                Err(refused(text))
            }
        }
    }
}

/// Whoever took the pieces has gone, and has a reason of its own.
fn unwanted<T>(_: mpsc::error::SendError<T>) -> steadfast_core::Error {
    failure::passing("nobody takes the rows any more")
}

/// The rows as the text that COPY reads: from JSON to text in one go, no value in between.
pub(in crate::sql) fn text(load: &Load, spool: &Spool) -> Pieces<Vec<u8>> {
    let source = Source::of(load, spool);
    let (sender, ready) = mpsc::channel(PIECES_AHEAD);
    let read = move || {
        let tail = line::tail(&source.tail);
        let fresh = || Vec::with_capacity(PIECE_BYTES + 4096);
        let mut piece = fresh();
        let rows = source.lines(|row| {
            source.fits(line::copied(row, &mut piece).map_err(refused)?)?;
            piece.extend_from_slice(&tail);
            match piece.len() < PIECE_BYTES {
                true => Ok(()),
                false => {
                    sender.blocking_send(std::mem::replace(&mut piece, fresh())).map_err(unwanted)
                }
            }
        })?;
        sender.blocking_send(piece).map_err(unwanted)?;
        Ok(rows)
    };
    Pieces { ready, reading: tokio::task::spawn_blocking(read) }
}

/// The rows as values, at most one statement's at a time.
pub(in crate::sql) fn values(load: &Load, spool: &Spool) -> Pieces<Vec<Vec<Value>>> {
    let source = Source::of(load, spool);
    let (sender, ready) = mpsc::channel(1);
    let read = move || {
        let mut piece = Vec::new();
        let rows = source.lines(|row| {
            let mut row: Vec<Value> = serde_json::from_slice(row).map_err(refused)?;
            source.fits(row.len())?;
            row.extend(source.tail.iter().cloned());
            piece.push(row);
            match piece.len() < ROWS_MAX {
                true => Ok(()),
                false => sender.blocking_send(std::mem::take(&mut piece)).map_err(unwanted),
            }
        })?;
        sender.blocking_send(piece).map_err(unwanted)?;
        Ok(rows)
    };
    Pieces { ready, reading: tokio::task::spawn_blocking(read) }
}
