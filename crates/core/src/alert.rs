//! Alerts: which events a person must hear of, and how they are told.
//!
//! Invariants: a rule is data and matches by the event's type and the values in it; the same rule
//! and subject have the same key, by which a repetition is known here and at the other side.
//! Deliberately absent: resolving. What was wrong is looked at by the person who was told.

use std::time::Duration;

use serde_json::{Value, json};

use crate::event::CloudEvent;
use crate::sink::Dedup;

/// How bad it is, in PagerDuty's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Info,
    /// Somebody should look.
    Warning,
    /// Something failed.
    Error,
    /// Somebody must look now.
    Critical,
}

impl Severity {
    /// The one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
        }
    }
}

/// Which events lead to an alert.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    name: String,
    event_type: String,
    fields: Vec<(String, Value)>,
    subject: Option<String>,
    severity: Severity,
    summary: String,
}

impl Rule {
    /// A rule for events of a type: `command.failed`, `approval.*`, or `*_drift`.
    pub fn new(name: &str, event_type: &str) -> Self {
        Self {
            name: name.to_owned(),
            event_type: event_type.to_owned(),
            fields: Vec::new(),
            subject: None,
            severity: Severity::Error,
            summary: name.replace('_', " "),
        }
    }

    /// Only where a value of the event's data, by its JSON pointer, is this one.
    pub fn field(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        self.fields.push((pointer.to_owned(), value.into()));
        self
    }

    /// What the alert is about, by its JSON pointer; else the command, else the event.
    pub fn subject(mut self, pointer: &str) -> Self {
        self.subject = Some(pointer.to_owned());
        self
    }

    /// How bad it is.
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// What is said first.
    pub fn summary(mut self, text: &str) -> Self {
        text.clone_into(&mut self.summary);
        self
    }

    fn matches(&self, event: &CloudEvent) -> bool {
        let found = event.short_type();
        let is_type = match (self.event_type.strip_suffix('*'), self.event_type.strip_prefix('*')) {
            (Some(beginning), _) => found.starts_with(beginning),
            (_, Some(end)) => found.ends_with(end),
            _ => found == self.event_type,
        };
        is_type && self.fields.iter().all(|(at, value)| data_at(event, at) == Some(value))
    }
}

/// The rules that everybody needs.
pub fn standard() -> Vec<Rule> {
    let failed = |name: &str| Rule::new(name, "command.failed").field("/error/class", name);
    let late = |event_type: &str| {
        Rule::new("deadline_not_met", event_type).summary("a command did not begin in time")
    };
    vec![
        failed("permanent_connector_error")
            .severity(Severity::Critical)
            .summary("another system refuses a command for good"),
        failed("retries_exceeded").summary("a command was tried too often"),
        Rule::new("retries_exceeded", "cost.cap_reached")
            .summary("an operation has used up its attempts or its budget"),
        Rule::new("not_taken_back", "command.failed")
            .field("/error/code", "SF-0831")
            .severity(Severity::Critical)
            .summary("what a command has done was not all taken back"),
        Rule::new("schedule_missed", "schedule.missed")
            .subject("/trigger_id")
            .summary("a schedule did not fire in time"),
        Rule::new("approval_expired", "approval.expired")
            .severity(Severity::Warning)
            .subject("/approval_id")
            .summary("an approval was not given in time"),
        Rule::new("approval_escalated", "approval.escalated")
            .severity(Severity::Warning)
            .subject("/approval_id")
            .summary("an approval is waited for"),
        Rule::new("effect_unknown", "effect.unknown")
            .subject("/effect_id")
            .severity(Severity::Critical)
            .summary("nobody knows whether an effect took place"),
        Rule::new("effect_contradicted", "effect.contradicted")
            .subject("/effect_id")
            .severity(Severity::Critical)
            .summary("an effect did not end as the ledger has it"),
        late("command.expired"),
        // What waits on a queue cannot become expired: it is cancelled, and says why.
        late("command.cancelled").field("/error/code", "SF-0510"),
        Rule::new("deadline_not_met", "command.cancelled")
            .field("/error/code", "SF-0304")
            .summary("a command did not end in time"),
        Rule::new("compensation_drift", "*compensation_drift")
            .severity(Severity::Critical)
            .summary("an effect is not undone as it was declared"),
    ]
}

/// Something that a person is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    /// The rule.
    pub rule: String,
    /// How bad it is.
    pub severity: Severity,
    /// What happened, in a line.
    pub summary: String,
    /// What it is about.
    pub subject: String,
    /// The same for the same rule and subject.
    pub dedup_key: String,
}

/// Rules, and for how long the same is not told again.
#[derive(Debug, Clone, PartialEq)]
pub struct Alerts {
    rules: Vec<Rule>,
    window: Duration,
}

impl Default for Alerts {
    fn default() -> Self {
        Self { rules: standard(), window: Duration::from_secs(3600) }
    }
}

impl Alerts {
    /// Only these rules.
    pub fn only(rules: impl IntoIterator<Item = Rule>) -> Self {
        Self { rules: rules.into_iter().collect(), ..Self::default() }
    }

    /// One more rule.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// For how long the same is not told again (an hour by default).
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// What a person is told of an event, if anything. The first rule that matches decides.
    pub fn notice(&self, event: &CloudEvent) -> Option<Notice> {
        let rule = self.rules.iter().find(|rule| rule.matches(event))?;
        let named = rule.subject.as_ref().and_then(|at| data_at(event, at));
        let named = named.map(|value| value.as_str().map_or(value.to_string(), str::to_owned));
        let subject = named.or_else(|| event.subject.clone()).unwrap_or_else(|| event.id.clone());
        let detail = ["/error/message", "/reason"].iter().find_map(|at| data_at(event, at));
        let detail = detail.and_then(Value::as_str).map(|text| format!(": {text}"));
        Some(Notice {
            rule: rule.name.clone(),
            severity: rule.severity,
            summary: format!("{} ({subject}){}", rule.summary, detail.unwrap_or_default()),
            dedup_key: format!("{}/{}/{subject}", event.source, rule.name),
            subject,
        })
    }

    /// Whether this was told a short while ago.
    pub fn dedup(&self, event: &CloudEvent) -> Option<Dedup> {
        let key = self.notice(event)?.dedup_key;
        Some(Dedup { key: shortened(&key), window: self.window })
    }
}

impl Notice {
    /// As an event of PagerDuty's Events API, version 2.
    pub fn to_pagerduty(&self, routing_key: &str, event: &CloudEvent) -> Value {
        json!({
            "routing_key": routing_key,
            "event_action": "trigger",
            "dedup_key": shortened(&self.dedup_key),
            "client": "Steadfast",
            "payload": {
                // No more is taken.
                "summary": cut(&self.summary, 1024),
                "source": event.source,
                "severity": self.severity.as_str(),
                "timestamp": event.time,
                "component": self.subject,
                "class": self.rule,
                "custom_details": {
                    "event_id": event.id,
                    "event_type": event.event_type,
                    "command_id": event.subject,
                    "data": event.data,
                },
            },
        })
    }

    /// As a message that Slack's incoming webhooks take, and those of others that follow them.
    pub fn to_slack(&self, event: &CloudEvent) -> Value {
        // What Slack reads as markup, as it asks for it.
        let plain =
            |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let text = format!("[{}] {}", self.severity.as_str(), plain(&cut(&self.summary, 2000)));
        let about = format!("{} · {} · {}", self.rule, event.id, event.time);
        json!({
            "text": text,
            "blocks": [
                { "type": "section", "text": { "type": "mrkdwn", "text": text } },
                {
                    "type": "context",
                    "elements": [{ "type": "plain_text", "text": cut(&about, 1000) }],
                },
            ],
        })
    }
}

fn data_at<'a>(event: &'a CloudEvent, pointer: &str) -> Option<&'a Value> {
    event.data.as_ref()?.pointer(pointer)
}

/// PagerDuty and our own store take 255 bytes.
fn shortened(key: &str) -> String {
    match key.len() {
        0..=255 => key.to_owned(),
        _ => format!("{}-{}", cut(key, 200), crate::json::fingerprint(key)),
    }
}

fn cut(text: &str, bytes: usize) -> String {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Facts;
    use crate::time::Timestamp;

    fn event(event_type: &str, command_id: &str, payload: &Value) -> CloudEvent {
        let payload = payload.to_string();
        let facts = Facts {
            workspace: "w",
            event_id: "evt_1",
            command_id,
            purpose: "event",
            event_type,
            payload: &payload,
            actor: "system",
            trace_id: "",
            created_at: Timestamp::from_micros(0),
        };
        CloudEvent::of(&facts, 1, None).remove(0)
    }

    /// R52, X8
    #[test]
    fn the_standard_rules_find_what_needs_a_person_and_nothing_else() {
        let alerts = Alerts::default();
        let rule = |event_type: &str, payload: Value| {
            alerts.notice(&event(event_type, "c1", &payload)).map(|notice| notice.rule)
        };
        let failed = |class: &str| json!({ "error": { "class": class, "message": "no" } });
        let found = |name: &str| Some(name.to_owned());
        let permanent = failed("permanent_connector_error");
        assert_eq!(rule("command.failed", permanent.clone()), found("permanent_connector_error"));
        assert_eq!(rule("command.failed", failed("retries_exceeded")), found("retries_exceeded"));
        assert_eq!(rule("command.failed", failed("application")), None);
        assert_eq!(rule("command.succeeded", permanent), None);
        for (event_type, name) in [
            ("schedule.missed", "schedule_missed"),
            ("approval.expired", "approval_expired"),
            ("approval.escalated", "approval_escalated"),
            ("cost.cap_reached", "retries_exceeded"),
            ("effect.unknown", "effect_unknown"),
            ("effect.contradicted", "effect_contradicted"),
            ("command.expired", "deadline_not_met"),
            ("compensation_drift", "compensation_drift"),
            ("effect.compensation_drift", "compensation_drift"),
        ] {
            assert_eq!(rule(event_type, json!({})), found(name), "{event_type}");
        }
        let late = json!({ "error": { "class": "cancelled", "code": "SF-0510" } });
        assert_eq!(rule("command.cancelled", late), found("deadline_not_met"));
        assert_eq!(rule("command.cancelled", failed("cancelled")), None);
        assert_eq!(rule("effect.succeeded", json!({})), None);
    }

    #[test]
    fn a_subject_is_what_the_rule_names_else_the_command_else_the_event() {
        let alerts = Alerts::default();
        let missed = json!({ "trigger_id": "nightly", "reason": "late" });
        let notice = alerts.notice(&event("schedule.missed", "", &missed)).unwrap();
        assert_eq!(notice.dedup_key, "steadfast/w/schedule_missed/nightly");
        assert_eq!(notice.summary, "a schedule did not fire in time (nightly): late");
        let own = Alerts::only([Rule::new("any", "command.*").severity(Severity::Info)]);
        assert_eq!(own.notice(&event("command.queued", "c1", &json!({}))).unwrap().subject, "c1");
        assert_eq!(own.notice(&event("command.queued", "", &json!({}))).unwrap().subject, "evt_1");
        assert_eq!(own.notice(&event("commands", "c1", &json!({}))), None);
    }

    #[test]
    fn messages_have_the_shape_that_their_readers_ask_for() {
        let told =
            event("command.expired", &"c".repeat(300), &json!({ "reason": "<late> & \"so\"" }));
        let notice = Alerts::default().notice(&told).unwrap();
        let pager = notice.to_pagerduty("key", &told);
        assert!(pager["dedup_key"].as_str().unwrap().len() <= 255);
        assert_eq!(pager["event_action"], "trigger");
        assert_eq!(pager["payload"]["severity"], "error");
        for field in ["summary", "source", "severity"] {
            assert!(pager["payload"][field].is_string(), "{field} is asked for");
        }
        let slack = notice.to_slack(&told);
        assert!(slack["text"].as_str().unwrap().ends_with("&lt;late&gt; &amp; \"so\""), "{slack}");
    }
}
