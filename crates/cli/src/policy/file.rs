//! A file of policies: who may do what, what connectors are meant for, and a chain for each command
//! type. What a program says in code, as far as policies go by it.
//!
//! Invariants: an unknown field is an error; stages in Cedar are loaded only by a build that has
//! Cedar, and refused by any other, so that no stage is silently left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;
use steadfast::connector::Operation;
use steadfast::policy::Classes;
use steadfast::{CommandType, Deed, EffectType, Governance, Ingress, Trial};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    grants: Vec<Grant>,
    #[serde(default)]
    connectors: Vec<Scope>,
    #[serde(default)]
    cedar: Vec<Cedar>,
    commands: BTreeMap<String, Chain>,
    /// Where it was, which is where the files are that it names.
    #[serde(skip)]
    folder: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Grant {
    principal: String,
    allow: Vec<String>,
}

/// What a connector is meant for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scope {
    name: String,
    #[serde(default)]
    reads: Vec<String>,
    #[serde(default)]
    writes: Vec<String>,
}

/// A stage whose rules are policies in Cedar, and the fields of payloads that they look at.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "cedar"), allow(dead_code, reason = "refused without being read"))]
struct Cedar {
    stage: String,
    policies: PathBuf,
    #[serde(default)]
    payload: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chain {
    policies: Vec<String>,
    #[serde(default)]
    requires: Vec<String>,
    #[serde(default)]
    calls: Vec<String>,
    #[serde(default)]
    classes: Option<Classes>,
    #[serde(default)]
    agent: bool,
    #[serde(default)]
    effects: BTreeMap<String, Declared>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    #[serde(default)]
    classes: Option<Classes>,
    #[serde(default)]
    key: Option<String>,
    /// The connector that performs it and what that is asked, such as `crm POST /deals`.
    #[serde(default)]
    via: Option<String>,
}

/// A command, as a file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(rename = "type")]
    pub(super) command_type: String,
    requested_by: String,
    payload: Value,
    #[serde(default)]
    ingress: Option<Ingress>,
    #[serde(default)]
    effects: Vec<Doing>,
    #[serde(default)]
    calls: Vec<Calling>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Doing {
    #[serde(rename = "type")]
    effect_type: String,
    payload: Value,
    #[serde(default)]
    via: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Calling {
    operation: String,
    #[serde(default)]
    input: Value,
}

/// Reads a text, and says of which file an error is.
fn text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn via(text: &str) -> anyhow::Result<(&str, &str)> {
    text.split_once(' ').with_context(|| format!("\"{text}\" is not \"connector operation\""))
}

impl File {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let file =
            toml::from_str(&text(path)?).with_context(|| format!("in {}", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { folder, ..file })
    }

    pub(super) fn governance(&self) -> anyhow::Result<Governance> {
        let mut all = Governance::new();
        for grant in &self.grants {
            all = all.grant(grant.principal.clone(), grant.allow.clone());
        }
        for scope in &self.connectors {
            let reads = scope.reads.iter().map(Operation::read);
            let writes = scope.writes.iter().map(Operation::write);
            all = all.scope(&scope.name, reads.chain(writes))?;
        }
        self.cedar.iter().try_fold(all, |all, cedar| cedar.load(&self.folder, all))
    }

    pub(super) fn has(&self, command_type: &str) -> bool {
        self.commands.contains_key(command_type)
    }

    pub(super) fn contract(&self, name: &str) -> anyhow::Result<CommandType> {
        let chain = self.chain(name)?;
        let effects = chain.effects.iter().map(|(name, declared)| {
            let effect = EffectType {
                classes: declared.classes,
                key_template: declared.key.clone(),
                ..EffectType::new(name)
            };
            (name.clone(), effect)
        });
        let contract = CommandType {
            policies: chain.policies.clone(),
            requires: chain.requires.clone(),
            calls: chain.calls.clone(),
            classes: chain.classes,
            agent: chain.agent,
            effects: effects.collect(),
            ..CommandType::new(name)
        };
        contract.check()?;
        Ok(contract)
    }

    fn chain(&self, name: &str) -> anyhow::Result<&Chain> {
        self.commands.get(name).with_context(|| {
            let known: Vec<_> = self.commands.keys().map(String::as_str).collect();
            format!("the file has no chain for \"{name}\"; it has: {}", known.join(", "))
        })
    }

    /// A command of a file: with what it says it does, or else with what its type declares.
    pub(super) fn trial(&self, asked: &Asked) -> anyhow::Result<Trial> {
        let chain = self.chain(&asked.command_type)?;
        let mut trial = Trial::new(asked.payload.clone(), &asked.requested_by);
        if let Some(door) = asked.ingress {
            trial = trial.ingress(door);
        }
        for doing in &asked.effects {
            let declared = chain.effects.get(&doing.effect_type).and_then(|d| d.via.as_ref());
            let way = doing.via.as_ref().or(declared);
            let deed = Deed::effect(&doing.effect_type).with(doing.payload.clone());
            trial = trial.does(by(deed, way)?);
        }
        for call in &asked.calls {
            let (connector, operation) = via(&call.operation)?;
            trial = trial.does(Deed::call(connector, operation).with(call.input.clone()));
        }
        if asked.effects.is_empty() && asked.calls.is_empty() {
            for deed in chain.deeds()? {
                trial = trial.does(deed);
            }
        }
        Ok(trial)
    }
}

fn by(deed: Deed, way: Option<&String>) -> anyhow::Result<Deed> {
    Ok(match way {
        Some(way) => {
            let (connector, operation) = via(way)?;
            deed.via(connector, operation)
        }
        None => deed,
    })
}

impl Chain {
    /// Everything that it declares; writes are tried with their effects.
    fn deeds(&self) -> anyhow::Result<Vec<Deed>> {
        let ways: Vec<_> = self.effects.values().filter_map(|d| d.via.as_ref()).collect();
        let effects = self.effects.iter().map(|(name, d)| by(Deed::effect(name), d.via.as_ref()));
        let calls = self.calls.iter().filter(|call| !ways.contains(call)).map(|call| {
            let (connector, operation) = via(call)?;
            Ok(Deed::call(connector, operation))
        });
        effects.chain(calls).collect()
    }
}

impl Cedar {
    #[cfg(feature = "cedar")]
    fn load(&self, folder: &Path, all: Governance) -> anyhow::Result<Governance> {
        let stage = steadfast::policy::Stage::parse(&self.stage)
            .with_context(|| format!("\"{}\" is no stage", self.stage))?;
        let path = folder.join(&self.policies);
        let payload = self.payload.as_ref().map(|path| text(&folder.join(path))).transpose()?;
        let loaded =
            steadfast_policy_cedar::CedarStage::load(stage, &text(&path)?, payload.as_deref());
        Ok(all.policy(loaded.with_context(|| format!("in {}", path.display()))?))
    }

    #[cfg(not(feature = "cedar"))]
    fn load(&self, _: &Path, _: Governance) -> anyhow::Result<Governance> {
        anyhow::bail!(
            "stage \"{}\" is written in Cedar, which this build does not have; build it with \
             --features cedar",
            self.stage
        )
    }
}
