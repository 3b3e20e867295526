//! Policies from text: parsed, validated, and their annotations understood, before any is used.
//!
//! Invariants: either all policies are loaded or none; an annotation that would be ignored later is
//! refused here.

use std::str::FromStr;
use std::time::Duration;

use cedar_policy::{Effect, Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator};
use miette::Diagnostic;
use steadfast_core::error::{Error, Result};
use steadfast_core::policy::{Decision, Finding, Judgement, Stage};

/// What policies can speak about. `Payload` is declared by the application.
pub const SCHEMA: &str = include_str!("steadfast.cedarschema");

/// The payload of those who declare none: it has no fields.
const NO_PAYLOAD: &str = "type Payload = {};";
/// More people than this are asked by mistake.
const APPROVERS_MAX: u32 = 10;
/// Annotations that mean something here.
const KNOWN: &[&str] =
    &["among", "approvers", "escalate_after", "id", "obligation", "reason", "rule", "ttl"];
/// Annotations that say more about who is asked, and how.
const TERMS: &[&str] = &["among", "approvers", "escalate_after", "ttl"];

fn wrong(what: impl std::fmt::Display) -> Error {
    Error::invalid("SF-0821", format!("the policies are not valid: {what}"))
}

/// Reads and validates.
pub(crate) fn policies(text: &str, schema: Option<&str>) -> Result<PolicySet> {
    let payload = schema.unwrap_or(NO_PAYLOAD);
    let whole = format!("{SCHEMA}\n{payload}");
    let (schema, _) = Schema::from_cedarschema_str(&whole)
        .map_err(|error| wrong(format!("schema: {}", described(payload, "", &error))))?;
    let policies = PolicySet::from_str(text).map_err(|error| wrong(described(text, "", &error)))?;
    if let Some(template) = policies.templates().next() {
        return Err(wrong(format!("\"{}\" has a slot that nothing fills", template.id())));
    }
    if policies.policies().next().is_none() {
        return Err(wrong("there are none"));
    }
    for policy in policies.policies() {
        check_annotations(&policies, policy)?;
    }
    let result = Validator::new(schema).validate(&policies, ValidationMode::Strict);
    let errors: Vec<String> = result
        .validation_errors()
        .map(|error| {
            let policy = name(&policies, error.policy_id());
            described(text, &format!("policy \"{policy}\": "), error)
        })
        .collect();
    match errors.is_empty() {
        true => Ok(policies),
        false => Err(wrong(errors.join("; "))),
    }
}

/// An error with the line it is about, where it knows one.
fn described(text: &str, before: &str, error: &dyn Diagnostic) -> String {
    let at = error.labels().and_then(|mut labels| labels.next()).map(|label| label.offset());
    let help = error.help().map(|help| format!(" ({help})")).unwrap_or_default();
    match at.and_then(|at| text.get(..at)) {
        Some(above) => {
            let line = above.matches('\n').count() + 1;
            format!("line {line}: {before}{error}{help}")
        }
        None => format!("{before}{error}{help}"),
    }
}

fn check_annotations(policies: &PolicySet, policy: &Policy) -> Result<()> {
    let refused =
        |why: &str| Err(wrong(format!("policy \"{}\" {why}", name(policies, policy.id()))));
    for (key, _) in policy.annotations() {
        if !KNOWN.contains(&key) {
            return refused(&format!("has the annotation @{key}, which means nothing here"));
        }
    }
    let obligation = policy.annotation("obligation");
    let term = TERMS.iter().find(|term| policy.annotation(**term).is_some());
    if policy.effect() == Effect::Forbid && (obligation.is_some() || term.is_some()) {
        return refused("forbids; only what is permitted can be asked for");
    }
    match (obligation, term) {
        (None, None) => return Ok(()),
        (None, Some(term)) => {
            return refused(&format!("has @{term} without @obligation(\"approval\")"));
        }
        (Some("approval"), _) => {}
        (Some(_), _) => return refused("has an obligation other than \"approval\""),
    }
    let approvers = policy.annotation("approvers").map(str::parse::<u32>);
    if !matches!(approvers, None | Some(Ok(1..=APPROVERS_MAX))) {
        return refused("asks for a number of approvers that is none");
    }
    if policy.annotation("among").is_some_and(|text| people(text).iter().any(String::is_empty)) {
        return refused("has an @among that names nobody between two commas");
    }
    for term in ["ttl", "escalate_after"] {
        if policy.annotation(term).is_some_and(|text| span(text).is_none()) {
            return refused(&format!("has a @{term} that is no time, such as 90s, 30m, 4h or 2d"));
        }
    }
    // What nobody could answer is found now and not in the night.
    let finding = ask(policies, policy.id(), Finding::approval("", 1, ""));
    let decision = Decision { stage: Stage::Permission, finding, inputs: String::new() };
    match (Judgement { decisions: vec![decision] }).asks() {
        Ok(_) => Ok(()),
        Err(error) => refused(&format!("asks in vain: {}", error.message())),
    }
}

/// Names between commas.
fn people(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_owned()).collect()
}

/// A time such as `90s`, `30m`, `4h` or `2d`.
fn span(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

/// A finding that asks as a permitting policy wants it.
pub(crate) fn ask(policies: &PolicySet, id: &PolicyId, mut finding: Finding) -> Finding {
    finding.approvers = approvers(policies, id).max(1);
    if let Some(among) = policies.annotation(id, "among") {
        finding = finding.among(people(among));
    }
    if let Some(ttl) = policies.annotation(id, "ttl").and_then(span) {
        finding = finding.ttl(ttl);
    }
    if let Some(after) = policies.annotation(id, "escalate_after").and_then(span) {
        finding = finding.escalate_after(after);
    }
    finding
}

/// What a policy is called in decisions.
pub(crate) fn name(policies: &PolicySet, id: &PolicyId) -> String {
    let named = policies.annotation(id, "rule").or_else(|| policies.annotation(id, "id"));
    named.map_or_else(|| id.to_string(), str::to_owned)
}

/// How many people a permitting policy wants asked.
pub(crate) fn approvers(policies: &PolicySet, id: &PolicyId) -> u32 {
    match policies.annotation(id, "obligation") {
        None => 0,
        Some(_) => {
            let asked = policies.annotation(id, "approvers").and_then(|text| text.parse().ok());
            asked.unwrap_or(1)
        }
    }
}
