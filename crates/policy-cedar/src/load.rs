//! Policies from text: parsed, validated, and their annotations understood, before any is used.
//!
//! Invariants: either all policies are loaded or none; an annotation that would be ignored later is
//! refused here.

use std::str::FromStr;

use cedar_policy::{Effect, Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator};
use miette::Diagnostic;
use steadfast_core::error::{Error, Result};

/// What policies can speak about. `Payload` is declared by the application.
pub const SCHEMA: &str = include_str!("steadfast.cedarschema");

/// The payload of those who declare none: it has no fields.
const NO_PAYLOAD: &str = "type Payload = {};";
/// More people than this are asked by mistake.
const APPROVERS_MAX: u32 = 10;
/// Annotations that mean something here.
const KNOWN: &[&str] = &["approvers", "id", "obligation", "reason", "rule"];

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
    let (obligation, approvers) = (policy.annotation("obligation"), policy.annotation("approvers"));
    if policy.effect() == Effect::Forbid && obligation.or(approvers).is_some() {
        return refused("forbids; only what is permitted can be asked for");
    }
    match (obligation, approvers) {
        (None, None) | (Some("approval"), None) => Ok(()),
        (Some("approval"), Some(text)) => match text.parse::<u32>() {
            Ok(1..=APPROVERS_MAX) => Ok(()),
            _ => refused("asks for a number of approvers that is none"),
        },
        (Some(_), _) => refused("has an obligation other than \"approval\""),
        (None, Some(_)) => refused("has @approvers without @obligation(\"approval\")"),
    }
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
