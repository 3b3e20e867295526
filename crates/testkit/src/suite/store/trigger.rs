//! Triggers: written over what was read, every slot decided once, executions of activities.

use steadfast_core::schedule::{Overlap, SlotStatus};
use steadfast_core::{CommandStatus, Timestamp};
use steadfast_store::Store;
use steadfast_store::op::{
    ActivityRow, Advance, Advanced, Backfill, Backfilled, ListActivities, ListEvents, ListSlots,
    ListTriggers, LogActivity, Logged, NewSlot, PutTrigger, SlotRow, Submitted, TaskRow,
    TriggerPut, TriggerRow, TriggerState,
};

use super::kit::{Kit, at};

super::table! {
    a_trigger_is_written_over_the_version_that_was_read,
    slots_are_decided_by_the_first_scheduler,
    a_slot_that_was_filled_by_hand_was_not_missed,
    a_slot_that_was_missed_is_filled_by_hand,
    a_slot_is_skipped_while_the_command_before_is_not_over,
    an_execution_of_an_activity_is_noted_once,
}

fn trigger(id: &str, version: i64) -> TriggerRow {
    TriggerRow {
        trigger_id: id.to_owned(),
        kind: "cron".to_owned(),
        spec: format!("{{\"v\":{version}}}"),
        revision: 1,
        source: "code".to_owned(),
        state: TriggerState::Active,
        reason: String::new(),
        absent_from: at(0),
        absent_until: at(0),
        cursor_at: at(0),
        gap: String::new(),
        due_at: at(10),
        version,
        created_at: at(0),
        updated_at: at(0),
    }
}

async fn put(k: &Kit<'_>, trigger: TriggerRow) -> TriggerPut {
    k.ask(PutTrigger { workspace: k.ws.clone(), trigger }).await
}

async fn stored(k: &Kit<'_>, id: &str) -> TriggerRow {
    k.ask(ListTriggers::one(k.ws.clone(), id)).await.0.remove(0)
}

fn slot(nominal: i64, status: SlotStatus) -> SlotRow {
    SlotRow {
        nominal_at: at(nominal),
        status,
        reason: String::new(),
        lag_us: 0,
        command_id: String::new(),
        into_at: None,
        window_from: None,
        revision: 1,
        decided_at: at(nominal),
    }
}

async fn slots(k: &Kit<'_>, trigger_id: &str) -> Vec<SlotRow> {
    let (workspace, trigger_id) = (k.ws.clone(), trigger_id.to_owned());
    let (from, until) = (Timestamp::from_micros(0), Timestamp::NEVER);
    k.ask(ListSlots { workspace, trigger_id, from, until, latest: false, limit: 100 }).await.0
}

fn advance(k: &Kit<'_>, id: &str, version: i64, to: i64, slots: Vec<NewSlot>) -> Advance {
    Advance {
        workspace: k.ws.clone(),
        trigger_id: id.to_owned(),
        version,
        overlap: Overlap::Skip,
        slots,
        cursor_at: at(to),
        gap: String::new(),
        due_at: at(to + 10),
        now: at(to),
    }
}

fn missed(nominal: i64) -> NewSlot {
    NewSlot { slot: slot(nominal, SlotStatus::Missed), fire: None, makes_up: false }
}

/// A slot that makes a command of that id.
fn fires(k: &Kit<'_>, nominal: i64, command_id: &str) -> NewSlot {
    let fire = Some(Box::new(k.submit(command_id, at(nominal))));
    NewSlot { slot: slot(nominal, SlotStatus::Fired), fire, makes_up: false }
}

fn backfill(k: &Kit<'_>, trigger_id: &str, nominal: i64, command_id: &str) -> Backfill {
    let slot = SlotRow { decided_at: at(90), ..slot(nominal, SlotStatus::Fired) };
    let fire = Box::new(k.submit(command_id, at(90)));
    Backfill { trigger_id: trigger_id.to_owned(), slot, fire }
}

async fn a_trigger_is_written_over_the_version_that_was_read(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(put(&k, trigger("t", 0)).await, TriggerPut::Done);
    assert_eq!(put(&k, trigger("t", 0)).await, TriggerPut::Done, "the answer was lost");
    let other = TriggerRow { spec: "{\"other\":1}".to_owned(), ..trigger("t", 0) };
    assert_eq!(put(&k, other.clone()).await, TriggerPut::Stale);
    assert_eq!(stored(&k, "t").await, TriggerRow { version: 1, ..trigger("t", 0) });
    let second = trigger("t", 1);
    assert_eq!(put(&k, second.clone()).await, TriggerPut::Done);
    assert_eq!(stored(&k, "t").await, TriggerRow { version: 2, ..second.clone() });
    for version in [0, 1, 3] {
        let late = TriggerRow { version, ..other.clone() };
        assert_eq!(put(&k, late).await, TriggerPut::Stale, "{version}");
    }
    assert_eq!(stored(&k, "t").await, TriggerRow { version: 2, ..second });
}

async fn slots_are_decided_by_the_first_scheduler(store: &dyn Store) {
    let k = Kit::new(store);
    put(&k, trigger("t", 0)).await;
    let first = k.ask(advance(&k, "t", 1, 20, vec![fires(&k, 10, "c")])).await;
    let Advanced::Done(done) = first else { panic!("{first:?}") };
    assert_eq!((done[0].status, &*done[0].command_id), (SlotStatus::Fired, "c"));
    let late = advance(&k, "t", 1, 30, vec![fires(&k, 10, "d")]);
    assert_eq!(k.ask(late).await, Advanced::Stale);
    let now = stored(&k, "t").await;
    assert_eq!((now.version, now.cursor_at, now.due_at), (2, at(20), at(30)));
    assert_eq!(slots(&k, "t").await, done);
    assert_eq!(k.find("run-d").await, None);
}

async fn a_slot_that_was_filled_by_hand_was_not_missed(store: &dyn Store) {
    let k = Kit::new(store);
    put(&k, trigger("t", 0)).await;
    let filled = k.ask(backfill(&k, "t", 10, "c")).await;
    let new = Submitted::New(CommandStatus::Queued, None);
    assert_eq!(filled, Backfilled { submitted: new, status: Some(SlotStatus::Fired) });
    let by_hand = slots(&k, "t").await;
    let reason = "nobody was there".to_owned();
    let mut late = missed(10);
    late.slot.reason = reason;
    assert!(matches!(k.ask(advance(&k, "t", 1, 20, vec![late])).await, Advanced::Done(_)));
    assert_eq!(slots(&k, "t").await, by_hand);
    let event_type = Some("schedule.missed".to_owned());
    let list = ListEvents { workspace: k.ws.clone(), event_type, limit: 9, ..Default::default() };
    assert_eq!(k.ask(list).await.0, []);
}

/// That slot of that trigger, and no other.
async fn a_slot_that_was_missed_is_filled_by_hand(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["t", "u"] {
        put(&k, trigger(id, 0)).await;
        k.ask(advance(&k, id, 1, 30, vec![missed(10), missed(20)])).await;
    }
    let filled = k.ask(backfill(&k, "t", 10, "c")).await;
    let status = filled.status.unwrap();
    assert_ne!(status, SlotStatus::Missed);
    let found = slots(&k, "t").await;
    assert_eq!((found[0].status, &*found[0].command_id), (status, "c"));
    assert_eq!(found[1], missed(20).slot);
    assert_eq!(slots(&k, "u").await, [missed(10).slot, missed(20).slot]);
    // Again, with another command: the slot keeps what it has.
    let again = k.ask(backfill(&k, "t", 10, "d")).await;
    assert_eq!(again.status, Some(status));
    assert_eq!(slots(&k, "t").await[0].command_id, "c");
}

async fn a_slot_is_skipped_while_the_command_before_is_not_over(store: &dyn Store) {
    let k = Kit::new(store);
    put(&k, trigger("t", 0)).await;
    k.ask(advance(&k, "t", 1, 20, vec![fires(&k, 10, "c")])).await;
    let done = k.ask(advance(&k, "t", 2, 30, vec![fires(&k, 20, "d")])).await;
    let Advanced::Done(done) = done else { panic!("{done:?}") };
    assert_eq!((done[0].status, &*done[0].command_id), (SlotStatus::Skipped, ""));
    assert!(done[0].reason.ends_with(": c"), "{}", done[0].reason);
    let lease = k.lease_of(&k.ask(k.dequeue("default", "w1", 31)).await);
    k.finish(&lease).await;
    let done = k.ask(advance(&k, "t", 3, 40, vec![fires(&k, 30, "e")])).await;
    let Advanced::Done(done) = done else { panic!("{done:?}") };
    assert_eq!((done[0].status, &*done[0].command_id), (SlotStatus::Fired, "e"));
}

fn task(idx: i64) -> TaskRow {
    TaskRow {
        id: format!("task-u:mail:{idx}"),
        run_id: "u".to_owned(),
        task_type: "mail".to_owned(),
        idx,
        params: "{}".to_owned(),
        status: None,
        created_at: at(7),
    }
}

/// R71: whoever notes it again, after a crash, adds only what was not there.
async fn an_execution_of_an_activity_is_noted_once(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(k.submit("c", at(5))).await;
    let run = ActivityRow {
        run_id: "u".to_owned(),
        activity_id: "orders".to_owned(),
        definition_version: 1,
        workflow_id: "run-c".to_owned(),
        trigger_type: "cron".to_owned(),
        trigger_key: "1".to_owned(),
        context_snapshot: "{}".to_owned(),
        tasks_spawned: 2,
        scheduled_for: Some(at(4)),
        fired_at: at(9),
        window: None,
        status: CommandStatus::Succeeded,
        error: None,
        started_at: at(6),
        finished_at: at(8),
    };
    let log = |tasks: Vec<TaskRow>, finished_at| LogActivity {
        workspace: k.ws.clone(),
        run: ActivityRow { finished_at, ..run.clone() },
        tasks,
    };
    assert_eq!(k.ask(log(vec![task(0)], at(8))).await, Logged(2));
    assert_eq!(k.ask(log(vec![task(0), task(1)], at(88))).await, Logged(1));
    assert_eq!(k.ask(log(vec![task(0), task(1)], at(88))).await, Logged(0));
    let (workspace, activity_id) = (k.ws.clone(), "orders".to_owned());
    let noted = k.ask(ListActivities { workspace, activity_id, limit: 9 }).await.0;
    let fired_at = at(5);
    let wanted = (ActivityRow { fired_at, ..run.clone() }, vec![task(0), task(1)]);
    assert_eq!(noted, [wanted], "it fired when its command was made");
}
