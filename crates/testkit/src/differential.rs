//! The differential test: random operations on the model and on a store, whose every reply and
//! whose whole state must be equal.
//!
//! Invariants: a sequence is given by its seed; each has a workspace of its own, so that several
//! run side by side on one database. Replies are compared as they are: no order is left open by
//! the operations. Only the text of an error is not compared, because a database words its own
//! refusals.

mod coverage;
mod generate;
mod random;
mod survey;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use steadfast_store::{Error, Op, Reply, Store};

pub use coverage::{Coverage, KINDS};
use generate::Generator;

use crate::model::Model;

/// Operations of one sequence, unless told otherwise.
pub const SEQUENCE: usize = 500;
/// After so many operations the whole state is compared.
const SURVEY_EVERY: usize = 50;

/// A difference between the model and a store.
#[derive(Debug, Clone)]
pub struct Divergence {
    /// The sequence.
    pub seed: u64,
    /// The operation in it, counted from 0.
    pub index: usize,
    /// What was asked.
    pub op: String,
    /// What the model said.
    pub model: String,
    /// What the store said.
    pub store: String,
    /// The operations before, the latest last.
    pub before: Vec<String>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the store differs from the model")?;
        writeln!(f, "  seed {}, operation {}", self.seed, self.index)?;
        for op in &self.before {
            writeln!(f, "  before: {op}")?;
        }
        writeln!(f, "  asked:  {}", self.op)?;
        writeln!(f, "  model:  {}", self.model)?;
        writeln!(f, "  store:  {}", self.store)?;
        write!(
            f,
            "  replay: STEADFAST_DIFF_SEED={} STEADFAST_DIFF_OPS={} \
             cargo test -p steadfast-testkit --test differential",
            self.seed,
            self.index + 1
        )
    }
}

/// Runs one sequence; gives what it met, or the first difference.
pub async fn sequence(
    store: &dyn Store,
    seed: u64,
    operations: usize,
) -> Result<Coverage, Box<Divergence>> {
    let workspace = format!("diff-{seed:x}-{}", uuid::Uuid::now_v7().simple());
    let mut generator = Generator::new(seed, &workspace);
    let (mut model, mut coverage) = (Model::new(), Coverage::default());
    let mut history: Vec<Op> = Vec::new();
    for index in 0..operations {
        let op = generator.op(model.leases(&workspace));
        let expected = model.apply(&op);
        let found = store.call(op.clone()).await;
        history.push(op);
        if !same(&expected, &found) {
            return Err(divergence(seed, index, &history, &expected, &found));
        }
        coverage.note(&expected);
        if let Ok(reply) = &expected {
            generator.learn(reply);
        }
        let last = index + 1 == operations;
        if last || (index + 1) % SURVEY_EVERY == 0 {
            let questions = survey::questions(&workspace, generator.now());
            let answers = join_all(questions.iter().map(|op| store.call(op.clone()))).await;
            for (op, found) in questions.into_iter().zip(answers) {
                let expected = model.apply(&op);
                if !same(&expected, &found) {
                    history.push(op);
                    return Err(divergence(seed, index, &history, &expected, &found));
                }
            }
        }
    }
    Ok(coverage)
}

/// Equal, or both refused.
fn same(expected: &Result<Reply, Error>, found: &Result<Reply, Error>) -> bool {
    match (expected, found) {
        (Err(Error::Refused(_)), Err(Error::Refused(_))) => true,
        (Err(Error::Invalid(_)), Err(Error::Invalid(_))) => true,
        _ => expected == found,
    }
}

fn divergence(
    seed: u64,
    index: usize,
    history: &[Op],
    expected: &Result<Reply, Error>,
    found: &Result<Reply, Error>,
) -> Box<Divergence> {
    let (op, before) = history.split_last().expect("invariant: an operation was applied");
    let writes: Vec<_> = before.iter().filter(|op| !op.is_read()).collect();
    let shown = writes[writes.len().saturating_sub(5)..].iter().map(|op| format!("{op:?}"));
    Box::new(Divergence {
        seed,
        index,
        op: format!("{op:?}"),
        model: format!("{expected:?}"),
        store: format!("{found:?}"),
        before: shown.collect(),
    })
}

/// Runs sequences, as many at a time as there are lanes, until so many operations were compared.
/// Lanes may be the same store, where what one does is never seen by another.
pub async fn run(
    lanes: Vec<Arc<dyn Store>>,
    first_seed: u64,
    operations: u64,
) -> Result<Coverage, Box<Divergence>> {
    let next = Arc::new(AtomicU64::new(0));
    let sequences = operations.div_ceil(SEQUENCE as u64);
    let lane = |next: Arc<AtomicU64>, store: Arc<dyn Store>| async move {
        let mut sum = Coverage::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= sequences {
                return Ok::<_, Box<Divergence>>(sum);
            }
            sum.merge(&sequence(&*store, first_seed + number, SEQUENCE).await?);
        }
    };
    let lanes = lanes.into_iter().map(|store| tokio::spawn(lane(next.clone(), store)));
    let mut coverage = Coverage::default();
    for lane in join_all(lanes).await {
        coverage.merge(&lane.expect("a lane panicked")?);
    }
    Ok(coverage)
}
