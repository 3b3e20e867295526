//! Commands: keys, expiry, cancels, what waits for others, and what they are given later.

use steadfast_core::{CommandStatus, Error as Failure, RunStatus};
use steadfast_store::Store;
use steadfast_store::op::{
    CancelCommand, CommandCancelled, CommandDetail, CommandRef, Depend, Depended, GetCommand, Hold,
    Lease, Left, ListEvents, Parent, SettleCommands, Start, Submit, Submitted, Supplied, Supply,
    Tell, ToldOf,
};

use super::kit::{Kit, at};

super::table! {
    an_id_belongs_to_one_command,
    a_duplicate_is_counted_once_and_listed,
    a_command_whose_runs_id_is_taken_leaves_nothing,
    a_command_expires_at_its_time_and_not_before,
    a_settlement_goes_as_far_as_its_limit,
    a_worker_that_asks_for_more_time_gets_it,
    every_move_of_a_command_is_an_event_of_its_own,
    a_cancel_ends_or_begins_what_waits_for_the_command,
    an_expiry_ends_what_waits_for_the_command,
    what_is_told_is_kept_once_with_its_trace,
    a_supply_changes_the_payload_of_its_command_alone,
    a_dependency_is_kept_as_it_was_said_first,
    commands_never_wait_in_a_circle,
}

async fn detail(k: &Kit<'_>, command_id: &str) -> Option<CommandDetail> {
    let which = CommandRef::Id(command_id.to_owned());
    k.ask(GetCommand { workspace: k.ws.clone(), which }).await.0.map(|found| *found)
}

async fn status(k: &Kit<'_>, command_id: &str) -> CommandStatus {
    detail(k, command_id).await.unwrap().command.status
}

/// A submission that this request alone makes.
fn with_nonce(submit: Submit, nonce: i64) -> Submit {
    let start = Start { seed: nonce, ..(*submit.start).clone() };
    Submit { start: Box::new(start), ..submit }
}

async fn cancel(k: &Kit<'_>, command_id: &str, now: i64) -> CommandCancelled {
    let (workspace, command_id) = (k.ws.clone(), command_id.to_owned());
    let (reason, actor) = (Failure::app("not wanted"), "user:1".to_owned());
    k.ask(CancelCommand { workspace, command_id, reason, actor, now: at(now) }).await
}

async fn settle(k: &Kit<'_>, limit: usize, now: i64) -> Vec<String> {
    k.ask(SettleCommands { workspace: k.ws.clone(), left: None, limit, now: at(now) }).await.0
}

async fn leave(k: &Kit<'_>, lease: &Lease, busy: Option<i64>, now: i64) -> Vec<String> {
    let (command_id, lease, busy_until) = ("c".to_owned(), lease.clone(), busy.map(at));
    let left = Some(Left { command_id, lease, outcomes: Vec::new(), busy_until });
    k.ask(SettleCommands { workspace: k.ws.clone(), left, limit: 1, now: at(now) }).await.0
}

/// Submits `c` for `w1`, who begins it at once, and cancels it while it is executed.
async fn stopping(k: &Kit<'_>) -> Lease {
    let submit = k.submit("c", at(0));
    let start = Start { claim: Some(("w1".to_owned(), at(60))), ..(*submit.start).clone() };
    let Submitted::New(_, Some(lease)) = k.ask(Submit { start: Box::new(start), ..submit }).await
    else {
        panic!("a lease was expected")
    };
    let stopping = CommandCancelled::Done(CommandStatus::Cancelling);
    assert_eq!(cancel(k, "c", 5).await, stopping);
    lease
}

fn parent(command_id: &str, required: Option<CommandStatus>, propagate: bool) -> Parent {
    Parent { command_id: command_id.to_owned(), required, propagate }
}

/// Submits a command that waits for others.
async fn waiting(k: &Kit<'_>, command_id: &str, after: Vec<Parent>) {
    let submit = Submit { after, ..k.submit(command_id, at(1)) };
    assert_eq!(k.ask(submit).await, Submitted::New(CommandStatus::Validated, None));
}

async fn event_types(k: &Kit<'_>, command_id: &str) -> Vec<String> {
    let command_id = Some(command_id.to_owned());
    let list = ListEvents { workspace: k.ws.clone(), command_id, limit: 100, ..Default::default() };
    k.ask(list).await.0.into_iter().map(|event| event.event_type).collect()
}

async fn an_id_belongs_to_one_command(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(k.submit("c", at(0))).await;
    let mut other = with_nonce(k.submit("c", at(1)), 99);
    other.start.run_id = "elsewhere".to_owned();
    other.start.input = "2".to_owned();
    let conflict = Submitted::Conflict("c".to_owned(), "payload");
    assert_eq!(k.ask(other).await, conflict);
    let kept = detail(&k, "c").await.unwrap().command;
    assert_eq!((&*kept.payload, &*kept.workflow_id), ("{\"order\":1}", "run-c"));
    assert_eq!(k.find("elsewhere").await, None);
}

async fn a_duplicate_is_counted_once_and_listed(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(k.submit("c", at(0))).await;
    let existing = Submitted::Existing("c".to_owned(), CommandStatus::Queued);
    for (nonce, collapsed) in [(2, 1), (2, 1), (3, 2)] {
        assert_eq!(k.ask(with_nonce(k.submit("c", at(nonce)), nonce)).await, existing);
        let found = detail(&k, "c").await.unwrap();
        let listed = i64::try_from(found.duplicates.len()).unwrap();
        assert_eq!((found.command.collapsed, listed), (collapsed, collapsed));
    }
    let found = detail(&k, "c").await.unwrap().duplicates;
    assert_eq!(found.iter().map(|seen| seen.at).collect::<Vec<_>>(), [at(2), at(3)]);
}

async fn a_command_whose_runs_id_is_taken_leaves_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("run-c")).await;
    assert_eq!(k.ask(k.submit("c", at(1))).await, Submitted::RunTaken);
    assert!(detail(&k, "c").await.is_none());
    assert_eq!(event_types(&k, "c").await, [] as [&str; 0]);
}

async fn a_command_expires_at_its_time_and_not_before(store: &dyn Store) {
    let k = Kit::new(store);
    let submit = Submit { expires_at: Some(at(10)), ..k.submit("c", at(0)) };
    k.ask(submit).await;
    assert_eq!(detail(&k, "c").await.unwrap().command.expires_at, Some(at(10)));
    assert_eq!(settle(&k, 9, 9).await, [] as [&str; 0]);
    assert_eq!(settle(&k, 9, 10).await, ["c"]);
    let ended = detail(&k, "c").await.unwrap().command;
    assert_eq!((ended.status, ended.completed_at), (CommandStatus::Cancelled, Some(at(10))));
    assert_eq!(ended.error.unwrap().code(), "SF-0510");
    assert_eq!(k.status("run-c").await, RunStatus::Cancelled);
    assert_eq!(settle(&k, 9, 11).await, [] as [&str; 0]);
}

async fn a_settlement_goes_as_far_as_its_limit(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, expiry) in [("a", 3), ("b", 1), ("c", 2)] {
        k.ask(Submit { expires_at: Some(at(expiry)), ..k.submit(id, at(0)) }).await;
    }
    assert_eq!(settle(&k, 2, 10).await, ["b", "c"]);
    assert_eq!(settle(&k, 2, 10).await, ["a"]);
}

async fn a_worker_that_asks_for_more_time_gets_it(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = stopping(&k).await;
    assert_eq!(leave(&k, &lease, Some(100), 6).await, [] as [&str; 0]);
    assert_eq!(settle(&k, 9, 99).await, [] as [&str; 0], "its lease is over, its time is not");
    assert_eq!(settle(&k, 9, 100).await, ["c"]);
    assert_eq!(status(&k, "c").await, CommandStatus::Cancelled);
}

/// With the reason that it was stopped for.
async fn every_move_of_a_command_is_an_event_of_its_own(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = stopping(&k).await;
    assert_eq!(leave(&k, &lease, None, 6).await, ["c"]);
    let moves = ["created", "validated", "queued", "running", "cancelling", "cancelled"];
    assert_eq!(event_types(&k, "c").await, moves.map(|to| format!("command.{to}")));
    let error = detail(&k, "c").await.unwrap().command.error;
    assert_eq!(error.unwrap().message(), "not wanted");
}

/// One that required its success, and one that only required its end.
async fn a_cancel_ends_or_begins_what_waits_for_the_command(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(k.submit("p", at(0))).await;
    let success = Some(CommandStatus::Succeeded);
    waiting(&k, "cancelled", vec![parent("p", success, true)]).await;
    waiting(&k, "failed", vec![parent("p", success, false)]).await;
    waiting(&k, "begun", vec![parent("p", None, true)]).await;
    waiting(&k, "behind", vec![parent("cancelled", success, true)]).await;
    assert_eq!(cancel(&k, "p", 5).await, CommandCancelled::Done(CommandStatus::Cancelled));
    assert_eq!(status(&k, "cancelled").await, CommandStatus::Cancelled);
    assert_eq!(status(&k, "failed").await, CommandStatus::Failed);
    assert_eq!(status(&k, "begun").await, CommandStatus::Queued);
    assert_eq!(status(&k, "behind").await, CommandStatus::Cancelled);
    assert_eq!(k.status("run-begun").await, RunStatus::Enqueued);
    let why = detail(&k, "failed").await.unwrap().command.error.unwrap();
    assert_eq!(why.code(), "SF-0507");
}

async fn an_expiry_ends_what_waits_for_the_command(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(Submit { expires_at: Some(at(10)), ..k.submit("p", at(0)) }).await;
    waiting(&k, "c", vec![parent("p", Some(CommandStatus::Succeeded), true)]).await;
    assert_eq!(settle(&k, 9, 10).await, ["p"]);
    assert_eq!(status(&k, "c").await, CommandStatus::Cancelled);
}

async fn what_is_told_is_kept_once_with_its_trace(store: &dyn Store) {
    let k = Kit::new(store);
    let tell = |actor: &str| Tell {
        workspace: k.ws.clone(),
        command_id: String::new(),
        event_id: "evt__told".to_owned(),
        event_type: "ingress.rejected".to_owned(),
        payload: "{\"why\":1}".to_owned(),
        actor: actor.to_owned(),
        trace_id: "0af7651916cd43dd8448eb211c80319c".to_owned(),
        now: at(3),
    };
    assert_eq!(k.ask(tell("event:shop")).await, ToldOf(true));
    assert_eq!(k.ask(tell("event:other")).await, ToldOf(false));
    let list = ListEvents { workspace: k.ws.clone(), limit: 9, ..ListEvents::default() };
    let told = k.ask(list).await.0;
    let [event] = told.as_slice() else { panic!("one event was expected: {told:?}") };
    let Tell { event_id, event_type, payload, actor, trace_id, now, .. } = tell("event:shop");
    assert_eq!((&event.event_id, &event.event_type), (&event_id, &event_type));
    assert_eq!((&event.payload, &event.actor), (&payload, &actor));
    assert_eq!((&event.trace_id, event.created_at), (&trace_id, now));
    assert_eq!(event.purpose, "audit");
}

async fn a_supply_changes_the_payload_of_its_command_alone(store: &dyn Store) {
    let k = Kit::new(store);
    for id in ["c", "other"] {
        let hold = Some(Hold::Input("which one?".to_owned()));
        k.ask(Submit { hold, ..k.submit(id, at(0)) }).await;
    }
    let supply = Supply {
        workspace: k.ws.clone(),
        command_id: "c".to_owned(),
        payload: "{\"order\":2}".to_owned(),
        judgement: None,
        hold: None,
        actor: "user:2".to_owned(),
        now: at(5),
    };
    assert_eq!(k.ask(supply).await, Supplied::Done(CommandStatus::Queued));
    assert_eq!(detail(&k, "c").await.unwrap().command.payload, "{\"order\":2}");
    assert_eq!(k.get("run-c").await.input, "{\"order\":2}");
    let other = detail(&k, "other").await.unwrap().command;
    assert_eq!(other.payload, "{\"order\":1}");
    assert_eq!(other.status, CommandStatus::WaitingForInput);
}

async fn a_dependency_is_kept_as_it_was_said_first(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(k.submit("p", at(0))).await;
    k.ask(k.submit("q", at(0))).await;
    waiting(&k, "c", vec![parent("p", None, true)]).await;
    let first = parent("q", Some(CommandStatus::Succeeded), false);
    let second = parent("q", None, true);
    for parent in [first.clone(), second] {
        let (workspace, command_id) = (k.ws.clone(), "c".to_owned());
        let depend = Depend { workspace, command_id, parent, now: at(2) };
        assert_eq!(k.ask(depend).await, Depended::Done);
    }
    assert_eq!(detail(&k, "c").await.unwrap().after, [parent("p", None, true), first]);
    cancel(&k, "q", 3).await;
    assert_eq!(status(&k, "c").await, CommandStatus::Failed);
}

async fn commands_never_wait_in_a_circle(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(k.submit("p", at(0))).await;
    for (id, of) in [("a", "p"), ("b", "a"), ("c", "b")] {
        waiting(&k, id, vec![parent(of, None, true)]).await;
    }
    let depend = |command_id: &str, of: &str| Depend {
        workspace: k.ws.clone(),
        command_id: command_id.to_owned(),
        parent: parent(of, None, true),
        now: at(2),
    };
    let way = |ids: &[&str]| Depended::Cycle(ids.iter().map(|id| (*id).to_owned()).collect());
    assert_eq!(k.ask(depend("a", "c")).await, way(&["c", "b", "a"]));
    assert_eq!(k.ask(depend("a", "a")).await, way(&["a"]));
    let begun = Depended::TooLate(CommandStatus::Queued);
    k.ask(k.submit("q", at(0))).await;
    assert_eq!(k.ask(depend("p", "q")).await, begun);
    assert_eq!(k.ask(depend("c", "none")).await, Depended::NotFound("none".to_owned()));
}
