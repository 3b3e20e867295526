//! A batch on Postgres as one statement that is its own commit: one way to the server and back,
//! where a transaction takes two or three.
//!
//! Invariants: the rows of an operation are written together or not at all, and what is not
//! written is left open. That is so for a taken id, a void lease, a default queue that was given
//! limits, and a run of whose end somebody is to be told.

use std::borrow::Cow;
use std::collections::HashSet;

use super::fenced::records;
use super::{Crowd, lease};
use crate::apply::own;
use crate::apply::start::{self, Place};
use crate::error::Error;
use crate::flight::flights;
use crate::gate::{Fields, Tx, Value};
use crate::op::{DEFAULT_QUEUE, Op, Reply, Written};

/// A batch that one statement can write.
pub(crate) struct Single<'a> {
    crowd: Crowd<'a>,
    places: Vec<Place>,
    count: usize,
}

impl<'a> Single<'a> {
    /// `None` if anything among the operations is not simple enough, or two are of one run.
    pub(crate) fn of(ops: &[&'a Op]) -> Option<Self> {
        let fits = |op: &Op| match op {
            Op::Start(op) => op.queue == DEFAULT_QUEUE,
            Op::Record(_) | Op::Finish(_) => true,
            _ => false,
        };
        if !ops.iter().all(|op| fits(op)) || flights(ops).len() != 1 {
            return None;
        }
        let crowd = Crowd::of(ops)?;
        if crowd.starts.len() + crowd.owned.len() != ops.len() {
            return None;
        }
        let places = crowd.starts.iter().map(|(_, op)| Place::unmade(op)).collect();
        Some(Self { crowd, places, count: ops.len() })
    }

    /// A batch of nothing, by which a server gets to know what such a statement takes.
    pub(crate) fn nothing() -> Self {
        let crowd = Crowd { ws: "", worker: "", starts: Vec::new(), owned: Vec::new() };
        Self { crowd, places: Vec::new(), count: 0 }
    }

    /// Writes what can be written so. Whatever has no reply is left open.
    pub(crate) async fn write(&self, tx: &mut impl Tx) -> Result<Vec<Option<Reply>>, Error> {
        let Crowd { ws, worker, starts, owned } = &self.crowd;
        let mut params = self.ends()?;
        params.push(("worker", Value::from(*worker)));
        params.push(("last", records(owned, |op| matches!(op, Op::Finish(_))).into()));
        let are_ends = |(_, op): &(usize, &Op)| matches!(op, Op::Finish(_));
        let done = match starts.is_empty() && owned.iter().all(are_ends) {
            true => tx.query("whole_end", &params).await?,
            false => {
                let rows = starts.iter().zip(&self.places);
                let rows: Vec<_> = rows.map(|((_, op), at)| start::fields(op, at)).collect();
                params.extend([("starts", rows.into()), ("home", (*ws).into())]);
                params.push(("queue", Value::from(DEFAULT_QUEUE)));
                params.push(("at", Value::from(super::latest(owned))));
                params.push(("records", records(owned, |op| matches!(op, Op::Record(_))).into()));
                tx.query("whole_write", &params).await?
            }
        };
        let mut runs = HashSet::with_capacity(self.count);
        for mut row in done {
            runs.insert(row.text()?);
        }
        let started = starts.iter().zip(&self.places);
        let started = started.filter(|((_, op), _)| runs.contains(&op.run_id));
        let started = started.map(|((place, op), at)| (*place, Reply::Start(start::made(op, at))));
        let is_written = |op: &Op| lease(op).is_some_and(|(of, _)| runs.contains(&of.run_id));
        let written = owned.iter().filter(|(_, op)| is_written(op)).map(|(place, op)| match op {
            Op::Finish(_) => (*place, Reply::Finish(Written::Done)),
            _ => (*place, Reply::Record(Written::Done)),
        });
        Ok(super::in_place(self.count, started.chain(written)))
    }

    /// The columns of the ends.
    fn ends(&self) -> Result<Fields<'a>, Error> {
        let (mut of, mut run_id, mut to) = (Vec::new(), Vec::new(), Vec::new());
        let (mut output, mut error) = (Vec::new(), Vec::new());
        let (mut epoch, mut now) = (Vec::new(), Vec::new());
        for (_, op) in &self.crowd.owned {
            let Op::Finish(op) = op else { continue };
            of.push(Some(Cow::Borrowed(self.crowd.ws)));
            run_id.push(Some(Cow::Borrowed(op.lease.run_id.as_str())));
            epoch.push(Some(op.lease.epoch));
            to.push(Some(Cow::Borrowed(own::end_arrow(op)?.to().as_str())));
            let (value, failure) = own::split(&op.outcome);
            output.push(value.map(Cow::Borrowed));
            error.push(failure.map(Cow::Owned));
            now.push(Some(op.now.as_micros()));
        }
        Ok(vec![
            ("workspace", Value::TextColumn(of)),
            ("run_id", Value::TextColumn(run_id)),
            ("epoch", Value::IntColumn(epoch)),
            ("to", Value::TextColumn(to)),
            ("output", Value::TextColumn(output)),
            ("error", Value::TextColumn(error)),
            ("now", Value::IntColumn(now)),
        ])
    }
}
