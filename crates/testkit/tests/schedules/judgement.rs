//! The last judgement on a life: everything that is stored, counted against the calendar.
//!
//! Invariants: what is looked at here is the whole store, read through a client, and no verdict of
//! the policies is needed: each nominal time has its row, each fired row its command, each missed
//! row its event, and there is nothing else.

use std::collections::BTreeMap;

use serde_json::Value;
use steadfast::{
    Client, CommandRow, CommandStatus, ListCommands, ListEvents, Slot, SlotStatus, Timestamp,
};

use crate::life::{Life, read};
use crate::policy::ID;

/// Judges a life that has come to rest.
pub(crate) async fn judge(life: &Life) {
    let client = &life.clients[0];
    let from_the_first = Timestamp::from_micros(0);
    let slots = client.schedule(ID).slots_between(from_the_first, Timestamp::NEVER).await.unwrap();
    let rows: Vec<_> = slots.iter().map(read).collect();
    assert!(rows == life.rows, "what was once decided has changed");
    each_nominal_time_of_a_definition_has_one_row(life, &slots);
    nothing_fired_while_it_was_not_to(life, &slots);
    each_fired_slot_has_one_command(&slots, commands(client).await);
    each_missed_slot_has_one_event(&slots, client).await;
}

fn each_nominal_time_of_a_definition_has_one_row(life: &Life, slots: &[Slot]) {
    let of = |since: i64, last: i64| {
        slots.iter().filter(move |slot| (since..=last).contains(&slot.revision))
    };
    let mut counted = 0;
    for lifetime in &life.world().lifetimes {
        let wanted = lifetime.slots(life.now);
        let there: Vec<_> =
            of(lifetime.since, lifetime.revision).map(|slot| slot.nominal_at).collect();
        assert!(
            wanted == there,
            "revision {} from {} until {:?}: {} nominal times, {} rows",
            lifetime.revision,
            lifetime.from,
            lifetime.end,
            wanted.len(),
            there.len()
        );
        // Said once more in other words: a definition has no past.
        assert!(there.iter().all(|nominal| *nominal > lifetime.from));
        counted += there.len();
    }
    assert_eq!(counted, slots.len(), "rows that belong to no definition");
}

fn nothing_fired_while_it_was_not_to(life: &Life, slots: &[Slot]) {
    for slot in slots.iter().filter(|slot| slot.status == SlotStatus::Fired) {
        let during = |(from, until): &&(Timestamp, Timestamp)| {
            *from < slot.decided_at && slot.decided_at < *until
        };
        let absence = life.world().absences.iter().find(during);
        assert!(absence.is_none(), "{} fired in {absence:?}", slot.nominal_at.iso());
        assert!(slot.nominal_at <= slot.decided_at, "{} fired early", slot.nominal_at.iso());
    }
}

fn each_fired_slot_has_one_command(slots: &[Slot], commands: Vec<CommandRow>) {
    let count = commands.len();
    let mut commands: BTreeMap<_, _> =
        commands.into_iter().map(|row| (row.workflow_id.clone(), row)).collect();
    assert_eq!(commands.len(), count, "two commands have the same run");
    for slot in slots {
        let command = match slot.status {
            SlotStatus::Fired => {
                commands.remove(&format!("activity-{ID}:{}", slot.nominal_at.iso()))
            }
            _ => None,
        };
        let id = command.as_ref().map_or("", |command| &command.command_id);
        assert_eq!(slot.command_id, id, "{} is {}", slot.nominal_at.iso(), slot.status);
        let Some(command) = command else { continue };
        assert_eq!(command.status, CommandStatus::Queued);
        assert_eq!(command.requested_by, "system:scheduler");
        let payload: Value = serde_json::from_str(&command.payload).unwrap();
        assert_eq!(payload["at"], slot.nominal_at.iso());
        assert_eq!(payload["first"], slot.window_from.unwrap_or(slot.nominal_at).iso());
        assert_eq!(payload["last"], slot.nominal_at.iso());
    }
    assert!(commands.is_empty(), "commands of no slot: {:?}", commands.keys());
}

async fn each_missed_slot_has_one_event(slots: &[Slot], client: &Client) {
    let mut told = Vec::new();
    let mut after = None;
    loop {
        let event_type = Some("schedule.missed".to_owned());
        let which = ListEvents { event_type, after, limit: 1000, ..Default::default() };
        let page = client.events(which).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some((last.created_at, last.event_id.clone()));
        told.extend(page.into_iter().map(|event| {
            let payload: Value = serde_json::from_str(&event.payload).unwrap();
            assert_eq!(payload["trigger_id"], ID);
            let text = |field: &str| payload[field].as_str().unwrap().to_owned();
            (text("scheduled_for"), text("reason"))
        }));
    }
    let missed = slots.iter().filter(|slot| slot.status == SlotStatus::Missed);
    let mut missed: Vec<_> =
        missed.map(|slot| (slot.nominal_at.iso(), slot.reason.clone())).collect();
    told.sort();
    missed.sort();
    assert!(told == missed, "{} events for {} missed slots", told.len(), missed.len());
}

async fn commands(client: &Client) -> Vec<CommandRow> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let which = ListCommands { after, limit: 1000, ..Default::default() };
        let page = client.commands(which).await.unwrap();
        all.extend(page.commands);
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}
