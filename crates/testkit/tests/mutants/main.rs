//! Every write operation of the real store with something wrong in it: a lost guard, a lost
//! conflict clause, a row that is not deleted. What notices is the conformance suite, or else the
//! comparison with the model; a mutant that neither notices fails this test.
//!
//! Invariants: a mutant is one change of one operation's SQL or of one of its rules; everything
//! else about the store is true. A mutant whose text is not SQL any more is no mutant.

// A test fails by panicking, and says what it tried.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod governed;
mod owned;
mod published;
mod runs;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use steadfast_store::sabotage::Sabotage;
use steadfast_store::{Op, OpenStore};
use steadfast_testkit::{differential, suite};

/// What a mutant changes.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// A statement: what is found in it once, and what stands there instead.
    Text(&'static str, &'static str, &'static str),
    /// A rule in Rust, which does not hold.
    Rule(&'static str),
}

/// One way to be wrong: the operation, what is wrong with it, and how.
#[derive(Debug, Clone, Copy)]
struct Mutant(&'static str, &'static str, Change);

/// What the tables of mutants are written with.
mod table {
    pub(super) use super::Change::Rule;
    pub(super) use super::Mutant;

    pub(super) const fn sql(
        statement: &'static str,
        find: &'static str,
        put: &'static str,
    ) -> super::Change {
        super::Change::Text(statement, find, put)
    }
}

fn mutants() -> impl Iterator<Item = &'static Mutant> {
    [runs::MUTANTS, owned::MUTANTS, governed::MUTANTS, published::MUTANTS].into_iter().flatten()
}

/// Sequences that are compared with the model, of so many operations each.
const SEQUENCES: std::ops::Range<u64> = 1..13;
/// A mutant may make the store wait for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the store says of a text that is not SQL, and of a writer that is gone.
const NO_SQL: [&str; 6] =
    ["syntax error", "no such column", "no such table", "ambiguous", "misuse", "is closed"];

impl Mutant {
    fn sabotage(&self) -> Result<Sabotage, String> {
        let Mutant(operation, _, change) = *self;
        match change {
            Change::Text(statement, find, put) => {
                Sabotage::statement(operation, statement, find, put)
            }
            Change::Rule(rule) => Ok(Sabotage::rule(operation, rule)),
        }
    }

    fn name(&self) -> String {
        format!("{}: {}", self.0, self.1)
    }
}

/// How a mutant was found out.
#[derive(Debug)]
struct Kill {
    by_case: bool,
    how: String,
    message: String,
}

/// The first case that does not hold, or the first sequence that differs from the model.
async fn find_out(store: &OpenStore) -> Option<Kill> {
    for (case, check) in suite::store::CASES {
        let checked = AssertUnwindSafe(check(store)).catch_unwind();
        let message = match tokio::time::timeout(PATIENCE, checked).await {
            Ok(Ok(())) => continue,
            Ok(Err(panic)) => text(&*panic),
            Err(_) => "it does not end".to_owned(),
        };
        return Some(Kill { by_case: true, how: (*case).to_owned(), message });
    }
    for seed in SEQUENCES {
        let compared = differential::sequence(&**store, seed, differential::SEQUENCE);
        let message = match tokio::time::timeout(PATIENCE, compared).await {
            Ok(Ok(_)) => continue,
            Ok(Err(divergence)) => divergence.store,
            Err(_) => "it does not end".to_owned(),
        };
        let how = format!("the model, sequence {seed}");
        return Some(Kill { by_case: false, how, message });
    }
    None
}

fn text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default().to_owned()
}

fn hunt(mutant: &Mutant) -> Result<Kill, String> {
    let name = mutant.name();
    let sabotage = mutant.sabotage().map_err(|why| format!("{name}: stale: {why}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = runtime.block_on(async {
        let store = sabotage.open().await.unwrap();
        find_out(&store).await
    });
    match found {
        Some(kill) if NO_SQL.iter().any(|sign| kill.message.contains(sign)) => {
            Err(format!("{name}: is not SQL: {}: {}", kill.how, kill.message))
        }
        Some(kill) if sabotage.reached() == 0 => {
            Err(format!("{name}: {} failed without it: {}", kill.how, kill.message))
        }
        Some(kill) => Ok(kill),
        None => Err(format!("{name}: survived; it was met {} times", sabotage.reached())),
    }
}

/// Panics of killed cases are what is wanted: they need not be printed.
fn quietly<T>(act: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let value = act();
    std::panic::set_hook(hook);
    value
}

/// X14 and all that the operations promise. `STEADFAST_MUTANT` names an operation to hunt alone.
#[test]
fn every_mutant_of_the_real_store_is_killed() {
    let only = std::env::var("STEADFAST_MUTANT").ok();
    let wanted = |mutant: &&Mutant| only.as_deref().is_none_or(|name| mutant.0 == name);
    let begun = Instant::now();
    let (next, hunted) = (Mutex::new(mutants().filter(wanted)), Mutex::new(Vec::new()));
    quietly(|| {
        let hunter = || {
            loop {
                let Some(mutant) = next.lock().unwrap().next() else { return };
                let (since, result) = (Instant::now(), hunt(mutant));
                hunted.lock().unwrap().push((mutant, result, since.elapsed()));
            }
        };
        std::thread::scope(|scope| [(); 4].map(|()| scope.spawn(hunter)).map(drop));
    });
    let mut survivors = Vec::new();
    let (mut by_case, mut all) = (0, 0);
    for (mutant, result, took) in hunted.into_inner().unwrap() {
        all += 1;
        match result {
            Ok(kill) => {
                by_case += usize::from(kill.by_case);
                println!("{} ({took:.1?}): {}", mutant.name(), kill.how);
            }
            Err(why) => survivors.push(why),
        }
    }
    println!("{all} mutants, {by_case} killed by a case, in {:.1?}", begun.elapsed());
    assert!(survivors.is_empty(), "{} mutants:\n{}", survivors.len(), survivors.join("\n"));
}

/// What kills the mutants lets the true store live.
#[test]
fn the_true_store_survives() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = runtime.block_on(async {
        let store = steadfast_store::open("sqlite::memory:").await.unwrap();
        find_out(&store).await
    });
    assert!(found.is_none(), "{found:?}");
}

#[test]
fn every_write_operation_has_a_mutant() {
    let has: BTreeSet<&str> = mutants().map(|mutant| mutant.0).collect();
    let writes: BTreeSet<&str> = Op::writes().collect();
    assert_eq!(writes.difference(&has).collect::<Vec<_>>(), [] as [&&str; 0], "without a mutant");
    assert_eq!(has.difference(&writes).collect::<Vec<_>>(), [] as [&&str; 0], "no such operation");
    let names: BTreeSet<String> = mutants().map(Mutant::name).collect();
    assert_eq!(names.len(), mutants().count(), "each has a name of its own");
}

/// A mutant of a statement that has changed since would be the true store.
#[test]
fn a_stale_mutant_is_refused() {
    let refused = Sabotage::statement("Start", "run_insert", "no such text", "");
    assert!(refused.unwrap_err().contains("0 times"));
    let refused = Sabotage::statement("Start", "run_insert", ":created_at", "");
    assert!(refused.unwrap_err().contains("2 times"));
    assert!(Sabotage::statement("Start", "no_statement", "", "").is_err());
}
