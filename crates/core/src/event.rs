//! Events as facts: what each one says, how it is sealed into a chain, and how it looks outside.
//!
//! Invariants: a digest covers every column of its row, each with its length before it, so two
//! different rows never have the same text to digest; a link covers its digest and everything
//! before it, so a row cannot be changed, removed, added or moved without breaking a link.
//! Deliberately absent: keys. Whoever can rewrite the whole table can make another whole chain; an
//! anchor (a head that was noted elsewhere) shows that too.

mod chain;
mod cloud;
mod removal;

use crate::time::Timestamp;

pub use chain::{Anchor, Break, Link, LinkBody, Walk};
pub use cloud::CloudEvent;
pub use removal::Removal;

use sha2::{Digest, Sha256};

/// What one row of `domain_events` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The workspace.
    pub workspace: &'a str,
    /// The event's id, unique in the workspace.
    pub event_id: &'a str,
    /// The command it concerns; empty for none.
    pub command_id: &'a str,
    /// `event`, `audit` or `agent_step`.
    pub purpose: &'a str,
    /// What happened.
    pub event_type: &'a str,
    /// More about it, as JSON.
    pub payload: &'a str,
    /// Who did it.
    pub actor: &'a str,
    /// The trace.
    pub trace_id: &'a str,
    /// When.
    pub created_at: Timestamp,
}

impl Facts<'_> {
    /// Events of one key keep their order wherever they are sent: the command, else the event.
    pub fn key(&self) -> &str {
        if self.command_id.is_empty() { self.event_id } else { self.command_id }
    }

    /// The digest of the whole row, in hexadecimal.
    pub fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        let texts = [
            "steadfast event 1",
            self.workspace,
            self.event_id,
            self.command_id,
            self.purpose,
            self.event_type,
            self.payload,
            self.actor,
            self.trace_id,
        ];
        for text in texts {
            hasher.update((text.len() as u64).to_be_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(self.created_at.as_micros().to_be_bytes());
        hex(&hasher.finalize())
    }
}

/// What a workspace's chain begins with.
pub fn genesis(workspace: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(b"steadfast chain 1\n");
    hasher.update(workspace.as_bytes());
    hex(&hasher.finalize())
}

/// The link after another one.
pub fn link(before: &str, digest: &str) -> String {
    // Both are hexadecimal of a fixed length, so their border is never in doubt.
    let mut hasher = Sha256::new();
    hasher.update(before.as_bytes());
    hasher.update(digest.as_bytes());
    hex(&hasher.finalize())
}

/// The order in which events are sealed: by time, but a command's moves as it numbered them. The
/// clocks of two processes may disagree by a little; a command's own numbers never do. Given in the
/// order of their times.
pub fn in_order<T>(events: &mut [T], command_and_id: impl Fn(&T) -> (String, String)) {
    use std::collections::HashMap;
    let mut places: HashMap<String, Vec<usize>> = HashMap::new();
    let mut named: Vec<_> = events.iter().map(&command_and_id).collect();
    for (at, (command, event_id)) in named.iter().enumerate() {
        // What happened besides has no number; its time says where it belongs.
        if !command.is_empty() && is_move(command, event_id) {
            places.entry(command.clone()).or_default().push(at);
        }
    }
    for places in places.values() {
        // A few events each: the simplest sort is good enough.
        for end in 1..places.len() {
            for at in (1..=end).rev() {
                let (a, b) = (places[at - 1], places[at]);
                if named[a].1 <= named[b].1 {
                    break;
                }
                named.swap(a, b);
                events.swap(a, b);
            }
        }
    }
}

/// Whether an id is that of a move of a command: its number stands alone behind the command's id.
fn is_move(command: &str, event_id: &str) -> bool {
    let number = event_id.strip_prefix("evt_").and_then(|rest| rest.strip_prefix(command));
    number.is_some_and(|rest| {
        rest.strip_prefix('_').is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// The event of the same command that comes before one, if its id tells.
pub fn predecessor(event_id: &str) -> Option<String> {
    let (stem, number) = event_id.rsplit_once('_')?;
    let before = number.parse::<u64>().ok()?.checked_sub(1)?;
    Some(format!("{stem}_{before:0width$}", width = number.len()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts<'static> {
        Facts {
            workspace: "w",
            event_id: "evt_c_000001",
            command_id: "c",
            purpose: "event",
            event_type: "command.created",
            payload: "{}",
            actor: "user:1",
            trace_id: "t",
            created_at: Timestamp::from_micros(5),
        }
    }

    /// R30
    #[test]
    fn every_column_and_every_border_between_columns_is_in_the_digest() {
        let whole = facts();
        let others = [
            Facts { workspace: "v", ..whole },
            Facts { event_id: "e", ..whole },
            Facts { command_id: "d", ..whole },
            Facts { purpose: "audit", ..whole },
            Facts { event_type: "command.create", payload: "d{}", ..whole },
            Facts { payload: "{ }", ..whole },
            Facts { actor: "user:1t", trace_id: "", ..whole },
            Facts { trace_id: "", ..whole },
            Facts { created_at: Timestamp::from_micros(6), ..whole },
        ];
        let mut seen: Vec<_> = others.iter().map(Facts::digest).chain([whole.digest()]).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), others.len() + 1);
        assert_eq!(whole.digest().len(), 64);
        assert_ne!(genesis("a"), genesis("b"));
        assert_ne!(link(&genesis("a"), &seen[0]), link(&genesis("b"), &seen[0]));
    }

    #[test]
    fn a_command_keeps_its_own_order_when_clocks_disagree() {
        // What has no number stays where its time has put it.
        let mut ids =
            ["evt_a_2", "x", "evt_b_1", "evt_a_s00ff.000001", "evt_a_1", "evt_a_0", "evt_b_0"];
        in_order(&mut ids, |id| {
            let command = id.strip_prefix("evt_").map_or("", |id| &id[..1]);
            (command.to_owned(), (*id).to_owned())
        });
        let wanted =
            ["evt_a_0", "x", "evt_b_0", "evt_a_s00ff.000001", "evt_a_1", "evt_a_2", "evt_b_1"];
        assert_eq!(ids, wanted);
        assert_eq!(predecessor("evt_c_000010").as_deref(), Some("evt_c_000009"));
        assert_eq!(predecessor("evt_c_000000"), None);
        assert_eq!(predecessor("evt_t@00ff"), None);
    }
}
