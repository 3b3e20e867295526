//! The part that a build with the feature `sabotage` has.
//!
//! Invariants: an altered statement has a name of its own, so that no cache confuses it with the
//! true one; a store in memory does everything on its writer's thread, so the thread knows whose
//! statements are altered.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::Error;
use crate::open::OpenStore;
use crate::statement;

/// Texts of altered statements, by their names.
static TEXTS: Mutex<BTreeMap<&'static str, &'static str>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// What is altered in the store that this thread writes, or is opening.
    static HERE: RefCell<Option<Sabotage>> = const { RefCell::new(None) };
    /// The operation that this thread carries out.
    static OPERATION: Cell<&'static str> = const { Cell::new("") };
}

/// One thing that is wrong with one operation.
#[derive(Debug, Clone)]
pub struct Sabotage {
    operation: &'static str,
    change: Change,
    reached: Arc<AtomicU64>,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Statement { name: &'static str, altered: &'static str },
    Rule(&'static str),
}

impl Sabotage {
    /// A statement of an operation with another text at one place. The reason if the statement does
    /// not have the text exactly once: it was changed since, and the alteration means nothing.
    pub fn statement(
        operation: &'static str,
        name: &'static str,
        find: &str,
        put: &str,
    ) -> Result<Self, String> {
        let text = statement::find(name).ok_or_else(|| format!("there is no statement {name}"))?;
        let count = text.matches(find).count();
        if count != 1 {
            return Err(format!("statement {name} has \"{find}\" {count} times, not once"));
        }
        let text: &'static str = text.replace(find, put).leak();
        let mut texts = TEXTS.lock().expect("invariant: not poisoned");
        let altered: &'static str = format!("{name} altered {}", texts.len()).leak();
        texts.insert(altered, text);
        Ok(Self::new(operation, Change::Statement { name, altered }))
    }

    /// An operation without one of its rules that are not SQL.
    pub fn rule(operation: &'static str, rule: &'static str) -> Self {
        Self::new(operation, Change::Rule(rule))
    }

    fn new(operation: &'static str, change: Change) -> Self {
        Self { operation, change, reached: Arc::default() }
    }

    /// How often what is altered was come by.
    pub fn reached(&self) -> u64 {
        self.reached.load(Ordering::Relaxed)
    }

    /// A SQLite store in memory with this in it.
    pub async fn open(&self) -> Result<OpenStore, Error> {
        let mut opening = pin!(crate::open("sqlite::memory:"));
        poll_fn(|cx| {
            let before = HERE.replace(Some(self.clone()));
            let polled = opening.as_mut().poll(cx);
            HERE.set(before);
            polled
        })
        .await
    }

    fn is_met(&self, is_it: bool) -> bool {
        let met = is_it && OPERATION.get() == self.operation;
        if met {
            self.reached.fetch_add(1, Ordering::Relaxed);
        }
        met
    }
}

/// The body of a store's thread: what is altered in the store that is being opened holds there.
pub(crate) fn inherited<T>(body: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let here = HERE.with_borrow(Clone::clone);
    move || {
        HERE.set(here);
        body()
    }
}

/// Carries out an operation.
pub(crate) fn within<T>(operation: &'static str, body: impl FnOnce() -> T) -> T {
    OPERATION.set(operation);
    let done = body();
    OPERATION.set("");
    done
}

/// The name of the text that stands for a statement here and now.
pub(crate) fn name_of(statement: &'static str) -> &'static str {
    HERE.with_borrow(|here| match here {
        Some(sabotage) => match sabotage.change {
            Change::Statement { name, altered } if sabotage.is_met(name == statement) => altered,
            Change::Statement { .. } | Change::Rule(_) => statement,
        },
        None => statement,
    })
}

/// The text of an altered statement.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    TEXTS.lock().expect("invariant: not poisoned").get(name).copied()
}

/// Whether a rule does not hold here and now.
pub(crate) fn is_left_out(rule: &'static str) -> bool {
    HERE.with_borrow(|here| match here {
        Some(sabotage) => match sabotage.change {
            Change::Rule(left_out) => sabotage.is_met(left_out == rule),
            Change::Statement { .. } => false,
        },
        None => false,
    })
}
