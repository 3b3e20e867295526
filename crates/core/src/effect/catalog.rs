//! The catalog: every effect and compensation of a process, checked as one graph at the start.
//!
//! Invariants: a catalog that passes has, for each effect, a registered way back or a recorded
//! reason for none; ways back are at most two deep and never go round in a circle; a compensation
//! that claims to take back does nothing else. What fails is a start-up error, never a surprise in
//! the night.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::EffectType;
use crate::command::Capability;
use crate::error::{Error, Result};

/// How deep ways back may go: an effect, what undoes it, and what undoes that.
const MAX_DEPTH: usize = 2;

/// What a compensation says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compensation {
    /// Its name.
    pub name: String,
    /// The effects it has.
    pub produces: Vec<String>,
    /// Whether those only take back what was done.
    pub counter_effects: bool,
    /// Whether the runtime itself must walk it.
    #[serde(default)]
    pub native: bool,
}

impl Compensation {
    /// A compensation with these effects.
    pub fn new<S: Into<String>>(
        name: impl Into<String>,
        produces: impl IntoIterator<Item = S>,
    ) -> Self {
        let produces = produces.into_iter().map(Into::into).collect();
        Self { name: name.into(), produces, counter_effects: false, native: false }
    }

    /// It only takes back: each of its effects is the inverse of what it undoes.
    pub fn only_takes_back(mut self) -> Self {
        self.counter_effects = true;
        self
    }
}

/// Effects and compensations of one command type.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Catalog {
    effects: BTreeMap<String, EffectType>,
    compensations: BTreeMap<String, Compensation>,
}

impl Catalog {
    /// A catalog of these.
    pub fn new<'a>(
        effects: impl IntoIterator<Item = &'a EffectType>,
        compensations: impl IntoIterator<Item = &'a Compensation>,
    ) -> Self {
        let effects = effects.into_iter().map(|e| (e.name.clone(), e.clone())).collect();
        let compensations =
            compensations.into_iter().map(|c| (c.name.clone(), c.clone())).collect();
        Self { effects, compensations }
    }

    /// Refuses a graph with a way back that is missing, endless, too deep, or not what it claims.
    pub fn check(&self, runtime: &str, has: &[Capability]) -> Result<()> {
        self.effects.values().try_for_each(EffectType::check)?;
        for effect in self.effects.values() {
            self.check_registered(effect)?;
        }
        for name in self.effects.keys() {
            self.walk(name, &mut Vec::new())?;
        }
        for compensation in self.compensations.values() {
            if compensation.native && !has.contains(&Capability::SagaCompensationNative) {
                return Err(wrong(format!(
                    "compensation \"{}\" needs saga_compensation_native, which {runtime} lacks",
                    compensation.name
                )));
            }
        }
        Ok(())
    }

    fn check_registered(&self, effect: &EffectType) -> Result<()> {
        let Some(name) = &effect.compensation else {
            return Ok(());
        };
        let Some(compensation) = self.compensations.get(name) else {
            return Err(wrong(format!(
                "effect \"{}\" is undone by \"{name}\", which is not registered",
                effect.name
            )));
        };
        for produced in &compensation.produces {
            let Some(known) = self.effects.get(produced) else {
                return Err(wrong(format!(
                    "compensation \"{name}\" has effect \"{produced}\", which is not declared"
                )));
            };
            let inverse = known.inverse_of.as_ref() == Some(&effect.name);
            if compensation.counter_effects && !inverse {
                return Err(wrong(format!(
                    "compensation \"{name}\" claims to take back only, but its effect \
                     \"{produced}\" is not the inverse of \"{}\"",
                    effect.name
                )));
            }
        }
        Ok(())
    }

    /// Follows the ways back from an effect.
    fn walk(&self, effect: &str, path: &mut Vec<String>) -> Result<()> {
        if path.iter().any(|seen| seen == effect) {
            path.push(effect.to_owned());
            return Err(wrong(format!("ways back go in a circle: {}", path.join(" → "))));
        }
        path.push(effect.to_owned());
        let next = self.effects.get(effect).and_then(|e| e.compensation.as_ref());
        if let Some(compensation) = next.and_then(|name| self.compensations.get(name)) {
            for produced in compensation.produces.iter().collect::<BTreeSet<_>>() {
                self.walk(produced, path)?;
            }
            // A circle is named as such, however deep.
            if path.len() > MAX_DEPTH {
                let way = path.join(" → ");
                return Err(wrong(format!("ways back are deeper than {MAX_DEPTH}: {way} → …")));
            }
        }
        path.pop();
        Ok(())
    }
}

fn wrong(why: String) -> Error {
    Error::invalid("SF-0804", why)
}
