//! Grants: which principal may do what.
//!
//! Invariants: who is not listed may do nothing; a grant covers its parts
//! (`warehouse.write` covers `warehouse.write/acme_sales`), and `*` at its end whatever follows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Capabilities by principal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants(BTreeMap<String, Vec<String>>);

impl Grants {
    /// Lets a principal do these things, besides what it may do already. A `*` at the end of the
    /// principal stands for all whose names begin so.
    pub fn allow<S: Into<String>>(
        &mut self,
        principal: impl Into<String>,
        capabilities: impl IntoIterator<Item = S>,
    ) {
        let held = self.0.entry(principal.into()).or_default();
        held.extend(capabilities.into_iter().map(Into::into));
    }

    /// What a principal may do.
    pub fn of(&self, principal: &str) -> Vec<String> {
        let is = |pattern: &str| match pattern.strip_suffix('*') {
            Some(start) => principal.starts_with(start),
            None => principal == pattern,
        };
        let held = self.0.iter().filter(|(pattern, _)| is(pattern));
        held.flat_map(|(_, capabilities)| capabilities.clone()).collect()
    }
}

/// Whether a grant covers a need.
pub fn covers(grant: &str, need: &str) -> bool {
    match grant.strip_suffix('*') {
        Some(start) => need.starts_with(start),
        None => {
            need.strip_prefix(grant).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
    }
}
