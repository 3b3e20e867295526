//! What leaves takes from what all workers share: rates, breakers and budgets.
//!
//! Invariants: everything something takes is taken in one operation, or nothing is; what was taken
//! of budgets is told to the host, which sets it right when the call has ended.

use steadfast_core::command::CommandType;
use steadfast_core::connector::Limits;
use steadfast_core::env::new_uuid;
use steadfast_core::gate::{CapReached, Leaving, Passage, Taken, Verdict};
use steadfast_core::policy::{Finding, Judgement, Stage, in_both};
use steadfast_core::{Error, ErrorClass, Result, Timestamp};
use steadfast_store::StoreExt;
use steadfast_store::op::{Spend, Spent, Take};

use super::perform::{Gatekeeper, ask, set};
use crate::budget::Due;

/// Something that is wanted of what is shared.
pub(super) enum Want<'a> {
    /// That a connector's limit lets it through.
    Limit(Take),
    /// Some of a budget.
    Budget(Due<'a>),
}

impl Want<'_> {
    fn take(&self) -> &Take {
        match self {
            Self::Limit(take) => take,
            Self::Budget(due) => &due.take,
        }
    }

    fn stage(&self) -> Stage {
        match self {
            Self::Limit(_) => Stage::RateLimit,
            Self::Budget(_) => Stage::Cost,
        }
    }
}

impl Gatekeeper {
    /// What a call takes of its connector's limits.
    pub(super) fn limits<'a>(&'a self, leaving: &Leaving<'_>) -> Vec<Want<'a>> {
        let Some(calling) = leaving.call else {
            return Vec::new();
        };
        let connector = calling.connector.as_str();
        let limits = self.governance.connectors.get(connector).map(|c| c.limits());
        let Limits { rate, breaker } = limits.unwrap_or_default();
        let rate = rate.map(|rate| {
            let meter = format!("rate:{connector}");
            Take::Rate { meter, calls: rate.calls, per: rate.per }
        });
        let breaker = breaker.map(|breaker| {
            let meter = format!("breaker:{connector}");
            let (failures, cool_down) = (breaker.failures, breaker.cool_down);
            Take::Breaker { meter, failures, cool_down }
        });
        rate.into_iter().chain(breaker).map(Want::Limit).collect()
    }

    /// What it takes of budgets, where its contract's chain has the stage.
    pub(super) fn costs<'a>(
        &'a self,
        contract: &CommandType,
        leaving: &Leaving<'_>,
    ) -> Vec<Want<'a>> {
        if !contract.chain().contains(&Stage::Cost) {
            return Vec::new();
        }
        let price = self.price(contract, leaving);
        let budgets = self.governance.budgets.iter();
        budgets.filter_map(|budget| budget.take(leaving, price)).map(Want::Budget).collect()
    }

    /// What is known of its cost before: what the effect says, or else the operation.
    fn price(&self, contract: &CommandType, leaving: &Leaving<'_>) -> Option<u64> {
        let effect = leaving.effect.and_then(|spec| contract.effects.get(&spec.effect_type));
        let connectors = &self.governance.connectors;
        let operation =
            leaving.call.and_then(|call| connectors.operation(&call.connector, &call.operation));
        effect.and_then(|effect| effect.cost_units).or_else(|| operation?.cost_units)
    }

    /// Takes all of it, or says what follows.
    pub(super) async fn spend(
        &self,
        wants: Vec<Want<'_>>,
        now: Timestamp,
        verdict: &mut Verdict,
    ) -> Result<()> {
        if wants.is_empty() {
            return Ok(());
        }
        let (workspace, nonce) = (self.workspace.clone(), new_uuid(&*self.env));
        let takes = wants.iter().map(|want| want.take().clone()).collect();
        match self.store.ask(Spend { workspace, nonce, takes, now }).await? {
            Spent::Done => taken(&wants, verdict),
            Spent::Short { meter, spent, until } => {
                let short = wants.iter().find(|want| want.take().meter() == meter);
                match short {
                    Some(Want::Budget(due)) => {
                        // The first one that does not reach may not be the only one.
                        self.foresee(&wants, now, verdict).await?;
                        if verdict.cap.is_none() {
                            unaffordable(vec![due.short(spent)], verdict);
                        }
                        verdict.passage = after(&verdict.judgement);
                    }
                    Some(Want::Limit(_)) | None => used_up(&meter, until, now, verdict),
                }
            }
        }
        Ok(())
    }

    /// What budgets say to it before anything is taken.
    pub(super) async fn foresee(
        &self,
        wants: &[Want<'_>],
        now: Timestamp,
        verdict: &mut Verdict,
    ) -> Result<()> {
        let mut short = Vec::new();
        for want in wants {
            let Want::Budget(due) = want else { continue };
            let (workspace, takes) = (self.workspace.clone(), vec![due.look()]);
            // Nothing is taken, so there is nothing to be known again.
            let look = Spend { workspace, nonce: String::new(), takes, now };
            if let Spent::Short { spent, .. } = self.store.ask(look).await? {
                short.push(due.short(spent));
            }
        }
        unaffordable(short, verdict);
        Ok(())
    }
}

/// What follows where people are asked, or may not even be.
pub(super) fn after(judgement: &Judgement) -> Passage {
    judgement.denial().map_or_else(|| ask(judgement), Passage::Refused)
}

/// All of it was taken.
fn taken(wants: &[Want<'_>], verdict: &mut Verdict) {
    for want in wants {
        let (stage, take) = (want.stage(), want.take());
        let asked = verdict.judgement.decisions.iter().find(|d| d.stage == stage);
        // What rules of one's own have said stands.
        if asked.is_none_or(|d| d.finding.rule.starts_with("no_")) {
            let text = format!("\"{}\" lets it through", take.meter());
            set(&mut verdict.judgement, stage, Finding::allow("within_limit", text));
        }
        if let (Want::Budget(due), Take::Budget { meter, amount, until, .. }) = (want, take) {
            let (meter, amount, until) = (meter.clone(), *amount, *until);
            verdict.taken.push(Taken { meter, amount, units: due.is_units(), until });
        }
    }
}

/// These budgets do not reach: the stage says so with one voice, as strict as each of them.
fn unaffordable(mut short: Vec<(Finding, CapReached)>, verdict: &mut Verdict) {
    // Nobody is asked for what a hard cap denies in the end.
    short.sort_by_key(|(_, cap)| !cap.hard);
    let mut rest = short.into_iter();
    let Some((mut finding, cap)) = rest.next() else {
        return;
    };
    for (other, _) in rest.filter(|_| !cap.hard) {
        let reason = format!("{}; {}", finding.reason, other.reason);
        finding = match in_both(&finding.among, &other.among) {
            Some(among) => {
                let approvers = finding.approvers.max(other.approvers);
                Finding { among, approvers, reason, ..finding }
            }
            None => Finding::deny("cost_cap", format!("{reason}; nobody may allow all of it")),
        };
    }
    set(&mut verdict.judgement, Stage::Cost, finding);
    verdict.cap = Some(cap);
}

/// A connector's limit lets it not through for now.
fn used_up(meter: &str, until: Option<Timestamp>, now: Timestamp, verdict: &mut Verdict) {
    let finding = Finding::deny("used_up", format!("\"{meter}\" lets no more through for now"));
    set(&mut verdict.judgement, Stage::RateLimit, finding);
    let wait = until.map_or_else(Default::default, |at| now.until(at));
    let text = format!("\"{meter}\" lets no more through; nothing was sent");
    let error = Error::new(ErrorClass::RateLimited, "SF-0810", text).retry_after(wait);
    verdict.passage = Passage::Refused(error);
}
