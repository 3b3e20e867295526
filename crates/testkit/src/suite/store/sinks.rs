//! Sinks: where they begin, who sends, and what becomes of what cannot be sent.

use steadfast_core::Timestamp;
use steadfast_store::Store;
use steadfast_store::op::*;

use super::kit::{Kit, at};
use super::publish::*;

super::table! {
    a_new_sink_begins_now_or_at_the_beginning,
    one_sender_has_the_sink_until_its_lease_ends,
    a_sender_that_lost_the_sink_writes_nothing,
    a_parked_event_holds_up_its_key_alone,
    a_dead_letter_is_kept_and_driven_again,
    a_sink_that_is_gone_is_disabled_and_it_is_audited,
    a_sink_is_set_by_itself_and_says_why,
    a_sink_that_moves_is_known_by_its_new_place,
    a_batch_is_no_larger_than_what_was_asked_for,
}

async fn a_new_sink_begins_now_or_at_the_beginning(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask(k.submit("a", at(1))).await;
    seal(&k, 2).await;
    assert!(sink(&k, "hook", SinkFrom::Now).await);
    assert!(sink(&k, "all", SinkFrom::Beginning).await);
    assert!(!sink(&k, "hook", SinkFrom::Beginning).await, "it goes on where it was");
    seal(&k, 100).await;
    assert_eq!(ids(&take(&k, "w", 3).await.fresh), ["evt_a_000002"], "what had no number yet");
    match k.ask(take_op(&k, "all", "w", 3)).await {
        Outbox::Taken(batch) => assert_eq!(batch.fresh.len(), 3),
        other => panic!("{other:?}"),
    }
    assert_eq!(k.ask(take_op(&k, "none", "w", 3)).await, Outbox::NotFound);
    let listed = sinks(&k).await;
    let cursors: Vec<_> = listed.sinks.iter().map(|s| (&*s.row.sink, s.row.cursor)).collect();
    assert_eq!((listed.head, cursors), (3, vec![("all", 0), ("hook", 2)]));
}

/// R114
async fn one_sender_has_the_sink_until_its_lease_ends(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    k.ask(k.submit("a", at(1))).await;
    seal(&k, 100).await;
    let first = take(&k, "w1", 3).await;
    assert_eq!(k.ask(take_op(&k, "hook", "w2", 62)).await, Outbox::Held);
    // The same process may look again: what it took before is void.
    let again = take(&k, "w1", 4).await;
    assert_eq!((again.epoch, &again.fresh), (first.epoch + 1, &first.fresh));
    let second = take(&k, "w2", 64).await;
    assert_eq!(second.fresh, first.fresh, "what the first did not settle comes again");
    assert_eq!(k.ask(settle_op(&k, "w2", &second, vec![])).await, OutboxSettled::Done);
    assert_eq!(take(&k, "w1", 65).await.fresh, [], "and the sink is free at once");
}

async fn a_sender_that_lost_the_sink_writes_nothing(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    k.ask(k.submit("a", at(1))).await;
    seal(&k, 100).await;
    let stale = take(&k, "w1", 3).await;
    let good = take(&k, "w2", 64).await;
    let late = settle_op(&k, "w1", &stale, vec![parked(&stale.fresh[0], 9)]);
    assert_eq!(k.ask(late.clone()).await, OutboxSettled::Fenced);
    assert_eq!(k.ask(settle_op(&k, "w2", &good, vec![])).await, OutboxSettled::Done);
    assert_eq!(k.ask(late).await, OutboxSettled::Fenced);
    let report = sinks(&k).await.sinks.remove(0);
    assert_eq!((report.row.cursor, report.parked), (3, 0));
    // Neither another process under the epoch of the last, nor the last under an older one.
    let batch = take(&k, "w2", 66).await;
    let other = SettleOutbox { owner: "w1".to_owned(), ..settle_op(&k, "w2", &batch, vec![]) };
    let older = SettleOutbox { epoch: batch.epoch - 1, ..settle_op(&k, "w2", &batch, vec![]) };
    for void in [other, older] {
        assert_eq!(k.ask(void).await, OutboxSettled::Fenced);
    }
    // Not even its own cursor goes back.
    let batch = take(&k, "w2", 70).await;
    let back = SettleOutbox { cursor: 1, ..settle_op(&k, "w2", &batch, vec![]) };
    assert_eq!(k.ask(back).await, OutboxSettled::Fenced);
}

async fn a_parked_event_holds_up_its_key_alone(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    k.ask(k.submit("a", at(1))).await;
    k.ask(k.submit("b", at(2))).await;
    seal(&k, 100).await;
    let batch = take(&k, "w", 3).await;
    // The first of a waits until 20; the others of a wait behind it.
    let behind = |at: usize| {
        let (attempt, error) = (0, String::new());
        let next_at = Timestamp::from_micros(0);
        fate(&batch.fresh[at], Fate::Parked { attempt, next_at, error })
    };
    let fates = vec![parked(&batch.fresh[0], 20), behind(1), behind(2)];
    assert_eq!(k.ask(settle_op(&k, "w", &batch, fates)).await, OutboxSettled::Done);
    let early = take(&k, "w", 19).await;
    assert_eq!((early.due.len(), early.fresh.len(), early.parked.len()), (0, 0, 3));
    assert_eq!(k.ask(settle_op(&k, "w", &early, vec![])).await, OutboxSettled::Done);
    assert_eq!(sinks(&k).await.sinks[0].due_at, Some(Timestamp::from_micros(0)));
    let due = take(&k, "w", 20).await;
    let attempts: Vec<_> = due.due.iter().map(|(event, n)| (event.seq, *n)).collect();
    assert_eq!(attempts, [(1, 1), (2, 0), (3, 0)]);
    assert!(due.due[0].0.context.as_ref().is_some_and(|text| text.contains("\"a\"")));
    let done = due.due.iter().map(|(event, _)| fate(event, Fate::Done)).collect();
    assert_eq!(k.ask(settle_op(&k, "w", &due, done)).await, OutboxSettled::Done);
    assert_eq!(sinks(&k).await.sinks[0].parked, 0);
}

async fn a_dead_letter_is_kept_and_driven_again(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    k.ask(k.submit("a", at(1))).await;
    seal(&k, 100).await;
    let batch = take(&k, "w", 3).await;
    let fates = vec![fate(&batch.fresh[0], dead()), fate(&batch.fresh[1], dead())];
    assert_eq!(k.ask(settle_op(&k, "w", &batch, fates)).await, OutboxSettled::Done);
    let list = |after| ListDead { workspace: k.ws.clone(), sink: None, after, limit: 1 };
    let first = k.ask(list(None)).await.0.remove(0);
    assert_eq!((first.seq, first.attempt, &*first.error), (1, 12, "500"));
    let rest = k.ask(list(Some((first.sink, first.seq)))).await.0;
    assert_eq!(rest.iter().map(|letter| letter.seq).collect::<Vec<_>>(), [2]);
    assert_eq!(sinks(&k).await.sinks[0].dead, 2);
    let again = take(&k, "w", 99).await;
    assert!(again.due.is_empty() && again.parked.is_empty(), "it holds up nobody");
    let drive = |event_id: Option<&str>, now| Redrive {
        workspace: k.ws.clone(),
        sink: "hook".to_owned(),
        event_id: event_id.map(str::to_owned),
        actor: "user:2".to_owned(),
        now: at(now),
    };
    assert_eq!(k.ask(drive(Some("evt_a_000001"), 98)).await, Redriven(1));
    assert_eq!(k.ask(drive(Some("evt_a_000001"), 98)).await, Redriven(1), "the same request");
    assert_eq!(k.ask(drive(Some("evt_a_000001"), 99)).await, Redriven(0));
    assert_eq!(k.ask(drive(None, 100)).await, Redriven(1));
    let told = ListEvents {
        workspace: k.ws.clone(),
        event_type: Some("sink.redriven".to_owned()),
        limit: 9,
        ..ListEvents::default()
    };
    let told = k.ask(told).await.0;
    assert!(told.iter().all(|e| e.purpose == "audit" && e.actor == "user:2"), "{told:?}");
    assert_eq!(told.len(), 2, "each is audited once");
    let due: Vec<_> = take(&k, "w", 100).await.due.iter().map(|(e, n)| (e.seq, *n)).collect();
    assert_eq!(due, [(1, 0), (2, 0)]);
}

async fn a_sink_that_is_gone_is_disabled_and_it_is_audited(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    k.ask(k.submit("a", at(1))).await;
    seal(&k, 100).await;
    let batch = take(&k, "w", 3).await;
    let gone = Some("the receiver answered 410 Gone".to_owned());
    let settle = SettleOutbox { gone, ..settle_op(&k, "w", &batch, vec![]) };
    assert_eq!(k.ask(settle).await, OutboxSettled::Done);
    assert_eq!(k.ask(take_op(&k, "hook", "w", 9)).await, Outbox::Disabled);
    let audit = ListEvents {
        workspace: k.ws.clone(),
        purpose: Some("audit".to_owned()),
        limit: 10,
        ..ListEvents::default()
    };
    let told = k.ask(audit.clone()).await.0.remove(0);
    assert_eq!((&*told.event_type, &*told.actor), ("sink.disabled", "system:relay"));
    assert!(told.payload.contains("410"), "{}", told.payload);
    assert_eq!(set(&k, SinkState::Disabled, at(10)).await, SinkSet::Unchanged);
    assert_eq!(set(&k, SinkState::Active, at(11)).await, SinkSet::Done);
    assert_eq!(k.ask(audit).await.0.len(), 2);
    take(&k, "w", 12).await;
    let nobody = SetSink {
        workspace: k.ws.clone(),
        sink: "none".to_owned(),
        state: SinkState::Active,
        reason: String::new(),
        actor: String::new(),
        now: at(0),
    };
    assert_eq!(k.ask(nobody).await, SinkSet::NotFound);
}

async fn a_sink_is_set_by_itself_and_says_why(store: &dyn Store) {
    let k = Kit::new(store);
    for name in ["hook", "other"] {
        sink(&k, name, SinkFrom::Beginning).await;
    }
    let before = take(&k, "w", 3).await;
    let set = SetSink {
        workspace: k.ws.clone(),
        sink: "hook".to_owned(),
        state: SinkState::Disabled,
        reason: "too loud".to_owned(),
        actor: "user:1".to_owned(),
        now: at(4),
    };
    assert_eq!(k.ask(set).await, SinkSet::Done);
    let states: Vec<_> = sinks(&k).await.sinks.into_iter().map(|s| s.row).collect();
    let said: Vec<_> = states.iter().map(|row| (row.state, &*row.reason)).collect();
    assert_eq!(said, [(SinkState::Disabled, "too loud"), (SinkState::Active, "")]);
    let late = settle_op(&k, "w", &before, vec![]);
    assert_eq!(k.ask(late).await, OutboxSettled::Fenced, "who was sending has lost the sink");
}

async fn a_sink_that_moves_is_known_by_its_new_place(store: &dyn Store) {
    let k = Kit::new(store);
    for name in ["hook", "other"] {
        sink(&k, name, SinkFrom::Beginning).await;
    }
    let moved = PutSink {
        workspace: k.ws.clone(),
        sink: "hook".to_owned(),
        kind: "nats".to_owned(),
        place: "elsewhere".to_owned(),
        from: SinkFrom::Now,
        now: at(5),
    };
    assert!(!k.ask(moved).await.created);
    let rows: Vec<_> = sinks(&k).await.sinks.into_iter().map(|s| s.row).collect();
    let places: Vec<_> = rows.iter().map(|row| (&*row.kind, &*row.place)).collect();
    assert_eq!(places, [("nats", "elsewhere"), ("webhook", "there")]);
}

async fn a_batch_is_no_larger_than_what_was_asked_for(store: &dyn Store) {
    let k = Kit::new(store);
    sink(&k, "hook", SinkFrom::Beginning).await;
    k.ask(k.submit("a", at(1))).await;
    seal(&k, 100).await;
    let Outbox::Taken(batch) = k.ask(TakeOutbox { limit: 2, ..take_op(&k, "hook", "w", 3) }).await
    else {
        panic!("the sink was expected")
    };
    assert_eq!(batch.fresh.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
}
