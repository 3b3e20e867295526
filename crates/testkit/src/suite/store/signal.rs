//! Signals: accepted once, kept until they are consumed, and never lost between looking and
//! waiting.

use steadfast_core::limits;
use steadfast_store::Store;
use steadfast_store::op::{Load, Signalled, Suspended, With, Written};

use super::kit::{Kit, at, done, ids, with};

super::table! {
    a_signal_before_the_wait_is_kept,
    signals_come_in_the_order_in_which_they_were_accepted,
    a_signal_is_found_by_name_behind_any_number_of_others,
    a_signal_with_a_known_id_is_the_same_signal,
    a_signal_id_belongs_to_one_run,
    a_consumed_signal_is_gone_and_its_id_stays_known,
    a_signal_is_consumed_once,
    a_signal_wakes_a_suspended_run,
    a_signal_between_looking_and_suspending_is_not_lost,
    a_signal_does_not_disturb_an_owner,
    a_signal_does_not_delay_a_run_that_is_due,
    a_signal_to_an_ended_run_is_refused,
    a_signal_to_nobody_is_refused,
    a_signal_is_sent_with_a_record,
    a_signal_that_cannot_be_sent_refuses_its_record,
}

async fn names(k: &Kit<'_>, run_id: &str) -> Vec<String> {
    let signals = k.load(run_id).await.signals;
    signals.into_iter().map(|signal| format!("{}:{}", signal.name, signal.payload)).collect()
}

async fn a_signal_before_the_wait_is_kept(store: &dyn Store) {
    let k = Kit::new(store);
    k.started(k.start("r")).await;
    assert_eq!(k.signal("r", "paid", "s1").await, Signalled::Accepted);
    k.ask(k.dequeue("default", "w1", 5)).await;
    assert_eq!(names(&k, "r").await, ["paid:\"s1\""]);
    assert_eq!(k.load("r").await.inbox, 1);
}

async fn signals_come_in_the_order_in_which_they_were_accepted(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    for (name, id) in [("b", "z"), ("a", "y"), ("b", "x"), ("a", "w")] {
        k.signal("r", name, id).await;
    }
    assert_eq!(names(&k, "r").await, ["b:\"z\"", "a:\"y\"", "b:\"x\"", "a:\"w\""]);
    let seqs: Vec<i64> = k.load("r").await.signals.iter().map(|signal| signal.seq).collect();
    assert!(seqs.is_sorted(), "{seqs:?}");
}

async fn a_signal_is_found_by_name_behind_any_number_of_others(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    let noise = (0..limits::SIGNALS_PER_LOAD).map(|n| k.signal_op("r", "noise", &n.to_string()));
    k.ask_all(noise.collect()).await;
    k.signal("r", "paid", "s1").await;
    k.signal("r", "sent", "s2").await;
    assert_eq!(k.load("r").await.signals.len(), limits::SIGNALS_PER_LOAD);
    let named = |names: &[&str]| Load {
        workspace: k.ws.clone(),
        run_id: "r".to_owned(),
        now: at(0),
        children: Vec::new(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    };
    let loaded = k.ask(named(&["sent", "none", "paid"])).await;
    let found: Vec<_> = loaded.signals.iter().map(|signal| signal.name.as_str()).collect();
    assert_eq!(found, ["paid", "sent"]);
    assert_eq!(k.ask(named(&["none"])).await.signals, []);
}

async fn a_signal_with_a_known_id_is_the_same_signal(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    assert_eq!(k.signal("r", "paid", "s1").await, Signalled::Accepted);
    assert_eq!(k.signal("r", "other", "s1").await, Signalled::Duplicate);
    assert_eq!(names(&k, "r").await, ["paid:\"s1\""]);
    assert_eq!(k.get("r").await.inbox, 1);
}

async fn a_signal_id_belongs_to_one_run(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("a").await;
    k.owned("b").await;
    assert_eq!(k.signal("a", "paid", "s1").await, Signalled::Accepted);
    assert_eq!(k.signal("b", "paid", "s1").await, Signalled::Accepted);
}

async fn a_consumed_signal_is_gone_and_its_id_stays_known(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.signal("r", "paid", "s1").await;
    k.signal("r", "paid", "s2").await;
    let seq = k.load("r").await.signals[0].seq;
    let consume = vec![with(done(0, "wait", "\"s1\""), With::Consume(seq))];
    assert_eq!(k.record(&lease, consume).await, Written::Done);
    assert_eq!(names(&k, "r").await, ["paid:\"s2\""]);
    assert_eq!(k.signal("r", "paid", "s1").await, Signalled::Duplicate);
    k.signal("r", "paid", "s3").await;
    assert_eq!(names(&k, "r").await, ["paid:\"s2\"", "paid:\"s3\""]);
}

async fn a_signal_is_consumed_once(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.signal("r", "paid", "s1").await;
    let seq = k.load("r").await.signals[0].seq;
    let consume = |id| vec![with(done(id, "wait", "1"), With::Consume(seq))];
    assert_eq!(k.record(&lease, consume(0)).await, Written::Done);
    let again = k.record(&lease, consume(1)).await;
    assert!(matches!(again, Written::Refused(_)), "{again:?}");
    assert_eq!(k.steps("r").await.len(), 1);
}

async fn a_signal_wakes_a_suspended_run(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.suspend(&lease, 0).await;
    assert_eq!(k.ask(k.wake("w2", 5)).await.runs, []);
    k.signal("r", "paid", "s1").await;
    assert_eq!(ids(&k.ask(k.wake("w2", 5)).await.runs), ["r"]);
}

/// The lost wake-up: the owner looked, the signal came, the owner suspends.
async fn a_signal_between_looking_and_suspending_is_not_lost(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let seen = k.load("r").await.inbox;
    k.signal("r", "paid", "s1").await;
    let mut suspend = k.suspend_op(&lease, seen);
    suspend.entries = vec![super::kit::entry(done(0, "a", "1"))];
    assert_eq!(k.ask(suspend).await, Suspended::Arrived);
    let run = k.get("r").await;
    assert_eq!((run.parked, run.worker.as_str()), (false, "w1"), "the lease stays");
    assert_eq!(k.steps("r").await.len(), 1, "the records are durable");
    assert_eq!(k.suspend(&lease, k.load("r").await.inbox).await, Suspended::Done);
}

async fn a_signal_does_not_disturb_an_owner(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.signal("r", "paid", "s1").await;
    assert_eq!(k.get("r").await.wake_at, at(60));
    assert_eq!(k.finish(&lease).await, Written::Done);
}

async fn a_signal_does_not_delay_a_run_that_is_due(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    let mut suspend = k.suspend_op(&lease, 0);
    suspend.wake_at = at(1);
    k.ask(suspend).await;
    k.signal("r", "paid", "s1").await;
    assert_eq!(k.get("r").await.wake_at, at(1));
}

async fn a_signal_to_an_ended_run_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    k.signal("r", "paid", "before").await;
    k.finish(&lease).await;
    assert_eq!(k.signal("r", "paid", "after").await, Signalled::Over);
    assert_eq!(k.signal("r", "paid", "before").await, Signalled::Duplicate);
    assert_eq!(names(&k, "r").await, ["paid:\"before\""]);
}

async fn a_signal_to_nobody_is_refused(store: &dyn Store) {
    let k = Kit::new(store);
    assert_eq!(k.signal("nowhere", "paid", "s1").await, Signalled::NotFound);
}

async fn a_signal_is_sent_with_a_record(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("a").await;
    k.owned("b").await;
    let send = |id| vec![with(done(id, "send", "1"), With::Send(k.signal_op("b", "paid", "s1")))];
    assert_eq!(k.record(&lease, send(0)).await, Written::Done);
    assert_eq!(names(&k, "b").await, ["paid:\"s1\""]);
    assert_eq!(k.record(&lease, send(1)).await, Written::Done, "a duplicate is no failure");
    assert_eq!(names(&k, "b").await.len(), 1);
}

async fn a_signal_that_cannot_be_sent_refuses_its_record(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("a").await;
    let over = k.owned("b").await;
    k.finish(&over).await;
    for receiver in ["b", "nowhere"] {
        let send = With::Send(k.signal_op(receiver, "paid", "s1"));
        let reply = k.record(&lease, vec![with(done(0, "send", "1"), send)]).await;
        assert!(matches!(reply, Written::Refused(_)), "{reply:?}");
    }
    assert_eq!(k.steps("a").await, []);
}
