//! Commands and events, as they are looked up.

use steadfast_store::op::{
    CommandDetail, CommandPage, EventPage, EventRow, FoundCommand, GetCommand, ListCommands,
    ListEvents,
};

use super::Model;

impl Model {
    pub(super) fn get_command(&self, op: &GetCommand) -> FoundCommand {
        let ws = op.workspace.as_str();
        let Some(command) = self.find_command(ws, &op.which) else {
            return FoundCommand(None);
        };
        let id = command.command_id.as_str();
        let parents = self.parents_of(ws, id).into_iter().map(|(parent, _)| parent);
        let mut duplicates: Vec<_> = self
            .duplicates
            .iter()
            .filter(|((w, c, _), _)| w == ws && c == id)
            .map(|((_, _, nonce), duplicate)| (duplicate.at, *nonce, duplicate.clone()))
            .collect();
        duplicates.sort_by_key(|(at, nonce, _)| (*at, *nonce));
        duplicates.truncate(100);
        let duplicates = duplicates.into_iter().map(|(_, _, duplicate)| duplicate).collect();
        let after = parents.collect();
        FoundCommand(Some(Box::new(CommandDetail { command, after, duplicates })))
    }

    pub(super) fn list_commands(&self, op: &ListCommands) -> CommandPage {
        let mut found: Vec<_> = self
            .commands_of(&op.workspace)
            .map(|command| command.row.clone())
            .filter(|row| op.command_type.as_ref().is_none_or(|t| row.command_type == *t))
            .filter(|row| op.status.is_empty() || op.status.contains(&row.status))
            .filter(|row| op.after.as_ref().is_none_or(|after| row.command_id < *after))
            .collect();
        found.sort_by_key(|row| std::cmp::Reverse(row.command_id.clone()));
        let limit = op.limit;
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|c| c.command_id.clone());
        CommandPage { commands: found, next }
    }

    pub(super) fn list_events(&self, op: &ListEvents) -> EventPage {
        let mut found: Vec<_> = self
            .events
            .iter()
            .filter(|((ws, _), _)| *ws == op.workspace)
            .map(|(_, event)| event.clone())
            .filter(|event| op.command_id.as_ref().is_none_or(|id| event.command_id == *id))
            .filter(|event| op.event_type.as_ref().is_none_or(|t| event.event_type == *t))
            .filter(|event| op.type_prefix.as_ref().is_none_or(|t| event.event_type.starts_with(t)))
            .filter(|event| op.purpose.as_ref().is_none_or(|p| event.purpose == *p))
            .filter(|event| op.since.is_none_or(|since| event.created_at >= since))
            .filter(|event| op.until.is_none_or(|until| event.created_at < until))
            .filter(|event| op.after.as_ref().is_none_or(|after| event.cursor() > *after))
            .collect();
        found.sort_by_key(EventRow::cursor);
        found.truncate(op.limit);
        EventPage(found)
    }
}
