//! What a chain asks of people: who, how many, for how long, and when more of them are told.
//!
//! Invariants: one question speaks for every stage that wants one, so a yes to it is one for each:
//! as many people as the most demanding stage wants, only those whom all of them allow, within the
//! shortest time; a question that nobody could answer is a denial.

use std::time::Duration;

use super::{Finding, Judgement};
use crate::approval::{ApprovalRequest, TTL};
use crate::error::{Error, ErrorClass, Result};

/// What people are asked because a policy wants it.
#[derive(Debug, Clone, PartialEq)]
pub struct Asks {
    /// How many different people have to say yes.
    pub approvers: u32,
    /// Who may, by name or with a `*` at the end; anybody if there are none.
    pub among: Vec<String>,
    /// How long they have.
    pub ttl: Duration,
    /// After this long more people are told.
    pub escalate_after: Option<Duration>,
    /// Why they are asked.
    pub reason: String,
}

impl Asks {
    /// The question, about something to be done.
    pub fn request(
        self,
        approval_type: impl Into<String>,
        action: impl Into<String>,
    ) -> ApprovalRequest {
        let Self { approvers, among, ttl, escalate_after, reason } = self;
        let plain = ApprovalRequest::new(approval_type, action);
        ApprovalRequest { approvers, among, ttl, escalate_after, reason, ..plain }
    }
}

impl Finding {
    /// Only these may say yes: by name, or with a `*` at the end all whose names begin so.
    pub fn among<S: Into<String>>(mut self, people: impl IntoIterator<Item = S>) -> Self {
        self.among = people.into_iter().map(Into::into).collect();
        self
    }

    /// How long people have, instead of two days.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl_ms = Some(millis(ttl));
        self
    }

    /// After this long more people are told.
    pub fn escalate_after(mut self, d: Duration) -> Self {
        self.escalate_after_ms = Some(millis(d));
        self
    }

    fn times(&self) -> Result<(Duration, Option<Duration>)> {
        let ttl = self.ttl_ms.map_or(TTL, Duration::from_millis);
        let escalate = self.escalate_after_ms.map(Duration::from_millis);
        match escalate.is_some_and(|after| after >= ttl) || ttl.is_zero() {
            true => Err(unanswerable(format!(
                "rule {} leaves people no time, or tells more of them only when it is up",
                self.rule
            ))),
            false => Ok((ttl, escalate)),
        }
    }
}

impl Judgement {
    /// The one question that its stages ask together; an error where nobody could answer it.
    pub fn asks(&self) -> Result<Asks> {
        let mut asks = Asks {
            approvers: self.approvers().max(1),
            among: Vec::new(),
            ttl: TTL,
            escalate_after: None,
            reason: self.decisive().map(|d| d.finding.reason.clone()).unwrap_or_default(),
        };
        let (mut ttl, mut groups): (Option<Duration>, Vec<&str>) = (None, Vec::new());
        let asking = self.decisions.iter().filter(|d| d.finding.ruling.needs_approval());
        for decision in asking {
            let (own, escalate) = decision.finding.times()?;
            ttl = Some(ttl.map_or(own, |ttl| ttl.min(own)));
            asks.escalate_after = match (asks.escalate_after, escalate) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if decision.finding.among.is_empty() {
                continue;
            }
            groups.push(decision.stage.as_str());
            let Some(both) = in_both(&asks.among, &decision.finding.among) else {
                let text = format!("nobody is among all those whom {} want", groups.join(" and "));
                return Err(unanswerable(text));
            };
            asks.among = both;
        }
        asks.ttl = ttl.unwrap_or(TTL);
        asks.escalate_after = asks.escalate_after.filter(|after| *after < asks.ttl);
        let checked = asks.clone().request("policy", "policy").check();
        checked.map(|()| asks).map_err(|error| unanswerable(error.message().to_owned()))
    }
}

/// Those who are in both groups, if there are any; everybody is in one that names nobody.
pub fn in_both(one: &[String], other: &[String]) -> Option<Vec<String>> {
    if one.is_empty() || other.is_empty() {
        return Some([one, other].concat());
    }
    let mut both: Vec<String> = Vec::new();
    for a in one {
        for b in other {
            let narrower = match (is_in(a, b), is_in(b, a)) {
                (true, _) => a,
                (false, true) => b,
                (false, false) => continue,
            };
            if !both.contains(narrower) {
                both.push(narrower.clone());
            }
        }
    }
    (!both.is_empty()).then_some(both)
}

/// Whether all that a pattern stands for is in what another one stands for.
fn is_in(pattern: &str, other: &str) -> bool {
    match other.strip_suffix('*') {
        Some(start) => pattern.starts_with(start),
        None => pattern == other,
    }
}

fn unanswerable(text: String) -> Error {
    Error::new(ErrorClass::PolicyDenied, "SF-0811", format!("people cannot be asked: {text}"))
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Decision, Stage};

    fn judged(findings: impl IntoIterator<Item = Finding>) -> Judgement {
        let stages = Stage::ALL.into_iter().zip(findings);
        let decisions =
            stages.map(|(stage, finding)| Decision { stage, finding, inputs: String::new() });
        Judgement { decisions: decisions.collect() }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// X11
    #[test]
    fn x11_one_question_is_as_strict_as_each_stage() {
        let asks = judged([
            Finding::approval("a", 1, "first").among(["lead:*", "user:7"]).ttl(HOUR * 2),
            Finding::allow("b", "fine"),
            Finding::approval("c", 2, "second").among(["lead:1", "lead:2", "boss:*"]),
            Finding::approval("d", 1, "third").ttl(HOUR).escalate_after(HOUR / 2),
        ])
        .asks()
        .unwrap();
        assert_eq!(asks.approvers, 2);
        assert_eq!(asks.among, ["lead:1", "lead:2"]);
        assert_eq!((asks.ttl, asks.escalate_after), (HOUR, Some(HOUR / 2)));
        assert_eq!(asks.reason, "second");
        let moot = judged([
            Finding::approval("a", 1, "").escalate_after(HOUR),
            Finding::approval("b", 1, "").ttl(HOUR / 2),
        ]);
        assert_eq!(moot.asks().unwrap().escalate_after, None, "the time is up before");
    }

    /// X11
    #[test]
    fn x11_a_question_that_nobody_could_answer_is_a_denial() {
        let leads = || Finding::approval("a", 1, "").among(["lead:*"]);
        for impossible in [
            vec![leads(), Finding::approval("b", 1, "").among(["boss:*"])],
            vec![Finding::approval("a", 2, "").among(["boss:1"])],
            vec![leads().ttl(Duration::ZERO)],
            vec![leads().ttl(HOUR).escalate_after(HOUR)],
        ] {
            let error = judged(impossible).asks().unwrap_err();
            assert_eq!((error.class(), error.code()), (ErrorClass::PolicyDenied, "SF-0811"));
        }
    }
}
