//! Questions to people: whose answer counts, for how long, and what goes on then.

use steadfast_core::approval::Vote;
use steadfast_core::{ApprovalStatus, CommandStatus, Error as Failure, Timestamp};
use steadfast_store::Store;
use steadfast_store::op::{
    ApprovalRow, CancelCommand, CommandRef, Decide, Decided, GetCommand, Hold, ListApprovals,
    ListEvents, NewApproval, SettleApprovals, Submit, Submitted, Supplied, Supply,
};

use super::kit::{Kit, at};

super::table! {
    everybody_has_a_vote_of_their_own,
    nobody_approves_what_they_asked_for_or_gave,
    an_answer_counts_until_the_question_expires,
    a_question_is_escalated_once_and_then_expires,
    an_answered_question_is_not_in_the_way_of_others,
    the_questions_of_a_cancelled_command_are_cancelled,
}

pub(super) fn question(id: &str, approvers: i64) -> NewApproval {
    NewApproval {
        approval_id: format!("q-{id}"),
        approval_type: "send".to_owned(),
        action: "send".to_owned(),
        reason: String::new(),
        payload: "{}".to_owned(),
        digest: "sha256:0".to_owned(),
        requested_by: "user:1".to_owned(),
        approvers,
        among: Vec::new(),
        expires_at: at(100),
        escalate_at: None,
    }
}

/// Submits a command that waits for an answer to its question.
async fn asked(k: &Kit<'_>, id: &str, question: NewApproval) {
    let hold = Some(Hold::Approval(Box::new(question)));
    let waits = Submitted::New(CommandStatus::WaitingForApproval, None);
    assert_eq!(k.ask(Submit { hold, ..k.submit(id, at(0)) }).await, waits);
}

async fn decide(k: &Kit<'_>, id: &str, approver: &str, vote: Vote, now: i64) -> Decided {
    let decide = Decide {
        workspace: k.ws.clone(),
        approval_id: format!("q-{id}"),
        approver: approver.to_owned(),
        vote,
        reason: "seen".to_owned(),
        now: at(now),
    };
    k.ask(decide).await
}

async fn found(k: &Kit<'_>, id: &str) -> ApprovalRow {
    let approval_id = Some(format!("q-{id}"));
    let list =
        ListApprovals { workspace: k.ws.clone(), approval_id, limit: 1, ..Default::default() };
    k.ask(list).await.0.remove(0)
}

async fn status(k: &Kit<'_>, id: &str) -> CommandStatus {
    let which = CommandRef::Id(id.to_owned());
    k.ask(GetCommand { workspace: k.ws.clone(), which }).await.0.unwrap().command.status
}

async fn settle(k: &Kit<'_>, limit: usize, now: Timestamp) -> Vec<String> {
    k.ask(SettleApprovals { workspace: k.ws.clone(), limit, now }).await.0
}

async fn everybody_has_a_vote_of_their_own(store: &dyn Store) {
    let k = Kit::new(store);
    asked(&k, "c", question("c", 3)).await;
    assert_eq!(decide(&k, "c", "lead:1", Vote::Approved, 1).await, Decided::Counted(2));
    assert_eq!(decide(&k, "c", "lead:2", Vote::Approved, 2).await, Decided::Counted(1));
    let settled = Decided::Settled(ApprovalStatus::Rejected);
    assert_eq!(decide(&k, "c", "lead:1", Vote::Rejected, 3).await, settled);
    let row = found(&k, "c").await;
    let votes: Vec<_> = row.votes.iter().map(|v| (&*v.approver, v.vote, v.at)).collect();
    let wanted = [("lead:2", Vote::Approved, at(2)), ("lead:1", Vote::Rejected, at(3))];
    assert_eq!(votes, wanted);
    assert_eq!(status(&k, "c").await, CommandStatus::Failed);
}

async fn nobody_approves_what_they_asked_for_or_gave(store: &dyn Store) {
    let k = Kit::new(store);
    let hold = Some(Hold::Input("which one?".to_owned()));
    k.ask(Submit { hold, ..k.submit("c", at(0)) }).await;
    let supply = Supply {
        workspace: k.ws.clone(),
        command_id: "c".to_owned(),
        payload: "2".to_owned(),
        judgement: None,
        hold: Some(Hold::Approval(Box::new(question("c", 1)))),
        actor: "user:2".to_owned(),
        now: at(1),
    };
    let waits = Supplied::Done(CommandStatus::WaitingForApproval);
    assert_eq!(k.ask(supply).await, waits);
    for own in ["user:1", "user:2"] {
        assert_eq!(decide(&k, "c", own, Vote::Approved, 2).await, Decided::Own, "{own}");
    }
    let settled = Decided::Settled(ApprovalStatus::Approved);
    assert_eq!(decide(&k, "c", "user:3", Vote::Approved, 3).await, settled);
    assert_eq!(status(&k, "c").await, CommandStatus::Queued);
}

async fn an_answer_counts_until_the_question_expires(store: &dyn Store) {
    let k = Kit::new(store);
    asked(&k, "c", question("c", 2)).await;
    assert_eq!(decide(&k, "c", "lead:1", Vote::Approved, 99).await, Decided::Counted(1));
    let late = Decided::Late(ApprovalStatus::Pending);
    assert_eq!(decide(&k, "c", "lead:2", Vote::Approved, 100).await, late);
    assert_eq!(found(&k, "c").await.votes.len(), 1);
}

async fn a_question_is_escalated_once_and_then_expires(store: &dyn Store) {
    let k = Kit::new(store);
    asked(&k, "c", NewApproval { escalate_at: Some(at(20)), ..question("c", 1) }).await;
    let none = [] as [&str; 0];
    for (now, settled) in [(19, &none[..]), (20, &["q-c"]), (99, &none), (100, &["q-c"])] {
        assert_eq!(settle(&k, 9, at(now)).await, settled, "at {now}");
    }
    let row = found(&k, "c").await;
    assert_eq!((row.status, row.decided_at), (ApprovalStatus::Expired, Some(at(100))));
    assert_eq!(status(&k, "c").await, CommandStatus::Expired);
    assert_eq!(settle(&k, 9, at(200)).await, none);
    let event_type = Some("approval.escalated".to_owned());
    let list = ListEvents { workspace: k.ws.clone(), event_type, limit: 9, ..Default::default() };
    assert_eq!(k.ask(list).await.0.len(), 1);
}

async fn an_answered_question_is_not_in_the_way_of_others(store: &dyn Store) {
    let k = Kit::new(store);
    asked(&k, "a", NewApproval { expires_at: at(50), ..question("a", 1) }).await;
    asked(&k, "b", question("b", 1)).await;
    decide(&k, "a", "lead:1", Vote::Approved, 1).await;
    assert_eq!(settle(&k, 1, at(200)).await, ["q-b"]);
}

async fn the_questions_of_a_cancelled_command_are_cancelled(store: &dyn Store) {
    let k = Kit::new(store);
    asked(&k, "c", question("c", 1)).await;
    asked(&k, "other", question("other", 1)).await;
    let (workspace, command_id) = (k.ws.clone(), "c".to_owned());
    let (reason, actor) = (Failure::app("not wanted"), "user:1".to_owned());
    k.ask(CancelCommand { workspace, command_id, reason, actor, now: at(5) }).await;
    let row = found(&k, "c").await;
    assert_eq!((row.status, row.decided_at), (ApprovalStatus::Cancelled, Some(at(5))));
    assert_eq!(found(&k, "other").await.status, ApprovalStatus::Pending);
}
