//! Somebody with a database shell: refused at first, and found out in the end.

use steadfast::{Anchor, Break, Client, SinkState, TokioEnv};
use steadfast_core::event::LinkBody;
use steadfast_store::op::{PutSink, ReadChain, SinkFrom};
use steadfast_store::{OpenStore, StoreExt};
use steadfast_testkit::db::{DbKind, TestDb, command};

/// A workspace with five sealed events.
async fn five(store: &OpenStore, workspace: &str) -> Client {
    let env = std::sync::Arc::new(TokioEnv::current());
    let client = Client::over(env, store.clone(), workspace).unwrap();
    let put = PutSink {
        workspace: workspace.to_owned(),
        sink: "out".to_owned(),
        kind: "test".to_owned(),
        place: String::new(),
        from: SinkFrom::Beginning,
        now: steadfast::Timestamp::from_micros(0),
    };
    store.ask(put).await.unwrap();
    for n in 0..5 {
        let state = [SinkState::Disabled, SinkState::Active][n % 2];
        assert!(client.set_sink("out", state, &format!("no. {n}"), "user:1").await.unwrap());
        client.seal_events().await.unwrap();
    }
    client
}

async fn verify(client: &Client, noted: Option<&Anchor>) -> Option<Break> {
    client.verify_events(noted).await.unwrap().broken
}

/// R30
#[tokio::test(flavor = "multi_thread")]
async fn r030_the_database_refuses_to_change_or_remove_an_event() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let client = five(&store, "w").await;
        for forbidden in [
            "UPDATE domain_events SET payload = '{}' WHERE seq = 3",
            "UPDATE domain_events SET actor = 'user:2' WHERE seq = 3",
            "UPDATE domain_events SET seq = 9 WHERE seq = 3",
            "UPDATE domain_events SET seq = NULL, hash = NULL WHERE seq = 3",
            "UPDATE domain_events SET hash = 'x' WHERE seq = 3",
            "DELETE FROM domain_events WHERE seq = 3",
            "DELETE FROM domain_events",
        ] {
            let refused = command(db.kind(), &db.url, forbidden).unwrap_err();
            let kind = db.kind();
            assert!(refused.contains("append only"), "{kind:?}: {forbidden}: {refused}");
        }
        if db.kind() == DbKind::Postgres {
            assert!(command(db.kind(), &db.url, "TRUNCATE domain_events").is_err());
        }
        assert_eq!(verify(&client, None).await, None, "{:?}", db.kind());
    }
}

fn unguarded(db: &TestDb) {
    let on = if db.kind() == DbKind::Postgres { " ON domain_events" } else { "" };
    command(db.kind(), &db.url, &format!("DROP TRIGGER domain_events_no_update{on}")).unwrap();
    if db.kind() != DbKind::Postgres {
        command(db.kind(), &db.url, "DROP TRIGGER domain_events_no_delete").unwrap();
    }
}

/// R30
#[tokio::test(flavor = "multi_thread")]
async fn r030_what_a_hand_did_is_found_at_its_place() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let id = |n: i64| format!("evt_sink_out@{:08}", n - 1);
        let z = "0".repeat(64);
        let forge = format!("hash = '{z}' WHERE seq = 3");
        let cases: Vec<(&str, Vec<String>, Break)> = vec![
            ("changed", vec!["payload = '{}' WHERE seq = 3".into()], Break::Changed(3, id(3))),
            ("time", vec!["created_at = 7 WHERE seq = 1".into()], Break::Changed(1, id(1))),
            ("last", vec!["actor = 'me' WHERE seq = 5".into()], Break::Changed(5, id(5))),
            ("forged", vec![forge], Break::Forged(3, id(3))),
            ("unsealed", vec!["seq = NULL WHERE seq = 2".into()], Break::Missing(2)),
            ("extra", vec!["seq = 6 WHERE seq = 5".into()], Break::Missing(5)),
            (
                "swapped",
                vec![
                    "seq = 90 WHERE seq = 2".into(),
                    "seq = 2 WHERE seq = 3".into(),
                    "seq = 3 WHERE seq = 90".into(),
                ],
                Break::Reordered(2, 3, id(2)),
            ),
        ];
        for (name, _, _) in &cases {
            assert_eq!(verify(&five(&store, name).await, None).await, None);
        }
        let gone = five(&store, "gone").await;
        let rewritten = five(&store, "rewritten").await;
        let noted = rewritten.verify_events(None).await.unwrap().whole;
        unguarded(&db);
        let run = |sql: &str| command(db.kind(), &db.url, sql).unwrap();
        for (name, hands, wanted) in cases {
            for hand in hands {
                run(&format!("UPDATE domain_events SET {hand} AND workspace = '{name}'"));
            }
            let env = std::sync::Arc::new(TokioEnv::current());
            let client = Client::over(env, store.clone(), name).unwrap();
            assert_eq!(verify(&client, None).await, Some(wanted), "{:?}: {name}", db.kind());
        }
        for (seq, wanted) in [(4, Break::Missing(4)), (1, Break::Missing(1))] {
            run(&format!("DELETE FROM domain_events WHERE workspace = 'gone' AND seq = {seq}"));
            assert_eq!(verify(&gone, None).await, Some(wanted), "{:?}", db.kind());
        }
        // All of it removed and begun anew: whole in itself, but not what was noted.
        for table in ["domain_events", "event_chain", "event_sinks"] {
            run(&format!("DELETE FROM {table} WHERE workspace = 'rewritten'"));
        }
        let anew = five(&store, "rewritten").await;
        assert_eq!(verify(&anew, None).await, None);
        assert_eq!(verify(&anew, Some(&noted)).await, Some(Break::Head(5)), "{:?}", db.kind());
    }
}

/// R30, R32: digests that retention did not leave hide nothing, nor does a beginning that it did
/// not move.
#[tokio::test(flavor = "multi_thread")]
async fn r030_a_forged_tombstone_is_found_out() {
    for db in TestDb::all() {
        let store = steadfast_store::open(&db.url).await.unwrap();
        let (stone, start) = (five(&store, "stone").await, five(&store, "start").await);
        let noted = stone.verify_events(None).await.unwrap().whole;
        let run = |sql: &str| command(db.kind(), &db.url, sql).unwrap();
        // With the right digest the database lets the row go, and every link still follows.
        let page = ReadChain { workspace: "stone".to_owned(), after: 0, limit: 9 };
        let links = store.ask(page).await.unwrap().links;
        let LinkBody::Kept { digest, .. } = &links[2].body else { panic!("{links:?}") };
        run(&format!("INSERT INTO event_tombstones VALUES ('stone', 3, '{digest}', 7)"));
        run("DELETE FROM domain_events WHERE workspace = 'stone' AND seq = 3");
        let found = stone.verify_events(None).await.unwrap();
        assert_eq!((found.broken, found.removed), (Some(Break::Untold(3)), 1), "{:?}", db.kind());
        assert_eq!(verify(&stone, Some(&noted)).await, Some(Break::Untold(3)));
        // The same for everything up to a number.
        let page = ReadChain { workspace: "start".to_owned(), after: 0, limit: 9 };
        for link in &store.ask(page).await.unwrap().links[..2] {
            let LinkBody::Kept { digest, hash, .. } = &link.body else { panic!("{link:?}") };
            let seq = link.seq;
            run(&format!("INSERT INTO event_tombstones VALUES ('start', {seq}, '{digest}', 7)"));
            run(&format!("DELETE FROM domain_events WHERE workspace = 'start' AND seq = {seq}"));
            let moved = format!("base_seq = {seq}, base_hash = '{hash}'");
            run(&format!("UPDATE event_chain SET {moved} WHERE workspace = 'start'"));
        }
        run("DELETE FROM event_tombstones WHERE workspace = 'start'");
        assert_eq!(verify(&start, None).await, Some(Break::Untold(2)), "{:?}", db.kind());
    }
}
