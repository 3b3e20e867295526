//! Budgets: how many calls, retries and cost units a command, a connector or a day may spend.
//!
//! Invariants: all workers share what is spent, by a meter of the store for each budget and what it
//! is for; what a call takes is taken before it leaves; beyond the soft cap people are asked, and
//! beyond the hard one nobody is.
//! Deliberately absent: currencies. A unit is worth what its users agree on, once.

use std::time::Duration;

use steadfast_core::approval::ApprovalRequest;
use steadfast_core::connector::Connectors;
use steadfast_core::gate::{CapReached, Leaving};
use steadfast_core::policy::{Finding, in_both};
use steadfast_core::{Error, Result, Timestamp, json, limits};
use steadfast_store::op::{BudgetRow, ListBudgets, Take};

use crate::client::Client;

const DAY_MICROS: i64 = 24 * 3600 * 1_000_000;

/// How long the meter of a command stays after something was last taken from it. Whoever waits
/// longer begins anew.
const IDLE: Duration = Duration::from_secs(90 * 24 * 3600);

/// How much may be spent, on what.
///
/// ```
/// use steadfast::Budget;
///
/// // Beyond 20 retries of one command people are asked.
/// let patience = Budget::per_command(20).retries();
/// // A day's mails may cost 5,000 units; up to 8,000 if people say so, and no more.
/// let mails = Budget::per_day("mailer", 5_000).cost_units().hard_at(8_000);
/// # let _ = (patience, mails);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    counts: Counts,
    by_command: bool,
    connector: Option<String>,
    by_day: bool,
    soft: Option<u64>,
    hard: Option<u64>,
    /// How many people are asked at the soft cap, and which.
    asks: Option<(u32, Vec<String>)>,
}

/// How many people are asked at the soft cap, unless it is said.
const APPROVERS: u32 = 2;

/// What a budget counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    Calls,
    Retries,
    Units,
}

impl Counts {
    fn as_str(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Retries => "retries",
            Self::Units => "units",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Retries => "retries",
            Self::Units => "cost units",
        }
    }
}

impl Budget {
    fn new(cap: u64) -> Self {
        Self {
            counts: Counts::Calls,
            by_command: false,
            connector: None,
            by_day: false,
            soft: Some(cap),
            hard: None,
            asks: None,
        }
    }

    /// So many calls of connectors for one command; then people are asked.
    pub fn per_command(cap: u64) -> Self {
        Self { by_command: true, ..Self::new(cap) }
    }

    /// So many calls of one connector in a day (UTC); then people are asked.
    pub fn per_day(connector: impl Into<String>, cap: u64) -> Self {
        Self::new(cap).of(connector).each_day()
    }

    /// So many calls of one connector for as long as the workspace is there, such as a prepaid
    /// amount; then people are asked.
    pub fn per_connector(connector: impl Into<String>, cap: u64) -> Self {
        Self::new(cap).of(connector)
    }

    /// So many calls of all connectors together in a day (UTC); then people are asked.
    pub fn daily(cap: u64) -> Self {
        Self::new(cap).each_day()
    }

    /// Only calls of this connector count.
    pub fn of(mut self, connector: impl Into<String>) -> Self {
        self.connector = Some(connector.into());
        self
    }

    /// It begins anew with each day (UTC).
    pub fn each_day(mut self) -> Self {
        self.by_day = true;
        self
    }

    /// Counts attempts after the first, of effects and calls, instead of all calls.
    pub fn retries(mut self) -> Self {
        self.counts = Counts::Retries;
        self
    }

    /// Counts what effects and calls cost: their declared price, or what the connector says.
    pub fn cost_units(mut self) -> Self {
        self.counts = Counts::Units;
        self
    }

    /// Beyond it nobody is asked: the call is denied.
    pub fn hard(mut self) -> Self {
        self.hard = self.soft.take().or(self.hard);
        self
    }

    /// Beyond the cap people are asked; beyond this one nobody is.
    pub fn hard_at(mut self, cap: u64) -> Self {
        self.hard = Some(cap);
        self
    }

    /// Beyond the cap so many of these are asked, by name or with a `*` at the end, instead of any
    /// two.
    pub fn asking<S: Into<String>>(
        mut self,
        approvers: u32,
        among: impl IntoIterator<Item = S>,
    ) -> Self {
        self.asks = Some((approvers, among.into_iter().map(Into::into).collect()));
        self
    }

    /// Takes the caps of another one that counts the same, where they are lower.
    fn within(&mut self, other: &Self) {
        let lower = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        (self.soft, self.hard) = (lower(self.soft, other.soft), lower(self.hard, other.hard));
        if self.soft > self.hard && self.hard.is_some() {
            // Nobody is asked beyond what is denied.
            self.soft = None;
        }
        self.asks = match (self.asks.take(), other.asks.clone()) {
            (Some((one, these)), Some((more, those))) => {
                // Where nobody is in both, the check refuses: an empty name is nobody's.
                let both = in_both(&these, &those).unwrap_or_else(|| vec![String::new()]);
                Some((one.max(more), both))
            }
            (one, other) => one.or(other),
        };
    }

    fn is_like(&self, other: &Self) -> bool {
        self.counts == other.counts
            && (self.by_command, self.by_day) == (other.by_command, other.by_day)
            && self.connector == other.connector
    }

    /// Adds a budget; two that count the same are one, with the lower caps.
    pub(crate) fn join(self, budgets: &mut Vec<Self>) {
        match budgets.iter_mut().find(|known| known.is_like(&self)) {
            Some(known) => known.within(&self),
            None => budgets.push(self),
        }
    }

    /// Refuses a budget of a connector that is not there, and caps that never hold.
    pub(crate) fn check(&self, connectors: &Connectors) -> Result<()> {
        if let Some(name) = &self.connector
            && connectors.get(name).is_none()
        {
            let text = format!("a budget is for connector \"{name}\", which is not there");
            return Err(Error::invalid("SF-0805", text));
        }
        if let Some((approvers, among)) = &self.asks {
            let asked = ApprovalRequest::new("cost", "cost").approvers(*approvers);
            asked.among(among.clone()).check()?;
        }
        let most = i64::MAX.unsigned_abs();
        match (self.soft, self.hard) {
            (Some(soft), Some(hard)) if hard < soft => {
                let text =
                    format!("a budget denies beyond {hard}, before people are asked at {soft}");
                Err(Error::invalid("SF-0805", text))
            }
            (soft, hard) if soft.max(hard) > Some(most) => {
                Err(Error::invalid("SF-0805", "a budget has no end: its cap is beyond 64 bits"))
            }
            _ => Ok(()),
        }
    }

    /// What something takes from it before it leaves, if it does.
    pub(crate) fn take(&self, leaving: &Leaving<'_>, price: Option<u64>) -> Option<Due<'_>> {
        let connector = leaving.call.map(|call| call.connector.as_str());
        if self.connector.is_some() && self.connector.as_deref() != connector {
            return None;
        }
        let wanted = match self.counts {
            Counts::Calls => connector.map(|_| 1)?,
            Counts::Retries => Some(1).filter(|_| leaving.attempt > 1)?,
            // What is free is let through, however much was spent on other things.
            Counts::Units if price == Some(0) => return None,
            Counts::Units => bounded(price.unwrap_or(0)),
        };
        // People who have said yes have said yes to what it costs, where they can.
        let soft = self.soft.filter(|_| !leaving.approved);
        let caps = [soft, self.hard].into_iter().flatten().map(bounded);
        let until = match (self.by_day, self.by_command) {
            (true, _) => Some(end_of_day(leaving.now)),
            (false, true) => Some(leaving.now.after(IDLE)),
            // A connector's own budget has no end.
            (false, false) => None,
        };
        let meter = self.meter(&leaving.context.command_id, leaving.now);
        let of_it = leaving.owed.iter().filter(|(of, _)| *of == meter);
        let owed = of_it.fold(0i64, |sum, (_, more)| sum.saturating_add(*more));
        // As if it were charged already.
        let cap = caps.min().unwrap_or(i64::MAX).saturating_sub(owed);
        let take = Take::Budget { meter, amount: wanted, cap, until };
        Some(Due { budget: self, take, wanted, owed })
    }

    /// Its name for a command and a moment.
    fn meter(&self, command_id: &str, now: Timestamp) -> String {
        let any = || "*".to_owned();
        let command = if self.by_command { command_id.to_owned() } else { any() };
        let connector = self.connector.clone().unwrap_or_else(any);
        let day = if self.by_day { now.utc_date(0) } else { any() };
        let meter = format!("cost:{}:{command}:{connector}:{day}", self.counts.as_str());
        match meter.len() > limits::KEY_BYTES {
            true => format!("cost:{}", json::fingerprint(&meter)),
            false => meter,
        }
    }

    fn scope(&self) -> String {
        let of = self.connector.as_ref().map(|name| format!(" of \"{name}\"")).unwrap_or_default();
        let whose = if self.by_command { " of this command" } else { "" };
        let when = if self.by_day { " of today" } else { "" };
        format!("{of}{whose}{when}")
    }
}

/// Where a budget stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetState {
    /// Its name in the store.
    pub meter: String,
    /// What it counts, in words: `cost units of "mailer" of today`.
    pub counts: String,
    /// How much is spent.
    pub spent: u64,
    /// Beyond it people are asked.
    pub soft: Option<u64>,
    /// Beyond it nobody is.
    pub hard: Option<u64>,
}

impl BudgetState {
    /// How much is left before people are asked, or before it is denied where nobody is.
    pub fn left(&self) -> Option<u64> {
        let cap = [self.soft, self.hard].into_iter().flatten().min()?;
        Some(cap.saturating_sub(self.spent))
    }
}

impl Client {
    /// Where the budgets of this process stand now: those of a command as well, if it is named.
    pub async fn budgets(&self, command_id: Option<&str>) -> Result<Vec<BudgetState>> {
        let own = self.governance.as_deref().map_or(&[][..], |governance| &governance.budgets);
        let now = self.inner.now();
        let asked = own.iter().filter(|budget| command_id.is_some() || !budget.by_command);
        let asked = asked.map(|budget| (budget, budget.meter(command_id.unwrap_or(""), now)));
        let asked: Vec<(&Budget, String)> = asked.collect();
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let meters = asked.iter().map(|(_, meter)| meter.clone()).collect();
        let limit = asked.len();
        let known = self.spent(ListBudgets { meters, limit, ..ListBudgets::default() }).await?;
        let state = |(budget, meter): (&Budget, String)| {
            let row = known.iter().find(|row| row.meter == meter);
            BudgetState {
                counts: format!("{}{}", budget.counts.noun(), budget.scope()),
                spent: row.map_or(0, |row| row.spent.unsigned_abs()),
                soft: budget.soft,
                hard: budget.hard,
                meter,
            }
        };
        Ok(asked.into_iter().map(state).collect())
    }

    /// What is spent of budgets, whichever process has them, by their names in the store.
    pub async fn spent(&self, mut which: ListBudgets) -> Result<Vec<BudgetRow>> {
        self.inner.workspace().clone_into(&mut which.workspace);
        Ok(self.inner.ask(which).await?.0)
    }
}

/// What a call takes from a budget.
pub(crate) struct Due<'a> {
    budget: &'a Budget,
    pub(crate) take: Take,
    wanted: i64,
    /// What it is charged besides, as soon as the record of that is durable.
    owed: i64,
}

impl Due<'_> {
    pub(crate) fn is_units(&self) -> bool {
        self.budget.counts == Counts::Units
    }

    /// Looks whether it would reach, and takes nothing.
    pub(crate) fn look(&self) -> Take {
        match &self.take {
            Take::Budget { meter, amount, cap, until } => Take::Budget {
                meter: meter.clone(),
                amount: 0,
                cap: cap.saturating_sub(*amount),
                until: *until,
            },
            other => other.clone(),
        }
    }

    /// What follows where the budget, of which so much is spent, does not reach.
    pub(crate) fn short(&self, spent: i64) -> (Finding, CapReached) {
        let Budget { soft, hard, counts, asks, .. } = self.budget;
        let spent = spent.saturating_add(self.owed).max(0);
        let after = spent.saturating_add(self.wanted);
        let denied = hard.map(bounded).filter(|hard| after > *hard);
        let cap = denied.or(soft.map(bounded)).unwrap_or(i64::MAX);
        let mut text =
            format!("{spent} of {cap} {}{} are spent", counts.noun(), self.budget.scope());
        if *counts == Counts::Units && self.wanted > 0 {
            text = format!("{text}, and this costs {}", self.wanted);
        }
        let finding = match denied {
            Some(_) => Finding::deny("cost_cap", text),
            None => match asks {
                Some((approvers, among)) => {
                    Finding::approval("cost_cap", *approvers, text).among(among.clone())
                }
                None => Finding::approval("cost_cap", APPROVERS, text),
            },
        };
        let (meter, hard) = (self.take.meter().to_owned(), denied.is_some());
        (finding, CapReached { meter, hard, cap, spent, wanted: self.wanted })
    }
}

fn bounded(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

/// When nobody takes from the budget of a moment's day any more: calls that began before midnight
/// end later.
fn end_of_day(now: Timestamp) -> Timestamp {
    let days = now.as_micros().div_euclid(DAY_MICROS);
    Timestamp::from_micros((days + 2).saturating_mul(DAY_MICROS))
}
