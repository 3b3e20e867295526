//! Meters: what all workers together may spend, and how connectors are doing.

use std::time::Duration;

use steadfast_core::Timestamp;

/// Takes from what all workers share; all of it or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Spend {
    /// The workspace.
    pub workspace: String,
    /// What this request is known by when it is sent again; empty where it takes nothing.
    pub nonce: String,
    /// What to take, in order.
    pub takes: Vec<Take>,
    /// The time.
    pub now: Timestamp,
}

/// One thing to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Take {
    /// A call of a bucket that fills again.
    Rate {
        /// The bucket.
        meter: String,
        /// How many calls.
        calls: u32,
        /// In how long.
        per: Duration,
    },
    /// Some of a budget.
    Budget {
        /// The budget.
        meter: String,
        /// How much; nothing where nobody knows before: then only what is spent counts.
        amount: i64,
        /// How much there is.
        cap: i64,
        /// From when on nobody takes from it any more, if that is known.
        until: Option<Timestamp>,
    },
    /// Nothing, but only while a breaker lets calls through.
    Breaker {
        /// The breaker.
        meter: String,
        /// Failures in a row after which it opens.
        failures: u32,
        /// For how long.
        cool_down: Duration,
    },
}

impl Take {
    /// What it takes from.
    pub fn meter(&self) -> &str {
        match self {
            Self::Rate { meter, .. } | Self::Budget { meter, .. } | Self::Breaker { meter, .. } => {
                meter
            }
        }
    }
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spent {
    /// All was taken.
    Done,
    /// Nothing was: this one has not enough.
    Short {
        /// Which.
        meter: String,
        /// What it holds: of a budget, how much is spent.
        spent: i64,
        /// Until when, if that is known.
        until: Option<Timestamp>,
    },
}

/// Removes meters that nobody takes from any more, and those that are as good as new.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepMeters {
    /// The workspace.
    pub workspace: String,
    /// Most meters.
    pub limit: usize,
    /// The time.
    pub now: Timestamp,
}

/// So many were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept(pub u64);

/// What is spent of budgets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ListBudgets {
    /// The workspace.
    pub workspace: String,
    /// Only of these; of all if there are none here.
    pub meters: Vec<String>,
    /// The name with which the last page ended.
    pub after: Option<String>,
    /// Most rows.
    pub limit: usize,
}

/// Budgets of which something is spent, by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Budgets(pub Vec<BudgetRow>);

/// A budget of which something is spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetRow {
    /// Its name.
    pub meter: String,
    /// How much is spent.
    pub spent: i64,
    /// From when on nobody takes from it any more, if that is known.
    pub until: Option<Timestamp>,
}

/// What the names of marks begin with: a request that took or charged something, known by its name
/// when it comes again.
pub const MARKS: &str = "done:";
/// How long a request is known: nobody waits longer than that for an answer, and asks again.
pub const MARK_TIME: Duration = Duration::from_secs(24 * 3600);

/// From when on a meter with this moment may be removed, if it may be at all. By the hour, so that
/// the index by which it is found is not written each time that the meter is.
pub fn past_at(moment: i64) -> Option<i64> {
    const HOUR: i64 = 3600 * 1_000_000;
    let hours = moment.checked_add(HOUR - 1)? / HOUR;
    (moment > 0).then(|| hours * HOUR)
}

/// What the names of budgets begin with: their moment says until when they are kept.
pub const BUDGET_METERS: &str = "cost:";
/// What comes behind all such names.
pub const BUDGET_METERS_END: &str = "cost;";

/// More or less of a budget than was taken before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The budget.
    pub meter: String,
    /// How much more; less if it is negative. There is never less than nothing spent.
    pub amount: i64,
    /// From when on nobody takes from it any more, if that is known.
    pub until: Option<Timestamp>,
}

/// How a connector's call went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The breaker.
    pub meter: String,
    /// Whether the other side answered.
    pub ok: bool,
    /// Failures in a row after which it opens.
    pub failures: u32,
    /// For how long.
    pub cool_down: Duration,
}
