//! The ledger, questions and meters: few of each, so that they meet.

use std::time::Duration;

use steadfast_core::approval::Vote;
use steadfast_core::{ApprovalStatus, EffectEvent, EffectStatus, Error, Timestamp};
use steadfast_store::Op;
use steadfast_store::op::{
    Charge, Decide, EffectChange, EnterCalls, Govern, Health, Hold, InvocationRow, Lease,
    ListApprovals, ListBudgets, ListEffects, ListInvocations, NewApproval, NewEffect, NewEvent,
    Resolve, SettleApprovals, Spend, SweepMeters, Take, Truth,
};

use super::{Generator, SECOND};

const PEOPLE: &[&str] = &["user:1", "lead:1", "lead:2"];
const METERS: &[&str] = &["m", "M", "cost:m"];

impl Generator {
    /// An operation on the ledger, on questions or on meters.
    pub(super) fn governing(&mut self) -> Op {
        let (workspace, now) = (self.ws(), self.now());
        let approval_id = self.one_of(|g| &g.asked).unwrap_or_else(|| self.approval_id());
        let effect_id = self.one_of(|g| &g.lost).unwrap_or_else(|| self.effect_id());
        let command_id = self.command_id();
        let r = &mut self.random;
        let limit = usize::try_from(r.below(6)).unwrap();
        match r.below(100) {
            0..30 => Op::Decide(Decide {
                workspace,
                approval_id,
                approver: r.text(PEOPLE),
                vote: *r.pick(&[
                    &Vote::Approved,
                    &Vote::Approved,
                    &Vote::Approved,
                    &Vote::Rejected,
                    &Vote::RequestChanges,
                ]),
                reason: r.text(&["", "fine "]),
                now,
            }),
            30..38 => Op::SettleApprovals(SettleApprovals { workspace, limit: limit + 1, now }),
            38..55 => {
                let truth = match r.below(3) {
                    0 => Truth::Done("{}".to_owned()),
                    1 => Truth::NotDone,
                    _ => Truth::Again,
                };
                let (actor, reason) = ("user:2".to_owned(), r.text(&["", "seen"]));
                Op::Resolve(Resolve { workspace, effect_id, truth, actor, reason, now })
            }
            55..57 => Op::SweepMeters(SweepMeters { workspace, limit, now }),
            57..58 => Op::ListBudgets(budgets(workspace, limit)),
            58..80 => {
                let takes = (0..r.below(3)).map(|_| self.take()).collect();
                Op::Spend(Spend { workspace, nonce: nonce(now), takes, now })
            }
            80..82 => {
                let calls = (0..2).map(|_| self.invocation(&command_id, "r-late")).collect();
                let charges = self.charges();
                Op::EnterCalls(EnterCalls { lease: self.lease(), calls, charges })
            }
            82..87 => Op::ListEffects(ListEffects {
                workspace,
                command_id: r.maybe(60, |_| command_id),
                key: r.maybe(20, |r| r.text(&["k1", "k2"])),
                effect_id: r.maybe(20, |_| effect_id),
                status: r.maybe(30, |_| EffectStatus::Succeeded),
                to_undo: r.chance(20),
                last_first: r.chance(40),
                limit,
            }),
            87..94 => Op::ListApprovals(ListApprovals {
                workspace,
                approval_id: r.maybe(40, |_| approval_id),
                command_id: r.maybe(30, |_| command_id),
                status: r.maybe(30, |_| ApprovalStatus::Pending),
                limit,
            }),
            _ => Op::ListInvocations(ListInvocations {
                workspace,
                command_id: r.maybe(50, |_| command_id),
                connector: r.maybe(30, |_| "crm".to_owned()),
                after: r.maybe(30, |_| (now, "tool_1".to_owned())),
                limit,
            }),
        }
    }

    /// Mostly one of the last few.
    pub(super) fn one_of(&mut self, of: impl Fn(&Self) -> &Vec<String>) -> Option<String> {
        let many = of(self).len() as u64;
        if many == 0 || !self.random.chance(85) {
            return None;
        }
        let back = self.random.below(many.min(3)) + 1;
        of(self).get(usize::try_from(many - back).unwrap()).cloned()
    }

    fn approval_id(&mut self) -> String {
        format!("q{}", self.random.below(9))
    }

    fn effect_id(&mut self) -> String {
        format!("e{}", self.random.below(7))
    }

    fn take(&mut self) -> Take {
        let r = &mut self.random;
        let meter = r.text(METERS);
        match r.below(3) {
            0 => Take::Rate { meter, calls: 2, per: Duration::from_secs(10) },
            1 => {
                let until = r.maybe(30, |r| Timestamp::from_micros(r.number(0, 900) * SECOND));
                Take::Budget { meter, amount: r.number(0, 3), cap: 5, until }
            }
            _ => Take::Breaker { meter, failures: 2, cool_down: Duration::from_secs(5) },
        }
    }

    /// Why a command does not begin, at times.
    pub(super) fn hold(&mut self) -> Option<Hold> {
        match self.random.below(100) {
            0..5 => Some(Hold::Denied(Error::app("no"))),
            5..16 => {
                let question = self.question();
                self.asked.push(question.approval_id.clone());
                Some(Hold::Approval(Box::new(question)))
            }
            16..19 => Some(Hold::Input("which one?".to_owned())),
            _ => None,
        }
    }

    fn question(&mut self) -> NewApproval {
        let (approval_id, now) = (self.approval_id(), self.now);
        let r = &mut self.random;
        let later = |seconds: i64| Timestamp::from_micros(now + seconds * SECOND);
        NewApproval {
            approval_id,
            approval_type: "send".to_owned(),
            action: r.text(&["send", "Send "]),
            reason: "because".to_owned(),
            payload: "{\"to\":\"é\"}".to_owned(),
            digest: "sha256:0".to_owned(),
            requested_by: "user:1".to_owned(),
            approvers: r.number(1, 2),
            among: r.maybe(30, |_| vec!["lead:*".to_owned()]).unwrap_or_default(),
            expires_at: later(r.number(1, 3000)),
            escalate_at: r.maybe(30, |r| later(r.number(1, 300))),
        }
    }

    /// What belongs to a governed record of a run.
    pub(super) fn govern(&mut self, lease: &Lease) -> Govern {
        let command_id = match lease.run_id.strip_prefix("r-") {
            Some(id) => id.to_owned(),
            None => self.command_id(),
        };
        let now = self.now();
        let (effect, question) = (self.effect_change(), self.question());
        let effect_id = self.effect_id();
        let calls = [0, 0, 1, 2][usize::try_from(self.random.below(4)).unwrap()];
        let invocations = (0..calls).map(|_| self.invocation(&command_id, &lease.run_id)).collect();
        let asks = self.random.chance(30);
        if asks {
            self.asked.push(question.approval_id.clone());
        }
        let r = &mut self.random;
        let events = (0..r.below(3)).map(|number| NewEvent {
            event_id: format!("evt_{command_id}_s{number}"),
            purpose: "audit",
            event_type: "policy.evaluated".to_owned(),
            payload: "{}".to_owned(),
        });
        let events = events.collect();
        let health = Health {
            meter: r.text(METERS),
            ok: r.chance(40),
            failures: 2,
            cool_down: Duration::from_secs(5),
        };
        let charges = self.charges();
        let charged_as = ["", "a", "b"][charges.len() % 3].to_owned();
        let r = &mut self.random;
        let undone = r.maybe(10, |_| effect_id);
        if undone.is_some() {
            self.given_up.push(format!("r-{command_id}"));
        }
        let r = &mut self.random;
        Govern {
            command_id,
            actor: lease.worker.clone(),
            trace_id: "0af7651916cd43dd8448eb211c80319c".to_owned(),
            events,
            effect: r.maybe(90, |_| effect),
            invocations,
            approval: asks.then(|| Box::new(question)),
            consume: r.maybe(15, |r| r.number(0, 3)),
            health: r.maybe(20, |_| health),
            charges,
            charged_as,
            undone,
            blocks: r.chance(8),
            child: r.chance(15),
            now,
        }
    }

    fn charges(&mut self) -> Vec<Charge> {
        let r = &mut self.random;
        let charges = (0..r.below(3)).map(|_| Charge {
            meter: r.text(METERS),
            amount: r.number(-3, 4),
            until: r.maybe(30, |r| Timestamp::from_micros(r.number(0, 900) * SECOND)),
        });
        charges.collect()
    }

    /// A connector's call.
    fn invocation(&mut self, command_id: &str, run_id: &str) -> InvocationRow {
        let now = self.now();
        let cost_units = Some(now.as_micros() / SECOND % 7).filter(|units| *units < 4);
        let r = &mut self.random;
        InvocationRow {
            invocation_id: format!("tool_{}", r.below(9)),
            command_id: command_id.to_owned(),
            run_id: run_id.to_owned(),
            connector: r.text(&["crm", "Crm"]),
            agent: "user:1".to_owned(),
            intended: "GET /a".to_owned(),
            actual: r.text(&["GET /a", ""]),
            inputs: "sha256:0".to_owned(),
            outputs: "200".to_owned(),
            side_effect: r.chance(50),
            idempotency_key: r.text(&["", "k1"]),
            verification: r.text(&["verified", "failed", "blocked", "contradicted"]),
            error: r.maybe(30, |_| Error::app("no")),
            latency_us: r.number(0, 9),
            cost_units,
            created_at: now,
        }
    }

    fn effect_change(&mut self) -> EffectChange {
        let begins = self.random.chance(50);
        let known = if begins { None } else { self.one_of(|g| &g.begun) };
        let effect_id = known.unwrap_or_else(|| self.effect_id());
        let other = self.effect_id();
        let loses = self.random.chance(45);
        match begins {
            true => self.begun.push(effect_id.clone()),
            false if loses => self.lost.push(effect_id.clone()),
            false => {}
        }
        let r = &mut self.random;
        let new = NewEffect {
            effect_id: effect_id.clone(),
            effect_type: r.text(&["mail", "deal"]),
            payload: if r.chance(95) { "{}" } else { "{\"a\":1}" }.to_owned(),
            idempotency_key: r.text(&["k1", "k2", "K2"]),
            compensation: r.maybe(70, |_| "undo".to_owned()),
            compensates: r.maybe(15, |_| other),
            once: r.chance(10),
        };
        if begins {
            return match r.chance(20) {
                true => EffectChange::Plan(Box::new(new)),
                false => EffectChange::Begin(Box::new(new)),
            };
        }
        let ends = *r.pick(&[&EffectEvent::Succeed, &EffectEvent::Succeed, &EffectEvent::Fail]);
        EffectChange::Move {
            effect_id,
            event: if loses { EffectEvent::Lose } else { ends },
            result: r.maybe(60, |_| "7".to_owned()),
            error: r.maybe(20, |_| Error::app("no")),
        }
    }
}

/// Now and then the same one again.
fn nonce(now: Timestamp) -> String {
    let seconds = now.as_micros() / SECOND;
    match seconds % 3 {
        0 => format!("n{}", seconds / 30),
        _ => String::new(),
    }
}

fn budgets(workspace: String, limit: usize) -> ListBudgets {
    ListBudgets {
        workspace,
        meters: if limit.is_multiple_of(2) { vec!["cost:m".to_owned()] } else { Vec::new() },
        after: limit.is_multiple_of(3).then(|| "cost:m".to_owned()),
        limit,
    }
}
