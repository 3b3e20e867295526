//! Effects: declared writes to the world, each with a row in the ledger and a way back.
//!
//! Invariants: an effect is performed only where its command's contract declares it; it is on
//! record as `executing` before it begins; found there after a crash, what its class promises
//! decides, and what nobody can know is `unknown` until a probe or a person says.
//! Deliberately absent: what an effect does. That is a connector's call or the application's code.

mod catalog;

use serde::{Deserialize, Serialize};

pub use catalog::{Catalog, Compensation};

use crate::command::Template;
use crate::driver::EffectClass;
use crate::error::{Error, Result};
use crate::key;
use crate::limits;
use crate::policy::Classes;

lifecycle! {
    /// Where an effect stands.
    pub EffectStatus on EffectEvent as "effect";
    start { Planned }
    terminal { Succeeded | Failed }
    arrows {
        Planned --(Begin)--> Executing;
        Planned --(Fail)--> Failed;
        Executing --(Succeed)--> Succeeded;
        Executing --(Fail)--> Failed;
        Executing --(Lose)--> Unknown;
        Unknown --(Begin)--> Executing;
        Unknown --(Succeed)--> Succeeded;
        Unknown --(Fail)--> Failed;
    }
    states {
        /// Decided on, not begun: it waits for an approval, or is only shown.
        Planned = "planned",
        /// Begun.
        Executing = "executing",
        /// Done.
        Succeeded = "succeeded",
        /// Not done, and not to be done.
        Failed = "failed",
        /// Begun, and a crash left it open whether it was done.
        Unknown = "unknown",
    }
    events {
        /// It is about to be performed.
        Begin,
        /// It was done.
        Succeed,
        /// It was not done.
        Fail,
        /// Nobody knows.
        Lose,
    }
}

/// What a contract says about an effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EffectType {
    /// Its name, such as `warehouse_partition.write`.
    pub name: String,
    /// The key by which the receiver knows it, over the command's payload and context; the
    /// command's own key with the effect's name unless given.
    #[serde(default)]
    pub key_template: Option<String>,
    /// How serious it is. Without it, every stage that goes by classes denies.
    #[serde(default)]
    pub classes: Option<Classes>,
    /// Whether it must have a way back.
    #[serde(default)]
    pub requires_compensation: bool,
    /// The compensation that undoes it.
    #[serde(default)]
    pub compensation: Option<String>,
    /// Why there is none, where there is none.
    #[serde(default)]
    pub justification: Option<String>,
    /// The effect that this one takes back, where it takes one back exactly.
    #[serde(default)]
    pub inverse_of: Option<String>,
    /// What it costs, in units; the price of the connector's operation unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_units: Option<u64>,
}

impl EffectType {
    /// An effect of this name. Without a compensation or a reason for none it is refused.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            key_template: None,
            classes: None,
            requires_compensation: false,
            compensation: None,
            justification: None,
            inverse_of: None,
            cost_units: None,
        }
    }

    /// The receiver's key, such as `deal:{customer_id}`.
    pub fn key(mut self, template: impl Into<String>) -> Self {
        self.key_template = Some(template.into());
        self
    }

    /// How serious it is.
    pub fn classes(mut self, classes: Classes) -> Self {
        self.classes = Some(classes);
        self
    }

    /// What undoes it.
    pub fn undone_by(mut self, compensation: impl Into<String>) -> Self {
        self.compensation = Some(compensation.into());
        self.requires_compensation = true;
        self
    }

    /// Why nothing undoes it.
    pub fn not_undone(mut self, because: impl Into<String>) -> Self {
        self.justification = Some(because.into());
        self
    }

    /// It takes another effect back, exactly.
    pub fn inverse_of(mut self, effect: impl Into<String>) -> Self {
        self.inverse_of = Some(effect.into());
        self
    }

    /// What it costs, in the units of all prices and budgets.
    pub fn costs(mut self, units: u64) -> Self {
        self.cost_units = Some(units);
        self
    }

    /// Refuses a declaration that does not say how it is undone.
    pub fn check(&self) -> Result<()> {
        key::check("effect type", &self.name)?;
        if self.cost_units.is_some_and(|units| units > limits::COST_UNITS) {
            return Err(self.wrong("costs more than anything may"));
        }
        if let Some(text) = &self.key_template {
            Template::parse(text).map_err(|e| {
                self.wrong(&format!("has a key_template that is none: {}", e.message()))
            })?;
        }
        let said = self.justification.as_deref().is_some_and(|why| !why.trim().is_empty());
        match (&self.compensation, said) {
            (Some(_), false) => Ok(()),
            (None, true) if !self.requires_compensation => Ok(()),
            (Some(_), true) => Err(self.wrong("has a compensation and a reason for having none")),
            (None, true) => Err(self.wrong("requires a compensation and says why it has none")),
            (None, false) => Err(self.wrong(
                "names no compensation, and no reason for having none; say undone_by or not_undone",
            )),
        }
    }

    fn wrong(&self, why: &str) -> Error {
        Error::invalid("SF-0803", format!("effect \"{}\" {why}", self.name))
    }
}

/// What the ledger needs to know of an effect about to be performed.
#[derive(Debug, Clone, PartialEq)]
pub struct EffectSpec {
    /// Its type.
    pub effect_type: String,
    /// The key by which its receiver knows it.
    pub key: String,
    /// What may be repeated after a crash.
    pub class: EffectClass,
    /// What it is performed with, as canonical JSON.
    pub payload: String,
    /// The effect it undoes, while a compensation runs.
    pub undoes: Option<String>,
    /// The compensation that runs.
    pub compensation: Option<String>,
    /// What it stands for in a dry run, as JSON.
    pub dry: Option<String>,
}

impl EffectSpec {
    /// What an approval of it is bound to: exactly what will be done.
    pub fn digest(&self) -> String {
        crate::json::digest(format!("{}\n{}\n{}", self.effect_type, self.key, self.payload))
    }
}

#[cfg(test)]
mod tests;
