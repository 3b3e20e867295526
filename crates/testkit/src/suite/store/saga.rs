//! Commands that stop with something under way: who may say what became of it, and taking back more
//! than once.

use steadfast_core::approval::Vote;
use steadfast_core::command::Context;
use steadfast_core::driver::{Kind, Record, RecordState};
use steadfast_core::{CommandStatus, EffectEvent, EffectStatus, Error};
use steadfast_store::Store;
use steadfast_store::op::{
    BEGINS_NO_MORE, COMPENSATE, CancelCommand, CommandRef, CommandRow, Decide, Decided,
    EffectChange, EffectRow, Entry, Finish, GetCommand, Govern, IS_BEING_DONE, Lease, Left,
    ListEffects, ListEvents, NewApproval, NewEffect, Record as Write, Resolve, ResolvedEffect,
    Resume, Resumed, RunRow, SettleCommands, Start, Submitted, TakeBack, TakenBack, Truth, With,
    Written,
};

use super::kit::{Kit, at, with};
use super::{approval, table};

table![
    what_a_stopped_run_had_under_way_is_noted_under_its_fence,
    a_child_of_a_stopped_command_begins_no_effect,
    a_failure_stops_the_attached_children_that_would_be_taken_back,
    an_answer_about_an_effect_reaches_who_takes_back,
    a_command_can_be_taken_back_more_than_once,
    a_run_whose_effects_were_taken_back_is_not_resumed,
    a_run_whose_way_back_was_begun_is_not_resumed,
    a_halted_taking_back_goes_on_when_it_is_resumed,
    an_answer_that_is_repeated_after_the_effect_was_lost_again_counts_once,
    r112_an_effect_of_a_kind_and_key_is_begun_by_one,
    a_person_may_speak_of_what_a_run_that_is_over_has_left,
    a_late_outcome_that_contradicts_the_ledger_is_told_to_people,
    an_answer_may_be_given_twice_by_the_same_person,
    a_changed_vote_is_an_event_of_its_own,
    a_taking_back_that_is_asked_for_twice_is_begun_once,
    whoever_is_there_goes_on_with_a_taking_back_that_is_asked_for,
    what_was_taken_back_is_not_taken_back_again,
    an_answer_is_about_one_effect,
];

/// A command that is being executed by `w1`, and its lease.
async fn submitted(k: &Kit<'_>) -> Lease {
    let mut submit = k.submit("c", k.start("r").now);
    submit.command_type = "ship_order".to_owned();
    submit.cancellation_mode = "compensate_then_stop".to_owned();
    submit.start.run_id = "r".to_owned();
    submit.start.max_attempts = 0;
    submit.start.app_version = "v1".to_owned();
    submit.start.claim = Some(("w1".to_owned(), at(60)));
    match k.ask(submit).await {
        Submitted::New(_, Some(lease)) => lease,
        other => panic!("a lease was expected, not {other:?}"),
    }
}

fn govern(effect: EffectChange, now: i64) -> Govern {
    let (command_id, effect) = ("c".to_owned(), Some(effect));
    Govern { command_id, actor: "w1".to_owned(), effect, now: at(now), ..Govern::default() }
}

fn begins(effect_id: &str) -> EffectChange {
    EffectChange::Begin(Box::new(NewEffect {
        effect_id: effect_id.to_owned(),
        effect_type: "deal.create".to_owned(),
        payload: "{}".to_owned(),
        idempotency_key: effect_id.to_owned(),
        compensation: Some("undo".to_owned()),
        compensates: None,
        once: false,
    }))
}

fn moves(effect_id: &str, event: EffectEvent) -> EffectChange {
    let result = (event == EffectEvent::Succeed).then(|| "7".to_owned());
    EffectChange::Move { effect_id: effect_id.to_owned(), event, result, error: None }
}

/// A record that begins something.
fn begun(id: u64) -> Record {
    let mut record = Record::done(id, 0, "deal.create", Kind::Effect, Ok("null".to_owned()));
    record.state = RecordState::Executing;
    record
}

async fn write(k: &Kit<'_>, lease: &Lease, id: u64, with: Govern) -> Written {
    let entries = vec![self::with(begun(id), With::Govern(Box::new(with)))];
    k.ask(Write { lease: lease.clone(), entries, now: at(3) }).await
}

async fn command(k: &Kit<'_>) -> CommandRow {
    let which = CommandRef::Id("c".to_owned());
    k.ask(GetCommand { workspace: k.ws.clone(), which }).await.0.unwrap().command
}

async fn effect(k: &Kit<'_>, effect_id: &str) -> EffectRow {
    let effect_id = Some(effect_id.to_owned());
    let list = ListEffects { workspace: k.ws.clone(), effect_id, limit: 1, ..Default::default() };
    k.ask(list).await.0.remove(0)
}

async fn cancel(k: &Kit<'_>, now: i64) {
    let (command_id, actor) = ("c".to_owned(), "user:1".to_owned());
    let (workspace, reason) = (k.ws.clone(), Error::app("stop"));
    k.ask(CancelCommand { workspace, command_id, reason, actor, now: at(now) }).await;
}

async fn fail(k: &Kit<'_>, lease: &Lease, entries: Vec<Entry>, now: i64) {
    let (lease, outcome) = (lease.clone(), Err(Error::app("no")));
    let written = k.ask(Finish { lease, entries, outcome, now: at(now) }).await;
    assert_eq!(written, Written::Done);
}

/// Claims the run that takes back.
async fn undoing(k: &Kit<'_>, now: i64) -> (RunRow, Lease) {
    let run = k.ask(k.dequeue("default", "w1", now)).await.runs.remove(0);
    assert_eq!(run.workflow, COMPENSATE);
    let lease = Lease {
        workspace: k.ws.clone(),
        run_id: run.run_id.clone(),
        worker: "w1".to_owned(),
        epoch: run.epoch,
    };
    (run, lease)
}

async fn resume(k: &Kit<'_>, run_id: &str, now: i64) -> Resumed {
    let (workspace, run_id) = (k.ws.clone(), run_id.to_owned());
    k.ask(Resume { workspace, run_id, now: at(now) }).await
}

async fn resolve(k: &Kit<'_>, truth: Truth, actor: &str, now: i64) -> ResolvedEffect {
    let (workspace, effect_id) = (k.ws.clone(), "e".to_owned());
    let (actor, reason, now) = (actor.to_owned(), "seen".to_owned(), at(now));
    k.ask(Resolve { workspace, effect_id, truth, actor, reason, now }).await
}

fn left(k: &Kit<'_>, epoch: i64, outcomes: Vec<Govern>, busy: Option<i64>) -> Left {
    let (command_id, run_id) = ("c".to_owned(), "r".to_owned());
    let lease = Lease { workspace: k.ws.clone(), run_id, worker: String::new(), epoch };
    Left { command_id, lease, outcomes, busy_until: busy.map(at) }
}

async fn leave(k: &Kit<'_>, left: Left, now: i64) -> Vec<String> {
    let (workspace, left) = (k.ws.clone(), Some(left));
    k.ask(SettleCommands { workspace, left, limit: 1, now: at(now) }).await.0
}

async fn what_a_stopped_run_had_under_way_is_noted_under_its_fence(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    for (id, name) in ["e", "f"].into_iter().enumerate() {
        write(&k, &lease, id as u64, govern(begins(name), 2)).await;
    }
    cancel(&k, 5).await;
    let ends = |name| vec![govern(moves(name, EffectEvent::Succeed), 6)];
    // Not by whoever had it before, and not by whoever claims to have had it since.
    for epoch in [0, 2] {
        leave(&k, left(&k, epoch, ends("e"), None), 6).await;
        assert_eq!(effect(&k, "e").await.status, EffectStatus::Executing);
    }
    assert_eq!(leave(&k, left(&k, 1, ends("e"), Some(30)), 7).await, [] as [&str; 0]);
    assert_eq!(effect(&k, "e").await.result.as_deref(), Some("7"));
    assert_eq!(effect(&k, "f").await.updated_at, at(7), "its worker is still at it");
    assert_eq!(command(&k).await.status, CommandStatus::Cancelling);
    assert_eq!(leave(&k, left(&k, 1, ends("f"), None), 8).await, ["c"]);
    assert_eq!(effect(&k, "f").await.status, EffectStatus::Succeeded);
    assert_eq!(command(&k).await.status, CommandStatus::Compensating);
}

/// A child of the command's run, claimed by `w1`.
async fn child(k: &Kit<'_>, detached: bool) -> Lease {
    let context = Context { command_id: "c".to_owned(), ..Context::default() };
    let (context, parent) = (Some(context.to_text()), "r".to_owned());
    k.owned_by(Start { context, parent, detached, ..k.start("child") }, "w1").await
}

async fn a_child_of_a_stopped_command_begins_no_effect(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    let theirs = child(&k, true).await;
    let mut begins = govern(begins("e"), 2);
    begins.child = true;
    fail(&k, &lease, Vec::new(), 5).await;
    let Written::Refused(why) = write(&k, &theirs, 0, begins).await else {
        panic!("a refusal was expected")
    };
    assert!(why.ends_with(BEGINS_NO_MORE), "{why}");
}

async fn a_failure_stops_the_attached_children_that_would_be_taken_back(store: &dyn Store) {
    for detached in [false, true] {
        let k = Kit::new(store);
        let lease = submitted(&k).await;
        let theirs = child(&k, detached).await;
        write(&k, &theirs, 0, govern(begins("e"), 2)).await;
        fail(&k, &lease, Vec::new(), 5).await;
        assert_eq!(command(&k).await.status, CommandStatus::Compensating);
        let over = k.get("child").await.status.is_terminal();
        assert_eq!(over, !detached);
    }
}

async fn an_answer_about_an_effect_reaches_who_takes_back(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    write(&k, &lease, 0, govern(begins("e"), 2)).await;
    let lost = Govern { blocks: true, ..govern(moves("e", EffectEvent::Lose), 3) };
    write(&k, &lease, 1, lost).await;
    assert_eq!(command(&k).await.status, CommandStatus::Blocked);
    fail(&k, &lease, Vec::new(), 4).await;
    let (run, _) = undoing(&k, 5).await;
    assert_eq!(resolve(&k, Truth::NotDone, "user:1", 6).await, ResolvedEffect::Done);
    let told = k.load(&run.run_id).await.signals;
    assert_eq!(told.iter().map(|signal| signal.name.as_str()).collect::<Vec<_>>(), ["effect:e"]);
    assert_eq!(command(&k).await.status, CommandStatus::Compensating);
}

/// A command given up with an effect done, whose taking back was begun; the run that does it.
async fn given_up(k: &Kit<'_>) -> (RunRow, Lease) {
    let lease = submitted(k).await;
    write(k, &lease, 0, govern(begins("e"), 2)).await;
    write(k, &lease, 1, govern(moves("e", EffectEvent::Succeed), 3)).await;
    assert_eq!(k.ask(k.wake("w2", 100)).await.exhausted, ["r"]);
    assert_eq!(command(k).await.status, CommandStatus::Compensating);
    undoing(k, 101).await
}

async fn a_command_can_be_taken_back_more_than_once(store: &dyn Store) {
    let k = Kit::new(store);
    let (first, lease) = given_up(&k).await;
    fail(&k, &lease, Vec::new(), 102).await;
    assert_eq!(command(&k).await.status, CommandStatus::Failed);
    assert_eq!(resume(&k, "r", 103).await, Resumed::Done);
    let run = k.ask(k.dequeue("default", "w1", 104)).await.runs.remove(0);
    assert_eq!(run.run_id, "r");
    assert!(!k.ask(k.wake("w2", 300)).await.exhausted.is_empty());
    let (second, lease) = undoing(&k, 301).await;
    assert_ne!(first.run_id, second.run_id);
    let finish = Finish { lease, entries: Vec::new(), outcome: Ok("1".to_owned()), now: at(302) };
    k.ask(finish).await;
    assert_eq!(command(&k).await.status, CommandStatus::Compensated);
    // The first is no longer the one that takes back.
    assert!(matches!(resume(&k, &first.run_id, 303).await, Resumed::NotStopped(_)));
}

async fn a_run_whose_effects_were_taken_back_is_not_resumed(store: &dyn Store) {
    let k = Kit::new(store);
    let (_, lease) = given_up(&k).await;
    let undone = Govern {
        command_id: "c".to_owned(),
        undone: Some("e".to_owned()),
        now: at(102),
        ..Govern::default()
    };
    write(&k, &lease, 0, undone).await;
    fail(&k, &lease, Vec::new(), 103).await;
    assert_eq!(resume(&k, "r", 104).await, Resumed::TakenBack);
}

/// An at-most-once refund that may have been made is not made by two.
async fn a_run_whose_way_back_was_begun_is_not_resumed(store: &dyn Store) {
    for (end, wanted) in [
        (None, Resumed::TakenBack),
        (Some(EffectEvent::Lose), Resumed::TakenBack),
        (Some(EffectEvent::Fail), Resumed::Done),
    ] {
        let k = Kit::new(store);
        let (_, lease) = given_up(&k).await;
        let refund = NewEffect {
            effect_id: "refund".to_owned(),
            effect_type: "deal.delete".to_owned(),
            payload: "{}".to_owned(),
            idempotency_key: "refund".to_owned(),
            compensation: None,
            compensates: Some("e".to_owned()),
            once: false,
        };
        write(&k, &lease, 0, govern(EffectChange::Begin(Box::new(refund)), 102)).await;
        if let Some(event) = end {
            write(&k, &lease, 1, govern(moves("refund", event), 103)).await;
        }
        fail(&k, &lease, Vec::new(), 104).await;
        assert_eq!(resume(&k, "r", 105).await, wanted, "{end:?}");
    }
}

/// An answer that was taken, and whose taking was not heard of, is not given a second time.
async fn an_answer_that_is_repeated_after_the_effect_was_lost_again_counts_once(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    write(&k, &lease, 0, govern(begins("e"), 2)).await;
    write(&k, &lease, 1, govern(moves("e", EffectEvent::Lose), 3)).await;
    assert_eq!(resolve(&k, Truth::Again, "user:1", 10).await, ResolvedEffect::Done);
    write(&k, &lease, 2, govern(moves("e", EffectEvent::Lose), 11)).await;
    assert_eq!(resolve(&k, Truth::Again, "user:1", 10).await, ResolvedEffect::Done);
    assert_eq!(effect(&k, "e").await.status, EffectStatus::Unknown);
    assert_eq!(audited(&k, "effect.resolved").await, 1);
    assert_eq!(resolve(&k, Truth::Again, "user:1", 12).await, ResolvedEffect::Done);
    assert_eq!(effect(&k, "e").await.status, EffectStatus::Executing);
}

/// R112: for a receiver without a memory the ledger is one, also for those who come at once.
async fn r112_an_effect_of_a_kind_and_key_is_begun_by_one(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    let once = |effect_id: &str, payload: &str| {
        let EffectChange::Begin(new) = begins(effect_id) else { unreachable!("it begins") };
        let (payload, idempotency_key) = (payload.to_owned(), "sms".to_owned());
        EffectChange::Begin(Box::new(NewEffect { payload, idempotency_key, once: true, ..*new }))
    };
    let refused = async |id: u64, effect_id: &str, payload: &str| match write(
        &k,
        &lease,
        id,
        govern(once(effect_id, payload), 3),
    )
    .await
    {
        Written::Refused(why) => why,
        other => panic!("it began: {other:?}"),
    };
    assert_eq!(write(&k, &lease, 0, govern(once("a", "1"), 2)).await, Written::Done);
    assert!(refused(1, "b", "1").await.ends_with(IS_BEING_DONE));
    write(&k, &lease, 2, govern(moves("a", EffectEvent::Lose), 3)).await;
    assert!(refused(3, "b", "1").await.ends_with(IS_BEING_DONE), "nobody knows");
    write(&k, &lease, 4, govern(moves("a", EffectEvent::Fail), 3)).await;
    assert_eq!(write(&k, &lease, 5, govern(once("b", "1"), 4)).await, Written::Done);
    write(&k, &lease, 6, govern(moves("b", EffectEvent::Succeed), 5)).await;
    assert!(refused(7, "c", "2").await.ends_with("with another payload"));
}

/// What a run has left behind does not stand in the way for ever.
async fn a_person_may_speak_of_what_a_run_that_is_over_has_left(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    write(&k, &lease, 0, govern(begins("e"), 2)).await;
    let known = ResolvedEffect::Known(EffectStatus::Executing);
    assert_eq!(resolve(&k, Truth::NotDone, "user:1", 3).await, known, "somebody is at it");
    let (entries, outcome) = (Vec::new(), Ok("1".to_owned()));
    k.ask(Finish { lease, entries, outcome, now: at(4) }).await;
    assert_eq!(resolve(&k, Truth::NotDone, "user:1", 5).await, ResolvedEffect::Done);
    assert_eq!(effect(&k, "e").await.status, EffectStatus::Failed);
}

async fn a_late_outcome_that_contradicts_the_ledger_is_told_to_people(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    write(&k, &lease, 0, govern(begins("e"), 2)).await;
    cancel(&k, 3).await;
    let late = async |event: EffectEvent, now: i64| {
        let outcomes = vec![govern(moves("e", event), now)];
        leave(&k, left(&k, lease.epoch, outcomes, Some(now + 60)), now).await;
    };
    late(EffectEvent::Lose, 4).await;
    assert_eq!(resolve(&k, Truth::NotDone, "user:1", 5).await, ResolvedEffect::Done);
    late(EffectEvent::Succeed, 6).await;
    assert_eq!(effect(&k, "e").await.status, EffectStatus::Failed);
    assert_eq!(audited(&k, "effect.contradicted").await, 1);
    late(EffectEvent::Fail, 7).await;
    assert_eq!(audited(&k, "effect.contradicted").await, 1);
}

async fn a_halted_taking_back_goes_on_when_it_is_resumed(store: &dyn Store) {
    let k = Kit::new(store);
    let (run, lease) = given_up(&k).await;
    let cause = command(&k).await.error;
    k.cancel(&run.run_id).await;
    k.let_go(&lease, 102).await;
    let halted = command(&k).await;
    assert_eq!((halted.status, halted.error.unwrap().code()), (CommandStatus::Failed, "SF-0831"));
    for now in [103, 203] {
        assert_eq!(resume(&k, &run.run_id, now).await, Resumed::Done);
        assert_eq!(command(&k).await.status, CommandStatus::Compensating);
        assert_eq!(command(&k).await.error, cause);
        let (again, lease) = undoing(&k, now + 1).await;
        assert_eq!(again.run_id, run.run_id);
        if now == 103 {
            k.cancel(&run.run_id).await;
            continue;
        }
        let (entries, outcome) = (Vec::new(), Ok("1".to_owned()));
        k.ask(Finish { lease, entries, outcome, now: at(205) }).await;
    }
    assert_eq!(command(&k).await.status, CommandStatus::Compensated);
}

async fn an_answer_may_be_given_twice_by_the_same_person(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    write(&k, &lease, 0, govern(begins("e"), 2)).await;
    let known = ResolvedEffect::Known(EffectStatus::Succeeded);
    for round in 0..2 {
        write(&k, &lease, 2 * round + 1, govern(moves("e", EffectEvent::Lose), 3)).await;
        let now = 10 * (i64::try_from(round).unwrap() + 1);
        let truth = if round == 0 { Truth::Again } else { Truth::Done("7".to_owned()) };
        for later in 0..3 {
            let said = resolve(&k, truth.clone(), "user:1", now + later).await;
            assert_eq!(said, ResolvedEffect::Done, "{round} {later}");
        }
        let other = resolve(&k, truth, "user:2", now + 4).await;
        assert!(matches!(other, ResolvedEffect::Known(_)), "{other:?}");
    }
    assert_eq!(resolve(&k, Truth::Done("8".to_owned()), "user:1", 30).await, known);
    assert_eq!(resolve(&k, Truth::NotDone, "user:1", 30).await, known);
    assert_eq!(audited(&k, "effect.resolved").await, 2);
}

async fn audited(k: &Kit<'_>, event_type: &str) -> usize {
    let command_id = Some("c".to_owned());
    let list = ListEvents { workspace: k.ws.clone(), command_id, limit: 100, ..Default::default() };
    let events = k.ask(list).await.0;
    events.iter().filter(|event| event.event_type == event_type).count()
}

async fn a_changed_vote_is_an_event_of_its_own(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    let asked = NewApproval { expires_at: at(1000), ..approval::question("vote", 2) };
    let asks = Govern { approval: Some(Box::new(asked)), effect: None, ..govern(begins("e"), 2) };
    write(&k, &lease, 0, asks).await;
    let decide = |vote, now| Decide {
        workspace: k.ws.clone(),
        approval_id: "q-vote".to_owned(),
        approver: "lead:1".to_owned(),
        vote,
        reason: String::new(),
        now: at(now),
    };
    assert_eq!(k.ask(decide(Vote::Approved, 3)).await, Decided::Counted(1));
    assert!(matches!(k.ask(decide(Vote::Approved, 4)).await, Decided::Again(_)));
    assert!(matches!(k.ask(decide(Vote::Rejected, 5)).await, Decided::Settled(_)));
    assert_eq!(audited(&k, "approval.voted").await, 2);
}

async fn a_taking_back_that_is_asked_for_twice_is_begun_once(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    write(&k, &lease, 0, govern(begins("e"), 3)).await;
    write(&k, &lease, 1, govern(moves("e", EffectEvent::Succeed), 3)).await;
    fail(&k, &lease, Vec::new(), 4).await;
    let (_, undo) = undoing(&k, 5).await;
    fail(&k, &undo, Vec::new(), 6).await;
    assert_eq!(command(&k).await.status, CommandStatus::Failed);
    let again = |actor: &str, now| TakeBack {
        workspace: k.ws.clone(),
        command_id: "c".to_owned(),
        actor: actor.to_owned(),
        now: at(now),
    };
    let begun = k.ask(again("user:2", 7)).await;
    assert!(matches!(begun, TakenBack::Begun(_)), "{begun:?}");
    assert_eq!(k.ask(again("user:2", 7)).await, begun, "the answer was lost");
    let late = TakenBack::NotFailed(CommandStatus::Compensating);
    for other in [again("user:3", 7), again("user:2", 8)] {
        assert_eq!(k.ask(other).await, late);
    }
}

/// By the version that is deployed by then: what halted was repaired.
async fn whoever_is_there_goes_on_with_a_taking_back_that_is_asked_for(store: &dyn Store) {
    let k = Kit::new(store);
    let (first, undo) = given_up(&k).await;
    assert_eq!(first.app_version, "v1");
    fail(&k, &undo, Vec::new(), 102).await;
    let (workspace, command_id) = (k.ws.clone(), "c".to_owned());
    let again = TakeBack { workspace, command_id, actor: "user:2".to_owned(), now: at(103) };
    let TakenBack::Begun(run_id) = k.ask(again).await else { panic!("it was not begun") };
    assert_eq!(k.get(&run_id).await.app_version, "");
}

/// Nor what has undone it, although that has a way back as well.
async fn what_was_taken_back_is_not_taken_back_again(store: &dyn Store) {
    let k = Kit::new(store);
    let (_, undo) = given_up(&k).await;
    let EffectChange::Begin(new) = begins("refund") else { unreachable!("it begins") };
    let refund = NewEffect { compensates: Some("e".to_owned()), ..*new };
    write(&k, &undo, 0, govern(EffectChange::Begin(Box::new(refund)), 102)).await;
    let done = govern(moves("refund", EffectEvent::Succeed), 103);
    write(&k, &undo, 1, Govern { undone: Some("e".to_owned()), ..done }).await;
    fail(&k, &undo, Vec::new(), 104).await;
    let (workspace, command_id) = (k.ws.clone(), "c".to_owned());
    let again = TakeBack { workspace, command_id, actor: "user:2".to_owned(), now: at(105) };
    assert_eq!(k.ask(again).await, TakenBack::Nothing);
}

async fn an_answer_is_about_one_effect(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = submitted(&k).await;
    for (step, id) in [(0, "e"), (2, "f")] {
        write(&k, &lease, step, govern(begins(id), 2)).await;
        write(&k, &lease, step + 1, govern(moves(id, EffectEvent::Lose), 3)).await;
    }
    assert_eq!(resolve(&k, Truth::NotDone, "user:1", 4).await, ResolvedEffect::Done);
    assert_eq!(effect(&k, "e").await.status, EffectStatus::Failed);
    assert_eq!(effect(&k, "f").await.status, EffectStatus::Unknown);
}
