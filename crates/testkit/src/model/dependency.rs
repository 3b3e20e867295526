//! Commands that wait for commands.
//!
//! Invariants: nobody waits in a circle; whoever waits begins when all it waits for is there, and
//! learns at once when something can no longer come.

use steadfast_core::{CommandEvent, CommandStatus, Error, ErrorClass, Timestamp};
use steadfast_store::op::{Depend, Depended, Parent, Start, Started};

use super::command::Step;
use super::{Model, key};

/// Where a command stands with what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    Met,
    Waiting,
    Lost { parent: String, propagate: bool },
}

pub(super) fn standing<'a>(parents: impl Iterator<Item = (&'a Parent, CommandStatus)>) -> Standing {
    let mut so_far = Standing::Met;
    for (parent, status) in parents {
        let met = parent.required.map_or(status.is_terminal(), |wanted| wanted == status);
        so_far = match so_far {
            lost @ Standing::Lost { .. } => return lost,
            standing if met => standing,
            _ if status.is_terminal() => {
                Standing::Lost { parent: parent.command_id.clone(), propagate: parent.propagate }
            }
            _ => Standing::Waiting,
        };
    }
    so_far
}

pub(super) fn lost(parent: &str) -> Error {
    let text = format!("command \"{parent}\", which this one waits for, did not end as required");
    Error::new(ErrorClass::Cancelled, "SF-0507", text)
}

impl Model {
    pub(super) fn release_if_over(&mut self, ws: &str, command_id: &str, now: Timestamp) {
        if self.status_of(ws, command_id).is_some_and(CommandStatus::is_terminal) {
            self.release_commands(ws, command_id, now);
        }
    }

    pub(super) fn release_commands(&mut self, ws: &str, command_id: &str, now: Timestamp) {
        let mut ended = vec![command_id.to_owned()];
        while let Some(id) = ended.pop() {
            for child in self.dependents(ws, &id) {
                if self.release_command(ws, &child, now) {
                    ended.push(child);
                }
            }
        }
    }

    fn dependents(&self, ws: &str, parent: &str) -> Vec<String> {
        let waits = |id: &str| {
            let status = self.status_of(ws, id);
            matches!(status, Some(CommandStatus::Validated | CommandStatus::Approved))
        };
        let of = self.dependencies.iter().filter(|((w, _, p), _)| w == ws && p == parent);
        of.map(|((_, child, _), _)| child.clone()).filter(|child| waits(child)).collect()
    }

    pub(super) fn parents_of(&self, ws: &str, command_id: &str) -> Vec<(Parent, CommandStatus)> {
        let of = self.dependencies.iter().filter(|((w, c, _), _)| w == ws && c == command_id);
        of.filter_map(|(_, parent)| Some((parent.clone(), self.status_of(ws, &parent.command_id)?)))
            .collect()
    }

    /// Begins or ends a command that waited; true if it ended.
    pub(super) fn release_command(&mut self, ws: &str, child: &str, now: Timestamp) -> bool {
        let parents = self.parents_of(ws, child);
        let actor = "system:dependency";
        let approved = self.status_of(ws, child) == Some(CommandStatus::Approved);
        match standing(parents.iter().map(|(parent, status)| (parent, *status))) {
            Standing::Waiting => false,
            Standing::Lost { parent, propagate } => {
                let cancels = propagate || approved;
                let event = if cancels { CommandEvent::Cancel } else { CommandEvent::Fail };
                let reason = lost(&parent);
                let step = Step { error: Some(&reason), ..Step::new(event, actor, now) };
                self.step(ws, child, &step)
            }
            Standing::Met => {
                let Some(command) = self.commands.get(&key(ws, child)).cloned() else {
                    return false;
                };
                let context = Some(command.row.context);
                let start = Start { ready_at: now, now, claim: None, context, ..command.start };
                if matches!(self.start(&start), Started::New(_)) {
                    self.step(ws, child, &Step::new(CommandEvent::Queue, actor, now));
                    return false;
                }
                let reason = Error::new(
                    ErrorClass::Conflict,
                    "SF-0508",
                    "the command's run cannot be started: its id or its queue is not free",
                );
                let event = if approved { CommandEvent::Cancel } else { CommandEvent::Fail };
                let fail = Step::new(event, actor, now);
                self.step(ws, child, &Step { error: Some(&reason), ..fail });
                true
            }
        }
    }

    pub(super) fn depend(&mut self, op: &Depend) -> Depended {
        let ws = op.workspace.as_str();
        let Some(parent) = self.status_of(ws, &op.parent.command_id) else {
            return Depended::NotFound(op.parent.command_id.clone());
        };
        let Some(status) = self.status_of(ws, &op.command_id) else {
            return Depended::NotFound(op.command_id.clone());
        };
        if let Some(way) = self.way_up(ws, &op.parent.command_id, &op.command_id) {
            return Depended::Cycle(way);
        }
        if status != CommandStatus::Validated {
            return Depended::TooLate(status);
        }
        let at = (ws.to_owned(), op.command_id.clone(), op.parent.command_id.clone());
        if !self.dependencies.has(&at) {
            self.dependencies.put(at, op.parent.clone());
        }
        let after = standing([(&op.parent, parent)].into_iter());
        if matches!(after, Standing::Lost { .. }) {
            self.release_command(ws, &op.command_id, op.now);
            self.release_commands(ws, &op.command_id, op.now);
        }
        Depended::Done
    }

    fn way_up(&self, ws: &str, from: &str, to: &str) -> Option<Vec<String>> {
        let mut ways = std::collections::VecDeque::from([vec![from.to_owned()]]);
        let mut seen = vec![from.to_owned()];
        while let Some(way) = ways.pop_front() {
            let at = way.last().cloned()?;
            if at == to {
                return Some(way);
            }
            for (parent, _) in self.parents_of(ws, &at) {
                if !seen.contains(&parent.command_id) {
                    seen.push(parent.command_id.clone());
                    ways.push_back([&way[..], &[parent.command_id]].concat());
                }
            }
        }
        None
    }
}
