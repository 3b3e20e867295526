//! Effects and their ways back: what is refused, by rule.

use super::*;
use crate::command::Capability;

fn check(effects: &[EffectType], compensations: &[Compensation]) -> Result<()> {
    Catalog::new(effects, compensations).check("native", &[])
}

fn refusal(effects: &[EffectType], compensations: &[Compensation]) -> String {
    let error = check(effects, compensations).unwrap_err();
    assert!(error.code().starts_with("SF-080"), "{error:?}");
    error.message().to_owned()
}

/// R39, R109, X4
#[test]
fn r039_no_way_back_needs_a_reason() {
    let bare = EffectType::new("partition.write");
    assert!(refusal(std::slice::from_ref(&bare), &[]).contains("no reason"));
    assert!(refusal(&[bare.clone().not_undone("  ")], &[]).contains("no reason"));
    check(&[bare.clone().not_undone("the next night overwrites it")], &[]).unwrap();
    let mut strict = bare.not_undone("none");
    strict.requires_compensation = true;
    assert!(refusal(&[strict], &[]).contains("requires a compensation"));
}

/// X4
#[test]
fn x4_a_way_back_must_be_registered() {
    let deal = EffectType::new("deal.create").undone_by("delete_deal");
    assert!(refusal(&[deal], &[]).contains("not registered"));
}

/// X4
#[test]
fn x4_ways_back_are_two_deep_at_most_and_no_circle() {
    let undone = |name: &str, by: &str| EffectType::new(name).undone_by(by);
    let last = |name: &str| EffectType::new(name).not_undone("it takes back");
    let c = |name: &str, of: &str| Compensation::new(name, [of]);
    check(&[undone("a", "ca"), last("b")], &[c("ca", "b")]).unwrap();
    check(&[undone("a", "ca"), undone("b", "cb"), last("c")], &[c("ca", "b"), c("cb", "c")])
        .unwrap();
    let deep = refusal(
        &[undone("a", "ca"), undone("b", "cb"), undone("c", "cc"), last("d")],
        &[c("ca", "b"), c("cb", "c"), c("cc", "d")],
    );
    assert!(deep.contains("deeper than 2"), "{deep}");
    let circle = refusal(&[undone("a", "ca"), undone("b", "cb")], &[c("ca", "b"), c("cb", "a")]);
    assert!(circle.contains("circle: a → b → a"), "{circle}");
}

/// X4
#[test]
fn x4_who_claims_to_take_back_only_does() {
    let deal = EffectType::new("deal.create").undone_by("undo");
    let sorry = EffectType::new("mail.send").not_undone("mail cannot be unsent");
    let undo = Compensation::new("undo", ["mail.send"]).only_takes_back();
    let false_claim = refusal(&[deal.clone(), sorry.clone()], std::slice::from_ref(&undo));
    assert!(false_claim.contains("not the inverse of \"deal.create\""), "{false_claim}");
    let inverse = sorry.inverse_of("deal.create");
    check(&[deal, inverse], &[undo]).unwrap();
}

/// X4
#[test]
fn x4_a_native_saga_needs_a_runtime_that_has_it() {
    let deal = EffectType::new("deal.create").undone_by("undo");
    let gone = EffectType::new("deal.delete").not_undone("it takes back");
    let undo = Compensation { native: true, ..Compensation::new("undo", ["deal.delete"]) };
    let catalog = Catalog::new([&deal, &gone], [&undo]);
    let lacking = catalog.check("dbos", &[Capability::Queues]).unwrap_err();
    assert!(lacking.message().contains("saga_compensation_native, which dbos lacks"));
    catalog.check("temporal", &[Capability::SagaCompensationNative]).unwrap();
}
