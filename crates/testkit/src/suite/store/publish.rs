//! Events on their way out: numbers without gaps, links that hold, one sender at a time.

use std::time::Duration;

use steadfast_core::event::{Break, Walk};
use steadfast_core::{Error as Failure, Timestamp, limits};
use steadfast_store::Store;
use steadfast_store::op::{
    Batch, CancelCommand, ChainPage, Fate, ListEvents, ListSinks, Outbox, OutboxSettled, Outgoing,
    PutSink, ReadChain, Retain, Retained, Seal, Sealed, Sent, SetSink, SettleOutbox, SinkFrom,
    SinkSet, SinkState, Sinks, Submit, TakeOutbox,
};

use super::kit::{Kit, at};

super::table! {
    r030_events_are_numbered_in_order_and_each_link_follows,
    events_of_a_command_keep_its_order_when_clocks_disagree,
    many_sealers_number_every_event_once,
    r032_retention_removes_its_purpose_alone_and_the_chain_holds,
    r032_audit_events_are_kept_for_ninety_days,
    retention_waits_for_sinks,
    what_a_disabled_sink_misses_is_told,
    r030_what_tells_of_a_removal_stays_while_it_is_needed,
    a_beginning_that_is_gone_is_one_link,
    what_was_told_is_remembered_for_its_time,
    r033_events_are_read_by_command_type_purpose_and_time,
}

async fn cancel(k: &Kit<'_>, command_id: &str, now: Timestamp) {
    let (workspace, command_id) = (k.ws.clone(), command_id.to_owned());
    let (reason, actor) = (Failure::app("enough"), "user:1".to_owned());
    k.ask(CancelCommand { workspace, command_id, reason, actor, now }).await;
}

pub(super) async fn seal(k: &Kit<'_>, limit: usize) -> usize {
    match k.ask(Seal { workspace: k.ws.clone(), limit }).await {
        Sealed::Done(count, _) => count,
        Sealed::Busy => panic!("nobody else seals"),
    }
}

async fn chain(k: &Kit<'_>) -> ChainPage {
    k.ask(ReadChain { workspace: k.ws.clone(), after: 0, limit: 1000 }).await
}

async fn verify(k: &Kit<'_>) -> Result<(u64, u64), Break> {
    let page = chain(k).await;
    let mut walk = Walk::from(page.base.clone());
    let links: Vec<_> = page.links.into_iter().filter(|link| link.seq > page.base.seq).collect();
    walk.follow(&links, &page.head, false, None)?;
    walk.all_told(&page.base, &page.unsealed)?;
    Ok((walk.kept, walk.removed))
}

pub(super) async fn sink(k: &Kit<'_>, name: &str, from: SinkFrom) -> bool {
    let put = PutSink {
        workspace: k.ws.clone(),
        sink: name.to_owned(),
        kind: "webhook".to_owned(),
        place: "there".to_owned(),
        from,
        now: at(0),
    };
    k.ask(put).await.created
}

pub(super) async fn sinks(k: &Kit<'_>) -> Sinks {
    k.ask(ListSinks { workspace: k.ws.clone(), count_dead: true }).await
}

pub(super) fn take_op(k: &Kit<'_>, sink: &str, owner: &str, now: i64) -> TakeOutbox {
    TakeOutbox {
        workspace: k.ws.clone(),
        sink: sink.to_owned(),
        owner: owner.to_owned(),
        lease_until: at(now + 60),
        limit: 100,
        now: at(now),
    }
}

pub(super) async fn take(k: &Kit<'_>, owner: &str, now: i64) -> Batch {
    match k.ask(take_op(k, "hook", owner, now)).await {
        Outbox::Taken(batch) => *batch,
        other => panic!("the sink was expected, not {other:?}"),
    }
}

/// Everything has arrived, but what `fates` says otherwise.
pub(super) fn settle_op(k: &Kit<'_>, owner: &str, batch: &Batch, fates: Vec<Sent>) -> SettleOutbox {
    SettleOutbox {
        workspace: k.ws.clone(),
        sink: "hook".to_owned(),
        owner: owner.to_owned(),
        epoch: batch.epoch,
        cursor: batch.fresh.last().map_or(batch.cursor, |event| event.seq),
        sent: fates,
        marks: Vec::new(),
        forget_before: at(0),
        gone: None,
        now: at(9),
    }
}

pub(super) fn fate(event: &Outgoing, fate: Fate) -> Sent {
    let key = event.event.facts("").key().to_owned();
    Sent { seq: event.seq, event_id: event.event.event_id.clone(), key, fate }
}

pub(super) fn parked(event: &Outgoing, next_at: i64) -> Sent {
    let (attempt, error) = (1, "503".to_owned());
    fate(event, Fate::Parked { attempt, next_at: at(next_at), error })
}

pub(super) fn ids(events: &[Outgoing]) -> Vec<&str> {
    events.iter().map(|event| event.event.event_id.as_str()).collect()
}

/// R30
async fn r030_events_are_numbered_in_order_and_each_link_follows(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(seal(&k, 10).await, 0);
    assert_eq!(verify(&k).await, Ok((0, 0)));
    k.ask(k.submit("b", at(1))).await;
    k.ask(k.submit("a", at(2))).await;
    assert!(sinks(&k).await.unsealed);
    assert_eq!((seal(&k, 2).await, seal(&k, 10).await, seal(&k, 10).await), (2, 4, 0));
    assert!(!sinks(&k).await.unsealed);
    let numbers: Vec<_> = chain(&k).await.links.iter().map(|link| link.seq).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert_eq!(verify(&k).await, Ok((6, 0)));
    // A commit that comes late gets a later number, whatever its time says.
    k.ask(k.submit("0", at(0))).await;
    assert_eq!(seal(&k, 10).await, 3);
    assert_eq!(verify(&k).await, Ok((9, 0)));
    assert_eq!(chain(&k).await.head.seq, 9);
    let other = ReadChain { workspace: format!("{}-2", k.ws), after: 0, limit: 10 };
    assert_eq!(k.ask(other).await.head.seq, 0, "a workspace has a chain of its own");
}

async fn events_of_a_command_keep_its_order_when_clocks_disagree(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    k.ask(k.submit("a", at(10))).await;
    // By a process whose clock is behind.
    cancel(&k, "a", at(5)).await;
    // Pages that are cut where the order is wrong: what is early waits for what it follows.
    assert_eq!((seal(&k, 1).await, seal(&k, 2).await, seal(&k, 2).await), (1, 1, 2));
    assert_eq!(seal(&k, 2).await, 0);
    let sent = take(&k, "w", 20).await.fresh;
    assert_eq!(ids(&sent), (0..4).map(|n| format!("evt_a_{n:06}")).collect::<Vec<_>>());
    assert_eq!(verify(&k).await, Ok((4, 0)));
}

async fn many_sealers_number_every_event_once(store: &dyn Store) {
    let k = Kit::new(store);
    let commands = (0..20).map(|n| k.submit(&format!("c{n}"), at(n))).collect();
    k.ask_all::<Submit>(commands).await;
    for _ in 0..20 {
        let seals = (0..8).map(|n| Seal { workspace: k.ws.clone(), limit: 3 + n }).collect();
        k.ask_all::<Seal>(seals).await;
    }
    while seal(&k, 100).await > 0 {}
    assert_eq!(verify(&k).await, Ok((60, 0)));
}

fn retain(k: &Kit<'_>, purpose: &str, before: Timestamp, now: Timestamp) -> Retain {
    Retain { workspace: k.ws.clone(), purpose: purpose.to_owned(), before, limit: 100, now }
}

async fn purposes(k: &Kit<'_>) -> Vec<(String, usize)> {
    let all = ListEvents { workspace: k.ws.clone(), limit: 1000, ..ListEvents::default() };
    let events = k.ask(all).await.0;
    let count = |purpose: &str| events.iter().filter(|event| event.purpose == purpose).count();
    ["event", "audit"].map(|purpose| (purpose.to_owned(), count(purpose))).to_vec()
}

fn days(days: u64) -> Duration {
    Duration::from_secs(86_400 * days)
}

/// Two events of audit before, between and after those of two commands.
async fn mixed(k: &Kit<'_>) {
    sink(k, "hook", SinkFrom::Now).await;
    for (n, command) in ["a", "b"].into_iter().enumerate() {
        let n = i64::try_from(n).unwrap();
        for state in [SinkState::Disabled, SinkState::Active] {
            set(k, state, at(10 * n)).await;
        }
        k.ask(k.submit(command, at(10 * n + 5))).await;
    }
    set(k, SinkState::Disabled, at(30)).await;
    while seal(k, 100).await > 0 {}
}

pub(super) async fn set(k: &Kit<'_>, state: SinkState, now: Timestamp) -> SinkSet {
    let (workspace, sink, actor) = (k.ws.clone(), "hook".to_owned(), "user:1".to_owned());
    k.ask(SetSink { workspace, sink, state, reason: "test".to_owned(), actor, now }).await
}

/// R32
async fn r032_retention_removes_its_purpose_alone_and_the_chain_holds(store: &dyn Store) {
    let k = Kit::new(store);
    mixed(&k).await;
    let count =
        |event: usize, audit: usize| vec![("event".to_owned(), event), ("audit".to_owned(), audit)];
    assert_eq!(purposes(&k).await, count(6, 5));
    assert_eq!(k.ask(retain(&k, "event", at(5), at(40))).await, Retained::Done(0));
    assert_eq!(k.ask(retain(&k, "agent_step", at(99), at(40))).await, Retained::Done(0));
    // The first command's events go, and that they went is an audit event.
    assert_eq!(k.ask(retain(&k, "event", at(6), at(40))).await, Retained::Done(3));
    assert_eq!(purposes(&k).await, count(3, 6));
    while seal(&k, 100).await > 0 {}
    assert_eq!(verify(&k).await, Ok((9, 3)));
    // An event without a number is not removed, however old it is.
    k.ask(k.submit("c", at(1))).await;
    assert_eq!(k.ask(retain(&k, "event", at(99), at(40))).await, Retained::Done(3));
    assert_eq!(purposes(&k).await, count(3, 7));
    while seal(&k, 100).await > 0 {}
    assert_eq!(verify(&k).await, Ok((10, 6)));
}

/// R32
async fn r032_audit_events_are_kept_for_ninety_days(store: &dyn Store) {
    let k = Kit::new(store);
    mixed(&k).await;
    let least = days(u64::from(limits::AUDIT_DAYS));
    let now = at(30).after(least);
    let soon = Timestamp::from_micros(at(30).as_micros() + 1);
    assert_eq!(k.ask(retain(&k, "audit", soon, now)).await, Retained::TooYoung);
    assert_eq!(k.ask(retain(&k, "audit", at(30), now)).await, Retained::Done(4));
    while seal(&k, 100).await > 0 {}
    assert_eq!(verify(&k).await.unwrap().0, 8, "six of commands, the last audit, the new one");
}

async fn retention_waits_for_sinks(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    k.ask(k.submit("a", at(1))).await;
    k.ask(k.submit("b", at(2))).await;
    seal(&k, 100).await;
    let old = || retain(&k, "event", at(50), at(60));
    assert_eq!(k.ask(old()).await, Retained::Done(0), "the sink has seen none of them");
    let batch = take(&k, "w", 3).await;
    let fates = vec![parked(&batch.fresh[1], 100), fate(&batch.fresh[2], dead())];
    assert_eq!(k.ask(settle_op(&k, "w", &batch, fates)).await, OutboxSettled::Done);
    assert_eq!(k.ask(old()).await, Retained::Done(4), "one waits, one is a dead letter");
    seal(&k, 100).await;
    assert_eq!(verify(&k).await, Ok((3, 3)), "the first is behind the beginning");
    assert_eq!(chain(&k).await.base.seq, 1);
}

async fn removals(k: &Kit<'_>) -> Vec<serde_json::Value> {
    let which = ListEvents {
        workspace: k.ws.clone(),
        event_type: Some("retention.removed".to_owned()),
        limit: 100,
        ..ListEvents::default()
    };
    let told = k.ask(which).await.0.into_iter();
    told.map(|event| serde_json::from_str(&event.payload).unwrap()).collect()
}

/// Nothing is kept for ever for a sink that may never be started again; but it is said.
async fn what_a_disabled_sink_misses_is_told(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    k.ask(k.submit("a", at(1))).await;
    seal(&k, 100).await;
    let batch = take(&k, "w", 3).await;
    assert_eq!(k.ask(settle_op(&k, "w", &batch, vec![])).await, OutboxSettled::Done);
    k.ask(k.submit("b", at(2))).await;
    set(&k, SinkState::Disabled, at(3)).await;
    while seal(&k, 100).await > 0 {}
    let sent = i64::try_from(batch.fresh.len()).unwrap();
    let mut old = retain(&k, "event", at(50), at(60));
    old.limit = batch.fresh.len();
    k.ask(old.clone()).await;
    k.ask(old).await;
    let told = removals(&k).await;
    let missed: Vec<_> = told.iter().map(|told| told["missed_by"].clone()).collect();
    let some = serde_json::json!([{ "sink": "hook", "sent_up_to": sent }]);
    assert_eq!(missed, [serde_json::json!([]), some], "{told:?}");
}

/// R30, R32: however old it is, and not longer.
async fn r030_what_tells_of_a_removal_stays_while_it_is_needed(store: &dyn Store) {
    let k = Kit::new(store);
    mixed(&k).await;
    // An audit event at the beginning, so that the events behind it leave digests.
    assert_eq!(k.ask(retain(&k, "event", at(99), at(100))).await, Retained::Done(6));
    while seal(&k, 100).await > 0 {}
    assert_eq!(chain(&k).await.base.seq, 0);
    let later = |n: u64| at(200).after(days(100 * n));
    let most = |n: u64| Retain { limit: 2, ..retain(&k, "audit", at(150), later(n)) };
    // Two of audit go, and with them the first command's; of the second's digests are left, so what
    // tells of them stays.
    assert_eq!(k.ask(most(1)).await, Retained::Done(2));
    while seal(&k, 100).await > 0 {}
    assert_eq!(verify(&k).await.err(), None);
    assert_eq!((chain(&k).await.base.seq, removals(&k).await.len()), (5, 2));
    // Now those are behind the beginning, too, and what told of them goes.
    assert_eq!(k.ask(most(1)).await, Retained::Done(3));
    while seal(&k, 100).await > 0 {}
    assert_eq!(verify(&k).await.err(), None);
    let told = removals(&k).await;
    assert!(told.iter().all(|told| told["purpose"] == "audit"), "{told:?}");
    assert!(told.iter().any(|told| told["begins_behind"]["seq"] == 10), "{told:?}");
    assert_eq!(chain(&k).await.base.seq, 10);
}

pub(super) fn dead() -> Fate {
    Fate::Dead { attempt: 12, error: "500".to_owned() }
}

async fn a_beginning_that_is_gone_is_one_link(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(k.submit("a", at(1))).await;
    k.ask(k.submit("b", at(2))).await;
    seal(&k, 100).await;
    let before = chain(&k).await;
    let mut first = retain(&k, "event", at(50), at(60));
    first.limit = 4;
    assert_eq!(k.ask(first).await, Retained::Done(4));
    let after = chain(&k).await;
    assert_eq!((after.base.seq, after.links.len()), (4, 2), "no stones are left");
    assert_eq!(after.links, before.links[4..]);
    assert_eq!(verify(&k).await, Ok((2, 0)));
}

async fn what_was_told_is_remembered_for_its_time(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    let mut marks = vec![("x".to_owned(), at(1)), ("X".to_owned(), at(2))];
    let batch = take(&k, "w", 1).await;
    let told = SettleOutbox { marks: marks.clone(), ..settle_op(&k, "w", &batch, vec![]) };
    k.ask(told).await;
    marks.sort();
    let batch = take(&k, "w", 3).await;
    assert_eq!(batch.marks, marks);
    let marks = vec![("x".to_owned(), at(5))];
    let settle = settle_op(&k, "w", &batch, vec![]);
    k.ask(SettleOutbox { marks: marks.clone(), forget_before: at(3), ..settle }).await;
    assert_eq!(take(&k, "w", 6).await.marks, marks);
}

/// R33
async fn r033_events_are_read_by_command_type_purpose_and_time(store: &dyn Store) {
    let k = Kit::new(store);
    mixed(&k).await;
    let all = ListEvents { workspace: k.ws.clone(), limit: 100, ..ListEvents::default() };
    let count = async |which: ListEvents| k.ask(which).await.0.len();
    let a = ListEvents { command_id: Some("a".to_owned()), ..all.clone() };
    assert_eq!(count(a.clone()).await, 3);
    assert_eq!(count(ListEvents { since: Some(at(10)), ..a }).await, 0);
    assert_eq!(count(ListEvents { since: Some(at(10)), ..all.clone() }).await, 6);
    let between = ListEvents { since: Some(at(0)), until: Some(at(10)), ..all.clone() };
    let (before, all_of_it) = (count(between).await, count(all.clone()).await);
    assert_eq!(before + 6, all_of_it, "what is at the end is not between");
    let prefix = |text: &str| ListEvents { type_prefix: Some(text.to_owned()), ..all.clone() };
    assert_eq!(count(prefix("command.")).await, 6);
    assert_eq!(count(prefix("command.created")).await, 2);
    assert_eq!(count(prefix("sink.dis")).await, 3);
    assert_eq!(count(prefix("sinks")).await, 0);
    assert_eq!(count(ListEvents { purpose: Some("audit".to_owned()), ..all }).await, 5);
}
