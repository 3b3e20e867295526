//! Keys and payloads: compared as bytes, returned as bytes, up to their limits.
//!
//! These are the traps of collations, of nullable keys, of JSON columns and of narrow numbers.

use steadfast_core::{Timestamp, limits};
use steadfast_store::Store;
use steadfast_store::op::{Dequeue, Finish, GetValue, Signalled, Start, Started, With, Written};

use super::kit::{Kit, at, done, entry, ids, plain, with};

super::table! {
    run_ids_that_look_alike_are_different,
    queue_names_that_look_alike_are_different,
    deduplication_ids_that_look_alike_are_different,
    signal_ids_that_look_alike_are_different,
    value_keys_that_look_alike_are_different,
    workspaces_that_look_alike_are_different,
    keys_sort_as_bytes,
    keys_of_full_length_are_kept_whole,
    payloads_come_back_byte_for_byte,
    an_escaped_nul_in_a_payload_is_kept,
    a_payload_of_full_size_is_kept,
    numbers_of_full_width_are_kept,
    moments_before_the_epoch_and_far_away_are_kept,
}

/// Case, trailing space, accents, composed and decomposed, width, ligatures, no-break space.
const ALIKE: &[&str] = &[
    "sync:acme",
    "sync:Acme",
    "SYNC:ACME",
    "sync:acme ",
    "sync:acme  ",
    " sync:acme",
    "sync:acmé",
    "sync:acme\u{301}",
    "sync:ａｃｍｅ",
    "sync:acme\u{a0}",
    "ss",
    "ß",
    "ﬁ",
    "fi",
    "İ",
    "i",
    "ı",
    "😀",
    "😁",
    "\u{10FFFF}",
    "ÿ",
    "\u{FFFD}",
    "0",
    "00",
    "0.0",
    "1e0",
    "null",
    "NULL",
    "'",
    "\"",
    "--",
    "%",
    "_",
    "\\",
    "?",
    "$1",
    ":a",
];

async fn run_ids_that_look_alike_are_different(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, seed) in ALIKE.iter().zip(0..) {
        assert_eq!(k.ask(Start { seed, ..k.start(id) }).await, Started::New(None), "{id:?}");
    }
    for (id, seed) in ALIKE.iter().zip(0..) {
        let run = k.get(id).await;
        assert_eq!((run.run_id.as_str(), run.seed), (*id, seed));
    }
}

async fn queue_names_that_look_alike_are_different(store: &dyn Store) {
    let k = Kit::new(store);
    for (name, number) in ALIKE.iter().zip(0..) {
        k.put(plain(name)).await;
        k.started(k.on(name, &format!("r{number:02}"))).await;
    }
    for (name, number) in ALIKE.iter().zip(0..) {
        let claimed = k.ask(k.dequeue(name, "w1", 1)).await.runs;
        assert_eq!(ids(&claimed), [format!("r{number:02}")], "{name:?}");
    }
}

async fn deduplication_ids_that_look_alike_are_different(store: &dyn Store) {
    let k = Kit::new(store);
    for (key, number) in ALIKE.iter().zip(0..) {
        let start = |id: String| Start { dedupe_id: (*key).to_owned(), ..k.start(&id) };
        k.started(start(format!("a{number}"))).await;
        let again = k.ask(start(format!("b{number}"))).await;
        assert_eq!(again, Started::Duplicate(format!("a{number}")), "{key:?}");
    }
}

async fn signal_ids_that_look_alike_are_different(store: &dyn Store) {
    let k = Kit::new(store);
    k.owned("r").await;
    for id in ALIKE {
        assert_eq!(k.signal("r", id, id).await, Signalled::Accepted, "{id:?}");
    }
    let names: Vec<_> = k.load("r").await.signals.into_iter().map(|s| s.name).collect();
    assert_eq!(names, ALIKE);
}

async fn value_keys_that_look_alike_are_different(store: &dyn Store) {
    let k = Kit::new(store);
    let lease = k.owned("r").await;
    for (key, id) in ALIKE.iter().zip(0..) {
        let publish = With::Publish { key: (*key).to_owned(), value: id.to_string() };
        k.record(&lease, vec![with(done(id, "p", "1"), publish)]).await;
    }
    for (key, id) in ALIKE.iter().zip(0..) {
        let (workspace, run_id, key) = (k.ws.clone(), "r".to_owned(), (*key).to_owned());
        let found = k.ask(GetValue { workspace, run_id, key: key.clone() }).await.0;
        assert_eq!(found, Some(id.to_string()), "{key:?}");
    }
}

async fn workspaces_that_look_alike_are_different(store: &dyn Store) {
    let base = Kit::new(store).ws;
    for suffix in ["", " ", "a", "A", "á"] {
        let k = Kit { store, ws: format!("{base}{suffix}") };
        assert_eq!(k.find("r").await, None, "{suffix:?}");
        k.started(k.start("r")).await;
    }
}

async fn keys_sort_as_bytes(store: &dyn Store) {
    let k = Kit::new(store);
    k.ask_all(ALIKE.iter().map(|id| k.start(id)).collect()).await;
    let mut sorted = ALIKE.to_vec();
    sorted.sort_unstable();
    let all = Dequeue { limit: 100, ..k.dequeue("default", "w1", 1) };
    assert_eq!(ids(&k.ask(all).await.runs), sorted);
}

async fn keys_of_full_length_are_kept_whole(store: &dyn Store) {
    let k = Kit { store, ws: format!("{:w<64}", Kit::new(store).ws) };
    let long = |last: char| format!("{}{last}", "é".repeat(limits::KEY_BYTES / 2));
    let queue = long('q');
    k.put(plain(&queue)).await;
    for last in ['a', 'b'] {
        let start = Start {
            workflow: long(last),
            partition: long(last),
            dedupe_id: long(last),
            app_version: "v1".to_owned(),
            parent: long('p'),
            ..k.on(&queue, &long(last))
        };
        k.started(start.clone()).await;
        let run = k.get(&long(last)).await;
        assert_eq!((run.run_id, run.workflow, run.dedupe_id), (long(last), long(last), long(last)));
        assert_eq!((run.parent, run.queue), (long('p'), queue.clone()));
    }
    let worker = format!("{}#1", long('w').split_at(250).0);
    let workflows = vec![long('a'), long('b')];
    let dequeue = Dequeue { workflows, ..k.dequeue(&queue, &worker, 1) };
    let claimed = k.ask(dequeue).await.runs;
    assert_eq!((claimed.len(), &claimed[0].worker), (2, &worker));
}

/// What a JSON column would reorder, fold, round or refuse.
const PAYLOADS: &[&str] = &[
    r#"{"b":1,"a":1.10,"a":2}"#,
    "{ \"spaced\" :\t[1 , 2]\r\n}",
    "2222222400243069336933370",
    "-0.0",
    "1e400",
    "123456789012345678901234567890.000",
    "\"ünïcödé \u{1F600} \u{10FFFF} e\u{301}\"",
    "\"trailing space \"",
    "\"it's 100% \\\\ \\\" $1 ? :now -- ; /* */\"",
    "\"tab\\tnewline\\n\"",
    "\"\u{7f}\u{80}\u{feff}\"",
    "\"\"",
    "",
    " ",
    "null",
];

async fn round_trip(k: &Kit<'_>, run_id: &str, payload: &str) {
    let payload = payload.to_owned();
    let lease = k.owned_by(Start { input: payload.clone(), ..k.start(run_id) }, "w1").await;
    let mut record = done(0, "s", &payload);
    record.input = Some(payload.clone());
    let publish = With::Publish { key: "k".to_owned(), value: payload.clone() };
    assert_eq!(k.record(&lease, vec![with(record.clone(), publish)]).await, Written::Done);
    let mut signal = k.signal_op(run_id, "s", "s1");
    signal.payload.clone_from(&payload);
    k.ask(signal).await;
    let outcome = Ok(payload.clone());
    k.ask(Finish { lease, entries: Vec::new(), outcome, now: at(5) }).await;
    let run = k.get(run_id).await;
    assert_eq!((&run.input, run.output.as_ref()), (&payload, Some(&payload)));
    let loaded = k.load(run_id).await;
    assert_eq!((&k.steps(run_id).await[0], &loaded.signals[0].payload), (&record, &payload));
    let (workspace, run_id, key) = (k.ws.clone(), run_id.to_owned(), "k".to_owned());
    assert_eq!(k.ask(GetValue { workspace, run_id, key }).await.0, Some(payload));
}

/// R75, R97
async fn payloads_come_back_byte_for_byte(store: &dyn Store) {
    let k = Kit::new(store);
    for (number, payload) in PAYLOADS.iter().enumerate() {
        round_trip(&k, &format!("r{number}"), payload).await;
    }
}

async fn an_escaped_nul_in_a_payload_is_kept(store: &dyn Store) {
    let k = Kit::new(store);
    round_trip(&k, "r", "\"a\\u0000b\\ud83d\\ude00\"").await;
}

async fn a_payload_of_full_size_is_kept(store: &dyn Store) {
    let k = Kit::new(store);
    let text = "é\\\"".repeat(limits::PAYLOAD_BYTES / 4 - 1);
    round_trip(&k, "r", &format!("\"{text}\"")).await;
}

/// R97
async fn numbers_of_full_width_are_kept(store: &dyn Store) {
    let k = Kit::new(store);
    for (id, number) in [("min", i64::MIN), ("max", i64::MAX), ("big", (1 << 53) + 1)] {
        let start = Start {
            seed: number,
            priority: number,
            max_attempts: number.unsigned_abs().min(i64::MAX as u64) as i64,
            ..k.start(id)
        };
        k.started(start.clone()).await;
        let run = k.get(id).await;
        assert_eq!((run.seed, run.priority), (number, number));
        assert_eq!(run.max_attempts, start.max_attempts);
    }
    let lease = k.owned("r").await;
    let mut record = done(i64::MAX as u64, "s", "1");
    (record.seq, record.attempt) = (i64::MAX as u64, u32::MAX);
    k.record(&lease, vec![entry(record.clone())]).await;
    assert_eq!(k.steps("r").await, [record]);
}

/// R97
async fn moments_before_the_epoch_and_far_away_are_kept(store: &dyn Store) {
    let k = Kit::new(store);
    let far = [-1, 0, 1, 4_102_444_800_123_457, i64::MAX - 1, i64::MAX];
    for (number, us) in far.into_iter().enumerate() {
        let moment = Timestamp::from_micros(us);
        let id = format!("r{number}");
        let start =
            Start { ready_at: moment, deadline_at: Some(moment), now: moment, ..k.start(&id) };
        k.started(start).await;
        let run = k.get(&id).await;
        let deadline = Some(moment).filter(|at| *at != Timestamp::NEVER);
        assert_eq!((run.ready_at, run.deadline_at), (moment, deadline));
        assert_eq!((run.created_at, run.updated_at), (moment, moment));
    }
}
